"""What does a run say, as one document?

`result.json`, schema `edgeagent.result/1`. Fields are only ever added within a number; a reader
ignores what it does not know. History:
    1  first version; added since: plan, command, box, distributions, timelines, arrivals
Missing is null. Everything in it follows from the raw files (`edgeagent verify`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, Literal

from edgeagent.core.answers import Answer, Evidence, answers
from edgeagent.core.capacity import Capacity
from edgeagent.core.command import environment_without_secrets, without_secrets
from edgeagent.core.comparability import comparable, setup_of
from edgeagent.core.comparison import Comparison
from edgeagent.core.curves import Remarks, compared_by, comparisons, points_of
from edgeagent.core.factorial import EFFECTS_BY, PROOFS, Effect, effects
from edgeagent.core.findings import CODES, CellStatus, examine_launch, examine_level
from edgeagent.core.interference import Interference
from edgeagent.core.knee import KNEE_BY, Knee, knees
from edgeagent.core.memory import SlotCost, doubts
from edgeagent.core.metrics import CellMetrics
from edgeagent.core.model import (
    Cell,
    CellPurpose,
    EngineIdentity,
    Finding,
    Launch,
    ModelIdentity,
    Plan,
)
from edgeagent.core.plan import label
from edgeagent.core.series import GapDistribution, Timeline
from edgeagent.core.series_arrivals import ArrivalSeries
from edgeagent.core.stats import mean, mean_interval

SCHEMA: Literal["edgeagent.result/1"] = "edgeagent.result/1"

LEVEL_METRICS = (
    "output_tokens_per_s",
    "total_tokens_per_s",
    "request_throughput_per_s",
    "goodput_per_s",
    "good_fraction",
    "cached_prompt_fraction",
    "inflight_mean",
    "energy.per_output_token_j",
    "energy.net_per_output_token_j",
    "energy.per_request_j",
    "energy.net_per_request_j",
    *(
        f"{name}.{part}"
        for name in ("ttft_s", "ttfat_s", "itl_s", "tpot_s", "e2e_s", "gap_max_s", "headers_s")
        for part in ("mean", "p50", "p95", "p99", "max")
    ),
)

RunStatus = Literal["complete", "partial", "failed"]


@dataclass(frozen=True)
class CellResult:
    """A measured cell: which it was, how it was judged, and what it gave."""

    cell: Cell
    status: CellStatus
    metrics: CellMetrics
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Measured:
    """All that a run has measured."""

    cells: tuple[CellResult, ...] = ()
    canaries: tuple[CellResult, ...] = ()
    arrivals: tuple[CellResult, ...] = ()
    """Fan-outs that a second operator joined."""
    steps: tuple[CellResult, ...] = ()
    """Levels that the search for the capacity asked for."""
    memory: tuple[SlotCost, ...] = ()
    interference: tuple[Interference, ...] = ()
    capacity: tuple[Capacity, ...] = ()
    findings: tuple[Finding, ...] = ()
    """Doubts about the run that follow from more than one cell."""
    starts: Mapping[str, str | None] = field(default_factory=dict)
    """Starts at which memory was read, by cell id: why one failed, None when it did not."""
    distributions: tuple[GapDistribution, ...] = ()
    timelines: tuple[Timeline, ...] = ()
    overlays: tuple[ArrivalSeries, ...] = ()
    """What `arrivals[]` of the result holds."""


@dataclass(frozen=True)
class Interval:
    """A mean over repeats and its 95 % interval; null below three repeats."""

    mean: float | None
    ci95: tuple[float, float] | None


@dataclass(frozen=True)
class Level:
    """All repeats of one engine, concurrency, cache and speculation setting.

    Suspect repeats are included and counted, failed ones are not.
    """

    engine: str
    concurrency: int
    prefix_cache: str
    speculation: str
    replicates: int
    suspect: int
    metrics: Mapping[str, Interval]


@dataclass(frozen=True)
class Effective:
    """What an engine said of itself after it had started."""

    slots: int | None = None
    context_per_slot: int | None = None
    offloaded_layers: int | None = None
    total_layers: int | None = None
    speculative: bool | None = None
    prefix_cache: bool | None = None
    version: str | None = None
    details: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class LaunchResult:
    """One start of an engine."""

    replicate: int
    slots: int
    prefix_cache: str
    speculation: str
    argv: tuple[str, ...]
    ready_s: float | None
    effective: Effective
    log: str | None
    role: Literal["load", "memory"] = "load"
    model_cached_fraction: float | None = None


@dataclass(frozen=True)
class EngineResult:
    """An engine of the sweep and all its starts."""

    id: str
    kind: str
    version: str | None
    binary_sha256: str | None
    attached: bool
    context_per_slot: int | None
    launches: tuple[LaunchResult, ...]
    reason: str | None = None
    model_sha256: str | None = None
    """Which entry of `models[]` it ran; null when its file was not seen."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that were set for it, secrets hidden; empty where somebody else started it."""


