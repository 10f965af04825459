"""Whether the canary can tell a box that has changed from one that has not."""

from __future__ import annotations

from itertools import permutations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.core.canary import _left_out, _orders, canary_drift, drift

STEADY = [0.0200, 0.0201, 0.0199, 0.0202, 0.0198]


def test_a_box_that_got_slower_is_told_with_its_numbers() -> None:
    found = canary_drift(STEADY, [value * 1.1 for value in STEADY], "llamacpp")
    assert found is not None
    assert (found.code, found.severity, found.cells) == ("canary_drift", "warning", ())
    # The extreme quotients are 1.1 * 198/202 and 1.1 * 202/198: 5 against 5 leave out none.
    assert "slower" in found.text
    assert "+10.0% (99% interval +7.8% to +12.2%, 5 and 5 requests)" in found.text


def test_getting_faster_is_drift_as_well() -> None:
    found = canary_drift(STEADY, [value * 0.9 for value in STEADY], "x")
    assert found is not None
    assert "faster" in found.text


def test_small_drifts_are_not_worth_a_word() -> None:
    assert canary_drift(STEADY, [value * 1.029 for value in STEADY], "x") is None
    assert canary_drift(STEADY, [value * 1.031 for value in STEADY], "x") is not None


def test_drift_within_the_canarys_own_noise_is_not_drift() -> None:
    noisy = [0.02, 0.03, 0.025, 0.015, 0.022]
    assert canary_drift(noisy, [value * 1.1 for value in noisy], "x") is None


def test_four_values_cannot_tell() -> None:
    assert canary_drift(STEADY[:4], [1.0] * 5, "x") is None
    assert canary_drift([], STEADY, "x") is None
    assert drift([0.0] * 5, STEADY) is None


def test_orders_are_counted_as_by_listing_them() -> None:
    # Which two of five places the first list takes: pairs in which the later list is smaller.
    listed = [0] * 7
    for order in set(permutations("aabbb")):
        listed[sum(order[j] == "b" for i in range(5) if order[i] == "a" for j in range(i))] += 1
    assert _orders(2, 3) == listed


def test_the_outermost_pair_is_the_first_that_is_left_out() -> None:
    assert _left_out(5, 4) is None  # 2 of 126 orders
    assert _left_out(5, 5) == 1  # 2 of 252
    # A table of Mann and Whitney's test at 1 %, both sides, has 105 for 20 and 20.
    assert _left_out(20, 20) == 106
    # The normal curve is close to what is counted where the two meet.
    assert _left_out(30, 30) == pytest.approx(_left_out(30, 31), rel=0.05)


@pytest.mark.parametrize(("n", "noise"), [(5, 0.02), (5, 0.2), (20, 0.05), (40, 0.3)])
def test_boxes_that_have_not_changed_are_rarely_called_changed(n: int, noise: float) -> None:
    random = Random(n)
    called = 0
    for _ in range(400):
        first, last = ([random.lognormvariate(-4, noise) for _ in range(n)] for _ in range(2))
        called += canary_drift(first, last, "x") is not None
    assert called <= 0.05 * 400


def test_real_changes_beyond_the_noise_are_found() -> None:
    random = Random(7)
    found = 0
    for _ in range(100):
        first = [random.lognormvariate(-4, 0.02) for _ in range(10)]
        last = [1.08 * random.lognormvariate(-4, 0.02) for _ in range(10)]
        found += canary_drift(first, last, "x") is not None
    assert found >= 95


times = st.lists(st.floats(1e-4, 10), min_size=5, max_size=40)


@given(times, times, st.floats(0.001, 1000))
def test_drift_does_not_depend_on_the_unit_and_lies_in_its_interval(
    first: list[float], last: list[float], unit: float
) -> None:
    found, other = drift(first, last), drift([v * unit for v in first], [v * unit for v in last])
    assert found is not None
    assert other is not None
    assert found.low <= found.change <= found.high
    assert other.change == pytest.approx(found.change, rel=1e-6, abs=1e-9)
