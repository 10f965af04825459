"""What do stored runs say about each other?

Reads each run's result.json, makes sure that it is one of this version and that the files beside it
are the ones that it was made of, asks whether its curves may be compared at all, and compares them:
the engines of one run with each other, and the engines of one run with those of another.

Engines of one run were measured side by side, block by block. Those of two runs were not: their
repeats are paired by number, which is sound, but what the box did in between does not cancel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from edgeagent.archive import RESULT, file_hashes
from edgeagent.core.comparability import Doubt, Setup, comparable
from edgeagent.core.comparison import DIRECTIONS, Comparison
from edgeagent.core.curves import COMPARED, Point, compare_points
from edgeagent.core.model import ModelIdentity
from edgeagent.core.result import SCHEMA, CellDocument, EngineResult, Result, plain
from edgeagent.core.schemas import unreadable
from edgeagent.errors import UsageError
from edgeagent.store.runfolder import RunReader

COMPARE_SCHEMA = "edgeagent.compare/1"

_GOODPUT = "goodput_per_s"


@dataclass(frozen=True, eq=False)
class StoredRun:
    """A run as it lies on disk."""

    path: Path
    result: Result
    verified: bool
    """Whether the files that it was made of lie beside it; if they do, their hashes are right."""


@dataclass(frozen=True)
class Pair:
    """Two curves' owners, and what is in the way of comparing them."""

    a: str
    b: str
    same_run: bool
    settings: bool
    """Whether they have a prefix cache and speculation setting in common."""
    doubts: tuple[Doubt, ...] = ()
    comparisons: tuple[Comparison, ...] = ()

    @property
    def refused(self) -> bool:
        """Whether nothing about them is compared."""
        return any(doubt.severity == "refuse" and doubt.metrics is None for doubt in self.doubts)


@dataclass(frozen=True)
class Side:
    """One engine of one run."""

    run: StoredRun
    id: str
    """The engine's id in its run."""
    setup: Setup
    points: tuple[Point, ...] = field(repr=False)


def compare_runs(paths: Sequence[Path], metric: str | None = None) -> dict[str, Any]:
    """The comparison as a document. Raises UsageError when there is nothing that can be compared.

    Without `metric` all of the usual ones are compared that at least one side has.
    """
    _check_metric(metric)
    runs = [read_run(path) for path in paths]
    _check_distinct(runs)
    sides = _sides(runs)
    metrics = (metric,) if metric is not None else COMPARED
    pairs = [_compared(one, other, metrics) for one, other in _pairs(sides)]
    _check_pairs(pairs, metric)
    return _document(runs, pairs)


def read_run(path: Path) -> StoredRun:
    """A stored run. Raises UsageError when it is no result of this version, or was changed."""
    folder = RunReader(path)
    document = folder.read_document(RESULT)
    if document is None:
        raise UsageError(
            f"{path} has no {RESULT}: the run was not finished; go on with it by "
            f"edgeagent sweep --resume {path}"
        )
    schema = document.get("schema") if isinstance(document, dict) else None
    if (why := unreadable(schema, SCHEMA)) is not None:
        raise UsageError(f"{path / RESULT} {why}")
    try:
        result = _adapter().validate_python({**_mapping(document), "schema": SCHEMA})
    except ValidationError as error:
        raise UsageError(
            f"{path / RESULT} is not what this version writes ({error.error_count()} faults): "
            f"see edgeagent verify {path}"
        ) from error
    return StoredRun(path, result, verified=_verified(folder, result))


@cache
def _adapter() -> TypeAdapter[Result]:
    return TypeAdapter(Result)


def _verified(folder: RunReader, result: Result) -> bool:
    """Whether the run's files are there. Raises UsageError when one is not what it was."""
    now = file_hashes(folder)
    changed = [name for name, found in now.items() if result.files.get(name, found) != found]
    if changed:
        raise UsageError(
            f"{folder.path}: {changed[0]} is not the file that {RESULT} was made of: "
            f"see edgeagent verify {folder.path}"
        )
    return bool(result.files) and set(result.files) <= set(now)


