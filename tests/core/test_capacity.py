"""How many simultaneous requests are served: the search, its end, and what it says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.core.capacity import Bounds, Capacity, Evaluation, Search, capacity, next_concurrency

SLO = {"ttft_s": 1.0}
GOOD, BAD = (1.0, 0.99, 0.95), (0.9, 0.5, 0.94)


def search(bounds: Bounds, *tried: tuple[int, tuple[float | None, ...]]) -> Search:
    return Search("vLLM", SLO, bounds, tuple(Evaluation(*one) for one in tried))


def searched(
    bounds: Bounds,
    measure: Callable[[int], tuple[float | None, ...]],
    first: tuple[int, ...] = (),
) -> tuple[Capacity | None, list[int]]:
    """Run the search to its end; what was tried, in order."""
    tried = list(first)
    while True:
        now = search(bounds, *((n, measure(n)) for n in tried))
        following = next_concurrency(now)
        if following is None:
            return capacity(now), tried
        tried.append(following)


def up_to(most: int) -> Callable[[int], tuple[float | None, ...]]:
    return lambda n: GOOD if n <= most else BAD


def test_the_search_doubles_and_then_halves() -> None:
    found, tried = searched(Bounds(256), up_to(11))
    assert tried == [1, 2, 4, 8, 16, 12, 10, 11]
    assert found is not None
    assert (found.concurrency, found.low, found.high, found.limited_by) == (11, 11, 11, "slo")
    assert found.text == "vLLM serves 11 at once within the SLO"


def test_listed_levels_are_where_the_search_begins() -> None:
    _, tried = searched(Bounds(256), up_to(11), first=(1, 4, 8, 16))
    assert tried[4:] == [12, 10, 11]


def test_large_answers_are_not_searched_to_the_last_request() -> None:
    found, _ = searched(Bounds(1024), up_to(200))
    assert found is not None
    assert found.low <= 200 <= found.high + 1
    assert found.high - found.low <= 12


@pytest.mark.parametrize(
    ("bounds", "by", "words"),
    [
        (Bounds(8), "range", "more were not tried"),
        (Bounds(64, memory=8), "memory", "more do not fit in memory"),
        (Bounds(64, slots=8, memory=9), "slots", "the server has no more slots"),
    ],
)
def test_what_ends_the_search_is_said(bounds: Bounds, by: str, words: str) -> None:
    found, tried = searched(bounds, up_to(100))
    assert found is not None
    assert (found.concurrency, found.high, found.limited_by) == (8, 8, by)
    assert words in found.text
    assert max(tried) == 8


def test_a_box_that_does_not_keep_it_for_one_serves_none() -> None:
    found, tried = searched(Bounds(64), up_to(0))
    assert tried == [1]
    assert found is not None
    assert (found.concurrency, found.high, found.limited_by) == (0, 0, "slo")
    assert found.text == "vLLM does not keep the SLO even for one request at a time"


def test_no_room_for_a_single_slot_is_an_answer_of_memory_only_once_something_was_tried() -> None:
    assert next_concurrency(search(Bounds(64, memory=0))) is None
    assert capacity(search(Bounds(64, memory=0))) is None


def test_a_concurrency_that_holds_in_some_repeats_only_lies_within_the_interval() -> None:
    found = capacity(search(Bounds(64), (8, GOOD), (9, (1.0, 0.9, 1.0)), (10, BAD)))
    assert found is not None
    assert (found.concurrency, found.low, found.high) == (8, 8, 9)
    assert found.text == "vLLM serves 8 at once within the SLO (at most 9)"


def test_a_repeat_that_failed_served_nobody() -> None:
    assert not Evaluation(4, (1.0, None, 1.0)).holds
    assert not Evaluation(4, ()).holds


def test_a_smaller_one_that_does_not_hold_outweighs_a_larger_one_that_does() -> None:
    now = search(Bounds(64), (1, GOOD), (4, BAD), (8, GOOD))
    assert next_concurrency(now) == 2
    found = capacity(now)
    assert found is not None
    assert found.concurrency == 1
    assert "held at 8 but not at a smaller concurrency" in found.text


def test_repeats_of_the_same_concurrency_belong_together() -> None:
    found = capacity(search(Bounds(4), (4, (1.0,)), (4, (0.5,))))
    assert found is not None
    assert found.concurrency == 0


def test_one_repeat_only_is_said() -> None:
    found = capacity(search(Bounds(2), (2, (1.0,))))
    assert found is not None
    assert "one repeat only" in found.text


shares = st.one_of(st.none(), st.floats(min_value=0, max_value=1))
BOUNDS = st.builds(
    Bounds,
    range=st.integers(1, 512),
    memory=st.one_of(st.none(), st.integers(1, 512)),
    slots=st.one_of(st.none(), st.integers(1, 512)),
)


@given(BOUNDS, st.integers(0, 600))
def test_a_monotone_box_is_found_within_a_sixteenth(bounds: Bounds, most: int) -> None:
    found, tried = searched(bounds, up_to(most))
    limit, _ = bounds.limit()
    true = min(most, limit)
    assert found is not None
    assert found.low <= true <= found.high
    assert found.high - found.low <= max(0, found.low // 16)
    assert max(tried) <= limit
    assert len(tried) == len(set(tried)) <= 20


@given(BOUNDS, st.dictionaries(st.integers(1, 512), st.tuples(shares, shares, shares)), shares)
def test_any_box_comes_to_an_end_and_is_answered_with_what_was_seen(
    bounds: Bounds, seen: dict[int, tuple[float | None, ...]], other: float | None
) -> None:
    found, tried = searched(bounds, lambda n: seen.get(n, (other,)))
    assert found is not None
    assert len(tried) <= 20
    assert 0 <= found.low == found.concurrency <= found.high <= bounds.limit()[0]
    for one in found.evaluations:
        assert one.holds or one.concurrency > found.concurrency
