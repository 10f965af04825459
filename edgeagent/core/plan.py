"""What will be done, in which order, and which cell is which?

`expand` turns the operator's question into cells and steps. A cell's id is a digest of all that
determines it, so a resumed run measures exactly what is missing, and a changed binary, model or
workload makes new cells instead of mixing with old ones.

Order. One launch per engine configuration and repeat: the launch is the replicate. Odd repeats run
the configurations backwards and the concurrencies downwards, so that a box that slowly warms up or
fills up does not favour whoever always goes first (an ABBA design).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass

from edgeagent.core.kv import CELL_STEP
from edgeagent.core.model import (
    Cell,
    Cooldown,
    EngineConfig,
    EngineIdentity,
    EngineSpec,
    Measure,
    Phase,
    Plan,
    Prime,
    ResetCache,
    StartEngine,
    Step,
    StopEngine,
    SweepSpec,
    Switch,
    Warmup,
)
from edgeagent.errors import UsageError

CELL_SCHEMA = "edgeagent.cell/1"
"""Part of every digest. Raise it when a cell of the same inputs would be measured differently."""

_MIN_REQUESTS = 20
_REQUESTS_PER_SLOT = 4


@dataclass(frozen=True)
class LaunchPlan:
    """One start of an engine and the cells that it will serve."""

    config: EngineConfig
    replicate: int
    cells: tuple[Cell, ...]


def digest(value: object) -> str:
    """SHA-256 of a plain value's canonical JSON, as hex."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def context_per_slot(spec: SweepSpec) -> int:
    """Tokens each slot must hold: what was asked for, else prompt plus output, padded.

    Raises UsageError when the context that was asked for cannot hold one request.
    """
    work = spec.workload
    needed = work.prefix_tokens + work.prompt_tokens + work.output_tokens
    if spec.context is None:
        return math.ceil(needed / CELL_STEP) * CELL_STEP
    if spec.context < needed:
        raise UsageError(
            f"--context {spec.context} cannot hold a request of {work.prefix_tokens} prefix + "
            f"{work.prompt_tokens} prompt + {work.output_tokens} output tokens: "
            f"give at least {needed}, or shorten the request"
        )
    return spec.context


def requests_for(spec: SweepSpec, concurrency: int) -> int | None:
    """Measured requests of a cell; None when it is bounded by seconds. Waves are whole."""
    work = spec.workload
    if work.seconds is not None:
        return None
    wanted = work.requests
    if wanted is None:
        wanted = max(_MIN_REQUESTS, _REQUESTS_PER_SLOT * concurrency)
    if work.shape == "fanout":
        return math.ceil(wanted / concurrency) * concurrency
    return wanted


def configurations(spec: SweepSpec) -> tuple[EngineConfig, ...]:
    """Every engine with every setting of its factors, in the order they were given."""
    context = context_per_slot(spec)
    return tuple(
        EngineConfig(
            engine=engine,
            slots=engine.slots or max(spec.concurrency),
            context_per_slot=context,
            prefix_cache=cache,
            speculation=speculation,
            device=spec.device,
        )
        for engine in spec.engines
        for cache in spec.prefix_cache
        for speculation in spec.speculation
    )


def expand(spec: SweepSpec, identities: Mapping[EngineConfig, EngineIdentity]) -> Plan:
    """The whole plan. `identities` holds what was established about every configuration.

    Raises UsageError when a request cannot fit its slot.
    """
    launches = tuple(_launches(spec, identities))
    cells = tuple(cell for launch in launches for cell in launch.cells)
    return Plan(
        spec=spec,
        identities=tuple(identities[config] for config in configurations(spec)),
        cells=cells,
        steps=tuple(step for launch in launches for step in _steps(spec, launch)),
        digest=digest([CELL_SCHEMA, [cell.cell_id for cell in cells]]),
    )


def remaining(plan: Plan, done: Collection[str]) -> Plan:
    """The same plan without finished cells: launches that have nothing left are not started.

    A launch that is started again warms up again; its prime and reset steps come with their cell.
    """
    steps: list[Step] = []
    for launch in _by_launch(plan):
        left = tuple(cell for cell in launch.cells if cell.cell_id not in done)
        if left:
            steps.extend(
                _steps(plan.spec, LaunchPlan(launch.config, launch.replicate, left)),
            )
    return Plan(plan.spec, plan.identities, plan.cells, tuple(steps), plan.digest)


