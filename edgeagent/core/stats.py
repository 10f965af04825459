"""What do the numbers allow us to say?

Quantiles, intervals and trends that refuse to say more than the data: a quantile needs enough
values to have one beyond it, an interval needs replicates, an upper bound needs the sample size
that makes it distribution-free. Everything returns None rather than a guess.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

MIN_REPLICATES = 3
"""Below this a t interval says more about t than about the box."""

_COUNTED_ORDERS = 40
"""Up to so many values orders are counted one by one; the count grows with the fourth power."""


@dataclass(frozen=True)
class Distribution:
    """A distribution of seconds (or whatever its name says). Every value but `n` may be None."""

    n: int = 0
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None
    p90_upper: float | None = None
    p95_upper: float | None = None
    p99_upper: float | None = None


def distribution(values: Sequence[float]) -> Distribution:
    """All that can be said of `values`."""
    if not values:
        return Distribution()
    ordered = sorted(values)
    return Distribution(
        n=len(ordered),
        mean=math.fsum(ordered) / len(ordered),
        p50=supported_quantile(ordered, 0.50),
        p90=supported_quantile(ordered, 0.90),
        p95=supported_quantile(ordered, 0.95),
        p99=supported_quantile(ordered, 0.99),
        max=ordered[-1],
        p90_upper=quantile_upper(ordered, 0.90),
        p95_upper=quantile_upper(ordered, 0.95),
        p99_upper=quantile_upper(ordered, 0.99),
    )


def quantile(ordered: Sequence[float], q: float) -> float | None:
    """The q-quantile of sorted values by linear interpolation (Hyndman and Fan's type 7).

    None for no values; never outside the smallest and the largest.
    """
    if not ordered:
        return None
    position = q * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    low, high = ordered[below], ordered[above]
    # Clamped: rounding must not carry the result over either end.
    return min(max(low + (high - low) * (position - below), low), high)


def supported_quantile(ordered: Sequence[float], q: float) -> float | None:
    """The q-quantile when there are at least 1/(1-q) values, else None."""
    needed = math.ceil(round(1 / (1 - q), 9))
    return quantile(ordered, q) if len(ordered) >= needed else None


def quantile_upper(ordered: Sequence[float], q: float, confidence: float = 0.95) -> float | None:
    """An upper bound of the q-quantile that holds for any distribution, or None.

    The k-th smallest value is at least the q-quantile with probability P(B < k), B binomial with n
    and q (Conover, Practical Nonparametric Statistics, 3.2). The largest value will do from 29
    values on for p90, 59 for p95, 299 for p99.
    """
    rank = _upper_rank(len(ordered), q, confidence)
    return None if rank is None else ordered[rank - 1]


@lru_cache(maxsize=4096)
def _upper_rank(n: int, q: float, confidence: float) -> int | None:
    """The smallest k with P(B <= k - 1) >= confidence; None when even k = n does not reach it."""
    if n == 0 or 1 - q**n < confidence:
        return None
    # From the top: P(B <= n - 1) = 1 - q**n, then one term less at a time.
    below = 1 - q**n
    log_q, log_p = math.log(q), math.log1p(-q)
    k = n
    while k > 1:
        hits = k - 1  # P(B = k - 1) leaves the sum when k goes down by one
        log_term = (
            math.lgamma(n + 1)
            - math.lgamma(hits + 1)
            - math.lgamma(n - hits + 1)
            + hits * log_q
            + (n - hits) * log_p
        )
        smaller = below - math.exp(log_term)
        if smaller < confidence:
            break
        below, k = smaller, k - 1
    return k


def mean(values: Sequence[float]) -> float | None:
    """The mean, None for no values."""
    return math.fsum(values) / len(values) if values else None


def deviation(values: Sequence[float]) -> float | None:
    """The sample's standard deviation (n - 1), None below two values."""
    if len(values) < 2:  # noqa: PLR2004  # because one value does not deviate
        return None
    middle = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - middle) ** 2 for v in values) / (len(values) - 1))


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Student's t interval of the mean over replicates; None below three."""
    spread = deviation(values)
    if spread is None or len(values) < MIN_REPLICATES:
        return None
    middle = math.fsum(values) / len(values)
    half = t_quantile(0.5 + confidence / 2, len(values) - 1) * spread / math.sqrt(len(values))
    return middle - half, middle + half


