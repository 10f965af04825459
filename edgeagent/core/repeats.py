"""How many more repeats would settle what is not resolved?

An estimate from a few repeats is itself uncertain, and says so: beside the number stands what it
could as well be, without an upper end where there may be no difference at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from edgeagent.core.crossing import PairedLevel, critical
from edgeagent.core.stats import MIN_REPLICATES, t_quantile

MOST_REPEATS = 100
"""Nobody repeats a sweep more often than that: above it no number is given."""

_POWER = 0.8
"""Chance with which the repeats that are said to be needed would be enough."""

_Z = 1.2815515594457415
"""The normal distribution's quantile for a range of 80 %."""


@dataclass(frozen=True)
class Needed:
    """How many more repeats would probably do."""

    likely: int
    low: int
    high: int | None
    """80 % range of that number; no upper end when there may be no difference."""


def repeats_needed(levels: Sequence[PairedLevel]) -> Needed | None:
    """How many more repeats would resolve all of these levels four times in five.

    None when that cannot be said: for fewer than two repeats, when they do not differ at all, or
    when it takes more than 100.
    """
    each = [_for_level(level) for level in levels]
    known = [needed for needed in each if needed is not None]
    if not known or len(known) < len(each):
        return None
    highs = [needed.high for needed in known if needed.high is not None]
    return Needed(
        likely=max(needed.likely for needed in known),
        low=max(needed.low for needed in known),
        high=max(highs) if len(highs) == len(known) else None,
    )


def _for_level(level: PairedLevel) -> Needed | None:
    spread, middle = level.spread, level.middle
    if not spread or not middle:
        return None
    ratio = abs(middle) / spread
    enough = _pairs_for(ratio)
    if enough is None:
        return None
    # Both the mean and the spread come from few pairs (Hedges 1981, equation 8).
    error = _Z * math.sqrt(1 / level.count + ratio * ratio / (2 * (level.count - 1)))
    fewest, most = _pairs_for(ratio + error), _pairs_for(ratio - error)
    return Needed(
        likely=max(enough - level.count, 1),
        low=max((fewest or enough) - level.count, 1),
        high=None if most is None else max(most - level.count, 1),
    )


def _pairs_for(ratio: float) -> int | None:
    """The fewest pairs that resolve a difference of so many spreads four times in five."""
    for count in range(MIN_REPLICATES, MOST_REPEATS + 1):
        if ratio * math.sqrt(count) >= critical(count) + t_quantile(_POWER, count - 1):
            return count
    return None
