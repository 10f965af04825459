"""How much GPU memory does the engine hold on AMD and Intel graphics, by the kernel's DRM books?

A process that has opened a GPU (/dev/dri/*) finds in /proc/PID/fdinfo what its DRM client holds, by
region. The rules that make the sum true:

- Descriptors that were duplicated or inherited show the same client again: a client counts once,
  known by (drm-pdev, drm-client-id).
- A size without a unit is in bytes; `drm-resident-REGION` is preferred to the older
  `drm-memory-REGION`, which may count what has been moved out.
- Regions are of two kinds. VRAM (amdgpu vram, i915 local0, xe vram0, and memory that the firmware
  has carved out: stolen); and memory of the host that the GPU reaches (amdgpu gtt and cpu, i915
  system0, xe system and gtt). An APU keeps a model in the second, next to nothing in the first.
- ROCm's own allocations are counted by KFD as well; its books are asked when DRM's show nothing.

Listing a live engine's hundreds of descriptors is dear, reading one description is not: descriptors
are listed every few seconds, and one description of each client is read at every sample. Processes
of others are looked through more rarely still, as far as their descriptors can be read at all.

Buffers that two clients share are counted in both. The totals of Intel's GPUs need CAP_PERFMON.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from edgeagent.ports import Readings
from edgeagent.probes.host import (
    ENGINE_ENDED,
    NO_ENGINE,
    names_in,
    nothing,
    process_root,
    read_text,
    whole_number,
)

DRIVERS = frozenset({"amdgpu", "i915", "xe"})
"""Drivers that tell memory by client; a card of another is not this probe's."""

ENGINE_NAMES = (
    "drm.engine_bytes",
    "drm.engine_vram_bytes",
    "drm.engine_gtt_bytes",
    "drm.engine_clients",
)
TOTALS = ("drm.vram_total_bytes", "drm.gtt_total_bytes")
USED = ("drm.vram_used_bytes", "drm.gtt_used_bytes")

NO_TOTALS = "only amdgpu tells its totals; Intel's need CAP_PERFMON, which the agent goes without"
KFD_VRAM_ONLY = "taken from KFD's books, which count VRAM only"


@dataclass(frozen=True)
class Pace:
    """How often what is dear is done, in seconds, and the clock that says when it is due."""

    list_s: float = 2.0
    """Listing the engine's descriptors and the cards of the box."""
    foreign_s: float = 10.0
    """Looking through the descriptors of every other process."""
    now_s: Callable[[], float] = time.monotonic


class DrmProbe:
    """GPU memory of the engine and of AMD's cards: see `Probe`.

    Without a card of a driver in `DRIVERS`, `drm.devices` = 0 is all that is told.
    `drm.foreign_processes` stands only in the samples for which it was counted.
    """

    name = "drm"

    def __init__(
        self, root: Path = Path("/"), processes: Path | None = None, pace: Pace | None = None
    ) -> None:
        self._drm = str(root / "sys/class/drm")
        self._kfd = str(root / "sys/class/kfd/kfd/proc")
        self._processes = str(processes or process_root(root))
        self._pace = pace or Pace()
        self._cards: tuple[Card, ...] = ()
        self._cards_due_s = float("-inf")
        self._foreign_due_s = float("-inf")
        self._engine = EngineClients(self._processes)

    def read(self, pids: Sequence[int]) -> Readings:
        """Return the readings of now; a process that has just ended counts as ended."""
        now_s = self._pace.now_s()
        self._look(now_s)
        values: dict[str, float | int | None] = {"drm.devices": len(self._cards)}
        absent: dict[str, str] = {}
        if not self._cards:
            return values, absent
        for part, reasons in (self._of_engine(pids), self._of_cards(), self._foreign(pids, now_s)):
            values.update(part)
            absent.update(reasons)
        return values, absent

    def close(self) -> None:
        """Nothing is held between readings."""

    def facts(self) -> Mapping[str, object]:
        """Return the cards that are read here."""
        self._look(self._pace.now_s())
        return {
            "drm_cards": [
                {"card": card.name, "driver": card.driver, "pci": card.pci} for card in self._cards
            ]
        }

    def _look(self, now_s: float) -> None:
        """List cards and descriptors anew when it is time; a driver may have been loaded since."""
        if now_s >= self._cards_due_s:
            self._cards_due_s = now_s + self._pace.list_s
            self._cards = tuple(find_cards(self._drm))
            self._engine.forget()

    def _of_engine(self, pids: Sequence[int]) -> Readings:
        try:
            clients = self._engine.read(pids)
        except OSError as error:
            why = f"the engine's descriptors could not be read: {error.strerror}"
            return nothing(ENGINE_NAMES, why)
        if clients is None:
            return nothing(ENGINE_NAMES, ENGINE_ENDED if pids else NO_ENGINE)
        readings = engine_readings(clients)
        if readings[0]["drm.engine_bytes"] == 0 and (vram_bytes := self._by_kfd(pids)):
            return kfd_readings(vram_bytes, len(clients))
        return readings

    def _by_kfd(self, pids: Iterable[int]) -> int:
        """Return the VRAM that KFD counts for the processes; 0 where there is no KFD."""
        found = 0
        for pid in pids:
            folder = f"{self._kfd}/{pid}"
            for name in names_in(folder):
                if name.startswith("vram_"):
                    found += _number(f"{folder}/{name}") or 0
        return found

    def _of_cards(self) -> Readings:
        amd = [card for card in self._cards if card.driver == "amdgpu"]
        if not amd:
            return nothing((*TOTALS, *USED), NO_TOTALS)
        values = {
            TOTALS[0]: _sum(card.vram_total_bytes for card in amd),
            TOTALS[1]: _sum(card.gtt_total_bytes for card in amd),
            USED[0]: _sum(_number(f"{card.folder}/mem_info_vram_used") for card in amd),
            USED[1]: _sum(_number(f"{card.folder}/mem_info_gtt_used") for card in amd),
        }
        why = "a card's mem_info file could not be read"
        return values, {name: why for name, value in values.items() if value is None}

    def _foreign(self, pids: Sequence[int], now_s: float) -> Readings:
        """Count others that hold GPU memory, and those whose descriptors cannot be read."""
        if now_s < self._foreign_due_s:
            return {}, {}
        self._foreign_due_s = now_s + self._pace.foreign_s
        ours = {*map(str, pids), _self(self._processes)}
        holding = unreadable = 0
        for name in names_in(self._processes):
            if not name.isdigit() or name in ours:
                continue
            try:
                holding += _holds_memory(self._processes, int(name))
            except PermissionError:
                unreadable += 1
            except OSError:
                continue  # it has ended
        return {"drm.foreign_processes": holding, "drm.foreign_unreadable": unreadable}, {}


