"""What does NVML say, asked in a process of its own that may crash or hang?

One JSON line in, one out. In: the engine's process ids. Out: `{"values": [...], "news": {...}}`,
where `news` holds what has changed since the last line: the names of the values, why some are
null, the devices, what each call answers. Or `{"error": "..."}` and the end of the process, when
only a new process can go on: NVML stays loaded once it is, whatever becomes of the driver.

Started by `nvml.py` with three arguments: the seconds after which a call that failed is asked
again, the folder that stands for `/`, and the folder that holds the processes.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from edgeagent.probes.nvml_sense import (
    TOLD_BY_MIG,
    Memory,
    MemoryTold,
    Onlooker,
    Quality,
    Row,
    Share,
    View,
    engine_total,
    foreign_processes,
    judge_memory,
    quality,
    share,
    unlisted,
    worst,
)

LONGEST_ANSWER_S = 60
"""A process that hangs for longer ends itself: its parent may have been killed meanwhile."""

FIRST_PAUSE_S = 1.0
"""Until a call that failed, but may well work, is asked again; each time twice as long."""

NS_PER_S = 1e9

HINTS: Mapping[str, str] = {
    "lib_rm_version_mismatch": "the driver was replaced while its old kernel module is loaded:"
    " load the new module, or reboot",
    "driver_not_loaded": "the library is there and the kernel module is not: load it, or reboot",
    "gpu_is_lost": "the GPU does not answer any more: `dmesg` tells the Xid; reset it, or reboot",
    "no_permission": "this user may not ask; inside a container, MIG devices may be asked only",
    "unknown": "in a container, `systemctl daemon-reload` on the host takes its GPUs away:"
    " start the container again",
}

STEADY = frozenset(
    {"not_supported", "no_permission", "function_not_found", "argument_version_mismatch"}
)
"""Answers that rarely change, so that there is no hurry to ask again."""

INSTEAD = STEADY - {"no_permission"}
"""Answers for which another call is tried that asks the same."""

LOST = frozenset({"gpu_is_lost", "reset_required"})
"""Answers that hold for the whole device."""

NOT_BELIEVED = "not_believed"
"""Our own word for an answer that cannot be true."""

ENDED = frozenset({"uninitialized", "driver_not_loaded", "lib_rm_version_mismatch"})
"""Answers after which only a new process helps."""


class UnusableError(Exception):
    """NVML cannot be used in this process any more; the text is why."""


Ask: TypeAlias = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Call:
    """One thing that NVML can be asked of a device."""

    name: str
    ask: Ask
    """Takes the binding and the device's handle."""


@dataclass(frozen=True)
class Metric:
    """A value of a device that is one number."""

    name: str
    topic: str
    """Its name in the matrix of capabilities."""
    calls: tuple[Call, ...]
    number: Callable[[Any], float | int]
    highest: float = math.inf
    """More than that is nonsense."""


@dataclass
class State:
    """What became of a call when it was last asked."""

    word: str
    again_s: float = 0.0
    """Not to be asked before; in seconds of the monotonic clock."""
    pause_s: float = 0.0


class Calls:
    """What one device answers, call by call; a call that failed is asked again after a while."""

    def __init__(self, nvml: Any, handle: Any, again_s: float) -> None:
        self._nvml = nvml
        self._handle = handle
        self._again_s = again_s
        self._words = _words(nvml)
        self._errors = (nvml.NVMLError, nvml.NVMLLibraryMismatchError, AttributeError, ValueError)
        self._states: dict[str, State] = {}
        self._settled: dict[str, Call] = {}
        self._lost: State | None = None
        self.is_gone = False
        """The device is lost, and still was when asked again."""

    def ask(self, *calls: Call) -> tuple[Any, str]:
        """Return the answer to the first of `calls` that works here, or None and a word why.

        The call that worked once is kept to: a counter must not jump from one source to another.
        Raises UnusableError.
        """
        settled = self._settled.get(calls[0].name)
        if settled is not None:
            return self._one(settled)
        reasons = []
        for call in calls:
            answer, word = self._one(call)
            if not word:
                self._settled[calls[0].name] = call
            if word not in INSTEAD:
                return answer, word
            reasons.append(word)
        # That a younger or an older call is lacking as well says less than why the other failed.
        return None, "not_supported" if "not_supported" in reasons else reasons[0]

    def of(self, handle: Any) -> Calls:
        """Return the same for another handle."""
        return Calls(self._nvml, handle, self._again_s)

    def _one(self, call: Call) -> tuple[Any, str]:
        state = self._states.setdefault(call.name, State(""))
        for held in (self._lost, state):
            if held is not None and time.monotonic() < held.again_s:
                return None, held.word
        try:
            answer = call.ask(self._nvml, self._handle)
        except self._errors as error:
            return None, self._failed(state, self._word(error))
        state.word, state.pause_s, state.again_s = "ok", 0.0, 0.0
        self._lost, self.is_gone = None, False
        return answer, ""

    def _failed(self, state: State, word: str) -> str:
        if word in ENDED:
            raise UnusableError(said(word))
        if word in LOST:
            self.is_gone = self._lost is not None
            self._lost = state = State(word)
        state.word = word
        hurry = word not in STEADY and word not in LOST
        longer_s = max(FIRST_PAUSE_S, 2 * state.pause_s)
        state.pause_s = min(longer_s, self._again_s) if hurry else self._again_s
        state.again_s = time.monotonic() + state.pause_s
        return word

    def _word(self, error: Exception) -> str:
        if isinstance(error, ValueError):
            return "not_readable"
        # The binding, or the library behind it, may be older than the call.
        return self._words.get(getattr(error, "value", None), "function_not_found")


