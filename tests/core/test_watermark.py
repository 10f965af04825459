from hypothesis import given
from hypothesis import strategies as st

from edgeagent.core.watermark import Hole, advance, fleet_wide_limit, queue_needed


def test_the_watermark_stops_before_the_first_missing_number() -> None:
    assert advance(0, {1, 2, 3, 5, 6}) == 3


def test_it_goes_on_from_where_it_was() -> None:
    assert advance(3, {4, 5, 7}) == 5


def test_it_passes_over_a_declared_gap() -> None:
    assert advance(0, {1, 2, 6}, [Hole(3, 5)]) == 6


def test_it_ends_inside_no_gap_that_begins_later() -> None:
    assert advance(0, {1}, [Hole(3, 5)]) == 1


def test_multiples_that_a_gap_excepts_are_waited_for() -> None:
    # 1 to 20 thinned to every fifth: 5, 10, 15 and 20 are still to come.
    assert advance(0, set(), [Hole(1, 20, every=5)]) == 4
    assert advance(0, {5, 10}, [Hole(1, 20, every=5)]) == 14
    assert advance(0, {5, 10, 15, 20}, [Hole(1, 20, every=5)]) == 20


def test_gaps_may_overlap_and_come_in_any_order() -> None:
    assert advance(0, {1}, [Hole(8, 9), Hole(2, 4), Hole(3, 7, every=2), Hole(4, 6)]) == 9


def test_a_gap_of_millions_takes_no_time() -> None:
    assert advance(0, set(), [Hole(1, 10**9)]) == 10**9


_HOLES = st.builds(
    lambda first, length, every: Hole(first, first + length, every),
    st.integers(1, 40),
    st.integers(0, 20),
    st.none() | st.integers(2, 6),
)


@given(st.integers(0, 20), st.sets(st.integers(1, 60)), st.lists(_HOLES, max_size=6))
def test_it_is_the_highest_number_up_to_which_each_is_stored_or_declared(
    wm: int, stored: set[int], holes: list[Hole]
) -> None:
    def done(seq: int) -> bool:
        return seq in stored or any(
            hole.first <= seq <= hole.last and (hole.every is None or seq % hole.every)
            for hole in holes
        )

    expected = wm
    while done(expected + 1):
        expected += 1
    assert advance(wm, stored, holes) == expected


def test_boxes_share_half_of_the_brokers_queue() -> None:
    # 1,000 boxes and 100,000 messages: 50 each.
    assert fleet_wide_limit(100_000, 1_000) == 50


def test_a_queue_is_too_short_when_half_of_it_is_less_than_10_for_each_box() -> None:
    assert queue_needed(50) == 1_000


def test_a_box_never_gets_more_than_200_nor_less_than_10() -> None:
    assert fleet_wide_limit(1_000_000, 1) == 200
    assert fleet_wide_limit(1_000, 0) == 200
    assert fleet_wide_limit(1_000, 10_000) == 10