# --------------------------------------------------------------------------------------- checks


def _check_metric(metric: str | None) -> None:
    if metric is None or metric in DIRECTIONS:
        return
    near = get_close_matches(metric, DIRECTIONS, n=3, cutoff=0.4) or list(COMPARED)
    raise UsageError(
        f"--metric {metric} cannot be compared: give one like {', '.join(near)} (docs/metrics.md)"
    )


def _check_distinct(runs: Sequence[StoredRun]) -> None:
    """Refuse a run that is named twice: it would agree with itself."""
    (run_id, count), *_ = Counter(run.result.run_id for run in runs).most_common(1)
    if count > 1:
        raise UsageError(f"the run {run_id} was named {count} times: name different runs")
    if len(runs) == 1 and len(runs[0].result.engines) < 2:  # noqa: PLR2004  # because it takes two
        raise UsageError(
            f"{runs[0].path} has one engine only, which leaves nothing to compare: name another "
            "run, or measure two engines in one sweep"
        )


def _check_pairs(pairs: Sequence[Pair], metric: str | None) -> None:
    """Refuse with the reason when no pair is left that could be compared."""
    if any(pair.comparisons for pair in pairs):
        return
    refusals = [
        f"{pair.a} and {pair.b} cannot be compared: {doubt.text}"
        for pair in pairs
        for doubt in pair.doubts
        if doubt.severity == "refuse"
    ]
    if refusals:
        raise UsageError(refusals[0])
    if not any(pair.settings for pair in pairs):
        raise UsageError(
            f"{pairs[0].a} and {pairs[0].b} have no prefix cache and speculation setting in "
            "common: measure the same settings with both"
        )
    what = metric or "every metric"
    raise UsageError(f"{what} is null in all cells of these engines: nothing can be compared")


# ---------------------------------------------------------------------------------------- sides


def _sides(runs: Sequence[StoredRun]) -> list[Side]:
    return [_side(run, engine, runs) for run in runs for engine in run.result.engines]


def _side(run: StoredRun, engine: EngineResult, runs: Sequence[StoredRun]) -> Side:
    result = run.result
    cells = [cell for cell in result.cells if cell.engine == engine.id]
    usable = [cell for cell in cells if cell.status != "failed"]
    name = engine.id if len(runs) == 1 else f"{engine.id} ({_run_name(run, runs)})"
    work = dict(result.workload)
    setup = Setup(
        name=name,
        kind=engine.kind,
        version=engine.version,
        attached=engine.attached,
        model=_model_of(engine, cells, result.models),
        context_per_slot=engine.context_per_slot,
        workload=work,
        slo=_mapping(work.get("slo")),
        host=_text(result.host.get("hostname")),
        host_class=_text(result.host.get("class")),
        power_mode=_text(result.host.get("power_mode")),
        agent_version=_text(result.agent.get("version")),
        cache_proved=all(cell.cached_prompt_fraction is not None for cell in usable),
        findings=frozenset(
            (
                *(code for cell in usable for code in cell.findings),
                *(finding.code for finding in result.findings if not finding.cells),
            )
        ),
    )
    return Side(run, engine.id, setup, tuple(_point(cell, name) for cell in usable))


def _run_name(run: StoredRun, runs: Sequence[StoredRun]) -> str:
    """The run's folder; as long a part of its path as tells it from the others."""
    parts = run.path.resolve().parts
    for length in range(1, len(parts)):
        name = parts[-length:]
        if sum(other.path.resolve().parts[-length:] == name for other in runs) == 1:
            return "/".join(name)
    return str(run.path)


def _model_of(
    engine: EngineResult, cells: Sequence[CellDocument], models: Sequence[ModelIdentity]
) -> ModelIdentity | None:
    """The weights an engine ran with; of two formats of one model the one that its kind reads."""
    names = {cell.model for cell in cells}
    known = [model for model in models if model.id in names]
    gguf = [model for model in known if (model.format == "gguf") == (engine.kind == "llamacpp")]
    return next(iter(gguf or known), None)


