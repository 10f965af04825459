"""Can the engine get a control group of its own, and which?

Where the agent's own cgroup (v2) was delegated to it, each engine gets a leaf `engine-N` beside or
below it: the kernel then ends all of the engine in one go (`cgroup.kill`), takes the whole engine
instead of one of its workers when memory runs out (`memory.oom.group`), keeps it out of swap, and
counts its memory apart. Everywhere else there is a reason and nothing is lost but that: the keeper
ends the engine process by process (keeper.py).

Whose cgroup is it? One that belongs to our user, or that systemd marked as delegated
(`user.delegate`, `trusted.delegate`). Being root is no permission: a leaf in somebody else's tree
(a login session, the root) would get in the way of whoever manages it. An agent in a subgroup named
`agent` makes the leaves beside that, because a group with processes in it may not hand controllers
on: systemd puts a service there (DelegateSubgroup, 254 and later), else the service moves itself
(`make_room`). EDGEAGENT_CGROUP_ROOT names the folder for the leaves instead.

EDGEAGENT_ENGINE_MEMORY_MAX (bytes, or with K, M, G or T) is the most memory that one engine may
have, the file pages that it maps included. Who sets it relies on it, so an engine that cannot be
held to it is not started.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

ROOT_VARIABLE = "EDGEAGENT_CGROUP_ROOT"
LIMIT_VARIABLE = "EDGEAGENT_ENGINE_MEMORY_MAX"
_LIMIT = re.compile(r"[1-9][0-9]{0,18}[KMGT]?")
_MOUNTS = ("sys/fs/cgroup", "sys/fs/cgroup/unified")
"""Where version 2 is mounted: alone, or beside version 1."""
_AGENT_GROUP = "agent"
_MOST_LEAVES = 64
_STALE_S = 60.0
_SETTINGS: Mapping[str, str] = {"memory.oom.group": "1", "memory.swap.max": "0"}
_DELEGATED = ("user.delegate", "trusted.delegate")


@dataclass(frozen=True)
class Leaf:
    """An engine's own cgroup, or why it has none: exactly one is set."""

    folder: Path | None = None
    reason: str | None = None
    set: tuple[str, ...] = ()
    """Files that were written."""
    unlimited: str | None = None
    """Why the engine is not held to the limit that was asked for; None when it is, or none was."""

    def kill(self) -> None:
        """End everything in it at once, where the kernel can (5.14 and later)."""
        if self.folder is not None:
            _write(self.folder / "cgroup.kill", "1")

    def remove(self) -> None:
        """Take it away; one that still holds a process stays."""
        if self.folder is not None:
            with contextlib.suppress(OSError):
                self.folder.rmdir()

    def details(self, pid: int) -> Mapping[str, object]:
        """For the record: the group that `pid` is really in, or why it is in none of its own."""
        if self.folder is None:
            return {"reason": self.reason}
        if not _holds(self.folder, pid):
            return {"reason": f"the engine could not move itself to {self.folder}"}
        return {"folder": str(self.folder), "set": list(self.set)}


def make_leaf(environment: Mapping[str, str], root: Path = Path("/")) -> Leaf:
    """A fresh leaf for one engine, or the reason for none. Never raises."""
    leaf = _made(environment, root)
    asked = environment.get(LIMIT_VARIABLE)
    return leaf if not asked else _limited(leaf, asked)


def _limited(leaf: Leaf, asked: str) -> Leaf:
    if not _LIMIT.fullmatch(asked):
        why = "this is no amount of memory: write 12G, or bytes"
    elif leaf.folder is None:
        why = f"{leaf.reason}"
    elif not _write(leaf.folder / "memory.max", asked):
        why = "no memory controller is handed on to the engine's cgroup"
    else:
        return replace(leaf, set=(*leaf.set, "memory.max"))
    return replace(leaf, unlimited=f"{LIMIT_VARIABLE} is {asked}, and cannot be kept: {why}")


