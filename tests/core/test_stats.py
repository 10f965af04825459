"""What may be said of a handful of numbers, against tables and values worked out by hand."""

from __future__ import annotations

import math
import random
from itertools import permutations
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.core.stats import (
    Distribution,
    _multiset_inversions,
    deviation,
    distribution,
    mean,
    mean_interval,
    quantile,
    quantile_upper,
    slope,
    slope_interval,
    supported_quantile,
    t_quantile,
    trend_p_value,
)

numbers = st.floats(-1e12, 1e12, allow_nan=False)
samples = st.lists(numbers, min_size=1, max_size=60).map(sorted)
shares = st.floats(0.0, 1.0)


# ---------------------------------------------------------------------------------- quantiles


def test_no_values_have_no_quantile() -> None:
    assert quantile([], 0.5) is None
    assert distribution([]) == Distribution()
    assert distribution([]).n == 0


def test_quantiles_interpolate_between_neighbours() -> None:
    # Position 0.95 x 4 = 3.8: four fifths of the way from 40 to 50.
    assert quantile([10, 20, 30, 40, 50], 0.95) == pytest.approx(48)
    assert quantile([10, 20, 30, 40], 0.5) == 25


@given(samples, shares)
def test_a_quantile_never_leaves_the_data(ordered: list[float], q: float) -> None:
    value = quantile(ordered, q)
    assert value is not None
    assert ordered[0] <= value <= ordered[-1]


@given(samples, shares, shares)
def test_quantiles_rise_with_q(ordered: list[float], one: float, other: float) -> None:
    low, high = quantile(ordered, min(one, other)), quantile(ordered, max(one, other))
    assert low is not None
    assert high is not None
    # Rounding may differ in the last digit between two nearly equal shares.
    assert low <= high + 1e-12 * max(abs(ordered[0]), abs(ordered[-1]))


@pytest.mark.parametrize(("q", "needed"), [(0.5, 2), (0.9, 10), (0.95, 20), (0.99, 100)])
def test_a_quantile_needs_one_value_beyond_it(q: float, needed: int) -> None:
    assert supported_quantile([1.0] * (needed - 1), q) is None
    assert supported_quantile([1.0] * needed, q) == 1.0


@pytest.mark.parametrize(("q", "needed"), [(0.90, 29), (0.95, 59), (0.99, 299)])
def test_the_largest_value_bounds_a_quantile_once_there_is_enough_data(
    q: float, needed: int
) -> None:
    # 1 - q**n reaches 0.95 first at these n: 0.9**29 = 0.0471, 0.95**59 = 0.0485,
    # 0.99**299 = 0.0495.
    values = [float(v) for v in range(1, needed + 1)]
    assert quantile_upper(values[:-1], q) is None
    assert quantile_upper(values, q) == needed


@pytest.mark.parametrize("n", [29, 45, 46, 60, 100, 137, 500])
@pytest.mark.parametrize("q", [0.5, 0.9, 0.95])
def test_the_bound_is_the_lowest_rank_that_keeps_its_promise(n: int, q: float) -> None:
    # The sum itself, term by term: P(B < k) for B binomial(n, q) is the chance that the k-th
    # smallest of n values lies at or above the q-quantile.
    below = 0.0
    expected: int | None = None
    for k in range(1, n + 1):
        below += comb(n, k - 1) * q ** (k - 1) * (1 - q) ** (n - k + 1)
        if below >= 0.95:
            expected = k
            break
    found = quantile_upper([float(v) for v in range(1, n + 1)], q)
    assert found == expected


def test_the_bound_of_a_long_recording_is_found_quickly_and_close() -> None:
    n = 200_000
    bound = quantile_upper(range(1, n + 1), 0.99)
    assert bound is not None
    # Normal approximation: n q + 1.645 sqrt(n q (1 - q)) = 198000 + 73.2
    assert bound == pytest.approx(198_074, abs=2)


@given(st.lists(numbers, max_size=400))
def test_everything_a_distribution_says_lies_within_the_data(values: list[float]) -> None:
    found = distribution(values)
    assert found.n == len(values)
    for name in ("p50", "p90", "p95", "p99", "p90_upper", "p95_upper", "p99_upper", "max"):
        value = getattr(found, name)
        assert value is None or min(values) <= value <= max(values)
    for upper, point in (("p90_upper", "p90"), ("p95_upper", "p95"), ("p99_upper", "p99")):
        if getattr(found, upper) is not None:
            assert getattr(found, upper) >= getattr(found, point)


# ---------------------------------------------------------------------------------- intervals


@pytest.mark.parametrize(
    ("df", "table"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (29, 2.045), (1000, 1.962)],
)
def test_t_quantiles_are_those_of_the_tables(df: int, table: float) -> None:
    assert t_quantile(0.975, df) == pytest.approx(table, abs=0.0005)


def test_t_with_one_and_two_degrees_of_freedom_has_closed_forms() -> None:
    for p in (0.6, 0.75, 0.9, 0.95, 0.999):
        assert t_quantile(p, 1) == pytest.approx(math.tan(math.pi * (p - 0.5)), rel=1e-10)
        # For two degrees of freedom: (2p - 1) / sqrt(2 p (1 - p)).
        assert t_quantile(p, 2) == pytest.approx((2 * p - 1) / math.sqrt(2 * p * (1 - p)))


