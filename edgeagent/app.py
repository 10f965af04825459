"""The whole agent on one screen: build the parts, let the data flow.

    request ─ assemble ─▶ plan ─ Runner ─▶ records in the run folder ─ conclude ─▶ result.json

`sweep` carries a request along that arrow, `preview` stops before anything is started, `verify`
walks the last stretch again from the files alone.
"""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import signal
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import (
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from edgeagent import __version__, archive, sealing
from edgeagent.archive import ENVIRONMENT_SCHEMA, Environment
from edgeagent.assembly import Parts, assemble, extend
from edgeagent.clock import SystemClock
from edgeagent.config import Access, SweepRequest
from edgeagent.core import estimate, result
from edgeagent.core.capacities import wanted
from edgeagent.core.command import without_secrets
from edgeagent.core.model import EngineConfig, MemorySample, Plan, StartEngine
from edgeagent.core.plan import label, remaining
from edgeagent.core.result import CellResult, RunStatus
from edgeagent.errors import EdgeAgentError, UsageError
from edgeagent.gauge import BoxGauge
from edgeagent.guarding import BoxGuard
from edgeagent.load.drive import Halt
from edgeagent.load.runner import Line, Runner, World
from edgeagent.load.stream import LoadClient
from edgeagent.logs import LOG, EventLog
from edgeagent.ports import Server
from edgeagent.probes.guard import Guard
from edgeagent.probes.sampler import Sampler
from edgeagent.question import PLAN
from edgeagent.readiness import Ready, confirm, look
from edgeagent.store.runfolder import CELLS, LOCK, REQUESTS, SAMPLES, RunFolder, RunReader
from edgeagent.watching import View, Watching

_ECHO_S = 5.0
"""In this time after the first signal another SIGTERM is no insistence."""

_INTERRUPTED = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 143}


@dataclass(frozen=True)
class Job:
    """A sweep to run: a new one, or what is missing of an old one."""

    request: SweepRequest
    out: Path | None = None
    resume: Path | None = None
    command: tuple[str, ...] | None = None
    """The words by which it was asked for; None when there were none."""


@dataclass(frozen=True)
class Outcome:
    """How a sweep ended."""

    document: dict[str, Any]
    folder: Path
    exit_status: int
    message: str | None = None
    error: EdgeAgentError | None = None
    """Why no engine could be measured at all; None when one was, or when it was not asked to."""

    @property
    def interrupted(self) -> bool:
        """Whether somebody wanted it to end at once."""
        return self.exit_status in _INTERRUPTED.values()


def resume(path: Path) -> Job:
    """The job that goes on with a run folder. Raises UsageError."""
    return Job(archive.recall_request(RunReader(path)), resume=path)


# ---------------------------------------------------------------------------------- the arrow


async def sweep(job: Job, view: View, stop: Halt | None = None) -> Outcome:
    """Measure, keep, conclude. Raises EdgeAgentError when nothing could be measured at all.

    Whoever brings `stop` ends the run by it and keeps the signals; without it they are ours.
    """
    parts = await assemble(job.request)
    ready = await look(parts)
    with _opened(job, ready) as folder, EventLog(folder.path / LOG) as log:
        done = _already_measured(folder, parts.plan) if job.resume else set()
        environment = _environment(folder, parts, ready, job)
        archive.write_plan(folder, parts.request, parts.plan)
        archive.write_environment(folder, environment)
        setting = _Setting(parts, ready, folder, environment, SystemClock())
        ending = await _run(setting, _watching(setting, view, log, done), stop)
        return _conclude(folder, ending)


def _watching(setting: _Setting, view: View, log: EventLog, done: set[str]) -> Watching:
    ready, folder = setting.ready, setting.folder
    sampler = Sampler(
        ready.probes,
        setting.clock,
        folder.append_sample,
        lambda: _pids(setting.parts),
        full=ready.full,
    )
    return Watching(
        plan=setting.parts.plan,
        folder=folder,
        sampler=sampler,
        view=view,
        speeds=_speeds(setting.parts),
        log=log,
        environment=setting.environment,
        done=done,
    )


