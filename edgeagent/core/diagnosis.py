"""Is what was found on this box good enough to measure with, and what is to be done where not?

Facts in, one `Check` each out. `missing` is something this box does not have and can do without;
`warning` may spoil numbers; `fault` is something that should work here and does not; `unasked` is
what could not be looked at, or was not to be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from edgeagent.core.model import Finding

State = Literal["ok", "missing", "warning", "fault", "unasked"]

WORST_FIRST: tuple[State, ...] = ("fault", "warning", "missing", "unasked", "ok")

_MIB = 1 << 20
_GIB = 1 << 30

FULL_BYTES = 64 * _MIB
"""Free space below which a run folder is sure to be cut off."""
TIGHT_BYTES = 1 * _GIB
SWAPPED_BYTES = 256 * _MIB
"""Swap in use above which an engine may be measured that partly lies on disk."""
QUICK_CLOCKS = frozenset({"tsc", "arch_sys_counter", "kvm-clock", "hyperv_clocksource_tsc_page"})

NVIDIA_KO = frozenset({"dgpu", "uma-nvidia"})
"""Classes of box on which NVML must work."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    state: State
    text: str
    hint: str | None = None
    """What to do; None where there is nothing to do."""


def worst(checks: Iterable[Check]) -> State:
    """Return the worst state among them; `ok` for none."""
    states = {check.state for check in checks}
    return next((state for state in WORST_FIRST if state in states), "ok")


# ------------------------------------------------------------------------------------ class of box

_CLASSES = {
    "dgpu": "an NVIDIA GPU with memory of its own",
    "uma-nvidia": "an NVIDIA GPU that shares the host's memory, under the nvidia kernel module",
    "uma-nvgpu": "a Jetson whose GPU shares the host's memory, under the nvgpu kernel module",
    "amd": "a graphics card of AMD",
    "intel": "a graphics card of Intel",
    "cpu": "no driver of a GPU shows",
}


def box(kind: str, evidence: Sequence[str], notes: Sequence[str] = ()) -> Check:
    """Say which class of box this is and by what; that is never wrong, only known or not."""
    seen = f"; seen: {', '.join(evidence)}" if evidence else ""
    told = "".join(f"; {note}" for note in notes)
    return Check("box", "ok", f"{kind}: {_CLASSES.get(kind, 'a class of its own')}{seen}{told}")


# ------------------------------------------------------------------------------------------ probes


@dataclass(frozen=True)
class ProbeFacts:
    """What one probe said when it was asked."""

    name: str
    values: Mapping[str, float | int | None]
    absent: Mapping[str, str] = field(default_factory=dict)


def probe(found: ProbeFacts, no_engine: str) -> Check:
    """Judge a source by what it gave; values that only a running engine has do not count.

    Why each of several values is absent stands with the probe itself: here their names are enough.
    """
    name = f"probe.{found.name}"
    due = [value for value in found.values if found.absent.get(value) != no_engine]
    lacking = [value for value in due if found.values[value] is None]
    read = len(due) - len(lacking)
    if not due:
        return Check(name, "ok", "has values once an engine runs")
    if not read:
        reasons = dict.fromkeys(found.absent.get(value, "no reason given") for value in lacking)
        return Check(name, "missing", "; ".join(reasons))
    text = f"{read} {'value' if read == 1 else 'values'}"
    if lacking:
        text += f", without {_some([_short(value) for value in lacking], 4)}"
    return Check(name, "ok", text)


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _some(names: Sequence[str], shown: int = 3) -> str:
    distinct = list(dict.fromkeys(names))
    more = f" and {len(distinct) - shown} more" if len(distinct) > shown else ""
    return ", ".join(distinct[:shown]) + more


# -------------------------------------------------------------------------------------------- NVML

