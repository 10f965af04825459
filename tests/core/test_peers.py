"""Peers: hand-worked medians and deviations, and who stands out."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.core.peers import (
    MIN_PEERS,
    against_past,
    among_peers,
    median,
    offset,
    spread,
    standing,
    usual,
)


def test_the_median_of_an_even_count_is_between_the_two_in_the_middle() -> None:
    assert median([4.0, 1.0, 3.0, 2.0]) == 2.5
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([]) is None


def test_spread_is_the_median_absolute_deviation_scaled_to_a_normal_one_and_to_few_values() -> None:
    # around 3: 2, 1, 0, 1, 2; their median is 1; five values take the factor 1.206
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(1.4826 * 1.206)
    # ten values take 10 / 9.2; around 5.5: 4.5 3.5 2.5 1.5 0.5 0.5 1.5 2.5 3.5 4.5, median 2.5
    ten = [float(n) for n in range(1, 11)]
    assert spread(ten) == pytest.approx(1.4826 * 10 / 9.2 * 2.5)
    assert spread([1.0]) is None


def test_one_wild_value_among_others_changes_neither_much() -> None:
    assert median([1.0, 2.0, 3.0, 4.0, 1e9]) == 3.0
    assert spread([1.0, 2.0, 3.0, 4.0, 1e9]) == pytest.approx(1.4826 * 1.206)


def test_what_is_usual_is_the_median_at_each_level_of_those_measured_there() -> None:
    boxes = [{1: 10.0, 8: 40.0}, {1: 12.0}, {1: 11.0, 8: 44.0}]
    assert usual(boxes) == {1: 11.0, 8: 42.0}


def test_an_offset_is_the_median_of_the_logarithms_over_the_levels_in_common() -> None:
    # twice, once and four times the usual: the median of log 2, log 1, log 4 is log 2
    own = {1: 20.0, 4: 30.0, 8: 160.0, 64: 1.0}
    assert offset(own, {1: 10.0, 4: 30.0, 8: 40.0}) == pytest.approx(math.log(2))
    assert offset({64: 1.0}, {1: 10.0}) is None


def test_a_box_a_quarter_slower_than_five_peers_that_agree_stands_out() -> None:
    peers = {f"box-{n}": {1: 100.0 + n, 8: 400.0 + 4 * n} for n in (-2, -1, 0, 1, 2)}
    found = among_peers({**peers, "slow": {1: 75.0, 8: 300.0}})
    assert found["slow"].verdict == "lower"
    assert found["slow"].factor == pytest.approx(0.75, rel=0.01)
    assert found["slow"].others == 5
    assert {found[name].verdict for name in peers} == {"usual"}


def test_among_boxes_that_agree_to_a_thousandth_three_percent_are_nothing() -> None:
    peers = {f"box-{n}": {1: 100.0 + 0.1 * n} for n in range(5)}
    found = among_peers({**peers, "other": {1: 97.0}})["other"]
    # 3 % off, a spread of at least one percent: three deviations, and less than a tenth
    assert found.verdict == "usual"
    assert found.score == pytest.approx(math.log(97 / 100.2) / 0.01, rel=0.01)


def test_among_boxes_that_scatter_widely_a_fifth_is_nothing() -> None:
    peers = {f"box-{n}": {1: value} for n, value in enumerate((60.0, 80.0, 100.0, 120.0, 150.0))}
    assert among_peers({**peers, "other": {1: 80.0}})["other"].verdict == "usual"


def test_nobody_is_judged_among_fewer_than_four_others() -> None:
    boxes = {f"box-{n}": {1: value} for n, value in enumerate((100.0, 100.0, 100.0, 10.0))}
    assert {one.verdict for one in among_peers(boxes).values()} == {"too_few"}
    assert {one.factor for one in among_peers(boxes).values()} == {None}
    assert among_peers({**boxes, "box-4": {1: 100.0}})["box-3"].verdict == "lower"


def test_a_box_is_judged_by_its_earlier_runs_in_the_same_way() -> None:
    past = [{1: 100.0, 8: 400.0}, {1: 101.0, 8: 396.0}, {1: 99.0, 8: 404.0}, {8: 400.0}]
    now = against_past({1: 80.0, 8: 320.0}, past)
    assert (now.verdict, now.others) == ("lower", 4)
    assert now.factor == pytest.approx(0.8, rel=0.01)
    assert against_past({1: 80.0}, past[:3]).verdict == "too_few"
    assert against_past({64: 80.0}, past).verdict == "too_few"


def test_a_tenth_is_the_same_factor_up_and_down() -> None:
    others = [0.0] * 6
    assert standing(math.log(0.9), others).verdict == "lower"
    assert standing(-math.log(0.9), others).verdict == "higher"
    assert standing(math.log(0.905), others).verdict == "usual"


def test_zero_and_less_have_no_logarithm_and_are_left_out() -> None:
    boxes = {f"box-{n}": {1: 100.0} for n in range(5)}
    assert "broken" not in among_peers({**boxes, "broken": {1: 0.0}})


_VALUES = st.floats(min_value=1e-6, max_value=1e12)


@given(
    st.dictionaries(
        st.text(max_size=3),
        st.dictionaries(st.integers(1, 64), _VALUES, max_size=4),
        max_size=12,
    ),
    st.floats(min_value=1e-3, max_value=1e3),
)
def test_verdicts_do_not_depend_on_the_unit(
    boxes: dict[str, dict[int, float]], unit: float
) -> None:
    here = among_peers(boxes)
    there = among_peers(
        {name: {c: value * unit for c, value in own.items()} for name, own in boxes.items()}
    )
    assert here.keys() == there.keys()
    for name, own in here.items():
        assert own.others == there[name].others
        if own.score is not None and abs(abs(own.score) - 3.5) > 1e-6:
            assert there[name].score == pytest.approx(own.score, rel=1e-3, abs=1e-6)


@given(st.lists(st.floats(-50, 50), min_size=MIN_PEERS, max_size=20))
def test_whoever_is_exactly_usual_never_stands_out(others: list[float]) -> None:
    middle = median(others)
    assert middle is not None
    assert standing(middle, others).verdict == "usual"
