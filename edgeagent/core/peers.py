"""Does a box differ from its peers, or from its own past?

Peers are boxes of the same class with the same engine, model, quantization, context and settings.
What is compared is not one level but all of them: at each level the peers' median is what is usual
there, and the *offset* of a box is the median, over its levels, of the logarithm of its value over
the usual one. So a box that was measured at fewer levels is still comparable, and one odd level
makes no outlier.

An offset is judged against the others' offsets by their median and their median absolute deviation,
with the corrections for few values of Croux and Rousseeuw (1992). The box itself is left out of
both, so it cannot hide behind itself. It differs when it is `UNUSUAL` such deviations away
(Iglewicz and Hoaglin 1993) *and* by at least `LEAST`: among boxes that agree to a fraction of a
percent, half a percent is remarkable to a statistician and to nobody else. Below `MIN_PEERS` others
nothing is said.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

MIN_PEERS = 4
"""So many others it takes before any of them can be called usual."""

UNUSUAL = 3.5
LEAST = 0.10
"""A difference below ten percent is left to those who look for it."""

_NORMAL = 1.4826
"""The median absolute deviation of a normal distribution, times this, is its standard deviation."""

_FEW = {2: 1.196, 3: 1.495, 4: 1.363, 5: 1.206, 6: 1.200, 7: 1.140, 8: 1.129, 9: 1.107}

_FLOOR = 0.01
"""Spread is taken for at least one percent: boxes that agree better were measured less well."""

Verdict = Literal["higher", "lower", "usual", "too_few"]


def median(values: Iterable[float]) -> float | None:
    """The median; None for no values."""
    ordered = sorted(values)
    if not ordered:
        return None
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def spread(values: Sequence[float]) -> float | None:
    """The standard deviation that the median absolute deviation suggests; None below two values."""
    middle = median(values)
    if middle is None or len(values) < 2:  # noqa: PLR2004  # because one value has no spread
        return None
    away = median(abs(value - middle) for value in values) or 0.0
    count = len(values)
    return _NORMAL * _FEW.get(count, count / (count - 0.8)) * away


@dataclass(frozen=True)
class Standing:
    """How one offset stands among others. `factor` and `score` are None when others are too few."""

    verdict: Verdict
    others: int
    factor: float | None = None
    """The value over what is usual among the others: 0.8 is a fifth less."""
    score: float | None = None
    """How many of the others' deviations it is away; below zero for less."""


def standing(own: float, others: Sequence[float]) -> Standing:
    """Judge a logarithm among those of others, itself not among them."""
    middle, wide = median(others), spread(others)
    if len(others) < MIN_PEERS or middle is None or wide is None:
        return Standing("too_few", len(others))
    away = own - middle
    score = away / max(wide, _FLOOR)
    # The limit is the same factor both ways: a tenth less, or as much more as makes that tenth up.
    differs = abs(score) > UNUSUAL and abs(away) >= -math.log1p(-LEAST) * (1 - 1e-9)
    verdict: Verdict = "usual" if not differs else "higher" if away > 0 else "lower"
    return Standing(verdict, len(others), math.exp(away), score)


Levels = Mapping[int, float]
"""A value above zero for each concurrency."""


def usual(each: Iterable[Levels]) -> dict[int, float]:
    """The median at each level over everybody who was measured there."""
    found: defaultdict[int, list[float]] = defaultdict(list)
    for levels in each:
        for concurrency, value in levels.items():
            if value > 0:
                found[concurrency].append(value)
    return {concurrency: median(values) or 0.0 for concurrency, values in sorted(found.items())}


def offset(levels: Levels, usually: Levels) -> float | None:
    """The median, over the levels in both, of log(value / usual); None where none is in both."""
    return median(
        math.log(value / usually[concurrency])
        for concurrency, value in levels.items()
        if value > 0 and usually.get(concurrency, 0.0) > 0
    )


def among_peers(each: Mapping[str, Levels]) -> dict[str, Standing]:
    """How each box stands among the others of its kind; boxes without a value are left out."""
    usually = usual(each.values())
    found = sorted(
        (own, name) for name, levels in each.items() if (own := offset(levels, usually)) is not None
    )
    # In order, so that the medians of what is left of them cost no sorting.
    offsets = [own for own, _ in found]
    return {
        name: standing(own, offsets[:place] + offsets[place + 1 :])
        for place, (own, name) in enumerate(found)
    }


def against_past(now: Levels, past: Sequence[Levels]) -> Standing:
    """How a measurement stands among the earlier ones of the same box."""
    usually = usual(past)
    own = offset(now, usually)
    before = [found for levels in past if (found := offset(levels, usually)) is not None]
    if own is None:
        return Standing("too_few", 0)
    return standing(own, before)
