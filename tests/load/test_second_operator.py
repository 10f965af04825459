"""A second operator comes: what is seen of a server whose true stall is known, and what goes wrong.

The server is the scripted one in a real process, reached through the real client and the runner.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from arrivals import QUICK, a_spec, arrivals_alone, watch
from test_runner import SPEC, Notebook, OurEngine, a_plan, run

from edgeagent.clock import ManualClock
from edgeagent.core.interference import combine, sentence
from edgeagent.core.model import (
    ArrivalKind,
    ArrivalRecord,
    ArrivalSpec,
    Cell,
    EngineConfig,
    EngineSpec,
    Limits,
    Phase,
    Plan,
    RequestTrace,
    WorkloadSpec,
)
from edgeagent.load.drive import Halt, Tools
from edgeagent.load.operator import Arriving, kinds, longest_s
from edgeagent.load.runner import cell_deadline_s
from edgeagent.load.workload import Job
from edgeagent.ports import HttpRequest

pytestmark = pytest.mark.anyio

TWO_PAIRS = replace(QUICK, pairs=2)


# ------------------------------------------------------------------ a server whose truth is known


async def test_a_stall_of_800_ms_is_measured_as_one(tmp_path: Path) -> None:
    (found,) = combine([(await watch(a_spec("--stall-ms", "800"), tmp_path)).observed()])
    stall = found.effects.gap_typical_s
    assert found.pairs == 3
    assert stall.value == pytest.approx(0.8, abs=0.02)
    assert stall.ci95 is not None
    assert stall.ci95[0] > 0
    assert "stalls running answers by" in sentence(found)


async def test_a_server_that_does_not_stall_shows_no_stall(tmp_path: Path) -> None:
    (found,) = combine([(await watch(a_spec(slots=4), tmp_path)).observed()])
    stall = found.effects.gap_typical_s
    assert stall.value == pytest.approx(0.0, abs=0.02)
    assert stall.ci95 is not None
    # As near as the other one: to read a request takes even this server a moment, and one interval
    # in twenty misses the truth (how many do is counted in test_interference.py).
    assert stall.ci95[0] <= 0.02
    assert stall.ci95[1] >= -0.02
    assert found.effects.queued.value == 0
    assert found.operator.queue_s == 0


async def test_full_slots_make_the_newcomer_wait_and_cost_a_victim_its_opening(
    tmp_path: Path,
) -> None:
    (found,) = combine([(await watch(a_spec(cache="on"), tmp_path, TWO_PAIRS)).observed()])
    # The newcomer takes one of three slots, in which the 64 tokens of the opening were.
    assert found.prefix_tokens_evicted == pytest.approx(64, abs=8)
    assert found.operator.queue_s is not None
    assert found.operator.queue_s > 0
    # Itself, and at least the request whose slot it took.
    assert found.effects.queued.value is not None
    assert found.effects.queued.value >= 2


async def test_a_newcomer_that_the_server_refuses_fails_the_cell_after_one_try(
    tmp_path: Path,
) -> None:
    too_long = replace(QUICK, prompt_tokens=600)  # of a context of 512
    seen = await watch(a_spec(), tmp_path, too_long)
    assert seen.record.failure_kind == "http_4xx"
    assert seen.record.failure is not None
    assert "the second operator's request failed" in seen.record.failure
    assert "exceeds the available context" in seen.record.failure
    assert sum(trace.role == "operator" for trace in seen.traces) == 1
    assert all(trace.ok for trace in seen.traces if trace.role == "measured")


# --------------------------------------------------------------- the order of things, on our clock


SLOW = replace(QUICK, pairs=2, quiet_s=2.0)
VICTIM_S, NEWCOMER_S = 0.5, 3.0


def a_cell(arrival: ArrivalSpec = SLOW) -> Cell:
    work = WorkloadSpec(shape="sustained", output_tokens=8)
    config = EngineConfig(EngineSpec("fake", "fake"), 2, 512, "off", "off")
    return Cell("c", config, 2, 0, work, None, "arrival", arrival)


class Place:
    """Requests take what their role says, on a clock that is moved."""

    def __init__(self, failing: int | None = None, halting: int | None = None) -> None:
        """`failing` and `halting` name the window whose newcomer fails, or ends it all."""
        self.clock = ManualClock(0)
        self.halt = Halt()
        self.traces: list[RequestTrace] = []
        self.inflight: list[str] = []
        self.seen_at_arrival: list[list[str]] = []
        self.failing = failing
        self.halting = halting

    def build(self, job: Job) -> HttpRequest:
        return HttpRequest("/", job.role.encode())

    async def send(
        self, request: HttpRequest, job: Job, scheduled_ns: int, halt: Halt
    ) -> RequestTrace:
        if job.role == "operator":
            self.seen_at_arrival.append(list(self.inflight))
            if job.index == self.halting:
                self.halt.now("interrupted", "Ctrl-C")
        self.inflight.append(job.role)
        await self.clock.sleep(NEWCOMER_S if job.role == "operator" else VICTIM_S)
        self.inflight.remove(job.role)
        failed = job.role == "operator" and job.index == self.failing
        error = "http_5xx" if failed else halt.reason
        return RequestTrace("c", job.attempt, job.index, job.role, scheduled_ns, error=error)

    async def go(self, cell: Cell) -> Arriving:
        """Carry out an arrival step, moving the clock whenever everybody waits."""
        phases = (Phase("lead_in", 2, staggered=True), Phase("measured", None))
        tools = Tools(self.clock, self.build, self.send, self.traces.append)
        load = Arriving(cell, "a", phases, tools, self.halt)
        running = asyncio.ensure_future(load.run())
        while not running.done():
            for _ in range(30):
                await asyncio.sleep(0)
            self.clock.advance(0.1)
            assert self.clock.now_ns() < 600e9
        await running
        return load


def pattern(load: Arriving) -> list[ArrivalKind]:
    return [arrival.kind for arrival in load.arrivals]


async def test_windows_follow_each_other_after_a_rehearsal() -> None:
    place = Place()
    load = await place.go(a_cell())
    assert pattern(load) == ["rehearsal", "none", "operator", "none", "operator"]
    newcomers = [trace for trace in place.traces if trace.role == "operator"]
    came = [a.at_ns for a in load.arrivals if a.kind != "none"]
    assert [trace.scheduled_ns for trace in newcomers] == came


async def test_odd_repeats_turn_the_pairs_round() -> None:
    load = await Place().go(a_cell(replace(SLOW, first="operator")))
    assert pattern(load) == ["rehearsal", "operator", "none", "operator", "none"]


async def test_a_newcomer_waits_for_nobody_and_counts_apart() -> None:
    place = Place()
    await place.go(a_cell())
    assert place.seen_at_arrival == [["measured", "measured"]] * 3


async def test_a_window_without_a_newcomer_is_watched_as_long_as_one_with() -> None:
    load = await Place().go(a_cell())
    lengths = {a.kind: round((a.until_ns - a.at_ns) / 1e9, 1) for a in load.arrivals}
    # 3 s of the newcomer, 2 s of quiet
    assert lengths["operator"] == pytest.approx(5.0, abs=0.2)
    assert lengths["none"] == pytest.approx(5.0, abs=0.2)


async def test_quiet_time_lies_between_windows() -> None:
    load = await Place().go(a_cell())
    for before, after in zip(load.arrivals, load.arrivals[1:], strict=False):
        assert after.at_ns - before.until_ns >= 2e9


async def test_the_fan_out_goes_on_to_its_end_when_the_windows_are_over() -> None:
    place = Place()
    await place.go(a_cell())
    assert all(trace.ok for trace in place.traces)
    assert place.inflight == []


async def test_a_rehearsal_that_fails_ends_the_windows() -> None:
    load = await Place(failing=0).go(a_cell())
    assert load.failure is not None
    assert load.failure.error == "http_5xx"
    assert pattern(load) == ["rehearsal"]


async def test_a_newcomer_that_fails_later_costs_its_own_window() -> None:
    load = await Place(failing=2).go(a_cell())
    assert load.failure is None
    assert pattern(load) == ["rehearsal", "none", "operator", "none", "operator"]


async def test_a_halt_ends_windows_and_fan_out_and_keeps_what_was_watched() -> None:
    place = Place(halting=2)
    load = await place.go(a_cell())
    assert pattern(load) == ["rehearsal", "none"]


async def test_a_step_is_bounded_by_its_windows_each_at_the_request_limit() -> None:
    cell = a_cell()
    phases = (Phase("lead_in", 2), Phase("measured", None))
    # Five windows of 10 s and twice ten times the least quiet, and three rounds of victims
    assert longest_s(SLOW, 10) == 5 * (10 + 2 * 20)
    assert cell_deadline_s(Limits(request_s=10), cell, phases) == 5 * 50 + 3 * 10
    assert list(kinds(SLOW)) == ["rehearsal", "none", "operator", "none", "operator"]


# ----------------------------------------------------------------------------- when things go wrong


@dataclass
class Arrivals(Notebook):
    """Requests take a moment; the engine or the operator's patience ends at a newcomer."""

    at_newcomer: int = 2
    then: str = "die"

    async def send(
        self, request: HttpRequest, job: Job, scheduled_ns: int, halt: Halt
    ) -> RequestTrace:
        trace = RequestTrace(job.cell.cell_id, job.attempt, job.index, job.role, scheduled_ns)
        if job.role == "operator" and job.index == self.at_newcomer:
            if self.then == "die":
                self.engine.servers[-1].dead = "it was ended by SIGKILL"
            elif self.stop is not None:
                self.stop.now("interrupted", "SIGINT was received")
        await asyncio.wait({halt.future()}, timeout=0.02)
        return replace(trace, error=halt.reason)


