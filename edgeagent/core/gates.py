"""Is the box fit to be measured, before anything is started?

`gates` judges a few readings of the idle box. Each doubt is a finding about the run as a whole;
with `--strict` those that `refuses` names keep a sweep from starting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from edgeagent.core.findings import CODES
from edgeagent.core.model import Finding
from edgeagent.core.taint import FOREIGN_CPU_LIMIT, HOT_MARGIN_C, Taint

Reading: TypeAlias = Mapping[str, float | int | None]

GIB = 1 << 30

_SELF_GOVERNING = frozenset({"intel_pstate", "amd-pstate-epp"})
"""Drivers that decide themselves, whatever their governor is called."""


def gates(
    readings: Sequence[Reading], facts: Mapping[str, object], need_bytes: int | None
) -> tuple[Finding, ...]:
    """Doubts about the box at rest.

    `readings` in order of time (two or more show what grows), `facts` the probes' settings by the
    probe's name, `need_bytes` what the largest start is expected to take (None: not known).
    """
    found = (
        *_memory(readings, need_bytes),
        *_others(readings),
        *_heat(readings),
        *_modes(readings, facts),
    )
    return tuple(Finding(code, CODES[code], text) for code, text in found)


def refuses(finding: Finding) -> bool:
    """Whether a doubt keeps a strict sweep from starting: all but those that only inform."""
    return finding.severity != "info"


def _known(readings: Sequence[Reading], name: str) -> list[float]:
    return [value for each in readings if (value := each.get(name)) is not None]


def _memory(readings: Sequence[Reading], need_bytes: int | None) -> Iterator[Taint]:
    available = _known(readings, "host.available_bytes")
    if need_bytes is not None and available and available[-1] < need_bytes:
        yield (
            "host_tainted",
            f"{available[-1] / GIB:.2f} GiB of memory are available and about "
            f"{need_bytes / GIB:.2f} GiB will be needed: end what else needs memory, or use fewer "
            "slots or a shorter context",
        )
    swap = _known(readings, "host.swap_used_bytes")
    if swap and swap[-1] > swap[0]:
        yield (
            "host_tainted",
            f"swap in use grew by {(swap[-1] - swap[0]) / GIB:.3f} GiB while nothing ran: find out "
            "what takes memory first",
        )


def _others(readings: Sequence[Reading]) -> Iterator[Taint]:
    used = _known(readings, "hygiene.foreign_cpu_cores")
    cores = _known(readings, "hygiene.cpu_cores")
    if used and cores and sum(used) / len(used) > FOREIGN_CPU_LIMIT * cores[-1]:
        yield (
            "foreign_cpu",
            f"other programs use {sum(used) / len(used):.2f} of {cores[-1]:.0f} cores: end them "
            "before measuring",
        )
    names = ("gpu.foreign_processes", "drm.foreign_processes")
    last = [values[-1] for name in names if (values := _known(readings, name))]
    if last and max(last) > 0:
        yield (
            "foreign_gpu",
            f"{max(last):.0f} other programs use the GPU: end them before measuring",
        )


def _heat(readings: Sequence[Reading]) -> Iterator[Taint]:
    margins = _known(readings, "hygiene.trip_margin_c")
    if margins and margins[-1] < HOT_MARGIN_C:
        yield (
            "hot_start",
            f"the box is {margins[-1]:.1f} C from where the kernel slows it down: let it cool",
        )


def _modes(readings: Sequence[Reading], facts: Mapping[str, object]) -> Iterator[Taint]:
    """Saving power is a doubt; not being at full power may be what the maker of the box wants."""
    saving = _known(readings, "hygiene.power_saver")
    if saving and saving[-1]:
        yield (
            "power_saver",
            "the box runs in a power-saving state: set its governor or power mode to performance",
        )
        return
    limits = [
        *_governors(_object(facts.get("hygiene"))),
        *_power_mode(_object(facts.get("jetson"))),
    ]
    if limits:
        yield (
            "power_mode_limited",
            f"{' and '.join(limits)}, so the box may be faster than it is measured: quote the "
            "numbers with it",
        )


def _governors(hygiene: Mapping[str, object]) -> Iterator[str]:
    governors, driver = hygiene.get("cpu_governors"), hygiene.get("cpu_frequency_driver")
    if isinstance(governors, (list, tuple)) and driver not in _SELF_GOVERNING:
        others = [str(word) for word in governors if word != "performance"]
        if others:
            yield f"the CPU's governor is {' and '.join(others)}"


def _power_mode(jetson: Mapping[str, object]) -> Iterator[str]:
    """Boards call the mode without limits MAXN; its number differs, and some boards have none."""
    mode, modes = jetson.get("power_mode"), _object(jetson.get("power_modes")).values()
    fastest = [str(name) for name in modes if str(name).upper().startswith("MAXN")]
    if fastest and isinstance(mode, str) and mode not in fastest:
        yield f"the power mode is {mode} (there is {' and '.join(fastest)})"


def _object(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}
