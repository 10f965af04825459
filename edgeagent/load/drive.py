"""How do the requests of one step reach the engine?

`sustained` keeps N requests in flight: whoever finishes hands its slot to the next. `fanout` sends
waves of N that start together, as one parent agent does; the next wave waits for the last answer.

A drive never hangs and never raises for what the server does: requests have their own deadlines,
and `Halt` ends what is in flight with a reason, so that everything seen so far becomes a trace.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from edgeagent.core.model import Cell, ErrorKind, Phase, RequestTrace
from edgeagent.load.workload import Job
from edgeagent.ports import Clock, HttpRequest


class Halt:
    """Why and that the load must end now. The first reason stays."""

    def __init__(self) -> None:
        self._fired: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.reason: ErrorKind | None = None
        self.detail: str | None = None

    def now(self, reason: ErrorKind, detail: str) -> None:
        """End the load; requests in flight are recorded as failed with `reason`."""
        if self.reason is None:
            self.reason = reason
            self.detail = detail
            self._fired.set_result(None)

    def future(self) -> asyncio.Future[None]:
        """Done once the load must end; wait for it together with something else."""
        return self._fired


class Send(Protocol):
    """Send one request and follow it to its end; never raises for what the server does."""

    async def __call__(
        self, request: HttpRequest, job: Job, scheduled_ns: int, halt: Halt
    ) -> RequestTrace:
        """The trace of the request, whatever became of it."""
        ...


@dataclass(frozen=True)
class Tools:
    """What a drive needs of the world."""

    clock: Clock
    build: Callable[[Job], HttpRequest]
    send: Send
    record: Callable[[RequestTrace], None]


class Drive:
    """The load of one step: its jobs in order, N at a time, until they or `halt` end it."""

    def __init__(
        self, cell: Cell, attempt: str, phases: tuple[Phase, ...], tools: Tools, halt: Halt
    ) -> None:
        self.cell = cell
        self.phases = phases
        self._tools = tools
        self._halt = halt
        self._closed = False
        self._jobs = _Jobs(cell, attempt, phases, tools.clock)
        self._ready: deque[tuple[Job, HttpRequest]] = deque()
        self._failed_in_a_row = 0
        self._patience = max(20, 2 * cell.concurrency)

    async def run(self) -> None:
        """Send everything; returns when the last request has ended."""
        self._refill()
        if self.cell.workload.shape == "fanout":
            await self._waves()
        else:
            await together(self._worker() for _ in range(self.cell.concurrency))

    def close(self) -> None:
        """Send nothing more; what is in flight goes on to its end."""
        self._closed = True

    async def _worker(self) -> None:
        while (ready := self._take()) is not None:
            await self._one(*ready, scheduled_ns=self._tools.clock.now_ns())

    async def _waves(self) -> None:
        while True:
            wave: list[tuple[Job, HttpRequest]] = []
            while len(wave) < self.cell.concurrency and (ready := self._take()) is not None:
                wave.append(ready)
            if not wave or (self._jobs.timed and len(wave) < self.cell.concurrency):
                return  # a wave that the clock cut short would be a smaller fan-out
            start_ns = self._tools.clock.now_ns()
            await together(self._one(job, request, scheduled_ns=start_ns) for job, request in wave)

    async def _one(self, job: Job, request: HttpRequest, scheduled_ns: int) -> None:
        trace = await self._tools.send(request, job, scheduled_ns, self._halt)
        self._tools.record(trace)
        self._failed_in_a_row = 0 if trace.ok else self._failed_in_a_row + 1
        if self._failed_in_a_row >= self._patience:
            self._halt.now(
                "cell_deadline",
                f"{self._failed_in_a_row} requests in a row failed, the last with {trace.error}: "
                f"{trace.error_detail}",
            )

    def _take(self) -> tuple[Job, HttpRequest] | None:
        """The next request, built beforehand; None when there is nothing more to send."""
        if self._halt.reason is not None or self._closed:
            return None
        if not self._ready:
            self._refill()
        if not self._ready:
            return None
        job, request = self._ready.popleft()
        if self._jobs.closed(job):
            return None
        # Build the successor while the engine works, not between a free slot and its request.
        asyncio.get_running_loop().call_soon(self._refill)
        return job, request

    def _refill(self) -> None:
        while len(self._ready) < self.cell.concurrency:
            job = self._jobs.next()
            if job is None:
                return
            self._ready.append((job, self._tools.build(job)))


async def together(parts: Iterable[Coroutine[object, object, None]]) -> None:
    """Run all at once; when one raises (a full disk), none of the others is left running."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Jobs:
    """The jobs of a step, phase after phase; a phase bounded by seconds ends by the clock."""

    def __init__(self, cell: Cell, attempt: str, phases: tuple[Phase, ...], clock: Clock) -> None:
        self._cell = cell
        self._attempt = attempt
        self._clock = clock
        self._seconds = next((p.seconds for p in phases if p.seconds is not None), None)
        self._end_ns: int | None = None
        self._iterator = self._all(phases)

    def next(self) -> Job | None:
        return next(self._iterator, None)

    @property
    def timed(self) -> bool:
        """Whether a phase ends by the clock."""
        return self._seconds is not None

    def closed(self, job: Job) -> bool:
        """Whether `job` belongs to a phase whose time is over; the first one opens the phase."""
        if self._seconds is None or job.role != "measured":
            return False
        now = self._clock.now_ns()
        if self._end_ns is None:
            self._end_ns = now + round(self._seconds * 1e9)
        return now >= self._end_ns

    def _all(self, phases: tuple[Phase, ...]) -> Iterator[Job]:
        for phase in phases:
            count = math.inf if phase.requests is None else phase.requests
            index = 0
            while index < count:
                yield self._job(phase, index)
                index += 1

    def _job(self, phase: Phase, index: int) -> Job:
        cell = self._cell
        output = cell.workload.output_tokens
        if phase.role == "prime":
            output = 1  # the prompt is what must get into the cache
        elif phase.staggered and phase.requests:
            output = math.ceil(output * (index + 1) / phase.requests)
        wave = index // cell.concurrency if cell.workload.shape == "fanout" else None
        return Job(cell, self._attempt, phase.role, index, output, wave)
