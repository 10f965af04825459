"""Where does a service write what happened, so that it can be searched by field?

Under systemd to journald, each field of its own (the native protocol: `journalctl EDGEAGENT_RUN=…`
finds them); elsewhere a line on standard error. What journald does not take goes there as well.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Literal, TextIO

Level = Literal["info", "warning", "error"]

SOCKET = "/run/systemd/journal/socket"
_PRIORITY = {"info": 6, "warning": 4, "error": 3}
_NAME = re.compile(r"[^A-Z0-9_]")
_LONGEST_VALUE = 4096


class Journal:
    """A service's log. Never raises; safe from any thread."""

    def __init__(self, address: str | None, lines: TextIO | None = None) -> None:
        """Write to the journal's socket at `address`; None: lines to `lines` (standard error)."""
        self._address = address
        self._lines = lines if lines is not None else sys.stderr
        self._socket = None
        if address is not None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)

    def info(self, event: str, fields: Mapping[str, object] | None = None) -> None:
        """Something happened."""
        self._write("info", event, fields or {})

    def warning(self, event: str, fields: Mapping[str, object] | None = None) -> None:
        """Something happened that somebody may have to look at."""
        self._write("warning", event, fields or {})

    def error(self, event: str, fields: Mapping[str, object] | None = None) -> None:
        """Something does not work."""
        self._write("error", event, fields or {})

    def close(self) -> None:
        """Let go of the socket."""
        if self._socket is not None:
            self._socket.close()

    def _write(self, level: Level, event: str, fields: Mapping[str, object]) -> None:
        known = {name: value for name, value in fields.items() if value is not None}
        if self._socket is not None and self._address is not None:
            with suppress(OSError):
                self._socket.sendto(_native(level, event, known), self._address)
                return
        words = " ".join(f"{name}={_shown(value)}" for name, value in known.items())
        with suppress(OSError, ValueError):
            self._lines.write(f"{level}: {event} {words}".rstrip() + "\n")
            self._lines.flush()


def journal(environ: Mapping[str, str], lines: TextIO | None = None) -> Journal:
    """Return the log of this process: journald's where systemd has connected us to it."""
    ours = _is_journal(environ.get("JOURNAL_STREAM", "")) and os.path.exists(SOCKET)  # noqa: PTH110  # because the socket's path is text
    return Journal(SOCKET if ours else None, lines)


def _is_journal(stream: str) -> bool:
    """Whether standard error is the stream that systemd means (device:inode)."""
    try:
        stat = os.fstat(2)
    except OSError:
        return False
    return stream == f"{stat.st_dev}:{stat.st_ino}"


def _native(level: Level, event: str, fields: Mapping[str, object]) -> bytes:
    sentence = fields.get("text")
    entries = {
        "MESSAGE": f"{event}: {sentence}" if sentence else event,
        "PRIORITY": str(_PRIORITY[level]),
        "SYSLOG_IDENTIFIER": "edgeagent",
        "EDGEAGENT_EVENT": event,
        **{f"EDGEAGENT_{_NAME.sub('_', n.upper())}": _shown(v) for n, v in fields.items()},
    }
    return b"".join(_entry(name, value) for name, value in entries.items())


def _entry(name: str, value: str) -> bytes:
    raw = value.encode("utf-8", "replace")[:_LONGEST_VALUE]
    if b"\n" not in raw:
        return name.encode() + b"=" + raw + b"\n"
    return name.encode() + b"\n" + struct.pack("<Q", len(raw)) + raw + b"\n"


def _shown(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, default=str, ensure_ascii=False)
