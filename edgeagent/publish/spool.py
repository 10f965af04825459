"""What waits for the broker, how does it survive, and in which order does it go?

Results are on the disk when `commit` returns; telemetry is gathered by `add` and written by
`flush`. Rows are handed out by `due` and marked by what became of them: `tried`, `sent`, `park`,
and at the end `receipt` (a collector has them) or `acknowledged` (the broker's word has to do).

The promise: what was committed is received, or still here, or declared missing by an `e/gap` event
that is itself a result. A duplicate has the same (epoch, stream, seq); no other row ever gets it.

Every method may be called from any thread. One thread of the spool's own does the work, so that a
caller that is interrupted leaves no half transaction. Several processes may hold the same spool.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from edgeagent.core.delivery import Entry, Row, Stream
from edgeagent.core.eviction import Span, SpoolLimits
from edgeagent.core.window import STREAMS
from edgeagent.errors import EdgeAgentError
from edgeagent.publish import spool_commands as commands
from edgeagent.publish import spool_rows as rows
from edgeagent.publish.spool_commands import CommandState, Novelty
from edgeagent.publish.spool_errors import SpoolFull, SpoolUnavailable, no_room
from edgeagent.publish.spool_evict import make_room
from edgeagent.publish.spool_file import PumpLock, pump_lock
from edgeagent.publish.spool_rows import Gap, StampNow
from edgeagent.publish.spool_schema import used_bytes
from edgeagent.publish.spool_stats import SpoolStats, StreamStats, refusal, stream_stats
from edgeagent.publish.spool_store import Home, Store

__all__ = [
    "CommandState",
    "PumpLock",
    "Spool",
    "SpoolFull",
    "SpoolLimits",
    "SpoolStats",
    "SpoolUnavailable",
    "StreamStats",
]

T = TypeVar("T")

_KEEP = "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)"


class Spool:
    """The durable queue between what is measured and the broker.

    Marks take an `epoch`, that of the rows that they are about: when another database has taken
    the place of theirs meanwhile, they are about nothing and change nothing. Without one they are
    about what is there now.
    """

    def __init__(self, home: Home, worker: ThreadPoolExecutor, store: Store) -> None:
        self._home = home
        self._worker = worker
        self._store = store
        self._lock = threading.Lock()
        self._waiting: deque[Entry] = deque()
        self._lost = 0

    @classmethod
    def open(cls, path: Path, limits: SpoolLimits, machine: str, stamp: StampNow) -> Spool:
        """Open the spool at `path`, creating it and its folder where they are missing.

        `machine` is a fingerprint of this box; a database with another one was cloned or moved, is
        put aside, and a new epoch begins. Raises SpoolUnavailable, SpoolFull.
        """
        home = Home(path, limits, machine, stamp)
        worker = ThreadPoolExecutor(1, thread_name_prefix="spool")
        try:
            return cls(home, worker, worker.submit(Store, home).result())
        except BaseException:
            worker.shutdown()
            raise

    @property
    def epoch(self) -> str:
        """Return the life that new rows belong to; another after the database was replaced."""
        return self._store.epoch

    def close(self) -> None:
        """Write what waits and close; safe to call twice."""
        try:
            self.flush()
            self._do(self._store.close)
        except SpoolUnavailable:
            return
        self._worker.shutdown()

    # --- what comes in ---

    def commit(self, entry: Entry) -> Row:
        """Return the entry's row once the disk has it. Raises SpoolFull, SpoolUnavailable."""
        return self.commit_all([entry])[0]

    def commit_all(
        self, entries: Sequence[Entry], keeping: Mapping[str, str] | None = None
    ) -> list[Row]:
        """Return the rows of all entries, in order, once the disk has them all; or of none.

        The values to keep are as those of `put`, and are there with the rows or not at all.
        Raises SpoolFull, SpoolUnavailable.
        """
        return self._do(lambda: self._commit(entries, keeping or {}))

    def add(self, entry: Entry) -> None:
        """Take telemetry for the next flush. Never waits and never fails.

        While the disk refuses it, the newest is held in memory up to a bound and the rest counted.
        """
        with self._lock:
            self._waiting.append(entry)
            self._trim()

    def flush(self) -> EdgeAgentError | None:
        """Write the telemetry that waits; return what was in the way, None for nothing.

        What could not be written waits for the next time; what is lost until then is declared as
        soon as something can be written.
        """
        try:
            return self._do(self._flush)
        except SpoolUnavailable as error:
            return error  # closed

    # --- what goes out ---

    def due(self, stream: Stream, after_seq: int, limit: int) -> list[Row]:
        """Return up to `limit` new rows above `after_seq`, lowest number first.

        After `unpark`, `rewind` and `resync` there are new rows below numbers handed out before.
        A row is handed out only when the disk has it: a number that a power cut took back would
        be given to another row. Raises SpoolUnavailable.
        """
        return self._do(lambda: self._due(stream, after_seq, limit))

    def tried(self, stream: Stream, seqs: Iterable[int], epoch: str | None = None) -> None:
        """Count an attempt to send each. Raises SpoolFull, SpoolUnavailable."""
        seqs = list(seqs)
        self._mark(epoch, lambda db: rows.mark_tried(db, stream, seqs))

    def sent(self, stream: Stream, seqs: Iterable[int], epoch: str | None = None) -> None:
        """The broker has them; a receipt is still to come. Raises SpoolFull, SpoolUnavailable."""
        seqs = list(seqs)
        self._mark(epoch, lambda db: rows.mark_sent(db, stream, seqs, self._now_ms()))

    def park(self, stream: Stream, seq: int, reason: str, epoch: str | None = None) -> None:
        """Put a row aside that cannot be sent as it is, and declare it missing.

        It stays until `unpark`, or until room is needed (telemetry). Raises SpoolFull,
        SpoolUnavailable.
        """
        gap = Gap(stream, Span(seq, seq), 1, reason)
        self._mark(epoch, lambda db: rows.park(db, gap, self._home.stamp()))

    def unpark(self, stream: Stream) -> int:
        """Make the parked rows new again; return how many. Raises SpoolFull, SpoolUnavailable."""
        return self._mark(None, lambda db: rows.unpark(db, stream))

    def receipt(self, wm: Mapping[Stream, int], epoch: str | None = None) -> int:
        """Let go of what a collector has, up to its watermark; return how many rows.

        Telemetry goes, results stay for a while for `resync`. A row that was never tried stays in
        any case. Raises SpoolFull, SpoolUnavailable.
        """
        released = self._mark(epoch, lambda db: self._receipt(db, wm))
        self._do(self._store.tidy)
        return released

    def confirmed(self) -> dict[Stream, int]:
        """Return how far a collector has confirmed each stream. Raises SpoolUnavailable."""
        return self._do(
            lambda: self._store.read(
                lambda db: {stream: rows.number(db, stream, "wm") for stream in STREAMS}
            )
        )

    def step_back(self, stream: Stream, wm: int, epoch: str | None = None) -> int:
        """A collector has lost what it had above `wm`; return how many rows are sent again.

        What is no longer here is declared. Raises SpoolFull, SpoolUnavailable.
        """
        return self._mark(epoch, lambda db: rows.step_back(db, stream, wm, self._home.stamp()))

    def rewind(self, stream: Stream) -> int:
        """Make the sent rows above the watermark new again (go-back-N); return how many.

        Raises SpoolFull, SpoolUnavailable.
        """
        return self._mark(None, lambda db: rows.rewind(db, stream))

    def acknowledged(self, stream: Stream, seqs: Iterable[int], epoch: str | None = None) -> int:
        """Let rows go on the broker's word alone; return how many.

        Should a collector's first receipt come later, what it never saw is sent again or declared.
        Raises SpoolFull, SpoolUnavailable.
        """
        seqs = list(seqs)
        released = self._mark(epoch, lambda db: rows.acknowledge(db, stream, seqs, self._now_ms()))
        self._do(self._store.tidy)
        return released

    def resync(self, stream: Stream, first: int, last: int, epoch: str | None = None) -> int:
        """Send numbers `first` to `last` once more; return how many rows that is.

        Those that are gone are declared missing. Raises SpoolFull, SpoolUnavailable.
        """
        wanted = Span(first, last)
        return self._mark(epoch, lambda db: rows.resend(db, stream, wanted, self._home.stamp()))

    # --- how it stands ---

    def stats(self) -> SpoolStats:
        """Return how the spool stands. Raises SpoolUnavailable."""
        return self._do(lambda: self._store.read(self._stats))

    def refusal(self) -> str | None:
        """Return why the results of a new sweep would find no room, None if there is some.

        Raises SpoolUnavailable.
        """
        return self._do(lambda: self._store.read(lambda db: refusal(db, self._store.room())))

    def pump_lock(self) -> PumpLock | None:
        """Return the right to send, or None while another process has it.

        Raises SpoolUnavailable.
        """
        try:
            return pump_lock(self._home.path)
        except OSError as error:
            raise SpoolUnavailable(
                f"could not lock the spool {self._home.path} for sending: {error.strerror}; make "
                "its folder writable for the user or the group that publishes"
            ) from error

    # --- what else must not be forgotten ---

    def get(self, name: str) -> str | None:
        """Return a value that was put, None for none. Raises SpoolUnavailable."""
        return self._do(lambda: self._store.read(lambda db: _value(db, name)))

    def put(self, name: str, value: str) -> None:
        """Keep a value for good; returns once the disk has it.

        Names that begin with "spool." are the spool's own. Raises SpoolFull, SpoolUnavailable.
        """
        self._do(lambda: self._store.write("full", lambda db: db.execute(_KEEP, (name, value))))

    def count_up(self, name: str) -> int:
        """Return the next number of a counter that starts at 1, kept for good.

        No two callers get the same one, in whichever process. Raises SpoolFull, SpoolUnavailable.
        """

        def next_number(db: sqlite3.Connection) -> int:
            number = int(_value(db, name) or 0) + 1
            db.execute(
                "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (name, str(number))
            )
            return number

        return self._do(lambda: self._store.write("full", next_number))

    def remember(
        self, command_id: str, op: str, state: str, detail: Mapping[str, object]
    ) -> Novelty:
        """Note a command and its first state, on the disk before this returns.

        "again" for an id that is known: nothing changes then. Raises SpoolFull, SpoolUnavailable.
        """
        now = self._now_ms()
        command = CommandState(command_id, op, now, state, detail, now)
        return self._do(
            lambda: self._store.write("full", lambda db: commands.remember(db, command))
        )

    def state(self, command_id: str, state: str, detail: Mapping[str, object]) -> None:
        """Note how far a command got, on the disk before this returns; unknown ids are ignored.

        Raises SpoolFull, SpoolUnavailable.
        """
        now = self._now_ms()
        command = CommandState(command_id, "", now, state, detail, now)
        self._do(lambda: self._store.write("full", lambda db: commands.move_on(db, command)))

    def seen(self, command_id: str) -> CommandState | None:
        """Return what is known of a command, None for one never seen. Raises SpoolUnavailable."""
        return self._do(lambda: self._store.read(lambda db: commands.find(db, command_id)))

    def unfinished(self) -> list[CommandState]:
        """Return the commands without a final state, oldest first. Raises SpoolUnavailable."""
        return self._do(lambda: self._store.read(commands.unfinished))

    # --- in the spool's own thread ---

    def _do(self, work: Callable[[], T]) -> T:
        try:
            future = self._worker.submit(work)
        except RuntimeError as error:
            raise SpoolUnavailable(
                f"the spool {self._home.path} is closed; whoever still publishes has to stop first"
            ) from error
        return future.result()

    def _mark(self, epoch: str | None, work: Callable[[sqlite3.Connection], int]) -> int:
        def unless_outdated(db: sqlite3.Connection) -> int:
            if epoch is not None and epoch != self._store.epoch:
                return 0
            return work(db)

        return self._do(lambda: self._store.write("normal", unless_outdated))

    def _now_ms(self) -> int:
        return self._home.stamp().ts_ms

    def _commit(self, entries: Sequence[Entry], keeping: Mapping[str, str]) -> list[Row]:
        def work(db: sqlite3.Connection) -> list[tuple[int, int]]:
            room = self._store.room()
            make_room(db, "R", room, rows.room_for(entries))
            numbered = [rows.insert(db, entry) for entry in entries]
            if make_room(db, "R", room) == "full":
                raise no_room(
                    self._home.path, "results that nobody has confirmed fill it, or its disk"
                )
            db.executemany(_KEEP, keeping.items())
            return numbered

        numbered = self._store.write("full", work)
        epoch = self._store.epoch
        return [
            Row(entry, epoch, seq, 0, "new", size)
            for entry, (seq, size) in zip(entries, numbered, strict=True)
        ]

    def _trim(self) -> None:
        while len(self._waiting) > self._home.limits.waiting_rows:
            self._waiting.popleft()
            self._lost += 1

    def _flush(self) -> EdgeAgentError | None:
        with self._lock:
            batch, lost = list(self._waiting), self._lost
            self._waiting.clear()
            self._lost = 0
        try:
            if batch or lost:
                self._store.write("normal", lambda db: self._write(db, batch, lost))
        except EdgeAgentError as error:
            with self._lock:
                self._waiting.extendleft(reversed(batch))
                self._lost += lost
                self._trim()
            return error
        self._store.tidy()
        return None

    def _write(self, db: sqlite3.Connection, batch: Sequence[Entry], lost: int) -> None:
        room = self._store.room()
        make_room(db, "M", room, rows.room_for(batch))
        if lost:
            rows.lose_unwritten(db, lost, self._home.stamp())
        for entry in batch:
            rows.insert(db, entry)
        if make_room(db, "M", room) == "full":
            raise no_room(self._home.path, "results, or other files on its disk, need all the room")

    def _due(self, stream: Stream, after_seq: int, limit: int) -> list[Row]:
        found, durable = self._store.read(
            lambda db: (
                rows.due(db, stream, after_seq, limit),
                rows.number(db, stream, "durable"),
            )
        )
        epoch = self._store.epoch
        known = [rows.unpacked(stored, epoch) for stored in found]
        if known and known[-1].seq > durable:
            try:
                self._store.write("full", lambda _: None)
            except EdgeAgentError:
                return [row for row in known if row.seq <= durable]
        return known

    def _receipt(self, db: sqlite3.Connection, wm: Mapping[Stream, int]) -> int:
        stamp = self._home.stamp()
        released = sum(rows.confirm(db, stream, at, stamp) for stream, at in wm.items())
        limits = self._home.limits
        rows.prune_kept(db, limits.kept_bytes, stamp.ts_ms - int(limits.kept_s * 1000))
        return released

    def _stats(self, db: sqlite3.Connection) -> SpoolStats:
        with self._lock:
            waiting = len(self._waiting)
        return SpoolStats(self._store.epoch, stream_stats(db), used_bytes(db), waiting)


def _value(db: sqlite3.Connection, name: str) -> str | None:
    row = db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return None if row is None else str(row[0])
