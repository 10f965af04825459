"""What prefix reuse and speculation give alone and together, worked out by hand."""

from __future__ import annotations

import pytest

from edgeagent.core.curves import Point
from edgeagent.core.factorial import Effect, effects

RATE = "output_tokens_per_s"


def point(cache: str, spec: str, block: int, value: float, **more: float | None) -> Point:
    known = {
        RATE: value,
        "ttft_s.p50": 1 / value,
        "draft_acceptance": 0.6 if spec != "off" else None,
    }
    return Point("vLLM", cache, spec, 8, block, {**known, **more})


def square(
    cache: float, spec: float, both: float, noise: float = 0.01, **more: float | None
) -> list[Point]:
    """Three blocks: 100 tokens/s with neither, times these gains; blocks differ, pairs hardly."""
    return [
        point(c, s, block, 100 * gain * drift * (1 + noise * sign * (c == s)), **more)
        for block, (drift, sign) in enumerate([(1.0, -1), (1.5, 0), (0.7, 1)])
        for c, s, gain in (
            ("off", "off", 1.0),
            ("on", "off", cache),
            ("off", "ngram", spec),
            ("on", "ngram", both),
        )
    ]


def only(points: list[Point], metric: str = RATE) -> Effect:
    (found,) = effects(points, [metric])
    return found


def test_gains_that_multiply_add() -> None:
    found = only(square(1.8, 1.5, 2.7, noise=0.0))
    assert found.interplay == "add"
    assert found.prefix_cache.factor == pytest.approx(1.8)
    assert found.speculation.factor == pytest.approx(1.5)
    assert found.interaction.factor == pytest.approx(1.0)
    assert found.both.factor == pytest.approx(2.7)
    assert found.text == (
        "vLLM at 8: prefix reuse 1.80x (1.80 to 1.80), ngram speculation 1.50x (1.50 to 1.50), "
        "both 2.70x (2.70 to 2.70); the two gains add (they multiply to what both give)"
    )


def test_main_effects_average_over_the_other_setting() -> None:
    found = only(square(2.0, 2.0, 2.0, noise=0.0))
    # The cache gives 2 without speculation and 1 with it: the geometric mean is the root of 2.
    assert found.prefix_cache.factor == pytest.approx(2**0.5)
    assert found.speculation.factor == pytest.approx(2**0.5)
    assert found.interaction.factor == pytest.approx(0.5)
    assert found.interplay == "overlap"


def test_both_together_worse_than_the_better_one_alone_is_a_conflict() -> None:
    assert only(square(2.0, 1.5, 1.2)).interplay == "conflict"


def test_more_than_the_product_reinforces() -> None:
    assert only(square(1.2, 1.2, 2.0)).interplay == "reinforce"


def test_less_time_to_the_first_token_is_a_gain_above_one() -> None:
    assert only(square(1.8, 1.5, 2.7), "ttft_s.p50").prefix_cache.factor == pytest.approx(
        1.8, rel=0.02
    )


def test_noise_that_leaves_it_open_is_unresolved_with_the_range() -> None:
    found = only(square(1.8, 1.5, 2.5, noise=0.15))
    assert found.interplay == "unresolved"
    assert "of the product" in found.text


def test_two_repeats_have_factors_but_no_interval() -> None:
    points = [p for p in square(1.8, 1.5, 2.7) if p.block < 2]
    found = only(points)
    assert (found.interplay, found.replicates) == ("unresolved", 2)
    assert found.both.factor is not None
    assert found.both.ci95 is None
    assert "three repeats of all four combinations" in (found.reason or "")


def test_speculation_that_never_drafted_proves_nothing() -> None:
    found = only(square(1.8, 1.0, 1.8, draft_acceptance=None))
    assert (found.speculation_proved, found.interplay) == (False, "unresolved")
    assert "did not show that it drafted" in found.text


def test_acceptance_is_given_at_each_concurrency() -> None:
    found = only(square(1.8, 1.5, 2.7, accepted_per_draft=1.5))
    assert found.draft_acceptance == pytest.approx(0.6)
    assert found.accepted_per_draft == pytest.approx(1.5)


def test_a_repeat_that_lacks_one_combination_is_left_out() -> None:
    points = [p for p in square(1.8, 1.5, 2.7) if (p.block, p.prefix_cache) != (2, "on")]
    assert only(points).replicates == 2


def test_without_all_four_combinations_there_are_no_effects() -> None:
    assert effects([p for p in square(1.8, 1.5, 2.7) if p.prefix_cache == "on"], [RATE]) == ()