def a_small_plan() -> Plan:
    plan = a_plan(replace(SPEC, second_operator="on"))
    return arrivals_alone(plan, replace(QUICK, pairs=1, quiet_s=0.05))


async def test_an_engine_that_dies_at_an_arrival_fails_the_cell_and_is_started_again() -> None:
    notebook = Arrivals(OurEngine())
    await run(notebook, a_small_plan())
    (record,) = notebook.records
    assert isinstance(record, ArrivalRecord)
    assert record.failure_kind == "engine_died"
    assert len(notebook.launches) == 2
    assert notebook.engine.alive == 0


async def test_a_stop_at_an_arrival_leaves_the_cell_unfinished() -> None:
    notebook = Arrivals(OurEngine(), then="stop")
    await run(notebook, a_small_plan())
    assert notebook.records == []
    assert notebook.engine.alive == 0


async def test_a_step_that_goes_well_has_its_moments_in_its_record() -> None:
    notebook = Arrivals(OurEngine(), at_newcomer=99)
    await run(notebook, a_small_plan())
    (record,) = notebook.records
    assert isinstance(record, ArrivalRecord)
    assert record.failure is None
    assert [a.kind for a in record.arrivals] == ["rehearsal", "none", "operator"]
    assert all(record.started_ns < a.at_ns < a.until_ns for a in record.arrivals)
    assert all(a.until_ns <= record.finished_ns for a in record.arrivals)
