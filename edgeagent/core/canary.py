"""Was the box at the end of a sweep as fast as at its beginning?

The canary is the same small load, first and last. A slow state that no counter shows (a power
supply that gave up, a cap that came into force) shows here.

Each request gives one time per output token. Two lists of them are compared by all quotients of a
later over an earlier value: their median is the drift (Hodges and Lehmann's estimate),
and the order of the quotients gives an interval that holds for any distribution (the inverse of
Mann and Whitney's test, counted exactly for small numbers). Drift is said when it is more than 3 %
and the interval leaves out "no change", so two lists of the same distribution, whatever its noise,
are called different at most once in a hundred times. Requests of one batch resemble each other,
which no test of two short lists can see: the limit of 3 % is what remains against that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from edgeagent.core.findings import CODES
from edgeagent.core.model import Finding
from edgeagent.core.stats import quantile

DRIFT_LIMIT = 0.03
CONFIDENCE = 0.99

_COUNTED_PAIRS = 900
"""Up to so many pairs orders are counted exactly; from there on the normal curve is close."""

_MOST = 300
"""Of a longer list so many values are used, evenly through time."""

_Z = 2.5758293035489004
"""The normal distribution's quantile for `CONFIDENCE`, both sides."""


@dataclass(frozen=True)
class Drift:
    """How the last list compares with the first, as quotients less one: 0.05 is 5 % more."""

    change: float
    low: float
    high: float


def canary_drift(first: Sequence[float], last: Sequence[float], name: str) -> Finding | None:
    """A doubt about the whole run when `name` (seconds per output token) drifted, else None.

    None as well when there are too few values to say: it takes five on each side.
    """
    found = drift(first, last)
    if found is None or abs(found.change) <= DRIFT_LIMIT or found.low <= 0 <= found.high:
        return None
    way, advice = ("slower", "heat, a power limit, or another load")
    if found.change < 0:
        way, advice = ("faster", "a cold start, or a load that has ended")
    code = "canary_drift"
    return Finding(
        code,
        CODES[code],
        f"{name}: the canary was {way} at the end than at the beginning: time per output token "
        f"{found.change:+.1%} ({CONFIDENCE:.0%} interval {found.low:+.1%} to {found.high:+.1%}, "
        f"{len(first)} and {len(last)} requests): look for {advice}",
    )


def drift(first: Sequence[float], last: Sequence[float]) -> Drift | None:
    """The change from the first list to the last, with its interval; None for too few values.

    Values that are not positive are left out.
    """
    before, after = _thinned(first), _thinned(last)
    left_out = _left_out(len(before), len(after))
    if left_out is None:
        return None
    quotients = sorted(later / earlier for earlier in before for later in after)
    middle = quantile(quotients, 0.5)
    if middle is None:
        return None
    return Drift(middle - 1, quotients[left_out - 1] - 1, quotients[-left_out] - 1)


def _thinned(values: Sequence[float]) -> list[float]:
    known = [value for value in values if value > 0]
    return known[:: -(-len(known) // _MOST)] if known else []


@lru_cache(maxsize=64)
def _left_out(n: int, m: int) -> int | None:
    """Which quotient from either end bounds the interval (1 is the outermost); None: none does."""
    pairs = n * m
    if pairs > _COUNTED_PAIRS:
        return math.floor(pairs / 2 - _Z * math.sqrt(pairs * (n + m + 1) / 12))
    total, tail, rank = math.comb(n + m, n), 0, 0
    for count in _orders(n, m):
        tail += count
        if 2 * tail > (1 - CONFIDENCE) * total:
            break
        rank += 1
    return rank or None


def _orders(n: int, m: int) -> list[int]:
    """How many orders of n and m values have 0, 1, 2 ... pairs in which a later one is smaller.

    The coefficients of the Gaussian binomial, by taking in one value of the first list at a time.
    """
    ways = [[0] * (n * m + 1) for _ in range(n + 1)]
    ways[0][0] = 1
    for smaller in range(m + 1):  # how many of the second list lie below the value taken in
        for taken in range(1, n + 1):
            for pairs in range(smaller, n * m + 1):
                ways[taken][pairs] += ways[taken - 1][pairs - smaller]
    return ways[n]
