"""What must go when the spool is full, and what may never go?

The order, from what costs least to what costs most: results that a collector has confirmed and that
are kept for a resync only; telemetry that is parked (its gap is declared already); telemetry that
was sent and not confirmed; the oldest telemetry, thinned to one row in five before any of it goes
whole. A result that nobody has confirmed is never dropped: when nothing else is left, new ones are
refused.

Room is counted in pages in use, not in payload: rows of 1.5 kB in pages of 4 kB take a quarter more
than they hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from edgeagent.core.delivery import Stream

MIB = 1024 * 1024
KEEP_ONE_OF = 5
LARGEST_STEP = 250
SMALLEST_STEP = 2 * KEEP_ONE_OF

Move = Literal["drop_kept", "drop_parked", "drop_sent", "thin", "drop_oldest", "refuse"]


@dataclass(frozen=True)
class SpoolLimits:
    """How much the spool may take; the defaults hold about 40 days of one box's telemetry.

    `share_of_disk` and `min_free_bytes` are for the file system that the spool lies on; the latter
    binds telemetry only, since a result is worth the room. `kept_*` bound the confirmed results
    that stay for a resync, `waiting_rows` the telemetry held in memory while the disk refuses it.
    """

    max_bytes: int = 256 * MIB
    reserve_results_bytes: int = 128 * MIB
    min_free_bytes: int = 512 * MIB
    share_of_disk: float = 0.05
    kept_bytes: int = 64 * MIB
    kept_s: float = 30 * 86400.0
    waiting_rows: int = 720


@dataclass(frozen=True)
class Disk:
    """The file system below the spool, in bytes; `file_bytes` is the database file itself."""

    size_bytes: int
    free_bytes: int
    file_bytes: int


@dataclass(frozen=True)
class Holdings:
    """What the spool holds, as far as the choice of what must go depends on it.

    `fresh_rows` are the rows of telemetry to be sent that were not thinned yet, `thin_rows` those
    that were.
    """

    kept_rows: int
    parked_rows: int
    sent_rows: int
    fresh_rows: int
    thin_rows: int


def cap_bytes(limits: SpoolLimits, disk: Disk) -> int:
    """Return what the spool may take in all, whatever is free now."""
    return min(limits.max_bytes, int(disk.size_bytes * limits.share_of_disk))


def gap_reserve_bytes(limits: SpoolLimits, disk: Disk) -> int:
    """Return the room that gap records alone may use, so that a loss can always be declared."""
    return min(MIB, cap_bytes(limits, disk) // 16)


def ceiling_bytes(stream: Stream, limits: SpoolLimits, disk: Disk, results_bytes: int) -> int:
    """Return up to how many bytes in use a row of `stream` may be added; never below zero.

    `results_bytes` is what unconfirmed results hold now. Telemetry leaves free what of the results'
    reserve is not used yet, and what the disk has to keep free. Pages that stand in the log alone
    need room in the file later, which is why a result may not count on more than the disk has.
    """
    cap = cap_bytes(limits, disk) - gap_reserve_bytes(limits, disk)
    room_on_disk = disk.file_bytes + disk.free_bytes
    if stream == "R":
        return max(0, min(cap, room_on_disk))
    reserve = min(limits.reserve_results_bytes, cap // 2)
    unused_reserve = max(0, reserve - results_bytes)
    return max(0, min(cap - unused_reserve, room_on_disk - limits.min_free_bytes))


def next_move(held: Holdings) -> Move:
    """Return what goes next.

    The newer half of the telemetry keeps its full resolution: it is thinned only while there is
    more of it than of what was thinned before, so that a long outage ends with a coarse far past
    and a fine near one instead of a coarse everything.
    """
    if held.kept_rows:
        return "drop_kept"
    if held.parked_rows:
        return "drop_parked"
    if held.sent_rows:
        return "drop_sent"
    if held.fresh_rows >= max(held.thin_rows, SMALLEST_STEP):
        return "thin"
    if held.fresh_rows or held.thin_rows:
        return "drop_oldest"
    return "refuse"


def step_rows(excess_bytes: int, rows: int, held_bytes: int) -> int:
    """Return how many rows to take in one step to make up for `excess_bytes`, within bounds."""
    mean = max(1, held_bytes // max(1, rows))
    return min(LARGEST_STEP, max(SMALLEST_STEP, excess_bytes // mean + 1))


class Span(NamedTuple):
    """Consecutive numbers, both ends included."""

    first: int
    last: int


def spans(numbers: Iterable[int]) -> list[Span]:
    """Return ascending numbers as the fewest spans; a number may come twice."""
    found: list[Span] = []
    for number in numbers:
        if found and number <= found[-1].last + 1:
            found[-1] = Span(found[-1].first, max(number, found[-1].last))
        else:
            found.append(Span(number, number))
    return found


def absent(present: Iterable[int], within: Span) -> list[Span]:
    """Return the spans of `within` that hold none of the ascending numbers `present`."""
    found: list[Span] = []
    expected = within.first
    for number in present:
        if number > expected:
            found.append(Span(expected, number - 1))
        expected = max(expected, number + 1)
    if expected <= within.last:
        found.append(Span(expected, within.last))
    return found