def _words(nvml: Any) -> dict[Any, str]:
    start = "NVML_ERROR_"
    names = (name for name in dir(nvml) if name.startswith(start))
    return {getattr(nvml, name): name.removeprefix(start).lower() for name in names}


def said(word: str) -> str:
    """Return the sentence for a word of NVML's, with a hint where there is one."""
    hint = HINTS.get(word)
    return f"NVML says {word}" + (f" ({hint})" if hint else "")


MEMORY_2 = Call("memory_v2", lambda n, h: n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2))
MEMORY_1 = Call("memory_v1", lambda n, h: n.nvmlDeviceGetMemoryInfo(h))

LISTS: tuple[tuple[Call, ...], ...] = (
    (
        Call("compute_processes", lambda n, h: n.nvmlDeviceGetComputeRunningProcesses_v3(h)),
        Call("compute_processes_v2", lambda n, h: n.nvmlDeviceGetComputeRunningProcesses_v2(h)),
    ),
    (
        Call("graphics_processes", lambda n, h: n.nvmlDeviceGetGraphicsRunningProcesses_v3(h)),
        Call("graphics_processes_v2", lambda n, h: n.nvmlDeviceGetGraphicsRunningProcesses_v2(h)),
    ),
    (Call("mps_processes", lambda n, h: n.nvmlDeviceGetMPSComputeRunningProcesses_v3(h)),),
)
"""A process may be in any of them, or in several."""


METRICS = (
    Metric(
        "utilisation_fraction",
        "utilisation",
        (Call("utilisation", lambda n, h: n.nvmlDeviceGetUtilizationRates(h)),),
        lambda rates: rates.gpu / 100,
        1.0,
    ),
    Metric(
        "sm_clock_hz",
        "sm_clock",
        (Call("sm_clock", lambda n, h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM)),),
        lambda mhz: mhz * 1_000_000,
        1e11,
    ),
    Metric(
        "memory_clock_hz",
        "memory_clock",
        (Call("memory_clock", lambda n, h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM)),),
        lambda mhz: mhz * 1_000_000,
        1e11,
    ),
    Metric(
        "power_w",
        "power",
        (Call("power", lambda n, h: n.nvmlDeviceGetPowerUsage(h)),),
        lambda mw: mw / 1000,
        1e5,
    ),
    Metric(
        "energy_j",
        "energy",
        (Call("energy", lambda n, h: n.nvmlDeviceGetTotalEnergyConsumption(h)),),
        lambda mj: mj / 1000,
    ),
    Metric(
        "temperature_c",
        "temperature",
        (
            Call("temperature", lambda n, h: n.nvmlDeviceGetTemperature(h, 0)),
            Call("temperature_v1", lambda n, h: n.nvmlDeviceGetTemperatureV(h, 0)),
        ),
        int,
        200.0,
    ),
    Metric(
        "throttle_reasons",
        "throttle_reasons",
        (
            Call("event_reasons", lambda n, h: n.nvmlDeviceGetCurrentClocksEventReasons(h)),
            Call("throttle_reasons", lambda n, h: n.nvmlDeviceGetCurrentClocksThrottleReasons(h)),
        ),
        int,
    ),
)


def throttle_metric(driver: str) -> Metric:
    """Return the metric of time spent throttled, as this driver counts it.

    Where the driver counts by field, it is the sum of software thermal, hardware thermal and
    power-brake slowdown; older drivers only tell how long heat held the clocks down.
    """
    fields = throttle_fields(driver)
    by_field = Call("throttle_counters", lambda n, h: _sum_of_fields(n, h, fields))
    by_policy = Call("thermal_violation", _thermal_violation_ns)
    calls = (by_field, by_policy) if fields else (by_policy,)
    return Metric("throttle_s", "throttle_counters", calls, lambda ns: ns / NS_PER_S)


