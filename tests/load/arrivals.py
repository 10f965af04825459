"""A second operator who comes to a scripted server in a process of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from test_runner import NoGuard, Notebook, OurEngine, as_asked

from edgeagent.clock import SystemClock
from edgeagent.core.interference import Observed, observe
from edgeagent.core.model import (
    ArrivalRecord,
    ArrivalSpec,
    CellRecord,
    EngineSpec,
    Limits,
    MeasureArrival,
    Plan,
    RequestTrace,
    SweepSpec,
    Switch,
    WorkloadSpec,
)
from edgeagent.core.plan import configurations, expand, remaining
from edgeagent.engines.fake import FakeEngine
from edgeagent.load.drive import Halt
from edgeagent.load.runner import Line, Runner, World
from edgeagent.load.stream import LoadClient
from edgeagent.ports import Engine, Server

QUICK = ArrivalSpec(
    pairs=3, first="none", prompt_tokens=400, wanted_prompt_tokens=400, output_tokens=4, quiet_s=0.3
)


def a_spec(*args: str, slots: int | None = None, cache: Switch = "off") -> SweepSpec:
    """Three in flight, a token every 20 ms each, on a server with these arguments."""
    engine = EngineSpec("scripted", "fake", args=("--ttft-ms", "40", *args), slots=slots)
    return SweepSpec(
        engines=(engine,),
        concurrency=(3,),
        prefix_cache=(cache,),
        repeats=1,
        context=512,
        cooldown_s=0.0,
        memory_repeats=0,
        canary=0,
        limits=Limits(request_s=30, idle_s=20, start_s=60),
        workload=WorkloadSpec(
            requests=1, warmup=0, prefix_tokens=64, prompt_tokens=16, output_tokens=12
        ),
        second_operator="on",
    )


def arrivals_alone(plan: Plan, arrival: ArrivalSpec) -> Plan:
    """What is left of a plan once its other cells are done, with arrivals as `arrival` says."""
    left = remaining(plan, {cell.cell_id for cell in plan.cells})
    return replace(
        left,
        steps=tuple(
            replace(step, cell=replace(step.cell, arrival=arrival))
            if isinstance(step, MeasureArrival)
            else step
            for step in left.steps
        ),
    )


@dataclass(frozen=True)
class Watched:
    """The record of the one arrival cell, and its requests."""

    record: CellRecord
    traces: tuple[RequestTrace, ...]

    def observed(self) -> Observed:
        """What they show."""
        assert isinstance(self.record, ArrivalRecord)
        assert self.record.failure is None, self.record.failure
        return observe(self.record, self.traces)


async def watch(spec: SweepSpec, folder: Path, arrival: ArrivalSpec = QUICK) -> Watched:
    """Let a second operator come to a real scripted process; its log goes into `folder`."""
    engines: Mapping[str, Engine] = {one.id: FakeEngine(one) for one in spec.engines}
    identities = {c: engines[c.engine.id].identify(c) for c in configurations(spec)}
    notebook = Notebook(OurEngine())

    @asynccontextmanager
    async def connect(server: Server) -> AsyncIterator[Line]:
        async with LoadClient(server.url, SystemClock(), spec.limits) as client:
            yield client

    world = World(
        engines=engines,
        connect=connect,
        clock=SystemClock(),
        sink=notebook,
        watcher=notebook,
        log_path=lambda step, restarts: folder / f"engine-{step.replicate}-{restarts}.log",
        rss_bytes=lambda: None,
        gauge=notebook,
        guard=NoGuard(),
        confirm=as_asked,
    )
    await Runner(arrivals_alone(expand(spec, identities), arrival), world, Halt()).run()
    assert notebook.failed == []
    (record,) = notebook.records
    return Watched(record, tuple(t for t in notebook.traces if t.attempt == record.attempt))
