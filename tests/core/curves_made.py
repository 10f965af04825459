"""Curves drawn with a known truth: noise in every cell, drift of the box in every block."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from edgeagent.core.comparison import Comparison, Curve, compare

LEVELS = (1, 4, 8, 16, 32)
DRAWS = 1000
METRIC = "output_tokens_per_s"


@dataclass(frozen=True)
class Noise:
    """Standard deviations of logarithms: 0.03 is 3 %."""

    cell: float
    """Of each value."""
    box: float = 0.2
    """Of a block: both sides alike."""
    launch: float = 0.0
    """Of one side in one block, at all levels alike: one start of an engine."""


def straight(crossing: float, slope: float = 0.5) -> Callable[[float], float]:
    """log(a / b) over log2 of concurrency: a is better below the crossing."""
    return lambda octaves: -slope * (octaves - math.log2(crossing))


def equal(octaves: float) -> float:
    return 0.0 * octaves


def drawn(
    rng: Random, truth: Callable[[float], float], blocks: int, noise: Noise
) -> tuple[Curve, Curve]:
    """Two curves as a sweep would measure them."""
    a: dict[int, list[float]] = {level: [] for level in LEVELS}
    b: dict[int, list[float]] = {level: [] for level in LEVELS}
    for _ in range(blocks):
        box = rng.gauss(0, noise.box)
        starts = [rng.gauss(0, noise.launch) for _ in "ab"]
        for level in LEVELS:
            octaves = math.log2(level)
            common = 3 + 0.6 * octaves + box
            own = common + truth(octaves) + starts[0] + rng.gauss(0, noise.cell)
            a[level].append(math.exp(own))
            b[level].append(math.exp(common + starts[1] + rng.gauss(0, noise.cell)))
    return Curve("a", a), Curve("b", b)


def compared(
    seed: int, truth: Callable[[float], float], blocks: int, noise: Noise, draws: int = DRAWS
) -> list[Comparison]:
    rng = Random(seed)
    return [compare(*drawn(rng, truth, blocks, noise), METRIC) for _ in range(draws)]


def covered(found: Sequence[Comparison], crossing: float) -> tuple[int, float]:
    """How many draws say `crosses`, and the share of those whose interval holds the crossing."""
    crossings = [one for one in found if one.outcome == "crosses"]
    hits = sum(
        one.a == "a" and one.low is not None and one.high is not None
        and one.low <= crossing <= one.high
        for one in crossings
    )  # fmt: skip
    return len(crossings), hits / len(crossings) if crossings else math.nan


def different(found: Sequence[Comparison]) -> float:
    """The share of draws in which the two were called different."""
    return sum(one.outcome != "unresolved" for one in found) / len(found)
