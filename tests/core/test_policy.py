"""When a window is open and for how long, on weeks worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.core.policy import (
    DAYS,
    MINUTES_A_DAY,
    MINUTES_A_WEEK,
    Day,
    LocalTime,
    Policy,
    Window,
    left_minutes,
)


def at(day: Day, clock: str) -> LocalTime:
    hours, minutes = clock.split(":")
    return LocalTime(day, int(hours) * 60 + int(minutes))


def window(days: tuple[Day, ...], begin: str, end: str) -> Window:
    return Window(days, at("mon", begin).minute, at("mon", end).minute)


NIGHT = window(("mon", "fri"), "22:00", "05:30")


@pytest.mark.parametrize(
    ("day", "clock", "left"),
    [
        ("mon", "21:59", 0),
        ("mon", "22:00", 450),
        ("mon", "23:59", 331),
        ("tue", "00:00", 330),
        ("tue", "05:29", 1),
        ("tue", "05:30", 0),
        ("tue", "23:00", 0),  # Tuesday is not a day that it begins on
        ("sat", "05:00", 30),  # Friday's
        ("mon", "01:00", 0),  # Sunday had none
    ],
)
def test_a_window_over_midnight_belongs_to_the_day_it_begins_on(
    day: Day, clock: str, left: int
) -> None:
    assert left_minutes([NIGHT], at(day, clock)) == left


def test_sundays_window_runs_into_monday() -> None:
    assert left_minutes([window(("sun",), "23:00", "01:00")], at("mon", "00:30")) == 30


def test_equal_ends_make_a_whole_day() -> None:
    whole = window(("wed",), "00:00", "00:00")
    assert left_minutes([whole], at("wed", "00:00")) == 1440
    assert left_minutes([whole], at("wed", "23:59")) == 1
    assert left_minutes([whole], at("thu", "00:00")) == 0


def test_a_window_that_opens_when_another_closes_carries_on() -> None:
    weekend = window(("sat", "sun"), "00:00", "00:00")
    assert left_minutes([NIGHT, weekend], at("fri", "22:00")) == 2 * 60 + 2 * 1440
    assert left_minutes([weekend], at("sat", "12:00")) == 12 * 60 + 1440


def test_without_windows_and_with_one_that_never_closes_nothing_limits_a_sweep() -> None:
    assert left_minutes([], at("mon", "12:00")) is None
    assert left_minutes([Window(DAYS, 360, 360)], at("mon", "12:00")) is None


def test_a_policy_that_nobody_wrote_allows_nothing() -> None:
    nothing = Policy()
    assert nothing.operations == nothing.profiles == nothing.issuers == ()
    assert (dict(nothing.bounds), nothing.max_runs_per_day) == ({}, 0)


MINUTES = st.integers(0, MINUTES_A_DAY - 1)
WINDOWS = st.builds(
    Window, st.lists(st.sampled_from(DAYS), unique=True).map(tuple), MINUTES, MINUTES
)


@given(st.lists(WINDOWS, max_size=3), st.sampled_from(DAYS), MINUTES)
def test_what_is_left_is_how_many_minutes_in_a_row_some_window_is_open(
    windows: list[Window], day: Day, minute: int
) -> None:
    def open_at(of_week: int) -> bool:
        """The same by looking at each minute of the week."""
        for each in windows:
            for begin_day in each.days:
                begin = DAYS.index(begin_day) * MINUTES_A_DAY + each.begin
                if of_week in {(begin + k) % MINUTES_A_WEEK for k in range(each.length)}:
                    return True
        return False

    now = LocalTime(day, minute)
    left = left_minutes(windows, now)
    if left is None:
        assert not windows or open_at(now.of_week)
        return
    assert open_at(now.of_week) == (left > 0)
    assert not open_at((now.of_week + left) % MINUTES_A_WEEK)
    if left:
        assert open_at((now.of_week + left - 1) % MINUTES_A_WEEK)