def _by_launch(plan: Plan) -> Iterator[LaunchPlan]:
    """Cells grouped by the start that serves them, in plan order."""
    grouped: dict[tuple[EngineConfig, int], list[Cell]] = {}
    for cell in plan.cells:
        grouped.setdefault((cell.config, cell.repeat), []).append(cell)
    for (config, replicate), cells in grouped.items():
        yield LaunchPlan(config, replicate, tuple(cells))


def _launches(
    spec: SweepSpec, identities: Mapping[EngineConfig, EngineIdentity]
) -> Iterator[LaunchPlan]:
    configs = configurations(spec)
    for repeat in range(spec.repeats):
        backwards = repeat % 2 == 1
        for config in reversed(configs) if backwards else configs:
            levels = reversed(spec.concurrency) if backwards else spec.concurrency
            yield LaunchPlan(
                config,
                repeat,
                tuple(_cell(spec, config, identities[config], level, repeat) for level in levels),
            )


def _steps(spec: SweepSpec, launch: LaunchPlan) -> Iterator[Step]:
    engine = launch.config.engine
    yield StartEngine(launch.config, launch.replicate)
    # One warm-up per start: every cell of a sweep sends requests of the same shape, and the
    # widest load reaches the largest batch that the launch will see.
    widest = max(launch.cells, key=lambda cell: cell.concurrency)
    wanted = spec.workload.warmup
    if wanted is None:
        wanted = widest.concurrency
    if wanted:
        yield Warmup(widest, (Phase("warmup", wanted),))
    for cell in launch.cells:
        if launch.config.prefix_cache == "on":
            yield ResetCache(engine.id)
            yield Prime(cell, (Phase("prime", cell.concurrency),))
        yield Measure(cell, _measured(cell))
        if spec.cooldown_s:
            yield Cooldown(spec.cooldown_s)
    yield StopEngine(engine.id)


def _measured(cell: Cell) -> tuple[Phase, ...]:
    measured = Phase("measured", cell.requests, cell.workload.seconds)
    if cell.workload.shape == "fanout":
        return (measured,)
    # The lead-in takes the start-up burst, in which all N prefill at once, and hands its slots
    # over one by one, so that the measured requests meet the box in its steady state.
    return (Phase("lead_in", cell.concurrency, staggered=True), measured)


def _cell(
    spec: SweepSpec,
    config: EngineConfig,
    identity: EngineIdentity,
    concurrency: int,
    repeat: int,
) -> Cell:
    requests = requests_for(spec, concurrency)
    work = asdict(spec.workload)
    # Own traffic stands for itself by its hash; the number of requests is the cell's.
    del work["prompts"], work["requests"]
    determined_by = {
        "schema": CELL_SCHEMA,
        "engine": _engine_digest(identity, config.engine),
        "model": identity.model.sha256 or identity.model.id if identity.model else None,
        "slots": config.slots,
        "context_per_slot": config.context_per_slot,
        "prefix_cache": config.prefix_cache,
        "speculation": config.speculation,
        "device": config.device,
        "workload": work,
        "requests": requests,
        "limits": [spec.limits.request_s, spec.limits.idle_s],
        "concurrency": concurrency,
        "repeat": repeat,
    }
    return Cell(
        cell_id=digest(determined_by)[:16],
        config=config,
        concurrency=concurrency,
        repeat=repeat,
        workload=spec.workload,
        requests=requests,
    )


def _engine_digest(identity: EngineIdentity, engine: EngineSpec) -> list[object]:
    return [
        identity.kind,
        identity.version,
        identity.binary_sha256,
        list(identity.argv),
        [list(pair) for pair in identity.env],
        engine.url,
    ]


def label(cell: Cell) -> str:
    """What people call a cell: `llamacpp x8, prefix cache on, repeat 2`."""
    parts = [f"{cell.config.engine.id} x{cell.concurrency}"]
    parts.append(f"prefix cache {cell.config.prefix_cache}")
    if cell.config.speculation != "off":
        parts.append(f"speculation {cell.config.speculation}")
    parts.append(f"repeat {cell.repeat + 1}")
    return ", ".join(parts)


def both(switch: str) -> tuple[Switch, ...]:
    """`on`, `off` or `both` as the settings to measure; off goes first."""
    words: dict[str, tuple[Switch, ...]] = {"on": ("on",), "off": ("off",), "both": ("off", "on")}
    return words[switch]
