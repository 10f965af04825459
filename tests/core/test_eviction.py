"""What goes first when the spool is full; numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.core.eviction import (
    MIB,
    Disk,
    Holdings,
    Move,
    Span,
    SpoolLimits,
    absent,
    cap_bytes,
    ceiling_bytes,
    gap_reserve_bytes,
    next_move,
    spans,
    step_rows,
)

GIB = 1024 * MIB
LARGE = Disk(size_bytes=100 * GIB, free_bytes=50 * GIB, file_bytes=10 * MIB)
EMPTY = Holdings(kept_rows=0, parked_rows=0, sent_rows=0, fresh_rows=0, thin_rows=0)


def test_a_large_disk_gives_what_the_limits_say_and_a_small_one_a_twentieth() -> None:
    assert cap_bytes(SpoolLimits(), LARGE) == 256 * MIB
    assert cap_bytes(SpoolLimits(), replace(LARGE, size_bytes=1000 * MIB)) == 50 * MIB


def test_gap_records_have_room_of_their_own_above_the_results() -> None:
    assert gap_reserve_bytes(SpoolLimits(), LARGE) == MIB
    assert ceiling_bytes("R", SpoolLimits(), LARGE, 0) == 255 * MIB
    tiny = SpoolLimits(max_bytes=160_000)
    assert ceiling_bytes("R", tiny, LARGE, 0) == 150_000


def test_telemetry_leaves_the_part_of_the_reserve_that_results_have_not_used_yet() -> None:
    assert ceiling_bytes("M", SpoolLimits(), LARGE, 0) == 255 * MIB - 255 * MIB // 2
    assert ceiling_bytes("M", SpoolLimits(), LARGE, 100 * MIB) == 255 * MIB - 27 * MIB - MIB // 2
    assert ceiling_bytes("M", SpoolLimits(), LARGE, 200 * MIB) == 255 * MIB


def test_telemetry_leaves_the_disk_its_free_room_and_results_do_not_mind() -> None:
    short = replace(LARGE, free_bytes=507 * MIB)
    assert ceiling_bytes("M", SpoolLimits(), short, 0) == 5 * MIB
    assert ceiling_bytes("R", SpoolLimits(), short, 0) == 255 * MIB
    full = replace(LARGE, free_bytes=0)
    assert ceiling_bytes("M", SpoolLimits(), full, 0) == 0
    assert ceiling_bytes("R", SpoolLimits(), full, 0) == 10 * MIB


@pytest.mark.parametrize(
    ("held", "move"),
    [
        (Holdings(1, 1, 1, 100, 100), "drop_kept"),
        (Holdings(0, 1, 1, 100, 100), "drop_parked"),
        (Holdings(0, 0, 1, 100, 100), "drop_sent"),
        (Holdings(0, 0, 0, 100, 100), "thin"),
        (Holdings(0, 0, 0, 99, 100), "drop_oldest"),
        (Holdings(0, 0, 0, 9, 0), "drop_oldest"),
        (Holdings(0, 0, 0, 0, 1), "drop_oldest"),
        (EMPTY, "refuse"),
    ],
)
def test_what_costs_least_goes_first(held: Holdings, move: Move) -> None:
    assert next_move(held) == move


def test_thinning_and_dropping_leave_a_coarse_past_and_a_fine_present() -> None:
    """Rows come in tens into room for a hundred; a step takes ten."""
    fresh, thin = 0, 0
    for _ in range(100):
        fresh += 10
        while fresh + thin > 100:
            match next_move(Holdings(0, 0, 0, fresh, thin)):
                case "thin":
                    fresh, thin = fresh - 10, thin + 2
                case "drop_oldest":
                    thin -= 10
                case other:
                    pytest.fail(other)
    assert (fresh, thin) == (50, 50) or abs(fresh - thin) <= 10


def test_a_step_takes_what_is_needed_within_bounds() -> None:
    assert step_rows(excess_bytes=100_000, rows=1000, held_bytes=1_500_000) == 67
    assert step_rows(excess_bytes=1, rows=1000, held_bytes=1_500_000) == 10
    assert step_rows(excess_bytes=10**9, rows=1000, held_bytes=1_500_000) == 250
    assert step_rows(excess_bytes=5, rows=0, held_bytes=0) == 10


def test_consecutive_numbers_are_one_span() -> None:
    assert spans([1, 2, 3, 5, 7, 7, 8]) == [Span(1, 3), Span(5, 5), Span(7, 8)]
    assert spans([]) == []


@given(st.sets(st.integers(1, 60)), st.integers(1, 30), st.integers(0, 30))
def test_absent_is_the_rest_of_the_span(present: set[int], first: int, length: int) -> None:
    within = Span(first, first + length)
    inside = sorted(n for n in present if within.first <= n <= within.last)
    rest = [n for n in range(within.first, within.last + 1) if n not in present]
    assert absent(inside, within) == spans(rest)
