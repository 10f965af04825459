"""Windows of the week, as one line."""

from __future__ import annotations

import pytest

from edgeagent.core.policy import DAYS, Window
from edgeagent.core.windows import parse


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("daily 01:00-04:00", Window(DAYS, 60, 240)),
        ("01:00-04:00", Window(DAYS, 60, 240)),
        ("Mon-Fri 22:00-05:00", Window(("mon", "tue", "wed", "thu", "fri"), 1320, 300)),
        ("sat,SUN 00:00-24:00", Window(("sat", "sun"), 0, 1440)),
        ("Sat-Mon,Wed 12:30 - 13:00", Window(("mon", "wed", "sat", "sun"), 750, 780)),
    ],
)
def test_what_is_written_is_understood(text: str, window: Window) -> None:
    assert parse(text) == window


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("noon", "is not a window"),
        ("Mon 1:00-2:00", "is not a window"),
        ("Mon 10:60-11:00", "is not a window"),
        ("Mon 24:00-24:00", "names a time that no clock shows"),
        ("Mon 00:00-24:01", "names a time that no clock shows"),
        ("Mon 10:00-10:00", "begins and ends at once"),
        ("Mo 10:00-11:00", "'mo' is no day"),
        ("Mon- 10:00-11:00", "'' is no day"),
    ],
)
def test_what_is_no_window_is_refused(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parse(text)


def test_a_window_over_midnight_is_open_on_the_next_morning() -> None:
    friday_night = parse("Fri 22:00-05:00")
    saturday_at_four = 5 * 24 * 60 + 4 * 60
    assert friday_night.left(saturday_at_four) == 60
    assert friday_night.left(saturday_at_four + 60) == 0
