"""What a service writes, to journald's kind of socket and elsewhere."""

from __future__ import annotations

import io
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeagent.journal import Journal, journal


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(tmp_path / "journal"))
        bound.settimeout(10)
        yield bound


def test_each_field_can_be_searched_for(daemon: socket.socket) -> None:
    written = Journal(daemon.getsockname())
    written.warning("trouble", {"text": "no room", "run-id": "A1", "rows": 3, "none": None})
    written.close()
    assert daemon.recv(4096).decode().splitlines() == [
        "MESSAGE=trouble: no room",
        "PRIORITY=4",
        "SYSLOG_IDENTIFIER=edgeagent",
        "EDGEAGENT_EVENT=trouble",
        "EDGEAGENT_TEXT=no room",
        "EDGEAGENT_RUN_ID=A1",
        "EDGEAGENT_ROWS=3",
    ]


def test_a_line_in_a_value_makes_no_field_of_its_own(daemon: socket.socket) -> None:
    written = Journal(daemon.getsockname())
    written.info("seen", {"text": "one\nPRIORITY=0"})
    written.close()
    received = daemon.recv(4096)
    length = len(b"seen: one\nPRIORITY=0").to_bytes(8, "little")
    assert received.startswith(b"MESSAGE\n" + length + b"seen: one\nPRIORITY=0\n")


def test_where_no_journal_listens_it_is_a_line(tmp_path: Path) -> None:
    lines = io.StringIO()
    written = Journal(str(tmp_path / "nobody"), lines)
    written.error("lost", {"text": "x"})
    written.close()
    assert lines.getvalue() == "error: lost text=x\n"


def test_outside_of_systemd_it_is_lines() -> None:
    lines = io.StringIO()
    journal({"JOURNAL_STREAM": "1:2"}, lines).info("started", {"n": 1})
    assert lines.getvalue() == "info: started n=1\n"
