"""Which run folders have to go, so that results do not fill the box?

Oldest first, those past their age and then as many as are too much. One that is being written, or
whose result nobody has handed over yet, stays.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from edgeagent.store.runfolder import LOCK

_MB = 1_000_000
_DAY_S = 86_400.0


@dataclass(frozen=True)
class Kept:
    """A run folder: when it was last written, and what it takes on the disk."""

    path: Path
    written_s: float
    bytes: int


def surplus(
    runs: Iterable[Kept], now_s: float, most_bytes: int, most_age_s: float
) -> tuple[Kept, ...]:
    """Return what has to go, oldest first. Of the newest nothing goes for its size alone."""
    ordered = sorted(runs, key=lambda run: run.written_s)
    total = sum(run.bytes for run in ordered)
    going = []
    for run in ordered:
        too_old = now_s - run.written_s > most_age_s
        too_much = total > most_bytes and run is not ordered[-1]
        if not (too_old or too_much):
            break
        going.append(run)
        total -= run.bytes
    return tuple(going)


def tidy(
    folder: Path, now_s: float, limits: tuple[int, int], wanted: Callable[[str], bool]
) -> list[str]:
    """Remove surplus runs below `folder`; return their names.

    `limits` are megabytes and days. `wanted` says of a run's name that it must stay.
    """
    most_mb, most_days = limits
    found = [run for run in _runs(folder) if not wanted(run.path.name)]
    gone = []
    for run in surplus(found, now_s, most_mb * _MB, most_days * _DAY_S):
        with _nobody_else_in(run.path) as free:
            if free:
                shutil.rmtree(run.path, ignore_errors=True)
                gone.append(run.path.name)
    return gone


def _runs(folder: Path) -> Iterator[Kept]:
    with suppress(OSError):
        for path in folder.iterdir():
            if (path / LOCK).is_file() and not path.is_symlink():
                yield _kept(path)


def _kept(path: Path) -> Kept:
    written_s, size = 0.0, 0
    for entry in _files(path):
        with suppress(OSError):
            stat = entry.stat(follow_symlinks=False)
            size += stat.st_blocks * 512
            written_s = max(written_s, stat.st_mtime)
    return Kept(path, written_s, size)


def _files(path: Path) -> Sequence[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except OSError:
        return ()


@contextmanager
def _nobody_else_in(path: Path) -> Iterator[bool]:
    """Whether no sweep is at work in the folder; none can begin while this is held."""
    try:
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(lock)
