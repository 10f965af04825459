"""Between which concurrencies does one side stop being the better one?

What is compared is a difference in every block (repeat) at every level: the logarithm of a / b,
turned so that above zero a is better. Between the levels it is interpolated over log2 of
concurrency, block by block, and the t test over the blocks is inverted (Fieller 1954): the interval
begins where a is no longer resolved as better and ends where b begins to be. For normal noise that
is exact with any number of blocks and whatever the levels have in common, since at the true
crossing the interpolated differences have the mean zero.

Between two levels nobody knows the curve. Several ways through them are taken: the straight line
and the parabolas through a third level on either side; the interval holds what any of them says. In
the outermost gaps, where a bend is seen from one side only, twice that bend is allowed for. The
straight line alone covers a crossing of curves that saturate far too seldom (tests/long). Where no
third level shows a bend, or a level has no logarithms, the interval is the whole gap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgeagent.core.stats import MIN_REPLICATES, deviation, mean, t_quantile

CONFIDENCE = 0.95

_BARELY = 1.5
"""An end resolved by less than this many half widths may be so by luck ..."""

_WIDER = 0.99
"""... and what made it so (a spread that is small by chance) makes the interval narrow as well: it
is read only if the ends are resolved. Then this confidence keeps the 95 % (tests/long)."""

_STEPS = 16
"""Places looked at between two levels before a bound is narrowed down."""

_HALVINGS = 40

_EDGE_BEND = 2.0
"""How much of the neighbouring bend is allowed for where it is seen from one side only."""


def critical(count: int, confidence: float = CONFIDENCE) -> float:
    """Student's t for the mean of so many values, both sides."""
    return t_quantile(0.5 + confidence / 2, count - 1)


@dataclass(frozen=True)
class PairedLevel:
    """The paired differences of two sides at one concurrency; above zero a is better."""

    concurrency: int
    differences: Mapping[int, float]
    """By block."""
    logarithmic: bool = True
    """False where a value had no logarithm and plain differences stand in."""

    @property
    def count(self) -> int:
        """How many blocks have a difference."""
        return len(self.differences)

    @property
    def middle(self) -> float:
        """The mean difference; zero for none."""
        return mean(list(self.differences.values())) or 0.0

    @property
    def spread(self) -> float | None:
        """The standard deviation of one difference; None below two."""
        return deviation(list(self.differences.values()))

    def half_width(self, confidence: float = CONFIDENCE) -> float | None:
        """Of the t interval of the mean difference; None below three pairs."""
        spread = self.spread
        if spread is None or self.count < MIN_REPLICATES:
            return None
        return critical(self.count, confidence) * spread / math.sqrt(self.count)

    def resolved(self, confidence: float = CONFIDENCE) -> int:
        """1 where a is better, -1 where b is, 0 where the interval holds zero."""
        half = self.half_width(confidence)
        if half is None or abs(self.middle) <= half:
            return 0
        return 1 if self.middle > 0 else -1


def crossing_interval(levels: Sequence[PairedLevel], last: int, first: int) -> tuple[float, float]:
    """The 95 % interval of the crossing, as concurrencies.

    a is resolved as better at the level with index `last`, b at the one with index `first`, above.
    """
    low, high = math.inf, -math.inf
    confidence = _confidence(levels[0], levels[-1])
    for gap in range(last, first):
        begin, end = _x(levels[gap]), _x(levels[gap + 1])
        for way in _ways(levels, gap, confidence):
            a_lost, b_gained = way.undecided()
            if a_lost is not None:
                low = min(low, begin + (end - begin) * a_lost)
            if b_gained is not None:
                high = max(high, begin + (end - begin) * b_gained)
    # The wider interval, and rounding, must not carry a bound over the level that it starts from.
    return (
        float(max(2**low, levels[last].concurrency)),
        float(min(2**high, levels[first].concurrency)),
    )


def _confidence(*ends: PairedLevel) -> float:
    """How wide the interval must be so that it holds in 95 % of the cases in which it is given."""
    halves = [(abs(end.middle), end.half_width() or 0.0) for end in ends]
    return _WIDER if any(middle < _BARELY * half for middle, half in halves) else CONFIDENCE


def _x(level: PairedLevel) -> float:
    return math.log2(level.concurrency)


# ------------------------------------------------------------------------- ways through a gap


@dataclass(frozen=True)
class _Unknown:
    """A gap in which nothing can be interpolated: any place in it may be the crossing."""

    def undecided(self) -> tuple[float | None, float | None]:
        return 0.0, 1.0


