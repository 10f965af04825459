"""How much energy did a stretch of time take, by which instrument, and what was it spent on?

The best instrument of a box is used, the same for all its cells: the energy counter of the GPUs
that the engine works on, else the processor's (RAPL), else power readings summed up by trapezoids.
Where a stretch begins or ends between two samples, the line between them is taken; nothing is
extrapolated, so energy may cover a little less than the window, and tokens are counted over
exactly what is covered.

A counter loses nothing between two samples, so only its readings next to the edges must be near;
power between two readings more than two seconds apart is unknown. A counter that fell was reset.
Then there is no number, but a reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Literal

from edgeagent.core.model import MemorySample

Source = Literal["nvml_counter", "rapl_counter", "power_rails", "nvml_power"]

_NS = 1e9

MOST_GAP_S = 2.0
LEAST_COVERAGE = 0.5
"""Of the window; less says too little about the rest."""

_IDLE_STRETCH_S = 0.5
"""Counters move in steps of up to a tenth of a second, so a rate needs a longer stretch."""

_GPU_ENERGY = re.compile(r"gpu\.(.+)\.energy_j")
_GPU_POWER = re.compile(r"gpu\.(.+)\.power_w")
_INPUTS = (("power.VIN_w", "board input"), ("power.VDD_IN_w", "module input"))
"""Rails through which everything is fed; where there is none the module's rails are summed."""


@dataclass(frozen=True)
class IdlePower:
    """Power of the box while its engine has nothing to do, in watts, by the name of the reading."""

    watts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Energy:
    """What a cell's work took; null with a reason where it was not measured."""

    source: Source | None = None
    domain: str | None = None
    """What the instrument sees: the GPUs, the processor's package, the board's input ..."""
    gross_j: float | None = None
    """Over the covered part of the window."""
    idle_w: float | None = None
    net_j: float | None = None
    """Gross less what the idle box would have taken in the same time."""
    per_output_token_j: float | None = None
    per_request_j: float | None = None
    net_per_output_token_j: float | None = None
    net_per_request_j: float | None = None
    coverage: float | None = None
    """Share of the window that lies between samples."""
    reason: str | None = None


@dataclass(frozen=True)
class Spent:
    """Energy of a stretch of time, in monotonic nanoseconds; `gross_j` is None with a reason."""

    source: Source | None = None
    domain: str | None = None
    readings: tuple[str, ...] = ()
    """The names that were summed."""
    begin_ns: int = 0
    end_ns: int = 0
    coverage: float | None = None
    gross_j: float | None = None
    reason: str | None = None

    @property
    def seconds(self) -> float:
        """Length of the covered stretch."""
        return (self.end_ns - self.begin_ns) / _NS


@dataclass(frozen=True)
class Work:
    """What was done in a stretch of time."""

    output_tokens: int
    requests: int


def energy_of(spent: Spent, work: Work, idle: IdlePower | None) -> Energy:
    """Energy spent, as a whole and for each token and request of the same stretch."""
    if spent.gross_j is None:
        return Energy(
            source=spent.source, domain=spent.domain, coverage=spent.coverage, reason=spent.reason
        )
    idle_w = _idle_w(spent.readings, idle)
    net_j = None if idle_w is None else spent.gross_j - idle_w * spent.seconds
    return Energy(
        source=spent.source,
        domain=spent.domain,
        gross_j=spent.gross_j,
        idle_w=idle_w,
        net_j=net_j,
        per_output_token_j=_per(spent.gross_j, work.output_tokens),
        per_request_j=_per(spent.gross_j, work.requests),
        net_per_output_token_j=_per(net_j, work.output_tokens),
        net_per_request_j=_per(net_j, work.requests),
        coverage=spent.coverage,
        reason="no idle power was measured" if idle_w is None else None,
    )


def _idle_w(readings: Sequence[str], idle: IdlePower | None) -> float | None:
    """Idle power of all readings together; None when one is not known."""
    known = [idle.watts.get(name) for name in readings] if idle is not None else [None]
    return None if None in known else sum(watts for watts in known if watts is not None)


def _per(joules: float | None, count: int) -> float | None:
    return None if joules is None or count <= 0 else joules / count


# ------------------------------------------------------------------------- the instrument


