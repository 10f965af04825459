"""Which probes make sense on this box?

One list for everybody who reads: the sampler of a sweep, `monitor`, `doctor`. `boundary_probes_for`
has the expensive ones, which are read where a phase ends and not at every sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from edgeagent.ports import Probe
from edgeagent.probes import box
from edgeagent.probes.cgroup import CgroupProbe
from edgeagent.probes.host import HostProbe
from edgeagent.probes.hygiene import HygieneProbe
from edgeagent.probes.pressure import PressureProbe

SYSROOT = "EDGEAGENT_SYSROOT"
"""Names a folder that every probe reads in place of `/`: a recorded tree, or a host's own root."""

Manner = Literal["sampling", "looking"]
"""`sampling` is many times a second beside a load, where what is dear is read less often;
`looking` is for people: slow, and every reading complete."""

_TOTALS_EVERY_S = 1.0
"""How often a sampler reads totals, of which differences are taken, and what changes slowly."""

_PATIENT_S = 5.0
"""How long somebody who looks once waits for NVML."""


def sysroot(environ: Mapping[str, str]) -> Path:
    """Return the folder that stands for `/`."""
    return Path(environ.get(SYSROOT) or "/")


def probes_for(
    root: Path, environ: Mapping[str, str], manner: Manner = "sampling"
) -> tuple[Probe, ...]:
    """Return the probes that have something to say on this class of box; nothing is read yet.

    A driver can come up late, so a probe is left out only where the class of box rules it out.
    """
    seen = box.look(root)
    kind = box.classify(seen).kind
    every_s = 0.0 if manner == "looking" else _TOTALS_EVERY_S
    found: list[Probe] = [
        HostProbe(root, agent_every_s=every_s),
        _nvml(root, environ, manner),
    ]
    if kind in {"amd", "intel", "cpu"}:
        found.append(_drm(root, manner))
    if box.is_jetson(seen):
        found.append(_jetson(root, manner))
    found += [
        _power(root, manner),
        PressureProbe(root, every_s),
        CgroupProbe(root),
        HygieneProbe(root, every_s),
    ]
    return tuple(found)


def boundary_probes_for(root: Path) -> tuple[Probe, ...]:
    """Return the probes that are too expensive for every sample."""
    from edgeagent.probes.pss import PssProbe

    return (PssProbe(root),)


def warnings_of(probes: Sequence[Probe]) -> tuple[str, ...]:
    """Return a sentence for each device that does not tell everything; they have been read."""
    return tuple(
        sentence
        for probe in probes
        if (warnings := getattr(probe, "warnings", None)) is not None
        for sentence in warnings()
    )


# Imported where they are made: a box needs few of them, and the agent is to stay small.


def _nvml(root: Path, environ: Mapping[str, str], manner: Manner) -> Probe:
    from edgeagent.probes.nvml import NvmlProbe, Patience

    patience = Patience(answer_s=_PATIENT_S) if manner == "looking" else None
    return NvmlProbe(environ, patience, root)


def _drm(root: Path, manner: Manner) -> Probe:
    from edgeagent.probes.drm import DrmProbe, Pace

    return DrmProbe(root, pace=Pace(list_s=0.0, foreign_s=0.0) if manner == "looking" else None)


def _jetson(root: Path, manner: Manner) -> Probe:
    from edgeagent.probes.jetson import JetsonProbe, Pace

    return JetsonProbe(root, pace=Pace(slow_s=0.0) if manner == "looking" else None)


def _power(root: Path, manner: Manner) -> Probe:
    from edgeagent.probes.power import Pace, PowerProbe

    return PowerProbe(root, pace=Pace(every_s=0.0) if manner == "looking" else None)