@dataclass(frozen=True)
class _Way:
    """One way through two levels: the moments of the blocks' differences there, and a bend."""

    means: tuple[float, ...]
    covariances: tuple[tuple[float, ...], ...]
    critical: float
    """Of the mean over the blocks: t over the root of their number."""
    sag: tuple[float, ...]
    """What each level weighs in the bend; all zero for the straight line."""

    def undecided(self) -> tuple[float | None, float | None]:
        """Where in the gap (0 to 1) a is first not better, and where b is last not better."""
        gained = self._lost(-1)
        return self._lost(1), None if gained is None else 1 - gained

    def _lost(self, sign: int) -> float | None:
        """How far from its own end of the gap a side is better; None: all the way through."""
        held = 0.0
        for step in range(_STEPS + 1):
            gone = step / _STEPS
            if self._margin(gone, sign) <= 0:
                return self._narrowed(held, gone, sign)
            held = gone
        return None

    def _narrowed(self, held: float, gone: float, sign: int) -> float:
        for _ in range(_HALVINGS if gone > held else 0):
            middle = (held + gone) / 2
            if self._margin(middle, sign) > 0:
                held = middle
            else:
                gone = middle
        return held

    def _margin(self, way: float, sign: int) -> float:
        """By how much a side is resolved as better, so far from its own end; below zero: not."""
        weights = self._weights(way if sign > 0 else 1 - way)
        middle = sum(w * m for w, m in zip(weights, self.means, strict=True))
        variance = sum(
            left * right * covariance
            for left, row in zip(weights, self.covariances, strict=True)
            for right, covariance in zip(weights, row, strict=True)
        )
        return sign * middle - self.critical * math.sqrt(max(variance, 0.0))

    def _weights(self, place: float) -> list[float]:
        straight = (1 - place, place, 0.0)
        bend = place * (place - 1)
        return [line + bend * sag for line, sag in zip(straight, self.sag, strict=False)]


def _ways(
    levels: Sequence[PairedLevel], gap: int, confidence: float
) -> list[_Way] | list[_Unknown]:
    """Every way through the gap after the level with this index."""
    pair = [levels[gap], levels[gap + 1]]
    thirds = [
        levels[n]
        for n in (gap - 1, gap + 2)
        if 0 <= n < len(levels) and levels[n].logarithmic and pair[0].logarithmic
    ]
    allowance = 1.0 if len(thirds) > 1 else _EDGE_BEND
    bent = [_way([*pair, third], allowance, confidence) for third in thirds]
    ways = [way for way in (_way(pair, 0.0, confidence), *bent) if way is not None]
    # With the straight line alone a bend cannot be excluded: the gap is all that is known.
    return ways if len(ways) > 1 and pair[1].logarithmic else [_Unknown()]


def _way(levels: Sequence[PairedLevel], bend: float, confidence: float) -> _Way | None:
    """The way through the first two levels with so many times the bend that the third one shows.

    None when fewer than three blocks have a difference at all of them.
    """
    blocks = [k for k in levels[0].differences if all(k in level.differences for level in levels)]
    if len(blocks) < MIN_REPLICATES:
        return None
    rows = [[level.differences[block] for block in blocks] for level in levels]
    means = [math.fsum(row) / len(row) for row in rows]
    away = [[value - middle for value in row] for row, middle in zip(rows, means, strict=True)]
    covariances = tuple(
        tuple(math.fsum(map(float.__mul__, left, right)) / (len(blocks) - 1) for right in away)
        for left in away
    )
    return _Way(
        means=tuple(means),
        covariances=covariances,
        critical=critical(len(blocks), confidence) / math.sqrt(len(blocks)),
        sag=_sag([_x(level) for level in levels], bend),
    )


def _sag(xs: Sequence[float], bend: float) -> tuple[float, ...]:
    """What each level weighs in the bend, for a gap of length one.

    The parabola through three points is the straight line through two of them plus (x - x0)(x - x1)
    times the second divided difference, which is linear in the three values (Newton).
    """
    if len(xs) == 2:  # noqa: PLR2004  # because two points make a straight line
        return (0.0, 0.0)
    begin, end, third = xs
    scale = bend * (end - begin) ** 2
    return (
        scale / ((begin - end) * (begin - third)),
        scale / ((end - begin) * (end - third)),
        scale / ((third - begin) * (third - end)),
    )
