"""How is a plan carried out?

Step by step, in order; every decision is already in the plan. What can go wrong here belongs to
somebody: a request that fails is a trace, an engine that dies fails its cell and is started again,
an engine that cannot be started takes its own cells with it and leaves the others alone.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from edgeagent.core.model import (
    ArrivalRecord,
    Cell,
    CellRecord,
    ClientCost,
    Cooldown,
    EngineConfig,
    ErrorKind,
    Launch,
    Limits,
    Measure,
    MeasureArrival,
    MeasureMemory,
    Phase,
    Plan,
    Prime,
    RequestTrace,
    ResetCache,
    SamplePhase,
    StartEngine,
    Step,
    StopEngine,
    Warmup,
)
from edgeagent.errors import EdgeAgentError, EngineError, GuardError
from edgeagent.load.drive import Drive, Halt, Send, Tools
from edgeagent.load.operator import Arriving, longest_s
from edgeagent.load.workload import Prompts, corpus_characters, plant_text
from edgeagent.ports import Clock, Engine, Server, TraceSink

MAX_RESTARTS = 2
"""Restarts of an engine that died, per planned launch; a third death ends the launch."""

_LAG_PERIOD_S = 0.05

_WAITING_S = 1.0
"""How often somebody who waits for an engine is told how far it is."""

_POOL = ("kv_blocks", "kv_blocks_used", "requests_running", "requests_waiting")
_POOL_COUNT_S = 0.1
"""How often blocks are counted where they are the question."""
_POOL_LOOK_S = 1.0
"""And while latency is: asking takes the engine a moment, and us about a millisecond."""

_COUNTERS = (
    "prompt_tokens", "cached_prompt_tokens", "output_tokens", "draft_tokens", "draft_accepted",
    "drafts", "preemptions",
)  # fmt: skip
"""What only ever grows, of what an engine counts."""

_BROKEN: tuple[ErrorKind, ...] = ("connect", "reset", "no_end", "engine_died")
"""How requests fail whose engine has gone."""

_NEWS_S = 1.0
"""A broken connection is seen at once, the end of the process behind it a moment later."""
_DEATH_S = 1.0
_DEATH_POLL_S = 0.05


class Line(Protocol):
    """A client for one server: connections kept open, and the means to send."""

    @property
    def send(self) -> Send:
        """Send one request and follow it to its end."""
        ...

    async def open(self, connections: int) -> None:
        """Open this many connections before the clock runs."""
        ...

    @property
    def clock_step_s(self) -> float:
        """Largest jump of the wall clock seen since the last call of `forget_clock_step`."""
        ...

    def forget_clock_step(self) -> None:
        """Start watching for jumps anew."""
        ...


class Watcher(Protocol):
    """Whoever wants to know how the run goes: progress, store, sampler."""

    def step_begins(self, step: Step, number: int, of: int) -> None:
        """A step begins; `number` counts from 1."""
        ...

    def launched(self, launch: Launch, server: Server) -> None:
        """An engine is ready."""
        ...

    def stopped(self) -> None:
        """The engine has ended."""
        ...

    def request_ended(self, trace: RequestTrace) -> None:
        """A request has ended, well or not."""
        ...

    def cell_ended(self, record: CellRecord) -> None:
        """A cell has been measured; its traces are all recorded."""
        ...

    def memory_ended(self, record: CellRecord) -> None:
        """The memory of a start has been read; its samples are all recorded."""
        ...

    def launch_failed(self, step: StartEngine, error: EdgeAgentError) -> None:
        """An engine did not start or died too often; the rest of its launch is not measured."""
        ...

    def waiting(self, words: str | None) -> None:
        """An engine is starting, and this is what it is doing, where it says so."""
        ...

    def note(self, text: str) -> None:
        """Something worth a line."""
        ...


class Gauge(Protocol):
    """Whoever reads the memory of the box."""

    def mark(self, cell_id: str | None, phase: SamplePhase | None) -> None:
        """Let the samples from now on belong to this cell and phase."""
        ...

    async def settle(self) -> None:
        """Return when what the box holds no longer changes, or has not stopped to for long."""
        ...

    async def read(self, phase: SamplePhase) -> None:
        """Take one full reading, the expensive sources too."""
        ...

    def keep(self, values: Mapping[str, float | None]) -> None:
        """Keep values that somebody else has read, as a sample of this moment."""
        ...


class Guardian(Protocol):
    """Whoever ends an engine before it takes the box down."""

    def arm(self, engine: Engine) -> None:
        """Watch the memory of the box for this engine, which is about to start."""
        ...

    def set_pace(self, pace: Literal["fast", "slow"]) -> None:
        """Look often while something ramps up, and less often otherwise."""
        ...

    def disarm(self) -> None:
        """Stop watching; safe to call twice or before `arm`."""
        ...

    def has_killed(self) -> str | None:
        """Why it ended the engine that it was armed for last; None when it did not."""
        ...


@dataclass(frozen=True)
class World:
    """What the runner needs from outside."""

    engines: Mapping[str, Engine]
    connect: Callable[[Server], AbstractAsyncContextManager[Line]]
    clock: Clock
    sink: TraceSink
    watcher: Watcher
    log_path: Callable[[StartEngine, int], Path]
    """Where the engine's log goes: for a start, and the how-manyeth try at it."""
    rss_bytes: Callable[[], int | None]
    gauge: Gauge
    guard: Guardian
    confirm: Callable[[EngineConfig, Server], None]
    """Raises EngineError when a ready engine is not what was asked for (its device, say)."""


