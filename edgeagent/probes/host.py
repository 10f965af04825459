"""How much memory do the box, the engine and we ourselves take, by the kernel's own books?

Everything comes from small files below /proc; reading (`HostProbe`) stands apart from parsing
(`parse_meminfo`, `parse_status`), and the root is an argument, so that a recorded tree will do.

What the numbers mean: `host.used_bytes` is MemTotal - MemAvailable; weights that an engine maps
from a file count as available there, which is why the engine's anonymous and mapped memory are
given apart (`engine.anon_bytes`, `engine.mapped_bytes`). A page that two processes of the engine
share is counted in both. The kernel keeps these counters in a batch for each CPU and may be late by
some hundred KiB a process; exact sums are `pss`'s business, which is too dear for every sample.

Everything read here is in kB, whatever the size of a page is: /proc/PID/statm is a little cheaper,
but counts pages, which are 4, 16 or 64 KiB, and does not tell anonymous from shared memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgeagent.ports import Readings

KIB = 1024

NO_ENGINE = "no engine of ours is running"
ENGINE_ENDED = "the engine's processes have ended"


def process_root(root: Path) -> Path:
    """Return the folder that tells of processes, /proc of a tree or the live one.

    A tree that recorded no process (no folder /proc/PID) stands for a box whose files differ, and
    on which the real processes run: then it is the live /proc.
    """
    recorded = root / "proc"
    if root == Path("/") or any(name.isdigit() for name in names_in(str(recorded))):
        return recorded
    return Path("/proc")


class HostProbe:
    """Memory of the host, of the engine's process tree, and what the agent itself takes.

    The agent looks at itself every `agent_every_s` seconds at most.
    """

    name = "host"

    def __init__(
        self,
        root: Path = Path("/"),
        processes: Path | None = None,
        agent_every_s: float = 1.0,
    ) -> None:
        self._proc = str(root / "proc")
        self._processes = str(processes or process_root(root))
        self._zram = Zram(root)
        self._agent_every_s = agent_every_s
        self._agent_next_s = 0.0
        self._statuses = Statuses(self._processes)

    def read(self, pids: Sequence[int]) -> Readings:
        """Return the readings of now; a process that has just ended counts as ended."""
        values: dict[str, float | int | None] = {}
        absent: dict[str, str] = {}
        for part, reasons in (self._host(), self._zram.read(), self._engine(pids), self._agent()):
            values.update(part)
            absent.update(reasons)
        return values, absent

    def close(self) -> None:
        """Let go of the engine's status files."""
        self._statuses.keep_only(())

    def facts(self) -> Mapping[str, object]:
        """Return the size of a page, which tells a box with 16 or 64 KiB pages from another."""
        return {"page_bytes": os.sysconf("SC_PAGE_SIZE")}

    def _host(self) -> Readings:
        try:
            text = read_text(f"{self._proc}/meminfo")
        except OSError as error:
            return nothing(HOST_NAMES, f"/proc/meminfo could not be read: {error.strerror}")
        return host_readings(parse_meminfo(text))

    def _engine(self, pids: Sequence[int]) -> Readings:
        self._statuses.keep_only(pids)
        if not pids:
            return nothing(ENGINE_NAMES, NO_ENGINE)
        alive, refused = [], None
        for pid in pids:
            try:
                alive.append(parse_status(self._statuses.text(pid)))
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended between being listed and being read
            except OSError as error:
                refused = f"/proc/{pid}/status could not be read: {error.strerror}"
        if refused is not None:
            return nothing(ENGINE_NAMES, refused)
        if not alive:
            return nothing(ENGINE_NAMES, ENGINE_ENDED)
        return engine_readings(alive)

    def _agent(self) -> Readings:
        now_s = time.monotonic()
        if now_s < self._agent_next_s:
            return {}, {}
        self._agent_next_s = now_s + self._agent_every_s
        try:
            rss_bytes = parse_status(read_text(f"{self._processes}/self/status")).rss_bytes
        except OSError as error:
            values, absent = nothing(
                ("agent.rss_bytes",), f"/proc/self/status could not be read: {error.strerror}"
            )
        else:
            values, absent = {"agent.rss_bytes": rss_bytes}, {}
        return {**values, "agent.cpu_s": time.process_time()}, absent


class Statuses:
    """The status files of an engine's processes, kept open between readings where they are live.

    Opening one takes several times as long as reading it. The file of a process that has ended
    cannot be read any more (ESRCH), whoever has its number now; a recorded tree's files may be
    replaced, so they are opened each time.
    """

    def __init__(self, processes: str) -> None:
        self._processes = processes
        self._live = processes == "/proc"
        self._files: dict[int, int] = {}

    def text(self, pid: int) -> str:
        """Return the text of /proc/PID/status. Raises OSError."""
        if not self._live:
            return read_text(f"{self._processes}/{pid}/status")
        file = self._files.get(pid)
        if file is None:
            file = os.open(f"/proc/{pid}/status", os.O_RDONLY | os.O_CLOEXEC)
            self._files[pid] = file
        return os.pread(file, _STATUS_BYTES, 0).decode("utf-8", "replace")

    def keep_only(self, pids: Sequence[int]) -> None:
        """Close the files of all other processes."""
        for pid in [pid for pid in self._files if pid not in pids]:
            os.close(self._files.pop(pid))


