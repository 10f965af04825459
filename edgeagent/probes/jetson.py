"""What do a Jetson's own files say of its GPU, its clocks and the memory its drivers hold?

Orin and Xavier run under nvgpu, of which NVML can say nothing: there these files are the truth, and
win over NVML. Thor runs under nvidia.ko: it has no NvMapMemUsed and no load file, and NVML tells.
A source can appear minutes after the start (a devfreq node at early boot), so all of them are
looked for again every few seconds. On any other box the probe has one value, None, to say so.

`read` is in three parts: what is cheap is read every time, what costs many files once a second, and
what each process holds of the GPU's memory (`nvmap.engine_bytes`) when the helper has told it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from edgeagent.ports import Readings
from edgeagent.probes import box
from edgeagent.probes.host import NO_ENGINE
from edgeagent.probes.nvmap import ClientList, Told, held_bytes
from edgeagent.probes.nvmap import Pace as ListPace
from edgeagent.probes.sysfs import Absent, Files, Number, readings

NO_JETSON = Absent("this is not a Jetson: nothing in its files tells of a Tegra")


@dataclass(frozen=True)
class Pace:
    """How often what is read, in seconds."""

    slow_s: float = 1.0
    look_s: float = 5.0
    """From one search for the sources to the next."""
    clients: ListPace = field(default_factory=ListPace)


class JetsonProbe:
    """See `Probe`. Not for use by two threads at once."""

    name = "jetson"

    def __init__(
        self,
        root: Path = Path("/"),
        helper: Path | None = None,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`helper` is the nvmap helper's socket; run/edgeagent-nvmap.sock below `root` if None."""
        self._root = root
        self._files = Files(root)
        self._pace = pace if pace is not None else Pace()
        self._clock = clock
        self._clients = ClientList(root, helper, self._pace.clients, clock)
        self._look_next_s = self._slow_next_s = clock()
        self._sources: Sources | None = None

    def read(self, pids: Sequence[int]) -> Readings:
        """Return the readings of now; `pids` is the engine's process tree."""
        sources = self._where()
        if sources is None:
            return readings({"jetson.board": NO_JETSON})
        found = self._quick(sources)
        if self._is_due():
            found.update(self._slow(sources))
            if not pids:
                found["nvmap.engine_bytes"] = Absent(NO_ENGINE)
        if pids and (held := self._held(sources, pids)) is not None:
            found["nvmap.engine_bytes"] = held
        return readings(found)

    def close(self) -> None:
        """Let go of the connection to the helper; safe to call twice."""
        self._clients.close()

    def facts(self) -> Mapping[str, object]:
        """Return the board, its power mode and governor, and where each reading comes from."""
        sources = self._where()
        if sources is None:
            return {}
        signals = box.look(self._root)
        judged = box.classify(signals)
        return {
            "board": signals.model,
            "soc": judged.soc,
            "release": judged.release,
            **self._power_mode_facts(),
            "gpu_load_source": _shown(sources.load) or _LOAD_ELSEWHERE[sources.driver],
            "gpu_frequency_source": _shown(sources.gpu),
            "gpu_governor": self._files.word(f"{sources.gpu}/governor") if sources.gpu else None,
            "gpu_minimum_hz": _or_none(self._of_gpu(sources, "min_freq")),
            "gpu_maximum_hz": _or_none(self._of_gpu(sources, "max_freq")),
            "emc_source": _shown(sources.emc),
            **self._nvmap_facts(sources),
        }

    # -- every time

    def _quick(self, sources: Sources) -> dict[str, float | Absent]:
        return {
            "nvmap.used_bytes": self._used(sources),
            "jetson.gpu_load_fraction": self._load(sources),
            "jetson.gpu_frequency_hz": self._of_gpu(sources, "cur_freq"),
        }

    def _used(self, sources: Sources) -> Number:
        if sources.driver == "nvidia.ko":
            return _NO_NVMAP
        text = self._files.text("proc/meminfo")
        return text if isinstance(text, Absent) else nvmap_used_bytes(text)

    def _load(self, sources: Sources) -> float | Absent:
        if sources.load is None:
            return _NO_LOAD[sources.driver]
        read = self._files.number(sources.load)
        return read if isinstance(read, Absent) else load_fraction(read)

    def _of_gpu(self, sources: Sources, name: str) -> Number:
        if sources.gpu is None:
            return _NO_NODE
        return self._files.number(f"{sources.gpu}/{name}")

    # -- once a second

    def _is_due(self) -> bool:
        now_s = self._clock()
        if now_s < self._slow_next_s:
            return False
        self._slow_next_s = now_s + self._pace.slow_s
        return True

    def _slow(self, sources: Sources) -> dict[str, float | Absent]:
        return {
            "jetson.emc_frequency_hz": self._files.number(sources.emc),
            "jetson.clocks_locked": self._locked(sources),
            "jetson.power_mode": self._power_mode(),
            "jetson.overcurrent_count": self._overcurrents(sources),
        }

    def _locked(self, sources: Sources) -> Number:
        cpus = [self._lock(f"{policy}/scaling_", "_freq") for policy in sources.policies]
        gpu = self._lock(f"{sources.gpu}/", "_freq") if sources.gpu else "unknown"
        return clocks_locked(cpus, gpu, self._emc_lock(sources))

    def _emc_lock(self, sources: Sources) -> Lock:
        folder = sources.emc.rpartition("/")[0]
        flag = self._files.number(f"{folder}/mrq_rate_locked")
        if isinstance(flag, Absent):
            return self._lock(f"{folder}/", "_freq")
        return "locked" if flag else "free"

    def _lock(self, before: str, after: str) -> Lock:
        low = self._files.number(f"{before}min{after}")
        high = self._files.number(f"{before}max{after}")
        if isinstance(low, Absent) or isinstance(high, Absent):
            return "unknown"
        return "locked" if low == high else "free"

    def _power_mode(self) -> Number:
        text = self._files.text(_STATUS)
        return text if isinstance(text, Absent) else power_mode(text)

    def _power_mode_facts(self) -> Mapping[str, object]:
        mode = _or_none(self._power_mode())
        names = power_modes(self._files.word("etc/nvpmodel.conf") or "")
        return {
            "power_mode_id": mode,
            "power_mode": None if mode is None else names.get(mode),
            "power_modes": {str(number): name for number, name in names.items()},
        }

    def _overcurrents(self, sources: Sources) -> Number:
        return total([self._files.number(path) for path in sources.overcurrents])

    # -- when the helper has told

    def _held(self, sources: Sources, pids: Sequence[int]) -> Number | None:
        if sources.foreign_pids:
            return _FOREIGN_PIDS
        told = self._clients.poll()
        return None if told is None else engine_bytes(told, pids, sources.driver)

    def _nvmap_facts(self, sources: Sources) -> Mapping[str, object]:
        told = self._clients.poll()
        judged = engine_bytes(told, (), sources.driver) if told is not None else 0
        return {
            "nvmap_source": self._clients.source,
            "nvmap_reason": judged.why if isinstance(judged, Absent) else None,
        }

    # -- where it all is

    def _where(self) -> Sources | None:
        now_s = self._clock()
        if now_s >= self._look_next_s:
            self._look_next_s = now_s + self._pace.look_s
            self._sources = find_sources(self._root)
        return self._sources


