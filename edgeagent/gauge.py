"""When has memory settled, and what does a full reading of it say?

The runner's view of the sampler: it marks samples, waits until memory no longer moves, and has the
expensive sources read at the moments that count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from edgeagent.core.model import SamplePhase
from edgeagent.core.settling import Settling
from edgeagent.ports import Clock
from edgeagent.probes.sampler import Sampler

_LOOK_S = 0.25
_PATIENCE = 10
"""Memory that has not settled after so many times the settling time never will."""


@dataclass(frozen=True)
class BoxGauge:
    """Reads the memory of this box through its sampler; `settle_s` is how long it must hold."""

    sampler: Sampler
    clock: Clock
    settle_s: float

    def mark(self, cell_id: str | None, phase: SamplePhase | None) -> None:
        """Let the samples from now on belong to this cell and phase."""
        self.sampler.mark(cell_id, phase)

    async def settle(self) -> None:
        """Return when memory has held still for `settle_s`, or after ten times that."""
        settling = Settling(self.settle_s)
        begun_ns = self.clock.now_ns()
        while (self.clock.now_ns() - begun_ns) / 1e9 < _PATIENCE * self.settle_s:
            latest = self.sampler.latest
            if latest is not None and settling.has_settled(latest.at_ns / 1e9, latest.values):
                return
            await self.clock.sleep(_LOOK_S)

    def keep(self, values: Mapping[str, float | None]) -> None:
        """Keep values that somebody else has read, as a sample of this moment."""
        self.sampler.keep(values)

    async def read(self, phase: SamplePhase) -> None:
        """Take one full reading, beside the event loop: PSS of a large engine takes a second."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self.sampler.take_full, phase)
