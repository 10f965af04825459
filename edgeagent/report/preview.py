"""What would this sweep do, how much memory would it take, and how long?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgeagent.core.model import (
    Cell,
    Cooldown,
    Measure,
    MeasureArrival,
    MeasureMemory,
    Plan,
    Prime,
    ResetCache,
    StartEngine,
    Step,
    StopEngine,
    Warmup,
)
from edgeagent.report.progress import duration, size


def text(document: Mapping[str, Any], plan: Plan) -> str:
    """The plan step by step, then memory and time, as plain text."""
    lines = [f"{len(plan.cells)} cells in {len(plan.steps)} steps", ""]
    lines += [_step(step) for step in plan.steps]
    lines += ["", *_memory(document["memory"]), _time(document["expected_s"])]
    return "\n".join(lines)


def _step(step: Step) -> str:
    if isinstance(step, StartEngine):
        config = step.config
        verb = "attach to" if config.engine.attached else "start"
        return (
            f"{verb} {config.engine.id} (repeat {step.replicate + 1}): {config.slots} slots of "
            f"{config.context_per_slot} tokens, prefix cache {config.prefix_cache}, "
            f"speculation {config.speculation}"
        )
    if isinstance(step, MeasureMemory):
        cell = step.cell
        waves = ", ".join(map(str, step.waves))
        return (
            f"start {cell.config.engine.id} with {cell.config.slots} slots and read its memory "
            f"before, during and after {waves} requests at once  [{cell.cell_id}]"
        )
    if isinstance(step, StopEngine):
        return f"stop {step.engine_id}"
    if isinstance(step, ResetCache):
        return "  clear the cache"
    if isinstance(step, Cooldown):
        return f"  pause {step.seconds:g} s"
    return f"  {_arrival(step.cell) if isinstance(step, MeasureArrival) else _load(step)}"


def _arrival(cell: Cell) -> str:
    spec = cell.arrival
    assert spec is not None  # noqa: S101  # because the plan makes no such step without
    bound = ""
    if spec.prompt_tokens < spec.wanted_prompt_tokens:
        bound = f" (not {spec.wanted_prompt_tokens}: the context of a slot bounds it)"
    return (
        f"keep {cell.concurrency} in flight, and {spec.pairs} times let a second operator come "
        f"with a prompt of {spec.prompt_tokens} tokens{bound}, {spec.pairs} times nobody  "
        f"[{cell.cell_id}]"
    )


def _load(step: Warmup | Prime | Measure) -> str:
    requests = ", ".join(
        f"{phase.requests} {phase.role.replace('_', '-')}"
        if phase.requests is not None
        else f"{phase.seconds:g} s {phase.role.replace('_', '-')}"
        for phase in step.phases
    )
    verb = {"warmup": "warm up", "prime": "prime the cache", "measure": "measure"}[step.kind]
    cell = f"  [{step.cell.cell_id}]" if isinstance(step, Measure) else ""
    return f"{verb} {step.cell.concurrency} at once: {requests} requests{cell}"


def _memory(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return [
            "expected memory: not known (no model file was seen, or its cache follows other rules)"
        ]
    most = max(rows, key=lambda row: row["total_bytes"])
    return [
        f"expected memory: {size(most['total_bytes'])} for {most['engine']} "
        f"({size(most['weights_bytes'] or 0)} weights, {size(most['kv_bytes'])} cache of "
        f"{most['slots']} slots; compute buffers come on top)"
    ]


def _time(seconds: Mapping[str, float]) -> str:
    return (
        f"expected time: {duration(seconds['low'])} to {duration(seconds['high'])} "
        "(a guess for this number of cores; a GPU is faster)"
    )