@dataclass
class _Live:
    """A launch that is running."""

    step: StartEngine
    server: Server
    line: Line
    prompts: Prompts
    close: Callable[[], Awaitable[None]]
    warmup: Warmup | None = None
    restarts: int = 0
    primed: str | None = None
    """The attempt whose opening is in the cache: the next measurement must be the same one."""


@dataclass
class Runner:
    """Carries out a plan in `world`. `stop` may be used by a signal handler at any time."""

    plan: Plan
    world: World
    stop: Halt = field(default_factory=Halt)
    _had_engine: bool = False
    _broken: int = 0
    """Requests of the present cell whose connection broke or could not be made."""

    async def run(self) -> None:
        """Carry out every step. Engines are stopped on any way out."""
        live: _Live | None = None
        skip_launch = False
        steps = self.plan.steps
        try:
            for number, step in enumerate(steps, start=1):
                if self.stop.reason is not None:
                    return
                if isinstance(step, (StartEngine, MeasureMemory)):
                    skip_launch = False
                elif skip_launch:
                    continue
                self.world.watcher.step_begins(step, number, len(steps))
                live = await self._step(step, live)
                skip_launch = live is None and not isinstance(step, (StopEngine, MeasureMemory))
        finally:
            await self._close(live)

    async def _step(self, step: Step, live: _Live | None) -> _Live | None:
        if isinstance(step, StartEngine):
            if self._had_engine and not step.config.engine.attached:
                # Devices give memory back after the process has gone; two engines never share it.
                await self.world.gauge.settle()
            self._had_engine = True
            return await self._start(step, restarts=0)
        if isinstance(step, MeasureMemory):
            await self._memory(step)
            return None
        if live is None:
            return None
        if isinstance(step, StopEngine):
            await self._close(live)
            return None
        if isinstance(step, Cooldown):
            await self._pause(step.seconds)
        elif isinstance(step, ResetCache):
            await live.server.reset_cache()
        elif isinstance(step, (Measure, MeasureArrival)):
            await self._measure(step, live)
        elif isinstance(step, Prime):
            live.primed = _stamp()
            await self._drive(live, step.cell, live.primed, step.phases, Halt())
        else:
            live.warmup = step
            await self._drive(live, step.cell, f"warmup-{_stamp()}", step.phases, Halt())
        return await self._revive(live)

    # ------------------------------------------------------------------ engines

    async def _start(self, step: StartEngine, restarts: int) -> _Live | None:
        config = step.config
        engine = self.world.engines[config.engine.id]
        guard = self.world.guard
        if not config.engine.attached:
            guard.arm(engine)
        starting = asyncio.ensure_future(
            engine.start(config, self.world.log_path(step, restarts), self.plan.spec.limits.start_s)
        )
        try:
            server = await self._unless_stopped(engine, starting)
        except EdgeAgentError as error:
            await engine.stop()
            guard.disarm()
            self.world.watcher.launch_failed(step, error)
            return None
        if server is None:
            await engine.stop()
            guard.disarm()
            return None
        guard.set_pace("slow")
        self.world.watcher.launched(
            _launch(step, server, self.world.log_path(step, restarts)), server
        )
        context = self.world.connect(server)
        line = await context.__aenter__()

        async def close() -> None:
            await context.__aexit__(None, None, None)
            await engine.stop()
            guard.disarm()
            self.world.watcher.stopped()

        try:
            self.world.confirm(config, server)
            prompts = await self._prompts(server, step)
        except BaseException as error:
            await close()
            if not isinstance(error, EdgeAgentError):
                raise
            # Ready, and gone before its first request: as good as not started.
            self.world.watcher.launch_failed(step, error)
            return None
        return _Live(step, server, line, prompts, close, restarts=restarts)

    async def _unless_stopped(
        self, engine: Engine, starting: asyncio.Future[Server]
    ) -> Server | None:
        """The server, or None when the operator stopped the run while it was starting."""
        both: set[asyncio.Future[Any]] = {starting, self.stop.future()}
        while not starting.done() and self.stop.reason is None:
            await asyncio.wait(both, timeout=_WAITING_S, return_when=asyncio.FIRST_COMPLETED)
            self.world.watcher.waiting(engine.starting())
        if starting.done():
            return starting.result()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return None

    async def _revive(self, live: _Live) -> _Live | None:
        """`live`, or a fresh launch in its place when the engine has died; None for good."""
        death = await self._death(live)
        self._broken = 0
        if death is None or self.stop.reason is not None:
            return live
        killed = self.world.guard.has_killed()
        await self._close(live)
        if killed is not None:
            # It would take the same memory again.
            self.world.watcher.launch_failed(live.step, GuardError(death))
            return None
        if live.restarts >= MAX_RESTARTS:
            error = EngineError(f"{death}; it died {live.restarts + 1} times, giving it up")
            self.world.watcher.launch_failed(live.step, error)
            return None
        self.world.watcher.note(f"{death}; starting it again")
        fresh = await self._start(live.step, live.restarts + 1)
        if fresh is not None and live.warmup is not None:
            fresh.warmup = live.warmup
            warmup = live.warmup
            # A halt of its own: an engine that dies again here is its own trouble, not the sweep's.
            await self._drive(fresh, warmup.cell, f"warmup-{_stamp()}", warmup.phases, Halt())
            return await self._revive(fresh)
        return fresh

    async def _close(self, live: _Live | None) -> None:
        if live is not None:
            await live.close()

    async def _prompts(self, server: Server, step: StartEngine) -> Prompts:
        cells = [cell for cell in self.plan.every_cell if cell.config == step.config]
        work = cells[0].workload
        rng = random.Random(work.seed)  # noqa: S311  # because traffic must be repeatable
        text = plant_text(rng, max(map(corpus_characters, cells)))
        tokens = await server.tokenize(text)
        kind = step.config.engine.kind
        endpoint = work.endpoint or ("chat" if kind == "openai" else "completions")
        return Prompts(tokens, text, endpoint)

    # --------------------------------------------------------------------- load

    async def _measure(self, step: Measure | MeasureArrival, live: _Live) -> None:
        cell = step.cell
        attempt, live.primed = live.primed or _stamp(), None
        before = await live.server.counters()
        halt = Halt()
        kind = Drive if isinstance(step, Measure) else Arriving
        load = kind(cell, attempt, step.phases, self._tools(live), halt)
        meter = _Meter(self.world, live.line)
        started_ns = self.world.clock.now_ns()
        beside = [meter.watch_lag()]
        if "kv_blocks_used" in before:
            beside.append(self._watch_pool(live, _POOL_LOOK_S))
        watching = [asyncio.ensure_future(each) for each in beside]
        meter.begin()
        self._broken = 0
        try:
            await self._carry(live, load, halt)
        finally:
            cost = meter.end()
            for each in watching:
                each.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
        finished_ns = self.world.clock.now_ns()
        if self.stop.reason is not None:
            return  # what was seen is recorded; the cell is not finished
        death = await self._death(live)
        after = {} if death else await live.server.counters()
        record = CellRecord(
            cell=cell,
            attempt=attempt,
            started_ns=started_ns,
            finished_ns=finished_ns,
            slots=live.server.facts.slots,
            client=cost,
            failure=death or halt.detail,
            failure_kind=self._kind_of_death() if death else halt.reason,
            prompts_exact=live.prompts.exact,
            server_cached_delta=_delta(before, after, "cached_prompt_tokens"),
            server_deltas={
                name: grown
                for name in _COUNTERS
                if (grown := _delta(before, after, name)) is not None
            },
        )
        self.world.watcher.cell_ended(
            _with_arrivals(record, load) if isinstance(load, Arriving) else record
        )

    def _kind_of_death(self) -> ErrorKind:
        return "killed_by_guard" if self.world.guard.has_killed() is not None else "engine_died"

    async def _memory(self, step: MeasureMemory) -> None:
        """Read what an engine takes before, during and after a load; a failed start stays one."""
        cell, gauge = step.cell, self.world.gauge
        started_ns, attempt = self.world.clock.now_ns(), _stamp()
        gauge.mark(cell.cell_id, None)
        try:
            await gauge.settle()
            await gauge.read("before")
            gauge.mark(cell.cell_id, "start")
            live = await self._start(StartEngine(cell.config, cell.repeat, "memory"), restarts=0)
            if live is None:
                return
            try:
                meter = _Meter(self.world, live.line)
                meter.begin()
                failure = await self._loaded_memory(live, step, attempt)
                kind = self._kind_of_death() if failure else None
            finally:
                await self._close(live)
            if self.stop.reason is not None:
                return
            await gauge.settle()
            await gauge.read("released")
        finally:
            gauge.mark(None, None)
        self.world.watcher.memory_ended(
            CellRecord(
                cell=cell,
                attempt=attempt,
                started_ns=started_ns,
                finished_ns=self.world.clock.now_ns(),
                slots=live.server.facts.slots,
                client=meter.end(),
                failure=failure,
                failure_kind=kind,
                prompts_exact=live.prompts.exact,
            )
        )

    async def _loaded_memory(self, live: _Live, step: MeasureMemory, attempt: str) -> str | None:
        """Read at rest, while every slot is busy, and after; returns why the engine died, if so."""
        cell, gauge = step.cell, self.world.gauge
        gauge.mark(cell.cell_id, None)
        await gauge.settle()
        await gauge.read("ready")
        gauge.mark(cell.cell_id, "load")
        self._broken = 0
        watching = asyncio.ensure_future(self._watch_pool(live, _POOL_COUNT_S))
        try:
            for wave in step.waves:
                phases = (Phase("measured", wave),)
                await self._drive(
                    live, replace(cell, concurrency=wave), f"{attempt}-{wave}", phases, Halt()
                )
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        gauge.mark(cell.cell_id, None)
        death = await self._death(live)
        self._broken = 0
        if death is None and self.stop.reason is None:
            await gauge.settle()
            await gauge.read("loaded")
        return death

    async def _watch_pool(self, live: _Live, every_s: float) -> None:
        """Keep how much of its pool an engine uses and who waits, while it serves.

        Ends where an engine has no pool.
        """
        while True:
            told = await live.server.counters()
            if "kv_blocks_used" not in told:
                return
            self.world.gauge.keep({f"pool.{name}": told.get(name) for name in _POOL})
            await self.world.clock.sleep(every_s)

    async def _death(self, live: _Live) -> str | None:
        """Why the engine died, if it did.

        Broken connections are seen before the end of a process is: when there were some, its end is
        waited for a moment.
        """
        patience = round(_DEATH_S / _DEATH_POLL_S) if self._broken else 0
        while (death := live.server.death()) is None and patience > 0:
            patience -= 1
            await self.world.clock.sleep(_DEATH_POLL_S)
        return death

    async def _drive(
        self, live: _Live, cell: Cell, attempt: str, phases: tuple[Phase, ...], halt: Halt
    ) -> None:
        """Send the phases' requests; `halt`, the run's stop, a death and deadlines end them."""
        await self._carry(live, Drive(cell, attempt, phases, self._tools(live), halt), halt)

    def _tools(self, live: _Live) -> Tools:
        return Tools(
            clock=self.world.clock,
            build=lambda job: live.server.request(live.prompts.ask(job)),
            send=live.line.send,
            record=self._record,
        )

    async def _carry(self, live: _Live, load: Drive | Arriving, halt: Halt) -> None:
        """Let a load run its course, within its limits."""
        await live.line.open(min(load.cell.concurrency, _wanted(load.phases)))
        guard = asyncio.ensure_future(self._guard(live, load.cell, load.phases, halt))
        self.world.guard.set_pace("fast")
        try:
            await load.run()
            await self._hear_of_death(live)
        finally:
            self.world.guard.set_pace("slow")
            guard.cancel()
            await asyncio.gather(guard, return_exceptions=True)

    async def _hear_of_death(self, live: _Live) -> None:
        """Wait a moment for the news when the last request looks as if its engine had gone."""
        end_ns = self.world.clock.now_ns() + round(_NEWS_S * 1e9)
        while (
            self._last_error in _BROKEN
            and self.stop.reason is None
            and live.server.death() is None
            and self.world.clock.now_ns() < end_ns
        ):
            await self.world.clock.sleep(0.02)

    def _record(self, trace: RequestTrace) -> None:
        self._last_error = trace.error
        if trace.error in ("connect", "reset"):
            self._broken += 1
        self.world.sink.append_request(trace)
        self.world.watcher.request_ended(trace)

    async def _guard(self, live: _Live, cell: Cell, phases: tuple[Phase, ...], halt: Halt) -> None:
        """Ends the load when the run is stopped, the engine has died, or the cell is overdue."""
        deadline_s = cell_deadline_s(self.plan.spec.limits, cell, phases)
        end_ns = self.world.clock.now_ns() + round(deadline_s * 1e9)
        while True:
            if self.stop.reason is not None:
                halt.now(self.stop.reason, self.stop.detail or "the sweep was stopped")
            elif (death := live.server.death()) is not None:
                # Let broken connections speak first: they carry what each request had seen.
                await self.world.clock.sleep(0.2)
                halt.now("engine_died", death)
            elif self.world.clock.now_ns() >= end_ns:
                halt.now("cell_deadline", f"the cell was not done after {deadline_s:.0f} s")
            await asyncio.wait({self.stop.future()}, timeout=0.25)
            if halt.reason is not None:
                return

    async def _pause(self, seconds: float) -> None:
        pause = asyncio.ensure_future(self.world.clock.sleep(seconds))
        await asyncio.wait({pause, self.stop.future()}, return_when=asyncio.FIRST_COMPLETED)
        pause.cancel()
        await asyncio.gather(pause, return_exceptions=True)


