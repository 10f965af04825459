"""What does this box let the plant ask of it, and when?

A policy is written on the box by its owner, never sent to it. Everything is off until it says so:
operations, profiles, issuers and overrides are lists of what is allowed. Windows, quota and
cooldown narrow that down; guards look at the box at the moment of the question.

Windows are in local time, because shifts are. One that begins on a listed day may run over midnight
into the next. Where the clock is put forward a window inside the missing hour does not take place;
where it is put back it takes place twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

Operation = Literal["sweep", "cancel", "resync", "ping", "meta"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = get_args(Day)

Knob = Literal[
    "concurrency",
    "requests",
    "seconds",
    "repeats",
    "output_tokens",
    "prompt_tokens",
    "prefix_tokens",
    "context",
    "memory_slots",
]
"""What of a profile a command may override, where the policy has bounds for it."""
KNOBS: tuple[Knob, ...] = get_args(Knob)

MINUTES_A_DAY = 24 * 60
MINUTES_A_WEEK = 7 * MINUTES_A_DAY


@dataclass(frozen=True)
class Bounds:
    """Between which whole numbers an override may lie, and how many of them a list may hold."""

    least: int
    most: int
    count: int = 8


@dataclass(frozen=True)
class LocalTime:
    """A moment as the wall clock of the box shows it."""

    day: Day
    minute: int
    """Since midnight, 0 to 1439."""

    @property
    def of_week(self) -> int:
        """Minutes since Monday, 00:00."""
        return DAYS.index(self.day) * MINUTES_A_DAY + self.minute


@dataclass(frozen=True)
class Window:
    """From `begin` until just before `end`, minutes since midnight, on the days that it begins on.

    An end that is not after its begin lies on the next day; equal ones make a whole day, and so do
    0 and 1440.
    """

    days: tuple[Day, ...]
    begin: int
    end: int

    @property
    def length(self) -> int:
        """Minutes, 1 to 1440."""
        return (self.end - self.begin - 1) % MINUTES_A_DAY + 1

    def left(self, of_week: int) -> int:
        """Minutes until it closes, at a minute of the week; 0 when it is not open."""
        begins = (DAYS.index(day) * MINUTES_A_DAY + self.begin for day in self.days)
        passed = ((of_week - begin) % MINUTES_A_WEEK for begin in begins)
        return max((0, *(self.length - since for since in passed)))


@dataclass(frozen=True)
class Guards:
    """What the box must look like. None: not looked at."""

    most_foreign_gpu: float | None = None
    """Share of the GPU that others use, 0 to 1."""
    most_foreign_cpu: float | None = None
    """Share of all cores that others use, 0 to 1."""
    most_production_requests: int | None = None
    """Requests that the production engine has in work or in its queue."""
    most_temperature_c: float | None = None
    least_available_bytes: int | None = None


@dataclass(frozen=True)
class Policy:
    """Everything that the owner of the box allows; as it stands here, nothing."""

    operations: tuple[Operation, ...] = ()
    profiles: tuple[str, ...] = ()
    issuers: tuple[str, ...] = ()
    bounds: Mapping[Knob, Bounds] = field(default_factory=dict)
    windows: tuple[Window, ...] = ()
    """None at all: any time."""
    max_runs_per_day: int = 0
    cooldown_s: int = 3600
    """From the end of a run to the start of the next."""
    max_duration_s: int = 14_400
    when_busy: Literal["wait", "refuse"] = "wait"
    """What becomes of a sweep while another runs: one may wait."""
    guards: Guards = Guards()
    production_units: tuple[str, ...] = ()
    """systemd services that may be stopped for a sweep and are started again after it."""


def left_minutes(windows: Sequence[Window], now: LocalTime) -> int | None:
    """Minutes until no window is open any more; 0 outside of all, None when none ever closes.

    A window that opens when another closes carries on where that one ends.
    """
    if not windows:
        return None
    left = 0
    while left < MINUTES_A_WEEK:
        more = max(window.left((now.of_week + left) % MINUTES_A_WEEK) for window in windows)
        if more <= 0:
            return left
        left += more
    return None
