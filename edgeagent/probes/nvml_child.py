"""What does NVML say, asked in a process of its own that may crash or hang?

One JSON line in, one out. In: the engine's process ids. Out: `{"devices": [...], "values": {...},
"absent": {...}}`, or `{"error": "..."}` and the end of the process when NVML cannot be used at all.
Asked by `nvml.py`; a new driver needs a new process, because NVML stays loaded once it is.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LONGEST_ANSWER_S = 60
"""A process that hangs for longer ends itself: its parent may have been killed meanwhile."""


@dataclass
class Answer:
    """Readings under way."""

    values: dict[str, float | int | None] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    def keep(self, name: str, value: float | None, reason: str) -> None:
        """Keep a value, or why there is none."""
        self.values[name] = value
        if value is None:
            self.absent[name] = reason


@dataclass(frozen=True)
class Device:
    """A GPU that NVML lists."""

    handle: Any
    id: str
    name: str | None


@dataclass(frozen=True)
class Row:
    """What NVML says of one process on a GPU; None where the driver does not tell."""

    pid: int
    used_bytes: int | None


def main() -> None:
    """Answer until nobody asks any more."""
    import pynvml  # here, so that the parsing below can be tested without it

    signal.alarm(LONGEST_ANSWER_S)
    try:
        pynvml.nvmlInit()
        devices = _devices(pynvml)
    except pynvml.NVMLError as error:
        _say({"error": f"NVML cannot be used: {error}"})
        return
    signal.alarm(0)
    for line in sys.stdin:
        signal.alarm(LONGEST_ANSWER_S)
        answer = Answer()
        answer.values["gpu.devices"] = len(devices)
        for device in devices:
            _read(pynvml, device, json.loads(line), answer)
        listed = [{"uuid": device.id, "name": device.name} for device in devices]
        _say({"devices": listed, "values": answer.values, "absent": answer.absent})
        signal.alarm(0)


def _say(value: object) -> None:
    print(json.dumps(value), flush=True)  # noqa: T201  # because standard output is the line to the parent


def _devices(nvml: Any) -> tuple[Device, ...]:
    found = []
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid, _ = _ask(nvml, nvml.nvmlDeviceGetUUID, handle)
        name, _ = _ask(nvml, nvml.nvmlDeviceGetName, handle)
        found.append(Device(handle, str(uuid or f"index-{index}"), name))
    return tuple(found)


def _read(nvml: Any, device: Device, pids: Sequence[int], answer: Answer) -> None:
    name = f"gpu.{device.id}"
    memory, reason = _memory(nvml, device.handle)
    answer.keep(f"{name}.total_bytes", memory and memory.total, reason)
    answer.keep(f"{name}.used_bytes", memory and memory.used, reason)
    rates, reason = _ask(nvml, nvml.nvmlDeviceGetUtilizationRates, device.handle)
    answer.keep(f"{name}.utilisation_fraction", rates and rates.gpu / 100, reason)
    rows, reason = _rows(nvml, device.handle)
    if rows is not None:
        used_bytes, reason = engine_bytes(rows, pids, _exists)
    else:
        used_bytes = None
    answer.keep(f"{name}.engine_bytes", used_bytes, reason)


def _memory(nvml: Any, handle: Any) -> tuple[Any, str]:
    """Ask in version 2, which keeps the driver's own reserve out of `used`, else in version 1."""
    memory, reason = _ask(
        nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    )
    return (memory, reason) if memory else _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)


def _rows(nvml: Any, handle: Any) -> tuple[list[Row] | None, str]:
    """Return the processes on a GPU; a process may be in the list of either kind, or in both."""
    found: list[Row] | None = None
    reason = ""
    for ask in (
        nvml.nvmlDeviceGetComputeRunningProcesses,
        nvml.nvmlDeviceGetGraphicsRunningProcesses,
    ):
        rows, why = _ask(nvml, ask, handle)
        if rows is None:
            reason = reason or why
        else:
            found = [*(found or []), *(Row(row.pid, row.usedGpuMemory) for row in rows)]
    return found, reason


def _ask(nvml: Any, call: Callable[..., Any], *args: Any) -> tuple[Any, str]:
    """Return what NVML answers, or None and why."""
    try:
        return call(*args), ""
    except nvml.NVMLError as error:
        return None, f"NVML says {error}"


def _exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def engine_bytes(
    rows: Sequence[Row], pids: Sequence[int], exists: Callable[[int], bool]
) -> tuple[int | None, str]:
    """Return the GPU memory of the engine's processes, or None and why it is not known.

    The compute and the graphics list may both have a process: the larger counts, not the sum.
    """
    if not pids:
        return None, "no engine of ours is running"
    ours = [row for row in rows if row.pid in set(pids)]
    if not ours and any(not exists(row.pid) for row in rows):
        return None, "NVML lists processes by ids of another pid namespace"
    largest: dict[int, int] = {}
    for row in ours:
        if row.used_bytes is None:
            return None, "the driver does not tell the memory of a process"
        largest[row.pid] = max(largest.get(row.pid, 0), row.used_bytes)
    return sum(largest.values()), ""


if __name__ == "__main__":
    main()
