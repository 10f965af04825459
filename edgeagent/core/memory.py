"""What does each further simultaneous request cost in memory?

llama.cpp allocates the cache of every slot when it starts. So an engine is started at several slot
counts, with the context of a slot held fixed, and what it takes is fitted over the slots:

    bytes = base + slots x bytes per slot

The slope is Theil and Sen's median of pairwise slopes, which one disturbed start does not move; its
interval is Sen's (core/stats.py). What is read depends on the class of box, since on unified memory
no single source tells the truth (docs/memory.md): for each *domain* (memory of the GPU, of the
host, or of both where they are one) the best source that answered at every start is used. It is
named, with how good it is:

    attributed     the memory of the engine's own processes
    device_delta   what the device says is used, less what was used before the start
    system_delta   the same for the whole box; anything else that runs there disturbs it
    engine_reported, unavailable

vLLM allocates its whole pool when it starts, so its processes do not grow with requests: there the
cost is blocks in use x bytes per block (`pool_cost`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from edgeagent.core.fit import default_reserve_bytes
from edgeagent.core.model import MemorySample, SamplePhase
from edgeagent.core.stats import quantile, slope, slope_interval

Domain = Literal["gpu", "host", "unified"]
Quality = Literal["attributed", "device_delta", "system_delta", "engine_reported", "unavailable"]
Method = Literal["relaunch", "blocks_in_use"]
Values: TypeAlias = Mapping[str, float | int | None]

CO_TENANT_BYTES = 64 << 20
CO_TENANT_SHARE = 0.02
"""What a device may hold beyond the engine's own processes before another user is suspected."""

APU_VRAM_BYTES = 4 << 30
"""A carve-out up to this size belongs to a GPU that works in the host's memory."""

_HOST_BUFFER = ("CPU", "AMX", "Host")


@dataclass(frozen=True)
class Reading:
    """Names of values that add up to what an engine takes, where they come from, how good it is."""

    source: str
    quality: Quality
    names: tuple[str, ...]
    since_start: bool = False
    """Whether what was there before the start has to be taken off."""


_ANONYMOUS = ("engine.pss_anon_bytes", "engine.pss_shmem_bytes")
_SYSTEM = Reading("mem_available", "system_delta", ("host.used_bytes",), since_start=True)
_HOST = (
    Reading("pss_anon", "attributed", _ANONYMOUS),
    Reading("rss_anon", "attributed", ("engine.anon_bytes",)),
    _SYSTEM,
)
_NVML = Reading("nvml_processes", "attributed", ("gpu.engine_bytes",))
_NVML_DEVICE = Reading("nvml_device", "device_delta", ("gpu.used_bytes",), since_start=True)
_DRM = Reading("drm_fdinfo", "attributed", ("drm.engine_bytes",))
_DRM_DEVICE = Reading(
    "amdgpu_device", "device_delta", ("drm.vram_used_bytes", "drm.gtt_used_bytes"), since_start=True
)


def _with_anonymous(reading: Reading) -> Reading:
    """GPU memory and the processes' own: they are apart in the kernel's books, and may be added."""
    return Reading(f"{reading.source}+pss_anon", reading.quality, (*reading.names, *_ANONYMOUS))


_BY_CLASS: Mapping[str, Mapping[Domain, tuple[Reading, ...]]] = {
    "cpu": {"host": _HOST},
    "dgpu": {"gpu": (_NVML, _NVML_DEVICE), "host": _HOST},
    "uma-nvidia": {"unified": (_with_anonymous(_NVML), _SYSTEM)},
    # Whether nvmap pages also count as resident is not known, so the two are never added.
    "uma-nvgpu": {
        "unified": (
            Reading("nvmap_clients", "attributed", ("nvmap.engine_bytes",)),
            Reading("nvmap_used", "system_delta", ("nvmap.used_bytes",), since_start=True),
            _SYSTEM,
        ),
        "host": _HOST[:2],
    },
    "amd-apu": {"unified": (_with_anonymous(_DRM), _SYSTEM)},
    "amd": {"gpu": (_DRM, _DRM_DEVICE), "host": _HOST},
    "intel": {"unified": (_with_anonymous(_DRM), _SYSTEM)},
}
"""In order of preference; platform facts 2.2."""

