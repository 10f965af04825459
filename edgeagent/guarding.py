"""Who watches which engine, and where does it stand when one had to be ended?

Joins the guard (a thread that looks at the memory of the box) with the engine that it may end and
with the sampler, which knows how much of that memory is the engine's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from edgeagent.archive import GuardRecord
from edgeagent.core.guard import Watched
from edgeagent.core.model import MemorySample
from edgeagent.ports import Engine
from edgeagent.probes.guard import Guard

_OWN = ("gpu.engine_bytes", "nvmap.engine_bytes", "drm.engine_bytes", "engine.anon_bytes")


class BoxGuard:
    """The runner's guardian. `latest` is the sampler's last sample; `keep` takes what happened."""

    def __init__(
        self,
        guard: Guard,
        latest: Callable[[], MemorySample | None],
        keep: Callable[[GuardRecord], None],
    ) -> None:
        self._guard = guard
        self._latest = latest
        self._keep = keep
        self._armed = False

    def arm(self, engine: Engine) -> None:
        """Watch for this engine from now on."""
        self._armed = True
        self._guard.arm(engine.kill, self._attributed)

    def set_pace(self, pace: Literal["fast", "slow"]) -> None:
        """Look four times a second, or once."""
        self._guard.set_pace(pace)

    def disarm(self) -> None:
        """Stop watching; what was seen is kept when the engine had to be ended."""
        watched = self._guard.disarm()
        if self._armed and watched.verdict.action == "kill":
            self._keep(_record(watched))
        self._armed = False

    def has_killed(self) -> str | None:
        """Why the engine had to be ended; None when it had not."""
        verdict = self._guard.verdict
        return verdict.reason if verdict.action == "kill" else None

    def _attributed(self) -> int | None:
        latest = self._latest()
        if latest is None:
            return None
        known = [value for name in _OWN if (value := latest.values.get(name)) is not None]
        return int(sum(known)) if known else None


def _record(watched: Watched) -> GuardRecord:
    return GuardRecord(
        reason=watched.verdict.reason,
        floor_bytes=watched.floor_bytes,
        start_margin_bytes=watched.start_margin_bytes,
        trace=tuple(
            {
                "at_s": look.at_s,
                "available_bytes": look.available_bytes,
                "free_bytes": look.free_bytes,
                "attributed_bytes": look.attributed_bytes,
            }
            for look in watched.trace
        ),
    )
