"""What happened to the box while a cell was measured, that its numbers should not be quoted for?

`taints` looks at a cell's own samples and names each kind of disturbance once, with its numbers.
Counters are totals since boot: only what they rose by within the cell counts, from one known
reading to the next. A counter that was reset (smaller than before) and a reading that is missing
say nothing, and never make a taint by themselves. core/findings.py says how grave each one is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

from edgeagent.core.model import MemorySample

Taint: TypeAlias = tuple[str, str]
"""A code of core/findings.py, and what was seen, what to do."""

FOREIGN_CPU_LIMIT = 0.05
"""Of all cores together, on average: two busy neighbours on a box of 40 cores do not matter."""

SOME_STALLED_LIMIT = 0.05
FULL_STALLED_LIMIT = 0.01
"""Shares of the cell's time in which some task, or all of them, waited for memory."""

REFAULT_LIMIT_PER_S = 1000.0
"""Pages of files that had been thrown out and were needed again; 4 MiB a second at 4 KiB each."""

HOT_MARGIN_C = 10.0
"""Closer than this to a trip point, a load of minutes will reach it."""

MIN_SHARE_S = 1.0
"""Of a shorter stretch no share of time is taken."""

_NS = 1e9

_SLOWDOWN_BITS = {
    0x08: "hardware slowdown",
    0x20: "thermal slowdown (software)",
    0x40: "thermal slowdown (hardware)",
    0x80: "power brake",
}
"""Of NVML's reasons why clocks are low. A power cap (0x4) is how many boards are built to run."""

_MODES = {
    "jetson.power_mode": "the power mode",
    "jetson.clocks_locked": "whether clocks are locked (1) or not (0)",
    "hygiene.power_saver": "whether the CPU saves power (1) or not (0)",
    "hygiene.on_battery": "whether the box runs on battery (1) or not (0)",
}

_GPU_COUNTER = re.compile(r"gpu\.(.+)\.throttle_s")
_GPU_REASONS = re.compile(r"gpu\.(.+)\.throttle_reasons")
_MATTERS = re.compile(
    r"hygiene\.|jetson\.(power_mode|clocks_locked|overcurrent_count)$|vm\.(swap_in|refault)"
    r"|pressure\.memory_|(gpu|drm)\.foreign_processes$|gpu\..+\.throttle_"
)


def taints(samples: Sequence[MemorySample]) -> Iterator[Taint]:
    """Everything that spoiled a cell, by its samples in order of time; each code at most once."""
    series = by_name(samples)
    for code, causes, advice in (
        ("throttled", _throttled(series), "cool it, or give it a stronger supply"),
        (
            "memory_pressure",
            _memory_pressure(series),
            "end what else needs memory, or use fewer slots or a shorter context",
        ),
        ("power_mode_changed", _mode_changes(series), "set it once, before measuring"),
        ("foreign_cpu", _foreign_cpu(series), "end them, or read the numbers as of a shared box"),
        ("foreign_gpu", _foreign_gpu(series), "end them, or read the numbers as of a shared GPU"),
        ("hot_start", _hot_start(series), "let it rest longer (--cooldown), or cool it better"),
        ("power_saver", _power_saver(series), "set its governor or power mode to performance"),
    ):
        seen = "; ".join(causes)
        if seen:
            yield code, f"{seen}: {advice}"


# ------------------------------------------------------------------------------------- series

Series: TypeAlias = Sequence[tuple[int, float]]
"""Known values and their moments, in monotonic nanoseconds."""


def by_name(samples: Sequence[MemorySample]) -> Mapping[str, Series]:
    """The known values of each name that matters here."""
    # Of the others there are many, and a cell may last for hours.
    names = {name for sample in samples for name in sample.values if _MATTERS.match(name)}
    return {
        name: [
            (sample.at_ns, value)
            for sample in samples
            if (value := sample.values.get(name)) is not None
        ]
        for name in sorted(names)
    }


def rise(series: Series) -> float:
    """What a counter rose by, step by step; a step down is a reset and counts for nothing."""
    return sum(max(0.0, later - earlier) for (_, earlier), (_, later) in pairwise(series))


def _per_s(series: Series) -> float | None:
    """What a counter rose by, per second; None when the stretch is too short to say."""
    seconds = (series[-1][0] - series[0][0]) / _NS if series else 0.0
    return rise(series) / seconds if seconds >= MIN_SHARE_S else None