_NVML_HINTS = {
    "crashed": "NVML itself crashes here: update the driver, or its part in this container",
    "did not answer": "NVML hangs here: see dmesg, and reboot",
    "not answered": "NVML hangs here, or needs long to wake the GPU: try again, see dmesg",
}
_TRY_SMI = "run nvidia-smi: it uses the same library"
_ALWAYS_WRONG = "version_mismatch"
"""Whatever the box is: the library and the kernel's module are of two drivers."""
_OWN_FILES = "this Jetson is read through its own files instead"


def nvml(kind: str, devices: int | None, reason: str, library: Literal["there", "absent"]) -> Check:
    """Judge whether NVML can be used; only where NVIDIA's kernel module runs it has to be."""
    name = "nvml"
    if devices:
        return Check(name, "ok", f"NVML answers for {devices} GPU{'' if devices == 1 else 's'}")
    if devices is not None:
        return _unusable(kind, "NVML answers and lists no GPU", _TRY_SMI)
    if library == "there":
        text, hint = _apart(reason)
        return _unusable(kind, text, hint)
    if kind in NVIDIA_KO:
        hint = "install the driver's libraries; in a container, start it with the NVIDIA runtime"
        return Check(name, "fault", f"the nvidia kernel module is loaded, but {reason}", hint)
    return Check(name, "missing", reason)


def _apart(reason: str) -> tuple[str, str]:
    """Return what was seen and what to do: NVML's words have their hint in parentheses."""
    seen = reason.removeprefix("NVML cannot be used: ")
    for word, hint in _NVML_HINTS.items():
        if word in seen:
            return seen, hint
    text, opening, rest = seen.partition(" (")
    return (text, rest[:-1]) if opening and rest.endswith(")") else (seen, _TRY_SMI)


def _unusable(kind: str, text: str, hint: str) -> Check:
    name = "nvml"
    if _ALWAYS_WRONG in text or kind in NVIDIA_KO:
        return Check(name, "fault", text, hint)
    if kind == "uma-nvgpu":
        return Check(name, "missing", f"{text}; {_OWN_FILES}")
    return Check(name, "warning", text, hint)


def device(kind: str, uuid: str, name: str | None, calls: Mapping[str, str]) -> Check:
    """Judge one GPU by which NVML calls it answers; `calls` has `ok` for each, or a word why not.

    Every driver refuses something, so that is a fault only where the GPU has been lost.
    """
    title, label = f"gpu.{uuid}", name or "a GPU without a name"
    works = [call for call, word in calls.items() if word == "ok"]
    refused = _by_word(calls)
    if any("lost" in word or word == "reset_required" for word in calls.values()):
        text = f"{label} has been lost: NVML says {', '.join(refused)}"
        return Check(title, "fault", text, "dmesg tells the Xid; check power and cooling, reboot")
    told = f"{label}: {len(works)} of {len(calls)} calls {'works' if len(works) == 1 else 'work'}"
    told += "".join(f"; {word}: {_some(names, 4)}" for word, names in refused.items())
    if works:
        return Check(title, "ok", told)
    if kind == "uma-nvgpu":
        return Check(title, "missing", f"{told}; {_OWN_FILES}")
    return Check(title, "warning", told, _TRY_SMI)


