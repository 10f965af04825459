"""What do prefix reuse and speculation each give, and what do they give together?

At each concurrency an engine is measured in all four combinations of prefix cache {off, on} and
speculation {off, X}, in every block (repeat). On the logarithmic scale gains add:

    gain of both = gain of the cache x gain of speculation x interaction

A factor says how many times better a metric is: more tokens a second, less time to the first token.
`prefix_cache` and `speculation` are averages over the other one's settings (main effects); the
interaction is how much of the product is left when both are on. One value a block, Student's t over
the blocks.

    add         the interaction is within 10 % of 1: the gains multiply (their logarithms add)
    overlap     it is below 1: both together give less than the product
    conflict    as overlap, and with both on it is worse than with the better one alone
    reinforce   it is above 1: both together give more than the product
    unresolved  the interval leaves more than one of these open
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from edgeagent.core.comparison import DIRECTIONS, factor_of, interval_of_factor
from edgeagent.core.crossing import PairedLevel
from edgeagent.core.curves import Point
from edgeagent.core.repeats import repeats_needed
from edgeagent.core.stats import mean

Interplay = Literal["add", "overlap", "conflict", "reinforce", "unresolved"]

SAME = math.log(1.1)
"""Gains that multiply to within a tenth add, for all purposes of a buyer."""

EFFECTS_BY = ("output_tokens_per_s", "ttft_s.p50", "ttft_s.p95")
"""What effects are given for."""

PROOFS = ("draft_acceptance", "accepted_per_draft", "cached_prompt_fraction")
"""What a point must carry besides: they prove that speculation and prefix reuse took place."""


@dataclass(frozen=True)
class Factor:
    """How many times better; the interval is null below three repeats."""

    factor: float | None = None
    ci95: tuple[float, float] | None = None


@dataclass(frozen=True)
class Effect:
    """Both factors at one concurrency of one engine, by one metric."""

    engine: str
    concurrency: int
    metric: str
    speculation_kind: str
    replicates: int
    prefix_cache: Factor
    speculation: Factor
    interaction: Factor
    prefix_cache_alone: Factor
    speculation_alone: Factor
    both: Factor
    """With both on, against both off."""
    interplay: Interplay = "unresolved"
    replicates_needed: int | None = None
    draft_acceptance: float | None = None
    """Of the cells with speculation, on average: accepted over drafted tokens."""
    accepted_per_draft: float | None = None
    cached_prompt_fraction: float | None = None
    """Of the cells with the prefix cache on, on average."""
    speculation_proved: bool | None = None
    """Whether every cell with speculation drafted; null when there is none."""
    reason: str | None = None
    text: str = ""


def effects(points: Sequence[Point], metrics: Sequence[str] = EFFECTS_BY) -> tuple[Effect, ...]:
    """The effects wherever all four combinations were measured. Points carry `PROOFS` as well."""
    keys = dict.fromkeys(
        (point.engine, point.speculation, point.concurrency)
        for point in points
        if point.speculation != "off"
    )
    return tuple(
        effect
        for engine, kind, concurrency in keys
        for square in [_square(points, engine, kind, concurrency)]
        if len({(point.prefix_cache, point.speculation) for point in square}) == 4  # noqa: PLR2004  # because two times two
        for metric in metrics
        for effect in [_effect(square, metric)]
        if effect.replicates
    )


def sentence(effect: Effect) -> str:
    """The effect in words."""
    start = (
        f"{effect.engine} at {effect.concurrency}: prefix reuse {_times(effect.prefix_cache_alone)}"
        f", {effect.speculation_kind} speculation {_times(effect.speculation_alone)}, both "
        f"{_times(effect.both)}"
    )
    ends: Mapping[Interplay, str] = {
        "add": "the two gains add (they multiply to what both give)",
        "overlap": "the two gains overlap: both give less than the product",
        "conflict": "they conflict: both together are worse than the better one alone",
        "reinforce": "they reinforce each other: both give more than the product",
        "unresolved": f"whether they add is unresolved: {effect.reason}",
    }
    return f"{start}; {ends[effect.interplay]}"


# ---------------------------------------------------------------------------------- one square


def _square(points: Iterable[Point], engine: str, kind: str, concurrency: int) -> tuple[Point, ...]:
    return tuple(
        point
        for point in points
        if (point.engine, point.concurrency) == (engine, concurrency)
        and point.speculation in {"off", kind}
    )


def _effect(square: Sequence[Point], metric: str) -> Effect:
    kind = next(point.speculation for point in square if point.speculation != "off")
    blocks = _blocks(square, kind, metric)
    effect = Effect(
        engine=square[0].engine,
        concurrency=square[0].concurrency,
        metric=metric,
        speculation_kind=kind,
        replicates=len(blocks),
        prefix_cache=_factor(_over(blocks, lambda b: (b.cache + b.both - b.spec) / 2)),
        speculation=_factor(_over(blocks, lambda b: (b.spec + b.both - b.cache) / 2)),
        interaction=_factor(_over(blocks, _left_over)),
        prefix_cache_alone=_factor(_over(blocks, lambda b: b.cache)),
        speculation_alone=_factor(_over(blocks, lambda b: b.spec)),
        both=_factor(_over(blocks, lambda b: b.both)),
    )
    effect = _judged(_with_proof(effect, square), blocks)
    return replace(effect, text=sentence(effect))


@dataclass(frozen=True)
class _Block:
    """Logarithms of the gains over both off, in one block."""

    cache: float
    spec: float
    both: float


def _blocks(square: Sequence[Point], kind: str, metric: str) -> Mapping[int, _Block]:
    """By block; those in which a combination has no value, or none above zero, are left out."""
    sign = 1 if DIRECTIONS[metric] == "higher" else -1
    logs = {
        (point.block, point.prefix_cache, point.speculation): sign * math.log(value)
        for point in square
        for value in [point.values.get(metric)]
        if value is not None and value > 0
    }
    found = {}
    for block in sorted({point.block for point in square}):
        four = [logs.get((block, cache, spec)) for cache in ("off", "on") for spec in ("off", kind)]
        if None not in four:
            neither, spec, cache, both = (value or 0.0 for value in four)
            found[block] = _Block(cache - neither, spec - neither, both - neither)
    return found


def _left_over(block: _Block) -> float:
    return block.both - block.cache - block.spec


def _over(blocks: Mapping[int, _Block], gain: Callable[[_Block], float]) -> PairedLevel:
    return PairedLevel(1, {number: gain(block) for number, block in blocks.items()})


def _factor(gains: PairedLevel) -> Factor:
    if not gains.count:
        return Factor()
    return Factor(factor_of(gains.middle), interval_of_factor(gains.middle, gains.half_width()))


def _with_proof(effect: Effect, square: Sequence[Point]) -> Effect:
    drafting = [p.values for p in square if p.speculation == effect.speculation_kind]
    shares = [values.get("draft_acceptance") for values in drafting]
    lengths = [values.get("accepted_per_draft") for values in drafting]
    cached = [p.values.get("cached_prompt_fraction") for p in square if p.prefix_cache == "on"]
    return replace(
        effect,
        draft_acceptance=mean([share for share in shares if share is not None]),
        accepted_per_draft=mean([length for length in lengths if length is not None]),
        cached_prompt_fraction=mean([share for share in cached if share is not None]),
        speculation_proved=None not in shares,
    )


# ---------------------------------------------------------------------------------- the verdict


def _judged(effect: Effect, blocks: Mapping[int, _Block]) -> Effect:
    if not effect.speculation_proved:
        return replace(
            effect, reason="the engine did not show that it drafted in every cell with speculation"
        )
    gains = _over(blocks, _left_over)
    half = gains.half_width()
    if half is None:
        return replace(effect, reason="an interval takes three repeats of all four combinations")
    low, high = gains.middle - half, gains.middle + half
    if low > -SAME and high < SAME:
        return replace(effect, interplay="add")
    if low > 0:
        return replace(effect, interplay="reinforce")
    if high < 0:
        return replace(effect, interplay="conflict" if _worse_together(blocks) else "overlap")
    needed = repeats_needed([gains])
    return replace(
        effect,
        reason=f"together they give {_times(_factor(gains))} of the product",
        replicates_needed=None if needed is None else needed.likely,
    )


def _worse_together(blocks: Mapping[int, _Block]) -> bool:
    """Whether both on is resolved as worse than the better one alone."""
    alone: tuple[Callable[[_Block], float], ...] = (lambda b: b.cache, lambda b: b.spec)
    better = max(alone, key=lambda gain: _over(blocks, gain).middle)
    lost = _over(blocks, lambda b: b.both - better(b))
    return lost.resolved() < 0


def _times(factor: Factor) -> str:
    if factor.factor is None:
        return "unknown"
    if factor.ci95 is None:
        return f"{factor.factor:.2f}x"
    low, high = factor.ci95
    return f"{factor.factor:.2f}x ({low:.2f} to {high:.2f})"
