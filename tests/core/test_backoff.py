from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from edgeagent.core.backoff import Backoff, Cause, Pace


def longest(backoff: Backoff, cause: Cause = "ordinary", up_s: float | None = None) -> float:
    """The longest of many waits, which is near the ceiling."""
    random = Random(1)
    return max(backoff.wait_s(cause, up_s, random) for _ in range(2000))


def after(failures: int) -> Backoff:
    backoff = Backoff()
    for _ in range(failures):
        backoff = backoff.ended(None)
    return backoff


def test_the_first_attempts_of_a_fleet_are_spread_over_ten_seconds() -> None:
    waits = [Backoff().first_wait_s(Random(seed)) for seed in range(2000)]
    assert 0 <= min(waits) < 0.1
    assert 9.9 < max(waits) <= 10


def test_the_ceiling_doubles_up_to_two_minutes() -> None:
    for failures, ceiling in ((1, 2), (2, 4), (6, 64), (7, 120), (40, 120), (4000, 120)):
        assert 0.98 * ceiling < longest(after(failures)) <= ceiling


def test_after_a_lost_connection_a_fleet_is_spread_over_fifteen_seconds() -> None:
    assert 14.7 < longest(Backoff().ended(3600), up_s=3600) <= 15


def test_only_a_connection_that_held_for_a_minute_ends_the_count() -> None:
    assert after(5).ended(59.9).failures == 6
    assert after(5).ended(60).failures == 0


def test_two_boxes_with_one_id_wait_ever_longer_though_each_connect_succeeds() -> None:
    backoff = Backoff()
    for _ in range(7):
        backoff = backoff.ended(2.0)
    assert longest(backoff, up_s=2.0) > 117


@given(st.integers(0, 10_000), st.integers(0, 50), st.one_of(st.none(), st.floats(0, 1e9)))
def test_what_a_person_has_to_put_right_waits_a_minute_and_a_stranger_five(
    seed: int, failures: int, up_s: float | None
) -> None:
    backoff = after(failures)
    assert 60 <= backoff.wait_s("refused", up_s, Random(seed)) <= 180
    assert 300 <= backoff.wait_s("taken_over", up_s, Random(seed)) <= 420
    assert 0 <= backoff.wait_s("ordinary", up_s, Random(seed)) <= 120


def test_the_same_seed_gives_the_same_waits() -> None:
    one = [after(4).wait_s("ordinary", None, random) for random in [Random(3)] for _ in range(5)]
    two = [after(4).wait_s("ordinary", None, random) for random in [Random(3)] for _ in range(5)]
    assert one == two


def test_the_pace_can_be_set() -> None:
    assert longest(Backoff(Pace(most_s=0.5)).ended(None)) <= 0.5
