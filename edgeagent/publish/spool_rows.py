"""How do entries become numbered rows, and which marks do they carry until they may go?

A row is `new`, then `sent` (the broker has it) or `parked` (it cannot be sent as it is), and at
last gone; a result that was confirmed stays as `kept` for a while. Numbers count up by one per
stream and are never given twice, not even when every row is gone.

`late` marks a row whose number a watermark may have passed already, because a gap was declared for
it or because it is sent once more: such a row goes when the broker has it, not because a watermark
stands above it.

All functions run inside a transaction of the caller's and raise sqlite3.Error.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from edgeagent.core.delivery import ClockState, Entry, Row, RowState, Stamp, Stream
from edgeagent.core.eviction import Span, absent

GapReason = Literal[
    "sent_unconfirmed", "thinned", "evicted", "parked", "not_written", "not_kept", "log_damaged"
]
StampNow = Callable[[], Stamp]

ROW_OVERHEAD_BYTES = 64  # columns and the two indices
MOST_GAPS = 20


@dataclass(frozen=True)
class Gap:
    """Of the numbers in `span`, none comes that has not come yet, `rows` of them by this loss.

    `rows` is None where nobody can say (a damaged log). With `every`, multiples of it
    are not meant: they are still in the spool.
    """

    stream: Stream
    span: Span
    rows: int | None
    reason: str
    every: int | None = None


def gap_entry(gap: Gap, stamp: Stamp) -> Entry:
    """Return the event that declares a loss."""
    value: dict[str, object] = {
        "stream": gap.stream,
        "from": gap.span.first,
        "to": gap.span.last,
        "n": gap.rows,
        "reason": gap.reason,
    }
    if gap.every is not None:
        value["every"] = gap.every
    return Entry("R", "e/gap", "edgeagent.gap/1", stamp, value)


def declare(db: sqlite3.Connection, gap: Gap, stamp: Stamp) -> None:
    """Add the record of a loss to the results, in the transaction that loses."""
    insert(db, gap_entry(gap, stamp))


def insert(db: sqlite3.Connection, entry: Entry) -> tuple[int, int]:
    """Add an entry under its stream's next number; return that number and its size in bytes."""
    payload = packed(entry)
    size = len(payload.encode()) + len(entry.topic) + len(entry.schema) + ROW_OVERHEAD_BYTES
    seq = take_numbers(db, entry.stream, 1).first
    db.execute(
        "INSERT INTO q (stream, seq, state, topic, schema, ts_ms, size, payload)"
        " VALUES (?, ?, 'new', ?, ?, ?, ?, ?)",
        (entry.stream, seq, entry.topic, entry.schema, entry.stamp.ts_ms, size, payload),
    )
    return seq, size


def room_for(entries: Iterable[Entry]) -> int:
    """Return about how many bytes of pages entries will take, rather too many than too few."""
    return sum((len(packed(entry)) + ROW_OVERHEAD_BYTES) * 3 // 2 for entry in entries) + 32768


def take_numbers(db: sqlite3.Connection, stream: Stream, count: int) -> Span:
    """Return the next `count` numbers of a stream, which nobody else will get."""
    db.execute("UPDATE streams SET last = last + ? WHERE stream = ?", (count, stream))
    last = number(db, stream, "last")
    return Span(last - count + 1, last)


def packed(entry: Entry) -> str:
    """Return what a row keeps of an entry beside its columns, as JSON."""
    stamp = entry.stamp
    whole = {
        "boot": stamp.boot,
        "mono_ms": stamp.mono_ms,
        "clk": stamp.clk,
        "v": dict(entry.value),
        "dims": dict(entry.dims),
    }
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":"))


def lose_unwritten(db: sqlite3.Connection, count: int, stamp: Stamp) -> None:
    """Give numbers to telemetry that the disk refused for too long, and declare them missing."""
    span = take_numbers(db, "M", count)
    db.execute("UPDATE streams SET lost = lost + ? WHERE stream = 'M'", (count,))
    declare(db, Gap("M", span, count, "not_written"), stamp)


Stored = tuple[Stream, int, RowState, int, str, str, int, int, str]


def unpacked(stored: Stored, epoch: str) -> Row:
    """Return the row that was stored."""
    stream, seq, state, tries, topic, schema, ts_ms, size, payload = stored
    whole = json.loads(payload)
    clk: ClockState = whole["clk"]
    stamp = Stamp(ts_ms, whole["boot"], whole["mono_ms"], clk)
    entry = Entry(stream, topic, schema, stamp, whole["v"], whole["dims"])
    return Row(entry, epoch, seq, tries, state, size)