class EngineClients:
    """The DRM clients of a tree of processes, with one description of each to read again."""

    def __init__(self, processes: str) -> None:
        self._processes = processes
        self._known: dict[int, dict[Key, str]] | None = None

    def forget(self) -> None:
        """List the descriptors anew when next asked."""
        self._known = None

    def read(self, pids: Sequence[int]) -> Collection[Client] | None:
        """Return each client once; None when no process lives. Raises OSError for no access."""
        if self._known is None or any(pid not in self._known for pid in pids):
            self._known = self._list(pids)
        clients = self._read(self._known)
        if clients is None:  # a descriptor was closed since, or its process ended
            self._known = self._list(pids)
            clients = self._read(self._known) or {}
        return clients.values() if any(pid in self._known for pid in pids) else None

    def _list(self, pids: Iterable[int]) -> dict[int, dict[Key, str]]:
        known = {}
        for pid in pids:
            try:
                found = list(descriptions(self._processes, pid))
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended between being listed and being read
            known[pid] = {client.key: path for client, path in found}
        return known

    def _read(self, known: Mapping[int, Mapping[Key, str]]) -> dict[Key, Client] | None:
        """Return the clients of now; None when a description is not that client's any more."""
        clients: dict[Key, Client] = {}
        for pid, paths in known.items():
            for key, path in paths.items():
                client = _client(path, pid)
                if client is None or client.key != key:
                    return None
                clients[key] = client
        return clients


# ------------------------------------------------------------------------------------------ parsing

Key: TypeAlias = tuple[str, str]
"""A client: its device, and its number there."""


@dataclass(frozen=True)
class Client:
    """What one DRM client holds; None when its driver does not tell."""

    key: Key
    driver: str
    vram_bytes: int | None
    gtt_bytes: int | None


_FIELD = re.compile(r"^drm-(driver|pdev|client-id):[ \t]*(\S+)", re.MULTILINE)
_SIZE = re.compile(
    r"^drm-(resident|memory)-([a-z0-9-]+):[ \t]*([0-9]{1,20})[ \t]*([A-Za-z]*)$", re.MULTILINE
)
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_VRAM = re.compile(r"vram[0-9]*|local[0-9]+|stolen.*")
_HOST = re.compile(r"gtt|cpu|system[0-9]*")


def parse_fdinfo(text: str, pid: int) -> Client | None:
    """Return the client that a descriptor of `pid` belongs to; None for one that is not DRM's.

    A driver that gives a client no number has one client for each process here: too little is
    better than counting every descriptor of it.
    """
    fields: dict[str, str] = dict(_FIELD.findall(text))
    driver = fields.get("driver")
    if driver is None:
        return None
    key = fields.get("pdev", driver), fields.get("client-id", f"of process {pid}")
    regions = _regions(text)
    return Client(key, driver, *(_held(regions, kind) for kind in (_VRAM, _HOST)))


