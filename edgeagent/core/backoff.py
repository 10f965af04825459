"""How long do we wait before we try to connect again?

Full jitter: a wait is drawn evenly from zero to a ceiling that doubles with each failure, so that a
fleet whose broker restarts does not come back at once. Failures are forgotten only after a
connection that held for a while: two agents with one client id throw each other out every second,
and each of them connects without any trouble.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Literal

Cause = Literal["ordinary", "refused", "taken_over"]
"""Why there is no connection: refused is for names, passwords, certificates and access rights,
which a person has to put right; taken_over is another client with our id."""

_MOST_DOUBLINGS = 30


@dataclass(frozen=True)
class Pace:
    """The ceilings and floors of waiting, in seconds."""

    first_s: float = 10.0
    """Ceiling of the very first wait: boxes of one plant start together after a power cut."""
    return_s: float = 15.0
    """Ceiling of the wait after a connection was lost, at the least: the others lost theirs too."""
    most_s: float = 120.0
    refused_s: float = 60.0
    taken_over_s: float = 300.0
    stable_s: float = 60.0
    """A connection that held this long ends the count of failures."""


@dataclass(frozen=True)
class Backoff:
    """Where we stand between attempts; `failures` counts those since the last stable connection."""

    pace: Pace = Pace()
    failures: int = 0

    def first_wait_s(self, random: Random) -> float:
        """Return how long to wait before the first attempt of all."""
        return random.uniform(0.0, self.pace.first_s)

    def ended(self, up_s: float | None) -> Backoff:
        """Return where we stand after an attempt that held for `up_s`, None if it never stood."""
        if up_s is not None and up_s >= self.pace.stable_s:
            return replace(self, failures=0)
        return replace(self, failures=self.failures + 1)

    def wait_s(self, cause: Cause, up_s: float | None, random: Random) -> float:
        """Return how long to wait now; call it on what `ended` returned."""
        ceiling = min(self.pace.most_s, 2.0 ** min(self.failures, _MOST_DOUBLINGS))
        if up_s is not None:
            ceiling = max(ceiling, self.pace.return_s)
        return self._floor_s(cause) + random.uniform(0.0, ceiling)

    def _floor_s(self, cause: Cause) -> float:
        if cause == "taken_over":
            return self.pace.taken_over_s
        return self.pace.refused_s if cause == "refused" else 0.0