async def _run(setting: _Setting, watching: Watching, given: Halt | None) -> _Ending:
    """Carry the plan out; everything seen is in the folder when this returns."""
    stop = given or Halt()
    for note in setting.ready.notes:
        watching.note(note)
    watching.sampler.start()
    try:
        with _heard(stop, given) as received:
            limit_s = setting.parts.plan.spec.limits.sweep_s
            await _within(_rounds(setting, watching, stop), stop, limit_s)
    finally:
        await asyncio.get_running_loop().run_in_executor(None, watching.sampler.stop)
        watching.view.close()
    return _Ending(received[0] if received else None, stop.detail, watching.failed_starts)


async def _rounds(setting: _Setting, watching: Watching, stop: Halt) -> None:
    """Carry out the plan, and whatever the search for the capacity asks for after it."""
    parts: Parts | None = setting.parts
    tried = set(watching.done)
    while parts is not None:
        left = remaining(parts.plan, tried)
        await Runner(left, _world(setting, watching), stop).run()
        tried |= {cell.cell_id for cell in parts.plan.every_cell}
        parts = None if stop.reason is not None else _next_round(setting.folder, parts, watching)


def _next_round(folder: RunFolder, parts: Parts, watching: Watching) -> Parts | None:
    """The plan with the levels that would settle the capacity; None when there is none to add."""
    if parts.plan.spec.capacity == "off":
        return None
    asked = parts.plan.spec.capacity_levels
    more = tuple(one for one in wanted(archive.recall(folder).searches) if one not in asked)
    if not more:
        return None
    longer = extend(parts, (*asked, *more))
    archive.write_plan(folder, longer.request, longer.plan)
    watching.go_on_with(longer.plan)
    return longer


@dataclass(frozen=True)
class _Setting:
    """What a run takes place in."""

    parts: Parts
    ready: Ready
    folder: RunFolder
    environment: Environment
    clock: SystemClock


@dataclass(frozen=True)
class _Ending:
    """Why a run ended before its plan, if it did, and which starts failed."""

    signal: signal.Signals | None
    detail: str | None
    failed_starts: list[EdgeAgentError]


def _world(setting: _Setting, watching: Watching) -> World:
    parts, folder, clock = setting.parts, setting.folder, setting.clock
    access = parts.request.access
    limits = parts.plan.spec.limits
    attached = {spec.url: spec.id for spec in parts.plan.spec.engines if spec.url}

    @asynccontextmanager
    async def connect(server: Server) -> AsyncIterator[Line]:
        own = access.get(attached.get(server.url, ""), Access())
        async with LoadClient(
            server.url,
            clock,
            limits,
            access=(own.api_key(), own.cacert),
            on_tokens=watching.tokens,
        ) as client:
            yield client

    return World(
        engines=parts.engines,
        connect=connect,
        clock=clock,
        sink=folder,
        watcher=watching,
        log_path=lambda step, restarts: _log_path(folder.path, step, restarts),
        rss_bytes=_rss_bytes,
        gauge=BoxGauge(watching.sampler, clock, limits.settle_s),
        guard=BoxGuard(
            Guard(clock, setting.ready.root), lambda: watching.sampler.latest, watching.guard_killed
        ),
        confirm=lambda config, server: confirm(config, server, _seen_now(config, watching)),
    )


def _seen_now(config: EngineConfig, watching: Watching) -> MemorySample | None:
    """The last sample; a fresh one where a GPU was asked for, since it may be too old to tell."""
    if config.device == "gpu":
        watching.sampler.take(SystemClock().now_ns())
    return watching.sampler.latest


async def _within(work: Coroutine[None, None, None], stop: Halt, seconds: float | None) -> None:
    """Run; when the sweep's own time is over it is stopped like by an operator."""
    running = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({running}, timeout=seconds)
        if not done:
            stop.now("cell_deadline", f"the sweep's {seconds:g} s were over")
        await running
    finally:
        if not running.done():
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def _heard(stop: Halt, given: Halt | None) -> AbstractContextManager[list[signal.Signals]]:
    return _signals(stop) if given is None else nullcontext([])