class Zram:
    """What compressed swap takes of the memory itself, over all of its devices.

    Which devices there are is looked up every ten seconds; each of them is read at every sample.
    """

    def __init__(self, root: Path) -> None:
        self._block = str(root / "sys/block")
        self._devices: tuple[str, ...] | None = None
        self._next_look_s = 0.0

    def read(self) -> Readings:
        """Return the bytes taken; 0 where no such device exists."""
        now_s = time.monotonic()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + ZRAM_LOOK_S
            self._devices = self._look()
        if self._devices is None:
            return nothing(("host.zram_bytes",), "/sys/block could not be read")
        try:
            taken_bytes = sum(parse_mm_stat(read_text(path)) for path in self._devices)
        except OSError as error:
            self._next_look_s = now_s  # it may have been switched off
            return nothing(("host.zram_bytes",), f"zram could not be read: {error.strerror}")
        except ValueError:
            return nothing(("host.zram_bytes",), "zram's mm_stat is not of the known form")
        return {"host.zram_bytes": taken_bytes}, {}

    def _look(self) -> tuple[str, ...] | None:
        try:
            names = os.listdir(self._block)  # noqa: PTH208  # because a Path for each name costs more than the names
        except OSError:
            return None
        return tuple(
            f"{self._block}/{name}/mm_stat" for name in sorted(names) if name.startswith("zram")
        )


# ------------------------------------------------------------------------------------------ parsing

ZRAM_LOOK_S = 10.0
_STATUS_BYTES = 1 << 14
_LONGEST_FIELD = 48
"""Of a line `NAME: 1234 kB`, from its colon to its unit."""
MOST_DIGITS = 20
"""Of a number of 64 bits."""

HOST_NAMES = (
    "host.total_bytes",
    "host.available_bytes",
    "host.free_bytes",
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


# These files are read at every sample, and finding the few lines of interest takes a tenth of the
# time that a regular expression does when it has not run for a while and the caches are cold.
_MEMINFO = ("MemTotal", "MemFree", "MemAvailable", "SwapTotal", "SwapFree")
_STATUS = ("VmRSS", "RssAnon", "RssFile", "RssShmem")


def parse_meminfo(text: str) -> Mapping[str, int]:
    """Return what `host_readings` needs of /proc/meminfo, in bytes, as far as listed."""
    return bytes_of(_MEMINFO, text)


def bytes_of(names: Sequence[str], text: str) -> dict[str, int]:
    """Return the lines `NAME:   1234 kB` of these names, in bytes; others are left out."""
    found = {}
    text = f"\n{text}"
    for name in names:
        start = text.find(f"\n{name}:")
        if start < 0:
            continue
        start += len(name) + 2
        amount = whole_number(text[start : text.find(" kB", start, start + _LONGEST_FIELD)])
        if amount is not None:
            found[name] = amount * KIB
    return found


def parse_status(text: str) -> ProcessMemory:
    """Return the memory that /proc/PID/status tells; a zombie or kernel thread has none, 0.

    Shared anonymous memory (RssShmem: CUDA and vLLM workers use it) is counted with the anonymous:
    both cannot be given back to the page cache.
    """
    fields = bytes_of(_STATUS, text)
    return ProcessMemory(
        rss_bytes=fields.get("VmRSS", 0),
        anon_bytes=fields.get("RssAnon", 0) + fields.get("RssShmem", 0),
        mapped_bytes=fields.get("RssFile", 0),
    )


def parse_mm_stat(text: str) -> int:
    """Return the bytes that a zram device takes of the memory, its third field.

    Raises ValueError for text of another form.
    """
    _, _, taken, *_ = text.split()
    return int(taken)


def whole_number(text: str) -> int | None:
    """Return a count that the kernel wrote, or None for anything that it does not write."""
    digits = text.strip()
    return (
        int(digits)
        if digits.isascii() and digits.isdigit() and len(digits) <= MOST_DIGITS
        else None
    )


def host_readings(meminfo: Mapping[str, int]) -> Readings:
    """Return the host's values; what the kernel does not list is None."""
    total, available = meminfo.get("MemTotal"), meminfo.get("MemAvailable")
    swap_total, swap_free = meminfo.get("SwapTotal"), meminfo.get("SwapFree")
    values = {
        "host.total_bytes": total,
        "host.available_bytes": available,
        "host.free_bytes": meminfo.get("MemFree"),
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


def nothing(names: Sequence[str], reason: str) -> Readings:
    """Return None under each name, for one reason."""
    return dict.fromkeys(names), dict.fromkeys(names, reason)


# ------------------------------------------------------------------------------------------ reading


def names_in(folder: str) -> list[str]:
    """Return the names in a folder; none when it cannot be listed."""
    try:
        return os.listdir(folder)  # noqa: PTH208  # because a Path for each name costs more than the names
    except OSError:
        return []


def read_text(path: str) -> str:
    """Return the text of a small file in one read: /proc gives a consistent answer to one only.

    Raises OSError.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, 1 << 16).decode("utf-8", "replace")
    finally:
        os.close(file)
