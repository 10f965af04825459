"""How much memory do the box, the engine and we ourselves take, by the kernel's own books?

Everything comes from small files below /proc; reading (`HostProbe`) stands apart from parsing
(`parse_meminfo`, `parse_status`), and the root is an argument, so that a recorded tree will do.

What the numbers mean: `host.used_bytes` is MemTotal - MemAvailable; weights that an engine maps
from a file count as available there, which is why the engine's anonymous and mapped memory are
given apart (`engine.anon_bytes`, `engine.mapped_bytes`). A page that two processes of the engine
share is counted in both.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgeagent.ports import Readings

KIB = 1024

NO_ENGINE = "no engine of ours is running"


class HostProbe:
    """Memory of the host, of the engine's process tree, and what the agent itself takes."""

    name = "host"

    def __init__(self, root: Path = Path("/")) -> None:
        self._proc = root / "proc"

    def read(self, pids: Sequence[int]) -> Readings:
        """Return the readings of now; a process that has just ended counts as ended."""
        values: dict[str, float | int | None] = {}
        absent: dict[str, str] = {}
        for part, reasons in (self._host(), self._engine(pids), self._agent()):
            values.update(part)
            absent.update(reasons)
        return values, absent

    def close(self) -> None:
        """Nothing is held between readings."""

    def _host(self) -> Readings:
        try:
            text = _read(self._proc / "meminfo")
        except OSError as error:
            return _nothing(HOST_NAMES, f"/proc/meminfo could not be read: {error.strerror}")
        return host_readings(parse_meminfo(text))

    def _engine(self, pids: Sequence[int]) -> Readings:
        if not pids:
            return _nothing(ENGINE_NAMES, NO_ENGINE)
        alive, refused = [], None
        for pid in pids:
            try:
                alive.append(parse_status(_read(self._proc / str(pid) / "status")))
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended between being listed and being read
            except OSError as error:
                refused = f"/proc/{pid}/status could not be read: {error.strerror}"
        if refused is not None:
            return _nothing(ENGINE_NAMES, refused)
        if not alive:
            return _nothing(ENGINE_NAMES, "the engine's processes have ended")
        return engine_readings(alive)

    def _agent(self) -> Readings:
        try:
            rss_bytes = parse_status(_read(self._proc / "self" / "status")).rss_bytes
        except OSError as error:
            values, absent = _nothing(
                ("agent.rss_bytes",), f"/proc/self/status could not be read: {error.strerror}"
            )
        else:
            values, absent = {"agent.rss_bytes": rss_bytes}, {}
        return {**values, "agent.cpu_s": time.process_time()}, absent


# ------------------------------------------------------------------------------------ single facts


def available_bytes(root: Path = Path("/")) -> int | None:
    """Return MemAvailable; None when the kernel does not tell."""
    text = _text(root / "proc/meminfo")
    return None if text is None else parse_meminfo(text).get("MemAvailable")


def host_facts(root: Path = Path("/")) -> Mapping[str, object]:
    """Return what kind of box this is, for environment.json; None where it cannot be told."""
    meminfo = parse_meminfo(_text(root / "proc/meminfo") or "")
    gpus = _nvidia_gpus(root)
    return {
        "hostname": platform.node(),
        "class": _class_of(root, gpus),
        "board": _text(root / "proc/device-tree/model"),
        "machine": platform.machine(),
        "cpu": cpu_model(_text(root / "proc/cpuinfo") or ""),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "memory_total_bytes": meminfo.get("MemTotal"),
        "swap_total_bytes": meminfo.get("SwapTotal"),
        "gpus": [{"name": name} for name in gpus],
        "os": os_name(_text(root / "etc/os-release") or ""),
        "kernel": platform.release(),
        "l4t": _text(root / "etc/nv_tegra_release"),
        "power_mode": _text(root / "var/lib/nvpmodel/status"),
    }


def cpu_model(cpuinfo: str) -> str | None:
    """Return the processor's name; None on ARM, where /proc/cpuinfo has none."""
    return _field(cpuinfo, "model name", ":")


def os_name(os_release: str) -> str | None:
    """Return the distribution as people write it."""
    name = _field(os_release, "PRETTY_NAME", "=")
    return name.strip("\"'") if name else None


