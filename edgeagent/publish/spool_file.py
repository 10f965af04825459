"""Which files make up a spool, who may use them, and what becomes of one that cannot be used?

The database lies beside three small files: `-users` (a lock that every process with the spool open
shares, so that the first one knows that it is alone), `-pump` (a lock for the one process that
sends) and `-ballast` (room that is given up when the disk is full, so that there is some left to
make room with).
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from edgeagent.publish.spool_errors import SpoolUnavailable

BALLAST_BYTES = 2 * 1024 * 1024
LOCK_WAIT_S = 30.0
SET_ASIDE_KEPT = 2
WAL_HEADER_BYTES = 32

Company = Literal["alone", "others"]


def beside(path: Path, suffix: str) -> Path:
    """Return the path of a spool's side file."""
    return path.with_name(path.name + suffix)


def mode_for(folder: Path) -> int:
    """Return the permissions of a spool's files: its group's where the folder hands its group on.

    A folder with the setgid bit is one that a group shares, as the daemon's is. Raises OSError.
    """
    return 0o660 if folder.stat().st_mode & stat.S_ISGID else 0o600


def make_file(path: Path, mode: int) -> None:
    """Create an empty file with exactly these permissions; one that exists stays as it is.

    SQLite gives its log the permissions of the database. Raises OSError.
    """
    try:
        made = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except FileExistsError:
        return
    try:
        os.fchmod(made, mode)  # because the umask took its part
    finally:
        os.close(made)


class SharedLock:
    """A lock file that each user of the spool holds shared for as long as it has it open."""

    def __init__(self, path: Path, mode: int) -> None:
        """Wait until nobody is just setting the spool up. Raises OSError, SpoolUnavailable."""
        make_file(path, mode)
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.company: Company = "others"
            self._wait(path)
        else:
            self.company = "alone"

    def _wait(self, path: Path) -> None:
        end = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > end:
                    os.close(self._file)
                    raise SpoolUnavailable(
                        f"could not open the spool: another process has been setting it up for "
                        f"{LOCK_WAIT_S:.0f} s (lock {path}); see who holds it (fuser) and try again"
                    ) from None
                time.sleep(0.02)
            else:
                return

    def share(self) -> None:
        """Let others in: what only one may do at the start is done. Raises OSError."""
        fcntl.flock(self._file, fcntl.LOCK_SH)

    def release(self) -> None:
        """Be no user any more; safe to call twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class PumpLock:
    """The right to send what the spool holds. Ends with the process at the latest."""

    def __init__(self, file: int) -> None:
        self._file = file

    def release(self) -> None:
        """Let another process send; safe to call twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def pump_lock(path: Path) -> PumpLock | None:
    """Return the right to send, or None while another process has it. Raises OSError."""
    lock = beside(path, "-pump")
    make_file(lock, mode_for(path.parent))
    file = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return PumpLock(file)


# --- a database that cannot be used --------------------------------------------------------------


@contextmanager
def replacing(path: Path, mode: int) -> Iterator[None]:
    """Be the only process that puts another database in a spool's place. Raises OSError."""
    lock = beside(path, "-replace")
    make_file(lock, mode)
    file = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def set_aside(path: Path, reason: str, now_ms: int) -> Path:
    """Rename a database and its log, and return its new name; keep the two latest damaged ones.

    Raises OSError.
    """
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_ms / 1000))
    aside = beside(path, f".{reason}-{moment}")
    counter = 1
    while aside.exists():
        counter += 1
        aside = beside(path, f".{reason}-{moment}-{counter}")
    path.rename(aside)
    for suffix in ("-wal", "-shm"):
        with suppress(FileNotFoundError):
            beside(path, suffix).rename(beside(aside, suffix))
    if reason == "corrupt":
        _drop_older(path)
    return aside


def _drop_older(path: Path) -> None:
    kept = sorted(
        (found for found in path.parent.glob(f"{path.name}.corrupt-*") if _is_database(found)),
        key=lambda found: found.stat().st_mtime_ns,
    )
    for old in kept[:-SET_ASIDE_KEPT]:
        for suffix in ("", "-wal", "-shm"):
            beside(old, suffix).unlink(missing_ok=True)


def _is_database(path: Path) -> bool:
    return not path.name.endswith(("-wal", "-shm"))


def inode(path: Path) -> int | None:
    """Return which file a path names now, None for none. Raises OSError."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


# --- the log of the last life --------------------------------------------------------------------

LogState = Literal["none", "sound", "damaged"]


def log_state(path: Path) -> LogState:
    """Return what the write-ahead log says that the last user left. Raises OSError.

    SQLite removes it at a clean end. One whose head is damaged would be passed over in silence, and
    with it numbers that were given away. Look only while alone.
    """
    try:
        with beside(path, "-wal").open("rb") as file:
            head = file.read(WAL_HEADER_BYTES)
    except FileNotFoundError:
        return "none"
    if len(head) < WAL_HEADER_BYTES or not any(head):
        # Nothing in it reached the disk: it was begun when the power went, without a sync yet.
        return "none"
    return "sound" if _head_is_sound(head) else "damaged"


def _head_is_sound(head: bytes) -> bool:
    (magic,) = struct.unpack_from(">I", head)
    order = {0x377F0682: "<", 0x377F0683: ">"}.get(magic)
    if order is None:
        return False
    return log_sum(head[:24], order) == struct.unpack_from(">II", head, 24)


def log_sum(data: bytes, order: str) -> tuple[int, int]:
    """Return SQLite's checksum over whole pairs of words."""
    first = second = 0
    for one, two in struct.iter_unpack(f"{order}II", data):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + two + first) & 0xFFFFFFFF
    return first, second


def discarded_commits(path: Path, taken: int, page_bytes: int) -> int:
    """Return how many committed transactions of this log SQLite could not take over.

    `taken` is the number of frames that it took. A frame of the same generation (salt) that ends a
    transaction and stands above them was written, and lost its way or its content. Raises OSError.
    """
    found = 0
    try:
        file = beside(path, "-wal").open("rb")
    except FileNotFoundError:
        return 0
    with file:
        salt = file.read(WAL_HEADER_BYTES)[16:24]
        position = WAL_HEADER_BYTES + taken * (24 + page_bytes)
        while True:
            file.seek(position)
            head = file.read(24)
            if len(head) < 24:  # noqa: PLR2004  # because that is a frame's head in the format
                return found
            if head[8:16] == salt and head[4:8] != b"\0\0\0\0":
                found += 1
            position += 24 + page_bytes


# --- room to make room with ----------------------------------------------------------------------


def lay_ballast(path: Path, mode: int, free_bytes: int) -> None:
    """Put the ballast (back) in place where the disk has several times its size left."""
    ballast = beside(path, "-ballast")
    if free_bytes < 4 * BALLAST_BYTES or ballast.exists():
        return
    try:
        make_file(ballast, mode)
        with ballast.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, BALLAST_BYTES)
    except OSError:
        drop_ballast(path)


def drop_ballast(path: Path) -> None:
    """Give the ballast's room up; none there is no error."""
    with suppress(OSError):
        beside(path, "-ballast").unlink()
