"""Has the box been idle for a while?"""

from __future__ import annotations

from edgeagent.core.commands import Box
from edgeagent.core.idle import Lookback


def looked(*boxes: Box, seconds: float = 3) -> Lookback:
    """One look a second."""
    lookback = Lookback(seconds)
    for at_s, box in enumerate(boxes):
        lookback.add(at_s, box)
    return lookback


def test_nothing_is_known_before_the_box_was_watched_for_long_enough() -> None:
    assert not looked().covered()
    assert not looked(Box(), Box(), Box()).covered()
    assert looked(Box(), Box(), Box(), Box()).covered()


def test_for_how_long_it_was_watched_can_be_told() -> None:
    assert looked().watched_s == 0
    assert looked(Box(), Box(), Box()).watched_s == 2
    assert looked(*[Box()] * 50).watched_s == 3


def test_the_worst_of_the_while_counts_and_what_is_older_does_not() -> None:
    busy = Box(foreign_gpu=0.9, foreign_cpu=0.5, temperature_c=80, available_bytes=5)
    calm = Box(foreign_gpu=0.1, foreign_cpu=0.1, temperature_c=40, available_bytes=9)
    assert looked(calm, busy, calm, calm).worst() == busy
    assert looked(busy, calm, calm, calm, calm, calm).worst() == calm


def test_a_value_that_is_sometimes_missing_is_known_and_one_that_never_came_is_not() -> None:
    worst = looked(Box(), Box(foreign_cpu=0.25), Box()).worst()
    assert (worst.foreign_cpu, worst.foreign_gpu) == (0.25, None)


def test_a_production_engine_that_has_fallen_silent_is_not_idle() -> None:
    told, silent = Box(production_requests=0), Box()
    assert looked(told, told, silent).worst().production_requests is None
    assert looked(silent, told, Box(production_requests=2), told).worst().production_requests == 2


def test_looks_need_not_come_at_even_times() -> None:
    seen = Lookback(30)
    for at_s, share in ((0, 0.9), (10, 0.0), (40, 0.1), (45, 0.2)):
        seen.add(at_s, Box(foreign_cpu=share))
    assert seen.worst().foreign_cpu == 0.2
    assert seen.covered()
