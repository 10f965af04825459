"""What do people want to see of a reading, and of a check-up?

Both take the documents of `monitor` and `doctor` as plain JSON values. A reading is one line a
group; what is not known stands below, gathered by its reason. A check-up has its worst first.
"""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.table import Table

_WITHOUT_TERMINAL = (100, 24)
_GIB = 1 << 30
_MIB = 1 << 20
_KIB = 1 << 10

_ORDER = ("fault", "warning", "missing", "unasked", "ok")
_WORDS = {
    "fault": "failed", "warning": "note", "missing": "absent", "unasked": "not asked", "ok": "ok",
}  # fmt: skip
_STYLE = {
    "fault": "bold red", "warning": "yellow", "missing": "dim", "unasked": "dim", "ok": "green",
}  # fmt: skip

# ------------------------------------------------------------------------------------------- doctor


def show_doctor(document: Mapping[str, object], stream: TextIO) -> None:
    """Print a check-up to `stream`."""
    _show(stream, lambda console: _print_doctor(console, document))


def render_doctor(document: Mapping[str, object], width: int) -> str:
    """Return what `show_doctor` prints, without colour."""
    return _rendered(width, lambda console: _print_doctor(console, document))


def _print_doctor(console: Console, document: Mapping[str, object]) -> None:
    from rich.text import Text

    checks = sorted(_objects(document.get("checks")), key=_rank)
    console.print()
    console.print(Text(_where(document), style="bold"))
    console.print(Text(_asked(document), style="dim"), end="")
    console.print()
    console.print(_check_table(checks), highlight=False)
    console.print()
    lacking = unknown(_read_by_probes(document))
    if lacking:
        console.print(_gaps(lacking))
        console.print()
    console.print(Text(verdict(checks)))


def _read_by_probes(document: Mapping[str, object]) -> Mapping[str, object]:
    """Return what the probes of a check-up read, as a reading has it."""
    probes = _objects(document.get("probes"))
    return {
        part: {name: value for one in probes for name, value in _object(one.get(part)).items()}
        for part in ("values", "absent")
    }


def _gaps(lacking: Iterable[str]) -> RenderableType:
    from rich.console import Group as Stack
    from rich.table import Table
    from rich.text import Text

    gaps = Table.grid(padding=(0, 1, 0, 0))
    gaps.add_column(no_wrap=True)
    gaps.add_column(overflow="fold", style="dim")
    for line in lacking:
        gaps.add_row(" ", line)
    return Stack(Text(" not known here", style="bold"), gaps)


def verdict(checks: Sequence[Mapping[str, object]]) -> str:
    """Return the last line: how many faults and warnings there are."""
    counts = {state: sum(check.get("state") == state for check in checks) for state in _ORDER}
    left = f" {_count(counts['unasked'], 'thing')} could not be asked." if counts["unasked"] else ""
    notes = _count(counts["warning"], "note")
    if counts["fault"]:
        return f"{counts['fault']} failed, {notes}.{left}"
    if counts["warning"]:
        return f"Nothing failed, {notes}.{left}"
    return f"Nothing failed: this box is fit to measure with.{left}"


def _asked(document: Mapping[str, object]) -> str:
    """Return in whose rights it was looked, and with which configuration; empty if not told."""
    asked = _object(document.get("asked"))
    by, service = _object(asked.get("by")), _object(asked.get("service"))
    if not by:
        return ""
    words = f" asked by {by.get('user')}"
    if service:
        words += f", the service's user is {service.get('user')}"
    root = asked.get("root")
    return words + (f", looking below {root}" if root != "/" else "") + "\n"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _rank(check: Mapping[str, object]) -> int:
    state = _text(check.get("state"))
    return _ORDER.index(state) if state in _ORDER else 0