_CROSS_CHECK: Mapping[Domain, Reading] = {"gpu": _NVML_DEVICE, "host": _SYSTEM, "unified": _SYSTEM}


@dataclass(frozen=True)
class Buffer:
    """An allocation that the engine reports in its log."""

    kind: str
    device: str
    bytes: int

    @property
    def mapped(self) -> bool:
        """Whether it is the model file itself, mapped."""
        return "Mapped" in self.device

    @property
    def on_host(self) -> bool:
        """Whether it lies in the memory of the host."""
        return self.device.startswith(_HOST_BUFFER[:2]) or self.device.endswith(_HOST_BUFFER[2])


@dataclass(frozen=True)
class Point:
    """One start of an engine at a number of slots, and what was read around it."""

    slots: int
    repeat: int
    samples: tuple[MemorySample, ...]
    buffers: tuple[Buffer, ...] = ()
    failure: str | None = None

    def at(self, phase: SamplePhase) -> Values | None:
        """The values of the last full reading in a phase; None when there was none."""
        found = [sample for sample in self.samples if sample.phase == phase]
        return _whole(found[-1].values) if found else None

    def during(self, phase: SamplePhase) -> tuple[Values, ...]:
        """The values of every reading in a phase."""
        return tuple(_whole(s.values) for s in self.samples if s.phase == phase)

    def reason(self, names: Iterable[str]) -> str | None:
        """Why a value was null, by the first reason that a sample gives."""
        wanted = set(names)
        for sample in self.samples:
            for name, why in sample.absent.items():
                if name in wanted:
                    return why
        return None


@dataclass(frozen=True)
class Parts:
    """What the engine reports, part by part; None where its log does not say."""

    weights_bytes: int | None = None
    kv_bytes_per_slot: float | None = None
    state_bytes_per_slot: float | None = None
    output_bytes_per_slot: float | None = None
    compute_bytes: int | None = None
    """Of the largest number of slots."""


@dataclass(frozen=True)
class ExpectedSlot:
    """What arithmetic says that one more slot costs (core/kv.py)."""

    engine: str
    speculation: str
    cache_bytes_per_slot: float | None = None
    """Attention cache, state of recurrent layers and a draft model's: on the GPU where it is."""
    host_bytes_per_slot: float | None = None
    """Output rows and the like: on the host in any case."""
    max_slots: int | None = None
    """Slots that fit, by arithmetic, into what this box had at the start."""
    reason: str | None = None

    def bytes_in(self, domain: Domain, *, offloaded: bool) -> float | None:
        """What is expected in one domain; `offloaded` when a GPU has memory of its own for it."""
        if self.cache_bytes_per_slot is None or self.host_bytes_per_slot is None:
            return None
        if domain == "gpu":
            return self.cache_bytes_per_slot
        if domain == "host" and offloaded:
            return self.host_bytes_per_slot
        return self.cache_bytes_per_slot + self.host_bytes_per_slot


@dataclass(frozen=True)
class SlotCost:
    """A line of `memory[]`: what slots cost in one domain of one engine configuration.

    `slots` and the lists beside it run in parallel, one entry a start.
    """

    engine: str
    domain: Domain
    speculation: str
    context_per_slot: int
    method: Method
    slots: tuple[int, ...]
    bytes: tuple[int | None, ...]
    """After every slot has served a request: what a working engine holds."""
    ready_bytes: tuple[int | None, ...]
    load_peak_bytes: tuple[int | None, ...]
    mapped_bytes: int | None
    """Mapped from the model file: the kernel may take it back, and the engine needs it."""
    measured_bytes_per_slot: float | None
    ci95: tuple[float, float] | None
    """Of a working engine: caches, and what serving makes it take and keep."""
    ready_bytes_per_slot: float | None
    ready_ci95: tuple[float, float] | None
    """Of an engine at rest: what a slot makes it allocate at its start, as arithmetic counts it."""
    predicted_bytes_per_slot: float | None
    engine_reported_bytes_per_slot: float | None
    base_bytes: float | None
    """What the engine takes with no slot at all, by the fitted line."""
    cross_check_source: str | None
    cross_check_bytes_per_slot: float | None
    budget_bytes: int | None
    reserve_bytes: int | None
    max_slots: int | None
    """Slots that fit into the budget less the reserve."""
    reported: Parts
    source: str | None
    quality: Quality
    reason: str | None
    foreign_bytes: int | None = None
    """Held on the device by somebody else, where that was noticed."""


