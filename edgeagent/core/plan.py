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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from edgeagent.core.kv import CELL_STEP
from edgeagent.core.model import (
    ArrivalSpec,
    Cell,
    CellPurpose,
    Cooldown,
    EngineConfig,
    EngineIdentity,
    EngineSpec,
    Measure,
    MeasureArrival,
    MeasureMemory,
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

_MEMORY_LEVELS = 4
"""A line needs three places at least; more than four only take time."""
_FEWEST_LEVELS = 3

_ARRIVAL_PAIRS = 4
_ARRIVAL_QUIET_S = 2.0
_LONG = 4
"""How much longer a newcomer's prompt and the answers that it disturbs are than usual, where the
context of a slot has the room."""
_SPARE_TOKENS = 8
"""Left free there: no engine needs to fill a slot to its last token for this."""

_HAS_A_POOL = frozenset({"vllm"})
"""Engines that allocate one pool for all requests, and tell how much of it is in use."""

_MEASURES_MEMORY = frozenset({"llamacpp", "fake"})
"""Engines that allocate by slot, so that starts at several slot counts tell what one costs."""


@dataclass(frozen=True)
class LaunchPlan:
    """One start of an engine and the cells that it will serve."""

    config: EngineConfig
    replicate: int
    cells: tuple[Cell, ...]
    arrival: Cell | None = None
    """The fan-out that a second operator joins, after the cells."""
    opening: Cell | None = None
    """The canary to run before the cells."""
    closing: Cell | None = None
    """The canary to run last."""

    @property
    def all_cells(self) -> tuple[Cell, ...]:
        """Cells, canaries and the second operator's."""
        around = (self.opening, *self.cells, self.arrival, self.closing)
        return tuple(cell for cell in around if cell is not None)


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
    """Every configuration that an engine of this sweep is started with."""
    searched = (capacity_configuration(spec, *level) for level in spec.capacity_levels)
    return tuple(
        dict.fromkeys((*load_configurations(spec), *memory_configurations(spec), *searched))
    )


def capacity_setting(spec: SweepSpec, engine_id: str) -> EngineConfig:
    """The configuration for which an engine's capacity is searched.

    Of its first speculation setting, and with the prefix cache on where that is part of the sweep:
    that is how a box is run.
    """
    return next(
        config
        for config in load_configurations(spec)
        if config.engine.id == engine_id
        and config.prefix_cache == spec.prefix_cache[-1]
        and config.speculation == spec.speculation[0]
    )


def capacity_configuration(spec: SweepSpec, engine_id: str, concurrency: int) -> EngineConfig:
    """The same with slots for so many requests at once, unless the operator chose their number."""
    config = capacity_setting(spec, engine_id)
    if config.engine.slots is not None or config.engine.attached:
        return config
    return replace(config, slots=max(config.slots, concurrency))


def memory_configurations(spec: SweepSpec) -> tuple[EngineConfig, ...]:
    """The configurations at which memory is measured: as for load, at several slot counts."""
    if not spec.memory_repeats:
        return ()
    first = spec.prefix_cache[0]
    return tuple(
        replace(config, slots=slots)
        for config in load_configurations(spec)
        if config.prefix_cache == first
        for slots in _slot_counts(spec, config)
    )


def _slot_counts(spec: SweepSpec, config: EngineConfig) -> tuple[int, ...]:
    """At how many slots this engine is started for memory; none where that tells nothing.

    An engine with a pool is loaded wave by wave within one start; a second start, at the other end,
    is there to see that the pool itself costs what it should. A server of somebody else's is taken
    as it is.
    """
    levels = spec.memory_slots or memory_levels(spec.concurrency)
    if config.engine.kind in _HAS_A_POOL:
        return (config.slots,) if config.engine.attached else (levels[0], levels[-1])
    measures = config.engine.kind in _MEASURES_MEMORY and not config.engine.attached
    return levels if measures else ()


def memory_levels(concurrency: Sequence[int]) -> tuple[int, ...]:
    """Slot counts that make a line: the concurrencies, a few more if these are too few, or fewer.

    The smallest and the largest are always among them.
    """
    levels = sorted(set(concurrency))
    if len(levels) < _FEWEST_LEVELS:
        top = max(levels[-1], _FEWEST_LEVELS)
        levels = sorted({1, (top + 1) // 2, top, *levels})
    if len(levels) <= _MEMORY_LEVELS:
        return tuple(levels)
    last = len(levels) - 1
    return tuple(
        levels[round(place * last / (_MEMORY_LEVELS - 1))] for place in range(_MEMORY_LEVELS)
    )


def load_configurations(spec: SweepSpec) -> tuple[EngineConfig, ...]:
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
    canaries = tuple(
        cell for launch in launches for cell in (launch.opening, launch.closing) if cell is not None
    )
    arrivals = tuple(launch.arrival for launch in launches if launch.arrival is not None)
    memory = tuple(_memory_cells(spec, identities))
    capacity = tuple(_capacity_cells(spec, identities))
    return Plan(
        spec=spec,
        identities=tuple(identities[config] for config in configurations(spec)),
        cells=cells,
        steps=(
            *(step for launch in launches for step in _steps(spec, launch)),
            *(_memory_step(spec, cell) for cell in memory),
            *_capacity_steps(spec, capacity),
        ),
        digest=digest(
            [CELL_SCHEMA, [cell.cell_id for cell in (*cells, *canaries, *memory, *arrivals)]]
        ),
        capacity=capacity,
        canaries=canaries,
        memory=memory,
        arrivals=arrivals,
    )


def remaining(plan: Plan, done: Collection[str]) -> Plan:
    """The same plan without finished cells: launches that have nothing left are not started.

    A launch that is started again warms up again; its prime and reset steps come with their cell.
    """
    steps: list[Step] = []
    for launch in _by_launch(plan):
        left = _left_of(launch, done)
        if left.all_cells:
            steps.extend(_steps(plan.spec, left))
    steps.extend(_memory_step(plan.spec, cell) for cell in plan.memory if cell.cell_id not in done)
    searched = tuple(cell for cell in plan.capacity if cell.cell_id not in done)
    steps.extend(_capacity_steps(plan.spec, searched))
    return replace(plan, steps=tuple(steps))


def _left_of(launch: LaunchPlan, done: Collection[str]) -> LaunchPlan:
    def kept(cell: Cell | None) -> Cell | None:
        return cell if cell is not None and cell.cell_id not in done else None

    return replace(
        launch,
        cells=tuple(cell for cell in launch.cells if cell.cell_id not in done),
        opening=kept(launch.opening),
        arrival=kept(launch.arrival),
        closing=kept(launch.closing),
    )


def _by_launch(plan: Plan) -> Iterator[LaunchPlan]:
    """Cells grouped by the start that serves them, in plan order."""
    grouped: dict[tuple[EngineConfig, int], list[Cell]] = {}
    for cell in plan.cells:
        grouped.setdefault((cell.config, cell.repeat), []).append(cell)
    joined = {(cell.config, cell.repeat): cell for cell in plan.arrivals}
    launches = [
        LaunchPlan(config, replicate, tuple(cells), joined.get((config, replicate)))
        for (config, replicate), cells in grouped.items()
    ]
    yield from _with_canaries(launches, plan.canaries)


def _with_canaries(launches: Sequence[LaunchPlan], canaries: Sequence[Cell]) -> list[LaunchPlan]:
    """The launches with the canaries put into the first and the last of their configuration."""
    placed = list(launches)
    if canaries:
        opening, closing = canaries
        own = [n for n, launch in enumerate(placed) if launch.config == opening.config]
        placed[own[0]] = replace(placed[own[0]], opening=opening)
        placed[own[-1]] = replace(placed[own[-1]], closing=closing)
    return placed


def _canaries(spec: SweepSpec, identities: Mapping[EngineConfig, EngineIdentity]) -> list[Cell]:
    """The opening and the closing canary: the same requests, one at a time, of one configuration.

    Its requests have the shape of all others, so that its time per output token is a time of this
    sweep; only their number is small.
    """
    if not spec.canary:
        return []
    config = load_configurations(spec)[0]
    work = replace(spec.workload, shape="fanout", requests=spec.canary, seconds=None)
    return [
        _cell(replace(spec, workload=work), config, identities[config], 1, repeat, "canary")
        for repeat in (0, 1)
    ]


def _memory_cells(
    spec: SweepSpec, identities: Mapping[EngineConfig, EngineIdentity]
) -> Iterator[Cell]:
    """Every start for memory, odd repeats downwards: a box that fills up favours no slot count."""
    configs = memory_configurations(spec)
    for repeat in range(spec.memory_repeats):
        if repeat:  # blocks in use are whole numbers: nothing is learned by counting them again
            configs = tuple(one for one in configs if one.engine.kind not in _HAS_A_POOL)
        for config in reversed(configs) if repeat % 2 else configs:
            work = replace(spec.workload, shape="fanout", requests=config.slots, seconds=None)
            known = identities[config]
            yield _cell(replace(spec, workload=work), config, known, config.slots, repeat, "memory")


def _capacity_cells(
    spec: SweepSpec, identities: Mapping[EngineConfig, EngineIdentity]
) -> Iterator[Cell]:
    for engine_id, level in spec.capacity_levels:
        config = capacity_configuration(spec, engine_id, level)
        for repeat in range(spec.repeats):
            yield _cell(spec, config, identities[config], level, repeat, "capacity")


def _capacity_steps(spec: SweepSpec, cells: Sequence[Cell]) -> Iterator[Step]:
    """A start for each level and repeat: a restart is a replicate here as well."""
    for cell in cells:
        yield from _steps(spec, LaunchPlan(cell.config, cell.repeat, (cell,)))


def _memory_step(spec: SweepSpec, cell: Cell) -> MeasureMemory:
    waves: tuple[int, ...] = (cell.concurrency,)
    if cell.config.engine.kind in _HAS_A_POOL:
        levels = spec.memory_slots or memory_levels(spec.concurrency)
        waves = tuple(sorted({n for n in levels if n < cell.concurrency} | {cell.concurrency}))
    return MeasureMemory(cell, waves)


def _arrival_cell(
    spec: SweepSpec, config: EngineConfig, identity: EngineIdentity, repeat: int
) -> Cell | None:
    """The fan-out that a second operator joins on this launch; None where nobody asked for it.

    It is as wide as the widest of the sweep, which fills every slot unless the engine was given
    more: that is the box as it was sized, and a newcomer there has to wait for a slot. Engines with
    a slot to spare (`slots` of an engine) show the newcomer that is served at once.
    """
    if spec.second_operator == "off" or config.speculation != spec.speculation[0]:
        return None
    work = spec.workload
    room = config.context_per_slot - work.prefix_tokens - work.prompt_tokens - _SPARE_TOKENS
    steady = replace(
        work,
        shape="sustained",
        requests=None,
        seconds=None,
        output_tokens=max(work.output_tokens, min(_LONG * work.output_tokens, room)),
    )
    widest = max(spec.concurrency)
    return _cell(
        replace(spec, workload=steady), config, identity, widest, repeat, arrival_spec(spec, repeat)
    )


def arrival_spec(spec: SweepSpec, repeat: int) -> ArrivalSpec:
    """How the second operator of a repeat comes; odd repeats turn every pair of windows round."""
    work = spec.workload
    wanted = _LONG * (work.prefix_tokens + work.prompt_tokens)
    room = context_per_slot(spec) - work.output_tokens - _SPARE_TOKENS
    return ArrivalSpec(
        pairs=_ARRIVAL_PAIRS,
        first="operator" if repeat % 2 else "none",
        prompt_tokens=max(1, min(wanted, room)),
        wanted_prompt_tokens=wanted,
        output_tokens=work.output_tokens,
        quiet_s=_ARRIVAL_QUIET_S,
    )


def _launches(
    spec: SweepSpec, identities: Mapping[EngineConfig, EngineIdentity]
) -> list[LaunchPlan]:
    configs = load_configurations(spec)
    launches = []
    for repeat in range(spec.repeats):
        backwards = repeat % 2 == 1
        for config in reversed(configs) if backwards else configs:
            levels = reversed(spec.concurrency) if backwards else spec.concurrency
            launches.append(
                LaunchPlan(
                    config,
                    repeat,
                    tuple(
                        _cell(spec, config, identities[config], level, repeat) for level in levels
                    ),
                    _arrival_cell(spec, config, identities[config], repeat),
                )
            )
    return _with_canaries(launches, _canaries(spec, identities))


def _steps(spec: SweepSpec, launch: LaunchPlan) -> Iterator[Step]:
    engine = launch.config.engine
    yield StartEngine(launch.config, launch.replicate)
    # One warm-up per start: every cell of a sweep sends requests of the same shape, and the
    # widest load reaches the largest batch that the launch will see.
    widest = max(launch.all_cells, key=lambda cell: cell.concurrency)
    wanted = spec.workload.warmup
    if wanted is None:
        wanted = widest.concurrency
    if wanted:
        yield Warmup(widest, (Phase("warmup", wanted),))
    if launch.opening:
        yield Measure(launch.opening, _measured(launch.opening))
    for cell in (*launch.cells, *((launch.arrival,) if launch.arrival else ())):
        if launch.config.prefix_cache == "on":
            yield ResetCache(engine.id)
            yield Prime(cell, (Phase("prime", cell.concurrency),))
        yield _measure(cell)
        if spec.cooldown_s:
            yield Cooldown(spec.cooldown_s)
    if launch.closing:
        yield Measure(launch.closing, _measured(launch.closing))
    yield StopEngine(engine.id)


def _measure(cell: Cell) -> Measure | MeasureArrival:
    return (Measure if cell.arrival is None else MeasureArrival)(cell, _measured(cell))


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
    special: CellPurpose | ArrivalSpec = "load",
) -> Cell:
    arrival = special if isinstance(special, ArrivalSpec) else None
    purpose: CellPurpose = "arrival" if isinstance(special, ArrivalSpec) else special
    # A fan-out that waits for newcomers goes on until the last of them has been seen off.
    requests = None if arrival else requests_for(spec, concurrency)
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
        **({"purpose": purpose} if purpose != "load" else {}),
        **({"arrival": asdict(arrival)} if arrival else {}),
    }
    return Cell(
        cell_id=digest(determined_by)[:16],
        config=config,
        concurrency=concurrency,
        repeat=repeat,
        workload=spec.workload,
        requests=requests,
        purpose=purpose,
        arrival=arrival,
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
    if cell.purpose == "canary":
        return f"{cell.config.engine.id}, canary at the {('beginning', 'end')[cell.repeat]}"
    if cell.purpose == "memory":
        parts = [f"{cell.config.engine.id}, memory of {cell.config.slots} slots"]
    else:
        parts = [f"{cell.config.engine.id} x{cell.concurrency}"]
        parts.append(f"prefix cache {cell.config.prefix_cache}")
    if cell.purpose == "arrival":
        parts.append("second operator")
    if cell.config.speculation != "off":
        parts.append(f"speculation {cell.config.speculation}")
    parts.append(f"repeat {cell.repeat + 1}")
    return ", ".join(parts)


def both(switch: str) -> tuple[Switch, ...]:
    """`on`, `off` or `both` as the settings to measure; off goes first."""
    words: dict[str, tuple[Switch, ...]] = {"on": ("on",), "off": ("off",), "both": ("off", "on")}
    return words[switch]
