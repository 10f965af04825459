"""Is the box in a state in which its numbers mean something?

Read, never changed: temperature and how far it is from where the kernel steps in, throttling and
over-current counters, what holds the processor back, and who else uses it. Counters are totals
since boot; whoever judges a cell takes differences. A file that this kind of box lacks gives None
and a reason, never 0. How the box is set, in words, is in `settings.py`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from edgeagent.ports import Readings
from edgeagent.probes.foreign import ForeignCpu
from edgeagent.probes.host import process_root
from edgeagent.probes.settings import Supply, believable, read_supplies, settings

T = TypeVar("T")

_SAVERS = frozenset({"powersave", "low-power", "quiet", "cool"})
_SELF_GOVERNING = frozenset({"intel_pstate", "amd-pstate-epp"})
"""Drivers whose "powersave" governor is the ordinary one: it goes to full speed under load."""

_STEPS_IN = frozenset({"passive", "hot", "critical"})
"""Trip points at which the box gets slower or goes off; "active" ones start a fan."""

_NO_BRAKE = re.compile(r"fan|lcd|backlight|tcc offset|charg|battery|iwlwifi", re.IGNORECASE)
"""Cooling devices whose state says nothing about speed."""

_SEARCH_EVERY_S = 60.0
"""Modules are loaded late, so what a box has is looked for again."""


class HygieneProbe:
    """State of the host: see `Probe`.

    Read at most every `every_s` seconds, because there are files for every core and none of them
    changes fast; a reading in between has no values at all.
    """

    name = "hygiene"

    def __init__(
        self,
        root: Path = Path("/"),
        every_s: float = 1.0,
        processes: Path | None = None,
    ) -> None:
        self._root = root
        self._every_s = every_s
        self._next_s = 0.0
        self._search_s = 0.0
        self._places = Places()
        self._counts: dict[Path, int] = {}
        self._foreign = ForeignCpu(root / "proc", processes or process_root(root))

    def read(self, pids: Sequence[int]) -> Readings:
        """Return the readings of now, or none before their time."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return {}, {}
        self._next_s = now_s + self._every_s
        if now_s >= self._search_s:
            self._search_s = now_s + _SEARCH_EVERY_S
            self._places = find(self._root)
        places = self._places
        zones = [(_text(zone.temperature), zone.trip_milli_c) for zone in places.zones]
        values: dict[str, float | int | None] = {
            "hygiene.temperature_max_c": hottest_c(text for text, _ in zones if text is not None),
            "hygiene.trip_margin_c": trip_margin_c(zones),
            "hygiene.throttle_count": self._total(places.throttles),
            "hygiene.overcurrent_count": self._total(places.overcurrents),
            "hygiene.cooling_state": strongest(_texts(places.coolings)),
            "hygiene.load_1min": _from(self._root / "proc/loadavg", load_1min),
            "hygiene.power_saver": self._power_saver(),
            "hygiene.on_battery": on_battery(read_supplies(self._root)),
        }
        box, foreign, why = self._foreign.look(pids)
        values["hygiene.cpu_cores"] = None if box is None else box.cores
        values["hygiene.foreign_cpu_cores"] = foreign
        reasons = {**REASONS, "hygiene.foreign_cpu_cores": why}
        return values, {name: reasons[name] for name, value in values.items() if value is None}

    def close(self) -> None:
        """Nothing is held between readings."""

    def facts(self) -> Mapping[str, object]:
        """Return the settings in words, for environment.json; None where there is no such file."""
        return settings(self._root)

    def _total(self, counters: Iterable[Path]) -> int | None:
        """Return the sum of counters, each at its last known count.

        A core that is taken off line takes its counter along; that it comes back is no event.
        """
        known = []
        for path in counters:
            count = _integer(_text(path) or "")
            if count is not None:
                self._counts[path] = count
            if path in self._counts:
                known.append(self._counts[path])
        return sum(known) if known else None

    def _power_saver(self) -> int | None:
        """Return 1 when a setting holds the CPU back, 0 when none does, None when none is shown."""
        driver = min(_texts(self._places.drivers), default=None)
        profile = _text(self._root / "sys/firmware/acpi/platform_profile")
        return power_saver(_texts(self._places.governors), driver, profile)


@dataclass(frozen=True)
class Zone:
    """A thermal zone: where its temperature stands, and the lowest at which the kernel steps in."""

    temperature: Path
    trip_milli_c: int | None


