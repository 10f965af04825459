"""Which curves do the cells of a run make, and what do they say about each other?

A cell gives one point: of an engine with its settings, at a concurrency, in a block (its repeat).
Failed cells give none, suspect ones are counted. Curves are compared between engines of the same
prefix cache and speculation setting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

from edgeagent.core.comparability import Doubt
from edgeagent.core.comparison import Comparison, Curve, compare
from edgeagent.core.model import Slo

if TYPE_CHECKING:
    from edgeagent.core.result import CellResult

COMPARED = (
    "output_tokens_per_s",
    "ttft_s.p50",
    "ttft_s.p95",
    "goodput_per_s",
    "energy.per_output_token_j",
)
"""What a sweep compares its engines by."""


def compared_by(slo: Slo) -> tuple[str, ...]:
    """`COMPARED`, without goodput where no limit makes it more than throughput."""
    limited = any(limit is not None for limit in (slo.ttft_s, slo.tpot_s, slo.e2e_s))
    return COMPARED if limited else tuple(name for name in COMPARED if name != "goodput_per_s")


Remarks = Mapping[tuple[str, str], Sequence[Doubt]]
"""What is in the way of comparing two engines, by their ids."""


@dataclass(frozen=True)
class Point:
    """What one cell gave."""

    engine: str
    prefix_cache: str
    speculation: str
    concurrency: int
    block: int
    values: Mapping[str, float | None] = field(default_factory=dict)
    """By the dotted names of result.json."""
    suspect: bool = False


@dataclass(frozen=True, order=True)
class Setting:
    """What curves have in common that are compared."""

    prefix_cache: str
    speculation: str


def points_of(cells: Iterable[CellResult], names: Iterable[str]) -> tuple[Point, ...]:
    """The points of measured cells, with the metrics of these names."""
    wanted = tuple(names)
    return tuple(
        Point(
            engine=found.cell.config.engine.id,
            prefix_cache=found.cell.config.prefix_cache,
            speculation=found.cell.config.speculation,
            concurrency=found.cell.concurrency,
            block=found.cell.repeat,
            values={name: _metric(found.metrics, name) for name in wanted},
            suspect=found.status == "suspect",
        )
        for found in cells
        if found.status != "failed" and found.cell.purpose == "load"
    )


def comparisons(
    cells: Iterable[CellResult],
    metrics: Sequence[str] = COMPARED,
    remarks: Remarks | None = None,
) -> tuple[Comparison, ...]:
    """Every pair of engines of a run, compared by every metric that at least one of them has.

    Where a doubt refuses, the comparison is unresolved with that reason and has no numbers.
    """
    return compare_points(points_of(cells, metrics), metrics, remarks)


def compare_points(
    points: Sequence[Point], metrics: Sequence[str], remarks: Remarks | None = None
) -> tuple[Comparison, ...]:
    """Every pair of engines among the points, compared by metric, setting by setting."""
    engines = list(dict.fromkeys(point.engine for point in points))
    settings = sorted({Setting(point.prefix_cache, point.speculation) for point in points})
    return tuple(
        replace(
            _doubted(found, (remarks or {}).get((a, b), ())),
            prefix_cache=setting.prefix_cache,
            speculation=setting.speculation,
        )
        for a, b in combinations(engines, 2)
        for setting in settings
        for both in [_of(points, (a, b), setting)]
        if {point.engine for point in both} == {a, b}
        for metric in metrics
        if any(point.values.get(metric) is not None for point in both)
        for known in [compare(curve(both, a, metric), curve(both, b, metric), metric)]
        for found in [replace(known, notes=(*known.notes, *_suspects(both)))]
    )


def _doubted(found: Comparison, doubts: Sequence[Doubt]) -> Comparison:
    about = [one for one in doubts if one.metrics is None or found.metric in one.metrics]
    refusals = [doubt.text for doubt in about if doubt.severity == "refuse"]
    if refusals:
        reason = "; ".join(refusals)
        return Comparison(
            found.metric, found.a, found.b, reason=reason, text=f"not compared: {reason}"
        )
    return replace(found, notes=(*(doubt.text for doubt in about), *found.notes))


def curve(points: Iterable[Point], engine: str, metric: str) -> Curve:
    """An engine's values of one metric over concurrency; all points have the same setting."""
    blocks: dict[int, dict[int, float | None]] = {}
    for point in points:
        if point.engine == engine:
            blocks.setdefault(point.concurrency, {})[point.block] = point.values.get(metric)
    return Curve(
        engine,
        {
            concurrency: [values.get(block) for block in range(max(values) + 1)]
            for concurrency, values in sorted(blocks.items())
        },
    )


def _of(points: Iterable[Point], engines: tuple[str, str], setting: Setting) -> list[Point]:
    return [
        point
        for point in points
        if point.engine in engines and Setting(point.prefix_cache, point.speculation) == setting
    ]


def _suspects(points: Sequence[Point]) -> tuple[str, ...]:
    count = sum(point.suspect for point in points)
    return (f"{count} of {len(points)} cells are suspect",) if count else ()


def _metric(metrics: Any, name: str) -> float | None:
    for part in name.split("."):
        metrics = getattr(metrics, part)
    return None if metrics is None else float(metrics)
