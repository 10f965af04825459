"""At which concurrency does one curve overtake the other, and how sure is that?

Two curves (a metric over concurrency, one value a block) are compared pair by pair: at every level
and in every block the difference of their logarithms. A block is a repeat, for which each engine is
started anew; what the box does to both sides of a block leaves the difference.

A level is *resolved* when Student's t interval (95 %) of its differences leaves out zero; that
takes three pairs. Every outcome but `unresolved` needs both the smallest and the largest level
resolved:
    a_always, b_always   every level is resolved, in the same direction
    crosses              the two ends are resolved in opposite directions, and the levels in between
                         change from one direction to the other once, if they are resolved
So two identical engines have at most 5 % for any outcome, however many levels there are and however
these depend on each other: their smallest level alone would have to be resolved by chance.

Where two curves cross: core/crossing.py. Values without a logarithm (a goodput of zero) are
compared as they are: such a level can be resolved, but it has no factor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

from edgeagent.core.crossing import CONFIDENCE, PairedLevel, crossing_interval
from edgeagent.core.repeats import Needed, repeats_needed
from edgeagent.core.stats import MIN_REPLICATES

Outcome = Literal["crosses", "a_always", "b_always", "unresolved"]
Side = Literal["a", "b"]
Direction = Literal["higher", "lower"]

DIRECTIONS: Mapping[str, Direction] = {
    "output_tokens_per_s": "higher",
    "total_tokens_per_s": "higher",
    "request_throughput_per_s": "higher",
    "goodput_per_s": "higher",
    "good_fraction": "higher",
    "energy.per_output_token_j": "lower",
    "energy.net_per_output_token_j": "lower",
    "energy.per_request_j": "lower",
    "energy.net_per_request_j": "lower",
    **{
        f"{name}.{part}": "lower"
        for name in ("ttft_s", "ttfat_s", "itl_s", "tpot_s", "e2e_s", "gap_max_s", "headers_s")
        for part in ("mean", "p50", "p90", "p95", "p99", "max")
    },
}
"""Every metric that can be compared, and which of its values are the better ones."""

_SMALL = math.log(1.25)
"""A difference below a quarter is worth saying that it can be excluded."""

_BEYOND = 700.0
"""The exponential of more than this is no number."""

_NOISE = "the differences are small against the spread of the repeats"


@dataclass(frozen=True)
class Curve:
    """One side: a metric over concurrency, a value for each block."""

    name: str
    """As sentences call it."""
    values: Mapping[int, Sequence[float | None]]
    """By concurrency; the place in the list is the block, None where it has no value."""


@dataclass(frozen=True)
class LevelDifference:
    """Both sides at one concurrency."""

    concurrency: int
    replicates: int
    """Blocks in which both sides have a value."""
    factor: float | None
    """a / b, the geometric mean over the blocks; null where a value has no logarithm."""
    ci95: tuple[float, float] | None
    better: Side | None
    """The side that is better at this level, looked at by itself; null where not resolved."""
    note: str | None = None


@dataclass(frozen=True)
class Comparison:
    """What two curves of one metric say about each other.

    In `crosses`, `a` is the side that is better at the lower concurrencies (the sides are exchanged
    where needed), `low` and `high` are the concurrencies between which they cross (95 %), and
    `a_better_up_to`, `b_better_from` the listed levels at which the difference is resolved.
    """

    metric: str
    a: str
    b: str
    outcome: Outcome = "unresolved"
    prefix_cache: str | None = None
    speculation: str | None = None
    low: float | None = None
    high: float | None = None
    a_better_up_to: int | None = None
    b_better_from: int | None = None
    replicates_needed: int | None = None
    """How many more would settle it, 4 times in 5, if what was seen so far is typical."""
    replicates_needed_range: tuple[int, int | None] | None = None
    """What that number could as well be (80 %); no upper end when there may be no difference."""
    reason: str | None = None
    """Why it is unresolved."""
    text: str = ""
    """The outcome as a sentence."""
    levels: tuple[LevelDifference, ...] = ()
    notes: tuple[str, ...] = ()
    """What else to know: levels that one side lacks, values without a logarithm."""


def compare(a: Curve, b: Curve, metric: str) -> Comparison:
    """Compare two curves of one metric. Raises KeyError when it has no better direction."""
    sign = 1 if DIRECTIONS[metric] == "higher" else -1
    both = sorted({*a.values} & {*b.values})
    levels = [paired(n, a.values[n], b.values[n], sign) for n in both]
    found = Comparison(
        metric, a.name, b.name, levels=tuple(_shown(level, sign) for level in levels)
    )
    found = replace(found, notes=(*_one_sided(a, b), *_remarks(found.levels)))
    measured = [level for level in levels if level.count]
    if measured and measured[0].resolved() < 0 < measured[-1].resolved():
        return compare(b, a, metric)
    found = _decided(found, measured) if measured else replace(found, reason=_nothing(a, b))
    return replace(found, text=sentence(found))


def sentence(found: Comparison) -> str:
    """The outcome in words, without the metric's name."""
    if found.outcome == "crosses":
        return (
            f"{found.a} is better up to {found.a_better_up_to}, {found.b} from "
            f"{found.b_better_from}; they cross {_between(found)}"
        )
    if found.outcome == "unresolved":
        return f"unresolved: {_open(found)}"
    levels = [level.concurrency for level in found.levels if level.better]
    better = found.a if found.outcome == "a_always" else found.b
    if len(levels) == 1:
        return f"{better} is better at {levels[0]}, the only concurrency compared"
    return f"{better} is better at every concurrency measured"


