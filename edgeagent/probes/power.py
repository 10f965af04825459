"""How much power do the box's own sensors say it takes?

Three sources, each as the board has it: rails behind an INA3221 (Jetson), the input behind an
INA238 (Thor's carrier board), and the processor's energy counter (RAPL, Intel and AMD). A rail of
the module is not the system: `power.total_w` is the input rail where there is one, else the sum of
the rails that feed the module, and `facts` says which. NVML's power is `gpu.*`, not here.

One INA3221 is behind I2C and takes some milliseconds a rail, so rails are read at most four times a
second; a reading in between has no value at all.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgeagent.ports import Readings
from edgeagent.probes.sysfs import Absent, Files, Number, readings


@dataclass(frozen=True)
class Pace:
    """How often what is read, in seconds."""

    every_s: float = 0.25
    look_s: float = 5.0
    """From one search for the sensors to the next."""


class PowerProbe:
    """See `Probe`. Not for use by two threads at once."""

    name = "power"

    def __init__(
        self,
        root: Path = Path("/"),
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files = Files(root)
        self._pace = pace if pace is not None else Pace()
        self._clock = clock
        self._next_s = self._look_next_s = clock()
        self._rails: tuple[Rail, ...] = ()
        self._zones: dict[str, Zone] = {}

    def read(self, pids: Sequence[int]) -> Readings:  # noqa: ARG002  # because every probe is asked alike
        """Return the readings of now, or none before their time; `pids` does not matter."""
        now_s = self._clock()
        if now_s < self._next_s:
            return {}, {}
        self._next_s = now_s + self._pace.every_s
        self._look_again(now_s)
        if not self._rails and not self._zones:
            return readings({"power.total_w": NO_SENSORS})
        found: dict[str, float | Absent] = {}
        if self._rails:
            rails = {rail: self._watts(rail) for rail in self._rails}
            found.update({f"power.{rail.label}_w": watts for rail, watts in rails.items()})
            found["power.total_w"] = total_w(rails)
        if self._zones:
            found["power.rapl_j"] = self._joules()
        return readings(found)

    def close(self) -> None:
        """Nothing is held between readings."""

    def facts(self) -> Mapping[str, object]:
        """Return the rails, what the total is made of, and what feeds the box."""
        self._look_again(self._clock())
        return {
            "rails": {rail.label: f"{rail.chip} at {rail.device}" for rail in self._rails},
            "total": what_total_is(self._rails),
            "rapl_zones": [zone.name for zone in self._zones.values()],
            "mains_connected": self._mains(),
            "battery": self._battery(),
        }

    # -- rails

    def _watts(self, rail: Rail) -> float | Absent:
        if rail.power is not None:
            microwatts = self._files.number(rail.power)
            return microwatts if isinstance(microwatts, Absent) else microwatts / 1e6
        return watts(self._files.number(rail.voltage), self._files.number(rail.current))

    # -- energy counter

    def _joules(self) -> float | Absent:
        """Return what all packages have used; one that cannot be read spoils the sum."""
        for path, zone in self._zones.items():
            read = self._files.number(f"{path}/energy_uj")
            if isinstance(read, Absent):
                return read
            self._zones[path] = counted(zone, read)
        return sum(zone.total_uj for zone in self._zones.values()) / 1e6

    # -- where it all is

    def _look_again(self, now_s: float) -> None:
        if now_s < self._look_next_s:
            return
        self._look_next_s = now_s + self._pace.look_s
        self._rails = find_rails(self._files)
        zones = find_zones(self._files)
        self._zones = {path: self._zones.get(path, zone) for path, zone in zones.items()}

    # -- what feeds the box

    def _supplies(self, kind: str) -> list[str]:
        folders = self._files.find("sys/class/power_supply/*")
        return [
            folder
            for folder in folders
            if not folder.rpartition("/")[2].startswith(_USB_SUPPLY)
            and self._files.word(f"{folder}/type") == kind
            and self._files.word(f"{folder}/scope") != "Device"  # a mouse has a battery too
        ]

    def _mains(self) -> bool | None:
        told = [self._files.word(f"{folder}/online") for folder in self._supplies("Mains")]
        return "1" in told if any(word is not None for word in told) else None

    def _battery(self) -> str | None:
        told = (self._files.word(f"{folder}/status") for folder in self._supplies("Battery"))
        return next((word.lower() for word in told if word is not None), None)


_USB_SUPPLY = "ucsi-source-psy"
"""What a USB-C partner has been promised: no measurement."""


# ------------------------------------------------------------------------------------------ rails


@dataclass(frozen=True)
class Rail:
    """One supply line with a sensor; paths are below the root."""

    label: str
    chip: str
    device: str
    voltage: str = ""
    """Of a file in mV."""
    current: str = ""
    """Of a file in mA."""
    power: str | None = None
    """Of a file in µW, where the chip multiplies itself."""


_INPUTS = {
    "VIN": "the input of the whole board",
    "VDD_IN": "the input of the module; what else the carrier board feeds is not in it",
    "POM_5V_IN": "the input of the module; what else the carrier board feeds is not in it",
}
"""The widest first."""
_FED_BY = {"VDDQ_VDD2_1V8AO": "VIN_SYS_5V0"}
"""Memory's rail hangs on the 5 V rail of AGX Orin: summed up, it would count twice."""
_CHANNELS = (1, 2, 3)
"""in4 to in7 of an INA3221 are voltages over its shunts."""
_UNUSED = frozenset({"NC", ""})

