"""The daemon's door: who may, what may be said, and what happens when somebody misbehaves."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from edgeagent.errors import ConfigError, UnreachableError
from edgeagent.service.control import LONGEST_LINE, Answer, ControlServer, Peer, ask


def echo(request: Mapping[str, Any], peer: Peer) -> Iterator[Answer]:
    yield {"heard": request.get("say")}
    yield {"last": True, "uid": peer.uid, "pid": peer.pid}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "run" / "control.sock"


@pytest.fixture
def server(place: Path) -> Iterator[ControlServer]:
    opened = ControlServer(place, echo)
    yield opened
    opened.close()


def raw(place: Path, sent: bytes) -> list[dict[str, Any]]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(20)
        connection.connect(str(place))
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as lines:
            return [json.loads(line) for line in lines]


def test_a_request_is_answered_line_by_line_to_whom_the_kernel_names(
    server: ControlServer, place: Path
) -> None:
    answers = list(ask(place, {"say": "hello"}, 20))
    assert answers == [{"heard": "hello"}, {"last": True, "uid": os.getuid(), "pid": os.getpid()}]


def test_only_its_owner_may_until_a_group_is_named(server: ControlServer, place: Path) -> None:
    assert stat.S_IMODE(place.stat().st_mode) == 0o600


def test_a_group_may_when_it_is_named(place: Path) -> None:
    import grp

    name = grp.getgrgid(os.getgid()).gr_name
    opened = ControlServer(place, echo, name)
    assert stat.S_IMODE(place.stat().st_mode) == 0o660
    assert place.stat().st_gid == os.getgid()
    opened.close()


def test_a_group_that_does_not_exist_is_refused(place: Path) -> None:
    with pytest.raises(ConfigError, match="no group"):
        ControlServer(place, echo, "no-such-group-here")


@pytest.mark.parametrize(
    "sent",
    [b"", b"hello\n", b"[1]\n", b"\xff\xfe\n", b"[" * 5000 + b"\n", b"x" * (LONGEST_LINE + 5)],
)
def test_nonsense_is_refused_and_the_next_one_is_served(
    server: ControlServer, place: Path, sent: bytes
) -> None:
    assert raw(place, sent)[0]["error"] == "schema"
    assert len(list(ask(place, {"say": 1}, 20))) == 2


def test_somebody_who_says_nothing_does_not_keep_others_out(
    server: ControlServer, place: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.connect(str(place))
        assert len(list(ask(place, {"say": 1}, 20))) == 2


def test_too_many_at_once_are_told_so(place: Path) -> None:
    release = threading.Event()

    def slow(_request: Mapping[str, Any], _peer: Peer) -> Iterator[Answer]:
        yield {"begun": True}
        release.wait(30)
        yield {"last": True}

    opened = ControlServer(place, slow)
    waiting = [ask(place, {}, 30) for _ in range(8)]
    assert [next(one) for one in waiting] == [{"begun": True}] * 8
    assert raw(place, b"{}\n") == [{"last": True, "error": "busy", "text": "too many ask at once"}]
    release.set()
    assert [list(one) for one in waiting] == [[{"last": True}]] * 8
    opened.close()


def test_a_socket_that_a_killed_daemon_left_is_taken_over(place: Path) -> None:
    place.parent.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(str(place))
    opened = ControlServer(place, echo)
    assert len(list(ask(place, {}, 20))) == 2
    opened.close()
    assert not place.exists()


def test_a_second_daemon_is_refused(server: ControlServer, place: Path) -> None:
    with pytest.raises(ConfigError, match="another daemon"):
        ControlServer(place, echo)
    assert len(list(ask(place, {}, 20))) == 2


def test_without_a_daemon_the_way_to_start_it_is_said(place: Path) -> None:
    with pytest.raises(UnreachableError, match="systemctl start edgeagent"):
        list(ask(place, {}, 5))


def test_a_daemon_that_ends_in_the_middle_is_no_answer(place: Path) -> None:
    opened = ControlServer(place, lambda _request, _peer: iter([{"begun": True}]))
    with pytest.raises(UnreachableError, match="before it had answered"):
        list(ask(place, {}, 20))
    opened.close()
