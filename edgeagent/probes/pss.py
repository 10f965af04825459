"""How much memory is the engine's own, when every shared page is counted once?

/proc/PID/smaps_rollup divides each page among the processes that map it, so the sum over a tree of
processes counts it once: anonymous memory (KV cache, compute buffers), files (weights that are
mapped) and shared memory apart. The kernel walks the page tables for it while the process waits for
its memory map: milliseconds for a GiB. So this is read at phase boundaries, never at every sample.

Pages in swap and explicit huge pages (hugetlbfs) are in none of these sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgeagent.ports import Readings
from edgeagent.probes.host import (
    ENGINE_ENDED,
    NO_ENGINE,
    bytes_of,
    nothing,
    process_root,
    read_text,
)

NAMES = (
    "engine.pss_bytes",
    "engine.pss_anon_bytes",
    "engine.pss_file_bytes",
    "engine.pss_shmem_bytes",
    "engine.pss_is_rss",
    "engine.peak_rss_bytes",
)


class PssProbe:
    """Memory of the engine's process tree, each page counted once: see `Probe`.

    Where the kernel has no smaps_rollup, or one that does not tell kinds of memory apart, the
    resident sizes of /proc/PID/status are given instead, and `engine.pss_is_rss` is 1: pages that
    processes share are then counted in each of them.
    """

    name = "pss"

    def __init__(self, root: Path = Path("/"), processes: Path | None = None) -> None:
        self._processes = str(processes or process_root(root))
        self._offered = Path(self._processes, "self/smaps_rollup").exists()

    def read(self, pids: Sequence[int]) -> Readings:
        """Return the sums of now; a process that ends meanwhile counts as ended."""
        if not pids:
            return nothing(NAMES, NO_ENGINE)
        alive = []
        for pid in pids:
            try:
                alive.append(self._one(pid))
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended between being listed and being read
            except OSError as error:
                return nothing(
                    NAMES, f"the memory of process {pid} could not be read: {error.strerror}"
                )
        return readings(alive) if alive else nothing(NAMES, ENGINE_ENDED)

    def close(self) -> None:
        """Nothing is held between readings."""

    def facts(self) -> Mapping[str, object]:
        """Return whether this kernel adds shares up (smaps_rollup) or resident sizes must do."""
        return {"pss_source": "smaps_rollup" if self._offered else "status"}

    def _one(self, pid: int) -> Held:
        """Return what one process holds. Raises OSError."""
        status = read_text(f"{self._processes}/{pid}/status")
        return Held(self._shares(pid), *parse_resident(status))

    def _shares(self, pid: int) -> Shares | None:
        try:
            return parse_smaps_rollup(read_text(f"{self._processes}/{pid}/smaps_rollup"))
        except FileNotFoundError:
            if self._offered:
                raise  # then it is the process that is gone
            return None


# ------------------------------------------------------------------------------------------ parsing


@dataclass(frozen=True)
class Shares:
    """Memory of one process by kind, in bytes."""

    all_bytes: int
    anon_bytes: int
    file_bytes: int
    shmem_bytes: int


@dataclass(frozen=True)
class Held:
    """What one process holds, by shares where the kernel tells them, and has held at most."""

    shares: Shares | None
    resident: Shares
    peak_rss_bytes: int


_ROLLUP = ("Pss", "Pss_Anon", "Pss_File", "Pss_Shmem")
_STATUS = ("VmRSS", "RssAnon", "RssFile", "RssShmem", "VmHWM")


def parse_smaps_rollup(text: str) -> Shares | None:
    """Return the shares that /proc/PID/smaps_rollup tells; None when kinds are not told apart."""
    found = bytes_of(_ROLLUP, text)
    try:
        return Shares(found["Pss"], found["Pss_Anon"], found["Pss_File"], found["Pss_Shmem"])
    except KeyError:
        return None


def parse_resident(status: str) -> tuple[Shares, int]:
    """Return resident memory by kind and its peak, from /proc/PID/status, in bytes.

    The peak is VmHWM. A zombie has no memory, and none of these lines: zeros.
    """
    found = bytes_of(_STATUS, status)
    kinds = (found.get(name, 0) for name in ("VmRSS", "RssAnon", "RssFile", "RssShmem"))
    return Shares(*kinds), found.get("VmHWM", 0)


def readings(processes: Iterable[Held]) -> Readings:
    """Return the sums over the processes of an engine.

    The peak is the sum of each process's own peak; they need not have come at one moment.
    """
    each = tuple(processes)
    held = [one.resident if one.shares is None else one.shares for one in each]
    return {
        "engine.pss_bytes": sum(one.all_bytes for one in held),
        "engine.pss_anon_bytes": sum(one.anon_bytes for one in held),
        "engine.pss_file_bytes": sum(one.file_bytes for one in held),
        "engine.pss_shmem_bytes": sum(one.shmem_bytes for one in held),
        "engine.pss_is_rss": int(any(one.shares is None for one in each)),
        "engine.peak_rss_bytes": sum(one.peak_rss_bytes for one in each),
    }, {}