@dataclass(frozen=True, kw_only=True)
class CellDocument(CellMetrics):
    """A cell as it stands in `cells[]`."""

    cell_id: str
    engine: str
    model: str | None
    concurrency: int
    prefix_cache: Literal["on", "off"]
    speculation: str
    repeat: int
    status: CellStatus
    findings: tuple[str, ...]


@dataclass(frozen=True)
class PlannedCell:
    """A cell that the run was to measure, for whatever purpose, and what became of it."""

    cell_id: str
    purpose: CellPurpose
    label: str
    """What people call it."""
    status: CellStatus | Literal["missing"]
    reason: str | None = None
    """Why it failed."""


@dataclass(frozen=True)
class PlanResult:
    """What was planned; `plan.json` has all of it."""

    digest: str
    cells: tuple[PlannedCell, ...]


@dataclass(frozen=True)
class Result:
    """The whole document; see docs/metrics.md for every number."""

    schema: Literal["edgeagent.result/1"]
    run_id: str
    status: RunStatus
    started_at: str
    finished_at: str | None
    agent: Mapping[str, object]
    files: Mapping[str, str]
    host: Mapping[str, object]
    engines: tuple[EngineResult, ...]
    models: tuple[ModelIdentity, ...]
    workload: Mapping[str, object]
    cells: tuple[CellDocument, ...]
    levels: tuple[Level, ...]
    answers: Mapping[str, Answer]
    findings: tuple[Finding, ...]
    memory: tuple[SlotCost, ...] = ()
    canary: tuple[CellDocument, ...] = ()
    """The same small load at the beginning and at the end."""
    interference: tuple[Interference, ...] = ()
    comparison: tuple[Comparison, ...] = ()
    capacity: tuple[Capacity, ...] = ()
    effects: tuple[Effect, ...] = ()
    knee: tuple[Knee, ...] = ()
    """Up to which concurrency throughput grows, for each engine and setting."""
    command: tuple[str, ...] | None = None
    """The command line by which the sweep was asked for, secrets hidden."""
    command_reason: str | None = None
    """Why there is none."""
    plan: PlanResult | None = None
    box: Mapping[str, object] = field(default_factory=dict)
    """Settings of the box by probe, as they were at the start."""
    distributions: tuple[GapDistribution, ...] = ()
    timelines: tuple[Timeline, ...] = ()
    arrivals: tuple[ArrivalSeries, ...] = ()


@dataclass(frozen=True)
class RunFacts:
    """What the application knows of the run besides what was measured."""

    run_id: str
    status: RunStatus
    started_at: str
    finished_at: str | None
    agent: Mapping[str, object]
    host: Mapping[str, object]
    files: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    """Doubts that are not about one cell (a failed start, the state of the box)."""
    command: tuple[str, ...] | None = None
    box: Mapping[str, object] = field(default_factory=dict)


def build(facts: RunFacts, plan: Plan, launches: Sequence[Launch], measured: Measured) -> Result:
    """The whole result."""
    cells = measured.cells
    levels = levels_of(cells)
    curves = _curves(plan, launches, cells)
    names = {found.id: found.model.id for found in plan.identities if found.model is not None}
    findings = (
        *facts.findings,
        *(finding for cell in (*cells, *measured.arrivals) for finding in cell.findings),
        *_launch_findings(launches, cells),
        *_level_findings(cells),
        *measured.findings,
        *_memory_findings(measured.memory),
    )
    return Result(
        schema=SCHEMA,
        run_id=facts.run_id,
        status=facts.status,
        started_at=facts.started_at,
        finished_at=facts.finished_at,
        agent=facts.agent,
        files=facts.files,
        host=facts.host,
        engines=tuple(_engines(plan, launches)),
        models=tuple(_models(plan.identities)),
        workload=_workload(plan),
        cells=tuple(cell_document(cell, names.get(_engine_id(cell))) for cell in cells),
        levels=levels,
        answers=answers(Evidence(plan, measured, levels, curves.knee, curves.comparison)),
        memory=measured.memory,
        interference=measured.interference,
        comparison=curves.comparison,
        capacity=measured.capacity,
        effects=curves.effects,
        knee=curves.knee,
        canary=tuple(cell_document(one, names.get(_engine_id(one))) for one in measured.canaries),
        findings=tuple(sorted(findings, key=_gravity)),
        command=facts.command,
        command_reason=None if facts.command is not None else _NO_COMMAND,
        plan=PlanResult(plan.digest, tuple(_planned(plan, measured))),
        box=facts.box,
        distributions=measured.distributions,
        timelines=measured.timelines,
        arrivals=measured.overlays,
    )