def _made(environment: Mapping[str, str], root: Path) -> Leaf:
    asked = environment.get(ROOT_VARIABLE)
    place = Place(folder=Path(asked)) if asked else find_place(root)
    if place.folder is None:
        return Leaf(reason=place.reason)
    try:
        folder = _new_folder(place.folder)
    except OSError as error:
        return Leaf(reason=f"{place.folder} takes no group for an engine: {error.strerror}")
    leaf = Leaf(folder, set=set_up(folder))
    if not os.access(folder / "cgroup.procs", os.W_OK, effective_ids=True):
        leaf.remove()
        return Leaf(reason=f"{place.folder} is no cgroup that takes processes")
    return leaf


def make_room(environment: Mapping[str, str], root: Path = Path("/")) -> None:
    """Move this process into `agent` below its cgroup, if it is a service with that delegated.

    Only the very process that systemd started does (SYSTEMD_EXEC_PID): a daemon that somebody runs
    by hand shares its group with others. Never raises; without it there are leaves all the same,
    and the kernel does not count their memory.
    """
    if environment.get("SYSTEMD_EXEC_PID") != str(os.getpid()) or ROOT_VARIABLE in environment:
        return
    place = find_place(root)
    if place.folder is None or not place.folder.name.endswith(".service"):
        return
    if _holds(place.folder, os.getpid()):
        own = place.folder / _AGENT_GROUP
        with contextlib.suppress(OSError):
            own.mkdir(exist_ok=True)
        _write(own / "cgroup.procs", "0")


@dataclass(frozen=True)
class Place:
    """The folder in which leaves may be made, or why there is none: exactly one is set."""

    folder: Path | None = None
    reason: str | None = None


def find_place(root: Path = Path("/")) -> Place:
    """Where this process may make leaves, by what the files below `root` say."""
    try:
        own = own_group((root / "proc/self/cgroup").read_text(encoding="utf-8"))
    except OSError as error:
        return Place(reason=f"/proc/self/cgroup could not be read: {error.strerror}")
    if own is None:
        return Place(reason="the kernel or the container has no cgroup v2")
    if own == "/":
        return Place(reason="the agent is in the root of the cgroups, which nobody delegates")
    for mount in _MOUNTS:
        folder = root / mount / own.lstrip("/")
        if (folder / "cgroup.procs").exists():
            break
    else:
        return Place(reason=f"the agent's cgroup {own} is not mounted where it can be seen")
    if folder.name == _AGENT_GROUP:
        folder = folder.parent
    if not _ours(folder):
        return Place(reason=f"the agent's cgroup {own} was not delegated to it")
    return Place(folder=folder)


def own_group(text: str) -> str | None:
    """Our cgroup of version 2 from /proc/self/cgroup; None where there is none."""
    for line in text.splitlines():
        if line.startswith("0::/"):
            return line.removeprefix("0::")
    return None


def _ours(folder: Path) -> bool:
    if not os.access(folder / "cgroup.procs", os.W_OK, effective_ids=True):
        return False
    user = os.geteuid()
    if user != 0 and folder.stat().st_uid == user:
        return True
    for name in _DELEGATED:
        with contextlib.suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    return False


def _new_folder(place: Path) -> Path:
    # Only where the place itself holds no process; then the leaves get the memory controller.
    _write(place / "cgroup.subtree_control", "+memory")
    for number in range(1, _MOST_LEAVES + 1):
        folder = place / f"engine-{number}"
        with contextlib.suppress(OSError):
            # Left by an agent and a keeper that were both killed, unless it is so young that its
            # engine may be about to move in.
            if time.time() - folder.stat().st_mtime > _STALE_S:
                folder.rmdir()
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise FileExistsError(0, f"it holds {_MOST_LEAVES} already")


def set_up(folder: Path) -> tuple[str, ...]:
    """Write the settings whose files the kernel offers; their names."""
    return tuple(name for name, value in _SETTINGS.items() if _write(folder / name, value))


def _write(path: Path, text: str) -> bool:
    """Whether an existing file took the text."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(file, text.encode())
    except OSError:
        return False
    finally:
        os.close(file)
    return True


def _holds(folder: Path, pid: int) -> bool:
    try:
        return str(pid) in (folder / "cgroup.procs").read_text(encoding="utf-8").split()
    except OSError:
        return False