@dataclass(frozen=True)
class _Instrument:
    source: Source
    domain: str
    readings: tuple[str, ...]

    @property
    def counts(self) -> bool:
        """Whether its readings are joules so far, not watts now."""
        return self.source in ("nvml_counter", "rapl_counter")


def _instrument(samples: Sequence[MemorySample]) -> _Instrument | None:
    """The best instrument that was read at all in these samples."""
    names = {
        name for sample in samples for name, value in sample.values.items() if value is not None
    }
    counters, meters = _gpus(_GPU_ENERGY, names), _gpus(_GPU_POWER, names)
    unused = _unused(samples, {*counters, *meters})
    counters, meters = _without(counters, unused), _without(meters, unused)
    if counters:
        return _Instrument("nvml_counter", "gpu", tuple(sorted(counters.values())))
    if "power.rapl_j" in names:
        return _Instrument("rapl_counter", "package", ("power.rapl_j",))
    if "power.total_w" in names:
        domain = next((words for rail, words in _INPUTS if rail in names), "module rails")
        return _Instrument("power_rails", domain, ("power.total_w",))
    if meters:
        return _Instrument("nvml_power", "gpu", tuple(sorted(meters.values())))
    return None


def _gpus(pattern: re.Pattern[str], names: set[str]) -> dict[str, str]:
    """The reading of each GPU, by the GPU."""
    return {found.group(1): name for name in names if (found := pattern.fullmatch(name))}


def _without(readings: Mapping[str, str], unused: set[str]) -> dict[str, str]:
    return {gpu: name for gpu, name in readings.items() if gpu not in unused}


def _unused(samples: Sequence[MemorySample], gpus: set[str]) -> set[str]:
    """GPUs that the engine is known to hold no memory on: what they take is somebody else's."""
    unused = set()
    for gpu in gpus:
        held = [sample.values.get(f"gpu.{gpu}.engine_bytes") for sample in samples]
        known = [value for value in held if value is not None]
        if known and not any(known):
            unused.add(gpu)
    return unused


# ---------------------------------------------------------------------------- the stretch

_Points = Sequence[tuple[int, float]]


def spent_in(samples: Sequence[MemorySample], begin_ns: int, end_ns: int) -> Spent:
    """Energy from `begin_ns` to `end_ns`, as far as samples, in order of time, cover it."""
    instrument = _instrument(samples)
    if instrument is None:
        return Spent(reason=_why_none(samples))
    points = _points(samples, instrument.readings)
    inside = Spent(instrument.source, instrument.domain, instrument.readings)
    fault = _fault(points, instrument, begin_ns, end_ns)
    if fault is not None:
        return _gone(inside, fault)
    covered = _clipped(points, max(begin_ns, points[0][0]), min(end_ns, points[-1][0]))
    coverage = (covered[-1][0] - covered[0][0]) / (end_ns - begin_ns)
    if coverage < LEAST_COVERAGE:
        return _gone(inside, f"samples cover only {coverage:.0%} of the window", coverage)
    joules = covered[-1][1] - covered[0][1] if instrument.counts else _trapezoids(covered)
    return Spent(
        instrument.source,
        instrument.domain,
        instrument.readings,
        begin_ns=covered[0][0],
        end_ns=covered[-1][0],
        coverage=coverage,
        gross_j=joules,
    )


def _why_none(samples: Sequence[MemorySample]) -> str:
    """Why there is no instrument, in the probes' words where they have some."""
    told = {
        name: why
        for sample in samples
        for name, why in sample.absent.items()
        if name.startswith("power.") or _GPU_ENERGY.fullmatch(name) or _GPU_POWER.fullmatch(name)
    }
    words = "; ".join(f"{name}: {why}" for name, why in sorted(told.items()))
    return f"no energy counter and no power could be read here{' (' + words + ')' if words else ''}"


def _gone(spent: Spent, reason: str, coverage: float | None = None) -> Spent:
    return Spent(spent.source, spent.domain, spent.readings, coverage=coverage, reason=reason)


def _points(samples: Sequence[MemorySample], readings: Sequence[str]) -> _Points:
    """The sum of the readings at every moment at which all of them are known."""
    found = []
    for sample in samples:
        values = [value for name in readings if (value := sample.values.get(name)) is not None]
        if len(values) == len(readings):
            found.append((sample.at_ns, float(sum(values))))
    return found