_NO_COMMAND = "the sweep was not asked for on a command line, or by a version that did not keep it"


def _planned(plan: Plan, measured: Measured) -> Iterator[PlannedCell]:
    """Every cell of the plan, in its order, and what became of it."""
    judged = {
        found.cell.cell_id: found
        for part in (measured.cells, measured.canaries, measured.arrivals, measured.steps)
        for found in part
    }
    for cell in plan.every_cell:
        name = cell.cell_id
        common = (name, cell.purpose, label(cell))
        if name in judged:
            yield PlannedCell(*common, judged[name].status, _why_failed(judged[name]))
        elif name in measured.starts:
            failure = measured.starts[name]
            yield PlannedCell(*common, "ok" if failure is None else "failed", failure)
        else:
            yield PlannedCell(*common, "missing")


def _why_failed(found: CellResult) -> str | None:
    if found.status != "failed":
        return None
    return next((one.text for one in found.findings if one.severity == "suspect"), None)


@dataclass(frozen=True)
class _Curves:
    """What all levels together say."""

    comparison: tuple[Comparison, ...]
    effects: tuple[Effect, ...]
    knee: tuple[Knee, ...]


def _curves(plan: Plan, launches: Sequence[Launch], cells: Sequence[CellResult]) -> _Curves:
    return _Curves(
        comparison=comparisons(cells, compared_by(plan.spec.slo), _remarks(plan, launches, cells)),
        effects=effects(points_of(cells, (*EFFECTS_BY, *PROOFS))),
        knee=knees(points_of(cells, KNEE_BY)),
    )


def _remarks(plan: Plan, launches: Sequence[Launch], cells: Sequence[CellResult]) -> Remarks:
    """What to know of each pair of engines before their curves are compared."""
    contexts = {launch.engine_id: launch.effective.context_per_slot for launch in launches}
    proved = {
        engine: all(found.metrics.cached_prompt_fraction is not None for found in own)
        for engine in {_engine_id(found) for found in cells}
        for own in [[found for found in cells if _engine_id(found) == engine]]
    }
    setups = {
        identity.id: setup_of(identity, contexts.get(identity.id), proved.get(identity.id))
        for identity in plan.identities
    }
    return {(a, b): comparable(setups[a], setups[b]) for a in setups for b in setups if a != b}


def plain(value: object) -> Any:
    """Dataclasses, mappings and sequences as JSON values; numbers that are not finite as null."""
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _gravity(finding: Finding) -> int:
    return ("suspect", "warning", "info").index(finding.severity)


# -------------------------------------------------------------------------------------- cells


def _engine_id(result: CellResult) -> str:
    return result.cell.config.engine.id


def cell_document(result: CellResult, model: str | None) -> CellDocument:
    """A cell as it stands in `cells[]`; `model` is the id in `models[]`, where it is known."""
    cell, metrics = result.cell, result.metrics
    return CellDocument(
        **{item.name: getattr(metrics, item.name) for item in fields(metrics)},
        cell_id=cell.cell_id,
        engine=cell.config.engine.id,
        model=model or cell.config.engine.model,
        concurrency=cell.concurrency,
        prefix_cache=cell.config.prefix_cache,
        speculation=cell.config.speculation,
        repeat=cell.repeat,
        status=result.status,
        findings=tuple(finding.code for finding in result.findings),
    )


# ------------------------------------------------------------------------------------- levels


def levels_of(cells: Sequence[CellResult]) -> tuple[Level, ...]:
    """Repeats of one level put together, by engine, cache, speculation and concurrency."""
    return tuple(
        Level(
            engine=group[0].cell.config.engine.id,
            concurrency=group[0].cell.concurrency,
            prefix_cache=group[0].cell.config.prefix_cache,
            speculation=group[0].cell.config.speculation,
            replicates=len(usable),
            suspect=sum(result.status == "suspect" for result in usable),
            metrics={name: _interval(name, usable) for name in LEVEL_METRICS},
        )
        for group in _groups(cells)
        for usable in [[result for result in group if result.status != "failed"]]
    )


def _groups(cells: Sequence[CellResult]) -> list[list[CellResult]]:
    grouped: dict[tuple[str, str, str, int], list[CellResult]] = {}
    for result in cells:
        config = result.cell.config
        key = (config.engine.id, config.prefix_cache, config.speculation, result.cell.concurrency)
        grouped.setdefault(key, []).append(result)
    order = sorted(grouped)
    return [sorted(grouped[key], key=lambda result: result.cell.repeat) for key in order]