def _check_table(checks: Iterable[Mapping[str, object]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for check in checks:
        state = _text(check.get("state"))
        quiet = state in ("missing", "unasked")
        said = Text(_text(check.get("text")), style="dim" if quiet else "")
        if check.get("hint"):
            said.append(f"\n→ {check['hint']}", style="" if state == "fault" else "dim")
        word = Text(f" {_WORDS.get(state, state)}", style=_STYLE.get(state, ""))
        grid.add_row(word, _text(check.get("name")), said)
    return grid


# ------------------------------------------------------------------------------------------ monitor


def show_reading(document: Mapping[str, object], stream: TextIO) -> None:
    """Print a reading to `stream`."""
    _show(stream, lambda console: _print_reading(console, document))


def render_reading(document: Mapping[str, object], width: int) -> str:
    """Return what `show_reading` prints, without colour."""
    return _rendered(width, lambda console: _print_reading(console, document))


def _print_reading(console: Console, document: Mapping[str, object]) -> None:
    console.print()
    console.print(_reading(document, console.width), highlight=False)


class LiveReadings:
    """A reading that is refreshed in its place; a context manager."""

    def __init__(self, stream: TextIO) -> None:
        from rich.live import Live

        self._live: Live = Live(
            console=_console(stream), auto_refresh=False, vertical_overflow="crop"
        )

    def update(self, document: Mapping[str, object]) -> None:
        """Show this reading from now on."""
        self._live.update(_reading(document, self._live.console.width), refresh=True)

    def __enter__(self) -> LiveReadings:
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.__exit__(kind, error, trace)


def _reading(document: Mapping[str, object], width: int) -> RenderableType:
    from rich.console import Group as Stack
    from rich.table import Table
    from rich.text import Text

    found = groups(document)
    margin = max((len(group.title) for group in found), default=0) + 4
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column(no_wrap=True)
    for group in found:
        grid.add_row(f" {group.title}", Text("\n".join(flowed(group.pairs, width - margin))))
    at = _text(document.get("at"))[11:19]
    title = Text(f"{_where(document)}, {at} UTC", style="bold", overflow="fold")
    parts: list[RenderableType] = [title, Text(""), grid]
    lacking = unknown(document)
    if lacking:
        parts += [Text(""), _gaps(lacking)]
    return Stack(*parts)


def flowed(pairs: Iterable[str], width: int) -> tuple[str, ...]:
    """Return lines of at most `width` columns in which no pair is broken, as long as it fits."""
    lines: list[str] = []
    for pair in pairs:
        longer = f"{lines[-1]} · {pair}" if lines else pair
        if lines and len(longer) > width:
            lines.append(pair)
        else:
            lines[-1:] = [longer]
    return tuple(lines)


@dataclass(frozen=True)
class Group:
    """A line of readings that belong together."""

    title: str
    pairs: tuple[str, ...]


_GROUPS: Mapping[str, Mapping[str, str]] = {
    "host memory": {
        "host.used_bytes": "used",
        "host.available_bytes": "available",
        "host.free_bytes": "free",
        "host.swap_used_bytes": "swap",
        "host.zram_bytes": "compressed swap",
    },
    "engine memory": {
        "engine.processes": "processes",
        "engine.anon_bytes": "its own",
        "engine.mapped_bytes": "mapped files",
        "engine.pss_anon_bytes": "own, shared pages once",
        "engine.pss_file_bytes": "files, shared pages once",
        "cgroup.engine_current_bytes": "charged to its cgroup",
        "cgroup.limit_bytes": "limit",
    },
    "unified memory": {
        "nvmap.used_bytes": "GPU buffers of all",
        "nvmap.engine_bytes": "of the engine",
    },
    "GPU memory": {
        "drm.engine_bytes": "engine",
        "drm.vram_used_bytes": "VRAM",
        "drm.gtt_used_bytes": "shared with the CPU",
        "drm.foreign_processes": "other processes",
    },
    "board": {
        "jetson.gpu_load_fraction": "GPU load",
        "jetson.gpu_frequency_hz": "GPU",
        "jetson.emc_frequency_hz": "memory clock",
        "jetson.clocks_locked": "clocks locked",
        "jetson.overcurrent_count": "over-current since boot",
    },
    "temperature": {
        "hygiene.temperature_max_c": "hottest",
        "hygiene.trip_margin_c": "below its limit by",
        "hygiene.cooling_state": "cooling state",
        "hygiene.throttle_count": "throttled since boot",
    },
    "others": {
        "hygiene.foreign_cpu_cores": "CPU",
        "hygiene.load_1min": "load",
        "gpu.foreign_processes": "GPU processes",
    },
    "settings": {
        "hygiene.power_saver": "saving power",
        "hygiene.on_battery": "on battery",
    },
}
"""What is shown in which line under which word; a name that is not here has a line of its kind."""

_LINES = (
    "host memory", "unified memory", "GPU memory", "engines", "engine memory", "board", "power",
    "temperature", "others", "settings", "stalls", "paging",
)  # fmt: skip

_STALLS = {
    "pressure.cpu_some_s": "CPU",
    "pressure.memory_some_s": "memory",
    "pressure.memory_full_s": "memory, everybody",
    "pressure.io_some_s": "disk",
}
_PAGING = {
    "vm.swap_in_pages": "swapped in",
    "vm.swap_out_pages": "swapped out",
    "vm.refault_file": "file pages read again",
}
"""Counters, of which people want to see the change; of paging only where there is any."""

_GPU_WORDS = {
    "engine_bytes": "engine",
    "used_bytes": "memory",
    "reserved_bytes": "driver's own",
    "utilisation_fraction": "busy",
    "sm_clock_hz": "",
    "memory_clock_hz": "memory at",
    "power_w": "",
    "temperature_c": "",
    "throttle_reasons": "slowed by",
    "rows_dropped": "rows dropped",
}


def groups(document: Mapping[str, object]) -> tuple[Group, ...]:
    """Return what is known, one group a line, in the order in which people ask."""
    values = _numbers(document.get("values"))
    rates = _numbers(document.get("rates"))
    lines = {title: _pairs(words, values) for title, words in _GROUPS.items()}
    lines["engines"] = tuple(map(_engine, _objects(document.get("engines"))))
    lines["power"] = (*_power_mode(document, values), *_power(values, rates))
    lines["stalls"] = tuple(
        f"{word} {100 * rates[name]:.0f} %" for name, word in _STALLS.items() if name in rates
    )
    lines["paging"] = tuple(
        f"{word} {rates[name]:.0f} pages/s" for name, word in _PAGING.items() if rates.get(name)
    )
    found = [Group(title, lines[title]) for title in _LINES if lines[title]]
    gpus = _gpus(document, values)
    return (*found[:1], *gpus, *found[1:])


_ONLY_IF_ANY = ("zram_bytes", "rows_dropped", "overcurrent_count", "throttle_count")
"""Of these, none is what everybody expects."""


def _pairs(words: Mapping[str, str], values: Mapping[str, float]) -> tuple[str, ...]:
    """Return `word amount` for each name that is known; what is used is told of how much."""
    found = []
    for name, word in words.items():
        if name in values and not (name.endswith(_ONLY_IF_ANY) and not values[name]):
            whole = name.replace("used_bytes", "total_bytes")
            of = f" of {amount(whole, values[whole])}" if name != whole and whole in values else ""
            found.append(f"{word} {amount(name, values[name])}{of}".strip())
    return tuple(found)


def _engine(engine: Mapping[str, object]) -> str:
    words = [_text(engine.get("kind")), f"pid {_text(engine.get('pid'))}"]
    if engine.get("port") is not None:
        words.append(f"port {engine['port']}")
    if engine.get("model") is not None:
        words.append(_text(engine["model"]).rstrip("/").rpartition("/")[2])
    return " ".join(words)


def _gpus(document: Mapping[str, object], values: Mapping[str, float]) -> list[Group]:
    """Return a line for each NVIDIA GPU, by its name where that is known."""
    names = _gpu_names(document)
    uuids = dict.fromkeys(
        name.split(".")[1] for name in values if name.startswith("gpu.") and name.count(".") > 1
    )
    found = []
    for uuid in uuids:
        words = {f"gpu.{uuid}.{part}": word for part, word in _GPU_WORDS.items()}
        pairs = _pairs(words, values)
        found.append(Group("NVIDIA GPU", (names.get(uuid, uuid), *pairs)))
    return found


def _gpu_names(document: Mapping[str, object]) -> Mapping[str, str]:
    devices = _object(_object(document.get("facts")).get("gpu")).get("devices")
    return {
        _text(device.get("uuid")): _text(device.get("name"))
        for device in _objects(devices)
        if device.get("name")
    }


def _power_mode(document: Mapping[str, object], values: Mapping[str, float]) -> tuple[str, ...]:
    named = _object(_object(document.get("facts")).get("jetson")).get("power_mode")
    number = values.get("jetson.power_mode")
    return () if number is None else (f"mode {named or format(number, '.0f')}",)


def _power(values: Mapping[str, float], rates: Mapping[str, float]) -> tuple[str, ...]:
    rails = [
        f"{name[len('power.') : -len('_w')].replace('_', ' ')} {amount(name, value)}"
        for name, value in values.items()
        if name.startswith("power.") and name.endswith("_w")
    ]
    if "power.rapl_j" in rates:
        rails.append(f"processor {rates['power.rapl_j']:.1f} W")
    return tuple(rails)


# ------------------------------------------------------------------------------- what is not known


def unknown(document: Mapping[str, object]) -> tuple[str, ...]:
    """Return one sentence for each reason why something is not known, with what it hides."""
    known = {_source(name) for name in _numbers(document.get("values"))}
    by_reason: dict[str, dict[str, list[str]]] = {}
    for name, reason in _object(document.get("absent")).items():
        source = _source(name)
        hidden = by_reason.setdefault(_text(reason), {}).setdefault(source, [])
        if source in known:
            hidden.append(_quantity(name))
    return tuple(
        f"{'; '.join(f'{source} {_some(names)}'.strip() for source, names in hidden.items())}: "
        f"{reason}"
        for reason, hidden in by_reason.items()
    )


def _some(names: Iterable[str], shown: int = 4) -> str:
    distinct = list(dict.fromkeys(names))
    more = f" and {len(distinct) - shown} more" if len(distinct) > shown else ""
    return ", ".join(distinct[:shown]) + more


_SOURCES = {
    "gpu": "NVIDIA GPU",
    "drm": "GPU",
    "engine": "engine's memory",
    "nvmap": "GPU buffers",
    "hygiene": "",
    "jetson": "board",
}
_UNIT = re.compile(r"_(bytes|c|w|s|j|hz|fraction|count|pages|cores|1min)$")


def _source(name: str) -> str:
    first = name.partition(".")[0]
    return _SOURCES.get(first, first)


def _quantity(name: str) -> str:
    """Return a value's name as people say it: not by device, without its unit."""
    return _UNIT.sub("", name.rpartition(".")[2]).replace("_", " ")


# ------------------------------------------------------------------------------------------ wording

_YES_NO = frozenset({"hygiene.power_saver", "hygiene.on_battery", "jetson.clocks_locked"})
_THROTTLES = (
    (0x04, "power limit"),
    (0x08, "hardware"),
    (0x20, "heat (driver)"),
    (0x40, "heat (hardware)"),
    (0x80, "power brake"),
)
"""Bits of NVML's clock event reasons that mean less speed than the clocks could give."""


def amount(name: str, value: float) -> str:
    """Return a value with its unit, which its name tells."""
    if name in _YES_NO:
        return "yes" if value else "no"
    if name.endswith(".throttle_reasons"):
        bits = int(value)
        return ", ".join(word for bit, word in _THROTTLES if bits & bit) or "nothing"
    for ending, wording in _UNITS.items():
        if name.endswith(ending):
            return wording(value)
    return f"{value:g}" if value != round(value) else f"{value:.0f}"


def _size(amount_bytes: float) -> str:
    if amount_bytes >= _GIB:
        return f"{amount_bytes / _GIB:.1f} GiB"
    if amount_bytes >= _MIB:
        return f"{amount_bytes / _MIB:.0f} MiB"
    return f"{amount_bytes / _KIB:.0f} KiB" if amount_bytes else "0"


def _frequency(hertz: float) -> str:
    return f"{hertz / 1e9:.2f} GHz" if hertz >= 1e9 else f"{hertz / 1e6:.0f} MHz"  # noqa: PLR2004  # because a GHz is that


_UNITS: Mapping[str, Callable[[float], str]] = {
    "_bytes": _size,
    "_fraction": lambda value: f"{100 * value:.0f} %",
    "_hz": _frequency,
    "_w": lambda value: f"{value:.1f} W",
    "_c": lambda value: f"{value:.0f} °C",
    "_cores": lambda value: f"{value:.1f} cores" if value != round(value) else f"{value:.0f} cores",
}


def _where(document: Mapping[str, object]) -> str:
    """Return which box this is: its name, its class, and what it is called by its maker."""
    host = _object(document.get("host"))
    words = [host.get("node"), host.get("class"), host.get("board") or host.get("cpu")]
    if host.get("class") == "dgpu":
        words += [gpu.get("name") for gpu in _objects(host.get("gpus"))]
    return f" {', '.join(str(word) for word in words if word)}"


# ----------------------------------------------------------------------------------------- printing


def _console(stream: TextIO) -> Console:
    from rich.console import (
        Console,  # here, because rich takes memory that measuring can do without
    )

    with suppress(AttributeError):
        stream.reconfigure(errors="replace")  # type: ignore[attr-defined]  # because not every TextIO has it
    return Console(file=stream, width=shutil.get_terminal_size(_WITHOUT_TERMINAL).columns)


def _show(stream: TextIO, print_to: Callable[[Console], None]) -> None:
    console = _console(stream)
    if console.is_terminal:
        print_to(console)
    else:
        stream.write(_rendered(console.width, print_to))  # without the blanks that fill lines up


def _rendered(width: int, print_to: Callable[[Console], None]) -> str:
    from rich.console import Console

    text = io.StringIO()
    print_to(Console(file=text, width=width, color_system=None))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


# -------------------------------------------------------------------------- reading a JSON document


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _numbers(value: object) -> dict[str, float]:
    return {
        name: number
        for name, number in _object(value).items()
        if isinstance(number, (int, float)) and not isinstance(number, bool)
    }


def _object(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _objects(value: object) -> tuple[Mapping[str, object], ...]:
    if not isinstance(value, (list, tuple)):
        return ()
    return tuple(item for item in value if isinstance(item, Mapping))