@dataclass(frozen=True)
class Subject:
    """Whose memory it is, on which class of box."""

    engine: str
    speculation: str
    context_per_slot: int
    box_class: str
    expected: ExpectedSlot | None = None
    most_slots: int = 1 << 20
    """More than these the engine does not offer, whatever memory there is."""

    def expected_in(self, domain: Domain, *, offloaded: bool = False) -> float | None:
        """What arithmetic says, where it can."""
        if self.expected is None:
            return None
        return self.expected.bytes_in(domain, offloaded=offloaded)


# -------------------------------------------------------------------------- from starts to cost


def costs(subject: Subject, points: Sequence[Point]) -> tuple[SlotCost, ...]:
    """What a slot costs, for each domain of this class of box in which the engine lives."""
    usable = sorted((p for p in points if p.failure is None), key=lambda p: (p.slots, p.repeat))
    found = [
        _cost(subject, domain, readings, usable)
        for domain, readings in _readings(subject.box_class, usable).items()
    ]
    if not usable:
        why = next((p.failure for p in points if p.failure), "no start was measured")
        found = [_unavailable(subject, domain, why) for domain in ("host",)]
    # An engine that runs on the CPU of a box with a GPU takes nothing there.
    there = [cost for cost in found if not _nothing_there(cost)]
    if any(cost.domain == "gpu" for cost in there):
        there = [_beside_gpu(subject, cost) for cost in there]
    return tuple(there)


def _beside_gpu(subject: Subject, cost: SlotCost) -> SlotCost:
    expected = subject.expected_in(cost.domain, offloaded=True)
    return replace(cost, predicted_bytes_per_slot=expected)


def _nothing_there(cost: SlotCost) -> bool:
    return cost.domain == "gpu" and bool(cost.bytes) and not any(cost.bytes)


def _readings(box_class: str, points: Sequence[Point]) -> Mapping[Domain, tuple[Reading, ...]]:
    if box_class == "amd" and any(_works_in_host_memory(point) for point in points):
        box_class = "amd-apu"
    return _BY_CLASS.get(box_class, _BY_CLASS["cpu"])


def _works_in_host_memory(point: Point) -> bool:
    total = _number(point.at("before"), "drm.vram_total_bytes")
    return total is not None and total <= APU_VRAM_BYTES


def _cost(
    subject: Subject, domain: Domain, readings: Sequence[Reading], points: Sequence[Point]
) -> SlotCost:
    reading = next((r for r in readings if _answers(r, points)), None)
    if reading is None:
        names = readings[0].names
        reasons = (point.reason(names) for point in points)
        why = next((reason for reason in reasons if reason), "no source answered at every start")
        return _unavailable(subject, domain, why)
    slots = tuple(point.slots for point in points)
    taken = [_taken(reading, point, point.at("loaded")) for point in points]
    ready = [_taken(reading, point, point.at("ready")) for point in points]
    at_rest = _fit(slots, ready)
    fit = _fit(slots, taken)
    budget = _least(_budget(domain, point) for point in points)
    mapped = _most(_number(point.at("loaded"), "engine.pss_file_bytes") for point in points)
    if mapped is None:
        mapped = _most(_number(point.at("loaded"), "engine.mapped_bytes") for point in points)
    check = _CROSS_CHECK[domain]
    checked = _fit(slots, [_taken(check, point, point.at("loaded")) for point in points])
    in_host = domain != "gpu"
    return SlotCost(
        engine=subject.engine,
        domain=domain,
        speculation=subject.speculation,
        context_per_slot=subject.context_per_slot,
        method="relaunch",
        slots=slots,
        bytes=tuple(taken),
        ready_bytes=tuple(ready),
        load_peak_bytes=tuple(_load_peak(reading, point) for point in points),
        mapped_bytes=mapped if in_host else None,
        measured_bytes_per_slot=fit.per_slot,
        ci95=fit.ci95,
        ready_bytes_per_slot=at_rest.per_slot,
        ready_ci95=at_rest.ci95,
        predicted_bytes_per_slot=subject.expected_in(domain),
        engine_reported_bytes_per_slot=_fit(slots, _reported(domain, points)).per_slot,
        base_bytes=fit.base,
        cross_check_source=check.source if reading != check and checked.per_slot else None,
        cross_check_bytes_per_slot=checked.per_slot if reading != check else None,
        budget_bytes=budget,
        reserve_bytes=None if budget is None else default_reserve_bytes(budget),
        max_slots=_max_slots(subject, budget, fit, mapped if in_host else 0),
        reported=_parts(domain, points),
        source=reading.source,
        quality=reading.quality,
        reason=fit.reason,
        foreign_bytes=_foreign(domain, points),
    )