def paired(
    concurrency: int, a: Sequence[float | None], b: Sequence[float | None], sign: int = 1
) -> PairedLevel:
    """The differences of the blocks in which both have a value; `sign` -1: lower is better."""
    pairs = {
        block: (left, right)
        for block, (left, right) in enumerate(zip(a, b, strict=False))
        if left is not None and right is not None
    }
    if all(value > 0 for pair in pairs.values() for value in pair):
        logs = {block: math.log(pair[0]) - math.log(pair[1]) for block, pair in pairs.items()}
        return PairedLevel(concurrency, {block: sign * log for block, log in logs.items()})
    plain = {block: sign * (left - right) for block, (left, right) in pairs.items()}
    return PairedLevel(concurrency, plain, logarithmic=False)


# ---------------------------------------------------------------------------------- outcome


def _decided(found: Comparison, levels: Sequence[PairedLevel]) -> Comparison:
    signs = [level.resolved() for level in levels]
    directions = [sign for sign, _ in groupby(sign for sign in signs if sign)]
    if len(directions) > 2:  # noqa: PLR2004  # because one curve can overtake another only once
        return replace(found, reason=f"they cross more than once: {_who_where(found, levels)}")
    if all(signs) and len(directions) == 1:
        return replace(found, outcome="a_always" if signs[0] > 0 else "b_always")
    if signs[0] * signs[-1] < 0:
        return _crossing(found, levels)
    needed = repeats_needed(_to_settle(levels))
    found = replace(found, reason=_undecided(found, levels))
    return found if needed is None else _with_repeats(found, needed)


def _crossing(found: Comparison, levels: Sequence[PairedLevel]) -> Comparison:
    signs = [level.resolved() for level in levels]
    last = next(n for n, sign in enumerate(signs) if sign <= 0) - 1
    first = len(signs) - next(n for n, sign in enumerate(reversed(signs)) if sign >= 0)
    low, high = crossing_interval(levels, last, first)
    return replace(
        found,
        outcome="crosses",
        low=low,
        high=high,
        a_better_up_to=levels[last].concurrency,
        b_better_from=levels[first].concurrency,
    )


def _with_repeats(found: Comparison, needed: Needed) -> Comparison:
    return replace(
        found,
        replicates_needed=needed.likely,
        replicates_needed_range=(needed.low, needed.high),
    )


def _to_settle(levels: Sequence[PairedLevel]) -> list[PairedLevel]:
    """The levels that more repeats would have to resolve for the outcome that the means suggest."""
    ends_differ = levels[0].middle * levels[-1].middle < 0
    wanted = (levels[0], levels[-1]) if ends_differ else levels
    return [level for level in wanted if not level.resolved()]


# ---------------------------------------------------------------------------------- wording


def _shown(level: PairedLevel, sign: int) -> LevelDifference:
    factor, ci95 = None, None
    if level.logarithmic and level.count:
        middle, half = sign * level.middle, level.half_width()
        factor, ci95 = factor_of(middle), interval_of_factor(middle, half)
    better: Mapping[int, Side | None] = {1: "a", 0: None, -1: "b"}
    return LevelDifference(
        concurrency=level.concurrency,
        replicates=level.count,
        factor=factor,
        ci95=ci95,
        better=better[level.resolved()],
        note=_remark(level),
    )


def _remark(level: PairedLevel) -> str | None:
    if not level.logarithmic:
        return "zero has no logarithm: compared by plain differences, without a factor"
    if not level.count:
        return "no repeat in which both have a value"
    if level.count < MIN_REPLICATES:
        return f"an interval takes three repeats in which both have a value, not {level.count}"
    return None


