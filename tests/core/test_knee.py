"""Where throughput stops growing, and what the first token costs there."""

from __future__ import annotations

import pytest

from edgeagent.core.comparison import Curve
from edgeagent.core.curves import Point
from edgeagent.core.knee import KNEE_BY, Knee, knee, knees

SPREAD = (0.99, 1.0, 1.01)


def found(rates: dict[int, float], spread: tuple[float, ...] = SPREAD) -> Knee:
    rate = Curve("vLLM", {n: [value * s for s in spread] for n, value in rates.items()})
    ttft = Curve("vLLM", {n: [0.1 * n for _ in spread] for n in rates})
    return knee(rate, ttft)


def test_the_knee_is_the_first_level_that_no_larger_one_outgrows() -> None:
    one = found({1: 10, 4: 38, 8: 70, 16: 72, 32: 71})
    assert (one.outcome, one.concurrency, one.low, one.high) == ("found", 8, 8, 8)
    assert one.output_tokens_per_s == pytest.approx(70)
    assert one.ttft_s == pytest.approx(0.8)
    assert one.text == (
        "vLLM: the quoted throughput, 70.0 output tokens/s, holds up to 8; the first token then "
        "takes 0.80 s (median)"
    )


def test_throughput_that_falls_has_its_knee_at_the_top() -> None:
    assert found({1: 10, 4: 40, 8: 30, 16: 20}).concurrency == 4


def test_throughput_that_grows_to_the_end_says_so() -> None:
    one = found({1: 10, 4: 38, 8: 70})
    assert (one.outcome, one.concurrency) == ("still_growing", 8)
    assert "still grows at 8, the largest level" in one.text


def test_noise_widens_the_range_instead_of_making_a_knee() -> None:
    # 10, 11, 12 with repeats 30 % apart in no common order: any of the three may be the knee.
    rate = Curve("x", {1: [8.0, 10.0, 12.0], 4: [13.0, 11.0, 9.0], 8: [11.0, 9.0, 16.0]})
    one = knee(rate, Curve("x", {}))
    assert (one.low, one.concurrency, one.high) == (1, 8, 8)
    assert one.ttft_s is None
    assert "(1 to 8, 95 %)" in one.text


def test_few_repeats_leave_it_unresolved() -> None:
    one = found({1: 10, 4: 38}, (1.0, 1.0))
    assert (one.outcome, one.concurrency) == ("unresolved", None)
    assert "three repeats" in one.text
    assert found({4: 38}).outcome == "unresolved"


def test_every_engine_and_setting_has_a_knee_of_its_own() -> None:
    points = [
        Point(engine, cache, "off", n, block, dict.fromkeys(KNEE_BY, 1.0))
        for engine in ("a", "b")
        for cache in ("off", "on")
        for n in (1, 4)
        for block in range(3)
    ]
    assert [(k.engine, k.prefix_cache, k.concurrency) for k in knees(points)] == [
        ("a", "off", 1),
        ("a", "on", 1),
        ("b", "off", 1),
        ("b", "on", 1),
    ]
