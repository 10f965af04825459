"""How much processor time goes to programs that are neither ours nor the engine?

What all processes used is in /proc/stat, what the agent and the engine used in their own
/proc/PID/stat: their time, and that of children that they have waited for. So a process that ends
between two looks stays in the sum, with its parent. What is left over is foreign. Time that a
hypervisor gave to somebody else (steal) is foreign as well; interrupts are nobody's.

The clock is /proc/stat itself (all ticks of all cores, idle ones included), so a recorded tree
needs no other, and a tree in which nothing moves gives None.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_STAT_BYTES = 1 << 15
"""The lines of some two hundred cores; the counts of interrupts come after them."""


@dataclass(frozen=True)
class BoxTicks:
    """Clock ticks since boot, summed over all cores."""

    busy: int
    passed: int
    """Busy or not."""
    cores: int


@dataclass(frozen=True)
class ProcessTicks:
    """Clock ticks that a process and its finished children have used."""

    name: str
    used: int
    of_children: int = 0
    """What finished children had used: it comes all at once, when they are buried."""

    @property
    def alone(self) -> int:
        """What it has used itself."""
        return self.used - self.of_children


class ForeignCpu:
    """Foreign processor time since the look before; the agent and its helpers are not foreign."""

    def __init__(self, proc: Path, processes: Path, agent: int | None = None) -> None:
        self._stat = str(proc / "stat")
        self._processes = str(processes)
        self._agent = os.getpid() if agent is None else agent
        self._before: tuple[BoxTicks, int] | None = None

    def look(self, pids: Sequence[int]) -> tuple[BoxTicks | None, float | None, str]:
        """Return the box's ticks, foreign use in cores' worth, and why the latter is None."""
        box = parse_stat(_read(self._stat) or "")
        if box is None:
            return None, None, "/proc/stat could not be read"
        own = self._own_ticks(pids)
        before, self._before = self._before, (box, own)
        if before is None:
            return box, None, "it takes two readings to see what is used between them"
        return box, *foreign_cores(before, (box, own))

    def _own_ticks(self, pids: Sequence[int]) -> int:
        ours = own_tree(self._processes, self._agent, pids)
        texts = (_read(f"{self._processes}/{pid}/stat") for pid in ours)
        return sum(
            ticks.used
            for text in texts
            if text is not None and (ticks := parse_process(text)) is not None
        )


def own_tree(processes: str, agent: int, pids: Collection[int]) -> set[int]:
    """Return the agent, everything it started, and the engine's processes.

    Below the engine's processes nothing is looked for: `pids` has all of them, and they may have
    hundreds of threads. On a kernel that keeps no lists of children the agent's helpers are missed.
    """
    found: set[int] = set(pids)
    waiting = [agent]
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += _children(f"{processes}/{pid}/task")
    return found


def busiest_foreign(
    first: Mapping[int, ProcessTicks],
    later: Mapping[int, ProcessTicks],
    ours: Collection[int],
    seconds: float,
    most: int = 5,
) -> tuple[tuple[str, float], ...]:
    """Return who used the processor between two `look_at_all`: name and cores' worth, most first.

    Names only: a command line may hold what is nobody's business.
    """
    per_core = os.sysconf("SC_CLK_TCK") * seconds
    used: dict[str, int] = {}
    for pid, ticks in later.items():
        before = first.get(pid)
        if pid not in ours and before is not None and before.name == ticks.name:
            used[ticks.name] = used.get(ticks.name, 0) + max(0, ticks.alone - before.alone)
    ranked = sorted(used.items(), key=lambda item: (-item[1], item[0]))
    return tuple((name, ticks / per_core) for name, ticks in ranked[:most] if ticks)


def look_at_all(processes: Path) -> Mapping[int, ProcessTicks]:
    """Return what every process has used so far. Costs milliseconds: not for every sample."""
    found = {}
    for pid in _numbers(str(processes)):
        ticks = parse_process(_read(f"{processes}/{pid}/stat") or "")
        if ticks is not None:
            found[pid] = ticks
    return found


# ------------------------------------------------------------------------------------------ parsing


def foreign_cores(
    before: tuple[BoxTicks, int], now: tuple[BoxTicks, int]
) -> tuple[float | None, str]:
    """Return the cores' worth that others used between two looks, or why that is not known.

    A look is the ticks of the box and our own.

    The box's ticks are sampled and those of processes are not, so a little less than nothing may
    be left over: that is nothing.
    """
    (box_before, own_before), (box, own) = before, now
    passed = box.passed - box_before.passed
    if passed <= 0 or box.busy < box_before.busy:
        return None, "the counters of /proc/stat have not moved on"
    if own < own_before:
        return None, "a process of ours ended and took its count with it"
    foreign = box.busy - box_before.busy - (own - own_before)
    return max(0, foreign) * box.cores / passed, ""


def parse_stat(text: str) -> BoxTicks | None:
    """Return the ticks of all cores; None when the text does not begin with them.

    user nice system idle iowait irq softirq steal; guests are in user already.
    """
    lines = text.splitlines()
    words = lines[0].split() if lines else []
    if len(words) < 5 or words[0] != "cpu":  # noqa: PLR2004  # because idle is the fourth number and every kernel has it
        return None
    ticks = _integers(words[1:9])
    if ticks is None:
        return None
    user, nice, system, *others = ticks
    steal = others[4] if len(others) > 4 else 0  # noqa: PLR2004  # because steal is the eighth number
    cores = sum(1 for line in lines if line.startswith("cpu")) - 1
    return BoxTicks(user + nice + system + steal, sum(ticks), max(1, cores))


def parse_process(text: str) -> ProcessTicks | None:
    """Return what a process has used, its finished children included; None for anything else."""
    head, _, tail = text.rpartition(")")
    name = head.partition("(")[2]
    # utime, stime, cutime, cstime are fields 14 to 17; the state, field 3, comes after the name.
    ticks = _integers(tail.split()[11:15])
    if not head or ticks is None or len(ticks) != 4:  # noqa: PLR2004  # because four were asked for
        return None
    return ProcessTicks(name, sum(ticks), sum(ticks[2:]))


def _integers(words: Iterable[str]) -> list[int] | None:
    try:
        return [int(word) for word in words]
    except ValueError:
        return None


# ------------------------------------------------------------------------------------------ reading


def _children(tasks: str) -> list[int]:
    """Return the children of every thread."""
    found: list[int] = []
    for thread in _numbers(tasks):
        text = _read(f"{tasks}/{thread}/children")
        found += _integers((text or "").split()) or []
    return found


def _numbers(folder: str) -> list[int]:
    try:
        return [int(name) for name in os.listdir(folder) if name.isdecimal()]  # noqa: PTH208  # because a Path for every process costs more than reading it
    except OSError:
        return []


def _read(path: str) -> str | None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(file, _STAT_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    finally:
        os.close(file)
