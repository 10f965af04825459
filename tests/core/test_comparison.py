"""Two curves compared: outcomes, bounds and sentences, with values worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.core.comparison import Comparison, Curve, compare, outwards
from edgeagent.core.result import LEVEL_METRICS

RATE = "output_tokens_per_s"


def curve(name: str, values: dict[int, list[float | None]]) -> Curve:
    return Curve(name, values)


def over(name: str, factors: dict[int, float], noise: tuple[float, ...] = (-1, 0, 1)) -> Curve:
    """100 times the factor at each level, the repeats 1 % apart."""
    return Curve(name, {n: [100 * f * 1.01**z for z in noise] for n, f in factors.items()})


ONE = over("vLLM", dict.fromkeys((1, 4, 8, 16, 32), 1.0), (0, 0, 0))


def llama(factors: dict[int, float], noise: tuple[float, ...] = (-1, 0, 1)) -> Curve:
    return over("llama.cpp", factors, noise)


CROSSING = {1: 4.0, 4: 2.0, 8: 0.5, 16: 0.25, 32: 0.125}


def test_curves_that_cross_say_where() -> None:
    found = compare(llama(CROSSING), ONE, RATE)
    assert found.outcome == "crosses"
    assert (found.a, found.a_better_up_to, found.b_better_from) == ("llama.cpp", 4, 8)
    assert found.low is not None
    assert found.high is not None
    assert 4 < found.low < math.sqrt(32) < found.high < 8  # the middle between 4 and 8 in octaves
    assert found.text.startswith("llama.cpp is better up to 4, vLLM from 8; they cross between 5.")
    assert found.replicates_needed is None


def test_the_side_that_is_better_at_low_levels_is_a_whichever_was_named_first() -> None:
    there, back = compare(llama(CROSSING), ONE, RATE), compare(ONE, llama(CROSSING), RATE)
    assert (back.a, back.b, back.text) == ("llama.cpp", "vLLM", there.text)
    assert back.low == pytest.approx(there.low)
    assert [level.factor for level in back.levels] == pytest.approx(
        [level.factor for level in there.levels]
    )


def test_where_lower_is_better_the_directions_turn_but_factors_stay_ratios() -> None:
    found = compare(llama({1: 2.0, 4: 2.0}), ONE, "ttft_s.p50")
    assert found.outcome == "b_always"
    assert found.text == "vLLM is better at every concurrency measured"
    assert found.levels[0].factor == pytest.approx(2.0)
    assert found.levels[0].better == "b"


def test_a_levels_interval_is_students_over_the_paired_differences() -> None:
    found = compare(llama({4: 2.0}), ONE, RATE)
    half = 4.302653 * math.log(1.01) / math.sqrt(3)  # t of two degrees of freedom, spread 1 %
    (level,) = found.levels
    assert level.ci95 == pytest.approx((2 * math.exp(-half), 2 * math.exp(half)), rel=1e-6)
    assert found.text == "llama.cpp is better at 4, the only concurrency compared"


def test_what_a_block_does_to_both_sides_leaves_no_trace() -> None:
    blocks = (0.5, 1.0, 3.0)
    a = curve("a", {n: [f * x for x in blocks] for n, f in ((1, 1.2), (4, 1.3))})
    b = curve("b", {n: list(blocks) for n in (1, 4)})
    assert compare(a, b, RATE).outcome == "a_always"


def test_curves_that_cross_twice_are_unresolved_and_say_so() -> None:
    found = compare(llama({1: 2.0, 4: 0.5, 8: 2.0, 16: 2.0, 32: 2.0}), ONE, RATE)
    assert (found.outcome, found.replicates_needed) == ("unresolved", None)
    assert found.text == (
        "unresolved: they cross more than once: llama.cpp is better at 1, vLLM is better at 4, "
        "llama.cpp is better at 8, 16 and 32"
    )


def test_an_end_that_is_not_resolved_leaves_the_whole_unresolved() -> None:
    found = compare(llama({1: 2.0, 4: 2.0, 8: 1.005}), ONE, RATE)
    assert found.outcome == "unresolved"
    assert found.reason == "llama.cpp is better at 1 and 4"
    assert found.replicates_needed is not None
    assert [level.better for level in found.levels] == ["a", "a", None]


def test_the_repeats_that_are_needed_follow_from_spread_and_difference() -> None:
    # Differences 0, 1 and 2 spreads: mean 1, deviation 1. With n pairs the mean is resolved four
    # times in five from sqrt(n) >= t(0.975, n - 1) + t(0.8, n - 1): 2.262 + 0.883 = 3.15 at 10 is
    # under 3.16, and 3.19 at 9 is over 3.
    a = curve("a", {1: [math.exp(0.1 * z) for z in (0, 1, 2)]})
    found = compare(a, curve("b", {1: [1.0, 1.0, 1.0]}), RATE)
    assert found.replicates_needed == 7
    assert found.text.startswith("unresolved: about 7 more repeats would settle it (")
    assert found.replicates_needed_range is not None
    assert found.replicates_needed_range[0] < 7


def test_one_repeat_gives_factors_but_no_outcome() -> None:
    found = compare(curve("a", {1: [2.0], 4: [2.0]}), curve("b", {1: [1.0], 4: [1.0]}), RATE)
    assert (found.outcome, found.replicates_needed) == ("unresolved", None)
    assert found.text == "unresolved: one repeat has no spread, measure at least three"
    assert [(level.factor, level.ci95) for level in found.levels] == [(2.0, None), (2.0, None)]


def test_two_repeats_are_too_few_and_say_how_many_more() -> None:
    found = compare(curve("a", {1: [2.0, 2.2]}), curve("b", {1: [1.0, 1.0]}), RATE)
    assert found.outcome == "unresolved"
    assert "about 1 more repeat would settle it" in found.text


def test_a_metric_that_one_side_lacks_is_unresolved_with_the_reason() -> None:
    found = compare(curve("a", {1: [1.0, 1.0]}), curve("b", {1: [None, None]}), RATE)
    assert found.text == "unresolved: no value of it for b"
    found = compare(curve("a", {1: [1.0]}), curve("b", {4: [1.0]}), RATE)
    assert found.reason == "no concurrency at which both have a value in the same repeat"
    assert found.notes == ("at 1: measured for a only", "at 4: measured for b only")


def test_repeats_without_a_value_leave_the_others_paired() -> None:
    a = curve("a", {1: [2.0, None, 2.1, 2.2]})
    b = curve("b", {1: [1.0, 9.0, 1.05, 1.1]})
    (level,) = compare(a, b, RATE).levels
    assert level.replicates == 3
    assert level.factor == pytest.approx(2.0)


def test_a_goodput_of_zero_is_compared_without_a_factor() -> None:
    a = curve("a", {1: [1.0, 1.1, 1.2], 4: [2.0, 2.1, 2.2]})
    b = curve("b", {1: [2.0, 2.1, 2.2], 4: [0.0, 0.0, 0.0]})
    found = compare(a, b, "goodput_per_s")
    assert (found.outcome, found.a, found.low, found.high) == ("crosses", "b", 1, 4)
    assert [level.factor is None for level in found.levels] == [False, True]
    assert "zero has no logarithm" in found.notes[0]


def test_two_goodputs_of_zero_are_the_same() -> None:
    nothing: dict[int, list[float | None]] = {1: [0.0, 0.0, 0.0]}
    found = compare(curve("a", nothing), curve("b", nothing), "goodput_per_s")
    assert found.text == "unresolved: both have the same value in every repeat"


def test_an_equal_pair_says_how_small_a_difference_is_excluded() -> None:
    a = curve("a", {n: [1.0, 1.001, 0.999] for n in (1, 4)})
    b = curve("b", {n: [1.0, 1.0, 1.0] for n in (1, 4)})
    found = compare(a, b, RATE)
    assert found.reason == (
        "no difference was seen; if there is one, it is below 1 % at every concurrency"
    )


def test_with_two_levels_a_bend_cannot_be_seen_so_the_gap_is_the_interval() -> None:
    found = compare(llama({4: 2.0, 8: 0.5}), ONE, RATE)
    assert (found.outcome, found.low, found.high) == ("crosses", 4, 8)


def test_levels_that_only_one_side_has_are_named() -> None:
    found = compare(llama({1: 2.0, 4: 2.0, 64: 2.0}), ONE, RATE)
    assert found.outcome == "a_always"
    assert found.notes == (
        "at 64: measured for llama.cpp only",
        "at 8, 16 and 32: measured for vLLM only",
    )


def test_a_metric_without_a_better_direction_is_refused() -> None:
    with pytest.raises(KeyError):
        compare(ONE, ONE, "inflight_mean")


def test_every_metric_of_a_level_with_a_direction_can_be_compared() -> None:
    from edgeagent.core.comparison import DIRECTIONS

    undirected = {"cached_prompt_fraction", "inflight_mean"}
    assert set(LEVEL_METRICS) - set(DIRECTIONS) == undirected


@pytest.mark.parametrize(
    ("bounds", "shown"),
    [((4.9, 7.1), ("4", "8")), ((5.54, 6.21), ("5.5", "6.3")), ((5.541, 5.552), ("5.54", "5.56"))],
)
def test_bounds_are_rounded_outwards(bounds: tuple[float, float], shown: tuple[str, str]) -> None:
    assert outwards(*bounds) == shown


values = st.lists(
    st.one_of(st.none(), st.floats(min_value=0, max_value=1e6)), min_size=0, max_size=5
)
curves = st.dictionaries(st.integers(min_value=1, max_value=256), values, max_size=6)


@given(curves, curves, st.sampled_from(["goodput_per_s", "ttft_s.p95"]))
def test_whatever_was_measured_the_outcome_is_consistent(
    a: dict[int, list[float | None]], b: dict[int, list[float | None]], metric: str
) -> None:
    found = compare(Curve("a", a), Curve("b", b), metric)
    assert found.text
    assert_consistent(found)
    back = compare(Curve("b", b), Curve("a", a), metric)
    turned = {"a_always": "b_always", "b_always": "a_always"}
    assert back.outcome == turned.get(found.outcome, found.outcome)


def assert_consistent(found: Comparison) -> None:
    if found.outcome == "crosses":
        assert found.a_better_up_to is not None
        assert found.b_better_from is not None
        assert found.low is not None
        assert found.high is not None
        assert found.a_better_up_to <= found.low <= found.high <= found.b_better_from
    elif found.outcome == "unresolved":
        assert found.reason
    for level in found.levels:
        assert (
            level.ci95 is None
            or level.factor is None
            or (level.ci95[0] <= level.factor <= level.ci95[1])
        )