def test_the_interval_of_three_replicates() -> None:
    # Mean 11, deviation 1, half width 4.3027 x 1 / sqrt(3) = 2.4841
    interval = mean_interval([10.0, 11.0, 12.0])
    assert interval is not None
    assert interval == pytest.approx((8.5159, 13.4841), abs=1e-4)


def test_two_replicates_have_a_mean_and_no_interval() -> None:
    assert mean([1.0, 2.0]) == 1.5
    assert mean_interval([1.0, 2.0]) is None
    assert mean([]) is None
    assert deviation([5.0]) is None
    assert deviation([1.0, 3.0]) == pytest.approx(math.sqrt(2))


@given(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=12), st.floats(-1e6, 1e6))
def test_an_interval_holds_its_mean_and_moves_with_the_data(
    values: list[float], shift: float
) -> None:
    interval, moved = mean_interval(values), mean_interval([v + shift for v in values])
    middle = mean(values)
    assert interval is not None
    assert moved is not None
    assert middle is not None
    assert interval[0] <= middle <= interval[1]
    assert moved[0] == pytest.approx(interval[0] + shift, abs=1e-6)


# ------------------------------------------------------------------------------------- trends


def test_a_robust_slope_ignores_one_wild_point() -> None:
    line = [(float(x), 3.0 * x + 1) for x in range(9)]
    assert slope(line) == 3.0
    assert slope([*line, (9.0, 1e6)]) == pytest.approx(3.0)
    assert slope([(1.0, 2.0), (1.0, 5.0)]) is None
    assert slope([]) is None


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2, 3], None),
        ([1, 2, 3, 4], 2 / 24),  # only this order and its mirror of 24
        ([1, 2, 3, 4, 5], 2 / 120),
        # One neighbour pair swapped scores 8 of 10: 4 orders have one inversion, 1 has none.
        ([1, 2, 3, 5, 4], 10 / 120),
        ([2, 2, 2, 2], 1.0),
    ],
)
def test_the_trend_test_counts_orders(values: list[float], expected: float | None) -> None:
    found = trend_p_value(values)
    assert found == (None if expected is None else pytest.approx(expected))


def test_without_a_trend_one_in_twenty_is_called_one_at_most() -> None:
    p_values = [trend_p_value(order) for order in permutations(range(6))]
    called = sum(1 for p in p_values if p is not None and p <= 0.05)
    assert called / len(p_values) <= 0.05


def test_the_trend_of_many_values_is_still_found_at_once() -> None:
    rising = [float(v) for v in range(1000)]
    swings = [float((v * 7919) % 1000) for v in range(1000)]
    assert trend_p_value(rising) == pytest.approx(0, abs=1e-12)
    found = trend_p_value(swings)
    assert found is not None
    assert found > 0.05


def test_counting_and_approximating_agree_where_one_takes_over_from_the_other() -> None:
    # One value more changes the p value of a weak trend little.
    values = [float((v * 17) % 41 + v / 4) for v in range(41)]
    counted, approximated = trend_p_value(values[:40]), trend_p_value(values)
    assert counted is not None
    assert approximated is not None
    assert 0.2 < approximated / counted < 5


@given(st.lists(st.integers(-50, 50), min_size=4, max_size=20))
def test_a_trend_reads_the_same_backwards(values: list[float]) -> None:
    forwards, backwards = trend_p_value(values), trend_p_value(values[::-1])
    assert forwards == backwards
    assert forwards is not None
    assert 0 < forwards <= 1


def test_the_interval_of_a_slope_is_counted_exactly() -> None:
    # Five points: 120 orders, one of them without an inversion. 1/120 < 2.5 % but 1/120 + 4/120
    # is not, so only the extreme slope at each end can be left out, which keeps all ten.
    points = [(1, 10.0), (2, 21.0), (3, 29.0), (4, 40.0), (5, 52.0)]
    assert slope_interval(points) == (8.0, 12.0)


def test_two_points_at_three_places_are_enough_and_four_single_points_are_not() -> None:
    assert slope_interval([(x, 3.0 * x) for x in (1, 1, 4, 4, 8, 8)]) == (3.0, 3.0)
    assert slope_interval([(x, 3.0 * x) for x in (1, 2, 3, 4)]) is None
    assert slope_interval([]) is None
    assert slope_interval([(1, 1.0), (1, 2.0)] * 4) is None


def test_orders_of_groups_of_equal_values_are_counted_without_their_inner_orders() -> None:
    # 6! / (2! 2! 2!) = 90 orders; the Gaussian multinomial [6]! / [2]!^3 begins 1, 2, 5, 7, 11.
    counts = _multiset_inversions((2, 2, 2))
    assert sum(counts) == 90
    assert counts[:5] == (1, 2, 5, 7, 11)
    assert counts == counts[::-1]


def test_the_interval_of_a_slope_covers_the_truth_as_often_as_it_says() -> None:
    rng = random.Random(7)
    hits = 0
    for _ in range(1000):
        low_high = slope_interval([(x, 2.0 * x + rng.gauss(0, 1)) for x in (1, 4, 8, 16) * 2])
        assert low_high is not None
        hits += low_high[0] <= 2.0 <= low_high[1]
    assert hits >= 950