def box_class(compatible: str, nvidia_gpus: Sequence[str], drm_vendors: Iterable[str]) -> str:
    """Return the class of a box by what memory its accelerator works on.

    `compatible` is the device tree's list; Jetson up to Orin runs the nvgpu driver, Thor and GB10
    nvidia.ko, both on memory shared with the CPU.
    """
    if "nvidia,tegra264" in compatible or any("GB10" in gpu for gpu in nvidia_gpus):
        return "uma-nvidia"
    if "nvidia,tegra" in compatible:
        return "uma-nvgpu"
    if nvidia_gpus:
        return "dgpu"
    by_vendor = {"0x1002": "amd", "0x8086": "intel"}
    return next((by_vendor[v] for v in sorted(drm_vendors) if v in by_vendor), "cpu")


def _class_of(root: Path, gpus: Sequence[str]) -> str:
    vendors = (_text(path) for path in root.glob("sys/class/drm/card*/device/vendor"))
    compatible = _text(root / "proc/device-tree/compatible") or ""
    return box_class(compatible, gpus, [vendor for vendor in vendors if vendor])


def _nvidia_gpus(root: Path) -> tuple[str, ...]:
    """Return the names that the driver gives; no NVML is needed for it."""
    texts = map(_text, sorted(root.glob("proc/driver/nvidia/gpus/*/information")))
    return tuple(_field(text, "Model", ":") or "NVIDIA GPU" for text in texts if text)


def _field(text: str, name: str, mark: str) -> str | None:
    for line in text.splitlines():
        key, _, value = line.partition(mark)
        if key.strip() == name:
            return value.strip()
    return None


# ------------------------------------------------------------------------------------------ parsing

HOST_NAMES = (
    "host.total_bytes",
    "host.available_bytes",
    "host.used_bytes",
    "host.swap_used_bytes",
)
ENGINE_NAMES = (
    "engine.rss_bytes",
    "engine.anon_bytes",
    "engine.mapped_bytes",
    "engine.processes",
)


@dataclass(frozen=True)
class ProcessMemory:
    """Memory of one process, in bytes; shared memory counts as anonymous."""

    rss_bytes: int
    anon_bytes: int
    mapped_bytes: int


def parse_meminfo(text: str) -> Mapping[str, int]:
    """Return the fields of /proc/meminfo in bytes; lines of another form are passed over."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdecimal():
            found[name] = int(words[0]) * (KIB if words[1:] == ["kB"] else 1)
    return found


def parse_status(text: str) -> ProcessMemory:
    """Return the memory that /proc/PID/status tells; a zombie or kernel thread has none, 0.

    Shared anonymous memory (RssShmem: CUDA and vLLM workers use it) is counted with the anonymous:
    both cannot be given back to the page cache.
    """
    fields = parse_meminfo(text)
    return ProcessMemory(
        rss_bytes=fields.get("VmRSS", 0),
        anon_bytes=fields.get("RssAnon", 0) + fields.get("RssShmem", 0),
        mapped_bytes=fields.get("RssFile", 0),
    )


def host_readings(meminfo: Mapping[str, int]) -> Readings:
    """Return the host's values; what the kernel does not list is None."""
    total, available = meminfo.get("MemTotal"), meminfo.get("MemAvailable")
    swap_total, swap_free = meminfo.get("SwapTotal"), meminfo.get("SwapFree")
    values = {
        "host.total_bytes": total,
        "host.available_bytes": available,
        "host.used_bytes": _difference(total, available),
        "host.swap_used_bytes": _difference(swap_total, swap_free),
    }
    reason = "/proc/meminfo does not list it"
    return values, {name: reason for name, value in values.items() if value is None}


def engine_readings(processes: Iterable[ProcessMemory]) -> Readings:
    """Return the sums over the processes of an engine."""
    each = tuple(processes)
    values = {
        "engine.rss_bytes": sum(one.rss_bytes for one in each),
        "engine.anon_bytes": sum(one.anon_bytes for one in each),
        "engine.mapped_bytes": sum(one.mapped_bytes for one in each),
        "engine.processes": len(each),
    }
    return values, {}


def _difference(whole: int | None, part: int | None) -> int | None:
    return None if whole is None or part is None else whole - part


def _nothing(names: Sequence[str], reason: str) -> Readings:
    return dict.fromkeys(names), dict.fromkeys(names, reason)


def _read(path: Path) -> str:
    """Return the text of a small file in one read: /proc gives a consistent answer to one only."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, 1 << 16).decode("utf-8", "replace")
    finally:
        os.close(file)


def _text(path: Path) -> str | None:
    """Return a file's text without the device tree's NULs; None when it cannot be read."""
    try:
        return path.read_text("utf-8", "replace").strip("\0\n ")
    except OSError:
        return None