def throttle_fields(driver: str) -> tuple[int, ...]:
    """Return the ids of the throttle counters in this driver; none where they are not known.

    The ids have moved: 251 to 253 from 575 on, 269 to 271 since 580.82 (as nvidia-ml-py 12.575.51,
    13.580.65 and 13.580.82 have them). What carried the number of one before or after is power
    smoothing, so an id is never just tried.
    """
    version = tuple(int(part) for part in re.findall(r"\d+", driver)[:2])
    if version >= (580, 82):
        return 269, 270, 271
    if (575, 0) <= version < (580, 66):
        return 251, 252, 253
    return ()


def _sum_of_fields(nvml: Any, handle: Any, fields: Sequence[int]) -> int:
    told = nvml.nvmlDeviceGetFieldValues(handle, list(fields))
    counters = [
        one.value.ullVal
        for one in told
        if one.nvmlReturn == 0 and one.valueType == nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
    ]
    if not counters:
        raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
    return sum(counters)


def _thermal_violation_ns(nvml: Any, handle: Any) -> int:
    status = nvml.nvmlDeviceGetViolationStatus(handle, nvml.NVML_PERF_POLICY_THERMAL)
    return int(status.violationTime)


@dataclass(frozen=True)
class Device:
    """A GPU, or a MIG device of one."""

    id: str
    calls: Calls
    facts: Mapping[str, object]
    instance: int | None = None
    """The GPU instance of a MIG device."""
    has_mig: bool = False
    """Its MIG devices are listed too."""

    @property
    def is_nvgpu(self) -> bool:
        """Whether the Jetson driver is behind it, which may give zeros for what it cannot tell."""
        return "nvgpu" in str(self.facts.get("name"))


NAME = Call("name", lambda n, h: n.nvmlDeviceGetName(h))
UUID = Call("uuid", lambda n, h: n.nvmlDeviceGetUUID(h))
PCI = Call("pci", lambda n, h: n.nvmlDeviceGetPciInfo_v3(h).busId)
LIMIT = Call("power_limit", lambda n, h: n.nvmlDeviceGetEnforcedPowerLimit(h))
MIG_MODE = Call("mig_mode", lambda n, h: n.nvmlDeviceGetMigMode(h)[0])
MIG_COUNT = Call("mig_devices", lambda n, h: n.nvmlDeviceGetMaxMigDeviceCount(h))
INSTANCE = Call("gpu_instance", lambda n, h: n.nvmlDeviceGetGpuInstanceId(h))


def devices(nvml: Any, again_s: float) -> tuple[tuple[Device, ...], dict[str, str]]:
    """Return the GPUs, each followed by its MIG devices, and why others cannot be had.

    Raises UnusableError where there is none.
    """
    found: list[Device] = []
    refused = {}
    for index in range(_count(nvml)):
        otherwise = f"index-{index}"
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            refused[otherwise] = _words(nvml).get(error.value, "unknown")
        else:
            found += _with_mig(nvml, Calls(nvml, handle, again_s), handle, otherwise)
    if not found:
        raise UnusableError(said(next(iter(refused.values()))) if refused else "NVML finds no GPU")
    return tuple(found), refused


def _count(nvml: Any) -> int:
    try:
        return int(nvml.nvmlDeviceGetCount())
    except nvml.NVMLError as error:
        word = _words(nvml).get(error.value, "unknown")
        raise UnusableError(f"the GPUs cannot be counted: {said(word)}") from error


def _with_mig(nvml: Any, calls: Calls, handle: Any, otherwise: str) -> list[Device]:
    name = str(calls.ask(UUID)[0] or otherwise)
    facts = {"uuid": name, "name": calls.ask(NAME)[0]}
    bus = calls.ask(PCI)[0]
    facts["pci_bus_id"] = bus.decode("ascii", "replace") if isinstance(bus, bytes) else bus
    limit_mw, _ = calls.ask(LIMIT)
    facts["power_limit_w"] = limit_mw and limit_mw / 1000
    on, _ = calls.ask(MIG_MODE)
    parts = _mig_devices(nvml, calls, handle, name) if on else []
    return [Device(name, calls, facts, has_mig=bool(parts)), *parts]