@contextmanager
def _signals(stop: Halt) -> Iterator[list[signal.Signals]]:
    """The first signal ends the run in order; a second one at once. None disturbs its conclusion.

    SIGTERM again within seconds is still the first: when a parent with several threads is killed,
    the kernel hands us from one dying thread to the next and sends it each time (PR_SET_PDEATHSIG).
    """
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    received: list[signal.Signals] = []
    first_s = 0.0

    def on(name: signal.Signals) -> None:
        nonlocal first_s
        if not received:
            first_s = loop.time()
            stop.now("interrupted", f"{name.name} was received")
        elif name == signal.SIGTERM and loop.time() - first_s < _ECHO_S:
            return
        elif task is not None:
            task.cancel()
        received.append(name)

    for name in _INTERRUPTED:
        loop.add_signal_handler(name, on, name)
    try:
        yield received
    except asyncio.CancelledError:
        if not received:
            raise
    finally:
        # What was measured is summed up and kept after this, which takes seconds: until the loop is
        # closed a signal is heard and changes nothing.
        for name in _INTERRUPTED:
            loop.add_signal_handler(name, int)


def _conclude(folder: RunFolder, ending: _Ending) -> Outcome:
    """Build the result from the files, keep it, and choose the exit status."""
    run = archive.recall(folder)
    found = archive.result_of(run, _now(), archive.file_hashes(folder))
    document = result.plain(found)
    sealing.keep_result(folder, document)
    exit_status, message = _exit(run.measured.cells, found.status, ending, folder.path)
    error = None if ending.signal else _never_started(run.measured.cells, ending)
    return Outcome(document, folder.path, exit_status, message, error)


def _never_started(cells: tuple[CellResult, ...], ending: _Ending) -> EdgeAgentError | None:
    """Why nothing was measured, where that is since no engine started."""
    measured = any(found.status != "failed" for found in cells)
    return ending.failed_starts[-1] if ending.failed_starts and not measured else None


def _exit(
    cells: tuple[CellResult, ...], status: RunStatus, ending: _Ending, path: Path
) -> tuple[int, str | None]:
    """Exit status and last sentence; the contract's table."""
    go_on = f"go on with: edgeagent sweep --resume {path}"
    if ending.signal is not None:
        return _INTERRUPTED[ending.signal], f"interrupted; what was measured is kept, {go_on}"
    if error := _never_started(cells, ending):
        return error.exit_status, str(error)
    if ending.detail is not None:
        return 1, f"{ending.detail}; what was measured is kept, {go_on}"
    if status == "complete" and all(found.status == "ok" for found in cells):
        return 0, None
    missing = f"; {go_on}" if status != "complete" else ""
    return 1, f"some cells failed or are suspect, see the findings{missing}"


# ------------------------------------------------------------------------ before anything runs


@dataclass(frozen=True)
class Preview:
    """What a sweep would do."""

    parts: Parts

    def document(self) -> dict[str, Any]:
        """The plan, expected memory and expected time as JSON values."""
        low, high = self._seconds()
        return {
            "cells": [
                {"cell_id": cell.cell_id, "label": label(cell), "requests": cell.requests}
                for cell in self.parts.plan.every_cell
            ],
            "steps": len(self.parts.plan.steps),
            "memory": [
                {
                    "engine": config.engine.id,
                    "slots": config.slots,
                    "context_per_slot": config.context_per_slot,
                    "prefix_cache": config.prefix_cache,
                    "weights_bytes": found.weights_bytes,
                    "kv_bytes": found.kv_bytes,
                    "state_bytes": found.state_bytes,
                    "output_bytes": found.output_bytes,
                    "bytes_per_slot": found.bytes_per_slot,
                    "total_bytes": found.total_bytes,
                }
                for config, found in self.parts.memory.items()
            ],
            "expected_s": {"low": low, "high": high},
        }

    def _seconds(self) -> tuple[float, float]:
        plan, speeds = self.parts.plan, _speeds(self.parts)
        seconds = sum(estimate.cell_s(cell, speeds) for cell in plan.every_cell)
        seconds += estimate.launches_s(plan.cells, speeds, plan.spec.cooldown_s)
        return seconds * estimate.LOW, seconds * estimate.HIGH

    def text(self) -> str:
        """The same for people."""
        from edgeagent.report.preview import text

        return text(self.document(), self.parts.plan)


async def preview(job: Job) -> Preview:
    """Look at everything and start nothing. Raises EdgeAgentError as `sweep` would."""
    return Preview(await assemble(job.request))


