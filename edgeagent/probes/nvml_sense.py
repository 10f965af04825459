"""What of NVML's answers can be believed?

Nothing is asked here: values in, values out. The rules, and why there are any:

- Memory that a GPU shares with the host is told in two ways: `not_supported`, or a success that
  repeats the host's MemTotal. Both mean the same, and neither is the GPU's own memory.
- Rows of processes may be nonsense: structs have changed their size without a new version, and a
  process may be dead, be in several lists, or carry an id of another pid namespace. A row that
  cannot be true is dropped and counted; what is left over is then no longer the whole truth.
- A process that is listed has a context, and a context takes memory: 0 bytes means "not told".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

SHARED = "memory is shared with the host"
NO_ENGINE = "no engine of ours is running"
NOT_TOLD = "the driver does not tell the memory of a process"
OTHER_NAMESPACE = "NVML lists processes by ids of another pid namespace"
TOLD_BY_MIG = "its MIG devices tell this"

HIGHEST_PID = 1 << 22  # the kernel's own limit (PID_MAX_LIMIT)

SAME_BYTES = 1 << 20
"""Totals of GPU and host that differ by less are the same memory."""

MemoryKind: TypeAlias = Literal["own", "shared", "unknown"]

Quality: TypeAlias = Literal[
    "attributed", "attributed_partly", "device_delta", "system_delta", "unavailable"
]
"""How far the engine's memory is known, from the best to the worst: all its rows; rows, of which
some were dropped or some devices tell nothing; only a device's use as a whole; only the host's;
nothing."""

QUALITIES: tuple[Quality, ...] = (
    "attributed",
    "attributed_partly",
    "device_delta",
    "system_delta",
    "unavailable",
)

View: TypeAlias = Literal["whole", "namespace", "wsl"]
"""Which processes can be seen from here: all, those of one pid namespace, those of one guest."""

_HIDDEN: dict[View, str] = {
    "whole": "",
    "namespace": "NVML does not list the engine, as it may not from inside a pid namespace",
    "wsl": "NVML does not list the engine, as is usual under WSL",
}


@dataclass(frozen=True)
class MemoryTold:
    """What NVML said of a device's memory; `reserved_bytes` only in version 2."""

    total_bytes: int
    used_bytes: int
    reserved_bytes: int | None = None


@dataclass(frozen=True)
class Memory:
    """What to believe of a device's memory; `reason` stands for each None."""

    kind: MemoryKind
    total_bytes: int | None = None
    used_bytes: int | None = None
    reserved_bytes: int | None = None
    reason: str = ""


def judge_memory(
    told: MemoryTold | None, word: str, reason: str, host_total_bytes: int | None
) -> Memory:
    """Return what to believe; `word` and `reason` say why nothing was told, if nothing was."""
    if told is None:
        if word == "not_supported":
            return Memory("shared", reason=SHARED)
        return Memory("unknown", reason=reason)
    if told.total_bytes <= 0 or _same(told.total_bytes, host_total_bytes):
        return Memory("shared", reason=SHARED)
    if not 0 <= told.used_bytes <= told.total_bytes:
        return Memory("own", told.total_bytes, reason="NVML says that more is used than there is")
    missing = "version 1 of memory information counts the driver's reserve as used"
    return Memory(
        "own",
        told.total_bytes,
        told.used_bytes,
        told.reserved_bytes,
        missing if told.reserved_bytes is None else "",
    )


def _same(total_bytes: int, host_total_bytes: int | None) -> bool:
    return host_total_bytes is not None and abs(total_bytes - host_total_bytes) < SAME_BYTES


@dataclass(frozen=True)
class Row:
    """What NVML says of one process on a GPU; None where the driver does not tell."""

    pid: int
    used_bytes: int | None


@dataclass(frozen=True)
class Onlooker:
    """Who asks: for which processes, and from where."""

    engine: frozenset[int]
    exists: Callable[[int], bool]
    view: View = "whole"


@dataclass(frozen=True)
class Share:
    """What the rows of one device say."""

    engine_bytes: int | None
    """Memory of the engine's processes; never more than the device has."""
    reason: str
    """Why that is None."""
    told: Literal["all", "part", "nothing"]
    """Whether rows tell what a process takes: of all, of some, of none."""
    dropped: int | None = None
    """Rows that cannot be true; None when there were no rows to look at."""
    foreign: frozenset[int] | None = None
    """Living processes that are not the engine's; None when that cannot be known."""


