"""Which window of the week is written there?

`Mon-Fri 22:00-05:00`, `Sat,Sun 00:00-24:00` or `daily 01:00-04:00`, in the box's local time: one
line of a configuration, where a policy has a table (core/policy.py says what a window means).
"""

from __future__ import annotations

import re

from edgeagent.core.policy import DAYS, MINUTES_A_DAY, Day, Window

_WRITTEN = re.compile(r"(?:([A-Za-z,-]+)\s+)?(\d\d):([0-5]\d)\s*-\s*(\d\d):([0-5]\d)", re.ASCII)
_HOW = "write a window like Mon-Fri 22:00-05:00 or daily 01:00-04:00"


def parse(text: str) -> Window:
    """The window that is written there. Raises ValueError with what is wrong."""
    written = _WRITTEN.fullmatch(text.strip())
    if not written:
        raise ValueError(f"{text!r} is not a window: {_HOW}")
    days, *numbers = written.groups()
    begin_h, begin_m, end_h, end_m = (int(number) for number in numbers)
    begin, end = begin_h * 60 + begin_m, end_h * 60 + end_m
    if begin >= MINUTES_A_DAY or end > MINUTES_A_DAY:
        raise ValueError(f"{text!r} names a time that no clock shows: {_HOW}")
    if begin == end:
        raise ValueError(f"{text!r} begins and ends at once: for a whole day write 00:00-24:00")
    return Window(_days(days or "daily", text), begin, end)


def _days(words: str, text: str) -> tuple[Day, ...]:
    if words.lower() == "daily":
        return DAYS
    found: set[Day] = set()
    for part in words.lower().split(","):
        first, dash, last = part.partition("-")
        begin, end = _index(first, text), _index(last if dash else first, text)
        span = (end - begin) % len(DAYS) + 1
        found.update(DAYS[(begin + step) % len(DAYS)] for step in range(span))
    return tuple(day for day in DAYS if day in found)


def _index(word: str, text: str) -> int:
    for index, day in enumerate(DAYS):
        if word == day:
            return index
    raise ValueError(f"{text!r}: {word!r} is no day; days are Mon Tue Wed Thu Fri Sat Sun")
