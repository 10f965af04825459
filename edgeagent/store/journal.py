"""How do lines get into a file, one at a time, so that a crash costs none of the earlier ones?

Each line is one write() of its own and not held back in a buffer of ours: what was appended
survives the death of the agent, whenever it comes; `sync` makes it survive the death of the box.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from edgeagent.errors import UsageError


class Journal:
    """An append-only file of lines with one writer. Safe to use from any thread."""

    def __init__(self, path: Path) -> None:
        """Open or create; a last line torn by a crash is ended, so that the next one is whole.

        Raises OSError.
        """
        self._path = path
        self._lock = threading.Lock()
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o644)
        self._end = os.fstat(self._file).st_size
        if self._end and os.pread(self._file, 1, self._end - 1) != b"\n":
            self._end += os.write(self._file, b"\n")

    def append(self, line: str) -> None:
        """Write `line` and its end, wholly or not at all. Raises UsageError; the rest stays."""
        data = line.encode("ascii") + b"\n"
        with self._lock:
            try:
                written = 0
                while written < len(data):
                    written += os.write(self._file, data[written:])
            except OSError as error:
                self._cut_back()
                raise write_failed(self._path, error) from error
            self._end += len(data)

    def sync(self) -> None:
        """Return when everything appended is on the disk. Raises UsageError."""
        with self._lock:
            try:
                os.fsync(self._file)
            except OSError as error:
                raise write_failed(self._path, error) from error

    def close(self) -> None:
        """Close the file; safe to call twice."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def _cut_back(self) -> None:
        """Take away the part of a line that still found room."""
        try:
            os.ftruncate(self._file, self._end)
        except OSError:
            return  # a torn line is tolerated on reading


def write_failed(path: Path, error: OSError) -> UsageError:
    """Return the operator's sentence for a write that failed in the middle of a run."""
    return UsageError(
        f"could not write {path}: {error.strerror or error}; what was written before it is kept: "
        "make room or mount the folder writable, then go on with --resume"
    )


class Span(NamedTuple):
    """A stretch of a file, in bytes."""

    start: int
    end: int


_STRING = rb'"(?:[^"\\]|\\.)*"'
_CELL = re.compile(rb'\{"cell_id":(null|%b)(?:,"attempt":(%b))?' % (_STRING, _STRING))


@dataclass
class Index:
    """Where the lines of each cell stand in a file; grows with the cells, not with the lines.

    A key is what `_CELL` finds at the head of a line. Each byte of the file is looked at once,
    however often the file has grown in between.
    """

    path: Path
    seen: int = 0
    spans: dict[bytes, list[Span]] = field(default_factory=dict)

    def catch_up(self) -> None:
        """Look at the lines written since the last time. A missing file has none."""
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        with file:
            file.seek(self.seen)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # torn, or just being written
                self._note(line)

    def _note(self, line: bytes) -> None:
        span = Span(self.seen, self.seen + len(line))
        self.seen = span.end
        head = _CELL.match(line)
        if head is None:
            return
        spans = self.spans.setdefault(key(*head.groups()), [])
        if spans and spans[-1].end == span.start:
            spans[-1] = Span(spans[-1].start, span.end)
        else:
            spans.append(span)

    def lines(self, wanted: bytes) -> Iterator[bytes]:
        """Yield the lines kept under a key, in the order of the file."""
        self.catch_up()
        spans = list(self.spans.get(wanted, ()))
        if not spans:
            return
        with self.path.open("rb") as file:
            for span in spans:
                file.seek(span.start)
                while file.tell() < span.end:
                    yield file.readline()


def key(cell: bytes, attempt: bytes | None = None) -> bytes:
    """Return the index key of a cell, and of an attempt at it, given as JSON."""
    return cell if attempt is None else cell + b"," + attempt


def whole_lines(path: Path) -> Iterator[bytes]:
    """Yield the ended lines of a file; none when it does not exist."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        for line in file:
            if line.endswith(b"\n"):
                yield line