# ---------------------------------------------------------------------------------------- sources

Driver: TypeAlias = Literal["nvgpu", "nvidia.ko"]


@dataclass(frozen=True)
class Sources:
    """Where readings come from, as paths below the root; None for what is not there (yet)."""

    driver: Driver
    gpu: str | None = None
    """The devfreq folder of the GPU."""
    load: str | None = None
    emc: str = ""
    policies: tuple[str, ...] = ()
    overcurrents: tuple[str, ...] = ()
    foreign_pids: bool = False
    """Whether our process ids are other ones than those that drivers speak of."""


_STATUS = "var/lib/nvpmodel/status"
_EMC_DEVFREQ = "sys/class/devfreq/bwmgr/cur_freq"
_EMC_DEBUG = "sys/kernel/debug/bpmp/debug/clk/emc/rate"
_LOAD_ALIASES = ("sys/devices/platform/gpu.0/load", "sys/devices/gpu.0/load")
_GPU_NODES = frozenset({"gv11b", "gp10b", "ga10b", "gb10b", "gpu"})
_THOR_NODE = "gpu-gpc-"
_FIRST_NAMESPACE = "pid:[4026531836]"
"""The kernel's constant name of the namespace in which it started its first process."""

_NO_NVMAP = Absent("nvidia.ko does not use nvmap for the GPU: NVML tells its memory by process")
_NO_NODE = Absent("the GPU's devfreq node is not there; at early boot it comes late")
_NO_LOAD: Mapping[Driver, Absent] = {
    "nvgpu": Absent("the GPU's load file is not there; at early boot it comes late"),
    "nvidia.ko": Absent("this GPU has no load file: NVML tells its utilisation"),
}
_LOAD_ELSEWHERE: Mapping[Driver, str | None] = {"nvgpu": None, "nvidia.ko": "NVML"}
_FOREIGN_PIDS = Absent("the agent's process ids are a container's own, and nvmap lists the host's")


