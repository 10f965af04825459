"""How much memory does the kernel charge to the engine's own cgroup, and what is its limit?

Cgroup v2 only. A number is the engine's only where the engine has a cgroup to itself: one that the
agent lives in too, or in which other services run, tells of all of them. A limit holds for the
engine in either case, and the tightest one between its cgroup and the root counts.

On NVIDIA's unified memory (Thor, GB10) what a GPU allocates is charged to no cgroup; and a page of
a file is charged to whoever touched it first, so a second run on a warm cache looks cheaper.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from edgeagent.ports import Readings
from edgeagent.probes.host import (
    ENGINE_ENDED,
    NO_ENGINE,
    nothing,
    process_root,
    read_text,
    whole_number,
)

ENGINE_NAMES = (
    "cgroup.engine_current_bytes",
    "cgroup.engine_anon_bytes",
    "cgroup.engine_file_bytes",
    "cgroup.engine_oom_kills",
)
LIMIT = "cgroup.limit_bytes"

V1 = "memory is accounted by cgroup v1 here; only v2 is read"
OUTSIDE = "the cgroup lies outside of what this container shows"
SHARED = "the engine shares its cgroup with the agent, so its numbers are not the engine's alone"
SCATTERED = "the engine's processes are in several cgroups"


class CgroupProbe:
    """What cgroup v2 says of the engine: see `Probe`. Under v1 only the limit is told, as None."""

    name = "cgroup"

    def __init__(self, root: Path = Path("/"), processes: Path | None = None) -> None:
        self._mount = str(root / "sys/fs/cgroup")
        self._processes = str(processes or process_root(root))

    def read(self, pids: Sequence[int]) -> Readings:
        """Return the charges of now; without an engine, the limit that holds for the agent."""
        agent = self._place("self")
        if agent.path is None:
            return nothing((LIMIT,), agent.reason)
        engine = self._of_engine(pids, agent.path)
        charges = (
            nothing(ENGINE_NAMES, engine.reason)
            if engine.path is None
            else self._charges(engine.path)
        )
        limit = self._limit(engine.limited_in or agent.path)
        return {**charges[0], **limit[0]}, {**charges[1], **limit[1]}

    def close(self) -> None:
        """Nothing is held between readings."""

    def facts(self) -> Mapping[str, object]:
        """Return the agent's own cgroup, or why there is none that counts."""
        agent = self._place("self")
        return {"cgroup": agent.path, "cgroup_reason": agent.reason or None}

    def _place(self, pid: int | str) -> Place:
        try:
            return parse_cgroup(read_text(f"{self._processes}/{pid}/cgroup"))
        except (FileNotFoundError, ProcessLookupError):
            return Place(None, ENGINE_ENDED)
        except OSError as error:
            return Place(None, f"/proc/{pid}/cgroup could not be read: {error.strerror}")

    def _of_engine(self, pids: Sequence[int], agent: str) -> Place:
        """Return the cgroup that is the engine's alone, or why there is none."""
        if not pids:
            return Place(None, NO_ENGINE)
        places = {self._place(pid) for pid in pids} - {Place(None, ENGINE_ENDED)}
        return whose(places, agent)

    def _charges(self, path: str) -> Readings:
        folder = f"{self._mount}{path}"
        try:
            current = whole_number(read_text(f"{folder}/memory.current"))
            stat = parse_counts(read_text(f"{folder}/memory.stat"))
            events = parse_counts(read_text(f"{folder}/memory.events"))
        except FileNotFoundError:
            return nothing(ENGINE_NAMES, f"the memory controller is not on for the cgroup {path}")
        except OSError as error:
            return nothing(ENGINE_NAMES, f"the cgroup {path} could not be read: {error.strerror}")
        found = (current, stat.get("anon"), stat.get("file"), events.get("oom_kill"))
        values = dict(zip(ENGINE_NAMES, found, strict=True))
        why = "this kernel's cgroup does not tell it"
        return values, {name: why for name, value in values.items() if value is None}

    def _limit(self, path: str) -> Readings:
        """Return the tightest memory.max from the cgroup up to the root."""
        here = PurePosixPath(path)
        texts = []
        for level in (here, *here.parents):
            with suppress(OSError):  # a level without the controller limits nothing
                texts.append(read_text(f"{self._mount}{level}/memory.max"))
        if not texts:
            return nothing((LIMIT,), "no cgroup between here and the root accounts for memory")
        limit = tightest(texts)
        return ({LIMIT: limit}, {}) if limit is not None else nothing((LIMIT,), "no limit")


# ------------------------------------------------------------------------------------------ parsing


@dataclass(frozen=True)
class Place:
    """The cgroup of a process, below the mount point; None with the reason."""

    path: str | None
    reason: str = ""
    limited_in: str | None = None
    """Where the process is when `path` may not be told as the engine's alone; limits hold there."""


_LINE = re.compile(r"^[0-9]+:([^:\n]*):(/[^\n\0]*)$", re.MULTILINE)
_COUNT = re.compile(r"^(anon|file|oom_kill) ([0-9]{1,20})$", re.MULTILINE)


def parse_cgroup(text: str) -> Place:
    """Return the v2 cgroup of /proc/PID/cgroup, unless memory is accounted for by v1."""
    paths: dict[str, str] = dict(_LINE.findall(text))
    by_v1 = any("memory" in controllers.split(",") for controllers in paths)
    if by_v1 or "" not in paths:
        return Place(None, V1)
    path = paths[""]
    if path.startswith("/.."):
        return Place(None, OUTSIDE)
    return Place(path, limited_in=path)


def whose(places: Collection[Place], agent: str) -> Place:
    """Return the one place of the engine's processes, or why it is not the engine's alone."""
    if not places:
        return Place(None, ENGINE_ENDED)
    if len(places) > 1:
        return Place(None, SCATTERED)
    (place,) = places
    if place.path is None:
        return place
    if PurePosixPath(agent).is_relative_to(place.path):
        return Place(None, SHARED, limited_in=place.path)
    return place


def parse_counts(text: str) -> dict[str, int]:
    """Return what is needed of memory.stat and memory.events."""
    return {name: int(count) for name, count in _COUNT.findall(text)}


def tightest(limits: Iterable[str]) -> int | None:
    """Return the smallest limit in bytes; None when every one of them is "max"."""
    numbers = (whole_number(text) for text in limits)
    return min((number for number in numbers if number is not None), default=None)
