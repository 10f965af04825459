"""What does a running fan-out meet when a second operator comes, and what when nobody does?

A fan-out of N is kept in flight. Once it is steady, windows follow each other: in one nobody comes,
in the next a newcomer with a long prompt of its own does, at its moment, whoever is waiting. The
moments are kept, those at which nobody came too, so that both are looked at alike
(core/interference.py).

    steady, rehearsal, then for each window:   quiet | moment, newcomer or nobody | quiet

The rehearsal is a newcomer that is not counted: it makes the engine ready for such a prompt, and
says how long one takes here. For so long a window without one is watched. A newcomer waits for
nobody; the next window waits until the newcomer before it has gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from edgeagent.core.model import Arrival, ArrivalKind, ArrivalSpec, Cell, Phase, RequestTrace
from edgeagent.load.drive import Drive, Halt, Tools, together
from edgeagent.load.workload import Job

_LONGEST_QUIET = 10.0
"""Quiet time grows with the newcomer's, up to so many times the least."""


class Arriving:
    """The load of one arrival step; `arrivals` and `failure` say what came of it."""

    def __init__(
        self, cell: Cell, attempt: str, phases: tuple[Phase, ...], tools: Tools, halt: Halt
    ) -> None:
        assert cell.arrival is not None  # noqa: S101  # because the plan makes no such step without
        self.cell = cell
        self.phases = phases
        self.arrivals: tuple[Arrival, ...] = ()
        """The windows that were watched to their end."""
        self.failure: RequestTrace | None = None
        """The rehearsal, when it failed: then no newcomer would do better."""
        self._spec: ArrivalSpec = cell.arrival
        self._attempt = attempt
        self._tools = tools
        self._halt = halt
        self._drive = Drive(cell, attempt, phases, replace(tools, record=self._record), halt)
        self._starting = sum(p.requests or 0 for p in phases if p.role == "lead_in")
        self._steady: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._starting == 0:
            self._steady.set_result(None)
        self._longest_ns = 0

    async def run(self) -> None:
        """Keep the fan-out in flight through all windows, then let it end."""
        await together((self._drive.run(), self._windows()))

    def _record(self, trace: RequestTrace) -> None:
        self._tools.record(trace)
        if trace.role == "lead_in":
            self._starting -= 1
            if self._starting == 0:
                self._steady.set_result(None)

    async def _windows(self) -> None:
        try:
            await self._unless_halted(self._steady)
            for index, kind in enumerate(kinds(self._spec)):
                if self._halt.reason is not None or self.failure is not None:
                    return
                await self._window(kind, index)
        finally:
            self._drive.close()

    async def _window(self, kind: ArrivalKind, index: int) -> None:
        """Quiet, the moment, whoever comes, quiet; kept unless the load had to end before."""
        clock = self._tools.clock
        # Built beforehand: nothing stands between the moment and the newcomer.
        job = Job(self.cell, self._attempt, "operator", index, self._spec.output_tokens)
        request = self._tools.build(job)
        at_ns = clock.now_ns() + self._quiet_ns()
        await self._wait_until(at_ns)
        if self._halt.reason is not None:
            return
        if kind == "none":
            await self._wait_until(at_ns + self._longest_ns)
        else:
            trace = await self._tools.send(request, job, at_ns, self._halt)
            self._tools.record(trace)
            self._longest_ns = max(self._longest_ns, clock.now_ns() - at_ns)
            if kind == "rehearsal" and not trace.ok:
                self.failure = trace
        until_ns = clock.now_ns() + self._quiet_ns()
        await self._wait_until(until_ns)
        if self._halt.reason is None:
            self.arrivals = (*self.arrivals, Arrival(at_ns, until_ns, kind))

    def _quiet_ns(self) -> int:
        least_ns = round(self._spec.quiet_s * 1e9)
        return min(max(least_ns, self._longest_ns // 2), round(least_ns * _LONGEST_QUIET))

    async def _wait_until(self, at_ns: int) -> None:
        clock = self._tools.clock
        sleeping = asyncio.ensure_future(clock.sleep((at_ns - clock.now_ns()) / 1e9))
        try:
            await self._unless_halted(sleeping)
        finally:
            sleeping.cancel()
            await asyncio.gather(sleeping, return_exceptions=True)

    async def _unless_halted(self, future: asyncio.Future[None]) -> None:
        both: set[asyncio.Future[Any]] = {future, self._halt.future()}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)


def kinds(spec: ArrivalSpec) -> Iterator[ArrivalKind]:
    """What happens in each window, in order."""
    yield "rehearsal"
    for _ in range(spec.pairs):
        yield spec.first
        yield "operator" if spec.first == "none" else "none"


def longest_s(spec: ArrivalSpec, request_s: float) -> float:
    """How long all windows take at most when no request takes longer than `request_s`."""
    windows = 1 + 2 * spec.pairs
    return windows * (request_s + 2 * spec.quiet_s * _LONGEST_QUIET)