def due(db: sqlite3.Connection, stream: Stream, after: int, limit: int) -> list[Stored]:
    """Return the new rows above `after`, lowest number first."""
    return db.execute(
        "SELECT stream, seq, state, tries, topic, schema, ts_ms, size, payload FROM q"
        " WHERE stream = ? AND state = 'new' AND seq > ? ORDER BY seq LIMIT ?",
        (stream, after, limit),
    ).fetchall()


# --- marks ---------------------------------------------------------------------------------------


def mark_tried(db: sqlite3.Connection, stream: Stream, seqs: Iterable[int]) -> int:
    """Count an attempt to send each; return how many were there."""
    return db.executemany(
        "UPDATE q SET tries = tries + 1 WHERE stream = ? AND seq = ? AND state <> 'kept'",
        [(stream, seq) for seq in seqs],
    ).rowcount


def mark_sent(db: sqlite3.Connection, stream: Stream, seqs: Iterable[int], now_ms: int) -> int:
    """The broker has them; return how many. What the watermark covers needs no receipt more."""
    marked = db.executemany(
        "UPDATE q SET state = 'sent' WHERE stream = ? AND seq = ? AND state = 'new'",
        [(stream, seq) for seq in seqs],
    ).rowcount
    retire_confirmed(db, stream, number(db, stream, "wm"), now_ms)
    return marked


def park(db: sqlite3.Connection, gap: Gap, stamp: Stamp) -> int:
    """Put one row aside and declare it missing, once; return how many were parked, 0 or 1."""
    where = (gap.stream, gap.span.first)
    found = db.execute(
        "SELECT declared FROM q WHERE stream = ? AND seq = ? AND state IN ('new', 'sent')", where
    ).fetchone()
    if found is None:
        return 0
    db.execute(
        "UPDATE q SET state = 'parked', late = 1, declared = 1 WHERE stream = ? AND seq = ?", where
    )
    if not found[0]:
        declare(db, gap, stamp)
    return 1


def unpark(db: sqlite3.Connection, stream: Stream) -> int:
    """Make the parked rows new again, their tries forgotten; return how many."""
    return db.execute(
        "UPDATE q SET state = 'new', tries = 0 WHERE stream = ? AND state = 'parked'", (stream,)
    ).rowcount


def rewind(db: sqlite3.Connection, stream: Stream) -> int:
    """Make the sent rows new again; return how many."""
    return db.execute(
        "UPDATE q SET state = 'new' WHERE stream = ? AND state = 'sent'", (stream,)
    ).rowcount


# --- the end of a row ----------------------------------------------------------------------------


def retire_confirmed(db: sqlite3.Connection, stream: Stream, wm: int, now_ms: int) -> int:
    """Let go of what a watermark confirms; return how many rows.

    A row that was never tried stays: no collector can have it, whatever the watermark says, and
    sending it once too often costs nothing.
    """
    sent = "SELECT seq FROM q WHERE stream = ? AND state = 'sent' AND seq <= ?"
    tried = (
        "SELECT seq FROM q WHERE stream = ? AND state = 'new' AND seq <= ?"
        " AND tries > 0 AND late = 0"
    )
    found = [seq for which in (sent, tried) for (seq,) in db.execute(which, (stream, wm))]
    return retire(db, stream, found, now_ms)


def retire(db: sqlite3.Connection, stream: Stream, seqs: Iterable[int], now_ms: int) -> int:
    """Drop telemetry, keep results for a resync; return how many rows are no longer waiting."""
    if stream == "M":
        return db.executemany(
            "DELETE FROM q WHERE stream = 'M' AND seq = ? AND state IN ('new', 'sent')",
            [(seq,) for seq in seqs],
        ).rowcount
    return db.executemany(
        "UPDATE q SET state = 'kept', kept_ms = ?, late = 0, tries = 0"
        " WHERE stream = 'R' AND seq = ? AND state IN ('new', 'sent')",
        [(now_ms, seq) for seq in seqs],
    ).rowcount


def confirm(db: sqlite3.Connection, stream: Stream, wm: int, stamp: Stamp) -> int:
    """Take a collector's watermark in; return how many rows it released.

    A watermark above the last number given is one of somebody else's life and counts up to there.
    """
    last, acked, before = db.execute(
        "SELECT last, acked, wm FROM streams WHERE stream = ?", (stream,)
    ).fetchone()
    if acked > wm:
        # The first receipt after rows went by PUBACK alone: what the collector never saw is sent
        # again where it was kept, and declared where it was not.
        resend(db, stream, Span(wm + 1, acked), stamp)
    wm = min(wm, last)
    db.execute("UPDATE streams SET wm = ?, acked = 0 WHERE stream = ?", (max(wm, before), stream))
    return retire_confirmed(db, stream, wm, stamp.ts_ms)