def _remarks(levels: Sequence[LevelDifference]) -> list[str]:
    noted = [(level.note, level.concurrency) for level in levels if level.note]
    return [
        f"at {listed([n for _, n in group])}: {note}"
        for note, group in ((note, list(g)) for note, g in groupby(sorted(noted), lambda n: n[0]))
    ]


def _one_sided(a: Curve, b: Curve) -> list[str]:
    return [
        f"at {listed(alone)}: measured for {one.name} only"
        for one, other in ((a, b), (b, a))
        for alone in [sorted({*one.values} - {*other.values})]
        if alone
    ]


def _nothing(a: Curve, b: Curve) -> str:
    empty = [
        curve.name
        for curve in (a, b)
        if all(value is None for values in curve.values.values() for value in values)
    ]
    if empty:
        return f"no value of it for {' or '.join(empty)}"
    return "no concurrency at which both have a value in the same repeat"


def _undecided(found: Comparison, levels: Sequence[PairedLevel]) -> str:
    most = max(level.count for level in levels)
    if most == 1:
        return "one repeat has no spread, measure at least three"
    if most < MIN_REPLICATES:
        return "two repeats are too few for an interval, measure at least three"
    if not any(any(level.differences.values()) for level in levels):
        return "both have the same value in every repeat"
    parts = _who_where(found, levels)
    if parts:
        return parts
    widest = max(_widest(level, _together(levels)) for level in levels)
    if widest < _SMALL:
        return (
            "no difference was seen; if there is one, it is below "
            f"{math.ceil(100 * math.expm1(widest))} % at every concurrency"
        )
    return _NOISE


def _who_where(found: Comparison, levels: Sequence[PairedLevel]) -> str:
    """Who is better where, by intervals that hold for all levels together; empty for nowhere."""
    together = _together(levels)
    signs = [(level.resolved(together), level.concurrency) for level in levels]
    parts = [
        f"{found.a if sign > 0 else found.b} is better at {listed([n for _, n in group])}"
        for sign, group in ((sign, list(g)) for sign, g in groupby(signs, lambda pair: pair[0]))
        if sign
    ]
    return ", ".join(parts)


def _together(levels: Sequence[PairedLevel]) -> float:
    """The confidence of each level at which all of them hold together (Bonferroni)."""
    return 1 - (1 - CONFIDENCE) / len(levels)


def _widest(level: PairedLevel, confidence: float) -> float:
    half = level.half_width(confidence)
    if half is None or not level.logarithmic:
        return math.inf
    return abs(level.middle) + half


def _open(found: Comparison) -> str:
    if found.replicates_needed is None:
        return str(found.reason)
    count = found.replicates_needed
    more = f"about {count} more repeat{'s' if count > 1 else ''} would settle it"
    between = found.replicates_needed_range
    if between is not None and between != (count, count):
        low, high = between
        more += f" ({low} to {high})" if high else f" ({low} or more, perhaps never)"
    return more if found.reason == _NOISE else f"{more}; {found.reason}"


def _between(found: Comparison) -> str:
    assert found.low is not None and found.high is not None  # noqa: S101, PT018  # because a crossing has bounds
    low, high = outwards(found.low, found.high)
    return f"between {low} and {high} (95 %)" if low != high else f"at {low} (95 %)"


def factor_of(logarithm: float) -> float | None:
    """The factor of a logarithm; None where it is beyond all numbers."""
    return math.exp(logarithm) if abs(logarithm) <= _BEYOND else None


def interval_of_factor(middle: float, half: float | None) -> tuple[float, float] | None:
    """The interval of a factor from that of its logarithm; None where it is beyond all numbers."""
    if half is None or abs(middle) + half > _BEYOND:
        return None
    return math.exp(middle - half), math.exp(middle + half)


def outwards(low: float, high: float) -> tuple[str, str]:
    """Bounds rounded outwards, to as many digits as their distance deserves."""
    width = high - low
    digits = 0 if width >= 2 else 1 if width >= 0.2 else 2  # noqa: PLR2004  # because of how people read
    scale = 10**digits
    ends = math.floor(low * scale + 1e-6) / scale, math.ceil(high * scale - 1e-6) / scale
    return f"{ends[0]:g}", f"{ends[1]:g}"


def listed(numbers: Sequence[int]) -> str:
    """`1, 4 and 8`."""
    words = [str(number) for number in numbers]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
