"""What does the service manager want to know, and how is it told?

sd_notify(3) by hand: a datagram to the socket that `NOTIFY_SOCKET` names. No library, because the
usual one does not build on every box.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

_MICRO = 1_000_000


@dataclass(frozen=True)
class Notifier:
    """Tells systemd how we are; says nothing where nobody listens."""

    address: str | None = None
    watchdog_s: float | None = None
    """Within this time it wants to hear of us; None when it does not."""

    def ready(self, status: str) -> None:
        """The service does its work from now on."""
        self._send(f"READY=1\nSTATUS={_line(status)}")

    def status(self, text: str) -> None:
        """What `systemctl status` shows."""
        self._send(f"STATUS={_line(text)}")

    def alive(self) -> None:
        """Feed the watchdog."""
        self._send("WATCHDOG=1")

    def reloading(self, monotonic_ns: int) -> None:
        """Configuration is being read again; `ready` ends it."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={monotonic_ns // 1000}")

    def stopping(self, status: str) -> None:
        """We were asked to end, or have decided to."""
        self._send(f"STOPPING=1\nSTATUS={_line(status)}")

    def extend(self, seconds: float) -> None:
        """Ask for more time to start or to stop."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * _MICRO)}")

    def _send(self, text: str) -> None:
        if not self.address:
            return
        where = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        # A manager that has gone must not end us, and one that is slow must not hold us.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.setblocking(False)
            out.sendto(text.encode("utf-8", "replace"), where)


def notifier(environ: Mapping[str, str], pid: int | None = None) -> Notifier:
    """Return the notifier of this process, as `NOTIFY_SOCKET`, `WATCHDOG_USEC` and _PID say."""
    own = os.getpid() if pid is None else pid
    meant = environ.get("WATCHDOG_PID", str(own)) == str(own)
    text = environ.get("WATCHDOG_USEC", "")
    watchdog_s = int(text) / _MICRO if meant and text.isdecimal() and int(text) else None
    return Notifier(environ.get("NOTIFY_SOCKET") or None, watchdog_s)


def credential(environ: Mapping[str, str], name: str) -> str | None:
    """Return the path of a credential that systemd has loaded for us, if it is there."""
    folder = environ.get("CREDENTIALS_DIRECTORY")
    if not folder or "/" in name:
        return None
    path = os.path.join(folder, name)  # noqa: PTH118  # because the result is handed on as text
    return path if os.path.exists(path) else None  # noqa: PTH110  # because it is text


def _line(text: str) -> str:
    return text.replace("\n", " ")
