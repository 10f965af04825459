"""What does a run folder say, and does its result follow from its records?

Writes plan, environment and cells, and reads them back; a resumed run and a verification both go
through `recall`, which computes every metric anew from the raw records.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from edgeagent import question
from edgeagent.config import SweepRequest, sweep_request_from_document
from edgeagent.core import memory, result
from edgeagent.core.canary import canary_drift
from edgeagent.core.capacities import capacities, searches
from edgeagent.core.capacity import Search
from edgeagent.core.energy import idle_power
from edgeagent.core.findings import CellEvidence, examine_cell, status_of
from edgeagent.core.interference import Observed, combine, observe
from edgeagent.core.kv import MAX_SLOTS
from edgeagent.core.memory import ExpectedSlot, Point, SlotCost, Subject
from edgeagent.core.metrics import summarise, tpot_s
from edgeagent.core.model import (
    Arrival,
    ArrivalRecord,
    Cell,
    CellPurpose,
    CellRecord,
    ClientCost,
    EngineIdentity,
    ErrorKind,
    Finding,
    Launch,
    MemorySample,
    Plan,
    RequestTrace,
    SweepSpec,
)
from edgeagent.core.plan import configurations, expand
from edgeagent.core.result import CellResult, Measured, Result, RunFacts, RunStatus, plain
from edgeagent.core.series import Series
from edgeagent.core.series_arrivals import Overlay, arrivals, overlay
from edgeagent.errors import UsageError
from edgeagent.logs import LOG
from edgeagent.question import PLAN, PLAN_SCHEMA
from edgeagent.store.runfolder import CELLS, INVALIDATED, REQUESTS, SAMPLES, RunFolder, RunReader

ENVIRONMENT = "environment.json"
RESULT = question.RESULT
ENVIRONMENT_SCHEMA = "edgeagent.environment/1"


@dataclass(frozen=True)
class Environment:
    """`environment.json`: where, with what and by whom a run was made."""

    schema: str
    run_id: str
    started_at: str
    agent: Mapping[str, object]
    host: Mapping[str, object]
    identities: tuple[EngineIdentity, ...]
    launches: tuple[Launch, ...] = ()
    findings: tuple[Finding, ...] = ()
    """Doubts that belong to no cell."""
    expected: tuple[ExpectedSlot, ...] = ()
    """What arithmetic says that a slot costs."""
    box: Mapping[str, object] = field(default_factory=dict)
    """Settings of the box by probe, as they were at the start."""
    guard: tuple[GuardRecord, ...] = ()
    """Every time that the memory guard ended an engine."""
    command: tuple[str, ...] | None = None
    """By which words the sweep was asked for, secrets hidden; None when by none."""


@dataclass(frozen=True)
class GuardRecord:
    """Why the memory guard ended an engine, and what it had seen until then."""

    reason: str
    floor_bytes: int
    start_margin_bytes: int | None
    """What was available above the floor when the engine began to start."""
    trace: tuple[Mapping[str, float | int | None], ...]


@dataclass(frozen=True)
class CellLine:
    """A line of `cells.jsonl`: what `summarise` needs besides the raw records."""

    cell_id: str
    attempt: str
    started_ns: int
    finished_ns: int
    slots: int | None
    client: ClientCost
    failure: str | None
    failure_kind: ErrorKind | None
    server_cached_delta: int | None
    prompts_exact: bool
    strict: bool = False
    arrivals: tuple[Arrival, ...] = ()
    server_deltas: Mapping[str, int] = field(default_factory=dict)

    def record(self, cell: Cell) -> CellRecord:
        """The cell's record again."""
        common = {name: getattr(self, name) for name in _OF_RECORD}
        if cell.purpose == "arrival":
            return ArrivalRecord(cell=cell, arrivals=self.arrivals, **common)
        return CellRecord(cell=cell, **common)


_OF_RECORD = tuple(item.name for item in fields(CellRecord) if item.name != "cell")
"""What a line and a record have in common."""