def _point(cell: CellDocument, name: str) -> Point:
    return Point(
        engine=name,
        prefix_cache=cell.prefix_cache,
        speculation=cell.speculation,
        concurrency=cell.concurrency,
        block=cell.repeat,
        values={metric: _value(cell, metric) for metric in DIRECTIONS},
        suspect=cell.status == "suspect",
    )


def _value(cell: Any, metric: str) -> float | None:
    for part in metric.split("."):
        cell = getattr(cell, part)
    return None if cell is None else float(cell)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str | None:
    return None if value is None else str(value)


# ---------------------------------------------------------------------------------------- pairs


def _pairs(sides: Sequence[Side]) -> Iterator[tuple[Side, Side]]:
    """Engines of one run with each other; across runs those of one id, or all where none is."""
    for one, other in combinations(sides, 2):
        if one.run is other.run or one.id == other.id or not _share(sides, one, other):
            yield one, other


def _share(sides: Sequence[Side], one: Side, other: Side) -> bool:
    """Whether the two runs have an engine id in common."""
    ids = [{side.id for side in sides if side.run is run} for run in (one.run, other.run)]
    return bool(ids[0] & ids[1])


def _compared(one: Side, other: Side, metrics: Sequence[str]) -> Pair:
    doubts = (*comparable(one.setup, other.setup), *_of_runs(one.run, other.run))
    settings = {(p.prefix_cache, p.speculation) for p in one.points}
    pair = Pair(
        one.setup.name,
        other.setup.name,
        same_run=one.run is other.run,
        settings=bool(settings & {(p.prefix_cache, p.speculation) for p in other.points}),
        doubts=doubts,
    )
    if pair.refused:
        return pair
    wanted = [metric for metric in metrics if not _refused_for(metric, doubts)]
    if len(metrics) > 1 and not any(limit is not None for limit in one.setup.slo.values()):
        wanted = [metric for metric in wanted if metric != _GOODPUT]  # without an SLO: throughput
    found = compare_points((*one.points, *other.points), wanted)
    return replace(pair, comparisons=found)


def _refused_for(metric: str, doubts: Sequence[Doubt]) -> bool:
    return any(
        doubt.severity == "refuse" and doubt.metrics is not None and metric in doubt.metrics
        for doubt in doubts
    )


def _of_runs(one: StoredRun, other: StoredRun) -> Iterator[Doubt]:
    if one is not other:
        yield Doubt(
            "label",
            "different_runs",
            "measured in different runs, not side by side: what the box did in between does not "
            "cancel",
        )
    for run in dict.fromkeys((one, other)):
        if not run.verified:
            yield Doubt(
                "label",
                "not_verified",
                f"{run.path} lacks files that its result was made of: it could not be verified",
            )
        if run.result.status != "complete":
            yield Doubt("label", "incomplete_run", f"{run.path} is {run.result.status}")


# ------------------------------------------------------------------------------------- document


def _document(runs: Sequence[StoredRun], pairs: Sequence[Pair]) -> dict[str, Any]:
    document: dict[str, Any] = plain(
        {
            "schema": COMPARE_SCHEMA,
            "runs": [
                {"path": str(run.path), "run_id": run.result.run_id, "verified": run.verified}
                for run in runs
            ],
            "pairs": [
                {
                    "a": pair.a,
                    "b": pair.b,
                    "same_run": pair.same_run,
                    "refused": pair.refused,
                    "doubts": [
                        {
                            "severity": one.severity,
                            "code": one.code,
                            "text": one.text,
                            "metrics": sorted(one.metrics) if one.metrics else None,
                        }
                        for one in pair.doubts
                    ],
                    "comparison": pair.comparisons,
                }
                for pair in pairs
            ],
        }
    )
    return document
