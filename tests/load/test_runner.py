"""How a plan is carried out when engines die, do not start, or the operator has had enough."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from edgeagent.clock import SystemClock
from edgeagent.core.model import (
    CellRecord,
    EngineConfig,
    EngineIdentity,
    EngineSpec,
    Launch,
    Limits,
    MemorySample,
    Plan,
    RequestTrace,
    SamplePhase,
    ServerFacts,
    StartEngine,
    Step,
    SweepSpec,
    WorkloadSpec,
)
from edgeagent.core.plan import configurations, expand
from edgeagent.errors import EdgeAgentError, EngineError
from edgeagent.load.drive import Halt, Send
from edgeagent.load.runner import Line, Runner, World
from edgeagent.load.workload import Job
from edgeagent.ports import Ask, Engine, HttpRequest, Server

pytestmark = pytest.mark.anyio

SPEC = SweepSpec(
    engines=(EngineSpec("one", "fake", ("x",)),),
    concurrency=(1, 2),
    prefix_cache=("off",),
    repeats=1,
    cooldown_s=0.0,
    memory_repeats=0,
    canary=0,
    workload=WorkloadSpec(requests=4, warmup=1, prefix_tokens=8, prompt_tokens=8, output_tokens=4),
)


class OurServer:
    url = "http://127.0.0.1:1"
    argv = ("x",)
    ready_s = 0.1
    facts = ServerFacts(slots=2, context_per_slot=256)

    def __init__(self, told: Mapping[str, float] | None = None) -> None:
        self.dead: str | None = None
        self.told = dict(told or {})

    def pids(self) -> tuple[int, ...]:
        return ()

    def death(self) -> str | None:
        return self.dead

    async def tokenize(self, text: str) -> tuple[int, ...] | None:
        return tuple(range(100, 200))

    def request(self, ask: Ask) -> HttpRequest:
        return HttpRequest("/", b"{}")

    async def reset_cache(self) -> bool:
        return True

    async def counters(self) -> Mapping[str, float]:
        return dict(self.told)


@dataclass
class OurEngine:
    """Starts as often as it is told to; each server may be told when to die."""

    failures: list[bool] = field(default_factory=list)
    servers: list[OurServer] = field(default_factory=list)
    alive: int = 0
    told: Mapping[str, float] = field(default_factory=dict)
    """Counters of every server."""

    def identify(self, config: EngineConfig) -> EngineIdentity:
        return EngineIdentity("one", "fake", "1", "b", (), (), attached=False, model=None)

    async def start(self, config: EngineConfig, log: Path, timeout_s: float) -> Server:
        if self.failures and self.failures.pop(0):
            raise EngineError("it did not start; say please")
        self.alive += 1
        self.servers.append(OurServer(self.told))
        return self.servers[-1]

    async def stop(self) -> None:
        self.alive = 0

    def pids(self) -> tuple[int, ...]:
        return ()

    def starting(self) -> str | None:
        return "loading weights"

    def kill(self, why: str) -> None:
        self.servers[-1].dead = why


class NoGuard:
    """Watches nothing."""

    def arm(self, engine: Engine) -> None:
        pass

    def set_pace(self, pace: str) -> None:
        pass

    def disarm(self) -> None:
        pass

    def has_killed(self) -> str | None:
        return None


@dataclass
class Notebook:
    """A watcher and sink that writes down what it is told."""

    engine: OurEngine
    steps: list[str] = field(default_factory=list)
    traces: list[RequestTrace] = field(default_factory=list)
    records: list[CellRecord] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    failed: list[EdgeAgentError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    waits: list[str | None] = field(default_factory=list)
    readings: list[object] = field(default_factory=list)
    kill_at: int | None = None
    """The engine dies during this request, counted over the whole run."""
    kill_times: int = 1
    stop_at: int | None = None
    stop: Halt | None = None
    slow_s: float = 0.0

    def step_begins(self, step: Step, number: int, of: int) -> None:
        self.steps.append(step.kind)

    def launched(self, launch: Launch, server: Server) -> None:
        self.launches.append(launch)

    def stopped(self) -> None:
        pass

    def request_ended(self, trace: RequestTrace) -> None:
        self.traces.append(trace)

    def cell_ended(self, record: CellRecord) -> None:
        self.records.append(record)

    def memory_ended(self, record: CellRecord) -> None:
        self.records.append(record)

    def mark(self, cell_id: str | None, phase: SamplePhase | None) -> None:
        self.readings.append((cell_id is not None, phase))

    async def settle(self) -> None:
        self.readings.append("settled")

    def keep(self, values: Mapping[str, float | None]) -> None:
        self.readings.append(dict(values))

    async def read(self, phase: SamplePhase) -> None:
        self.readings.append(f"read {phase}, {self.engine.alive} alive")

    def launch_failed(self, step: StartEngine, error: EdgeAgentError) -> None:
        self.failed.append(error)

    def waiting(self, words: str | None) -> None:
        self.waits.append(words)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def append_request(self, trace: RequestTrace) -> None:
        pass

    def append_sample(self, sample: MemorySample) -> None:
        pass

    async def send(
        self, request: HttpRequest, job: Job, scheduled_ns: int, halt: Halt
    ) -> RequestTrace:
        trace = RequestTrace(job.cell.cell_id, job.attempt, job.index, job.role, scheduled_ns)
        number = len(self.traces)
        if self.stop is not None and number == self.stop_at:
            self.stop.now("interrupted", "SIGINT was received")
        if self.kill_at is not None and number >= self.kill_at and self.kill_times:
            self.kill_times -= 1
            self.kill_at = number + 6
            self.engine.servers[-1].dead = "it was ended by SIGKILL"
        if self.engine.servers[-1].dead or self.slow_s:
            await asyncio.wait({halt.future()}, timeout=self.slow_s or 5.0)
        return replace(trace, error=halt.reason)


class OurLine:
    clock_step_s = 0.0

    def __init__(self, send: Send) -> None:
        self.send = send

    async def open(self, connections: int) -> None:
        pass

    def forget_clock_step(self) -> None:
        pass


def a_plan(spec: SweepSpec = SPEC) -> Plan:
    configs = configurations(spec)
    engine = OurEngine()
    found = {c: replace(engine.identify(c), id=c.engine.id) for c in configs}
    return expand(spec, found)


def as_asked(config: EngineConfig, server: Server) -> None:
    """Every engine is what was asked for."""


def world(notebook: Notebook, engines: Mapping[str, Engine]) -> World:
    @asynccontextmanager
    async def connect(server: Server) -> AsyncIterator[Line]:
        yield OurLine(notebook.send)

    return World(
        engines=engines,
        connect=connect,
        clock=SystemClock(),
        sink=notebook,
        watcher=notebook,
        log_path=lambda step, restarts: Path(f"engine-{step.replicate}-{restarts}.log"),
        rss_bytes=lambda: None,
        gauge=notebook,
        guard=NoGuard(),
        confirm=as_asked,
    )


async def run(notebook: Notebook, plan: Plan | None = None) -> None:
    plan = plan or a_plan()
    stop = Halt()
    notebook.stop = stop
    engines = {spec.id: notebook.engine for spec in plan.spec.engines}
    await Runner(plan, world(notebook, engines), stop).run()


async def test_a_plan_is_carried_out_step_by_step() -> None:
    notebook = Notebook(OurEngine())
    await run(notebook)
    assert notebook.steps == ["start", "warmup", "measure", "measure", "stop"]
    assert [record.cell.concurrency for record in notebook.records] == [1, 2]
    assert all(record.failure is None for record in notebook.records)
    assert notebook.engine.alive == 0


async def test_an_engine_that_dies_fails_its_cell_and_is_started_and_warmed_up_again() -> None:
    notebook = Notebook(OurEngine(), kill_at=3)
    await run(notebook)
    first, second = notebook.records
    assert first.failure_kind == "engine_died"
    assert second.failure is None
    assert len(notebook.launches) == 2
    assert sum(trace.role == "warmup" for trace in notebook.traces) == 2
    assert notebook.engine.alive == 0


async def test_a_third_death_ends_the_launch() -> None:
    plan = a_plan(replace(SPEC, concurrency=(1, 2, 3, 4, 5)))
    notebook = Notebook(OurEngine(), kill_at=3, kill_times=99)
    await run(notebook, plan)
    assert len(notebook.launches) == 3
    assert {record.failure_kind for record in notebook.records} == {"engine_died"}
    assert "giving it up" in str(notebook.failed[-1])
    assert notebook.engine.alive == 0


async def test_a_start_that_fails_takes_only_its_own_cells() -> None:
    plan = a_plan(replace(SPEC, repeats=2))
    notebook = Notebook(OurEngine(failures=[True, False]))
    await run(notebook, plan)
    assert [str(error) for error in notebook.failed] == ["it did not start; say please"]
    assert [record.cell.repeat for record in notebook.records] == [1, 1]


async def test_a_stop_leaves_the_cell_unfinished_and_the_engine_gone() -> None:
    notebook = Notebook(OurEngine(), stop_at=3, slow_s=0.05)
    await run(notebook)
    assert notebook.records == []
    assert notebook.traces[-1].error == "interrupted"
    assert notebook.steps == ["start", "warmup", "measure"]
    assert notebook.engine.alive == 0


async def test_a_cell_that_takes_too_long_is_ended_and_the_sweep_goes_on() -> None:
    spec = replace(SPEC, limits=Limits(cell_s=0.3))
    notebook = Notebook(OurEngine(), slow_s=0.2)
    await run(notebook, a_plan(spec))
    assert [record.failure_kind for record in notebook.records] == ["cell_deadline"] * 2
    assert notebook.steps[-1] == "stop"


async def test_a_watcher_that_cannot_keep_a_record_still_leaves_no_engine() -> None:
    notebook = Notebook(OurEngine())

    def full(trace: RequestTrace) -> None:
        raise EdgeAgentError("the disk is full")

    notebook.request_ended = full  # type: ignore[method-assign]  # because the test plays the disk
    with pytest.raises(EdgeAgentError, match="disk is full"):
        await run(notebook)
    assert notebook.engine.alive == 0