def _values(series: Series) -> list[float]:
    return [value for _, value in series]


# ------------------------------------------------------------------------------------- causes


def _throttled(series: Mapping[str, Series]) -> Iterator[str]:
    if events := rise(series.get("hygiene.throttle_count", ())):
        yield f"the CPU's throttle counters rose by {events:.0f}"
    # Two probes may count the same events of a Jetson.
    counters = ("hygiene.overcurrent_count", "jetson.overcurrent_count")
    if events := max(rise(series.get(name, ())) for name in counters):
        yield f"over-current counters rose by {events:.0f}"
    states = _values(series.get("hygiene.cooling_state", ()))
    if states and max(states) > states[0]:
        yield f"cooling by slowing down rose from step {states[0]:.0f} to {max(states):.0f}"
    for name, known in series.items():
        counter, reasons = _GPU_COUNTER.fullmatch(name), _GPU_REASONS.fullmatch(name)
        if counter and (seconds := rise(known)):
            yield f"{counter.group(1)} was throttled for {seconds:.3g} s"
        if reasons and (words := _slowdowns(known)):
            yield f"{reasons.group(1)} ran with {words}"


def _slowdowns(reasons: Series) -> str:
    """Why a GPU was slowed down in any sample, and in how many samples it was."""
    bits = [int(value) for _, value in reasons]
    words = [word for bit, word in _SLOWDOWN_BITS.items() if any(each & bit for each in bits)]
    slowed = sum(1 for each in bits if any(each & bit for bit in _SLOWDOWN_BITS))
    return f"{' and '.join(words)} in {slowed} of {len(bits)} samples" if words else ""


def _memory_pressure(series: Mapping[str, Series]) -> Iterator[str]:
    if pages := rise(series.get("vm.swap_in_pages", ())):
        yield f"{pages:.0f} pages came back from swap"
    refaults = _per_s(series.get("vm.refault_file", ()))
    if refaults is not None and refaults > REFAULT_LIMIT_PER_S:
        yield f"{refaults:.0f} pages a second were read from files anew that had been in memory"
    for kind, who, limit in (
        ("some", "a task", SOME_STALLED_LIMIT),
        ("full", "every task", FULL_STALLED_LIMIT),
    ):
        share = _per_s(series.get(f"pressure.memory_{kind}_s", ()))
        if share is not None and share > limit:
            yield f"{who} waited for memory in {share:.1%} of the time"


def _mode_changes(series: Mapping[str, Series]) -> Iterator[str]:
    for name, words in _MODES.items():
        changes = [
            (earlier, later)
            for earlier, later in pairwise(_values(series.get(name, ())))
            if later != earlier
        ]
        if changes:
            steps = ", ".join(f"from {earlier:g} to {later:g}" for earlier, later in changes[:3])
            yield f"{words} changed {steps}"


def _foreign_cpu(series: Mapping[str, Series]) -> Iterator[str]:
    used = _values(series.get("hygiene.foreign_cpu_cores", ()))
    cores = _values(series.get("hygiene.cpu_cores", ()))
    if used and cores:
        mean, of = sum(used) / len(used), cores[-1]
        if mean > FOREIGN_CPU_LIMIT * of:
            yield f"other programs used {mean:.2f} of {of:.0f} cores ({mean / of:.0%})"


def _foreign_gpu(series: Mapping[str, Series]) -> Iterator[str]:
    names = ("gpu.foreign_processes", "drm.foreign_processes")
    most = max((value for name in names for value in _values(series.get(name, ()))), default=0)
    if most > 0:
        yield f"up to {most:.0f} other programs used the GPU"


def _hot_start(series: Mapping[str, Series]) -> Iterator[str]:
    margins = _values(series.get("hygiene.trip_margin_c", ()))
    if margins and margins[0] < HOT_MARGIN_C:
        yield f"at its start the box was {margins[0]:.1f} C from where the kernel slows it down"
    states = _values(series.get("hygiene.cooling_state", ()))
    if states and states[0] > 0:
        yield f"at its start the box was being slowed down already (step {states[0]:.0f})"


def _power_saver(series: Mapping[str, Series]) -> Iterator[str]:
    if any(_values(series.get("hygiene.power_saver", ()))):
        yield "the box runs in a power-saving state"
