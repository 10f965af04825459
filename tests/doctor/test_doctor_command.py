"""`edgeagent doctor` as a user runs it: bad input, one sentence each with what to do."""

from __future__ import annotations

import grp
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from agent import ROOT, words
from broker_places import mosquitto
from spool_places import fill_disk, small_disk

from edgeagent.core.diagnosis import Check
from edgeagent.doctor import files
from edgeagent.doctor.bounded import Errand
from edgeagent.doctor.examination import Findings
from edgeagent.doctor.files import Wanted
from edgeagent.settings import Surroundings, load
from edgeagent.settings_check import Reader

UNIT = ROOT / "systemd/edgeagent.service"
UID, GID, RENDER = 54_321, 54_321, 54_322
VIDEO = grp.getgrnam("video").gr_gid


def run(
    *options: object, environ: Mapping[str, str] | None = None, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EDGEAGENT_")}
    return subprocess.run(
        words("doctor", *options), capture_output=True, text=True, timeout=120, check=False,
        cwd=cwd,
        env={**kept, "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", **(environ or {})},
    )  # fmt: skip


def told(done: subprocess.CompletedProcess[str]) -> dict[str, list[dict[str, Any]]]:
    """The checks by their names; a name may have several."""
    assert done.stderr == ""
    found: dict[str, list[dict[str, Any]]] = {}
    for check in json.loads(done.stdout)["checks"]:
        found.setdefault(check["name"], []).append(check)
    return found


def one(done: subprocess.CompletedProcess[str], name: str) -> dict[str, Any]:
    (check,) = told(done)[name]
    return check


@pytest.fixture
def root() -> Iterator[Path]:
    """A root with the service installed, where everybody may enter."""
    folder = Path(tempfile.mkdtemp(prefix="edgeagent-test-"))
    folder.chmod(0o755)
    for place in ("etc/edgeagent", "usr/lib/systemd/system", "run/systemd/system"):
        (folder / place).mkdir(parents=True)
    (folder / "etc/passwd").write_text(f"edgeagent:x:{UID}:{GID}::/:/usr/sbin/nologin\n")
    (folder / "etc/group").write_text(f"edgeagent:x:{GID}:\nvideo:x:{VIDEO}:\nrender:x:{RENDER}:\n")
    shutil.copy(UNIT, folder / "usr/lib/systemd/system")
    yield folder
    shutil.rmtree(folder)


def configure(root: Path, text: str) -> Path:
    path = root / "etc/edgeagent/edgeagent.toml"
    path.write_text(text.replace("{root}", str(root)))
    path.chmod(0o644)
    return path


def below(root: Path) -> dict[str, str]:
    return {"EDGEAGENT_SYSROOT": str(root)}


def needs_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become the service's user")


# ------------------------------------------------------------------------------- the configuration


def test_without_any_configuration_it_says_so_and_nothing_of_it_is_wrong(tmp_path: Path) -> None:
    done = run("--json", environ=below(tmp_path))

    assert one(done, "configuration")["state"] == "ok"
    assert one(done, "broker")["state"] == "missing"


def test_every_fault_of_a_broken_configuration_is_a_line_and_the_status_is_78(root: Path) -> None:
    path = configure(root, "[mqtt]\nenabled = true\nprot = 1\n[agent]\nsite = 7\n")

    done = run("--json", "--system", environ=below(root))

    assert done.returncode == 78
    faults = {check["text"]: check["hint"] for check in told(done)["configuration"]}
    assert faults[f"{path}:3: mqtt.prot is not a known key"] == "write mqtt.port"
    assert any(text.startswith(f"{path}:5: agent.site ") for text in faults)
    assert not json.loads(done.stdout)["configuration"]["sound"]


def test_a_configuration_that_is_no_toml_does_not_end_the_look(root: Path) -> None:
    configure(root, "[mqtt\n")

    done = run("--json", environ=below(root))

    assert done.returncode == 78
    assert "is not TOML" in one(done, "configuration")["text"]
    assert "memory.host" in told(done)


# ------------------------------------------------------------------------- the box, in one sentence


def test_jetpack_5_and_no_systemd_are_told_in_one_sentence_each(root: Path) -> None:
    (root / "etc/nv_tegra_release").write_text("# R35 (release), REVISION: 4.1, GCID: 1\n")
    shutil.rmtree(root / "run")

    done = run("--json", environ=below(root))

    release, service = one(done, "box.release"), one(done, "service")
    assert (done.returncode, release["state"]) == (1, "fault")
    assert "L4T 35.4.1 (JetPack 5) is out of scope" in release["text"]
    assert "JetPack 6 or 7" in release["hint"]
    assert service["state"] == "missing"
    assert "systemd does not run here" in service["text"]


@pytest.mark.parametrize("version", ["(3, 8, 18)", "(3, 9, 2)"])
def test_a_python_that_is_too_old_is_refused_in_one_sentence(version: str) -> None:
    code = (
        f"import sys; sys.version_info = {version}; sys.argv = ['edgeagent']; import runpy; "
        "runpy.run_module('edgeagent', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )

    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "Python 3.10 or newer" in done.stderr


# -------------------------------------------------------------------------- as the service's user

NIGHTLY = """\
[agent]
state_dir = "{root}/state"
[engines.mine]
kind = "llamacpp"
binary = "{root}/engine/llama-server"
model = "{root}/models/m.gguf"
[sweep.profiles.nightly]
concurrency = [1]
[signing]
key_file = "{root}/etc/edgeagent/signing.key"
"""


def furnish(root: Path) -> None:
    """Everything that the service needs, and open to it."""
    for name in ("state", "engine", "models", "dev/dri"):
        (root / name).mkdir(parents=True)
    os.chown(root / "state", UID, GID)
    server = root / "engine/llama-server"
    server.write_text("#!/bin/sh\necho 'version: 7 (abc)'\n")
    server.chmod(0o755)
    (root / "models/m.gguf").write_text("weights")
    (root / "models/m.gguf").chmod(0o644)
    key = root / "etc/edgeagent/signing.key"
    key.write_text("the-private-part-of-it\n")
    key.chmod(0o400)
    os.chown(key, UID, GID)
    node = root / "dev/dri/renderD128"
    node.touch()
    node.chmod(0o660)
    os.chown(node, 0, VIDEO)
    card = root / "sys/class/drm/card0/device"
    card.mkdir(parents=True)
    (card / "vendor").write_text("0x1002\n")
    # The unit as it is, but that the test's folder in /tmp is not hidden from it.
    unit = root / "usr/lib/systemd/system/edgeagent.service"
    text = unit.read_text().replace("PrivateTmp=yes", f"ReadWritePaths={root}/state")
    unit.write_text(text)
    configure(root, NIGHTLY)


NEEDED = ("configured.mine", "model.mine", "disk.state", "files", "permissions.service_gpu")


def test_what_the_service_needs_and_may_use_is_well(root: Path) -> None:
    needs_root()
    furnish(root)

    done = run("--json", environ=below(root))

    assert {name: one(done, name)["state"] for name in NEEDED} == dict.fromkeys(NEEDED, "ok")
    assert one(done, "configured.mine")["text"] == f"7 (abc) at {root}/engine/llama-server"
    assert json.loads(done.stdout)["asked"]["service"]["groups"] == [
        "edgeagent", "render", "video",
    ]  # fmt: skip


def test_what_root_may_use_and_the_service_may_not_is_found(root: Path) -> None:
    needs_root()
    furnish(root)
    (root / "models").chmod(0o700)
    (root / "engine/llama-server").chmod(0o744)
    os.chown(root / "state", 0, 0)
    os.chown(root / "etc/edgeagent/signing.key", 0, 0)
    unit = root / "usr/lib/systemd/system/edgeagent.service"
    unit.write_text(unit.read_text().replace("SupplementaryGroups=video render", ""))

    done = run("--json", environ=below(root))

    engine, model, state, files, gpu = (one(done, name) for name in NEEDED)
    assert done.returncode == 1
    assert {check["state"] for check in (engine, model, state, files, gpu)} == {"fault"}
    assert "cannot be started by user edgeagent" in engine["text"]
    assert f"cannot be read by user edgeagent: the folder {root}/models is closed" in model["text"]
    assert "cannot be written by user edgeagent" in state["text"]
    assert "signing.key, which user edgeagent may not read" in files["text"]
    assert "/dev/dri/renderD128 cannot be opened by user edgeagent" in gpu["text"]
    assert "usermod -aG video edgeagent" in gpu["hint"]
    assert all(check["hint"] for check in (engine, model, state, files, gpu))
    assert "the-private-part" not in done.stdout


def test_what_the_units_sandbox_closes_is_told_with_the_line_that_opens_it(root: Path) -> None:
    needs_root()
    configure(
        root,
        '[agent]\nruns_dir = "/srv/results"\n[engines.mine]\nkind = "llamacpp"\n'
        'binary = "/home/anna/llama-server"\nmodel = "/home/anna/m.gguf"\n'
        "[sweep.profiles.nightly]\nconcurrency = [1]\n",
    )

    done = run("--json", environ=below(root))

    results, model = one(done, "disk.results"), one(done, "model.mine")
    assert (results["state"], model["state"]) == ("fault", "fault")
    assert "ProtectSystem=strict closes it" in results["text"]
    assert "ReadWritePaths=/srv/results" in results["hint"]
    assert "ProtectHome=yes hides it" in model["text"]
    assert "/var/lib/edgeagent/models" in model["hint"]


# --------------------------------------------------------------------------------------------- disk


def on_disk(folder: Path, leaves_mb: int = 0) -> dict[str, Check]:
    """What is said of the places of a service whose files lie there."""
    here = Surroundings({}, "box", folder, folder)
    settings = load(
        here, None, [f"agent.state_dir={folder}/state", "mqtt.enabled=true", "mqtt.host=127.0.0.1",
                     f"mqtt.spool.min_free_mb={leaves_mb}"],
    )  # fmt: skip
    wanted = Wanted(
        settings, Reader(os.geteuid()), folder, "cpu", places=files.service_places(settings)
    )
    return {
        check.name: check
        for check in files.places(settings, files.seen(files.look(wanted)), "", None)
    }


def test_a_disk_that_is_nearly_full_is_a_fault_with_its_size(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "80m") as disk:
        roomy = on_disk(disk)["disk.state"]
        fill_disk(disk)
        full = on_disk(disk)["disk.state"]
        done = run("--json", cwd=disk)

    assert (roomy.state, full.state) == ("warning", "fault")
    assert "0 MiB free" in full.text
    assert "make room" in str(full.hint)
    assert (done.returncode, one(done, "disk.runs")["state"]) == (1, "fault")


def test_a_disk_below_what_the_spool_leaves_to_others_takes_nothing_in(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "300m") as disk:
        found = on_disk(disk, leaves_mb=512)["disk.spool"]

    assert found.state == "fault"
    assert "512 MiB are left to others" in found.text


def test_a_read_only_disk_is_called_that(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "200m") as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        found = on_disk(disk)["disk.state"]

    assert found.state == "fault"
    assert "read-only" in found.text
    assert "mount it read-write" in str(found.hint)


# ------------------------------------------------------------------------------- broker, as a whole


def test_a_broker_is_asked_unless_it_is_to_be_left_alone(tmp_path: Path) -> None:
    with mosquitto(tmp_path / "broker") as running:
        at = ("--set", "mqtt.enabled=true", "--set", "mqtt.host=127.0.0.1", "--set",
              f"mqtt.port={running.port}", "--set", f"agent.state_dir={tmp_path}")  # fmt: skip
        done = run("--json", *at)
        before = running.log().count("New connection")
        offline = run("--json", "--offline", *at)
        after = running.log().count("New connection")

    assert one(done, "broker.round_trip")["state"] == "ok"
    assert one(offline, "broker")["state"] == "unasked"
    assert before == after


# ------------------------------------------------------------------------------------- what is said


def test_people_get_words_for_each_state_what_to_do_and_a_verdict(root: Path) -> None:
    configure(root, "[mqtt]\nenabled = true\n")

    done = run(environ={**below(root), "COLUMNS": "80"})

    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith(" failed     configuration") for line in lines)
    assert any("→ say where the broker is" in line for line in lines)
    assert lines[-1].startswith("1 failed") or " failed, " in lines[-1]
    assert done.returncode == 78


def test_what_hangs_or_has_a_bug_costs_its_own_line() -> None:
    def hanging() -> list[Check]:
        time.sleep(3600)
        return []

    def broken() -> list[Check]:
        raise ValueError("a bug")

    findings = Findings()
    findings.await_all(
        {
            "one": Errand(hanging, 0.2),
            "two": Errand(broken, 30.0),
            "three": Errand(lambda: [Check("three", "ok", "well")], 30.0),
        }
    )

    one_, two, three = findings.checks
    assert (one_.state, two.state, three.state) == ("fault", "fault", "ok")
    assert "no answer within 0.2 s" in one_.text
    assert "report it" in str(two.hint)


def test_no_secret_of_a_whole_box_is_in_a_bug_report(tmp_path: Path) -> None:
    server = tmp_path / "llama-server"
    said = "I was given $HF_TOKEN and http://anna:ftp-word@host"
    server.write_text(f'#!/bin/sh\necho "{said}" >&2\n')
    server.chmod(0o755)
    (tmp_path / "password").write_text("from-the-file\n")
    (tmp_path / "password").chmod(0o400)
    (tmp_path / "user").write_text("edge-0001\n")
    path = tmp_path / "edgeagent.toml"
    path.write_text(
        f"""[agent]
state_dir = "{tmp_path}"
[mqtt]
enabled = true
host = "127.0.0.1"
port = 1
password = "from-the-config"
username_file = "{tmp_path}/user"
password_file = "{tmp_path}/password"
[engines.mine]
kind = "llamacpp"
binary = "{server}"
model = "/m.gguf"
args = ["--api-key", "from-the-arguments"]
env = {{ HF_TOKEN = "from-the-engine" }}
[sweep.profiles.nightly]
concurrency = [1]
"""
    )
    environ = {"EDGEAGENT_LLAMA_SERVER": str(server), "HF_TOKEN": "from-the-shell"}
    for options in (("--json",), ()):
        done = run(*options, "--config", path, environ=environ)
        assert done.returncode == 78  # a configuration holds no secrets
        for secret in ("file", "config", "arguments", "engine", "shell"):
            assert f"from-the-{secret}" not in done.stdout + done.stderr
        assert "ftp-word" not in done.stdout + done.stderr
        assert "(not shown)" in done.stdout
