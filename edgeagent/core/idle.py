"""Has the box been idle for a while, and not only at this moment?

A sweep takes the box from those who use it. So the guards look at the worst of the last while: the
most that others used, the least memory that was free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from edgeagent.core.commands import Box

_FEWEST = 2
"""Looks that it takes to know anything of a while."""


class Lookback:
    """What was seen of the box in the last `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._seen: deque[tuple[float, Box]] = deque()

    def add(self, at_s: float, box: Box) -> None:
        """Take in what is seen now; `at_s` is monotonic."""
        self._seen.append((at_s, box))
        while len(self._seen) > _FEWEST and self._seen[1][0] <= at_s - self._seconds:
            self._seen.popleft()

    @property
    def watched_s(self) -> float:
        """For how long it has been looked at, at most as long as is wanted."""
        seen = self._seen
        return min(self._seconds, seen[-1][0] - seen[0][0]) if seen else 0.0

    @property
    def wanted_s(self) -> float:
        """For how long it has to be looked at."""
        return self._seconds

    def covered(self) -> bool:
        """Whether it has been looked at for as long as is wanted."""
        return len(self._seen) >= _FEWEST and self.watched_s >= self._seconds

    def worst(self) -> Box:
        """Return the worst of each value; None where it was never known."""
        boxes = [box for _, box in self._seen]
        return Box(
            foreign_gpu=_of(max, (box.foreign_gpu for box in boxes)),
            foreign_cpu=_of(max, (box.foreign_cpu for box in boxes)),
            production_requests=_requests(boxes),
            temperature_c=_of(max, (box.temperature_c for box in boxes)),
            available_bytes=_least(boxes),
        )


def _requests(boxes: Sequence[Box]) -> int | None:
    """The most; None when the engine does not tell now, whatever it told before."""
    if not boxes or boxes[-1].production_requests is None:
        return None
    return max(box.production_requests or 0 for box in boxes)


def _least(boxes: Iterable[Box]) -> int | None:
    known = [box.available_bytes for box in boxes if box.available_bytes is not None]
    return min(known, default=None)


def _of(choose: Callable[[Iterable[float]], float], values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return choose(known) if known else None