def step_back(db: sqlite3.Connection, stream: Stream, wm: int, stamp: Stamp) -> int:
    """A collector lost what it had above `wm`: send again what is there, declare what is not.

    Return how many rows are sent again.
    """
    had = number(db, stream, "wm")
    if wm >= had:
        return 0
    db.execute("UPDATE streams SET wm = ? WHERE stream = ?", (wm, stream))
    return resend(db, stream, Span(wm + 1, had), stamp)


def acknowledge(db: sqlite3.Connection, stream: Stream, seqs: list[int], now_ms: int) -> int:
    """Let rows go on the broker's word alone; return how many."""
    if not seqs:
        return 0
    db.execute(
        "UPDATE streams SET acked = max(acked, min(?, last)) WHERE stream = ?", (max(seqs), stream)
    )
    return retire(db, stream, seqs, now_ms)


def resend(db: sqlite3.Connection, stream: Stream, wanted: Span, stamp: Stamp) -> int:
    """Make what is there of `wanted` new again and declare the rest; return how many are sent."""
    again = db.execute(
        "UPDATE q SET state = 'new', late = 1, tries = 0, kept_ms = NULL"
        " WHERE stream = ? AND seq BETWEEN ? AND ? AND state IN ('kept', 'sent')",
        (stream, *wanted),
    ).rowcount
    missing = close(db, stream, wanted, stamp)
    if missing and stream == "R":
        # Records of gaps in the telemetry may be among them, which nobody else will ever tell.
        close(db, "M", Span(number(db, "M", "wm") + 1, number(db, "M", "last")), stamp)
    return again


def close(db: sqlite3.Connection, stream: Stream, wanted: Span, stamp: Stamp) -> int:
    """Declare every number of `wanted` that no row of will be sent; return how many."""
    span = Span(max(1, wanted.first), min(wanted.last, number(db, stream, "last")))
    present = db.execute(
        "SELECT seq FROM q WHERE stream = ? AND seq BETWEEN ? AND ? AND state <> 'parked'"
        " ORDER BY seq",
        (stream, *span),
    )
    missing = absent((seq for (seq,) in present), span)
    rows = sum(last - first + 1 for first, last in missing)
    if len(missing) > MOST_GAPS:
        # One record over all of them; the rows in between still come, as late ones.
        whole = Span(missing[0].first, missing[-1].last)
        db.execute(
            "UPDATE q SET late = 1, declared = 1"
            " WHERE stream = ? AND seq BETWEEN ? AND ? AND state <> 'kept'",
            (stream, *whole),
        )
        declare(db, Gap(stream, whole, rows, "not_kept"), stamp)
        return rows
    for first, last in missing:
        declare(db, Gap(stream, Span(first, last), last - first + 1, "not_kept"), stamp)
    return rows


def prune_kept(db: sqlite3.Connection, most_bytes: int, before_ms: int) -> None:
    """Drop kept results, the lowest numbers first: above `most_bytes`, or kept before a moment."""
    (held,) = db.execute("SELECT bytes FROM tally WHERE stream = 'R' AND state = 'kept'").fetchone()
    rows = (
        db.execute(
            "SELECT seq, size, kept_ms FROM q WHERE stream = 'R' AND state = 'kept'"
            " ORDER BY seq LIMIT 500"
        ).fetchall()
        if held
        else []
    )
    gone = []
    for seq, size, kept_ms in rows:
        if held <= most_bytes and kept_ms >= before_ms:
            break
        held -= size
        gone.append((seq,))
    db.executemany("DELETE FROM q WHERE stream = 'R' AND seq = ?", gone)


# --- what is asked without walking the rows ------------------------------------------------------

Number = Literal["last", "durable", "wm", "acked", "thinned", "evicted", "lost"]


def number(db: sqlite3.Connection, stream: Stream, name: Number) -> int:
    """Return one of the numbers that a stream keeps for good."""
    row = db.execute("SELECT * FROM streams WHERE stream = ?", (stream,))
    names = [column[0] for column in row.description]
    found: int = row.fetchone()[names.index(name)]
    return found


@dataclass(frozen=True)
class Tally:
    """How many rows, and how many bytes they hold."""

    rows: int
    bytes: int


def tallies(db: sqlite3.Connection) -> dict[tuple[str, str], Tally]:
    """Return the rows and bytes by (stream, state)."""
    rows = db.execute("SELECT stream, state, n, bytes FROM tally").fetchall()
    return {(stream, state): Tally(n, size) for stream, state, n, size in rows}


def oldest_ms(db: sqlite3.Connection, stream: Stream) -> int | None:
    """Return the wall time of the oldest row that waits for the broker or a receipt, in ms."""
    found = [
        row
        for state in ("new", "sent")
        if (
            row := db.execute(
                "SELECT seq, ts_ms FROM q WHERE stream = ? AND state = ? ORDER BY seq LIMIT 1",
                (stream, state),
            ).fetchone()
        )
    ]
    return int(min(found)[1]) if found else None