# --------------------------------------------------------------------------------- the folder


@contextmanager
def _opened(job: Job, ready: Ready) -> Iterator[RunFolder]:
    try:
        folder = RunFolder.resume(job.resume) if job.resume else RunFolder.create(job.out)
    except BaseException:
        ready.close()
        raise
    try:
        yield folder
    finally:
        folder.close()
        if job.resume is None and not (folder.path / archive.ENVIRONMENT).exists():
            _remove(folder.path)


def _remove(path: Path) -> None:
    """Take a new folder away in which nothing was begun: a full disk, or a very early Ctrl-C."""
    with suppress(OSError):
        for name in (LOCK, REQUESTS, SAMPLES, CELLS, PLAN, LOG):
            (path / name).unlink(missing_ok=True)
        path.rmdir()


def _already_measured(folder: RunFolder, plan: Plan) -> set[str]:
    """Ids that count; others (failed, or of another binary, model or plan) are put aside."""
    planned = {cell.cell_id for cell in plan.every_cell}
    folder.drop_cells(
        {
            str(line["cell_id"])
            for line in folder.cells()
            if line["cell_id"] not in planned or line.get("status") == "failed"
        }
    )
    return {str(line["cell_id"]) for line in folder.cells()}


def _was_begun(job: Job) -> bool:
    """Whether the folder that it goes on with has seen a sweep, and not only its question."""
    return job.resume is not None and (job.resume / archive.ENVIRONMENT).exists()


def _environment(folder: RunFolder, parts: Parts, ready: Ready, job: Job) -> Environment:
    """Where and with what; a resumed run keeps its name, beginning and starts."""
    fresh = Environment(
        schema=ENVIRONMENT_SCHEMA,
        run_id=folder.path.resolve().name,
        started_at=_now(),
        agent={
            "version": __version__,
            "python": platform.python_version(),
            "result_fields": sealing.result_fields(),
        },
        host=ready.host,
        identities=parts.plan.identities,
        findings=ready.findings,
        expected=ready.expected,
        box=ready.facts,
        command=None if job.command is None else without_secrets(job.command),
    )
    if not _was_begun(job):
        return fresh
    old = archive.recall_environment(folder)
    return replace(
        fresh,
        run_id=old.run_id,
        started_at=old.started_at,
        launches=old.launches,
        guard=old.guard,
        command=old.command,
    )


def verify(path: Path) -> list[str]:
    """What in a run folder does not hold together; empty when everything does."""
    return sealing.faults(path)


DOCUMENTS = ("result", "plan")


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema of a published document or message. Raises UsageError for an unknown name."""
    if name in DOCUMENTS:
        return archive.schema(name)
    # Imported here: only whoever asks for a message needs what messages are made of.
    from edgeagent.publish.messages import MESSAGES, message_schema

    plain = name.removeprefix("edgeagent.").removesuffix("/1")
    if plain not in MESSAGES:
        raise UsageError(
            f"there is no document {name}: known are {', '.join((*DOCUMENTS, *MESSAGES))}"
        )
    return message_schema(plain)


# ------------------------------------------------------------------------------------- details


def _pids(parts: Parts) -> tuple[int, ...]:
    """Every process of an engine of ours, while it starts as well."""
    return tuple(pid for engine in parts.engines.values() for pid in engine.pids())


def _speeds(parts: Parts) -> estimate.Speeds:
    models = [identity.model for identity in parts.plan.identities if identity.model]
    model = models[0] if models else None
    return estimate.guess_speeds(
        model.parameters if model else None,
        model.size_bytes if model else None,
        os.cpu_count() or 1,
    )


def _log_path(folder: Path, step: StartEngine, restarts: int) -> Path:
    config = step.config
    words = [config.engine.id]
    if step.role == "memory":
        words.append(f"memory-{config.slots}-slots")
    else:
        words.append(f"cache-{config.prefix_cache}")
    if config.speculation != "off":
        words.append(config.speculation.split(":")[0])
    words.append(f"repeat-{step.replicate + 1}")
    if restarts:
        words.append(f"restart-{restarts}")
    name = "-".join(words)
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
    return folder / f"engine-{safe}.log"


def _rss_bytes() -> int | None:
    """The most memory that this process has had resident, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
