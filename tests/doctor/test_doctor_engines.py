"""Which engines the doctor finds, and what it says of those that the service could not start."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from edgeagent.core.diagnosis import Program
from edgeagent.core.model import EngineSpec
from edgeagent.doctor.engines import (
    LLAMA_SERVER,
    Asker,
    Stand,
    asked,
    configured,
    llama_server,
    present,
    vllm,
)
from edgeagent.doctor.unit import Unit

SANDBOX = Unit((), values={"ProtectHome": ("yes",), "User": ("edgeagent",)})


def program(path: Path, text: str = "echo 'version: 7 (abc)' >&2") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("script", "version", "reason"),
    [
        ("echo 'version: 1 (a)' >&2", "1 (a)", None),
        ("echo 'loaded backend'; echo 'version: 2 (b)'; exit 1", "2 (b)", None),
        ("exit 3", None, "it said nothing and ended with status 3"),
        ("echo hello", None, 'it said "hello"'),
    ],
)
def test_a_llama_server_is_known_by_what_it_says_of_its_version(
    tmp_path: Path, script: str, version: str | None, reason: str | None
) -> None:
    server = program(tmp_path / "llama-server", script)

    assert llama_server({"PATH": str(tmp_path)}) == Program(str(server), version, reason)


def test_a_program_that_hangs_is_given_up(tmp_path: Path) -> None:
    server = program(tmp_path / "llama-server", "exec sleep 1000")

    found = asked(str(server), Asker({"PATH": "/usr/bin:/bin"}, limit_s=0.3))

    assert (found.version, found.reason) == (None, "it did not answer within 0.3 s")


def test_a_file_for_another_machine_is_no_llama_server(tmp_path: Path) -> None:
    server = tmp_path / "server"
    server.write_bytes(b"\x7fELF nonsense")
    server.chmod(0o755)

    found = llama_server({LLAMA_SERVER: str(server)})

    assert (found.version, found.reason) == (None, "Exec format error")


def test_without_any_llama_server_there_is_none(tmp_path: Path) -> None:
    assert llama_server({"PATH": str(tmp_path)}) == Program(None)


def test_a_vllm_tells_its_version_through_the_records_of_its_package(tmp_path: Path) -> None:
    # A folder of packages as pip leaves it, and the interpreter that has it.
    record = tmp_path / "lib/vllm-0.15.1.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.15.1\n")
    python = program(
        tmp_path / "venv/bin/python3", f'PYTHONPATH={tmp_path}/lib exec {sys.executable} "$@"'
    )
    script = tmp_path / "venv/bin/vllm"
    script.write_text(f"#!{python}\nraise SystemExit('it was started')\n")
    script.chmod(0o755)

    assert vllm({"PATH": str(script.parent)}) == Program(str(script), "0.15.1")


def test_an_engine_that_is_not_in_path_is_found_where_people_put_it(tmp_path: Path) -> None:
    program(tmp_path / "opt/llama.cpp/build/bin/llama-server")
    program(tmp_path / "home/anna/vllm-env/bin/vllm")

    found = {
        check.name: check
        for check in present(tmp_path, {"PATH": str(tmp_path / "empty"), "HOME": "/home/anna"})
    }

    assert found["engine.llamacpp"].state == "missing"
    assert "/opt/llama.cpp/build/bin/llama-server" in found["engine.llamacpp"].text
    assert "--binary /opt/llama.cpp/build/bin/llama-server" in str(found["engine.llamacpp"].hint)
    assert "/home/anna/vllm-env/bin/vllm" in found["engine.vllm"].text


# -------------------------------------------------------------------------------- as configured


def stand(unit: Unit | None = SANDBOX, path: str = "/nowhere") -> Stand:
    return Stand(Asker({"PATH": "/usr/bin:/bin"}), path, unit, "user edgeagent")


def spec(*command: str, kind: str = "llamacpp", url: str | None = None) -> EngineSpec:
    return EngineSpec("mine", kind, command, url=url)  # type: ignore[arg-type]


def test_a_configured_engine_is_asked_for_its_version(tmp_path: Path) -> None:
    server = program(tmp_path / "llama-server")

    found = configured(spec(str(server)), stand())

    assert (found.name, found.state) == ("configured.mine", "ok")
    assert found.text == f"7 (abc) at {server}"


def test_an_engine_in_a_home_is_outside_of_the_services_sandbox() -> None:
    found = configured(spec(sys.executable), stand(hiding(Path(sys.executable).resolve())))

    assert found.state == "fault"
    assert "outside of the service's sandbox" in found.text
    assert "BindReadOnlyPaths=" in str(found.hint)


def hiding(path: Path) -> Unit:
    """A sandbox in which just this path is hidden: tests cannot write to /home."""

    class Hiding(Unit):
        def hides(self, asked: Path) -> str | None:
            return "ProtectHome=yes" if asked == path else None

    return Hiding(())


def test_a_link_and_a_script_into_a_home_are_outside_as_well(tmp_path: Path) -> None:
    server = program(tmp_path / "far/llama-server")
    link = tmp_path / "llama-server"
    link.symlink_to(server)
    python = program(tmp_path / "far/python3")
    script = tmp_path / "vllm"
    script.write_text(f"#!{python}\n")
    script.chmod(0o755)

    by_link = configured(spec(str(link)), stand(hiding(server)))
    by_script = configured(spec(str(script), kind="vllm"), stand(hiding(python)))

    assert (by_link.state, by_script.state) == ("fault", "fault")
    assert f"which needs {server}" in by_link.text
    assert f"which needs {python}" in by_script.text


def test_an_ordinary_users_engine_in_a_home_is_that_users_own_matter(tmp_path: Path) -> None:
    server = program(tmp_path / "llama-server")

    assert configured(spec(str(server)), stand(None)).state == "ok"


def test_an_engine_that_its_user_may_not_start_is_told_with_the_reason(tmp_path: Path) -> None:
    server = program(tmp_path / "llama-server")

    found = configured(spec(str(server)), stand(), "the folder /opt/x is closed to it")

    assert found.state == "fault"
    assert found.text.endswith(
        "cannot be started by user edgeagent: the folder /opt/x is closed to it"
    )
    assert "chmod" in str(found.hint)


@pytest.mark.parametrize(
    ("command", "said"),
    [(("/nowhere/llama-server",), "is not there"), (("llama-server",), "the service's PATH")],
)
def test_an_engine_that_is_not_there_is_a_fault(command: tuple[str, ...], said: str) -> None:
    found = configured(spec(*command), stand())

    assert found.state == "fault"
    assert said in found.text
    assert found.hint is not None


def test_a_command_of_several_words_is_not_started_to_be_asked(tmp_path: Path) -> None:
    started = tmp_path / "started"
    wrapper = program(tmp_path / "docker", f"touch {started}")

    found = configured(spec(str(wrapper), "run", "image"), stand())

    assert found.state == "ok"
    assert not started.exists()


def test_a_server_of_somebody_else_is_named_and_left_alone() -> None:
    found = configured(spec(kind="openai", url="http://127.0.0.1:9"), stand())

    assert (found.state, "http://127.0.0.1:9" in found.text) == ("ok", True)
