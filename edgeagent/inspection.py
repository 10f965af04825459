"""What can be seen on this box now, and what works here?

The application side of `edgeagent monitor` and `edgeagent doctor`. Nothing is started but NVML's
own child and `llama-server --version`, nothing is changed, and nothing that a probe meets ends the
inspection. Documents are plain JSON values.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from edgeagent import __version__
from edgeagent.core import diagnosis
from edgeagent.core.diagnosis import Check, ProbeFacts, Program
from edgeagent.core.gates import gates
from edgeagent.errors import UsageError
from edgeagent.ports import Probe
from edgeagent.probes import box, catalogue, foreign, processes, surroundings
from edgeagent.probes.host import NO_ENGINE, HostProbe, process_root
from edgeagent.probes.nvmap import HELPER
from edgeagent.probes.nvml import library_is_there

DOCTOR_SCHEMA = "edgeagent.doctor/1"
MONITOR_SCHEMA = "edgeagent.monitor/1"

WARM_UP_S = 0.5
"""Between the two readings that rates (work of other processes, power) are taken from."""
LLAMA_SERVER = "EDGEAGENT_LLAMA_SERVER"
_VERSION_S = 20.0
_RUNS = "edgeagent-runs"
_LIBRARIES = ("httpx", "h11", "nvidia-ml-py", "psutil", "pydantic", "rich", "structlog")


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
        found = [_read(probe, pids) for probe in probes]
        values = _values(found)
        before, self._before = self._before, (time.monotonic(), values)
        return {
            "schema": MONITOR_SCHEMA,
            "at": _now(),
            "host": self._host,
            "engines": running,
            "values": values,
            "absent": {name: reason for one in found for name, reason in one.absent.items()},
            "rates": {} if before is None else rates(before, self._before),
            "facts": _facts(probes),
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


def _read(probe: Probe, pids: Sequence[int]) -> ProbeFacts:
    try:
        values, absent = probe.read(pids)
    except Exception as error:  # noqa: BLE001  # because a bug in one probe must not hide the others
        reason = f"{type(error).__name__}: {error}"
        return ProbeFacts(probe.name, {probe.name: None}, {probe.name: reason})
    return ProbeFacts(probe.name, values, absent)


def _values(found: Sequence[ProbeFacts]) -> dict[str, float | int | None]:
    return {name: value for one in found for name, value in one.values.items()}


def _facts(probes: Sequence[Probe]) -> dict[str, Mapping[str, object]]:
    found: dict[str, Mapping[str, object]] = {}
    for probe in probes:
        if isinstance(probe, Telling):
            with suppress(Exception):  # what a probe cannot tell of itself is not worth an end
                found[probe.name] = dict(probe.facts())
    return found


# ------------------------------------------------------------------------------------------ doctor


def doctor(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return everything that was looked at, and what it is worth."""
    root = catalogue.sysroot(environ)
    host = box.host_facts(root)
    kind = str(host["class"])
    begun_s = time.monotonic()
    neighbours = Neighbours(process_root(root))
    probes = catalogue.probes_for(root, environ, "looking")
    try:
        first = _values([_read(probe, ()) for probe in probes])  # rates need two readings
        around = (*_permission_checks(root, kind), *_clock_checks(root), *_part_checks(environ))
        time.sleep(max(0.0, begun_s + WARM_UP_S - time.monotonic()))
        told = Told(
            tuple(_read(probe, ()) for probe in probes), _facts(probes), _capabilities(probes)
        )
    finally:
        for probe in probes:
            probe.close()
    checks = (
        diagnosis.box(kind, _evidence(host), _strings(host.get("class_notes"))),
        *_probe_checks(told),
        *_nvml_checks(kind, told, library_is_there(environ, root)),
        *diagnosis.at_rest(gates((first, told.values), told.facts, None), neighbours.busiest()),
        *_memory_checks(root, told.values),
        *around,
    )
    return {
        "schema": DOCTOR_SCHEMA,
        "at": _now(),
        "agent": {"version": __version__, "python": platform.python_version()},
        "host": host,
        "worst": diagnosis.worst(checks),
        "checks": [asdict(check) for check in checks],
        "probes": [asdict(one) for one in told.probes],
        "facts": told.facts,
        "capabilities": told.capabilities,
    }


@dataclass(frozen=True)
class Told:
    """What all probes told."""

    probes: tuple[ProbeFacts, ...]
    facts: Mapping[str, Mapping[str, object]]
    capabilities: Mapping[str, Mapping[str, str]]
    """By GPU and by call: `ok`, or NVML's word why not."""

    @property
    def values(self) -> Mapping[str, float | int | None]:
        """Every value by its name."""
        return _values(self.probes)


class Neighbours:
    """Who else uses the processor, from its making until it is asked."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._begun_s = time.monotonic()
        self._before = foreign.look_at_all(proc)

    def busiest(self) -> tuple[tuple[str, float], ...]:
        """Return names and cores' worth, most first; an engine that runs is named as well."""
        ours = foreign.own_tree(str(self._proc), os.getpid(), ())
        seconds = time.monotonic() - self._begun_s
        later = foreign.look_at_all(self._proc)
        return foreign.busiest_foreign(self._before, later, ours, seconds)


def exit_status(document: Mapping[str, object]) -> int:
    """Return 1 when something that should work here does not, else 0."""
    return 1 if document.get("worst") == "fault" else 0


