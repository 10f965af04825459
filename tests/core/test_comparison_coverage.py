"""The two promises of a comparison, by simulation with a known truth (seeded, 1,000 draws each).

tests/long has more of it: crossings near an end, curves that bend, noise that is not normal.
"""

from __future__ import annotations

import pytest
from curves_made import Noise, compared, covered, different, equal, straight

GRID = [(blocks, noise) for blocks in (3, 5, 10) for noise in (0.03, 0.10, 0.25)]


@pytest.mark.parametrize(("blocks", "noise"), GRID)
def test_the_interval_holds_the_crossing_in_93_of_100_draws(blocks: int, noise: float) -> None:
    found = compared(blocks, straight(6), blocks, Noise(noise, launch=noise / 2))
    said, share = covered(found, 6)
    assert said >= 300, "too few crossings to judge by"
    assert share >= 0.93


@pytest.mark.parametrize(("blocks", "noise"), GRID)
def test_identical_engines_are_called_different_at_most_5_times_in_100(
    blocks: int, noise: float
) -> None:
    found = compared(blocks, equal, blocks, Noise(noise, launch=noise / 2))
    assert different(found) <= 0.05


def test_a_clear_crossing_is_found_nearly_always_with_three_blocks() -> None:
    found = compared(1, straight(6), 3, Noise(0.03))
    said, _ = covered(found, 6)
    assert said >= 990
    assert sum(one.a_better_up_to == 4 and one.b_better_from == 8 for one in found) >= 900


def test_an_engine_that_is_always_better_is_never_said_to_cross() -> None:
    found = compared(2, lambda _: 0.4, 3, Noise(0.10))
    assert not any(one.outcome in {"crosses", "b_always"} for one in found)
