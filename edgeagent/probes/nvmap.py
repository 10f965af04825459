"""Which process holds how much of the GPU's memory, on a Jetson under nvgpu?

The driver lists it in a file that root alone may read. Where a small helper is installed, it
answers a connection to its socket with that file's text and closes. An answer takes some 75 ms, so
it is asked for at most once a second and fetched at a later reading: nobody waits for it.
"""

from __future__ import annotations

import re
import select
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

CLIENTS = "sys/kernel/debug/nvmap/iovmm/clients"
HELPER = "run/edgeagent-nvmap.sock"
"""Not in /run/edgeagent: that folder is the service's, and goes when the service stops."""

_MOST_BYTES = 1 << 20
"""Of an answer; a list has some 70 bytes for each process with GPU memory."""


@dataclass(frozen=True)
class Client:
    """One row: what a process has allocated. A process can have several."""

    process: str
    pid: int
    size_bytes: int


Told: TypeAlias = "tuple[Client, ...] | str"
"""The list, or why there is none."""


@dataclass(frozen=True)
class Pace:
    """How often the list is asked for, in seconds."""

    every_s: float = 1.0
    first_s: float = 0.2
    """What the very first question may wait, so that a single reading is complete."""
    hang_s: float = 2.0
    """From a question until its answer is given up."""
    again_s: float = 30.0
    """From there until the next question: each one costs the helper a process."""


class ClientList:
    """The list of clients; see `poll`. Not for use by two threads at once."""

    def __init__(
        self,
        root: Path = Path("/"),
        helper: Path | None = None,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = root / CLIENTS
        self._helper = helper if helper is not None else root / HELPER
        self._pace = pace if pace is not None else Pace()
        self._clock = clock
        self._next_s = clock()
        self._question: _Question | None = None
        self._first_wait_s = self._pace.first_s
        self.source = "none"
        """Where the last list came from: `file`, `helper` or `none`."""

    def poll(self) -> Told | None:
        """Return the list or the reason when there is news, None while there is none."""
        told = self._fetch()
        if self._question is None and self._clock() >= self._next_s:
            self._next_s = self._clock() + self._pace.every_s
            begun = self._begin()
            told = begun if told is None else told
        return told

    def close(self) -> None:
        """Forget the question that is under way; safe to call twice."""
        if self._question is not None:
            self._question.close()
            self._question = None

    def _begin(self) -> Told | None:
        try:
            text = self._file.read_text("utf-8", "replace")
        except OSError as refused:
            return self._ask(refused)
        return self._judged(text, "file")

    def _ask(self, refused: OSError) -> Told | None:
        try:
            self._question = _Question(self._helper, self._clock())
        except OSError as error:
            self.source = "none"
            return (
                f"/{CLIENTS}: {_why(refused)} (root may read it); "
                f"the helper at {self._helper}: {_why(error)}"
            )
        self._question.wait(self._first_wait_s)
        self._first_wait_s = 0.0
        return self._fetch()

    def _fetch(self) -> Told | None:
        question = self._question
        if question is None:
            return None
        try:
            text = question.answer()
        except OSError as error:
            self.close()
            return f"the nvmap helper broke off: {_why(error)}"
        if text is not None:
            self.close()
            return self._judged(text, "helper")
        if self._clock() - question.asked_s < self._pace.hang_s:
            return None
        self.close()
        self._next_s = self._clock() + self._pace.again_s
        return f"the nvmap helper did not answer within {self._pace.hang_s:g} s"

    def _judged(self, text: str, source: str) -> Told:
        self.source = source
        try:
            return parse_clients(text)
        except ValueError as error:
            return str(error)


class _Question:
    """A connection to the helper, whose answer comes in pieces and ends with the connection."""

    def __init__(self, helper: Path, asked_s: float) -> None:
        self.asked_s = asked_s
        self._received = b""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        try:
            self._socket.connect(str(helper))
        except OSError:
            self._socket.close()
            raise

    def wait(self, seconds: float) -> None:
        """Return when the answer is complete, or after `seconds`."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0 and not self._is_complete():
            select.select([self._socket], [], [], left_s)

    def answer(self) -> str | None:
        """Return the whole answer; None as long as it is not complete. Raises OSError."""
        if not self._is_complete():
            return None
        return self._received.decode("utf-8", "replace")

    def close(self) -> None:
        self._socket.close()

    def _is_complete(self) -> bool:
        with suppress(BlockingIOError):
            while len(self._received) < _MOST_BYTES:
                piece = self._socket.recv(1 << 16)
                if not piece:
                    return True
                self._received += piece
            return True
        return False


def _why(error: OSError) -> str:
    return error.strerror or str(error)


# ---------------------------------------------------------------------------------------- parsing

_ROW = re.compile(r"^\S+\s+(.*\S)\s+([0-9]{1,10})\s+(\S+)$")
_TOTAL = re.compile(r"^total\s+(\S+)$")
_SIZE = re.compile(r"([0-9]{1,15})([KMG]?)")
_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_clients(text: str) -> tuple[Client, ...]:
    """Return the rows of a list, which begins with its headings and ends with the total.

    Raises ValueError with a sentence for anything else: a list that is cut short would be read as
    a process that holds less.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines or lines[0].split() != ["CLIENT", "PROCESS", "PID", "SIZE"]:
        raise ValueError("what came is not a list of nvmap clients")
    total = _TOTAL.match(lines[-1])
    if total is None:
        raise ValueError("the list of nvmap clients is cut short")
    size_bytes(total.group(1))
    return tuple(map(_client, lines[1:-1]))


def _client(line: str) -> Client:
    found = _ROW.match(line)
    if found is None:
        raise ValueError(f"this line is not one of a list of nvmap clients: {line[:80]!r}")
    return Client(found.group(1), int(found.group(2)), size_bytes(found.group(3)))


def size_bytes(text: str) -> int:
    """Return the bytes in a size such as 1623040K; without a letter it is in bytes.

    Raises ValueError with a sentence for anything else.
    """
    found = _SIZE.fullmatch(text)
    if found is None:
        raise ValueError(f"this is not a size: {text[:40]!r}")
    return int(found.group(1)) * _FACTORS[found.group(2)]


def held_bytes(clients: Iterable[Client], pids: Sequence[int]) -> int:
    """Return what these processes hold together; 0 when none of them is in the list."""
    wanted = frozenset(pids)
    return sum(client.size_bytes for client in clients if client.pid in wanted)
