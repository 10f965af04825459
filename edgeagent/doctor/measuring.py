"""What do the probes see here, and is the box fit to be measured on?

Everything is read twice, a moment apart, so that rates are known. What comes out is judged in
core/diagnosis.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from edgeagent.core import diagnosis
from edgeagent.core.diagnosis import Check, ProbeFacts
from edgeagent.core.gates import gates
from edgeagent.inspection import WARM_UP_S, all_facts, all_values, read_probe
from edgeagent.ports import Probe
from edgeagent.probes import catalogue, foreign, surroundings
from edgeagent.probes.host import NO_ENGINE, process_root
from edgeagent.probes.nvmap import HELPER
from edgeagent.probes.nvml import library_is_there

LIMIT_S = 60.0
"""An NVML that hangs is given up after seconds by its own probe; this is for all else."""


@dataclass(frozen=True)
class Measured:
    """What was read, and what it is worth."""

    checks: tuple[Check, ...]
    probes: list[dict[str, Any]] = field(default_factory=list)
    facts: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    capabilities: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


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
        return all_values(self.probes)


def measure(root: Path, environ: Mapping[str, str], host: Mapping[str, object]) -> Measured:
    """Read every probe, twice, and judge what they say."""
    kind = str(host["class"])
    begun_s = time.monotonic()
    neighbours = Neighbours(process_root(root))
    probes = catalogue.probes_for(root, environ, "looking")
    try:
        first = all_values([read_probe(probe, ()) for probe in probes])
        around = (*_permission_checks(root, kind), *_clock_checks(root))
        time.sleep(max(0.0, begun_s + WARM_UP_S - time.monotonic()))
        told = Told(
            tuple(read_probe(probe, ()) for probe in probes),
            all_facts(probes),
            _capabilities(probes),
        )
    finally:
        for probe in probes:
            probe.close()
    checks = (
        diagnosis.box(kind, _evidence(host), _strings(host.get("class_notes"))),
        *_probe_checks(told),
        *_nvml_checks(kind, told, library_is_there(environ, root)),
        *diagnosis.at_rest(gates((first, told.values), told.facts, None), neighbours.busiest()),
        power(told.facts),
        *_memory_checks(root, told.values),
        *around,
    )
    probes_read = [asdict(one) for one in told.probes]
    return Measured(checks, probes_read, told.facts, told.capabilities)


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


def power(facts: Mapping[str, Mapping[str, object]]) -> Check:
    """Say in which power mode the box is; that is never wrong, but it decides every number."""
    mode = facts.get("jetson", {}).get("power_mode")
    governors = facts.get("hygiene", {}).get("cpu_governors")
    words = [f"power mode {mode}"] if mode else []
    if isinstance(governors, list) and governors:
        words.append(f"CPU governor {', '.join(map(str, governors))}")
    profile = facts.get("hygiene", {}).get("platform_profile")
    words += [f"platform profile {profile}"] if profile else []
    if not words:
        return Check("box.power", "missing", "the kernel tells no power mode and no governor here")
    return Check("box.power", "ok", "; ".join(words))


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
