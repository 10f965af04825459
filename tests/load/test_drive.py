"""Who is in flight when: sustained load, waves, lead-in, and every way a load ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from edgeagent.clock import ManualClock
from edgeagent.core.model import (
    Cell,
    EngineConfig,
    EngineSpec,
    ErrorKind,
    Phase,
    RequestTrace,
    Role,
    Shape,
    WorkloadSpec,
)
from edgeagent.load.drive import Drive, Halt, Tools
from edgeagent.load.workload import Job
from edgeagent.ports import HttpRequest

pytestmark = pytest.mark.anyio

SPEC = EngineSpec("fake", "fake")


def a_cell(concurrency: int, shape: Shape = "sustained", seconds: float | None = None) -> Cell:
    work = WorkloadSpec(shape=shape, output_tokens=8, seconds=seconds)
    return Cell("c", EngineConfig(SPEC, 4, 512, "off", "off"), concurrency, 0, work, None)


class Room:
    """Stands in for client and server: a request ends when the test says so."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.halt = Halt()
        self.inflight: dict[tuple[Role, int], asyncio.Future[ErrorKind | None]] = {}
        self.started: list[Job] = []
        self.built: list[int] = []
        self.traces: list[RequestTrace] = []
        self.record: Callable[[RequestTrace], None] = self.traces.append

    def tools(self) -> Tools:
        return Tools(self.clock, self.build, self.send, self.record)

    def build(self, job: Job) -> HttpRequest:
        self.built.append(job.index)
        return HttpRequest("/v1/completions", json.dumps({"n": job.index}).encode())

    async def send(
        self, request: HttpRequest, job: Job, scheduled_ns: int, halt: Halt
    ) -> RequestTrace:
        end: asyncio.Future[ErrorKind | None] = asyncio.get_running_loop().create_future()
        self.started.append(job)
        self.inflight[job.role, job.index] = end
        both: set[asyncio.Future[Any]] = {end, halt.future()}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        self.inflight.pop((job.role, job.index))
        error = end.result() if end.done() else halt.reason
        return RequestTrace("c", job.attempt, job.index, job.role, scheduled_ns, error=error)

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def end(
        self, *indices: int, role: Role = "measured", error: ErrorKind | None = None
    ) -> None:
        for index in indices:
            self.inflight[role, index].set_result(error)
        await self.settle()

    def now(self) -> list[tuple[Role, int]]:
        return sorted(self.inflight)


def begin(room: Room, cell: Cell, *phases: Phase) -> asyncio.Future[None]:
    return asyncio.ensure_future(Drive(cell, "a", phases, room.tools(), room.halt).run())


async def test_sustained_load_keeps_as_many_in_flight_as_asked() -> None:
    room = Room()
    running = begin(room, a_cell(3), Phase("measured", 5))
    await room.settle()
    assert room.now() == [("measured", 0), ("measured", 1), ("measured", 2)]
    await room.end(1)
    assert room.now() == [("measured", 0), ("measured", 2), ("measured", 3)]
    await room.end(0, 2, 3)
    await room.end(4)
    await running
    assert [trace.index for trace in room.traces] == [1, 0, 2, 3, 4]


async def test_waves_start_together_and_wait_for_the_last_answer() -> None:
    room = Room()
    running = begin(room, a_cell(2, "fanout"), Phase("measured", 4))
    await room.settle()
    await room.end(0)
    assert room.now() == [("measured", 1)]
    room.clock.advance(1)
    await room.end(1)
    assert room.now() == [("measured", 2), ("measured", 3)]
    await room.end(2, 3)
    await running
    scheduled = {trace.index: trace.scheduled_ns for trace in room.traces}
    assert scheduled[0] == scheduled[1] != scheduled[2] == scheduled[3]
    assert [job.wave for job in room.started] == [0, 0, 1, 1]


async def test_the_lead_in_is_staggered_and_hands_its_slots_over_without_draining() -> None:
    room = Room()
    lead_in = Phase("lead_in", 4, staggered=True)
    running = begin(room, a_cell(4), lead_in, Phase("measured", 4))
    await room.settle()
    # 8 tokens, staggered over four: ceil(8 x 1/4), ceil(8 x 2/4) ...
    assert [job.output_tokens for job in room.started] == [2, 4, 6, 8]
    await room.end(0, role="lead_in")
    assert ("measured", 0) in room.now()
    assert len(room.now()) == 4
    await room.end(1, 2, 3, role="lead_in")
    await room.end(0, 1, 2, 3)
    await running


async def test_a_prime_asks_for_one_token() -> None:
    room = Room()
    running = begin(room, a_cell(2), Phase("prime", 2))
    await room.settle()
    assert [job.output_tokens for job in room.started] == [1, 1]
    await room.end(0, 1, role="prime")
    await running


async def test_a_request_is_built_before_its_slot_is_free() -> None:
    room = Room()
    running = begin(room, a_cell(2), Phase("measured", 6))
    await room.settle()
    assert len(room.started) == 2
    assert set(room.built) == {0, 1, 2, 3}
    room.halt.now("interrupted", "enough")
    await running


async def test_a_cell_bounded_by_seconds_lets_what_is_in_flight_finish() -> None:
    room = Room()
    running = begin(room, a_cell(2, seconds=5.0), Phase("measured", None, 5.0))
    await room.settle()
    room.clock.advance(4)
    await room.end(0)
    assert room.now() == [("measured", 1), ("measured", 2)]
    room.clock.advance(1)
    await room.end(1)
    assert room.now() == [("measured", 2)]
    await room.end(2)
    await running
    assert all(trace.ok for trace in room.traces)


async def test_a_wave_that_the_clock_cuts_short_is_not_sent() -> None:
    room = Room()
    running = begin(room, a_cell(2, "fanout", 5.0), Phase("measured", None, 5.0))
    await room.settle()
    room.clock.advance(6)
    await room.end(0, 1)
    await running
    assert len(room.traces) == 2


async def test_a_halt_ends_everything_in_flight_with_its_reason() -> None:
    room = Room()
    running = begin(room, a_cell(3), Phase("measured", 50))
    await room.settle()
    room.halt.now("interrupted", "Ctrl-C")
    room.halt.now("engine_died", "too late: the first reason stays")
    await running
    assert [trace.error for trace in room.traces] == ["interrupted"] * 3


async def test_twenty_failures_in_a_row_end_the_load() -> None:
    room = Room()
    running = begin(room, a_cell(1), Phase("measured", 500))
    for index in range(20):
        await room.settle()
        await room.end(index, error="connect")
    await running
    assert len(room.traces) == 20
    assert room.halt.detail is not None
    assert "20 requests in a row failed" in room.halt.detail


async def test_a_success_in_between_starts_the_count_anew() -> None:
    room = Room()
    running = begin(room, a_cell(1), Phase("measured", 39))
    for index in range(39):
        await room.settle()
        await room.end(index, error=None if index == 19 else "connect")
    await running
    assert len(room.traces) == 39
    assert room.halt.reason is None


async def test_a_record_that_cannot_be_kept_ends_all_workers_and_leaks_no_task() -> None:
    room = Room()
    before = asyncio.all_tasks()

    def full(trace: RequestTrace) -> None:
        raise OSError("disk full")

    room.record = full
    running = begin(room, a_cell(4), Phase("measured", 50))
    await room.settle()
    room.inflight["measured", 2].set_result(None)
    with pytest.raises(OSError, match="disk full"):
        await running
    await room.settle()
    assert asyncio.all_tasks() == before
