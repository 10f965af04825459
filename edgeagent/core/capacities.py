"""How many requests does each engine of a run serve well, and what would settle it?

Joins the pure search of core/capacity.py with a run: which cells say what about an engine, and what
bounds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from edgeagent.core.capacity import Bounds, Capacity, Evaluation, Search, capacity, next_concurrency
from edgeagent.core.memory import ExpectedSlot, SlotCost
from edgeagent.core.model import Cell, EngineConfig, Launch, Plan
from edgeagent.core.plan import capacity_setting

if TYPE_CHECKING:
    from edgeagent.core.result import CellResult

LARGEST = 256
"""No more than these are tried: llama.cpp has no more slots, and no box at the edge serves more."""


def searches(
    plan: Plan,
    found: Sequence[CellResult],
    costs: Sequence[SlotCost],
    expected: Sequence[ExpectedSlot],
    launches: Sequence[Launch],
) -> tuple[Search, ...]:
    """What is known of every engine's capacity; empty where nobody asked for it."""
    if plan.spec.capacity == "off":
        return ()
    return tuple(
        Search(
            engine=engine.id,
            slo={name: value for name, value in asdict(plan.spec.slo).items() if value is not None},
            bounds=Bounds(
                range=LARGEST,
                memory=_memory(engine.id, costs, expected),
                slots=_slots(capacity_setting(plan.spec, engine.id), launches),
            ),
            evaluations=tuple(_evaluations(plan, engine.id, found)),
        )
        for engine in plan.spec.engines
    )


def wanted(found: Sequence[Search]) -> tuple[tuple[str, int], ...]:
    """The levels to measure next, at most one an engine; empty when every answer is known."""
    asked = ((search.engine, next_concurrency(search)) for search in found)
    return tuple((engine, level) for engine, level in asked if level is not None)


def capacities(found: Sequence[Search]) -> tuple[Capacity, ...]:
    """The answers so far."""
    return tuple(answer for search in found if (answer := capacity(search)) is not None)


def _evaluations(plan: Plan, engine: str, found: Sequence[CellResult]) -> Iterator[Evaluation]:
    """Levels that were measured in the setting of the search, each with all its planned repeats."""
    setting = capacity_setting(plan.spec, engine)
    planned: dict[int, list[Cell]] = {}
    for cell in (*plan.cells, *plan.capacity):
        if _is_of(cell.config, setting):
            planned.setdefault(cell.concurrency, []).append(cell)
    shares: Mapping[str, float | None] = {
        one.cell.cell_id: one.metrics.good_fraction for one in found if one.status != "failed"
    }
    seen = {one.cell.cell_id for one in found}
    asked = {level for engine_id, level in plan.spec.capacity_levels if engine_id == engine}
    for level, cells in sorted(planned.items()):
        # A level of the sweep that was not reached says nothing; one that was asked for and could
        # not be measured has served nobody.
        if level in asked or any(cell.cell_id in seen for cell in cells):
            yield Evaluation(level, tuple(shares.get(cell.cell_id) for cell in cells))


def _is_of(config: EngineConfig, setting: EngineConfig) -> bool:
    return (config.engine.id, config.prefix_cache, config.speculation) == (
        setting.engine.id, setting.prefix_cache, setting.speculation,
    )  # fmt: skip


def _memory(engine: str, costs: Sequence[SlotCost], expected: Sequence[ExpectedSlot]) -> int | None:
    """Slots that fit: as measured, else by arithmetic; a pool is made larger by the next start."""
    measured = [
        cost.max_slots
        for cost in costs
        if cost.engine == engine and cost.max_slots is not None and cost.method == "relaunch"
    ]
    if measured:
        return min(measured)
    return next((slot.max_slots for slot in expected if slot.engine == engine), None)


def _slots(setting: EngineConfig, launches: Sequence[Launch]) -> int | None:
    if setting.engine.slots is not None:
        return setting.engine.slots
    if not setting.engine.attached:
        return None
    own = (one.effective.slots for one in launches if one.engine_id == setting.engine.id)
    return next((slots for slots in own if slots is not None), None)
