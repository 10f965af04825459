"""Does a receipt say less than an earlier one because the collector's store is older than that?

A store that was restored from a backup, or begun anew, does not have what the box was told to
forget meanwhile. It says so with every receipt from then on. A receipt that was overtaken, or of
another collector that lags behind, says less as well, but only once, or for a moment. So less is
believed when it is said again, in a later receipt, after a while in which nothing else was said.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from edgeagent.core.delivery import Stream


class Told(NamedTuple):
    """What a receipt says of a stream, and when by the collector's clock."""

    stream: Stream
    upto: int
    ts_ms: float


@dataclass
class StepBack:
    """What was said so far. Times are seconds of a monotonic clock."""

    lasting_s: float
    _full_ts_ms: dict[Stream, float] = field(default_factory=dict)
    """When a receipt last said as much as ever."""
    _less: dict[Stream, tuple[float, Told]] = field(default_factory=dict)
    """Since when less is said, and what was said then."""

    def heard(self, told: Told, had: int, now_s: float) -> bool:
        """Return whether `told` stands for `had`, the most that was ever told."""
        stream = told.stream
        if told.upto >= had:
            self._less.pop(stream, None)
            self._full_ts_ms[stream] = max(told.ts_ms, self._full_ts_ms.get(stream, told.ts_ms))
            return False
        if told.ts_ms <= self._full_ts_ms.get(stream, told.ts_ms - 1):
            return False
        since_s, first = self._less.setdefault(stream, (now_s, told))
        if now_s - since_s < self.lasting_s or told.ts_ms <= first.ts_ms:
            return False
        del self._less[stream]
        return True