@dataclass(frozen=True)
class Places:
    """The files that this box has."""

    zones: tuple[Zone, ...] = ()
    throttles: tuple[Path, ...] = ()
    overcurrents: tuple[Path, ...] = ()
    coolings: tuple[Path, ...] = ()
    governors: tuple[Path, ...] = ()
    drivers: tuple[Path, ...] = ()


def find(root: Path) -> Places:
    """Look for everything that may be read."""
    cpus, thermal = root / "sys/devices/system/cpu", root / "sys/class/thermal"
    # Cores that share a policy are one place; old kernels show them by core only.
    policies = sorted(cpus.glob("cpufreq/policy*")) or sorted(cpus.glob("cpu[0-9]*/cpufreq"))
    return Places(
        zones=tuple(map(_zone, sorted(thermal.glob("thermal_zone*/temp")))),
        throttles=tuple(sorted(cpus.glob("cpu[0-9]*/thermal_throttle/*_throttle_count"))),
        overcurrents=tuple(sorted((root / "sys/class/hwmon").glob("hwmon*/oc*_event_cnt"))),
        coolings=tuple(
            folder / "cur_state"
            for folder in sorted(thermal.glob("cooling_device*"))
            if not _NO_BRAKE.search(_text(folder / "type") or "")
        ),
        governors=tuple(policy / "scaling_governor" for policy in policies),
        drivers=tuple(policy / "scaling_driver" for policy in policies),
    )


def _zone(temperature: Path) -> Zone:
    trips = [
        _integer(_text(kind.with_name(kind.name.replace("_type", "_temp"))) or "")
        for kind in temperature.parent.glob("trip_point_*_type")
        if _text(kind) in _STEPS_IN
    ]
    return Zone(temperature, min(filter(believable, trips), default=None))


# ------------------------------------------------------------------------------------------ parsing

REASONS = {
    "hygiene.temperature_max_c": "no thermal zone can be read here",
    "hygiene.trip_margin_c": "no thermal zone says at which temperature the kernel steps in",
    "hygiene.throttle_count": "this CPU shows no throttle counters",
    "hygiene.overcurrent_count": "this board shows no over-current counters",
    "hygiene.cooling_state": "the kernel shows nothing that it could slow down to cool the box",
    "hygiene.load_1min": "/proc/loadavg could not be read",
    "hygiene.power_saver": "the kernel shows neither a CPU governor nor a platform profile",
    "hygiene.on_battery": "the kernel shows no power supply",
    "hygiene.cpu_cores": "/proc/stat could not be read",
}
"""Why a value is None, by its name; the use by others has reasons of its own."""


def hottest_c(texts: Iterable[str]) -> float | None:
    """Return the highest temperature, in degrees Celsius; None when no zone tells one.

    Zones that are switched off report nothing, or values far outside of what a chip survives.
    """
    return max((m / 1000 for m in map(_integer, texts) if believable(m)), default=None)


def trip_margin_c(zones: Iterable[tuple[str | None, int | None]]) -> float | None:
    """Return the least distance to a trip point, in degrees; negative when one was passed.

    Each zone is its temperature as text and its lowest trip point in thousandths of a degree; None
    when no zone has both.
    """
    margins = [
        (trip - milli) / 1000
        for text, trip in zones
        if trip is not None and believable(milli := _integer(text or ""))
    ]
    return min(margins, default=None)


def strongest(texts: Iterable[str]) -> int | None:
    """Return the highest state of the cooling devices; one that is idle may say -1, which is 0."""
    states = [state for state in map(_integer, texts) if state is not None]
    return max(0, *states) if states else None


def load_1min(text: str) -> float | None:
    """Return the load average over the last minute."""
    try:
        return float(text.split(maxsplit=1)[0])
    except (ValueError, IndexError):
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


def on_battery(supplies: Iterable[Supply]) -> int | None:
    """Return 1 when a battery of the box is being drained, 0 when none is, None without supplies.

    Batteries of mice and the like are not the box's.
    """
    own = [supply for supply in supplies if supply.scope != "Device"]
    batteries = [supply for supply in own if supply.kind == "Battery"]
    if not batteries and not any(supply.kind == "Mains" for supply in own):
        return None
    return int(any(battery.status == "Discharging" for battery in batteries))


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