def _interval(name: str, results: Sequence[CellResult]) -> Interval:
    values = [value for r in results if (value := _value(r.metrics, name)) is not None]
    return Interval(mean(values), _possible(name, mean_interval(values)))


def _possible(name: str, ci95: tuple[float, float] | None) -> tuple[float, float] | None:
    """The part of an interval in which the value can lie: only net energy can be negative."""
    if ci95 is None or ".net_" in name:
        return ci95
    return (max(0.0, ci95[0]), ci95[1])


def _value(metrics: CellMetrics, name: str) -> float | None:
    value: Any = metrics
    for part in name.split("."):
        value = getattr(value, part)
    return None if value is None else float(value)


def _level_findings(cells: Sequence[CellResult]) -> Iterator[Finding]:
    for group in _groups(cells):
        usable = [
            (result.cell.cell_id, result.metrics.output_tokens_per_s)
            for result in group
            if result.status != "failed" and result.metrics.output_tokens_per_s is not None
        ]
        first = group[0].cell
        name = f"{first.config.engine.id} x{first.concurrency}, cache {first.config.prefix_cache}"
        yield from examine_level(
            name,
            [value for _, value in usable],
            [cell_id for cell_id, _ in usable],
        )


def _memory_findings(costs: Sequence[SlotCost]) -> Iterator[Finding]:
    for cost in costs:
        for code, text in doubts(cost):
            yield Finding(code, CODES[code], text)


def _launch_findings(launches: Sequence[Launch], cells: Sequence[CellResult]) -> Iterator[Finding]:
    seen: set[str] = set()
    for launch in launches:
        ids = [
            result.cell.cell_id
            for result in cells
            if launch.role == "load"
            and result.cell.config.engine.id == launch.engine_id
            and result.cell.config.prefix_cache == launch.prefix_cache
            and result.cell.config.speculation == launch.speculation
        ]
        for finding in examine_launch(launch, ids):
            if finding.text not in seen:
                seen.add(finding.text)
                yield finding


# ---------------------------------------------------------------------------- engines, models


def _engines(plan: Plan, launches: Sequence[Launch]) -> list[EngineResult]:
    results = []
    for spec in plan.spec.engines:
        identity = next(found for found in plan.identities if found.id == spec.id)
        own = [launch for launch in launches if launch.engine_id == spec.id]
        contexts = [launch.effective.context_per_slot for launch in own]
        results.append(
            EngineResult(
                id=spec.id,
                kind=identity.kind,
                version=identity.version,
                binary_sha256=identity.binary_sha256,
                attached=identity.attached,
                context_per_slot=next((c for c in contexts if c is not None), None),
                launches=tuple(_launch(launch) for launch in own),
                reason=identity.reason,
                model_sha256=identity.model.sha256 if identity.model else None,
                env=environment_without_secrets(identity.env),
            )
        )
    return results


def _launch(launch: Launch) -> LaunchResult:
    facts = launch.effective
    return LaunchResult(
        replicate=launch.replicate,
        slots=launch.slots,
        prefix_cache=launch.prefix_cache,
        speculation=launch.speculation,
        argv=without_secrets(launch.argv),
        ready_s=launch.ready_s,
        effective=Effective(
            slots=facts.slots,
            context_per_slot=facts.context_per_slot,
            offloaded_layers=facts.offloaded_layers,
            total_layers=facts.total_layers,
            speculative=facts.speculative,
            prefix_cache=facts.prefix_cache,
            version=facts.version,
            details=facts.details,
        ),
        log=launch.log,
        role=launch.role,
        model_cached_fraction=launch.model_cached_fraction,
    )


def _models(identities: Sequence[EngineIdentity]) -> list[ModelIdentity]:
    models: dict[str, ModelIdentity] = {}
    for identity in identities:
        if identity.model is not None:
            models.setdefault(identity.model.sha256 or identity.model.path, identity.model)
    return list(models.values())


def _workload(plan: Plan) -> dict[str, object]:
    work = plan.spec.workload
    document: dict[str, object] = asdict(work)
    del document["prompts"]
    document["shared_prefix"] = work.prefix_tokens > 0 and not work.prompts
    document["own_traffic"] = bool(work.prompts)
    document["concurrency"] = list(plan.spec.concurrency)
    document["prefix_cache"] = list(plan.spec.prefix_cache)
    document["repeats"] = plan.spec.repeats
    document["slo"] = plain(plan.spec.slo)
    return document