@dataclass(frozen=True)
class _Fit:
    per_slot: float | None = None
    ci95: tuple[float, float] | None = None
    base: float | None = None
    reason: str | None = None


def _fit(slots: Sequence[int], taken: Sequence[float | None]) -> _Fit:
    pairs = [(float(n), float(b)) for n, b in zip(slots, taken, strict=True) if b is not None]
    per_slot = slope(pairs)
    if per_slot is None:
        return _Fit(reason="fewer than two slot counts were measured")
    interval = slope_interval(pairs)
    why = None
    if interval is None:
        why = (
            f"{len(pairs)} starts give no interval: measure at more slot counts or repeat "
            "(--memory-repeats)"
        )
    return _Fit(per_slot, interval, quantile(sorted(b - per_slot * n for n, b in pairs), 0.5), why)


def _answers(reading: Reading, points: Sequence[Point]) -> bool:
    return bool(points) and all(
        _taken(reading, point, point.at("loaded")) is not None for point in points
    )


def _taken(reading: Reading, point: Point, values: Values | None) -> int | None:
    """What the engine takes by one reading, less what was there before where that counts."""
    now = _sum(reading, values)
    if now is None or not reading.since_start:
        return now
    before = _sum(reading, point.at("before"))
    return None if before is None else now - before


def _sum(reading: Reading, values: Values | None) -> int | None:
    found = [_number(values, name) for name in reading.names]
    return None if None in found else sum(value for value in found if value is not None)


def _load_peak(reading: Reading, point: Point) -> int | None:
    """The most that was seen while requests were served; PSS is not read then, RssAnon is."""
    quick = _quick(reading)
    return _most(_taken(quick, point, values) for values in point.during("load"))


def _quick(reading: Reading) -> Reading:
    """The same by what is read while requests are served."""
    names = tuple("engine.anon_bytes" if n == _ANONYMOUS[0] else n for n in reading.names)
    return Reading(
        reading.source.replace("pss_anon", "rss_anon"),
        reading.quality,
        tuple(name for name in names if name != _ANONYMOUS[1]),
        reading.since_start,
    )


def _budget(domain: Domain, point: Point) -> int | None:
    """What could be had before the start."""
    before = point.at("before")
    if domain != "gpu":
        return _number(before, "host.available_bytes")
    total, used = _number(before, "gpu.total_bytes"), _number(before, "gpu.used_bytes")
    if total is None or used is None:
        return None
    return total - used - (_number(before, "gpu.reserved_bytes") or 0)


