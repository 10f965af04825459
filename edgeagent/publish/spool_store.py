"""How does the spool's database stay usable, whatever happened to its file or its disk?

A store belongs to one thread. It opens the database, puts a new one in its place when the old one
is damaged or came from another machine, follows when another process did so, and makes room once
when the disk says that it is full. Every new database is a new epoch (docs/decisions/0014).
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

from edgeagent.core.delivery import Entry, Stream
from edgeagent.core.eviction import SpoolLimits, cap_bytes, next_move
from edgeagent.publish.spool_check import CHECKED_AT_ONCE_BYTES, LaterCheck, is_whole
from edgeagent.publish.spool_commands import NO_HEIRLOOM, Heirloom, heirloom, inherit
from edgeagent.publish.spool_errors import explained, trouble
from edgeagent.publish.spool_evict import Room, disk_below, holdings, take
from edgeagent.publish.spool_file import (
    LogState,
    SharedLock,
    beside,
    discarded_commits,
    drop_ballast,
    inode,
    lay_ballast,
    log_state,
    make_file,
    mode_for,
    replacing,
    set_aside,
)
from edgeagent.publish.spool_rows import (
    Gap,
    StampNow,
    declare,
    insert,
    take_numbers,
    tallies,
)
from edgeagent.publish.spool_schema import (
    PAGE_BYTES,
    Sync,
    connect,
    free_pages,
    give_back,
    is_laid_out,
    laying_out,
    transaction,
)

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

SKIPPED_NUMBERS = 10_000
SHED_BYTES = 256 * 1024
SPARE_PAGES = 1024
GIVEN_BACK_PAGES = 512
NEARLY_FULL_BYTES = 1024 * 1024

Fate = Literal["corrupt", "other-machine", "missing", "empty"]


@dataclass(frozen=True)
class Home:
    """Where a spool lives: its file, its limits, a fingerprint of the machine, and the clock.

    An empty `machine` is one that could not be told; it matches every other.
    """

    path: Path
    limits: SpoolLimits
    machine: str
    stamp: StampNow


@dataclass(frozen=True)
class Predecessor:
    """What became of the database that stood here before, for the event that tells it."""

    fate: Fate
    detail: str
    kept_as: str | None = None
    epoch: str | None = None
    waiting: int | None = None
    left: Heirloom = NO_HEIRLOOM


class Store:
    """The database of a spool and its side files, used from one thread."""

    def __init__(self, home: Home) -> None:
        """Open or create. Raises SpoolUnavailable, SpoolFull."""
        self._home = home
        self._path = home.path
        self._db: sqlite3.Connection | None = None
        self._inode: int | None = None
        self._check: LaterCheck | None = None
        self.epoch = ""
        lock: SharedLock | None = None
        try:
            home.path.parent.mkdir(parents=True, exist_ok=True)
            self._mode = mode_for(home.path.parent)
            lock = SharedLock(beside(home.path, "-users"), self._mode)
            before = self._settle() if lock.company == "alone" else None
            self._attach(before)
            lock.share()
            lay_ballast(self._path, self._mode, disk_below(self._path).free_bytes)
        except (sqlite3.Error, OSError) as error:
            self._detach()
            if lock:
                lock.release()
            raise explained(error, self._path) from error
        self._lock = lock

    def room(self) -> Room:
        """Return what there is for the spool now. Raises OSError."""
        return Room(self._home.limits, disk_below(self._path), self._home.stamp())

    def read(self, work: Work[T]) -> T:
        """Return what `work` reads. Raises SpoolUnavailable."""
        try:
            return self._undamaged(work)
        except (sqlite3.Error, OSError) as error:
            raise explained(error, self._path) from error

    def write(self, sync: Sync, work: Work[T]) -> T:
        """Return what `work` does in one transaction. Raises SpoolFull, SpoolUnavailable."""

        def whole(db: sqlite3.Connection) -> T:
            with transaction(db, sync):
                return work(db)

        try:
            try:
                return self._undamaged(whole)
            except sqlite3.Error as error:
                if not self._out_of_room(error):
                    raise
            self._relieve()
            return self._undamaged(whole)
        except (sqlite3.Error, OSError) as error:
            if isinstance(error, sqlite3.Error) and self._out_of_room(error):
                error = sqlite3.OperationalError("database or disk is full")
            raise explained(error, self._path) from error

    def tidy(self) -> None:
        """Give empty pages back to the disk, a few at a time, and lay the ballast anew.

        It is a favour: what goes wrong is left for the next time.
        """
        if self._db is None:
            return
        with suppress(sqlite3.Error, OSError):
            disk = disk_below(self._path)
            short = disk.free_bytes < self._home.limits.min_free_bytes
            spare = free_pages(self._db)
            if spare > SPARE_PAGES or (short and spare):
                give_back(self._db, GIVEN_BACK_PAGES)
            if not short:
                lay_ballast(self._path, self._mode, disk.free_bytes)

    def close(self) -> None:
        """Close the database; safe to call twice."""
        self._detach()
        self._lock.release()

    # --- the life of the connection ---

    def _undamaged(self, work: Work[T]) -> T:
        """Do it on the database that stands there now, on a new one if that is damaged."""
        try:
            return work(self._ready())
        except sqlite3.DatabaseError as error:
            if trouble(error) != "damaged":
                raise
            self._replace(str(error))
        return work(self._ready())

    def _ready(self) -> sqlite3.Connection:
        if self._check and self._check.found:
            self._replace(self._check.found)
        if self._db is None or inode(self._path) != self._inode:
            # Another process found it damaged, or somebody took it away.
            self._detach()
            self._attach(None if self._path.exists() else Predecessor("missing", "it was removed"))
        if self._db is None:
            raise AssertionError
        return self._db

    def _attach(self, before: Predecessor | None) -> None:
        with replacing(self._path, self._mode):
            absent = inode(self._path) is None
            make_file(self._path, self._mode)
            try:
                cap = cap_bytes(self._home.limits, disk_below(self._path))
                db = connect(self._path, cap + max(4 * SHED_BYTES, cap // 16))
            except BaseException:
                self._take_back(absent)
                raise
            try:
                if not is_laid_out(db):
                    self._begin(db, before)
                (self.epoch,) = db.execute(
                    "SELECT value FROM meta WHERE name = 'spool.epoch'"
                ).fetchone()
            except BaseException:
                db.close()
                self._take_back(absent)
                raise
            self._db = db
            self._inode = inode(self._path)

    def _take_back(self, absent: bool) -> None:  # noqa: FBT001  # because it is a fact, no choice
        """Leave no empty file where there was none: the next start would take it for a loss."""
        if absent:
            self._path.unlink(missing_ok=True)

    def _detach(self) -> None:
        self._end_check()
        if self._db:
            with suppress(sqlite3.Error):
                self._db.close()
            self._db = None

    def _end_check(self) -> None:
        if self._check:
            self._check.stop()
            self._check = None

    def _begin(self, db: sqlite3.Connection, before: Predecessor | None) -> None:
        """Start an epoch, and say why if another one ended for it."""
        epoch = uuid.uuid4().hex[:8]
        with laying_out(db):
            inherit(db, before.left if before else NO_HEIRLOOM)
            db.executemany(
                "INSERT INTO meta (name, value) VALUES (?, ?)",
                [("spool.epoch", epoch), ("spool.machine", self._home.machine)],
            )
            if before:
                insert(db, self._told(before))

    def _told(self, before: Predecessor) -> Entry:
        value: dict[str, object] = {
            "what": before.fate.replace("-", "_"),
            "detail": before.detail,
            "kept_as": before.kept_as,
            "previous_epoch": before.epoch,
            "rows_left": before.waiting,
        }
        return Entry("R", "e/spool", "edgeagent.spool/1", self._home.stamp(), value)

    # --- what only the first user looks at ---

    def _settle(self) -> Predecessor | None:
        """Look at what the last user left; return what was put away, if anything."""
        if inode(self._path) is None:
            return None
        if not self._path.stat().st_size:
            return Predecessor("empty", "the file was there and held nothing")
        log = log_state(self._path)
        if log == "damaged":
            return self._put_away("corrupt", "the head of its log is damaged")
        try:
            with closing(connect(self._path)) as db:
                machine = self._examine(db, log) if is_laid_out(db) else ""
        except sqlite3.DatabaseError as error:
            if trouble(error) != "damaged":
                raise
            return self._put_away("corrupt", str(error))
        if machine and self._home.machine and machine != self._home.machine:
            return self._put_away("other-machine", "it was written on another machine")
        return None

    def _examine(self, db: sqlite3.Connection, log: LogState) -> str:
        """Look at the database that an earlier user left; return its machine."""
        taken: int = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1]
        discarded = discarded_commits(self._path, taken, PAGE_BYTES) if taken >= 0 else 0
        if log == "sound":
            self._check_after_a_crash(db)
        if discarded:
            with transaction(db, "full"):
                self._skip_numbers(db)
        return self._machine_of(db)

    def _check_after_a_crash(self, db: sqlite3.Connection) -> None:
        """Look at the whole file at once if that is quick, beside the work otherwise."""
        if self._path.stat().st_size > CHECKED_AT_ONCE_BYTES:
            self._check = LaterCheck(self._path)
        elif (found := is_whole(db)) != "ok":
            raise sqlite3.DatabaseError(f"malformed: {found}")

    def _machine_of(self, db: sqlite3.Connection) -> str:
        row = db.execute("SELECT value FROM meta WHERE name = 'spool.machine'").fetchone()
        if row and not row[0] and self._home.machine:
            with transaction(db, "full"):
                db.execute(
                    "UPDATE meta SET value = ? WHERE name = 'spool.machine'", (self._home.machine,)
                )
        return str(row[0]) if row else ""

    def _skip_numbers(self, db: sqlite3.Connection) -> None:
        """Never give a number that the lost part of the log may have given; declare the hole."""
        streams: tuple[Stream, ...] = ("M", "R")
        for stream in streams:
            span = take_numbers(db, stream, SKIPPED_NUMBERS)
            declare(db, Gap(stream, span, None, "log_damaged"), self._home.stamp())

    # --- a new one in its place ---

    def _replace(self, detail: str) -> None:
        mine = self._inode
        self._detach()
        before = None
        with replacing(self._path, self._mode):
            if inode(self._path) == mine:
                before = self._put_away("corrupt", detail)
        self._attach(before)

    def _put_away(self, fate: Fate, detail: str) -> Predecessor:
        """Rename the database and read what the next one should know, as far as it can be read."""
        self._end_check()
        aside = set_aside(self._path, fate, self._home.stamp().ts_ms)
        before = Predecessor(fate, detail, aside.name)
        with suppress(sqlite3.Error), closing(connect(aside)) as db:
            before = replace(before, left=heirloom(db))
            (epoch,) = db.execute("SELECT value FROM meta WHERE name = 'spool.epoch'").fetchone()
            held = tallies(db)
            waiting = sum(held[key].rows for key in held if key[1] != "kept")
            before = replace(before, epoch=epoch, waiting=waiting)
        return before

    # --- a full disk ---

    def _out_of_room(self, error: sqlite3.Error) -> bool:
        """Return whether the disk is full, which SQLite may call an I/O error."""
        kind = trouble(error)
        if kind != "unavailable":
            return kind == "full"
        with suppress(OSError):
            return disk_below(self._path).free_bytes < NEARLY_FULL_BYTES and "I/O" in str(error)
        return False

    def _relieve(self) -> None:
        """Give the ballast up, and let go of the least needed rows, so that pages come free."""
        drop_ballast(self._path)
        with suppress(sqlite3.Error):
            db = self._ready()
            self._empty_log(db)
            with transaction(db, "normal"):
                move = next_move(holdings(db, tallies(db)))
                if move != "refuse":
                    take(db, move, SHED_BYTES, self._home.stamp())
            self._empty_log(db)

    def _empty_log(self, db: sqlite3.Connection) -> None:
        with suppress(sqlite3.Error):
            db.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