@lru_cache(maxsize=256)
def t_quantile(p: float, df: int) -> float:
    """Student's t quantile for p in (0.5, 1), by bisection on its distribution function."""
    low, high = 0.0, 1.0
    while _t_cdf(high, df) < p:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if _t_cdf(middle, df) < p:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _t_cdf(t: float, df: int) -> float:
    """P(T <= t) for t >= 0 (Abramowitz and Stegun 26.7.1, 26.5.27)."""
    return 1 - 0.5 * _incomplete_beta(df / 2, 0.5, df / (df + t * t))


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (A&S 26.5.8)."""
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    log_front = (
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    return math.exp(log_front) * _beta_fraction(a, b, x) / a


def _beta_fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function, by Lentz's method."""
    tiny = 1e-300
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > tiny else tiny)
    fraction = d
    for m in range(1, 500):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 + term * d
            d = 1 / (d if abs(d) > tiny else tiny)
            c = 1 + term / c
            c = c if abs(c) > tiny else tiny
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:  # noqa: PLR2004  # because doubles carry no more
            break
    return fraction


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """The median of all pairwise slopes (Theil and Sen); None when no two x differ."""
    slopes = sorted(
        (right[1] - left[1]) / (right[0] - left[0])
        for left, right in combinations(points, 2)
        if left[0] != right[0]
    )
    return quantile(slopes, 0.5)


def trend_p_value(values: Sequence[float]) -> float | None:
    """Two-sided p value of "no trend" by Mann and Kendall's test; None below four values.

    Exact without ties up to 40 values, beyond that by the normal approximation.
    With four values even a perfect trend has p = 2/24 = 0.083: few repeats cannot show one.
    """
    n = len(values)
    if n < 4:  # noqa: PLR2004  # because below it no order of values is rare
        return None
    score = sum((b > a) - (b < a) for a, b in combinations(values, 2))
    if n > _COUNTED_ORDERS:
        spread = math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
        return math.erfc(max(abs(score) - 1, 0) / spread / math.sqrt(2))
    counts = _inversion_counts(n)
    pairs = n * (n - 1) // 2
    # An order with i inversions scores pairs less 2i.
    as_extreme = sum(
        count
        for inversions, count in enumerate(counts)
        if abs(pairs - 2 * inversions) >= abs(score)
    )
    return min(1.0, as_extreme / math.factorial(n))


@lru_cache(maxsize=64)
def _inversion_counts(n: int) -> tuple[int, ...]:
    """How many orders of n values have 0, 1, 2 ... inversions (Mahonian numbers)."""
    counts = [1]
    for size in range(2, n + 1):
        longer = [0] * (len(counts) + size - 1)
        for shift in range(size):
            for index, count in enumerate(counts):
                longer[index + shift] += count
        counts = longer
    return tuple(counts)


def slope_interval(
    points: Sequence[tuple[float, float]], confidence: float = 0.95
) -> tuple[float, float] | None:
    """An interval of the slope that holds for any noise; None when there are too few points.

    Sen's interval (Journal of the American Statistical Association 63, 1968): the k smallest and
    the k largest pairwise slopes but one are left out, k as large as the confidence allows. The
    number of pairs that fall although the line rises follows the distribution of inversions of a
    multiset, which is counted exactly, with as many equal x as there are. Two points at each of
    three places are enough (P = 1/90 at each end), one point at each of four places is not (1/24).
    """
    slopes = sorted(
        (right[1] - left[1]) / (right[0] - left[0])
        for left, right in combinations(points, 2)
        if left[0] != right[0]
    )
    sizes = tuple(sorted(Counter(x for x, _ in points).values()))
    counts = _multiset_inversions(sizes)
    total, tail, left_out = sum(counts), 0, 0
    for count in counts:
        tail += count
        if tail / total > (1 - confidence) / 2:
            break
        left_out += 1
    if left_out == 0 or not slopes:
        return None
    return slopes[left_out - 1], slopes[len(slopes) - left_out]


@lru_cache(maxsize=64)
def _multiset_inversions(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """How many orders of groups of equal values have 0, 1, 2 ... inversions.

    The Gaussian multinomial coefficient: the counts for all different, divided, as polynomials, by
    the counts within each group (MacMahon 1915; Jonckheere's statistic is the same).
    """
    counts = list(_inversion_counts(sum(sizes)))
    for size in sizes:
        counts = _divided(counts, _inversion_counts(size))
    return tuple(counts)


def _divided(whole: Sequence[int], part: Sequence[int]) -> list[int]:
    """The quotient of two polynomials, lowest coefficient first, where nothing is left over."""
    rest, quotient = list(whole), []
    for place in range(len(whole) - len(part) + 1):
        factor = rest[place] // part[0]
        quotient.append(factor)
        for offset, coefficient in enumerate(part):
            rest[place + offset] -= factor * coefficient
    return quotient
