"""Which boxes are to be told how far their rows are stored, and when?

A receipt lets a box forget, so it only ever repeats what the store says. Of several collectors on
one database one sends them, whoever's rows they were. A box is told at most once a second, or
sooner when a quarter of what it may have under way is stored; and again when it sends what was
stored already, because then it has not heard.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from edgeagent.core.watermark import fleet_wide_limit, queue_needed
from edgeagent.fleet.places import Layout
from edgeagent.fleet.store import Store

_LOOK_S = 0.1
_LOOK_SHARE = 10.0
"""At most a tenth of the time goes into looking for progress."""
_EACH_S = 1.0
_COUNT_S = 10.0
"""So long a box that is silent may go on with an outdated share of the queue."""
_OVERLAP_MS = 10_000
"""Of several writers one may commit later what it stamped earlier."""


@dataclass
class _Box:
    """What one life of a box's spool has stored, and what it was told."""

    marks: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By stream: the watermark, and when the stream was touched."""
    turn: int = 0
    """The look at the store that last found something new of it."""
    told_turn: int = -1
    told_upto: int = 0
    told_u: int = 0
    told_s: float = float("-inf")

    @property
    def upto(self) -> int:
        """Rows that are stored or declared, of both streams."""
        return sum(wm for wm, _ in self.marks.values())


@dataclass(frozen=True)
class Telling:
    """How a receipt is sent, and the time: both clocks, monotonic seconds and UTC milliseconds."""

    tell: Callable[[str, bytes], None]
    now_s: Callable[[], float]
    now_ms: Callable[[], int]


class Receipts:
    """Not for use by two threads."""

    def __init__(self, store: Store, layout: Layout, queue: int, telling: Telling) -> None:
        self._store, self._layout, self._queue = store, layout, queue
        self._telling = telling
        self._boxes: dict[tuple[str, str], _Box] = {}
        self._sites: dict[str, str] = {}
        self._current: dict[str, str] = {}
        self._turn = self._since_ms = self._nodes = 0
        self._look_s = self._count_s = self._whole_s = float("-inf")
        self.sent = 0
        self.unreceipted = 0

    @property
    def queue_needed(self) -> int | None:
        """How long the broker's queue has to be for so many boxes; None if it is long enough."""
        needed = queue_needed(self._nodes)
        return needed if needed > self._queue else None

    @property
    def nodes(self) -> int:
        """How many boxes share the broker's queue."""
        return self._nodes

    def anew(self) -> None:
        """Tell every box again: the broker may have lost what was retained."""
        self._boxes.clear()
        self._current.clear()
        self._since_ms = 0
        self._look_s = self._count_s = self._whole_s = float("-inf")

    def tick(self) -> int:
        """Send what is due; return how many. Raises StoreAwayError."""
        now_s = self._telling.now_s()
        if now_s < self._look_s:
            return 0
        if not self._store.leads():
            self.anew()
            self._look_s = now_s + _EACH_S
            return 0
        self._count(now_s)
        self._look(now_s)
        due = [
            (node, epoch, self._boxes[node, epoch])
            for node, epoch in self._current.items()
            if self._due(self._boxes[node, epoch], now_s)
        ]
        for node, epoch, box in due:
            self._tell(node, epoch, box, now_s)
        took_s = self._telling.now_s() - now_s
        self._look_s = now_s + max(_LOOK_S, took_s * _LOOK_SHARE)
        return len(due)

    def _count(self, now_s: float) -> None:
        if now_s < self._count_s:
            return
        self._count_s = now_s + _EACH_S
        found = self._store.query("SELECT node, site FROM node WHERE retired_ms IS NULL")
        self._sites, self._nodes = dict(found), len(found)
        self.unreceipted = fleet_wide_limit(self._queue, self._nodes)

    def _look(self, now_s: float) -> None:
        """Find what is new since the last look, and now and then whatever that may have missed."""
        since_ms = self._since_ms
        if now_s >= self._whole_s:
            since_ms, self._whole_s = 0, now_s + _COUNT_S
        self._turn += 1
        changed = []
        for mark in sorted(self._store.watermarks(since_ms), key=lambda mark: mark.touched_ms):
            box = self._boxes.setdefault((mark.node, mark.epoch), _Box())
            known = box.marks.get(mark.stream)
            if known != (mark.wm, mark.touched_ms):
                box.marks[mark.stream] = (max(mark.wm, known[0] if known else 0), mark.touched_ms)
                box.turn = self._turn
                changed.append(mark)
                # The life of its spool that spoke last; earlier ones are over.
                self._current[mark.node] = mark.epoch
        if changed:
            # Of what is new, not of everything: a clock may have gone back.
            overlap_ms = _OVERLAP_MS if self._store.dialect == "postgres" else 0
            self._since_ms = changed[-1].touched_ms - overlap_ms

    def _due(self, box: _Box, now_s: float) -> bool:
        if box.turn == box.told_turn:
            return box.told_u != self.unreceipted and now_s - box.told_s >= _COUNT_S
        if box.told_u and box.upto - box.told_upto >= max(1, self.unreceipted // 4):
            return True
        return now_s - box.told_s >= _EACH_S

    def _tell(self, node: str, epoch: str, box: _Box, now_s: float) -> None:
        site = self._sites.get(node)
        if site is None:
            return  # because it was retired
        receipt = {
            "schema": "edgeagent.rx/1",
            "epoch": epoch,
            "wm": {stream: box.marks.get(stream, (0, 0))[0] for stream in ("R", "M")},
            "u": self.unreceipted,
            "ts": self._telling.now_ms(),
        }
        self._telling.tell(self._layout.receipts(site, node), json.dumps(receipt).encode())
        box.told_turn, box.told_upto = box.turn, box.upto
        box.told_u, box.told_s = self.unreceipted, now_s
        self.sent += 1