@dataclass(frozen=True)
class Recalled:
    """A run as its folder tells it."""

    request: SweepRequest
    plan: Plan
    environment: Environment
    measured: Measured
    searches: tuple[Search, ...]
    """What is known of every engine's capacity, where it was asked for."""
    stored_metrics: Mapping[str, object]
    """By cell id, as `cells.jsonl` keeps them."""


# ------------------------------------------------------------------------------------ writing


def write_plan(folder: RunFolder, request: SweepRequest, plan: Plan) -> None:
    """Keep the request, and for people what it expands to."""
    folder.write_document(
        PLAN,
        {
            "schema": PLAN_SCHEMA,
            "digest": plan.digest,
            "request": TypeAdapter(SweepRequest).dump_python(request, mode="json"),
            "cells": [
                {
                    "cell_id": cell.cell_id,
                    "purpose": cell.purpose,
                    "engine": cell.config.engine.id,
                    "slots": cell.config.slots,
                    "context_per_slot": cell.config.context_per_slot,
                    "prefix_cache": cell.config.prefix_cache,
                    "speculation": cell.config.speculation,
                    "concurrency": cell.concurrency,
                    "repeat": cell.repeat,
                    "requests": cell.requests,
                }
                for cell in plan.every_cell
            ],
            "steps": [_step(step) for step in plan.steps],
        },
    )


def _step(step: Any) -> dict[str, object]:
    """A step in a few words: its kind, whom it is about, what it sends."""
    words: dict[str, object] = {"kind": step.kind}
    if hasattr(step, "cell"):
        words["cell_id"] = step.cell.cell_id
        words["phases"] = [plain(phase) for phase in getattr(step, "phases", ())]
        if hasattr(step, "waves"):
            words["waves"] = list(step.waves)
    elif hasattr(step, "config"):
        words.update(
            engine=step.config.engine.id,
            prefix_cache=step.config.prefix_cache,
            speculation=step.config.speculation,
            replicate=step.replicate,
        )
    elif hasattr(step, "seconds"):
        words["seconds"] = step.seconds
    return words


def write_environment(folder: RunFolder, environment: Environment) -> None:
    """Keep what is known of box, engines and starts."""
    folder.write_document(ENVIRONMENT, plain(environment))


def write_memory(folder: RunFolder, line: CellLine) -> None:
    """Keep that the memory of a start has been read; the readings are in the samples."""
    document = plain(line)
    document["status"] = "failed" if line.failure else "ok"
    folder.append_cell(document)


def write_cell(folder: RunFolder, line: CellLine, found: CellResult) -> None:
    """Keep a finished cell."""
    document = plain(line)
    document["status"] = found.status
    document["findings"] = [finding.code for finding in found.findings]
    document["metrics"] = plain(found.metrics)
    folder.append_cell(document)


# ------------------------------------------------------------------------------------ judging


IDLE_SAMPLES = 400
"""So many of the last samples at rest say what the idle box takes."""


def idle_samples(folder: RunReader, until_ns: int | None = None) -> list[MemorySample]:
    """The run's last samples while an engine had nothing to do, up to a moment."""
    outside = folder.samples(None, to_ns=until_ns)
    return list(deque((s for s in outside if s.phase == "idle"), maxlen=IDLE_SAMPLES))


def _idle_before(samples: Sequence[MemorySample], until_ns: int) -> list[MemorySample]:
    """The same out of all idle samples of a run, in order of time."""
    end = bisect_right(samples, until_ns, key=lambda sample: sample.at_ns)
    return list(samples[max(0, end - IDLE_SAMPLES) : end])


def judge(
    folder: RunReader,
    record: CellRecord,
    spec: SweepSpec,
    line: CellLine,
    idle: Sequence[MemorySample],
) -> CellResult:
    """A cell's metrics, findings and status from its raw records; `idle` as `idle_samples`."""
    return _judge(_read(folder, record), spec, line, idle)


@dataclass(frozen=True)
class _Records:
    """One cell's raw records, read once. Large: held while the cell is summed up, no longer."""

    record: CellRecord
    traces: Sequence[RequestTrace]
    samples: Sequence[MemorySample]


