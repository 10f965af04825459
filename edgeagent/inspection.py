"""What can be seen on this box now?

The application side of `edgeagent monitor`, and how everybody reads all probes at once. Nothing is
started but NVML's own child, nothing is changed, and nothing that a probe meets ends the
inspection. Documents are plain JSON values.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any, Protocol, TypeAlias, runtime_checkable

from edgeagent.core.diagnosis import ProbeFacts
from edgeagent.errors import UsageError
from edgeagent.ports import Probe
from edgeagent.probes import box, catalogue, processes
from edgeagent.probes.host import HostProbe, process_root

MONITOR_SCHEMA = "edgeagent.monitor/1"

WARM_UP_S = 0.5
"""Between the two readings that rates (work of other processes, power) are taken from."""


@runtime_checkable
class Telling(Protocol):
    """A probe that also tells what does not change."""

    def facts(self) -> Mapping[str, object]:
        """Settings in words, names, versions."""
        ...


# ----------------------------------------------------------------------------------------- monitor


class Monitor:
    """Reads every probe, as often as it is asked. Raises UsageError for a `pid` that is none."""

    def __init__(self, environ: Mapping[str, str], pid: int | None = None) -> None:
        self._root = catalogue.sysroot(environ)
        self._proc = process_root(self._root)
        if pid is not None and not (self._proc / str(pid)).is_dir():
            raise UsageError(f"--pid {pid}: there is no such process")
        self._pid = pid
        self._probes = catalogue.probes_for(self._root, environ, "looking")
        self._boundary = catalogue.boundary_probes_for(self._root)
        self._host = box.host_facts(self._root)
        self._before: Moment | None = None

    def once(self) -> dict[str, Any]:
        """Return one reading with everything in it, the expensive probes too."""
        self.warm_up()
        return self._document((*self._probes, *self._boundary))

    def warm_up(self) -> None:
        """Read once and wait a moment, so that the next reading has rates."""
        self._document(self._probes)
        time.sleep(WARM_UP_S)

    def read(self) -> dict[str, Any]:
        """Return what the cheap probes see now."""
        return self._document(self._probes)

    def close(self) -> None:
        """Let go of what the probes hold."""
        for probe in (*self._probes, *self._boundary):
            probe.close()

    def _document(self, probes: Sequence[Probe]) -> dict[str, Any]:
        pids, running = self._engines()
        found = [read_probe(probe, pids) for probe in probes]
        values = all_values(found)
        before, self._before = self._before, (time.monotonic(), values)
        return {
            "schema": MONITOR_SCHEMA,
            "at": now(),
            "host": self._host,
            "engines": running,
            "values": values,
            "absent": {name: reason for one in found for name, reason in one.absent.items()},
            "rates": {} if before is None else rates(before, self._before),
            "facts": all_facts(probes),
        }

    def _engines(self) -> tuple[tuple[int, ...], list[dict[str, object]]]:
        """The processes that readings are about, and the engines among them."""
        everyone = processes.scan(self._proc)
        running = processes.engines(everyone)
        if self._pid is not None:
            pids = processes.tree(everyone, self._pid)
            running = tuple(engine for engine in running if set(engine.pids) & set(pids))
        else:
            pids = tuple(dict.fromkeys(pid for engine in running for pid in engine.pids))
        return pids, [self._engine(engine) for engine in running]

    def _engine(self, engine: processes.RunningEngine) -> dict[str, object]:
        values, _ = HostProbe(self._root).read(engine.pids)
        return {
            "kind": engine.kind,
            "pid": engine.pids[0],
            "processes": len(engine.pids),
            "model": engine.model,
            "port": engine.port,
            "anon_bytes": values.get("engine.anon_bytes"),
            "mapped_bytes": values.get("engine.mapped_bytes"),
        }


Moment: TypeAlias = "tuple[float, Mapping[str, float | int | None]]"
"""When, in seconds of a clock that never steps, and what was read then."""


def rates(before: Moment, now: Moment) -> dict[str, float]:
    """Return by how much each counter grew a second; one that fell was reset, and has none."""
    passed_s = now[0] - before[0]
    found = {}
    for name, value in now[1].items():
        earlier = before[1].get(name)
        if passed_s > 0 and _counts(name) and value is not None and earlier is not None:
            grown = value - earlier
            # An energy counter that stands still does not count: no chip takes nothing.
            if grown > 0 or (grown == 0 and not name.endswith("_j")):
                found[name] = grown / passed_s
    return found


def _counts(name: str) -> bool:
    """Whether a value is a total since boot."""
    return name.endswith(("_j", "_pages", ".throttle_s")) or (
        name.startswith(("pressure.", "vm.")) and not name.endswith("_bytes")
    )


def read_probe(probe: Probe, pids: Sequence[int]) -> ProbeFacts:
    """Return what a probe sees now; one with a bug says so instead."""
    try:
        values, absent = probe.read(pids)
    except Exception as error:  # noqa: BLE001  # because a bug in one probe must not hide the others
        reason = f"{type(error).__name__}: {error}"
        return ProbeFacts(probe.name, {probe.name: None}, {probe.name: reason})
    return ProbeFacts(probe.name, values, absent)


def all_values(found: Sequence[ProbeFacts]) -> dict[str, float | int | None]:
    """Return every value by its name."""
    return {name: value for one in found for name, value in one.values.items()}


def all_facts(probes: Sequence[Probe]) -> dict[str, Mapping[str, object]]:
    """Return what probes tell of what does not change, by their names."""
    found: dict[str, Mapping[str, object]] = {}
    for probe in probes:
        if isinstance(probe, Telling):
            with suppress(Exception):  # what a probe cannot tell of itself is not worth an end
                found[probe.name] = dict(probe.facts())
    return found


def now() -> str:
    """Return this moment, in UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