def _mig_devices(nvml: Any, calls: Calls, handle: Any, parent: str) -> list[Device]:
    found = []
    for index in range(calls.ask(MIG_COUNT)[0] or 0):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except nvml.NVMLError:
            continue  # there may be fewer than the most there can be
        asking = calls.of(part)
        name = str(asking.ask(UUID)[0] or f"{parent}-mig-{index}")
        facts = {"uuid": name, "name": asking.ask(NAME)[0], "mig_parent": parent}
        found.append(Device(name, asking, facts, instance=asking.ask(INSTANCE)[0]))
    return found


@dataclass(frozen=True)
class Site:
    """What is the same at each sample."""

    devices: tuple[Device, ...]
    metrics: tuple[Metric, ...]
    host_total_bytes: int | None
    view: View


@dataclass
class Answer:
    """Readings under way."""

    values: dict[str, float | int | None] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    settings: list[dict[str, object]] = field(default_factory=list)
    capabilities: dict[str, dict[str, str]] = field(default_factory=dict)
    """By device and topic: `ok`, or the word why there is nothing."""
    shares: list[Share] = field(default_factory=list)
    qualities: list[Quality] = field(default_factory=list)
    quality: Quality = "unavailable"

    def keep(self, name: str, value: float | None, reason: str) -> None:
        """Keep a value, or why there is none."""
        self.values[name] = value
        if value is None:
            self.absent[name] = reason


def read(site: Site, onlooker: Onlooker) -> Answer:
    """Ask for everything. Raises UnusableError."""
    answer = Answer()
    answer.keep("gpu.devices", sum(device.instance is None for device in site.devices), "")
    for device in site.devices:
        _read_device(site, device, onlooker, answer)
    total_bytes, reason = engine_total(answer.shares)
    answer.keep("gpu.engine_bytes", total_bytes, reason)
    answer.quality = worst(answer.qualities, total_bytes)
    answer.keep("gpu.foreign_processes", *foreign_processes(answer.shares))
    if all(device.calls.is_gone for device in site.devices):
        raise UnusableError(said("gpu_is_lost"))
    return answer


def _read_device(site: Site, device: Device, onlooker: Onlooker, answer: Answer) -> None:
    name = f"gpu.{device.id}"
    words = answer.capabilities[device.id] = {}
    memory, version, words["memory"] = _memory(device, site.host_total_bytes)
    answer.keep(f"{name}.total_bytes", memory.total_bytes, memory.reason)
    answer.keep(f"{name}.used_bytes", memory.used_bytes, memory.reason)
    answer.keep(f"{name}.reserved_bytes", memory.reserved_bytes, memory.reason)
    for metric in site.metrics:
        number, reason, words[metric.topic] = _number(device, metric)
        answer.keep(f"{name}.{metric.name}", number, reason)
    limit_bytes = site.host_total_bytes if memory.kind == "shared" else memory.total_bytes
    ours, words["processes"] = _share(device, limit_bytes, onlooker)
    answer.keep(f"{name}.engine_bytes", ours.engine_bytes, ours.reason)
    answer.keep(f"{name}.rows_dropped", ours.dropped, ours.reason)
    settings: dict[str, object] = {"memory": memory.kind, "memory_version": version}
    if not device.has_mig:
        answer.shares.append(ours)
        answer.qualities.append(quality(ours, memory))
        settings["quality"] = answer.qualities[-1]
    answer.settings.append({**device.facts, "total_bytes": memory.total_bytes, **settings})


def _memory(device: Device, host_total_bytes: int | None) -> tuple[Memory, int | None, str]:
    """Ask in version 2, which keeps the driver's own reserve apart, else in version 1."""
    told, word = device.calls.ask(MEMORY_2, MEMORY_1)
    if told is None:
        return judge_memory(None, word, said(word), host_total_bytes), None, word
    reserved_bytes = getattr(told, "reserved", None)
    seen = MemoryTold(told.total, told.used, reserved_bytes)
    memory = judge_memory(seen, "", "", host_total_bytes)
    believed = memory.used_bytes is not None
    return memory, 1 if reserved_bytes is None else 2, "ok" if believed else NOT_BELIEVED


def _number(device: Device, metric: Metric) -> tuple[float | int | None, str, str]:
    told, word = device.calls.ask(*metric.calls)
    if told is None:
        return None, said(word), word
    number = metric.number(told)
    if number > metric.highest:
        return None, f"NVML says {number:g}, which cannot be", NOT_BELIEVED
    if number == 0 and device.is_nvgpu:
        return None, "NVML says 0, as nvgpu does for what it cannot tell", NOT_BELIEVED
    return number, "", "ok"


