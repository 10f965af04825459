"""What is kept and shown while a sweep runs?

`Watching` is the runner's watcher: it marks samples with their cell, judges a cell the moment it
has ended, keeps it, and feeds the progress display.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from edgeagent import archive
from edgeagent.archive import Environment, GuardRecord
from edgeagent.core.estimate import Speeds, time_left_s
from edgeagent.core.findings import CODES
from edgeagent.core.model import (
    Cell,
    CellRecord,
    EngineIdentity,
    Finding,
    Launch,
    Measure,
    MeasureArrival,
    MeasureMemory,
    Plan,
    RequestTrace,
    SamplePhase,
    StartEngine,
    Step,
)
from edgeagent.core.plan import label
from edgeagent.errors import DeviceMismatchError, EdgeAgentError, GuardError
from edgeagent.logs import EventLog
from edgeagent.ports import Server
from edgeagent.probes.pagecache import page_cache_fraction
from edgeagent.probes.sampler import Sampler
from edgeagent.report.progress import ProgressState
from edgeagent.store.runfolder import RunFolder

_RATE_WINDOW_S = 3.0
_SHOW_EVERY_S = 0.25
"""Tokens arrive by the thousand a second; the display is told four times."""

_WORDS = {
    "start": "starting the engine",
    "stop": "stopping the engine",
    "reset_cache": "clearing the cache",
    "warmup": "warming up",
    "prime": "priming the cache",
    "measure": "measuring",
    "arrival": "letting a second operator in",
    "memory": "measuring memory",
    "cooldown": "pausing",
}

_PHASES: Mapping[str, SamplePhase] = {
    "start": "start",
    "measure": "load",
    "arrival": "load",
    "cooldown": "idle",
}


class View(Protocol):
    """A progress display."""

    def update(self, state: ProgressState) -> None:
        """Show this."""
        ...

    def note(self, text: str) -> None:
        """Show a line that stays."""
        ...

    def close(self) -> None:
        """End the display."""
        ...


class TokenRate:
    """Tokens per second over the last few seconds, from running totals at a few moments."""

    def __init__(self) -> None:
        self.total = 0
        self._marks: deque[tuple[float, int]] = deque()

    def now(self) -> float | None:
        """The rate since the oldest moment kept; None while nothing arrives."""
        now = time.monotonic()
        self._marks.append((now, self.total))
        while now - self._marks[0][0] > _RATE_WINDOW_S:
            self._marks.popleft()
        begun, before = self._marks[0]
        tokens = self.total - before
        return tokens / (now - begun) if tokens and now > begun else None

    def clear(self) -> None:
        """Begin anew."""
        self.total = 0
        self._marks.clear()
        self._marks.append((time.monotonic(), 0))


@dataclass
class Watching:
    """The runner's watcher for one run."""

    plan: Plan
    folder: RunFolder
    sampler: Sampler
    view: View
    speeds: Speeds
    log: EventLog
    environment: Environment
    done: set[str] = field(default_factory=set)
    """Cells, canaries and starts for memory that are kept already, by their id."""
    failed_starts: list[EdgeAgentError] = field(default_factory=list)
    server: Server | None = None
    rate: TokenRate = field(default_factory=TokenRate)

    def __post_init__(self) -> None:
        self._begun = time.monotonic()
        self._shown_at = 0.0
        self._step: Step | None = None
        self._number = (0, 0)
        self._done = 0
        self._failures = 0
        self._warmth: float | None = None
        self._doing: str | None = None
        self._timed: list[tuple[Cell, float]] = []

    # -------------------------------------------------------------- the runner's words

    def step_begins(self, step: Step, number: int, of: int) -> None:
        """Mark what comes with its cell."""
        self._show()  # the last word on the step before
        self._step, self._number, self._done = step, (number, of), 0
        if isinstance(step, (StartEngine, MeasureMemory)):
            self._warmth = _warmth(step)
        self.rate.clear()
        cell = getattr(step, "cell", None)
        self.log.info(
            "step_begins", step=step.kind, number=number, of=of, cell=cell and label(cell)
        )
        self.sampler.mark(
            step.cell.cell_id if isinstance(step, (Measure, MeasureArrival)) else None,
            _PHASES.get(step.kind),
        )
        self._show()

    def launched(self, launch: Launch, server: Server) -> None:
        """Keep the start and sample its processes."""
        self.server, self._doing = server, None
        launch = replace(launch, model_cached_fraction=self._warmth)
        self.log.info(
            "engine_ready", engine=launch.engine_id, ready_s=launch.ready_s, argv=launch.argv
        )
        self._keep(launches=(*self.environment.launches, launch))
        for difference in _sentences(launch.effective.details.get("differences")):
            self.view.note(f"{launch.engine_id}: {difference}")

    def stopped(self) -> None:
        """Nothing more to sample."""
        self.server = None

    def request_ended(self, trace: RequestTrace) -> None:
        """Count it."""
        self._done += 1
        if trace.error is not None and trace.role == "measured":
            self._failures += 1
        if self.sampler.failure is not None:
            raise self.sampler.failure
        self._show_by(time.monotonic())

    def tokens(self, count: int) -> None:
        """Tokens have arrived."""
        self.rate.total += count
        self._show_by(time.monotonic())

    def cell_ended(self, record: CellRecord) -> None:
        """Judge the cell and keep it, on disk before anything else happens."""
        self.sampler.mark(None)
        spec = self.plan.spec
        line = archive.line_of(record, strict=spec.strict)
        idle = archive.idle_samples(self.folder, record.finished_ns)
        found = archive.judge(self.folder, record, spec, line, idle)
        archive.write_cell(self.folder, line, found)
        self.log.info(
            "cell_ended",
            cell=record.cell.cell_id,
            status=found.status,
            findings=[finding.code for finding in found.findings],
            output_tokens_per_s=found.metrics.output_tokens_per_s,
        )
        self._count(record)
        if found.status != "ok":
            for finding in found.findings:
                self.view.note(f"{finding.severity}: {finding.text}")

    def go_on_with(self, plan: Plan) -> None:
        """The plan has become longer; what it needs to be read again is kept first."""
        self.plan = plan
        self._keep(identities=plan.identities)

    def memory_ended(self, record: CellRecord) -> None:
        """Keep that this start has been read."""
        archive.write_memory(self.folder, archive.line_of(record, strict=self.plan.spec.strict))
        self.log.info("memory_read", cell=label(record.cell), failure=record.failure)
        self._count(record)
        if record.failure:
            self.view.note(f"{label(record.cell)}: {record.failure}")

    def guard_killed(self, record: GuardRecord) -> None:
        """Keep why the memory guard ended an engine, and what it had seen."""
        self.log.warning("guard_killed", reason=record.reason)
        self._keep(guard=(*self.environment.guard, record))

    def launch_failed(self, step: StartEngine, error: EdgeAgentError) -> None:
        """Remember why; its cells will be missing."""
        self.failed_starts.append(error)
        self.log.warning("engine_failed", engine=step.config.engine.id, error=str(error))
        self.view.note(str(error))
        code = _code_of(error)
        finding = Finding(code, CODES[code], str(error), ())
        if finding not in self.environment.findings:
            self._keep(findings=(*self.environment.findings, finding))
        self._step = step

    def waiting(self, words: str | None) -> None:
        """Show what a start is doing: it may take minutes, and is no hang."""
        self._doing = words
        self._show_by(time.monotonic())

    def note(self, text: str) -> None:
        """Show a line."""
        self.log.warning("note", text=text)
        self.view.note(text)

    # ------------------------------------------------------------------------- inside

    def _keep(
        self,
        launches: tuple[Launch, ...] | None = None,
        findings: tuple[Finding, ...] | None = None,
        guard: tuple[GuardRecord, ...] | None = None,
        identities: tuple[EngineIdentity, ...] | None = None,
    ) -> None:
        now = self.environment
        self.environment = replace(
            now,
            launches=now.launches if launches is None else launches,
            findings=now.findings if findings is None else findings,
            guard=now.guard if guard is None else guard,
            identities=now.identities if identities is None else identities,
        )
        archive.write_environment(self.folder, self.environment)

    def _show_by(self, now: float) -> None:
        if now - self._shown_at >= _SHOW_EVERY_S:
            self._show()

    def _show(self) -> None:
        self._shown_at = time.monotonic()
        step = self._step
        if step is None:
            return
        cell = getattr(step, "cell", None)
        phases = getattr(step, "phases", ())
        planned = [phase.requests for phase in phases]
        latest = self.sampler.latest
        values = latest.values if latest is not None else {}
        self.view.update(
            ProgressState(
                what=_WORDS[step.kind] + (f": {self._doing}" if self._doing else ""),
                step=self._number[0],
                steps=self._number[1],
                cell=label(cell) if cell is not None else None,
                requests_done=self._done if phases else None,
                requests_planned=sum(n or 0 for n in planned)
                if planned and None not in planned
                else None,
                elapsed_s=time.monotonic() - self._begun,
                left_s=time_left_s(self._left(), self._timed, self.speeds),
                tokens_per_s=self.rate.now(),
                engine_bytes=_bytes(values.get("engine.rss_bytes")),
                host_available_bytes=_bytes(values.get("host.available_bytes")),
                failures=self._failures,
            )
        )

    def _count(self, record: CellRecord) -> None:
        self._timed.append((record.cell, (record.finished_ns - record.started_ns) / 1e9))
        self.done.add(record.cell.cell_id)

    def _left(self) -> Sequence[Cell]:
        return [cell for cell in self.plan.every_cell if cell.cell_id not in self.done]


def _warmth(step: StartEngine | MeasureMemory) -> float | None:
    """How much of the model file is in the page cache; None where there is no file or no saying."""
    config = step.config if isinstance(step, StartEngine) else step.cell.config
    path = Path(config.engine.model or "")
    return page_cache_fraction(path) if config.engine.model and path.is_file() else None


def _code_of(error: EdgeAgentError) -> str:
    """The finding that a failed start becomes."""
    if isinstance(error, GuardError):
        return "killed_by_guard"
    return "device_mismatch" if isinstance(error, DeviceMismatchError) else "engine_died"


def _bytes(value: float | None) -> int | None:
    return None if value is None else int(value)


def _sentences(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, (list, tuple)) else []
