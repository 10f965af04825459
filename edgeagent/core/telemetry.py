"""What of a box's samples goes to the plant, live and as minutes?

Live: the values at one moment under flat names. A minute: minimum, mean, maximum and last of each
value that was seen in it. A value that nobody could read is absent, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

Values = Mapping[str, float | int | None]

MEMORY_NAMES = {
    "host.total_bytes": "ram_total_bytes",
    "host.used_bytes": "ram_used_bytes",
    "host.available_bytes": "ram_available_bytes",
    "host.swap_used_bytes": "swap_used_bytes",
    "engine.pss_anon_bytes": "engine_anon_bytes",
    "engine.anon_bytes": "engine_anon_bytes",
    "gpu.engine_bytes": "engine_gpu_bytes",
    "agent.rss_bytes": "agent_rss_bytes",
    "nvmap.used_bytes": "nvmap_used_bytes",
    "drm.vram_used_bytes": "gpu_used_bytes",
    "drm.vram_total_bytes": "gpu_total_bytes",
}
"""Our names of samples to those on the broker; of two for one, the later that is known wins."""

_OF_A_GPU = {
    "used_bytes": "gpu_used_bytes",
    "total_bytes": "gpu_total_bytes",
}
_GPU_STATE = {
    "utilisation_fraction": "gpu_util_fraction",
    "power_w": "gpu_power_w",
    "temperature_c": "gpu_temperature_c",
    "sm_clock_hz": "gpu_clock_hz",
}
STATE_NAMES = {
    "jetson.gpu_load_fraction": "gpu_util_fraction",
    "jetson.gpu_frequency_hz": "gpu_clock_hz",
    "power.total_w": "power_w",
    "hygiene.temperature_max_c": "temperature_c",
    "hygiene.foreign_cpu_cores": "foreign_cpu_cores",
}
"""State of box and GPU where no device of its own tells it."""


def memory_values(values: Values) -> dict[str, float | int]:
    """Return memory of box, GPUs and engine at one moment, in bytes."""
    return {**_named(values, MEMORY_NAMES), **_of_gpus(values, _OF_A_GPU)}


def gpu_values(values: Values) -> dict[str, float | int]:
    """Return load, clock, power and temperature of GPU and box; empty where nothing shows them."""
    return {**_named(values, STATE_NAMES), **_of_gpus(values, _GPU_STATE)}


def _named(values: Values, names: Mapping[str, str]) -> dict[str, float | int]:
    return {
        name: value
        for ours, name in names.items()
        if (value := _finite(values.get(ours))) is not None
    }


def _of_gpus(values: Values, names: Mapping[str, str]) -> dict[str, float | int]:
    """The first GPU under the plain names, others as gpu1_…, in the order of their UUIDs."""
    found: dict[str, float | int] = {}
    for number, uuid in enumerate(_uuids(values)):
        for ours, name in names.items():
            value = _finite(values.get(f"gpu.{uuid}.{ours}"))
            if value is not None:
                found[name if number == 0 else name.replace("gpu_", f"gpu{number}_", 1)] = value
    return found


def _uuids(values: Values) -> list[str]:
    middle = (name.split(".") for name in values if name.startswith("gpu."))
    return sorted({parts[1] for parts in middle if len(parts) == 3})  # noqa: PLR2004  # because gpu.UUID.value has three parts


def _finite(value: float | None) -> float | int | None:
    return value if value is not None and math.isfinite(value) else None


@dataclass
class _Seen:
    low: float
    high: float
    total: float
    last: float
    count: int = 1

    def add(self, value: float) -> None:
        self.low, self.high = min(self.low, value), max(self.high, value)
        self.total, self.last, self.count = self.total + value, value, self.count + 1


@dataclass
class Minute:
    """Gathers what is seen until somebody takes it out."""

    started_s: float | None = None
    samples: int = 0
    _seen: dict[str, _Seen] = field(default_factory=dict)

    def add(self, at_s: float, values: Values) -> None:
        """Take one moment's values in; `at_s` is monotonic."""
        if self.started_s is None:
            self.started_s = at_s
        self.samples += 1
        for name, given in values.items():
            value = _finite(given)
            if value is None:
                continue
            if name in self._seen:
                self._seen[name].add(value)
            else:
                self._seen[name] = _Seen(value, value, value, value)

    def due(self, at_s: float, every_s: float) -> bool:
        """Whether enough time has passed since the first value."""
        return self.started_s is not None and at_s - self.started_s >= every_s

    def take(self, at_s: float) -> dict[str, float | int]:
        """Return the minute and begin another: NAME_min, _mean, _max and _last, samples, span_s."""
        begun = self.started_s if self.started_s is not None else at_s
        values: dict[str, float | int] = {
            "samples": self.samples,
            "span_s": round(max(0.0, at_s - begun), 3),
        }
        for name, seen in self._seen.items():
            values[f"{name}_min"] = seen.low
            values[f"{name}_mean"] = seen.total / seen.count
            values[f"{name}_max"] = seen.high
            values[f"{name}_last"] = seen.last
        self.started_s, self.samples, self._seen = None, 0, {}
        return values
