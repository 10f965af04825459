"""`edgeagent monitor` and `edgeagent doctor` as a user runs them."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from agent import ROOT, edgeagent, sentence, words

MIB = 1 << 20


def alone(tmp_path: Path, **more: str) -> dict[str, str]:
    """An environment in which no engine is found."""
    empty = tmp_path / "bin"
    empty.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EDGEAGENT_")}
    return {**kept, "PATH": str(empty), **more}


def run(environ: Mapping[str, str], *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words(*arguments), capture_output=True, text=True, timeout=90, env=dict(environ),
        cwd=ROOT, check=False,
    )  # fmt: skip


def checks(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


# ------------------------------------------------------------------------------------------ doctor


def test_a_doctor_on_this_machine_says_what_works_and_never_fails(tmp_path: Path) -> None:
    done = run(alone(tmp_path), "doctor", "--json")

    document = json.loads(done.stdout)
    assert done.stderr == ""
    assert document["schema"] == "edgeagent.doctor/1"
    assert done.returncode == (1 if document["worst"] == "fault" else 0)
    assert {check["state"] for check in document["checks"]} <= {
        "ok", "missing", "warning", "fault", "unasked",
    }  # fmt: skip
    found = checks(done)
    assert found["box"]["state"] == "ok"
    assert found["probe.host"]["state"] == "ok"
    assert found["engine.llamacpp"]["state"] == "missing"
    assert found["broker"]["text"].startswith("not configured")
    for probe in document["probes"]:
        gaps = {name for name, value in probe["values"].items() if value is None}
        assert gaps == set(probe["absent"]), probe["name"]


def test_where_nothing_can_be_seen_the_doctor_still_answers(tmp_path: Path) -> None:
    done = run(alone(tmp_path, EDGEAGENT_SYSROOT=str(tmp_path / "nothing")), "doctor", "--json")

    assert (done.returncode, done.stderr) == (1, "")
    assert checks(done)["memory.host"]["state"] == "fault"
    assert json.loads(done.stdout)["host"]["class"] == "cpu"


def test_a_doctor_for_people_ends_with_a_verdict(tmp_path: Path) -> None:
    done = run({**alone(tmp_path), "COLUMNS": "80"}, "doctor")

    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-1].endswith(".")
    assert " failed, " in lines[-1] or "Nothing failed" in lines[-1]


def program(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_the_engine_named_in_the_environment_is_asked_for_its_version(tmp_path: Path) -> None:
    server = program(tmp_path, "my-server", 'echo "version: 9999 (abcdef)" >&2')

    done = run(alone(tmp_path, EDGEAGENT_LLAMA_SERVER=str(server)), "doctor", "--json")

    check = checks(done)["engine.llamacpp"]
    assert check["state"] == "ok"
    assert check["text"] == f"9999 (abcdef) at {server}"


def test_an_engine_that_cannot_run_here_is_a_fault_with_its_last_words(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    complaint = "libggml.so: cannot open shared object file"
    program(folder, "llama-server", f"echo '{complaint}' >&2; exit 127")

    done = run(alone(tmp_path), "doctor", "--json")

    check = checks(done)["engine.llamacpp"]
    assert done.returncode == 1
    assert check["state"] == "fault"
    assert complaint in check["text"]


def test_an_engine_named_and_not_there_is_a_fault(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"

    done = run(alone(tmp_path, EDGEAGENT_LLAMA_SERVER=str(nowhere)), "doctor", "--json")

    assert done.returncode == 1
    assert str(nowhere) in checks(done)["engine.llamacpp"]["text"]


# ----------------------------------------------------------------------------------------- monitor


def test_a_monitor_that_nobody_watches_takes_one_reading(tmp_path: Path) -> None:
    done = run(alone(tmp_path), "monitor", "--json")

    document = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert document["schema"] == "edgeagent.monitor/1"
    assert document["values"]["host.total_bytes"] > 0
    assert set(document["absent"]) == {
        name for name, value in document["values"].items() if value is None
    }


def test_a_named_process_and_what_it_started_is_the_engine(tmp_path: Path) -> None:
    code = (
        f"held = bytearray({64 * MIB}); held[::4096] = b'x' * len(held[::4096]); print(); input()"
    )
    with subprocess.Popen(
        ["/bin/sh", "-c", '"$0" -c "$1"; true', sys.executable, code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as shell:
        assert shell.stdout is not None
        shell.stdout.readline()  # the memory is there
        done = run(alone(tmp_path), "monitor", "--once", "--json", "--pid", shell.pid)
        shell.communicate(b"\n")

    values = json.loads(done.stdout)["values"]
    assert values["engine.processes"] == 2
    assert 64 * MIB <= values["engine.anon_bytes"] < 96 * MIB
    assert values["engine.pss_anon_bytes"] >= 64 * MIB


def test_engines_that_run_are_found_by_their_name(tmp_path: Path) -> None:
    sleeper = shutil.copy("/bin/sleep", tmp_path / "llama-server")
    with subprocess.Popen([sleeper, "60"]) as engine:
        try:
            done = run(alone(tmp_path), "monitor", "--once", "--json")
        finally:
            engine.kill()

    found = json.loads(done.stdout)["engines"]
    assert engine.pid in [one["pid"] for one in found]
    assert {one["kind"] for one in found if one["pid"] == engine.pid} == {"llamacpp"}


def test_keys_on_an_engines_command_line_are_not_shown(tmp_path: Path) -> None:
    script = program(tmp_path, "llama-server", "read line")
    with subprocess.Popen([script, "--api-key", "s3cret"], stdin=subprocess.PIPE) as engine:
        done = run(alone(tmp_path), "monitor", "--once", "--json")
        engine.communicate(b"\n")

    assert engine.pid in [one["pid"] for one in json.loads(done.stdout)["engines"]]
    assert "s3cret" not in done.stdout


def test_a_rate_that_is_asked_for_goes_on_line_by_line(tmp_path: Path) -> None:
    with subprocess.Popen(
        words("monitor", "--json", "--hz", 20), env=alone(tmp_path), cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        assert running.stdout is not None
        documents = [json.loads(running.stdout.readline()) for _ in range(3)]
        running.send_signal(signal.SIGINT)
        _, stderr = running.communicate(timeout=30)

    assert (running.returncode, stderr) == (0, "")
    assert [one["schema"] for one in documents] == ["edgeagent.monitor/1"] * 3
    assert documents[0]["at"] < documents[1]["at"] < documents[2]["at"]
    assert all("pressure.cpu_some_s" in one["rates"] for one in documents) or (
        documents[0]["values"]["pressure.cpu_some_s"] is None
    )


def test_on_a_terminal_the_view_is_live_until_it_is_interrupted(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        words("monitor", "--hz", 20), env=alone(tmp_path, TERM="xterm", COLUMNS="90"), cwd=ROOT,
        stdout=theirs, stderr=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        os.close(theirs)
        seen = b""
        while seen.count(b"host memory") < 3:
            seen += os.read(ours, 4096)
        running.send_signal(signal.SIGINT)
        while _more(ours):
            pass
        _, stderr = running.communicate(timeout=30)
    os.close(ours)

    assert (running.returncode, stderr) == (0, "")


def _more(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # the other side has been closed
        return b""


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--hz", "0"), "--hz"),
        (("--hz", "nan"), "--hz"),
        (("--hz", "1000"), "--hz"),
        (("--hz", "often"), "--hz"),
        (("--hz", "1", "--once"), "--once"),
        (("--pid", "0"), "--pid"),
        (("--pid", str((1 << 22) + 1)), "--pid"),
    ],
)
def test_what_is_wrong_with_a_monitors_words_is_one_sentence(
    arguments: tuple[str, ...], named: str
) -> None:
    done = edgeagent("monitor", *arguments)

    assert done.returncode == 2
    assert named in sentence(done)


# ------------------------------------------------------------------------------------- our own cost


@pytest.mark.parametrize(
    ("command", "heavy", "most_mib"),
    [
        ("monitor", {"httpx", "pydantic", "rich", "pynvml", "asyncio"}, 40),
        ("doctor", {"httpx", "rich", "pynvml", "matplotlib", "cryptography"}, 80),
    ],
)
def test_looking_takes_little_memory_and_loads_nothing_of_a_sweep(
    command: str, heavy: set[str], most_mib: int
) -> None:
    code = (
        "import re, sys\n"
        "from edgeagent.cli.main import main\n"
        f"main(['{command}', '--json'])\n"
        f"heavy = {heavy!r} & set(sys.modules)\n"
        "peak = re.search(r'VmHWM:\\s*(\\d+)', open('/proc/self/status').read())[1]\n"
        "print(heavy, peak, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )

    loaded, _, peak_kib = done.stderr.rpartition(" ")
    assert loaded == "set()"
    assert int(peak_kib) < most_mib * 1024
