"""May a sweep begin now, as far as the box and the calendar say?

Gathers what core/commands.py judges by: the policies that have to allow it, and the moment. Each
origin has two policies: what the owner allows the plant, and when and how idle the schedule wants
the box for everybody.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from edgeagent.core.commands import Situation
from edgeagent.core.delivery import Stamp
from edgeagent.core.policy import DAYS, Guards, LocalTime, Policy
from edgeagent.errors import EdgeAgentError
from edgeagent.publish.spool import Spool
from edgeagent.service.telemetry import Telemetry
from edgeagent.settings import Settings

_RUNS_TODAY = "runs_today"
_LAST_END = "last_end_ms"


@dataclass(frozen=True)
class Calendar:
    """What the plant has begun today, and when a sweep ended last; kept in the spool."""

    spool: Spool
    local: Callable[[], time.struct_time] = time.localtime

    def now(self) -> LocalTime:
        """Return the moment as the wall clock of the box shows it."""
        now = self.local()
        return LocalTime(DAYS[now.tm_wday], now.tm_hour * 60 + now.tm_min)

    def runs_today(self) -> int:
        """Return how many sweeps the plant has begun since midnight. Raises SpoolUnavailable."""
        day, _, count = (self.spool.get(_RUNS_TODAY) or "").partition(" ")
        return int(count) if day == self._day() and count.isdecimal() else 0

    def begun(self) -> None:
        """Count one more. Raises SpoolFull, SpoolUnavailable."""
        self.spool.put(_RUNS_TODAY, f"{self._day()} {self.runs_today() + 1}")

    def _day(self) -> str:
        return time.strftime("%Y-%m-%d", self.local())

    def last_end_ms(self) -> int | None:
        """Return when a sweep ended last; None for never. Raises SpoolUnavailable."""
        text = self.spool.get(_LAST_END) or ""
        return int(text) if text.isdecimal() else None

    def ended(self, now_ms: int) -> None:
        """Remember that a sweep has ended, if that can be: it only makes the box more patient."""
        with suppress(EdgeAgentError):
            self.spool.put(_LAST_END, str(now_ms))


@dataclass(frozen=True)
class Busy:
    """What the daemon itself is doing."""

    sweep: Literal["none", "under way"]
    waiting: int


class Judging:
    """See the module; asked in the daemon's thread."""

    def __init__(
        self,
        calendar: Calendar,
        telemetry: Telemetry,
        settings: Callable[[], Settings],
        policy: Callable[[], Policy],
        stamp: Callable[[], Stamp],
    ) -> None:
        self._calendar, self._telemetry = calendar, telemetry
        self._settings, self._policy, self._stamp = settings, policy, stamp

    def policies(self, origin: Literal["plant", "box"]) -> tuple[Policy, ...]:
        """Return what all has to allow a sweep from there."""
        settings, owners = self._settings(), self._policy()
        by_schedule = replace(
            owners, windows=settings.windows(), guards=self._guards(owners.guards, settings)
        )
        return (owners, by_schedule) if origin == "plant" else (by_schedule,)

    def _guards(self, guards: Guards, settings: Settings) -> Guards:
        """How idle the box has to be: the stricter of policy and schedule."""
        schedule = settings.schedule
        gpu = schedule.max_foreign_gpu if self._telemetry.sees_gpu == "yes" else None
        requests = schedule.max_production_requests if schedule.production_url else None
        most = guards.most_production_requests
        return replace(
            guards,
            most_foreign_cpu=_stricter(guards.most_foreign_cpu, schedule.max_foreign_cpu),
            most_foreign_gpu=_stricter(guards.most_foreign_gpu, gpu),
            most_production_requests=(
                most if requests is None else requests if most is None else min(most, requests)
            ),
        )

    def situation(self, busy: Busy) -> Situation:
        """Return the moment at which a command is judged. Raises SpoolUnavailable."""
        settings, stamp = self._settings(), self._stamp()
        full = settings.mqtt.enabled and self._calendar.spool.refusal() is not None
        return Situation(
            now_ms=stamp.ts_ms,
            local=self._calendar.now(),
            clk=stamp.clk,
            profiles=settings.profiles(),
            running="nothing" if busy.sweep == "none" else "sweep",
            waiting=busy.waiting,
            runs_today=self._calendar.runs_today(),
            last_end_ms=self._calendar.last_end_ms(),
            spool="full" if full else "room",
            box=self._telemetry.lookback.worst(),
        )

    def unwatched(self) -> str | None:
        """Return why nobody can say yet whether the box is idle; None when it can be said."""
        seen = self._telemetry.lookback
        if seen.covered():
            return None
        left_s = max(1.0, seen.wanted_s - seen.watched_s)
        return (
            f"the box has been watched for only {seen.watched_s:.0f} of the {seen.wanted_s:.0f} s "
            f"for which it has to be idle (schedule.idle_for_s): ask again in {left_s:.0f} s"
        )


def _stricter(one: float | None, other: float | None) -> float | None:
    known = [value for value in (one, other) if value is not None]
    return min(known, default=None)
