"""How do the samples of the box become messages, events, and an answer to "is it idle"?

Everything here runs in the daemon's thread, once a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from edgeagent.core.commands import Box
from edgeagent.core.delivery import Entry, Stamp
from edgeagent.core.idle import Lookback
from edgeagent.core.model import MemorySample
from edgeagent.core.telemetry import Minute, gpu_values, memory_values

Values = Mapping[str, float | int | None]

_KINDS: tuple[tuple[str, Callable[[Values], dict[str, float | int]]], ...] = (
    ("mem", memory_values),
    ("gpu", gpu_values),
)
_THROTTLED = ("hygiene.throttle_count", "hygiene.overcurrent_count")
_EARLY_S = 0.1
"""Samples come a little sooner or later than they should."""
_KNOWN_AFTER_S = 3.0
"""CPU use is a difference of totals, which are read once a second."""
_QUIET_S = 600.0
"""Between two events of one kind, so that a box that throttles all day tells it now and then."""


class Live(Protocol):
    """Takes a reading that is worth nothing later; False if it could not go now."""

    def __call__(self, below: str, schema: str, value: Mapping[str, object], stamp: Stamp) -> bool:
        """Send it."""
        ...


@dataclass(frozen=True)
class Pace:
    """How often what is told, in seconds."""

    live_s: float
    aggregate_s: float
    idle_for_s: float


class Telemetry:
    """See the module."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self.lookback = _lookback(pace)
        self.sees_gpu: Literal["no", "yes"] = "no"
        """Whether a GPU has ever told how busy it is; one that falls silent is not idle."""
        self._minutes = {kind: Minute() for kind, _ in _KINDS}
        self._live_s: float | None = None
        self._counts: dict[str, float] = {}
        self._told_s: dict[str, float] = {}

    def keep_pace(self, pace: Pace) -> None:
        """Go on at another pace; another span of idleness is looked at anew."""
        if pace.idle_for_s != self._pace.idle_for_s:
            self.lookback = _lookback(pace)
        self._pace = pace

    def live(self, sample: MemorySample, stamp: Stamp, send: Live) -> bool:
        """Send what is seen now, if it is time for it, which is returned."""
        at_s = sample.at_ns / 1e9
        if self._live_s is not None and at_s - self._live_s < self._pace.live_s - _EARLY_S:
            return False
        self._live_s = at_s
        for kind, chosen in _KINDS:
            if values := chosen(sample.values):
                send(f"m/{kind}", f"edgeagent.{kind}/1", values, stamp)
        return True

    def minutes(self, sample: MemorySample, stamp: Stamp) -> list[Entry]:
        """Take the sample in; return the minutes that are full."""
        at_s = sample.at_ns / 1e9
        full = []
        for kind, chosen in _KINDS:
            minute = self._minutes[kind]
            if minute.due(at_s, self._pace.aggregate_s):
                full.append(self._entry(kind, minute, at_s, stamp))
            if values := chosen(sample.values):
                minute.add(at_s, values)
        return full

    def rest(self, at_s: float, stamp: Stamp) -> list[Entry]:
        """Return the minutes that are not full, because there will be no more."""
        return [
            self._entry(kind, minute, at_s, stamp)
            for kind, minute in self._minutes.items()
            if minute.samples
        ]

    @staticmethod
    def _entry(kind: str, minute: Minute, at_s: float, stamp: Stamp) -> Entry:
        return Entry("M", f"m/{kind}_1m", f"edgeagent.{kind}_1m/1", stamp, minute.take(at_s))

    def events(self, sample: MemorySample, stamp: Stamp) -> list[Entry]:
        """Return what has just happened to the box: it slowed itself down."""
        at_s = sample.at_ns / 1e9
        told = []
        for name in self._rising(sample.values):
            if at_s - self._told_s.get(name, -_QUIET_S) >= _QUIET_S:
                self._told_s[name] = at_s
                told.append(self._throttle(name, sample.values, stamp))
        return told

    def _rising(self, values: Values) -> list[str]:
        """Counters of throttling that are higher than at the sample before."""
        names = [name for name in values if name in _THROTTLED or name.endswith(".throttle_s")]
        rising = []
        for name in names:
            value = values[name]
            if value is None:
                continue
            if value > self._counts.get(name, value):
                rising.append(name)
            self._counts[name] = value
        return rising

    @staticmethod
    def _throttle(name: str, values: Values, stamp: Stamp) -> Entry:
        parts = name.split(".")
        device = parts[1] if parts[0] == "gpu" else None
        value: dict[str, object] = {"reason": parts[-1]}
        if device is not None:
            value["device"] = device
        hot = values.get(f"gpu.{device}.temperature_c" if device else "hygiene.temperature_max_c")
        if hot is not None:
            value["temperature_c"] = hot
        return Entry("R", "e/throttle", "edgeagent.throttle/1", stamp, value)

    def look(self, sample: MemorySample, production_requests: int | None) -> None:
        """Remember how busy others were; only while no sweep of ours runs."""
        box = box_of(sample.values, production_requests)
        if box.foreign_gpu is not None:
            self.sees_gpu = "yes"
        self.lookback.add(sample.at_ns / 1e9, box)

    def forget(self) -> None:
        """Begin to look anew: what was seen until now was our own doing."""
        self.lookback = _lookback(self._pace)


def _lookback(pace: Pace) -> Lookback:
    return Lookback(max(pace.idle_for_s, _KNOWN_AFTER_S))


def box_of(values: Values, production_requests: int | None) -> Box:
    """Return what the guards see of a sample that was taken while no engine of ours ran."""
    cores = values.get("hygiene.cpu_cores")
    foreign = values.get("hygiene.foreign_cpu_cores")
    available = values.get("host.available_bytes")
    used = [
        value
        for name, value in values.items()
        if value is not None
        and (name.endswith(".utilisation_fraction") or name == "jetson.gpu_load_fraction")
    ]
    return Box(
        foreign_gpu=max(used, default=None),
        foreign_cpu=min(1.0, foreign / cores) if foreign is not None and cores else None,
        production_requests=production_requests,
        temperature_c=values.get("hygiene.temperature_max_c"),
        available_bytes=None if available is None else int(available),
    )