def cell_deadline_s(limits: Limits, cell: Cell, phases: tuple[Phase, ...]) -> float:
    """How long a step's load may take: as configured, else every round at the request limit."""
    if limits.cell_s is not None:
        return limits.cell_s
    rounds = math.ceil(_wanted(phases) / cell.concurrency)
    seconds = sum(phase.seconds or 0.0 for phase in phases)
    if cell.arrival is not None and any(phase.role == "measured" for phase in phases):
        seconds += longest_s(cell.arrival, limits.request_s)
    return seconds + (rounds + 1) * limits.request_s


def _wanted(phases: tuple[Phase, ...]) -> int:
    """Requests of all phases together; a phase bounded by seconds counts as one round."""
    return sum(phase.requests or 1 for phase in phases)


def _launch(step: StartEngine, server: Server, log: Path) -> Launch:
    config = step.config
    return Launch(
        engine_id=config.engine.id,
        replicate=step.replicate,
        argv=server.argv,
        slots=config.slots,
        prefix_cache=config.prefix_cache,
        speculation=config.speculation,
        ready_s=server.ready_s,
        effective=server.facts,
        log=None if config.engine.attached else log.name,
        role=step.role,
    )


def _with_arrivals(record: CellRecord, load: Arriving) -> ArrivalRecord:
    """The record with its windows; a rehearsal that failed is the cell's failure."""
    own = {item.name: getattr(record, item.name) for item in fields(record)}
    trace = load.failure
    if trace is not None and record.failure is None:
        own["failure"] = f"the second operator's request failed: {trace.error_detail}"
        own["failure_kind"] = trace.error
    return ArrivalRecord(**own, arrivals=load.arrivals)


