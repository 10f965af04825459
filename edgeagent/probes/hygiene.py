"""Is the box in a state in which its numbers mean something?

Read, never changed: CPU governor, temperature, throttling counters, load and pressure stall
information, wherever the kernel shows them. Counters are totals since boot; whoever judges
a cell takes differences. A file that this kind of box lacks gives None and a reason, never 0.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from edgeagent.ports import Readings

T = TypeVar("T")

_PRESSURES = ("cpu", "memory", "io")
_SAVERS = frozenset({"powersave", "low-power", "quiet", "cool"})
_TOO_HOT_MILLI_C = 150_000
_SELF_GOVERNING = frozenset({"intel_pstate", "amd-pstate-epp"})
"""Drivers whose "powersave" governor is the ordinary one: it goes to full speed under load."""


class HygieneProbe:
    """State of the host: see `Probe`.

    Read at most every `every_s` seconds, because there are files for every core and none of them
    changes fast; a reading in between has no values at all.
    """

    name = "hygiene"

    def __init__(self, root: Path = Path("/"), every_s: float = 1.0) -> None:
        self._every_s = every_s
        self._next_s = 0.0
        self._proc = root / "proc"
        self._cpus = root / "sys/devices/system/cpu"
        self._zones = tuple(sorted((root / "sys/class/thermal").glob("thermal_zone*/temp")))
        self._throttles = tuple(
            sorted(self._cpus.glob("cpu[0-9]*/thermal_throttle/*_throttle_count"))
        )
        self._overcurrents = tuple(sorted((root / "sys/class/hwmon").glob("hwmon*/oc*_event_cnt")))
        self._profile = root / "sys/firmware/acpi/platform_profile"

    def read(self, pids: Sequence[int]) -> Readings:  # noqa: ARG002  # because every probe is asked alike
        """Return the readings of now, or none before their time; `pids` does not matter."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return {}, {}
        self._next_s = now_s + self._every_s
        found = {
            "hygiene.temperature_max_c": hottest_c(_texts(self._zones)),
            "hygiene.throttle_count": total(_texts(self._throttles)),
            "hygiene.overcurrent_count": total(_texts(self._overcurrents)),
            "hygiene.load_1min": _from(self._proc / "loadavg", load_1min),
            "hygiene.power_saver": self._power_saver(),
        }
        for kind in _PRESSURES:
            text = _text(self._proc / "pressure" / kind)
            found[f"hygiene.pressure_{kind}_some_s"] = None if text is None else stalled_s(text)
        return found, {name: REASONS[name] for name, value in found.items() if value is None}

    def close(self) -> None:
        """Nothing is held between readings."""

    def facts(self) -> Mapping[str, object]:
        """Return the settings in words, for environment.json; None where there is no such file."""
        return {
            "cpu_governors": sorted(self._words("cpu[0-9]*/cpufreq/scaling_governor")) or None,
            "cpu_frequency_driver": self._driver(),
            "platform_profile": _text(self._profile),
            "boost": _text(self._cpus / "cpufreq/boost"),
            "no_turbo": _text(self._cpus / "intel_pstate/no_turbo"),
        }

    def _power_saver(self) -> int | None:
        """Return 1 when a setting holds the CPU back, 0 when none does, None when none is shown."""
        governors = self._words("cpu[0-9]*/cpufreq/scaling_governor")
        profile = _text(self._profile)
        return power_saver(governors, self._driver(), profile)

    def _driver(self) -> str | None:
        return min(self._words("cpu[0-9]*/cpufreq/scaling_driver"), default=None)

    def _words(self, pattern: str) -> set[str]:
        return set(_texts(self._cpus.glob(pattern)))


# ------------------------------------------------------------------------------------------ parsing

REASONS = {
    "hygiene.temperature_max_c": "no thermal zone can be read here",
    "hygiene.throttle_count": "this CPU shows no throttle counters",
    "hygiene.overcurrent_count": "this board shows no over-current counters",
    "hygiene.load_1min": "/proc/loadavg could not be read",
    "hygiene.power_saver": "the kernel shows neither a CPU governor nor a platform profile",
    **{
        f"hygiene.pressure_{kind}_some_s": "this kernel keeps no pressure stall information"
        for kind in _PRESSURES
    },
}


def hottest_c(texts: Iterable[str]) -> float | None:
    """Return the highest temperature, in degrees Celsius; None when no zone tells one.

    Zones that are switched off report nothing, or values far outside of what a chip survives.
    """
    milli = [value for value in map(_integer, texts) if value is not None]
    return max((m / 1000 for m in milli if 0 < m < _TOO_HOT_MILLI_C), default=None)


def total(texts: Iterable[str]) -> int | None:
    """Return the sum of counters; None when there are none."""
    counts = [count for count in map(_integer, texts) if count is not None]
    return sum(counts) if counts else None


def load_1min(text: str) -> float | None:
    """Return the load average over the last minute."""
    try:
        return float(text.split(maxsplit=1)[0])
    except (ValueError, IndexError):
        return None


def stalled_s(text: str) -> float | None:
    """Return for how long some task has been stalled since boot, in seconds."""
    for line in text.splitlines():
        if line.startswith("some "):
            microseconds = _integer(line.rpartition("total=")[2])
            return None if microseconds is None else microseconds / 1e6
    return None


def power_saver(governors: Iterable[str], driver: str | None, profile: str | None) -> int | None:
    """Return 1 when a governor or the platform profile saves power, 0 when none does, else None."""
    known = set(governors) | ({profile} if profile is not None else set())
    if not known:
        return None
    saving = known & _SAVERS
    if driver in _SELF_GOVERNING and profile not in _SAVERS:
        saving = saving - {"powersave"}
    return int(bool(saving))


def _integer(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


# ------------------------------------------------------------------------------------------ reading


def _text(path: Path) -> str | None:
    """Return a small file's text; None when it is missing or its block is switched off."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return None


def _texts(paths: Iterable[Path]) -> list[str]:
    return [text for text in map(_text, paths) if text is not None]


def _from(path: Path, parse: Callable[[str], T | None]) -> T | None:
    text = _text(path)
    return None if text is None else parse(text)
