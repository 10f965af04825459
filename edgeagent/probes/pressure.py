"""Is the box short of memory, processor or disk, by the kernel's own count of the waiting?

Pressure stall information says for how long tasks have waited for each of them since boot: `some`
while at least one waited, `full` while all did. Beside it the counters that tell the cause: pages
swapped in and out, file pages that were read again soon after they had been dropped (weights that
no longer fit), and allocations that had to wait for memory to be freed. All are totals since boot;
whoever judges a cell takes differences.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgeagent.ports import Readings
from edgeagent.probes.host import KIB, nothing, read_text, whole_number

STALLS = {
    "pressure.cpu_some_s": ("cpu", "some"),
    "pressure.memory_some_s": ("memory", "some"),
    "pressure.memory_full_s": ("memory", "full"),
    "pressure.io_some_s": ("io", "some"),
    "pressure.io_full_s": ("io", "full"),
}
"""There is no `cpu_full`: all tasks of a box cannot wait for a processor at once."""

COUNTERS = ("vm.swap_in_pages", "vm.swap_out_pages", "vm.refault_file", "vm.allocstall")
SWAPS = ("vm.swap_zram_bytes", "vm.swap_disk_bytes")


class PressureProbe:
    """Waiting, swapping and reclaim of the whole box: see `Probe`.

    Totals, of which differences over a cell are taken: read every `every_s` seconds at most, and a
    reading in between has no values at all.
    """

    name = "pressure"

    def __init__(self, root: Path = Path("/"), every_s: float = 1.0) -> None:
        self._proc = str(root / "proc")
        self._every_s = every_s
        self._next_s = 0.0

    def read(self, pids: Sequence[int]) -> Readings:  # noqa: ARG002  # because every probe is asked alike
        """Return the totals of now, or none before their time; `pids` does not matter."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return {}, {}
        self._next_s = now_s + self._every_s
        values: dict[str, float | int | None] = {}
        absent: dict[str, str] = {}
        for part, reasons in (self._stalls(), self._counters(), self._swaps()):
            values.update(part)
            absent.update(reasons)
        return values, absent

    def close(self) -> None:
        """Nothing is held between readings."""

    def facts(self) -> Mapping[str, object]:
        """Return where this box swaps to; None when the kernel does not tell."""
        try:
            text = read_text(f"{self._proc}/swaps")
        except OSError:
            return {"swaps": None}
        return {
            "swaps": [
                {"path": area.path, "kind": area.kind, "size_bytes": area.size_bytes}
                for area in parse_swaps(text)
            ]
        }

    def _stalls(self) -> Readings:
        told: dict[tuple[str, str], float] = {}
        for resource in ("cpu", "memory", "io"):
            try:
                text = read_text(f"{self._proc}/pressure/{resource}")
            except OSError:
                continue
            told.update({(resource, share): s for share, s in parse_pressure(text).items()})
        values = {name: told.get(source) for name, source in STALLS.items()}
        why = "this kernel keeps no pressure stall information (CONFIG_PSI, psi=1)"
        return values, {name: why for name, value in values.items() if value is None}

    def _counters(self) -> Readings:
        try:
            values = parse_vmstat(read_text(f"{self._proc}/vmstat"))
        except OSError as error:
            return nothing(COUNTERS, f"/proc/vmstat could not be read: {error.strerror}")
        why = "this kernel's /proc/vmstat does not count it"
        return values, {name: why for name, value in values.items() if value is None}

    def _swaps(self) -> Readings:
        try:
            areas = parse_swaps(read_text(f"{self._proc}/swaps"))
        except OSError as error:
            return nothing(SWAPS, f"/proc/swaps could not be read: {error.strerror}")
        return {
            "vm.swap_zram_bytes": sum(area.used_bytes for area in areas if area.kind == "zram"),
            "vm.swap_disk_bytes": sum(area.used_bytes for area in areas if area.kind == "disk"),
        }, {}


# ------------------------------------------------------------------------------------------ parsing

_STALL = re.compile(r"^(some|full) .*\btotal=([0-9]{1,20})$", re.MULTILINE)
_VMSTAT = re.compile(
    r"^(pswpin|pswpout|workingset_refault_file|allocstall\w*) ([0-9]{1,20})$", re.MULTILINE
)


def parse_pressure(text: str) -> dict[str, float]:
    """Return for how long tasks have waited since boot, in seconds, by `some` and `full`."""
    return {share: int(microseconds) / 1e6 for share, microseconds in _STALL.findall(text)}


def parse_vmstat(text: str) -> dict[str, int | None]:
    """Return the counters of /proc/vmstat under our names; None for one that it lacks.

    Stalled allocations are counted by zone, and summed up here.
    """
    found: dict[str, int] = {}
    for name, count in _VMSTAT.findall(text):
        counter = "allocstall" if name.startswith("allocstall") else name
        found[counter] = found.get(counter, 0) + int(count)
    kernel_names = ("pswpin", "pswpout", "workingset_refault_file", "allocstall")
    return {ours: found.get(theirs) for ours, theirs in zip(COUNTERS, kernel_names, strict=True)}


@dataclass(frozen=True)
class SwapArea:
    """One place that the kernel swaps to: `zram` is memory, compressed."""

    path: str
    kind: Literal["zram", "disk"]
    size_bytes: int
    used_bytes: int


def parse_swaps(text: str) -> tuple[SwapArea, ...]:
    """Return the areas that /proc/swaps lists below its heading; a line of another form is none."""
    return tuple(area for line in text.splitlines()[1:] if (area := _area(line)) is not None)


def _area(line: str) -> SwapArea | None:
    fields = line.split()
    if len(fields) != len(("path", "type", "size", "used", "priority")):
        return None
    path, (size, used) = fields[0], map(whole_number, fields[2:4])
    if size is None or used is None:
        return None
    kind: Literal["zram", "disk"] = "zram" if path.startswith("/dev/zram") else "disk"
    return SwapArea(path, kind, size * KIB, used * KIB)