NO_SENSORS = Absent("this box shows neither power rails nor a counter of the processor's energy")


def find_rails(files: Files) -> tuple[Rail, ...]:
    """Look for every rail that is connected; their labels are unique."""
    rails: list[Rail] = []
    for folder in files.find("sys/class/hwmon/hwmon*"):
        chip = files.word(f"{folder}/name") or ""
        if chip == "ina3221":
            rails += _ina3221(files, folder)
        elif chip == "ina238":
            rails += _ina238(files, folder)
    return tuple(unique(rails))


def _ina3221(files: Files, folder: str) -> Iterable[Rail]:
    for channel in _CHANNELS:
        label = files.word(f"{folder}/in{channel}_label") or ""
        if label in _UNUSED or files.word(f"{folder}/in{channel}_enable") == "0":
            continue
        yield Rail(
            name_of(label),
            "ina3221",
            _device(files, folder),
            voltage=f"{folder}/in{channel}_input",
            current=f"{folder}/curr{channel}_input",
        )


def _ina238(files: Files, folder: str) -> Iterable[Rail]:
    power = f"{folder}/power1_input"
    if files.has(power):
        label = files.word(f"{folder}/power1_label") or "VIN"
        yield Rail(name_of(label), "ina238", _device(files, folder), power=power)


def _device(files: Files, folder: str) -> str:
    """Return the sensor's address, such as 1-0040: it survives a restart, hwmon3 does not."""
    return files.target(f"{folder}/device") or folder.rpartition("/")[2]


def name_of(label: str) -> str:
    """Return a label in the letters of a value's name."""
    return re.sub(r"[^A-Za-z0-9]+", "_", label).strip("_") or "rail"


def unique(rails: Iterable[Rail]) -> list[Rail]:
    """Return the rails with a number behind each label that was there before."""
    seen: dict[str, int] = {}
    named = []
    for rail in rails:
        seen[rail.label] = count = seen.get(rail.label, 0) + 1
        named.append(rail if count == 1 else replace(rail, label=f"{rail.label}_{count}"))
    return named


def watts(millivolts: Number, milliamperes: Number) -> float | Absent:
    """Return the power of a rail."""
    if isinstance(millivolts, Absent):
        return millivolts
    if isinstance(milliamperes, Absent):
        return milliamperes
    return millivolts * milliamperes / 1e6


def input_rail(rails: Iterable[Rail]) -> Rail | None:
    """Return the rail that everything else hangs on, None when there is no sensor on it."""
    by_label = {rail.label: rail for rail in rails}
    return next((by_label[label] for label in _INPUTS if label in by_label), None)


def summed(rails: Sequence[Rail]) -> tuple[Rail, ...]:
    """Return the rails whose sum is the module's, without those that hang on another one."""
    labels = {rail.label for rail in rails}
    return tuple(rail for rail in rails if _FED_BY.get(rail.label) not in labels)


def total_w(found: Mapping[Rail, float | Absent]) -> float | Absent:
    """Return the power of the input rail, or the sum of the module's; a part of it is no total."""
    rails = tuple(found)
    single = input_rail(rails)
    wanted = [found[rail] for rail in ((single,) if single is not None else summed(rails))]
    refused = next((one for one in wanted if isinstance(one, Absent)), None)
    if refused is not None:
        return refused
    return sum(one for one in wanted if not isinstance(one, Absent))


def what_total_is(rails: Sequence[Rail]) -> str | None:
    """Return in words what `power.total_w` is; None without rails."""
    single = input_rail(rails)
    if single is not None:
        return f"{single.label}: {_INPUTS[single.label]}"
    if not rails:
        return None
    parts = " + ".join(rail.label for rail in summed(rails))
    return f"{parts}: rails of the module; the carrier board is not in it"


# ---------------------------------------------------------------------------------- energy counter


@dataclass(frozen=True)
class Zone:
    """A processor package's counter, which begins again at 0 after `range_uj`."""

    name: str
    range_uj: int
    last_uj: int | None = None
    total_uj: int = 0


_PACKAGE = re.compile(r"intel-rapl:[0-9]+")
"""Whole zones: what is below one (cores, graphics) is in it, and intel-rapl-mmio is the same again.
AMD's processors show themselves under this name too."""


def find_zones(files: Files) -> dict[str, Zone]:
    """Look for the packages; `psys`, which holds them again, is left out."""
    zones = {}
    for path in files.find("sys/class/powercap/intel-rapl:*"):
        name = files.word(f"{path}/name") or ""
        range_uj = files.number(f"{path}/max_energy_range_uj")
        if _PACKAGE.fullmatch(path.rpartition("/")[2]) and name.startswith("package"):
            zones[path] = Zone(name, 0 if isinstance(range_uj, Absent) else range_uj)
    return zones


def counted(zone: Zone, now_uj: int) -> Zone:
    """Return the zone after a reading of its counter, which may have begun again once."""
    if zone.last_uj is None:
        return replace(zone, last_uj=now_uj, total_uj=now_uj)
    step_uj = now_uj - zone.last_uj
    if step_uj < 0:
        step_uj += zone.range_uj + 1
    return replace(zone, last_uj=now_uj, total_uj=zone.total_uj + max(0, step_uj))