def _read(folder: RunReader, record: CellRecord) -> _Records:
    cell_id = record.cell.cell_id
    return _Records(
        record,
        [_packed(trace) for trace in folder.traces(cell_id, record.attempt)],
        list(folder.samples(cell_id, record.started_ns, record.finished_ns)),
    )


def _packed(trace: RequestTrace) -> RequestTrace:
    """The same in a fifth of the memory: all requests of a cell are held when it is summed up."""
    return replace(
        trace, event_ns=array("q", trace.event_ns), event_tokens=array("i", trace.event_tokens)
    )


def _judge(
    raw: _Records, spec: SweepSpec, line: CellLine, idle: Sequence[MemorySample]
) -> CellResult:
    record, samples = raw.record, raw.samples
    metrics = summarise(record, raw.traces, samples, spec.slo, idle=idle_power(idle))
    evidence = CellEvidence(record, metrics, prompts_exact=record.prompts_exact, samples=samples)
    findings = examine_cell(evidence)
    status = status_of(evidence, findings)
    if line.strict and status == "suspect":
        status = "failed"
    return CellResult(record.cell, status, metrics, findings)


def line_of(record: CellRecord, *, strict: bool) -> CellLine:
    """What `cells.jsonl` will say of a record."""
    own = {name: getattr(record, name) for name in _OF_RECORD}
    arrivals = record.arrivals if isinstance(record, ArrivalRecord) else ()
    return CellLine(cell_id=record.cell.cell_id, strict=strict, arrivals=arrivals, **own)


def status_of_run(plan: Plan, cells: Sequence[CellResult]) -> RunStatus:
    """`failed` when no cell gave anything, `partial` when one is missing or failed."""
    usable = {found.cell.cell_id for found in cells if found.status != "failed"}
    if not usable:
        return "failed"
    return "complete" if all(cell.cell_id in usable for cell in plan.cells) else "partial"


# ------------------------------------------------------------------------------------ reading


def recall(folder: RunReader) -> Recalled:
    """The run, every metric computed from raw records. Raises UsageError when it is damaged."""
    request = recall_request(folder)
    environment = recall_environment(folder)
    identities = dict(zip(configurations(request.spec), environment.identities, strict=False))
    try:
        plan = expand(request.spec, identities)
    except KeyError as error:
        raise UsageError(f"{folder.path / ENVIRONMENT} lacks an engine of the plan") from error
    judged_ones = (*plan.cells, *plan.canaries, *plan.arrivals, *plan.capacity)
    known = {cell.cell_id: cell for cell in judged_ones}
    lines = [line for line in folder.cells() if line.get("cell_id") in known]
    gathered = _Gathered(str(environment.host.get("class")))
    idle = [sample for sample in folder.samples(None) if sample.phase == "idle"]
    for line in lines:
        _gather(gathered, folder, _Line(line, known), request.spec, idle)
    judged = gathered.judged
    costs = _slot_costs(folder, plan, environment)
    found_searches = searches(plan, judged, costs, environment.expected, environment.launches)
    return Recalled(
        request=request,
        plan=plan,
        environment=environment,
        searches=found_searches,
        measured=Measured(
            cells=_for(judged, "load"),
            canaries=_for(judged, "canary"),
            arrivals=_for(judged, "arrival"),
            steps=_for(judged, "capacity"),
            memory=costs,
            capacity=capacities(found_searches),
            interference=combine(gathered.observed),
            findings=_drift(gathered, plan),
            starts=_starts(folder, plan),
            distributions=gathered.series.distributions,
            timelines=gathered.series.timelines,
            overlays=arrivals(gathered.overlays),
        ),
        stored_metrics={str(line["cell_id"]): line.get("metrics") for line in lines},
    )


def _for(judged: Sequence[CellResult], purpose: CellPurpose) -> tuple[CellResult, ...]:
    return tuple(found for found in judged if found.cell.purpose == purpose)


