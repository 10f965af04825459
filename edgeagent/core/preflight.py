"""Would this start fit, by arithmetic, into what this box can give?

llama.cpp fills its whole cache when it starts, and Linux promises more memory than there is: a
cache that is too large is not refused but ends half way, by the kernel's hand or with the whole
box. So it is refused before, with the arithmetic.

Which memory counts depends on the class of box. A GPU with memory of its own takes weights and
cache, unless the CPU was asked for; everywhere else they come out of the host's memory, and what is
available there is MemAvailable: page cache can be had back, which MemFree does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from edgeagent.core.kv import MemoryPrediction
from edgeagent.core.model import EngineConfig

Values: TypeAlias = Mapping[str, float | int | None]

MARGIN_BYTES = 256 << 20
"""For compute buffers and the rest that arithmetic does not know."""

_GIB = 1 << 30
_GPU_CLASSES = frozenset({"dgpu", "wsl"})


@dataclass(frozen=True)
class Room:
    """What could be had before a start; None where nobody can say."""

    where: Literal["GPU", "host", "cgroup"]
    available_bytes: int | None


def room(box_class: str, device: str, values: Values) -> Room:
    """Where weights and cache of a start will go, and what is available there."""
    if box_class in _GPU_CLASSES and device != "cpu":
        return Room("GPU", _gpu_available(values))
    available, limit = (
        _number(values, "host.available_bytes"),
        _number(values, "cgroup.limit_bytes"),
    )
    if limit is not None and (available is None or limit < available):
        return Room("cgroup", limit)
    return Room("host", available)


def refusal(config: EngineConfig, need: MemoryPrediction, there: Room) -> str | None:
    """Why the start must not be tried, in one sentence; None when it fits or nobody can say."""
    needed = need.total_bytes + MARGIN_BYTES
    if there.available_bytes is None or needed <= there.available_bytes:
        return None
    cache = need.kv_bytes + need.state_bytes
    rest = need.total_bytes - cache - (need.weights_bytes or 0)
    what = {
        "GPU": "are free on the GPU",
        "host": "are available on this box",
        "cgroup": "is all that the memory limit of this control group allows",
    }[there.where]
    return (
        f"{config.engine.id} with {config.slots} slots of {config.context_per_slot} tokens needs "
        f"about {_gib(needed)}: {_gib(need.weights_bytes or 0)} weights + {_gib(cache)} cache "
        f"({config.slots} x {_mib(cache / config.slots)}) + {_gib(rest + MARGIN_BYTES)} for the "
        f"rest, and {_gib(there.available_bytes)} {what}: use fewer --slots, a smaller --context "
        "or a smaller --kv-type"
    )


def most_slots(need: MemoryPrediction, slots: int, there: Room) -> int | None:
    """How many slots of the same context fit, from what so many need; None when nobody can say."""
    if there.available_bytes is None or need.bytes_per_slot <= 0:
        return None
    left = there.available_bytes - MARGIN_BYTES - need.total_bytes
    return max(0, slots + left // need.bytes_per_slot)


def _gpu_available(values: Values) -> int | None:
    """Free memory of all GPUs together; None unless every one tells."""
    totals = [v for name, v in values.items() if _of_device(name, "total_bytes")]
    used = [v for name, v in values.items() if _of_device(name, "used_bytes")]
    if not totals or None in totals or None in used:
        return None
    held = [v for name, v in values.items() if _of_device(name, "reserved_bytes")]
    taken = sum(v for v in (*used, *held) if v is not None)
    return int(sum(v for v in totals if v is not None) - taken)


def _of_device(name: str, part: str) -> bool:
    return name.startswith("gpu.") and name.endswith(f".{part}")


def _number(values: Values, name: str) -> int | None:
    value = values.get(name)
    return None if value is None else int(value)


def _gib(amount_bytes: float) -> str:
    return f"{amount_bytes / _GIB:.2f} GiB"


def _mib(amount_bytes: float) -> str:
    return f"{amount_bytes / (1 << 20):.1f} MiB"
