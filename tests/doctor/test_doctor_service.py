"""What the doctor says of the service: as systemd tells it, and as it answers itself."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from edgeagent.doctor import service
from edgeagent.doctor.unit import Unit
from edgeagent.service.control import Answer, ControlServer, Peer

ROOT = Path("/")


def told(active: str, file: str = "enabled", **more: str) -> dict[str, str]:
    return {"LoadState": "loaded", "ActiveState": active, "UnitFileState": file, **more}


@pytest.mark.parametrize(
    ("said", "wanted", "state", "words"),
    [
        (told("active", StatusText="idle"), True, "ok", "enabled and running: idle"),
        (told("active", "disabled"), True, "warning", "does not start at boot"),
        (told("inactive", "disabled"), False, "missing", "not enabled, not running"),
        (told("inactive"), True, "warning", "has work for it"),
        (told("inactive", "masked"), True, "warning", "masked"),
        (told("activating", SubState="start", Result="success"), True, "ok", "starting"),
        (
            told("failed", Result="exit-code", ExecMainStatus="78", NRestarts="0"),
            True, "fault", "exit status 78",
        ),
        (
            told("activating", SubState="auto-restart", Result="watchdog", NRestarts="9"),
            True, "fault", "watchdog",
        ),
    ],
)  # fmt: skip
def test_what_systemd_tells_is_judged(
    said: dict[str, str],
    wanted: bool,  # noqa: FBT001  # because it is what systemd and the configuration come to
    state: str,
    words: str,
) -> None:
    found = service.standing(said, wanted)

    assert (found.state, words in found.text) == (state, True), found
    assert (found.hint is not None) == (state != "ok")


def test_a_wrong_configuration_and_a_missing_group_have_a_remedy_of_their_own() -> None:
    wrong = service.standing(told("failed", Result="exit-code", ExecMainStatus="78"), True)
    group = service.standing(told("failed", Result="exit-code", ExecMainStatus="216"), True)

    assert "config check" in str(wrong.hint)
    assert "group" in str(group.hint)


def test_without_systemd_there_is_no_service_and_that_is_no_fault(tmp_path: Path) -> None:
    found = service.unit_check(tmp_path, None, wanted=True)

    assert found.state == "missing"
    assert "systemd does not run here" in found.text
    assert "edgeagent daemon" in str(found.hint)


def test_with_systemd_and_without_the_unit_it_is_to_be_installed(tmp_path: Path) -> None:
    (tmp_path / "run/systemd/system").mkdir(parents=True)

    assert "not installed" in service.unit_check(tmp_path, None, wanted=True).text
    assert service.unit_check(tmp_path, Unit(()), wanted=True).state == "unasked"


def program(folder: Path, text: str) -> str:
    path = folder / "systemctl"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_systemctl_is_asked_for_properties_and_its_complaint_is_kept(tmp_path: Path) -> None:
    fine = program(tmp_path, "echo LoadState=loaded; echo StatusText=a=b")
    assert service.state(fine) == {"LoadState": "loaded", "StatusText": "a=b"}

    assert "no bus" in str(service.state(program(tmp_path, "echo no bus >&2; exit 1")))
    assert "cannot be started" in str(service.state(str(tmp_path / "nowhere")))


# ----------------------------------------------------------------------------------- its own answer


def answering(folder: Path, answer: Answer) -> ControlServer:
    def handler(request: Mapping[str, Any], peer: Peer) -> Iterator[Answer]:
        assert request == {"op": "status"}
        yield {"waiting": True}
        yield {"last": True, **answer}

    return ControlServer(folder / "control.sock", handler)


def test_a_daemon_that_answers_tells_how_it_is(tmp_path: Path) -> None:
    answer = {
        "site": "plant7", "node": "edge-0001", "running": "20261130T020412Z",
        "link": {"connection": "up", "rows": 3}, "troubles": ["the disk is full: make room"],
    }  # fmt: skip
    server = answering(tmp_path, answer)
    try:
        found = service.daemon(tmp_path / "control.sock", running=True)
    finally:
        server.close()

    ok, trouble = found.checks
    assert ok.state == "ok"
    assert "plant7/edge-0001; broker up; 3 messages wait; sweep 20261130T020412Z runs" in ok.text
    assert (trouble.state, trouble.text, trouble.hint) == (
        "warning", "the disk is full", "make room",
    )  # fmt: skip
    assert found.answer is not None
    assert found.answer["node"] == "edge-0001"


def test_a_daemon_that_ought_to_run_and_does_not_answer_is_a_fault(tmp_path: Path) -> None:
    (found,) = service.daemon(tmp_path / "nowhere.sock", running=True).checks

    assert (found.name, found.state) == ("service.socket", "fault")
    assert "start it" in str(found.hint)


def test_where_no_daemon_has_to_run_none_is_asked(tmp_path: Path) -> None:
    (found,) = service.daemon(tmp_path / "nowhere.sock", running=False).checks

    assert found.state == "unasked"


def test_a_socket_that_a_killed_daemon_left_is_told(tmp_path: Path) -> None:
    place = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(place))
    (found,) = service.daemon(place, running=False).checks

    assert found.state == "warning"
    assert "no daemon answers" in found.text
