"""Up to which concurrency does throughput grow, and what does the first token cost there?

The knee is the smallest level above which no level gives more than 5 % more. Between what of two
readings? Levels are compared in pairs over the blocks (repeats), as everywhere:
    low    the smallest level that is not shown to be outgrown (no larger level is resolved as
           better by more than 5 % on average)
    high   the smallest level of which it is shown that no larger one gives more than 5 % more
Few or noisy repeats make the two differ; they never make a knee out of what is not known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from edgeagent.core.comparison import Curve, paired
from edgeagent.core.crossing import PairedLevel
from edgeagent.core.curves import Point, curve
from edgeagent.core.stats import MIN_REPLICATES, mean

GROWTH = math.log(1.05)
"""More than this is growth."""

KNEE_BY = ("output_tokens_per_s", "ttft_s.p50")
"""What a point must carry for the knee."""


@dataclass(frozen=True)
class Knee:
    """Where throughput stops growing."""

    engine: str
    outcome: Literal["found", "still_growing", "unresolved"]
    prefix_cache: str | None = None
    speculation: str | None = None
    concurrency: int | None = None
    """Up to here the quoted throughput holds."""
    low: int | None = None
    high: int | None = None
    output_tokens_per_s: float | None = None
    """There, the mean over the repeats."""
    ttft_s: float | None = None
    """There: the median of each repeat, averaged."""
    reason: str | None = None
    text: str = ""


def knees(points: Sequence[Point]) -> tuple[Knee, ...]:
    """The knee of every engine and setting; points carry `KNEE_BY`."""
    groups: dict[tuple[str, str, str], list[Point]] = {}
    for point in points:
        key = (point.engine, point.prefix_cache, point.speculation)
        groups.setdefault(key, []).append(point)
    return tuple(
        knee(curve(own, engine, KNEE_BY[0]), curve(own, engine, KNEE_BY[1]), cache, speculation)
        for (engine, cache, speculation), own in groups.items()
    )


def knee(
    throughput: Curve,
    ttft: Curve,
    prefix_cache: str | None = None,
    speculation: str | None = None,
) -> Knee:
    """The knee of one throughput curve, and the time to the first token there."""
    values = {
        level: known
        for level, column in sorted(throughput.values.items())
        if (known := [value for value in column if value is not None and value > 0])
    }
    name = throughput.name
    called = name if prefix_cache is None else f"{name}, prefix cache {prefix_cache}"
    if speculation not in {None, "off"}:
        called += f", speculation {speculation}"

    def unresolved(reason: str) -> Knee:
        text = f"{called}: where its throughput stops growing is unresolved: {reason}"
        return Knee(name, "unresolved", prefix_cache, speculation, reason=reason, text=text)

    if len(values) < 2:  # noqa: PLR2004  # because one level neither grows nor stops
        return unresolved("it takes two levels with a throughput")
    if min(map(len, values.values())) < MIN_REPLICATES:
        return unresolved("it takes three repeats of every level")
    levels = list(values)
    shown = _Growth({level: throughput.values[level] for level in levels})
    at = next(level for level in levels if not shown.outgrown(level, "on_average"))
    low = next(level for level in levels if not shown.outgrown(level, "certainly"))
    high = next(level for level in levels if not shown.outgrown(level, "possibly"))
    rate = mean(values[at])
    first = mean([v for v in ttft.values.get(at, ()) if v is not None])
    growing = low == levels[-1]
    return Knee(
        engine=name,
        outcome="still_growing" if growing else "found",
        prefix_cache=prefix_cache,
        speculation=speculation,
        concurrency=at,
        low=low,
        high=high,
        output_tokens_per_s=rate,
        ttft_s=first,
        text=_told(called, growing=growing, at=(low, at, high), rate=rate, first=first),
    )


@dataclass(frozen=True)
class _Growth:
    """How much more the larger levels give."""

    values: Mapping[int, Sequence[float | None]]

    def outgrown(self, level: int, how: Literal["certainly", "on_average", "possibly"]) -> bool:
        """Whether a larger level gives more than 5 % more."""
        larger = [other for other in self.values if other > level]
        return any(self._more(self._gain(level, other), how) for other in larger)

    def _gain(self, level: int, other: int) -> PairedLevel:
        return paired(other, self.values[other], self.values[level])

    def _more(self, gain: PairedLevel, how: str) -> bool:
        half = gain.half_width()
        if how == "on_average":
            return gain.middle > GROWTH
        if how == "certainly":
            return gain.middle > GROWTH and gain.resolved() > 0
        return half is None or gain.middle + half > GROWTH


def _told(
    name: str, *, growing: bool, at: tuple[int, int, int], rate: float | None, first: float | None
) -> str:
    low, place, high = at
    there = f"{rate:.1f} output tokens/s" if rate is not None else "a throughput"
    wait = f"; the first token then takes {first:.2f} s (median)" if first is not None else ""
    if growing:
        return f"{name}: throughput still grows at {place}, the largest level: {there}{wait}"
    between = "" if low == high else f" ({low} to {high}, 95 %)"
    return f"{name}: the quoted throughput, {there}, holds up to {place}{between}{wait}"