class _Gathered:
    """What is kept of the cells of a run while their records are read, one cell after the other."""

    def __init__(self, box_class: str) -> None:
        self.judged: list[CellResult] = []
        self.series = Series(box_class)
        self.observed: list[Observed] = []
        self.overlays: list[Overlay] = []
        self.canary_s: dict[str, list[float]] = {}
        """The time per token of each request of the canary, by cell id."""

    def add(self, raw: _Records, found: CellResult) -> None:
        """Keep what the run's result needs of a cell; its records may go then."""
        self.judged.append(found)
        record, traces = raw.record, raw.traces
        if isinstance(record, ArrivalRecord) and record.failure is None:
            self.observed.append(observe(record, traces))
            seen = overlay(record, traces)
            self.overlays += [] if seen is None else [seen]
        elif record.cell.purpose == "canary":
            times = [tpot_s(trace) for trace in traces if trace.ok and trace.role == "measured"]
            self.canary_s[record.cell.cell_id] = [
                seconds for seconds in times if seconds is not None
            ]
        elif record.cell.purpose == "load" and found.status != "failed":
            self.series.add(record, traces, raw.samples)


def _drift(gathered: _Gathered, plan: Plan) -> tuple[Finding, ...]:
    """What the canary says: the time per token of each request, at the beginning and at the end."""
    times = [gathered.canary_s.get(canary.cell_id) for canary in plan.canaries]
    if not times or any(found is None for found in times):
        return ()
    first, last = (found or [] for found in times)
    found_drift = canary_drift(first, last, plan.canaries[0].config.engine.id)
    return () if found_drift is None else (found_drift,)


def _starts(folder: RunReader, plan: Plan) -> dict[str, str | None]:
    """Starts at which memory was read: why one failed, None when it did not."""
    known = {cell.cell_id for cell in plan.memory}
    lines = [_line_from(folder, line) for line in folder.cells() if line.get("cell_id") in known]
    return {line.cell_id: line.failure for line in lines}


def _slot_costs(folder: RunReader, plan: Plan, environment: Environment) -> tuple[SlotCost, ...]:
    """What a slot costs, from the samples of all starts that were made for it."""
    known = {cell.cell_id: cell for cell in plan.memory}
    lines = [line for line in folder.cells() if line.get("cell_id") in known]
    groups: dict[tuple[str, str], list[Point]] = {}
    for line in lines:
        record = _line_from(folder, line).record(known[str(line["cell_id"])])
        config = record.cell.config
        groups.setdefault((config.engine.id, config.speculation), []).append(
            _point(folder, record, environment.launches)
        )
    expected = {(slot.engine, slot.speculation): slot for slot in environment.expected}
    contexts = {cell.config.engine.id: cell.config.context_per_slot for cell in plan.memory}
    costs: list[SlotCost] = []
    for (engine, speculation), points in groups.items():
        subject = Subject(
            engine=engine,
            speculation=speculation,
            context_per_slot=contexts[engine],
            box_class=str(environment.host.get("class")),
            expected=expected.get((engine, speculation)),
            most_slots=MAX_SLOTS,
        )
        pool = _pool(environment.launches, engine, speculation)
        if pool is None:
            costs += memory.costs(subject, points)
        else:
            costs.append(memory.pool_cost(subject, pool, points))
    return tuple(costs)


def _pool(launches: Sequence[Launch], engine: str, speculation: str) -> memory.Pool | None:
    """The pool of an engine that allocates one; None for those that allocate by slot."""
    own = [
        launch
        for launch in launches
        if (launch.engine_id, launch.speculation, launch.role) == (engine, speculation, "memory")
        and isinstance(launch.effective.details.get("num_gpu_blocks"), int)
    ]
    if not own:
        return None
    largest = max(own, key=lambda launch: launch.slots)
    details = largest.effective.details
    blocks, size = details.get("num_gpu_blocks"), details.get("kv_block_bytes")
    return memory.Pool(
        blocks=blocks - 1 if isinstance(blocks, int) else None,  # one block holds nothing
        block_bytes=size if isinstance(size, int) else None,
    )


