"""Up to which number of a stream is everything stored or declared lost?

Numbers of a stream run from 1 without holes; rows come in any order and more than once. A gap says
which of them will not come. A watermark only rises.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

LEAST_UNRECEIPTED, MOST_UNRECEIPTED = 10, 500
_USUAL_UNRECEIPTED = 200
_SHARE_OF_QUEUE = 0.5


@dataclass(frozen=True)
class Hole:
    """Numbers that will not come, ends inclusive; multiples of `every` are still to come."""

    first: int
    last: int
    every: int | None = None


def advance(wm: int, stored: Collection[int], holes: Iterable[Hole] = ()) -> int:
    """Return the watermark after `wm`, when `stored` are the numbers above it that are there."""
    have = stored if isinstance(stored, set | frozenset) else set(stored)
    ahead = sorted((hole for hole in holes if hole.last > wm), key=lambda hole: hole.first)
    while True:
        while wm + 1 in have:
            wm += 1
        reached = _past(wm, ahead)
        if reached == wm:
            return wm
        wm = reached


def _past(wm: int, holes: Iterable[Hole]) -> int:
    """Return how far one of the holes reaches from just above `wm`; `wm` itself if none does."""
    upcoming = wm + 1
    for hole in holes:
        if hole.first > upcoming:
            break
        if hole.last < upcoming:
            continue
        if hole.every is None:
            return hole.last
        if upcoming % hole.every:
            return min(hole.last, wm + hole.every - wm % hole.every - 1)
    return wm


def queue_needed(nodes: int) -> int:
    """Return how long the broker's queue has to be, so that the least for each box fits into it."""
    return int(LEAST_UNRECEIPTED * nodes / _SHARE_OF_QUEUE)


def fleet_wide_limit(queue: int, nodes: int) -> int:
    """Return how many rows a box may have under way to a collector, so that the queue holds them.

    Half of the broker's queue for one subscriber (mosquitto: max_queued_messages), shared by all
    boxes: what does not fit is dropped in silence after the broker has answered for it.
    """
    share = int(_SHARE_OF_QUEUE * queue / max(1, nodes))
    return max(LEAST_UNRECEIPTED, min(MOST_UNRECEIPTED, _USUAL_UNRECEIPTED, share))