def _evidence(host: Mapping[str, object]) -> tuple[str, ...]:
    """Return by what a box is known: its board, its GPUs, their driver."""
    names = [host.get("board"), *(gpu.get("name") for gpu in _mappings(host.get("gpus")))]
    driver = host.get("gpu_driver")
    return (*(str(name) for name in names if name), *([f"driver {driver}"] if driver else []))


def _mappings(value: object) -> list[Mapping[str, object]]:
    listed = value if isinstance(value, (list, tuple)) else ()
    return [item for item in listed if isinstance(item, Mapping)]


def _strings(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, (list, tuple)) else ()


@runtime_checkable
class Capable(Protocol):
    """A probe that tells which of its calls each device answers."""

    @property
    def capabilities(self) -> Mapping[str, Mapping[str, str]]:
        """By device and by call: `ok`, or a word why not."""
        ...


def _capabilities(probes: Sequence[Probe]) -> dict[str, dict[str, str]]:
    """Return what each device answers, call by call."""
    return {
        device: dict(calls)
        for probe in probes
        if isinstance(probe, Capable)
        for device, calls in probe.capabilities.items()
    }


def _probe_checks(told: Told) -> Iterator[Check]:
    """Judge each source; NVML and control groups are judged by more than their values."""
    for one in told.probes:
        if one.name not in {"gpu", "cgroup"}:
            yield diagnosis.probe(one, NO_ENGINE)


def _nvml_checks(kind: str, told: Told, has_library: bool) -> Iterator[Check]:  # noqa: FBT001  # because it is a finding, not a switch
    """Judge NVML as a whole, and each of its devices by the calls that it answers."""
    gpu = next((one for one in told.probes if one.name == "gpu"), ProbeFacts("gpu", {}))
    devices = gpu.values.get("gpu.devices")
    reason = gpu.absent.get("gpu.devices", "")
    library: Literal["there", "absent"] = "there" if has_library else "absent"
    yield diagnosis.nvml(kind, None if devices is None else int(devices), reason, library)
    listed = _mappings(told.facts.get("gpu", {}).get("devices"))
    names = {str(device.get("uuid")): str(device.get("name") or "") for device in listed}
    for uuid, calls in told.capabilities.items():
        yield diagnosis.device(kind, uuid, names.get(uuid) or None, calls)


def _permission_checks(root: Path, kind: str) -> tuple[Check, ...]:
    helper = surroundings.access(root / HELPER, os.R_OK | os.W_OK)
    checks = (
        diagnosis.nodes(kind, surroundings.device_nodes(root, kind)),
        diagnosis.nvmap(kind, helper),
        diagnosis.rapl(surroundings.rapl_access(root)),
    )
    return tuple(check for check in checks if check is not None)


def _clock_checks(root: Path) -> tuple[Check, ...]:
    return (
        diagnosis.stamps(*surroundings.kernel_stamps()),
        diagnosis.wall_clock(surroundings.wall_clock(root)),
        diagnosis.clock_source(surroundings.clock_source(root)),
    )


def _memory_checks(root: Path, values: Mapping[str, float | int | None]) -> tuple[Check, ...]:
    return (
        diagnosis.host_memory(values.get("host.total_bytes"), values.get("host.available_bytes")),
        diagnosis.cgroup(surroundings.cgroup(root), values.get("cgroup.limit_bytes")),
        diagnosis.pressure(values),
        diagnosis.swap(values.get("host.swap_used_bytes"), values.get("host.zram_bytes")),
    )


def _part_checks(environ: Mapping[str, str]) -> tuple[Check, ...]:
    from edgeagent.models.hashing import cache_file

    cache = cache_file(dict(environ)).parent
    return (
        diagnosis.disk("runs", surroundings.place(Path.cwd() / _RUNS)),
        diagnosis.disk("cache", surroundings.place(cache)),
        diagnosis.llama_server(llama_server(environ)),
        diagnosis.vllm(Program(shutil.which("vllm", path=environ.get("PATH")))),
        diagnosis.libraries(platform.python_version(), _versions()),
        diagnosis.broker(None),
    )


def llama_server(environ: Mapping[str, str]) -> Program:
    """Find the llama-server that a sweep would take and ask it for its version."""
    named = environ.get(LLAMA_SERVER)
    path = shutil.which(named or "llama-server", path=environ.get("PATH"))
    if path is None:
        why = f"{LLAMA_SERVER} names {named}, which is no program" if named else None
        return Program(named, reason=why)
    try:
        done = subprocess.run(
            [path, "--version"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_VERSION_S,
            check=False,
            # LLAMA_ARG_... would be obeyed even here
            env={name: value for name, value in environ.items() if not name.startswith("LLAMA_")},
        )
    except subprocess.TimeoutExpired:
        return Program(path, reason=f"it did not answer within {_VERSION_S:g} s")
    except OSError as error:
        return Program(path, reason=error.strerror)
    return Program(
        path, *_version(done.returncode, (done.stderr + done.stdout).decode("utf-8", "replace"))
    )


def _version(status: int, text: str) -> tuple[str | None, str | None]:
    """Return what follows `version:`, or why there is none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("version:")), None
    )
    if told:
        return told, None
    said = f'it said "{lines[-1][:200]}"' if lines else "it said nothing"
    return None, f"{said} and ended with status {status}" if status else said


def _versions() -> dict[str, str | None]:
    from importlib import metadata  # here, because only the doctor asks

    found: dict[str, str | None] = {}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