def share(rows: Sequence[Row], limit_bytes: int | None, onlooker: Onlooker) -> Share:
    """Return the engine's share; `limit_bytes` is what the device has, None when not known.

    A process may be in several lists: its largest row counts, not the sum.
    """
    sound = [row for row in rows if _can_be(row, limit_bytes)]
    alive = [row for row in sound if onlooker.exists(row.pid)]
    nonsense = len(rows) - len(sound)
    if onlooker.view != "whole" and sound and not alive:
        return Share(None, OTHER_NAMESPACE, "nothing", nonsense)
    dropped = len(rows) - len(alive)
    largest = _largest(alive)
    foreign = frozenset(largest) - onlooker.engine if alive or not rows else None
    ours = {pid: size for pid, size in largest.items() if pid in onlooker.engine}
    engine_bytes, reason = _engine_bytes(ours, len(rows), dropped, onlooker)
    if engine_bytes is not None and limit_bytes is not None and engine_bytes > limit_bytes:
        engine_bytes, reason = None, "NVML gives the engine more memory than the device has"
    blank = bool(largest) and not any(largest.values())
    hidden = onlooker.view != "whole" and not ours
    unknown = bool(onlooker.engine) and engine_bytes is None
    told: Literal["all", "part", "nothing"] = "part" if dropped else "all"
    if blank or hidden or unknown:
        told = "nothing"
    return Share(engine_bytes, reason, told, dropped, foreign)


def unlisted(reason: str) -> Share:
    """Return the share where no list of processes can be had."""
    return Share(None, reason, "nothing")


def _can_be(row: Row, limit_bytes: int | None) -> bool:
    if not 0 < row.pid <= HIGHEST_PID:
        return False
    if row.used_bytes is None:
        return True
    return row.used_bytes >= 0 and (limit_bytes is None or row.used_bytes <= limit_bytes)


def _largest(rows: Sequence[Row]) -> dict[int, int]:
    """Return the largest row of each process; 0 where no row tells."""
    largest: dict[int, int] = {}
    for row in rows:
        largest[row.pid] = max(largest.get(row.pid, 0), row.used_bytes or 0)
    return largest


def _engine_bytes(
    ours: dict[int, int], rows: int, dropped: int, onlooker: Onlooker
) -> tuple[int | None, str]:
    if not onlooker.engine:
        return None, NO_ENGINE
    if not ours and dropped:
        return None, f"{dropped} of NVML's {rows} process rows cannot be true, none is the engine's"
    if not ours and onlooker.view != "whole":
        return None, _HIDDEN[onlooker.view]
    if not all(ours.values()):
        return None, NOT_TOLD
    return sum(ours.values()), ""


def quality(share: Share, memory: Memory) -> Quality:
    """Return how far the engine's memory is known on one device."""
    if share.told == "all":
        return "attributed"
    if share.told == "part":
        return "attributed_partly"
    if memory.used_bytes is not None:
        return "device_delta"
    return "system_delta" if memory.kind == "shared" else "unavailable"


def engine_total(shares: Sequence[Share]) -> tuple[int | None, str]:
    """Return the engine's memory on all devices, or None and why it is not known.

    Where it was found on one device, others that tell nothing count as not used; `worst` says so.
    """
    known = [share.engine_bytes for share in shares if share.engine_bytes is not None]
    if len(known) == len(shares) or any(known):
        return sum(known), ""
    return None, next(share.reason for share in shares if share.engine_bytes is None)


def worst(qualities: Sequence[Quality], total_bytes: int | None) -> Quality:
    """Return the quality of the sum over devices."""
    if not qualities:
        return "unavailable"
    lowest = max(qualities, key=QUALITIES.index)
    if total_bytes is not None and lowest != "attributed":
        return "attributed_partly"
    return lowest


def foreign_processes(shares: Sequence[Share]) -> tuple[int | None, str]:
    """Return how many living processes that are not the engine's use a GPU."""
    seen = [share.foreign for share in shares if share.foreign is not None]
    if not seen:
        return None, "NVML does not tell which living processes use a GPU"
    return len(frozenset().union(*seen)), ""