def find_sources(root: Path) -> Sources | None:
    """Look for every source; None on a box that is no Jetson."""
    signals = box.look_at_board(root)
    if not box.is_jetson(signals):
        return None
    files = Files(root)
    gpu = _gpu(files)
    return Sources(
        driver="nvidia.ko" if box.integrated_class(signals) == "uma-nvidia" else "nvgpu",
        gpu=gpu,
        load=_load(files, gpu),
        emc=_EMC_DEVFREQ if files.has(_EMC_DEVFREQ) else _EMC_DEBUG,
        policies=files.find("sys/devices/system/cpu/cpufreq/policy[0-9]*"),
        overcurrents=files.find("sys/class/hwmon/hwmon*/oc*_event_cnt"),
        foreign_pids=_has_foreign_pids(root),
    )


def _gpu(files: Files) -> str | None:
    nodes = files.find("sys/class/devfreq/*")
    by_tree = (node for node in nodes if files.word(f"{node}/device/of_node/name") in _GPU_NODES)
    by_name = (node for node in nodes if node.rpartition("/")[2].startswith(_THOR_NODE))
    return next(by_tree, None) or next(by_name, None)


def _load(files: Files, gpu: str | None) -> str | None:
    places = (f"{gpu}/device/load", *_LOAD_ALIASES) if gpu else _LOAD_ALIASES
    return next((place for place in places if files.has(place)), None)


def _has_foreign_pids(root: Path) -> bool:
    try:
        return os.readlink(f"{root}/proc/self/ns/pid") != _FIRST_NAMESPACE  # noqa: PTH115  # because the link leads to no file
    except OSError:
        return False


# ---------------------------------------------------------------------------------------- parsing

Lock: TypeAlias = Literal["locked", "free", "unknown"]

_NVMAP_USED = re.compile(r"^NvMapMemUsed:\s*([0-9]{1,18}) kB", re.MULTILINE)
_PER_MILLE = 1000


def nvmap_used_bytes(meminfo: str) -> Number:
    """Return what the whole board's drivers have allocated, the display's buffers included."""
    found = _NVMAP_USED.search(meminfo)
    if found is None:
        return Absent("/proc/meminfo does not list NvMapMemUsed")
    return int(found.group(1)) * 1024


def load_fraction(per_mille: int) -> float | Absent:
    """Return the share of time for which the GPU was busy, of its load in per mille."""
    if 0 <= per_mille <= _PER_MILLE:
        return per_mille / _PER_MILLE
    return Absent(f"the GPU's load is given as {per_mille} per mille")


def power_mode(status: str) -> Number:
    """Return the id in a line such as `pmode:0002 fmode:quiet`; 0 is not always the fastest."""
    found = re.search(r"\bpmode:\s*([0-9]{1,9})\b", status)
    return int(found.group(1)) if found else Absent(f"/{_STATUS} names no power mode")


def power_modes(configuration: str) -> Mapping[int, str]:
    """Return the names of the power modes in /etc/nvpmodel.conf."""
    found = re.findall(
        r"^\s*<\s*POWER_MODEL\s+ID=([0-9]{1,9})\s+NAME=([^\s>]+)", configuration, re.MULTILINE
    )
    return {int(number): name for number, name in found}


def clocks_locked(cpus: Sequence[Lock], gpu: Lock, emc: Lock) -> Number:
    """Return 1 when jetson_clocks holds the clocks at one frequency, 0 when any of them is free.

    The memory's clock counts only where it is shown: root alone may see it on older releases.
    """
    if "free" in (*cpus, gpu, emc):
        return 0
    if cpus and set(cpus) == {"locked"} and gpu == "locked":
        return 1
    return Absent("the limits of some CPU or GPU clock could not be read")


def total(counts: Iterable[Number]) -> Number:
    """Return the sum of counters, or why it is not known: a part of it would jump."""
    sums = list(counts)
    refused = next((count for count in sums if isinstance(count, Absent)), None)
    if refused is not None:
        return refused
    if not sums:
        return Absent("this board shows no over-current counters")
    return sum(count for count in sums if isinstance(count, int))


def engine_bytes(told: Told, pids: Sequence[int], driver: Driver) -> Number:
    """Return what the engine holds by the list of clients, or why that is not known.

    Under nvidia.ko the list can be there and show 0K for everybody, which measures nothing.
    """
    if isinstance(told, str):
        return _NO_NVMAP if driver == "nvidia.ko" else Absent(told)
    if driver == "nvidia.ko" and not any(client.size_bytes for client in told):
        return _NO_NVMAP
    return held_bytes(told, pids)


def _or_none(read: Number) -> int | None:
    return None if isinstance(read, Absent) else read


def _shown(path: str | None) -> str | None:
    return None if path is None else f"/{path}"