def _regions(text: str) -> dict[str, int]:
    """Return the bytes held by region, each by the better of its two lines."""
    lines: dict[str, dict[str, int]] = {"resident": {}, "memory": {}}
    for line, region, number, unit in _SIZE.findall(text):
        if unit in _UNITS:
            lines[line][region] = int(number) * _UNITS[unit]
    return {**lines["memory"], **lines["resident"]}


def _held(regions: Mapping[str, int], kind: re.Pattern[str]) -> int | None:
    """Return what is held in regions of a kind: 0 without one, None when nothing is told at all."""
    if not regions:
        return None
    return sum(size for region, size in regions.items() if kind.fullmatch(region))


def engine_readings(clients: Iterable[Client]) -> Readings:
    """Return the sums over the engine's clients; an engine without a client holds 0."""
    ours = [client for client in clients if client.driver in DRIVERS]
    silent = [client.driver for client in ours if client.vram_bytes is None]
    count: dict[str, float | int | None] = {"drm.engine_clients": len(ours)}
    if silent:
        why = f"this kernel's {silent[0]} does not tell memory by client"
        values, absent = nothing(ENGINE_NAMES[:3], why)
        return {**values, **count}, absent
    vram_bytes = sum(client.vram_bytes or 0 for client in ours)
    gtt_bytes = sum(client.gtt_bytes or 0 for client in ours)
    return {
        "drm.engine_bytes": vram_bytes + gtt_bytes,
        "drm.engine_vram_bytes": vram_bytes,
        "drm.engine_gtt_bytes": gtt_bytes,
        **count,
    }, {}


def kfd_readings(vram_bytes: int, clients: int) -> Readings:
    """Return what KFD tells, marked as such by `drm.engine_kfd_bytes`."""
    return {
        "drm.engine_bytes": vram_bytes,
        "drm.engine_vram_bytes": vram_bytes,
        "drm.engine_gtt_bytes": None,
        "drm.engine_clients": clients,
        "drm.engine_kfd_bytes": vram_bytes,
    }, {"drm.engine_gtt_bytes": KFD_VRAM_ONLY}


def _sum(numbers: Iterable[int | None]) -> int | None:
    """Return the sum; None when one of them is not known."""
    each = tuple(numbers)
    return None if None in each else sum(number or 0 for number in each)


# ------------------------------------------------------------------------------------------ reading


@dataclass(frozen=True)
class Card:
    """A GPU as the kernel lists it, with the totals that do not change while it is there."""

    name: str
    driver: str
    pci: str
    folder: str
    vram_total_bytes: int | None
    gtt_total_bytes: int | None


def find_cards(drm: str) -> Iterator[Card]:
    """Yield the cards below /sys/class/drm whose driver is one of `DRIVERS`."""
    for name in sorted(names_in(drm)):
        if not re.fullmatch(r"card[0-9]+", name):
            continue  # a connector or a render node
        folder = f"{drm}/{name}/device"
        driver = _link_name(f"{folder}/driver")
        if driver in DRIVERS:
            yield Card(
                name,
                driver,
                _link_name(folder),
                folder,
                _number(f"{folder}/mem_info_vram_total"),
                _number(f"{folder}/mem_info_gtt_total"),
            )


def descriptions(processes: str, pid: int) -> Iterator[tuple[Client, str]]:
    """Yield the client and the path of every GPU descriptor of a process. Raises OSError."""
    folder = f"{processes}/{pid}"
    for number in os.listdir(f"{folder}/fd"):  # noqa: PTH208  # because a Path for each name costs more than the names
        if not _target(f"{folder}/fd/{number}").startswith("/dev/dri/"):
            continue
        path = f"{folder}/fdinfo/{number}"
        client = _client(path, pid)
        if client is not None:
            yield client, path


def _holds_memory(processes: str, pid: int) -> bool:
    """Whether a client of the process holds memory. Raises OSError."""
    found = descriptions(processes, pid)
    return any((client.vram_bytes or 0) + (client.gtt_bytes or 0) for client, _ in found)


def _client(path: str, pid: int) -> Client | None:
    """Return the client that a description tells; None when it has been closed. Raises OSError."""
    try:
        return parse_fdinfo(read_text(path), pid)
    except (FileNotFoundError, ProcessLookupError):
        return None


def _target(link: str) -> str:
    """Return what a link points to; nothing for one that has been closed."""
    try:
        return os.readlink(link)  # noqa: PTH115  # because a Path for each descriptor is most of the cost
    except FileNotFoundError:
        return ""


def _link_name(link: str) -> str:
    try:
        return os.path.basename(os.readlink(link))  # noqa: PTH115, PTH119  # because it is text here
    except OSError:
        return ""


def _self(processes: str) -> str:
    return _link_name(f"{processes}/self")


def _number(path: str) -> int | None:
    try:
        return whole_number(read_text(path))
    except OSError:
        return None
