"""How do people and timers on this box talk to the daemon?

A unix stream socket whose permissions say who may. One request, one line of JSON; answers are lines
of JSON, the last one has `"last": true`. The kernel says who is at the other end (SO_PEERCRED).
"""

from __future__ import annotations

import contextlib
import grp
import json
import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeagent.errors import ConfigError, UnreachableError

LONGEST_LINE = 64 * 1024
_PATIENCE_S = 10.0
_MOST_AT_ONCE = 8
_MOST_CONNECTED = 32
_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True)
class Peer:
    """Who asks."""

    pid: int
    uid: int
    gid: int


Answer = Mapping[str, object]
Handler = Callable[[Mapping[str, Any], Peer], Iterator[Answer]]
"""Yields answers; the connection ends with the last of them. Runs in a thread of its own."""


class ControlServer:
    """Listens while it is open."""

    def __init__(self, path: Path, handler: Handler, group: str | None = None) -> None:
        """Listen at `path`, for its owner and `group`. Raises ConfigError when that cannot be."""
        self._path = path
        self._handler = handler
        self._places = threading.BoundedSemaphore(_MOST_CONNECTED)
        self._at_work = threading.BoundedSemaphore(_MOST_AT_ONCE)
        self._socket = _listening(path, group)
        self._wake, self._woken = os.pipe()
        self._inode = path.stat().st_ino
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether somebody listens."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Stop listening, and take the socket away if it is still ours."""
        os.write(self._woken, b"x")
        self._thread.join(_PATIENCE_S)
        self._socket.close()
        os.close(self._wake)
        os.close(self._woken)
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()

    def _serve(self) -> None:
        while True:
            readable, _, _ = select.select([self._socket.fileno(), self._wake], [], [])
            if self._wake in readable:
                return
            with contextlib.suppress(OSError):
                connection, _ = self._socket.accept()
                self._answer_in_thread(connection)

    def _answer_in_thread(self, connection: socket.socket) -> None:
        connection.settimeout(_PATIENCE_S)
        if not self._places.acquire(blocking=False):
            connection.close()
            return
        threading.Thread(target=self._serve_one, args=(connection,), daemon=True).start()

    def _serve_one(self, connection: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError), connection:
                request = _parsed(_line(connection))
                for answer in self._answers(request, _peer(connection)):
                    _send(connection, answer)
        finally:
            self._places.release()

    def _answers(self, request: Mapping[str, Any] | None, peer: Peer) -> Iterator[Answer]:
        if request is None:
            yield _refusal("schema", "one line with a JSON object was expected")
        elif not self._at_work.acquire(blocking=False):
            yield _refusal("busy", "too many ask at once")
        else:
            try:
                yield from self._handler(request, peer)
            finally:
                self._at_work.release()


def _refusal(code: str, text: str) -> Answer:
    return {"last": True, "error": code, "text": text}


def _listening(path: Path, group: str | None) -> socket.socket:
    _refuse_if_alive(path)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_socket():
            path.unlink()
        # Bound closed to everybody, opened to the group afterwards: never open for a moment.
        before = os.umask(0o177)
        try:
            bound.bind(str(path))
        finally:
            os.umask(before)
        if group is not None:
            _open_to(grp.getgrnam(group).gr_gid, path)
        bound.listen(_MOST_AT_ONCE)
    except KeyError as error:
        bound.close()
        raise ConfigError(f"there is no group {group} on this box for {path}") from error
    except OSError as error:
        bound.close()
        raise ConfigError(
            f"could not listen at {path}: {error.strerror or error}; set daemon.socket to a place "
            "that the agent may write"
        ) from error
    return bound


def _open_to(gid: int, path: Path) -> None:
    if path.stat().st_gid != gid:  # as a service it is, and handing over is forbidden there
        os.chown(path, -1, gid)
    path.chmod(0o660)


def _refuse_if_alive(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.settimeout(_PATIENCE_S)
            probe.connect(str(path))
        except OSError:
            return  # nobody, or left behind by one that was killed
    raise ConfigError(f"another daemon listens at {path}: stop it first")


def _peer(connection: socket.socket) -> Peer:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Peer(*_CREDENTIALS.unpack(raw))


def _line(connection: socket.socket) -> bytes:
    received = b""
    while b"\n" not in received and len(received) <= LONGEST_LINE:
        piece = connection.recv(4096)
        if not piece:
            break
        received += piece
    return received


def _parsed(line: bytes) -> Mapping[str, Any] | None:
    if len(line) > LONGEST_LINE:
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _send(connection: socket.socket, answer: Answer) -> None:
    connection.sendall(json.dumps(answer).encode() + b"\n")


def ask(path: Path, request: Mapping[str, object], patience_s: float | None) -> Iterator[Answer]:
    """Ask the daemon; yields its answers. Raises UnreachableError.

    `patience_s` is how long it may be silent; None waits as long as it lives.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.settimeout(patience_s)
            connection.connect(str(path))
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as lines:
                for line in lines:
                    answer: Answer = json.loads(line)
                    yield answer
                    if answer.get("last"):
                        return
        except PermissionError as error:
            raise UnreachableError(
                f"the daemon's socket {path} is not open to you: join the group edgeagent "
                "(sudo usermod -aG edgeagent $USER, then log in again)"
            ) from error
        except (OSError, ValueError) as error:
            raise UnreachableError(
                f"no daemon answers at {path} ({error}): start it with systemctl start edgeagent, "
                "or run edgeagent daemon"
            ) from error
    raise UnreachableError(f"the daemon at {path} ended before it had answered")
