"""How does the spool stand, and would the results of a new sweep find room in it?

Nothing here walks the rows: the answer takes as long for 100,000 rows as for none.
All functions raise sqlite3.Error.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

from edgeagent.core.delivery import Stream
from edgeagent.core.eviction import MIB
from edgeagent.publish.spool_evict import Room, ceiling_for
from edgeagent.publish.spool_rows import Tally, number, oldest_ms, tallies
from edgeagent.publish.spool_schema import used_bytes

STREAMS: tuple[Stream, ...] = ("R", "M")


@dataclass(frozen=True)
class StreamStats:
    """How one stream stands. `rows` and `bytes` are what waits for the broker or for a receipt.

    `sent` of those rows are at the broker; `parked` and `kept` come on top. `evicted` and `lost`
    count since the epoch began: dropped for room, and never written because the disk refused it.
    """

    rows: int
    bytes: int
    sent: int
    parked: int
    kept: int
    oldest_ts_ms: int | None
    last_seq: int
    watermark: int
    evicted: int
    lost: int


@dataclass(frozen=True)
class SpoolStats:
    """How the spool stands. `waiting` is telemetry that is in memory, not yet in the spool."""

    epoch: str
    streams: Mapping[Stream, StreamStats]
    used_bytes: int
    waiting: int

    @property
    def rows(self) -> int:
        """Return the rows that wait for the broker or for a receipt."""
        return sum(stream.rows for stream in self.streams.values())

    @property
    def bytes(self) -> int:
        """Return what those rows hold."""
        return sum(stream.bytes for stream in self.streams.values())

    @property
    def parked(self) -> int:
        """Return the rows that were put aside."""
        return sum(stream.parked for stream in self.streams.values())

    @property
    def evicted(self) -> int:
        """Return the rows that were dropped for room in this epoch."""
        return sum(stream.evicted for stream in self.streams.values())

    @property
    def oldest_ts_ms(self) -> int | None:
        """Return the wall time of the oldest waiting row, None for none."""
        known = [s.oldest_ts_ms for s in self.streams.values() if s.oldest_ts_ms is not None]
        return min(known, default=None)


def stream_stats(db: sqlite3.Connection) -> dict[Stream, StreamStats]:
    """Return how each stream stands."""
    held = tallies(db)
    return {stream: _one(db, stream, held) for stream in STREAMS}


def _one(
    db: sqlite3.Connection, stream: Stream, held: Mapping[tuple[str, str], Tally]
) -> StreamStats:
    new, sent = held[(stream, "new")], held[(stream, "sent")]
    return StreamStats(
        rows=new.rows + sent.rows,
        bytes=new.bytes + sent.bytes,
        sent=sent.rows,
        parked=held[(stream, "parked")].rows,
        kept=held[(stream, "kept")].rows,
        oldest_ts_ms=oldest_ms(db, stream),
        last_seq=number(db, stream, "last"),
        watermark=number(db, stream, "wm"),
        evicted=number(db, stream, "evicted"),
        lost=number(db, stream, "lost"),
    )


def refusal(db: sqlite3.Connection, room: Room) -> str | None:
    """Return why the results of a sweep would find no room, None if there is some.

    Telemetry and kept results count as room, since they would go for a result.
    """
    held = tallies(db)
    yielding = sum(held[key].bytes for key in held if key[0] == "M" or key[1] == "kept")
    ceiling = ceiling_for(db, "R", room)
    margin = min(MIB, ceiling // 16)
    if ceiling - used_bytes(db) + yielding >= margin:
        return None
    if room.disk.free_bytes < margin:
        return "the disk below it is full"
    return "results that nobody has confirmed fill it"