def _fault(points: _Points, instrument: _Instrument, begin_ns: int, end_ns: int) -> str | None:
    """Why no energy can be told from these points; None when it can."""
    if end_ns <= begin_ns:
        return "there is no time to sum energy over"
    around = _around(points, begin_ns, end_ns)
    if len(around) < 2 or around[-1][0] <= begin_ns or around[0][0] >= end_ns:  # noqa: PLR2004  # because energy lies between two readings
        return "there are fewer than two readings in the window"
    if instrument.counts and any(later < earlier for (_, earlier), (_, later) in pairwise(around)):
        return "the energy counter was reset or wrapped around"
    gap_s = _longest_gap_s(around, instrument, begin_ns, end_ns)
    if gap_s > MOST_GAP_S:
        return f"readings of power are missing for {gap_s:.1f} s"
    return None


def _around(points: _Points, begin_ns: int, end_ns: int) -> _Points:
    """The points within, and the nearest one on either side."""
    first = max((i for i, (at, _) in enumerate(points) if at <= begin_ns), default=0)
    last = min((i for i, (at, _) in enumerate(points) if at >= end_ns), default=len(points) - 1)
    return points[first : last + 1]


def _longest_gap_s(around: _Points, instrument: _Instrument, begin_ns: int, end_ns: int) -> float:
    """The longest time without a reading that matters: for a counter that at the edges only."""
    moments = [at for at, _ in around]
    gaps = [moments[0] - begin_ns, end_ns - moments[-1]]
    between = [right - left for left, right in pairwise(moments)]
    if not instrument.counts:
        gaps += between
    else:
        gaps += [
            right - left
            for left, right in pairwise(moments)
            if left < begin_ns < right or left < end_ns < right
        ]
    return max(gaps) / _NS


def _clipped(points: _Points, begin_ns: int, end_ns: int) -> _Points:
    """The points between two moments that they reach around, with one at each of these."""
    inner = [(at, value) for at, value in points if begin_ns < at < end_ns]
    return [(begin_ns, _at(points, begin_ns)), *inner, (end_ns, _at(points, end_ns))]


def _at(points: _Points, moment_ns: int) -> float:
    """The value at a moment, on the line between its neighbours."""
    for (left, low), (right, high) in pairwise(points):
        if left <= moment_ns <= right:
            share = (moment_ns - left) / (right - left) if right > left else 0.0
            return low + (high - low) * share
    return points[-1][1]


def _trapezoids(points: _Points) -> float:
    """The area below watts over time, in joules."""
    return sum(
        (right - left) * (low + high) / 2 / _NS for (left, low), (right, high) in pairwise(points)
    )


# ---------------------------------------------------------------------------------- at rest


def idle_power(samples: Sequence[MemorySample]) -> IdlePower | None:
    """The median power over the samples whose phase is idle; None when no reading says anything.

    Of a counter: the median over stretches of half a second or more in which nothing but idle
    samples lie, none more than two seconds after the one before.
    """
    names = {name for sample in samples for name in sample.values}
    watts: dict[str, float] = {}
    for name in names:
        if name == "power.rapl_j" or _GPU_ENERGY.fullmatch(name):
            found = _idle_rates(samples, name)
        elif name == "power.total_w" or _GPU_POWER.fullmatch(name):
            found = [
                value
                for sample in samples
                if sample.phase == "idle" and (value := sample.values.get(name)) is not None
            ]
        else:
            continue
        if found:
            watts[name] = median(found)
    return IdlePower(watts) if watts else None


def _idle_rates(samples: Sequence[MemorySample], counter: str) -> list[float]:
    """Watts of every idle stretch that is long enough."""
    rates: list[float] = []
    begun: tuple[int, float] | None = None
    before: tuple[int, float] | None = None
    for sample in samples:
        if sample.phase != "idle":
            begun = before = None
            continue
        value = sample.values.get(counter)
        if value is None:
            continue
        point = (sample.at_ns, float(value))
        if begun is None or before is None or not _follows(before, point):
            begun = point
        seconds = (point[0] - begun[0]) / _NS
        if seconds >= _IDLE_STRETCH_S:
            rates.append((point[1] - begun[1]) / seconds)
            begun = point
        before = point
    return rates


def _follows(before: tuple[int, float], point: tuple[int, float]) -> bool:
    return point[1] >= before[1] and (point[0] - before[0]) / _NS <= MOST_GAP_S
