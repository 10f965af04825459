"""Is the box ready to be measured, and does an engine run where it was asked to?

Reads the probes before anything is started, has core/preflight.py and core/gates.py judge what they
say, and looks again when an engine is ready.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgeagent.assembly import Parts, expected_slots
from edgeagent.core import gates
from edgeagent.core.device import device_contradiction
from edgeagent.core.kv import MemoryPrediction
from edgeagent.core.memory import ExpectedSlot
from edgeagent.core.model import EngineConfig, Finding, MemorySample
from edgeagent.core.preflight import most_slots, refusal, room
from edgeagent.errors import DeviceMismatchError, EngineError
from edgeagent.ports import Probe, Server
from edgeagent.probes import box, catalogue

_READINGS = 2
_APART_S = 1.1
"""Rates need two readings, and the state of the box is read once a second."""

Values = Mapping[str, float | int | None]


@dataclass(frozen=True)
class Ready:
    """A box that was looked at and may be measured."""

    host: Mapping[str, object]
    root: Path
    probes: tuple[Probe, ...]
    full: tuple[Probe, ...]
    facts: Mapping[str, object]
    """Settings of the box, by probe."""
    findings: tuple[Finding, ...]
    expected: tuple[ExpectedSlot, ...] = ()
    """What arithmetic says that a slot costs, and how many fit into this box now."""
    notes: tuple[str, ...] = ()
    """What devices do not tell, a sentence each: said once, however often they are asked."""

    def close(self) -> None:
        """Let go of what the probes hold; a sampler that was given them does it itself."""
        for probe in (*self.probes, *self.full):
            probe.close()


async def look(parts: Parts) -> Ready:
    """Read the box at rest. Raises EngineError when it must not, or (strict) should not, start."""
    root = catalogue.sysroot(os.environ)
    host = box.host_facts(root)
    probes = catalogue.probes_for(root, os.environ)
    try:
        readings = await _readings(probes)
        facts = {probe.name: probe.facts() for probe in probes}
        kind = str(host["class"])
        _must_fit(parts, kind, readings[-1])
        found = gates.gates(readings, facts, _need_bytes(parts, kind))
        if parts.plan.spec.strict:
            _must_be_fit(found)
    except BaseException:
        for probe in probes:
            probe.close()
        raise
    host = {**host, "gpus": _gpus(host, facts)}
    full = catalogue.boundary_probes_for(root)
    expected = _expected(parts, kind, readings[-1])
    notes = catalogue.warnings_of(probes)
    return Ready(host, root, probes, full, facts, found, expected, notes)


def _expected(parts: Parts, kind: str, values: Values) -> tuple[ExpectedSlot, ...]:
    def fit(config: EngineConfig, need: MemoryPrediction) -> int | None:
        return most_slots(need, config.slots, room(kind, config.device, values))

    return expected_slots(parts, fit)


def _gpus(host: Mapping[str, object], facts: Mapping[str, object]) -> object:
    """The GPUs as NVML names them, where it does; else as the kernel lists them."""
    nvml = facts.get("gpu")
    devices = nvml.get("devices") if isinstance(nvml, Mapping) else None
    return devices or host.get("gpus")


async def _readings(probes: Sequence[Probe]) -> list[Values]:
    loop = asyncio.get_running_loop()
    readings: list[Values] = []
    for number in range(_READINGS):
        if number:
            await asyncio.sleep(_APART_S)
        readings.append(await loop.run_in_executor(None, _read, probes))
    return readings


def _read(probes: Sequence[Probe]) -> Values:
    values: dict[str, float | int | None] = {}
    for probe in probes:
        values.update(probe.read(())[0])
    return values


def _must_fit(parts: Parts, kind: str, values: Values) -> None:
    for config, need in parts.memory.items():
        if (why := refusal(config, need, room(kind, config.device, values))) is not None:
            raise EngineError(why)


def _must_be_fit(found: Sequence[Finding]) -> None:
    doubts = [finding.text for finding in found if gates.refuses(finding)]
    if doubts:
        raise EngineError(
            f"--strict was given and this box is not fit to be measured: {'; '.join(doubts)}"
        )


def _need_bytes(parts: Parts, kind: str) -> int | None:
    """What the largest start takes of the host's memory; None where it goes to a GPU's own."""
    on_host = [
        need.total_bytes
        for config, need in parts.memory.items()
        if room(kind, config.device, {}).where != "GPU"
    ]
    return max(on_host, default=None)


def confirm(config: EngineConfig, server: Server, seen: MemorySample | None) -> None:
    """Raises DeviceMismatchError when the engine does not run on the device that was asked for."""
    on_gpu = None if seen is None else _on_gpu(seen.values)
    why = device_contradiction(config.device, on_gpu, server.facts.offloaded_layers)
    if why is not None and not config.engine.attached:
        raise DeviceMismatchError(
            f"{config.engine.id} does not run where it should ({why}): look for the driver's "
            "words in its log, or ask for --device auto"
        )


def _on_gpu(values: Values) -> bool | None:
    """Whether a probe found the engine among the processes on a GPU; None when none can tell."""
    for name in ("gpu.engine_bytes", "nvmap.engine_bytes", "drm.engine_bytes"):
        held = values.get(name)
        if held is not None:
            return held > 0
    return None
