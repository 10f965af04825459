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
import re
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
        self._proc = str(root / "proc")

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
            text = _read(f"{self._proc}/meminfo")
        except OSError as error:
            return _nothing(HOST_NAMES, f"/proc/meminfo could not be read: {error.strerror}")
        return host_readings(parse_meminfo(text))

    def _engine(self, pids: Sequence[int]) -> Readings:
        if not pids:
            return _nothing(ENGINE_NAMES, NO_ENGINE)
        alive, refused = [], None
        for pid in pids:
            try:
                alive.append(parse_status(_read(f"{self._proc}/{pid}/status")))
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
            rss_bytes = parse_status(_read(f"{self._proc}/self/status")).rss_bytes
        except OSError as error:
            values, absent = _nothing(
                ("agent.rss_bytes",), f"/proc/self/status could not be read: {error.strerror}"
            )
        else:
            values, absent = {"agent.rss_bytes": rss_bytes}, {}
        return {**values, "agent.cpu_s": time.process_time()}, absent


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


# These files are read at every sample, and searching for the few lines of interest takes a fifth
# of the time that taking all lines apart does.
_MEMINFO = re.compile(r"^(MemTotal|MemAvailable|SwapTotal|SwapFree):\s*([0-9]+) kB", re.MULTILINE)
_STATUS = re.compile(r"^(VmRSS|RssAnon|RssFile|RssShmem):\s*([0-9]+) kB", re.MULTILINE)


def parse_meminfo(text: str) -> Mapping[str, int]:
    """Return what `host_readings` needs of /proc/meminfo, in bytes, as far as listed."""
    return _bytes_of(_MEMINFO, text)


def _bytes_of(pattern: re.Pattern[str], text: str) -> dict[str, int]:
    return {name: int(kib) * KIB for name, kib in pattern.findall(text)}


def parse_status(text: str) -> ProcessMemory:
    """Return the memory that /proc/PID/status tells; a zombie or kernel thread has none, 0.

    Shared anonymous memory (RssShmem: CUDA and vLLM workers use it) is counted with the anonymous:
    both cannot be given back to the page cache.
    """
    fields = _bytes_of(_STATUS, text)
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


def _read(path: str) -> str:
    """Return the text of a small file in one read: /proc gives a consistent answer to one only."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, 1 << 16).decode("utf-8", "replace")
    finally:
        os.close(file)