def _delta(before: Mapping[str, float], after: Mapping[str, float], name: str) -> int | None:
    """Growth of a counter; None where it is missing or has started anew."""
    if name not in before or name not in after or after[name] < before[name]:
        return None
    return round(after[name] - before[name])


def _stamp() -> str:
    """A name for an attempt that no other attempt of this run has."""
    return f"{time.time_ns():x}"


class _Meter:
    """What measuring costs: our own processor time and the event loop's lateness."""

    def __init__(self, world: World, line: Line) -> None:
        self._world = world
        self._line = line
        self._lags: list[float] = []
        self._cpu_s = 0.0
        self._wall_ns = 0

    def begin(self) -> None:
        self._line.forget_clock_step()
        self._cpu_s = time.process_time()
        self._wall_ns = self._world.clock.now_ns()

    def end(self) -> ClientCost:
        return ClientCost(
            cpu_s=time.process_time() - self._cpu_s,
            wall_s=(self._world.clock.now_ns() - self._wall_ns) / 1e9,
            rss_bytes=self._world.rss_bytes(),
            loop_lag_s=tuple(self._lags),
            clock_step_s=self._line.clock_step_s,
        )

    async def watch_lag(self) -> None:
        clock = self._world.clock
        while True:
            due_ns = clock.now_ns() + round(_LAG_PERIOD_S * 1e9)
            await clock.sleep(_LAG_PERIOD_S)
            self._lags.append(max(0, clock.now_ns() - due_ns) / 1e9)