def _point(folder: RunReader, record: CellRecord, launches: Sequence[Launch]) -> Point:
    cell = record.cell
    own = [
        launch
        for launch in launches
        if launch.role == "memory"
        and (launch.engine_id, launch.speculation)
        == (cell.config.engine.id, cell.config.speculation)
        and (launch.slots, launch.replicate) == (cell.config.slots, cell.repeat)
    ]
    reported = own[-1].effective.details.get("buffers") if own else None
    return Point(
        slots=cell.config.slots,
        repeat=cell.repeat,
        samples=tuple(folder.samples(cell.cell_id, record.started_ns, record.finished_ns)),
        buffers=memory.buffers_from(reported),
        failure=record.failure,
    )


def result_of(run: Recalled, finished_at: str | None, files: Mapping[str, str]) -> Result:
    """The result that follows from a run's files."""
    facts = RunFacts(
        run_id=run.environment.run_id,
        status=status_of_run(run.plan, run.measured.cells),
        started_at=run.environment.started_at,
        finished_at=finished_at,
        agent=run.environment.agent,
        host=run.environment.host,
        files=files,
        findings=run.environment.findings,
        command=run.environment.command,
        box=run.environment.box,
    )
    return result.build(facts, run.plan, run.environment.launches, run.measured)


def recall_request(folder: RunReader) -> SweepRequest:
    """What the run was asked. Raises UsageError."""
    document = folder.read_document(PLAN)
    where = str(folder.path / PLAN)
    if not isinstance(document, dict) or document.get("schema") != PLAN_SCHEMA:
        raise UsageError(f"{where} is not a plan of this version: start a new run")
    return sweep_request_from_document(document.get("request"), where)


def recall_environment(folder: RunReader) -> Environment:
    """Where and with what the run was made. Raises UsageError."""
    try:
        return TypeAdapter(Environment).validate_python(folder.read_document(ENVIRONMENT))
    except ValidationError as error:
        raise UsageError(
            f"{folder.path / ENVIRONMENT} is not what this version writes "
            f"({error.error_count()} faults)"
        ) from error


@dataclass(frozen=True)
class _Line:
    """A line of `cells.jsonl`, and the plan's cells by id."""

    document: Mapping[str, Any]
    known: Mapping[str, Cell]


def _gather(
    gathered: _Gathered,
    folder: RunReader,
    line: _Line,
    spec: SweepSpec,
    idle: Sequence[MemorySample],
) -> None:
    """Read a cell's records, keep what is wanted of them, let them go. Raises UsageError."""
    parsed = _line_from(folder, line.document)
    try:
        raw = _read(folder, parsed.record(line.known[parsed.cell_id]))
        found = _judge(raw, spec, parsed, _idle_before(idle, raw.record.finished_ns))
        gathered.add(raw, found)
    except (ValueError, IndexError, OverflowError) as error:
        # Well-formed records that contradict each other: only editing makes such.
        raise UsageError(
            f"the records of cell {parsed.cell_id} in {folder.path} are damaged "
            f"({str(error).splitlines()[0]})"
        ) from error


@cache
def _line_reader() -> TypeAdapter[CellLine]:
    """Built once: that takes longer than reading many lines."""
    return TypeAdapter(CellLine)


def _line_from(folder: RunReader, line: Mapping[str, Any]) -> CellLine:
    try:
        return _line_reader().validate_python(
            {key: value for key, value in line.items() if key in CellLine.__dataclass_fields__}
        )
    except ValidationError as error:
        raise UsageError(
            f"the records of cell {line.get('cell_id')} in {folder.path} are damaged "
            f"({str(error).splitlines()[0]})"
        ) from error


# ------------------------------------------------------------------------------------ publishing


def file_hashes(folder: RunReader) -> dict[str, str]:
    """SHA-256 of every raw file of the run: plan, environment, records, logs."""
    logs = sorted(path.name for path in folder.path.glob("engine-*.log"))
    return folder.hashes([PLAN, ENVIRONMENT, REQUESTS, SAMPLES, CELLS, INVALIDATED, LOG, *logs])


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema of a published document."""
    documents: dict[str, Any] = {"result": Result, "plan": SweepRequest}
    made = TypeAdapter(documents[name]).json_schema()
    made["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    made["title"] = f"edgeagent.{name}/1"
    return made