def _by_word(calls: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for call, word in calls.items():
        if word != "ok":
            found.setdefault(word, []).append(call)
    return found


# ------------------------------------------------------------------------------------- permissions


@dataclass(frozen=True)
class Nodes:
    """The device files through which a GPU is reached, by what this user may do with them."""

    usable: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    """Those that an engine on this class of box needs and that do not exist."""
    groups: tuple[str, ...] = ()
    """The groups that own what is refused."""


def nodes(kind: str, found: Nodes) -> Check:
    """Judge whether an engine of this user could reach the GPU."""
    name = "permissions.gpu"
    if found.refused:
        text = f"{_some(found.refused)} cannot be opened by this user, so engines run on the CPU"
        groups = " and ".join(found.groups) or "video and render"
        return Check(name, "fault", text, f"add the user to the group {groups}, then log in again")
    if found.lacking:
        text = f"not there: {_some(found.lacking)}; an engine falls back to the CPU without a word"
        hint = "load the driver's modules; in a container, hand the device files on"
        return Check(name, "warning", text, hint)
    if found.usable:
        return Check(name, "ok", f"{_some(found.usable)} can be opened")
    if kind == "cpu":
        return Check(name, "missing", "no device files of a GPU")
    return Check(
        name,
        "warning",
        "there is a GPU driver and no device file to reach it by",
        "in a container, hand the device files on",
    )


Access = Literal["readable", "refused", "absent"]


def rapl(access: Access) -> Check:
    """Judge whether the processor's energy counter can be read."""
    name = "permissions.energy"
    if access == "refused":
        text = "the processor counts its energy (RAPL), and only root may read it"
        hint = "to measure energy: chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj"
        return Check(name, "missing", text, hint)
    if access == "absent":
        return Check(name, "missing", "the processor shows no energy counter (RAPL)")
    return Check(name, "ok", "the processor's energy counter (RAPL) can be read")


def nvmap(kind: str, access: Access) -> Check | None:
    """Judge whether GPU memory can be told by process on a Jetson; None where there is no nvmap."""
    name = "permissions.nvmap"
    if kind != "uma-nvgpu":
        return None
    if access == "readable":
        return Check(name, "ok", "GPU memory is told by process, through the nvmap helper")
    text = "GPU memory is known for the whole board, not by process: the nvmap helper "
    if access == "refused":
        hint = "add the user to the group edgeagent"
        return Check(name, "warning", text + "does not let this user in", hint)
    hint = "install edgeagent-nvmap.socket, or keep the board quiet while measuring"
    return Check(name, "missing", text + "is not installed", hint)


# ------------------------------------------------------------------------------------------ clocks


def stamps(received: bool | None, reason: str | None = None) -> Check:  # noqa: FBT001  # because it is a finding, not a switch
    """Judge whether the kernel stamps what arrives; None when even that could not be tried."""
    name = "clocks.stamps"
    if received:
        return Check(name, "ok", "the kernel stamps the arrival of every token")
    tried = f": {reason}" if reason else ""
    return Check(
        name,
        "warning",
        f"the kernel gives no receive stamps on loopback{tried}; times include our own delay",
        "keep a core free for the agent",
    )


def wall_clock(synchronised: bool | None) -> Check:  # noqa: FBT001  # because it is a finding, not a switch
    """Judge the wall clock: durations do not need it, comparing boxes does."""
    name = "clocks.wall"
    if synchronised is None:
        return Check(name, "missing", "the kernel does not tell whether the wall clock is right")
    if synchronised:
        return Check(name, "ok", "the wall clock is synchronised")
    text = "the wall clock is not synchronised: durations are right, dates of results may not be"
    return Check(name, "warning", text, "switch NTP on (timedatectl set-ntp true)")


def clock_source(name: str | None) -> Check:
    """Judge how costly it is to read the time."""
    title = "clocks.source"
    if name is None:
        return Check(title, "missing", "the kernel does not tell its clock source")
    if name in QUICK_CLOCKS:
        return Check(title, "ok", f"{name}, which is read without entering the kernel")
    return Check(
        title, "warning", f"{name}: every look at the time enters the kernel, microseconds each",
        "see dmesg for why the kernel gave up the processor's own counter",
    )  # fmt: skip


# ---------------------------------------------------------------------------------- memory of host


@dataclass(frozen=True)
class CgroupFacts:
    """How the kernel's control groups are laid out, and whether we may make our own."""

    layout: Literal["v2", "hybrid", "v1", "none"]
    path: str | None
    delegated: bool
    controllers: tuple[str, ...] = ()


def host_memory(total_bytes: float | None, available_bytes: float | None) -> Check:
    """Judge whether the host's memory is known: without it no launch can be judged."""
    name = "memory.host"
    if total_bytes is None or available_bytes is None:
        text = "the kernel does not tell how much memory is available, so no start can be judged"
        return Check(name, "fault", text, "make /proc/meminfo readable for this user")
    return Check(name, "ok", f"{size(available_bytes)} of {size(total_bytes)} are available")


def cgroup(found: CgroupFacts, limit_bytes: float | None = None) -> Check:
    """Judge whether an engine can be given a group of its own, and say what limits it."""
    name = "memory.cgroup"
    if found.layout == "none":
        return Check(name, "missing", "no control groups are mounted")
    if found.layout in {"v1", "hybrid"}:
        version = "version 1" if found.layout == "v1" else "version 1 beside an empty version 2"
        text = f"control groups are {version}: engines get none of their own, and are ended by "
        return Check(name, "missing", text + "process instead")
    limit = "" if limit_bytes is None else f"; engines may use {size(limit_bytes)}"
    if not found.delegated:
        text = f"the control group {found.path or '/'} is not this user's, so engines are ended by "
        hint = "run under the service, or with systemd-run --user --scope -p Delegate=yes"
        return Check(name, "missing", f"{text}process{limit}", hint)
    if "memory" not in found.controllers:
        text = "version 2, delegated; the memory controller is not handed on"
        return Check(name, "ok", text + limit)
    return Check(name, "ok", "version 2, delegated with memory accounting" + limit)


def pressure(values: Mapping[str, float | int | None]) -> Check:
    """Judge whether the kernel tells stalls."""
    name = "memory.pressure"
    if any(value is not None for key, value in values.items() if key.startswith("pressure.")):
        return Check(name, "ok", "the kernel tells for how long tasks wait (PSI)")
    text = "the kernel does not tell for how long tasks wait (PSI): shortage shows by paging alone"
    return Check(name, "missing", text, "boot with psi=1, where the kernel has it")


def swap(used_bytes: float | None, zram_bytes: float | None) -> Check:
    """Judge whether part of what will be measured may lie on disk."""
    name = "memory.swap"
    if used_bytes is None:
        return Check(name, "missing", "the kernel does not list its swap")
    zram = f", {size(zram_bytes)} of memory hold compressed swap (zram)" if zram_bytes else ""
    if used_bytes >= SWAPPED_BYTES:
        return Check(
            name, "warning", f"{size(used_bytes)} of swap are in use{zram}",
            "end what is not needed, then swapoff -a and swapon -a, before measuring",
        )  # fmt: skip
    used = f"{size(used_bytes)} in use" if used_bytes else "none in use"
    return Check(name, "ok", used + zram)


def at_rest(
    doubts: Iterable[Finding], busiest: Sequence[tuple[str, float]] = ()
) -> tuple[Check, ...]:
    """Return a check for each doubt that a sweep would have about this box now (core/gates.py).

    `busiest` names the programs that use the processor, each with its cores' worth.
    """
    found = []
    for doubt in doubts:
        text, _, hint = doubt.text.partition(": ")
        if doubt.code == "foreign_cpu" and busiest:
            text += f" ({', '.join(f'{name} {cores:.1f}' for name, cores in busiest[:3])})"
        state: State = "ok" if doubt.severity == "info" else "warning"
        found.append(Check(f"hygiene.{doubt.code}", state, text, hint or None))
    return tuple(found)


# ------------------------------------------------------------------------------------- disk, parts


@dataclass(frozen=True)
class Place:
    """A folder that will be written to."""

    path: str
    free_bytes: int | None
    writable: bool
    mounted: Literal["read-write", "read-only"] = "read-write"


Disk = Literal["runs", "cache", "state", "results", "spool"]

_ELSEWHERE: Mapping[Disk, str] = {
    "runs": "give --out, or ",
    "cache": "set XDG_CACHE_HOME, or ",
    "state": "set agent.state_dir, or ",
    "results": "set agent.runs_dir, or ",
    "spool": "set mqtt.spool.path, or ",
}
_NEVER_MIND: Disk = "cache"
"""It saves time, and nothing else is lost with it."""


def disk(what: Disk, place: Place, leave_bytes: int = 0, whose: str = "") -> Check:
    """Judge whether there is room; only the cache is not needed.

    `leave_bytes` is what is left to everybody else: nothing is taken in with less. `whose` says on
    whose behalf it was looked at, where that is not the user who asks.
    """
    name = f"disk.{what}"
    serious: State = "warning" if what == _NEVER_MIND else "fault"
    move = _ELSEWHERE[what]
    if place.mounted == "read-only":
        text = f"{place.path} cannot be written: its file system is read-only"
        hint = "mount it read-write; dmesg says why it is not, mostly a disk that fails"
        return Check(name, serious, text, move + hint)
    if not place.writable:
        by = f" by {whose}" if whose else ""
        text = f"{place.path} cannot be written{by}"
        return Check(
            name, serious, text, move + (f"chown it to {whose}" if whose else "make it writable")
        )
    if place.free_bytes is None:
        return Check(name, "warning", f"{place.path}: its free space could not be read")
    free = f"{size(place.free_bytes)} free in {place.path}"
    if place.free_bytes < max(FULL_BYTES, leave_bytes):
        left = f"; {size(leave_bytes)} are left to others, so nothing more is taken in"
        return Check(name, serious, free + (left if leave_bytes else ""), move + "make room")
    if place.free_bytes < leave_bytes + TIGHT_BYTES:
        return Check(name, "warning", free, move + "make room")
    return Check(name, "ok", free)


@dataclass(frozen=True)
class Program:
    """An engine's program, as far as it was found."""

    path: str | None
    version: str | None = None
    reason: str | None = None
    """Why the version is not known."""


def llama_server(found: Program) -> Check:
    """Judge the llama-server that a sweep would take."""
    name = "engine.llamacpp"
    if found.path is None:
        return Check(
            name, "missing", "no llama-server in PATH",
            "give --binary, or put it into PATH or EDGEAGENT_LLAMA_SERVER",
        )  # fmt: skip
    if found.version is None:
        return Check(
            name, "fault", f"{found.path} does not tell its version: {found.reason}",
            "run it with --version yourself: it has to start on this box",
        )  # fmt: skip
    return Check(name, "ok", f"{found.version} at {found.path}")


def vllm(found: Program) -> Check:
    """Say whether there is a vLLM; what its package does not tell would take a minute to ask."""
    if found.path is None:
        return Check("engine.vllm", "missing", "no vllm in PATH")
    if found.version is None:
        text = f"at {found.path}; its version is asked when it is started"
        return Check("engine.vllm", "ok", text)
    return Check("engine.vllm", "ok", f"{found.version} at {found.path}")


def libraries(python: str, versions: Mapping[str, str | None]) -> Check:
    """Judge what the agent itself is made of."""
    name = "agent.libraries"
    lacking = sorted(library for library, version in versions.items() if version is None)
    if lacking:
        text = f"{', '.join(lacking)} is not installed"
        return Check(name, "fault", text, "install edgeagent again, with its dependencies")
    told = ", ".join(f"{library} {version}" for library, version in versions.items())
    return Check(name, "ok", f"Python {python}, {told}")


def broker(configured: str | None) -> Check:
    """Say where results go; nothing is connected."""
    if configured is None:
        return Check("broker", "missing", "not configured: results stay on this box")
    return Check("broker", "ok", configured)


# ------------------------------------------------------------------------------------------ wording


def size(amount_bytes: float) -> str:
    """Return an amount of memory as people read it."""
    if amount_bytes >= _GIB:
        return f"{amount_bytes / _GIB:.1f} GiB"
    return f"{amount_bytes / _MIB:.0f} MiB"
