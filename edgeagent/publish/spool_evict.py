"""How is room made for a row, and is every loss declared in the transaction that causes it?

`core/eviction.py` chooses what goes; this carries it out, step by step, until the row fits.
All functions run inside a transaction of the caller's and raise sqlite3.Error.
"""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgeagent.core.delivery import Stamp, Stream
from edgeagent.core.eviction import (
    KEEP_ONE_OF,
    Disk,
    Holdings,
    Move,
    Span,
    SpoolLimits,
    ceiling_bytes,
    next_move,
    spans,
    step_rows,
)
from edgeagent.publish.spool_rows import Gap, GapReason, Tally, declare, number, tallies
from edgeagent.publish.spool_schema import used_bytes

Outcome = Literal["fits", "full"]
STATE_OF: dict[Move, str] = {
    "drop_kept": "kept",
    "drop_parked": "parked",
    "drop_sent": "sent",
    "thin": "new",
    "drop_oldest": "new",
}
NOTHING = Tally(0, 0)


@dataclass(frozen=True)
class Room:
    """What there is for the spool, and the moment that its gap records carry."""

    limits: SpoolLimits
    disk: Disk
    stamp: Stamp


def disk_below(path: Path) -> Disk:
    """Return the state of the file system that a file lies on. Raises OSError."""
    below = os.statvfs(path.parent)
    try:
        file_bytes = path.stat().st_size
    except FileNotFoundError:
        file_bytes = 0
    return Disk(below.f_blocks * below.f_frsize, below.f_bavail * below.f_frsize, file_bytes)


def make_room(db: sqlite3.Connection, stream: Stream, room: Room, adding_bytes: int = 0) -> Outcome:
    """Drop what may go until the transaction fits, with `adding_bytes` still to come.

    Called before rows are added, so that they find free pages and the file need not grow on a disk
    that has no room for it; and once more afterwards, when the pages can be counted. A little more
    goes than has to, so that the next row does not find a full spool again.
    """
    ceiling = ceiling_for(db, stream, room) - adding_bytes
    if used_bytes(db) <= ceiling:
        return "fits"
    target = ceiling - ceiling // 64
    while (excess := used_bytes(db) - target) > 0:
        held = tallies(db)
        move = next_move(holdings(db, held))
        if move == "refuse":
            return "fits" if used_bytes(db) <= ceiling else "full"
        take(db, move, excess, room.stamp)
    return "fits"


def ceiling_for(db: sqlite3.Connection, stream: Stream, room: Room) -> int:
    """Return up to how many bytes in use a row of `stream` may be added now."""
    held = tallies(db)
    results = sum(held[("R", state)].bytes for state in ("new", "sent", "parked"))
    return ceiling_bytes(stream, room.limits, room.disk, results)


def take(db: sqlite3.Connection, move: Move, excess_bytes: int, stamp: Stamp) -> None:
    """Carry one move out and declare what it lost."""
    held = tallies(db)
    stream: Stream = "R" if move == "drop_kept" else "M"
    state = STATE_OF[move]
    there = held[(stream, state)]
    count = step_rows(excess_bytes, there.rows, there.bytes)
    if move == "thin":
        thin(db, count * KEEP_ONE_OF // (KEEP_ONE_OF - 1), stamp)
        return
    seqs = lowest(db, stream, state, count)
    db.executemany("DELETE FROM q WHERE stream = ? AND seq = ?", [(stream, seq) for seq in seqs])
    if stream == "R":
        return  # a collector has them
    count_evicted(db, len(seqs))
    if move == "drop_sent":
        for span in spans(seqs):
            lose(db, span, span.last - span.first + 1, "sent_unconfirmed", stamp)
    elif move == "drop_oldest":
        # Nothing is left between them: what is missing there was declared before.
        lose(db, Span(seqs[0], seqs[-1]), len(seqs), "evicted", stamp)


def lose(db: sqlite3.Connection, span: Span, rows: int, reason: GapReason, stamp: Stamp) -> None:
    """Declare a loss of telemetry."""
    declare(db, Gap("M", span, rows, reason), stamp)


def thin(db: sqlite3.Connection, count: int, stamp: Stamp) -> None:
    """Leave one in five of the oldest `count` rows that were not thinned yet."""
    seqs = [
        seq
        for (seq,) in db.execute(
            "SELECT seq FROM q WHERE stream = 'M' AND state = 'new' AND seq > ?"
            " ORDER BY seq LIMIT ?",
            (number(db, "M", "thinned"), count),
        )
    ]
    if not seqs:
        seqs = [number(db, "M", "last")]
    gone = [seq for seq in seqs if seq % KEEP_ONE_OF]
    db.executemany(
        "DELETE FROM q WHERE stream = 'M' AND state = 'new' AND seq = ?", [(seq,) for seq in gone]
    )
    db.execute("UPDATE streams SET thinned = ? WHERE stream = 'M'", (seqs[-1],))
    if gone:
        count_evicted(db, len(gone))
        span = Span(gone[0], gone[-1])
        declare(db, Gap("M", span, len(gone), "thinned", KEEP_ONE_OF), stamp)


def count_evicted(db: sqlite3.Connection, rows: int) -> None:
    """Remember that telemetry was dropped."""
    db.execute("UPDATE streams SET evicted = evicted + ? WHERE stream = 'M'", (rows,))


def lowest(db: sqlite3.Connection, stream: Stream, state: str, count: int) -> list[int]:
    """Return the lowest numbers in a state."""
    rows = db.execute(
        "SELECT seq FROM q WHERE stream = ? AND state = ? ORDER BY seq LIMIT ?",
        (stream, state, count),
    )
    return [seq for (seq,) in rows]


def holdings(db: sqlite3.Connection, held: dict[tuple[str, str], Tally]) -> Holdings:
    """Return what the choice depends on, without walking the rows."""
    waiting = held.get(("M", "new"), NOTHING).rows
    first = lowest(db, "M", "new", 1)
    floor = max(number(db, "M", "thinned"), (first[0] if first else 1) - 1)
    fresh = min(waiting, max(0, number(db, "M", "last") - floor))
    return Holdings(
        kept_rows=held[("R", "kept")].rows,
        parked_rows=held[("M", "parked")].rows,
        sent_rows=held[("M", "sent")].rows,
        fresh_rows=fresh,
        thin_rows=waiting - fresh,
    )
