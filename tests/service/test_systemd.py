"""What the service manager is told, over its real kind of socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeagent.systemd import Notifier, credential, notifier


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(tmp_path / "notify"))
        bound.settimeout(10)
        yield bound


def test_every_word_reaches_the_manager(manager: socket.socket) -> None:
    to = Notifier(manager.getsockname())
    to.ready("idle,\n0 rows behind")
    to.alive()
    to.reloading(5_000_000)
    to.stopping("asked to end")
    to.extend(7.5)
    said = [manager.recv(1000).decode() for _ in range(5)]
    assert said == [
        "READY=1\nSTATUS=idle, 0 rows behind",
        "WATCHDOG=1",
        "RELOADING=1\nMONOTONIC_USEC=5000",
        "STOPPING=1\nSTATUS=asked to end",
        "EXTEND_TIMEOUT_USEC=7500000",
    ]


def test_an_abstract_socket_is_understood() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind("\0edgeagent-test-notify")
        bound.settimeout(10)
        Notifier("@edgeagent-test-notify").status("well")
        assert bound.recv(100) == b"STATUS=well"


def test_without_a_manager_or_after_it_has_gone_nothing_happens(tmp_path: Path) -> None:
    Notifier().alive()
    Notifier(str(tmp_path / "gone")).alive()


def test_a_manager_that_does_not_read_does_not_hold_us(manager: socket.socket) -> None:
    to = Notifier(manager.getsockname())
    for _ in range(5_000):
        to.alive()


@pytest.mark.parametrize(
    ("environ", "watchdog_s"),
    [
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "7"}, 60.0),
        ({"WATCHDOG_USEC": "60000000"}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_ours_only_if_it_names_us(
    environ: dict[str, str], watchdog_s: float | None
) -> None:
    assert notifier({"NOTIFY_SOCKET": "/x", **environ}, pid=7) == Notifier("/x", watchdog_s)


def test_a_credential_is_a_file_that_systemd_has_put_there(tmp_path: Path) -> None:
    (tmp_path / "mqtt-key").write_text("secret")
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    assert credential(environ, "mqtt-key") == str(tmp_path / "mqtt-key")
    assert credential(environ, "other") is None
    assert credential(environ, "../mqtt-key") is None
    assert credential({}, "mqtt-key") is None