def _max_slots(subject: Subject, budget: int | None, fit: _Fit, mapped: int | None) -> int | None:
    if budget is None or fit.per_slot is None or fit.base is None or fit.per_slot <= 0:
        return None
    room = budget - default_reserve_bytes(budget) - fit.base - (mapped or 0)
    return max(0, min(int(room // fit.per_slot), subject.most_slots))


def _foreign(domain: Domain, points: Sequence[Point]) -> int | None:
    """Memory of the device that appeared with the engine and is not its own; None if hardly any."""
    if domain != "gpu":
        return None
    gaps = []
    for point in points:
        own = _taken(_NVML, point, point.at("loaded"))
        device = _taken(_NVML_DEVICE, point, point.at("loaded"))
        if own is not None and device is not None:
            gap = device - own
            if abs(gap) > max(CO_TENANT_BYTES, CO_TENANT_SHARE * own):
                gaps.append(gap)
    return max(gaps, key=abs, default=None)


def _unavailable(subject: Subject, domain: Domain, reason: str) -> SlotCost:
    return SlotCost(
        engine=subject.engine,
        domain=domain,
        speculation=subject.speculation,
        context_per_slot=subject.context_per_slot,
        method="relaunch",
        slots=(),
        bytes=(),
        ready_bytes=(),
        load_peak_bytes=(),
        mapped_bytes=None,
        measured_bytes_per_slot=None,
        ci95=None,
        ready_bytes_per_slot=None,
        ready_ci95=None,
        predicted_bytes_per_slot=subject.expected_in(domain),
        engine_reported_bytes_per_slot=None,
        base_bytes=None,
        cross_check_source=None,
        cross_check_bytes_per_slot=None,
        budget_bytes=None,
        reserve_bytes=None,
        max_slots=None,
        reported=Parts(),
        source=None,
        quality="unavailable",
        reason=reason,
    )


# --------------------------------------------------------------------------- while it serves


@dataclass(frozen=True)
class Held:
    """Memory at moments of a load: the engine's own, or what `source` can see of the box."""

    domain: Domain | None = None
    source: str | None = None
    at: tuple[tuple[int, int], ...] = ()
    """Monotonic nanoseconds and bytes."""
    reason: str | None = None
    """Why there is none."""


def held_while_serving(box_class: str, samples: Sequence[MemorySample]) -> Held:
    """Memory during a load, in the first domain of this class of box in which there is any.

    By the best source that answered, as for `memory[]`; but nothing is taken off, so a source that
    sees the whole device or box (`device_delta`, `system_delta`) says what all of it had in use.
    """
    if not samples:
        return Held(reason="no sample was taken")
    seen = Point(0, 0, tuple(samples))
    values = [(sample.at_ns, _whole(sample.values)) for sample in samples]
    totals = [total for _, v in values if (total := _number(v, "drm.vram_total_bytes")) is not None]
    if box_class == "amd" and any(total <= APU_VRAM_BYTES for total in totals):
        box_class = "amd-apu"
    by_domain = _BY_CLASS.get(box_class, _BY_CLASS["cpu"])
    for domain, readings in by_domain.items():
        for reading in map(_quick, readings):
            known = [(at, held) for at, v in values if (held := _sum(reading, v)) is not None]
            if any(held for _, held in known):
                return Held(domain, reading.source, tuple(known))
    names = next(iter(by_domain.values()))[0].names
    return Held(reason=seen.reason(names) or "no source of memory answered")


# -------------------------------------------------------------------------- what should be doubted

WIDE_SHARE = 0.25
"""An interval that reaches further than this from its slope resolves little."""

UNEXPLAINED_SHARE = 0.10
"""Further from the prediction than this, and not by chance, something else grows with the slots."""

GROWN_SHARE = 0.05
"""What an engine takes more after one wave of requests, of what it took when it was ready."""


def doubts(cost: SlotCost) -> Iterator[tuple[str, str]]:
    """What a reader should doubt about a cost, as codes of core/findings.py and texts."""
    name = f"{cost.engine}, {cost.domain} memory"
    measured, interval = cost.measured_bytes_per_slot, cost.ci95
    if measured is None:
        yield "memory_not_resolved", f"{name}: what a slot costs is not known ({cost.reason})"
        return
    if cost.method == "blocks_in_use":
        return
    if interval is None:
        yield "memory_not_resolved", f"{name}: {cost.reason}"
    elif interval[1] - interval[0] > 2 * WIDE_SHARE * abs(measured):
        yield (
            "memory_not_resolved",
            f"{name}: a slot costs between {_mib(interval[0])} and {_mib(interval[1])} MiB, which "
            "is wide: use slot counts further apart, or repeat more often (--memory-repeats)",
        )
    yield from _unexplained(cost, name)
    if cost.foreign_bytes is not None:
        yield (
            "co_tenant",
            f"{name}: {_mib(cost.foreign_bytes)} MiB came and went on the device that are not the "
            "engine's: end other programs that use it",
        )
    yield from _growth(cost, name)


def _unexplained(cost: SlotCost, name: str) -> Iterator[tuple[str, str]]:
    predicted, ready = cost.predicted_bytes_per_slot, cost.ready_bytes_per_slot
    if not predicted or ready is None or cost.ready_ci95 is None:
        return
    low, high = cost.ready_ci95
    share = ready / predicted - 1
    if not low <= predicted <= high and abs(share) > UNEXPLAINED_SHARE:
        yield (
            "memory_unexplained",
            f"{name}: at rest a slot costs {_mib(ready)} MiB, {share:+.0%} against the "
            f"{_mib(predicted)} MiB that arithmetic expects: something besides the cache grows "
            "with the slots",
        )


def _growth(cost: SlotCost, name: str) -> Iterator[tuple[str, str]]:
    grown = [
        (after - ready, ready)
        for after, ready in zip(cost.bytes, cost.ready_bytes, strict=True)
        if after is not None and ready
    ]
    if grown and all(more > GROWN_SHARE * ready for more, ready in grown):
        most = max(more for more, _ in grown)
        yield (
            "engine_memory_grows",
            f"{name}: up to {_mib(most)} MiB were taken by serving one request in each slot and "
            "not given back; the cost is what a working engine holds",
        )


def _mib(amount_bytes: float) -> str:
    return f"{amount_bytes / (1 << 20):.2f}"


# ---------------------------------------------------------------------- what the engine reports


def _reported(domain: Domain, points: Sequence[Point]) -> list[int | None]:
    """All of the engine's own buffers in a domain, at each start; mapped weights apart."""
    return [
        sum(b.bytes for b in _of(domain, point.buffers) if not b.mapped) if point.buffers else None
        for point in points
    ]


def buffers_from(told: object) -> tuple[Buffer, ...]:
    """Buffers as a launch's facts keep them; what is no buffer is left out."""
    if not isinstance(told, (list, tuple)):
        return ()
    found = []
    for item in told:
        if isinstance(item, Mapping):
            kind, device, size = (item.get(name) for name in ("kind", "device", "bytes"))
            if isinstance(kind, str) and isinstance(device, str) and isinstance(size, int):
                found.append(Buffer(kind, device, size))
    return tuple(found)


def _of(domain: Domain, buffers: Iterable[Buffer]) -> list[Buffer]:
    if domain == "unified":
        return list(buffers)
    return [buffer for buffer in buffers if buffer.on_host == (domain == "host")]


def _parts(domain: Domain, points: Sequence[Point]) -> Parts:
    told = [point for point in points if point.buffers]
    if not told:
        return Parts()

    def total(point: Point, kind: str) -> int | None:
        found = [b.bytes for b in _of(domain, point.buffers) if b.kind == kind]
        return sum(found) if found else None

    def per_slot(kind: str) -> float | None:
        return _fit([p.slots for p in told], [total(p, kind) for p in told]).per_slot

    largest = max(told, key=lambda point: point.slots)
    return Parts(
        weights_bytes=total(largest, "model"),
        kv_bytes_per_slot=per_slot("kv"),
        state_bytes_per_slot=per_slot("recurrent"),
        output_bytes_per_slot=per_slot("output"),
        compute_bytes=total(largest, "compute"),
    )


# ------------------------------------------------------------------------------ blocks of a pool


START_NOISE_BYTES = 64 << 20
"""Two starts of a vLLM with the same pool differ by 4 to 12 MiB (seen on a CPU): a difference that
is not several times that says nothing about the pool."""

_POOL_DOMAIN: Mapping[str, Domain] = {"dgpu": "gpu", "amd": "gpu", "cpu": "host"}


@dataclass(frozen=True)
class BlockReading:
    """How many blocks of a preallocated pool are in use while so many requests decode."""

    requests: int
    blocks: int


@dataclass(frozen=True)
class Pool:
    """A preallocated cache: its usable blocks, and the bytes of one; None when not known."""

    blocks: int | None
    block_bytes: int | None


def block_readings(points: Iterable[Point]) -> tuple[BlockReading, ...]:
    """The blocks in use at each number of running requests, while none waits.

    Requests grow while they decode, and the first of a wave is a step ahead: what a wave holds in
    the end is the most that was seen of it.
    """
    most: dict[int, int] = {}
    for point in points:
        for values in point.during("load"):
            running, used = _number(values, "pool.requests_running"), _number(values, _BLOCKS_USED)
            if running and used is not None and not values.get("pool.requests_waiting"):
                most[running] = max(most.get(running, 0), used)
    return tuple(BlockReading(requests, blocks) for requests, blocks in sorted(most.items()))


_BLOCKS_USED = "pool.kv_blocks_used"


def pool_cost(subject: Subject, pool: Pool, points: Sequence[Point]) -> SlotCost:
    """What one more request costs in a pool that is allocated whole: blocks x bytes per block.

    Where the engine was started with pools of clearly different size, the slope of its processes'
    memory at rest, over the sequences that they were made for, stands beside it as a cross-check:
    it is what a sequence of the full context costs.
    """
    usable = [point for point in points if point.failure is None]
    readings = block_readings(usable)
    domain = _POOL_DOMAIN.get(subject.box_class, "unified")
    if pool.block_bytes is None or not readings:
        why = next((point.failure for point in points if point.failure), None)
        reason = why or (
            "the size of a block is not known" if readings else "the engine told of no blocks"
        )
        return _unavailable(subject, domain, reason)
    slots = tuple(reading.requests for reading in readings)
    taken = [reading.blocks * pool.block_bytes for reading in readings]
    fit = _fit(slots, taken)
    check = _relaunched(subject, domain, usable)
    budget = None if pool.blocks is None else pool.blocks * pool.block_bytes
    nothing = tuple(None for _ in slots)
    return replace(
        _unavailable(subject, domain, ""),
        method="blocks_in_use",
        slots=slots,
        bytes=tuple(taken),
        ready_bytes=nothing,
        load_peak_bytes=nothing,
        measured_bytes_per_slot=fit.per_slot,
        ready_bytes_per_slot=check,
        base_bytes=fit.base,
        cross_check_source=None if check is None else "relaunch",
        cross_check_bytes_per_slot=check,
        budget_bytes=budget,
        reserve_bytes=0,
        max_slots=_in_pool(budget, fit.per_slot),
        source="blocks_in_use",
        quality="engine_reported",
        reason="counted, not fitted: blocks in use are whole numbers, so there is no interval"
        if fit.per_slot is not None
        else fit.reason,
    )


def _in_pool(budget: int | None, per_slot: float | None) -> int | None:
    return int(budget // per_slot) if budget is not None and per_slot else None


def _relaunched(subject: Subject, domain: Domain, points: Sequence[Point]) -> float | None:
    """The slope of the engine's own memory at rest over the sequences of its pool."""
    readings = _readings(subject.box_class, points).get(domain, _HOST)
    for reading in readings:
        ready = [_taken(reading, point, point.at("ready")) for point in points]
        known = [held for held in ready if held is not None]
        if known and len(known) == len(ready):
            apart = max(known) - min(known)
            fit = _fit([point.slots for point in points], ready)
            return fit.per_slot if apart >= START_NOISE_BYTES else None
    return None


# ------------------------------------------------------------------------------------- details


def _whole(values: Values) -> Values:
    """`values` with the sums over devices that no single probe gives."""
    sums: dict[str, float | int | None] = {}
    if values.get("engine.pss_is_rss"):
        # Resident sizes under the name of shares: what they are is read from its own value.
        sums["engine.pss_anon_bytes"] = None
    for part in ("used_bytes", "total_bytes", "reserved_bytes"):
        if f"gpu.{part}" not in values:
            each = [v for name, v in values.items() if _of_device(name, part)]
            if each and None not in each:
                sums[f"gpu.{part}"] = sum(v for v in each if v is not None)
    return {**values, **sums}


def _of_device(name: str, part: str) -> bool:
    return name.startswith("gpu.") and name.endswith(f".{part}")


def _number(values: Values | None, name: str) -> int | None:
    value = None if values is None else values.get(name)
    return None if value is None else int(value)


def _extreme(choose: Callable[[list[int]], int], values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return choose(known) if known else None


def _most(values: Iterable[int | None]) -> int | None:
    return _extreme(max, values)


def _least(values: Iterable[int | None]) -> int | None:
    return _extreme(min, values)