def _share(device: Device, limit_bytes: int | None, onlooker: Onlooker) -> tuple[Share, str]:
    """Return what the lists of processes say; one list that can be had is enough."""
    if device.has_mig:
        return unlisted(TOLD_BY_MIG), "told_by_mig"
    rows: list[Row] = []
    refusals = []
    for calls in LISTS:
        told, word = device.calls.ask(*calls)
        if told is None:
            refusals.append(word)
        else:
            rows += (Row(row.pid, row.usedGpuMemory) for row in told if _belongs(row, device))
    if len(refusals) == len(LISTS):
        return unlisted(said(refusals[0])), refusals[0]
    return share(rows, limit_bytes, onlooker), "ok"


NO_INSTANCE = 0xFFFFFFFF


def _belongs(row: Any, device: Device) -> bool:
    """Whether a row is of this device: with rights enough, one list may show other instances."""
    if device.instance is None or row.gpuInstanceId == NO_INSTANCE:
        return True
    return bool(row.gpuInstanceId == device.instance)


class Line:
    """The line to the parent; tells only what has changed, values apart."""

    def __init__(self, pipe: TextIO) -> None:
        self._pipe = pipe
        self._known: dict[str, object] = {}

    def say(self, values: Sequence[object], facts: Mapping[str, object]) -> None:
        """Send an answer."""
        news = {key: told for key, told in facts.items() if self._known.get(key) != told}
        self._known.update(news)
        self._send({"values": values, "news": news} if news else {"values": values})

    def give_up(self, reason: str) -> None:
        """Send the last words."""
        self._send({"error": reason})

    def _send(self, told: Mapping[str, object]) -> None:
        self._pipe.write(json.dumps(told, separators=(",", ":")) + "\n")
        self._pipe.flush()


def main() -> None:
    """Answer until nobody asks any more."""
    again_s, root, processes = float(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    line = Line(os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)  # a library that prints must not end up between our lines
    signal.alarm(LONGEST_ANSWER_S)
    import pynvml  # here, so that the rest can be tested without it

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        line.give_up(f"NVML cannot be used: {said(_words(pynvml).get(error.value, 'unknown'))}")
        return
    system = _system(pynvml)
    try:
        metrics = (*METRICS, throttle_metric(str(system["driver"])))
        found, system["refused"] = devices(pynvml, again_s)
        site = Site(found, metrics, _total_bytes(root), view(root, processes))
        _serve(site, processes, system, line)
    except UnusableError as error:
        line.give_up(str(error))


def _serve(site: Site, processes: str, system: Mapping[str, object], line: Line) -> None:
    signal.alarm(0)
    asked, engine = "", frozenset[int]()
    for question in sys.stdin:
        signal.alarm(LONGEST_ANSWER_S)
        if question != asked:
            asked, engine = question, frozenset(json.loads(question))
        onlooker = Onlooker(engine, lambda pid: Path(processes, str(pid)).exists(), site.view)
        answer = read(site, onlooker)
        line.say(list(answer.values.values()), {**_news(answer), "system": system})
        signal.alarm(0)


def _news(answer: Answer) -> dict[str, object]:
    return {
        "names": list(answer.values),
        "absent": answer.absent,
        "devices": answer.settings,
        "quality": answer.quality,
        "capabilities": answer.capabilities,
    }


def _system(nvml: Any) -> dict[str, object]:
    """Return the versions; None where they are not told."""

    def told(ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except (nvml.NVMLError, ValueError):
            return None

    cuda = told(nvml.nvmlSystemGetCudaDriverVersion_v2)
    return {
        "driver": told(nvml.nvmlSystemGetDriverVersion),
        "nvml": told(nvml.nvmlSystemGetNVMLVersion),
        "cuda": cuda and f"{cuda // 1000}.{cuda % 1000 // 10}",
    }


def _total_bytes(root: Path) -> int | None:
    try:
        text = (root / "proc/meminfo").read_text()
    except (OSError, ValueError):
        return None
    found = re.search(r"^MemTotal:\s+(\d+) kB", text, re.MULTILINE)
    return int(found.group(1)) * 1024 if found else None


INITIAL_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO: the same on every Linux


def view(root: Path, processes: str) -> View:
    """Return which processes can be seen from here."""
    try:
        if "microsoft" in (root / "proc/sys/kernel/osrelease").read_text().lower():
            return "wsl"
    except (OSError, ValueError):
        pass  # a box without it is none of Microsoft's
    try:
        namespace = str(Path(processes, "self/ns/pid").readlink())
    except OSError:
        return "whole"
    return "whole" if namespace == INITIAL_NAMESPACE else "namespace"


if __name__ == "__main__":
    main()
