"""How is this box set up, as far as it decides how fast it is?

Settings in words, read once a run for environment.json and `doctor`: what the kernel does with
frequencies, memory and time, what the box is fed by, how warm it is. Nothing is changed. What this
kind of box does not show is None.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

_TOO_HOT_MILLI_C = 150_000
_UNSYNCHRONISED = 0x40
_CLOCK_ERROR = 5


@dataclass(frozen=True)
class Supply:
    """One entry of /sys/class/power_supply, in the kernel's words."""

    name: str
    kind: str | None
    status: str | None
    online: str | None
    capacity: str | None
    scope: str | None
    """"Device" for the battery of a mouse and the like."""


def settings(root: Path = Path("/")) -> Mapping[str, object]:
    """Return every setting by name."""
    cpus = root / "sys/devices/system/cpu"
    policies = cpu_policies(cpus)
    uptime = _words(_text(root / "proc/uptime"))
    load = _words(_text(root / "proc/loadavg"))
    return {
        "cpu_governors": sorted({str(p["governor"]) for p in policies if p["governor"]}) or None,
        "cpu_frequency_driver": min(
            (str(p["driver"]) for p in policies if p["driver"]), default=None
        ),
        "cpu_policies": policies or None,
        "platform_profile": _text(root / "sys/firmware/acpi/platform_profile"),
        "boost": _text(cpus / "cpufreq/boost"),
        "no_turbo": _text(cpus / "intel_pstate/no_turbo"),
        "power_supplies": [
            {"name": s.name, "type": s.kind, "status": s.status, "online": s.online}
            | {"capacity_percent": s.capacity}
            for s in read_supplies(root)
            if s.scope != "Device"
        ]
        or None,
        "thermal_zones_c": thermal_zones_c(root) or None,
        "transparent_hugepages": chosen(_text(root / "sys/kernel/mm/transparent_hugepage/enabled")),
        "page_size_bytes": os.sysconf("SC_PAGE_SIZE"),
        "swap_devices": swaps(_text(root / "proc/swaps")),
        "uptime_s": _number(uptime[0]) if uptime else None,
        "load": [_number(word) for word in load[:3]] or None,
        "clock_source": _text(
            root / "sys/devices/system/clocksource/clocksource0/current_clocksource"
        ),
        # The state of the clock is the running kernel's, whatever a recorded tree says.
        **(clock_state() if root == Path("/") else _NO_CLOCK_STATE),
    }


def cpu_policies(cpus: Path) -> Sequence[Mapping[str, object]]:
    """Return governor, driver and limits of every group of cores that is clocked together."""
    folders = sorted(cpus.glob("cpufreq/policy*")) or sorted(cpus.glob("cpu[0-9]*/cpufreq"))
    return [
        {
            "cores": _text(folder / "related_cpus"),
            "governor": _text(folder / "scaling_governor"),
            "driver": _text(folder / "scaling_driver"),
            "min_hz": _hertz(folder / "scaling_min_freq"),
            "max_hz": _hertz(folder / "scaling_max_freq"),
            "hardware_max_hz": _hertz(folder / "cpuinfo_max_freq"),
        }
        for folder in folders
    ]


def thermal_zones_c(root: Path) -> Mapping[str, float]:
    """Return the temperature of every zone that can be read, by its type; the hottest of a type."""
    found: dict[str, float] = {}
    for zone in sorted((root / "sys/class/thermal").glob("thermal_zone*")):
        milli = _integer(_text(zone / "temp"))
        if believable(milli):
            kind = _text(zone / "type") or zone.name
            found[kind] = max(milli / 1000, found.get(kind, milli / 1000))
    return found


def read_supplies(root: Path) -> Sequence[Supply]:
    """Return what the box is fed by."""
    return [
        Supply(
            folder.name,
            kind=_text(folder / "type"),
            status=_text(folder / "status"),
            online=_text(folder / "online"),
            capacity=_text(folder / "capacity"),
            scope=_text(folder / "scope"),
        )
        for folder in sorted((root / "sys/class/power_supply").glob("*"))
    ]


# ------------------------------------------------------------------------------------------ parsing


def believable(milli_c: int | None) -> TypeGuard[int]:
    """Whether a zone tells a temperature; one that is switched off says 0, or -274 degrees."""
    return milli_c is not None and 0 < milli_c < _TOO_HOT_MILLI_C


def chosen(text: str | None) -> str | None:
    """Return the word in brackets: `always [madvise] never` is madvise."""
    found = re.search(r"\[(\S+)\]", text or "")
    return found.group(1) if found else None


def swaps(text: str | None) -> list[Mapping[str, object]] | None:
    """Return the devices of /proc/swaps; empty when there is no swap, None when it is not shown."""
    return None if text is None else list(_swaps(text))


def _swaps(text: str) -> Iterator[Mapping[str, object]]:
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) == 5 and words[2].isdecimal() and words[3].isdecimal():  # noqa: PLR2004  # because name, type, size, used and priority are five
            yield {
                "name": words[0],
                "type": words[1],
                "size_bytes": int(words[2]) * 1024,
                "used_bytes": int(words[3]) * 1024,
            }


def _words(text: str | None) -> list[str]:
    return (text or "").split()


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _integer(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None


# ------------------------------------------------------------------------------------------ reading

_NO_CLOCK_STATE: Mapping[str, object] = {"clock_synchronised": None, "clock_error_s": None}


def clock_state() -> Mapping[str, object]:
    """Return whether the kernel takes its clock for synchronised, and its estimate of the error.

    Asked of the kernel itself (adjtimex, which only reads here), so that no tool is needed.
    """
    # Here, because it is needed once a run and takes memory that sampling can do without.
    import ctypes

    class Timex(ctypes.Structure):
        """The head of struct timex; the kernel writes more than is read here."""

        _fields_ = (
            ("modes", ctypes.c_uint),
            ("offset", ctypes.c_long),
            ("freq", ctypes.c_long),
            ("maxerror", ctypes.c_long),
            ("esterror", ctypes.c_long),
            ("status", ctypes.c_int),
            ("rest", ctypes.c_char * 256),
        )

    asked = Timex()
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.byref(asked))
    except AttributeError:
        return _NO_CLOCK_STATE
    if state < 0:
        return _NO_CLOCK_STATE
    synchronised = state != _CLOCK_ERROR and not asked.status & _UNSYNCHRONISED
    error_s = asked.esterror / 1e6 if synchronised else None
    return {"clock_synchronised": synchronised, "clock_error_s": error_s}


def _hertz(path: Path) -> int | None:
    kilohertz = _integer(_text(path))
    return None if kilohertz is None else kilohertz * 1000


def _text(path: Path) -> str | None:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return None
