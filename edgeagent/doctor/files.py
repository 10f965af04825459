"""Is the configuration sound, and may whoever uses them read and write the files that it names?

Keys, certificates, models, programs and folders are looked at in the rights of the service's user
where that can be (rights.py), because root may read everything and that proves nothing.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from edgeagent import settings_check
from edgeagent.core import diagnosis
from edgeagent.core.diagnosis import Check, Disk, Nodes, Place
from edgeagent.core.model import EngineSpec
from edgeagent.doctor.unit import Unit
from edgeagent.errors import ConfigError
from edgeagent.probes import surroundings
from edgeagent.settings import Settings, profile_request
from edgeagent.settings_check import Reader
from edgeagent.settings_faults import Fault, is_secret

MIB = 1 << 20
LIMIT_S = 20.0
_SHOWN = 3
_GONE = os.strerror(errno.ENOENT).lower()


# ------------------------------------------------------------------------------- the configuration


def configuration(files: Iterable[Path], faults: Iterable[Fault]) -> Iterator[Check]:
    """Judge what the configuration says: one line for each fault, or one that it is sound."""
    faults = tuple(faults)
    wrong = [fault for fault in faults if fault.severity == "error"]
    for fault in faults:
        text, hint = _parted(fault)
        yield Check("configuration", "fault" if fault in wrong else "warning", text, hint)
    if not wrong:
        read = ", ".join(map(str, files)) or "no file: everything is at its default"
        yield Check("configuration", "ok", f"sound ({read})")


def _parted(fault: Fault) -> tuple[str, str]:
    """Part a fault into what is wrong, with its place, and what to do."""
    text, colon, advice = fault.text.rpartition(": ")
    if not colon:
        text, comma, meant = fault.text.partition(", did you mean ")
        advice = f"write {meant.rstrip('?')}" if comma else "docs/configuration.md has every key"
    return str(replace(fault, text=text)), advice


@dataclass(frozen=True)
class Profiles:
    """What the profiles of a configuration come to."""

    faults: tuple[Fault, ...] = ()
    engines: tuple[EngineSpec, ...] = ()
    """Each once, however many profiles use it."""

    @property
    def models(self) -> tuple[tuple[str, Path], ...]:
        """Models that will be read here, with the engine that reads each."""
        found = {
            (engine.id, Path(engine.model))
            for engine in self.engines
            if engine.model and not engine.attached
        }
        return tuple(sorted(found))


def profiles(settings: Settings) -> Profiles:
    """Return the engines of all profiles; of the shared ones where there is no profile."""
    faults: list[Fault] = []
    engines: dict[tuple[str, str], EngineSpec] = {}
    for name in settings.profiles():
        where, key = settings.origin("sweep", "profiles", name), f"sweep.profiles.{name}"
        try:
            chosen = profile_request(settings, name).spec.engines
        except ConfigError as error:
            faults.append(Fault("", "", str(error)))
            continue
        for engine in chosen:
            engines.setdefault((engine.id, repr((engine.command, engine.model))), engine)
            for variable, _ in engine.env:
                if is_secret(variable):
                    text = f"gives engine {engine.id} {variable}, which looks like a secret"
                    faults.append(
                        Fault(where, key, f"{text}: let the engine read a file", "warning")
                    )
    return Profiles(tuple(faults), tuple(engines.values()))


# ---------------------------------------------------------------------------- what a user may do


@dataclass(frozen=True)
class Wanted:
    """What is to be looked at in somebody's rights."""

    settings: Settings
    reader: Reader
    root: Path
    kind: str
    models: tuple[Path, ...] = ()
    programs: tuple[Path, ...] = ()
    places: Mapping[Disk, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """What somebody may do. A reason for what is refused, None for what is allowed."""

    faults: tuple[Fault, ...]
    models: Mapping[str, str | None]
    programs: Mapping[str, str | None]
    places: Mapping[str, Place]
    nodes: Nodes


def look(wanted: Wanted) -> dict[str, Any]:
    """Look at all of it in the rights of this process; `seen` reads what is returned."""
    faults = settings_check.file_faults(wanted.settings, wanted.reader)
    return {
        "faults": [asdict(fault) for fault in faults],
        "models": {str(path): refusal(path, os.R_OK) for path in wanted.models},
        "programs": {str(path): refusal(path, os.X_OK) for path in wanted.programs},
        "places": {name: asdict(surroundings.place(path)) for name, path in wanted.places.items()},
        "nodes": asdict(surroundings.device_nodes(wanted.root, wanted.kind)),
    }


def seen(document: Mapping[str, Any]) -> Seen:
    """Return what `look` saw."""
    nodes = {key: tuple(names) for key, names in document["nodes"].items()}
    return Seen(
        tuple(Fault(**fault) for fault in document["faults"]),
        document["models"],
        document["programs"],
        {name: Place(**place) for name, place in document["places"].items()},
        Nodes(**nodes),
    )


def refusal(path: Path, right: int) -> str | None:
    """Return why this process may not read (or start) a file, None when it may.

    Names the folder that is closed where one is: that is what has to be opened.
    """
    for folder in reversed(path.absolute().parents):
        if folder.is_dir() and not os.access(folder, os.X_OK, effective_ids=True):
            return f"the folder {folder} is closed to it"
    try:
        path.stat()
    except OSError as error:
        return (error.strerror or str(error)).lower()
    if path.is_dir():
        right |= os.X_OK
    if not os.access(path, right, effective_ids=True):
        return f"mode {path.stat().st_mode & 0o7777:04o} and owner do not allow it"
    return None


# ------------------------------------------------------------------------------------- judging that


def named(found: Seen, whose: str, count: int) -> Iterator[Check]:
    """Judge keys, certificates and policy that the configuration names."""
    for fault in found.faults:
        text, hint = _parted(fault)
        yield Check("files", "fault" if fault.severity == "error" else "warning", text, hint)
    if count and not any(fault.severity == "error" for fault in found.faults):
        files = "1 file" if count == 1 else f"{count} files"
        yield Check("files", "ok", f"{whose} may read the {files} that the configuration names")


def count_named(settings: Settings) -> int:
    """Return how many files the configuration names that have to be there."""
    from edgeagent.settings_keys import FileKey, field_at

    paths = [path for path, value in settings.values() if isinstance(value, Path)]
    marks = [mark for path in paths if (key := field_at(path)) for mark in key.metadata]
    return sum(isinstance(mark, FileKey) and mark.kind in ("secret", "file") for mark in marks)


def models(
    wanted: Iterable[tuple[str, Path]], found: Seen, whose: str, unit: Unit | None
) -> Iterator[Check]:
    """Judge whether each engine's model can be read by who starts it."""
    for engine, path in wanted:
        name = f"model.{engine}"
        line = unit.hides(path) if unit is not None else None
        refused = found.models.get(str(path))
        if line is not None:
            text = f"{path} lies outside of the service's sandbox: {line} hides it"
            hint = (
                "move it to /var/lib/edgeagent/models, or bind it in a drop-in: "
                f"BindReadOnlyPaths={path.parent}"
            )
            yield Check(name, "fault", text, hint)
        elif refused == _GONE:
            hint = "put it there, or correct model in the configuration"
            yield Check(name, "fault", f"{path} is not there", hint)
        elif refused is not None:
            text = f"{path} cannot be read by {whose}: {refused}"
            hint = f"open it to {whose}: chmod a+r, and chmod a+x for the folders above it"
            yield Check(name, "fault", text, hint)
        else:
            yield Check(name, "ok", f"{whose} may read {path}")


def places(settings: Settings, found: Seen, whose: str, unit: Unit | None) -> Iterator[Check]:
    """Judge the folders that the agent writes to."""
    leave = settings.mqtt.spool.min_free_mb * MIB if settings.mqtt.enabled else 0
    for name, path in service_places(settings).items():
        place = found.places.get(name)
        if place is None:
            continue
        line = unit.closes(path) if unit is not None else None
        if line is not None:
            text = f"{path} cannot be written by the service: {line} closes it"
            hint = f"add ReadWritePaths={path} in a drop-in, or move it below /var/lib/edgeagent"
            yield Check(f"disk.{name}", "fault", text, hint)
            continue
        if unit is not None and not path.exists() and unit.makes(path):
            place = Place(f"{path} (made when the service starts)", place.free_bytes, writable=True,
                          mounted=place.mounted)  # fmt: skip
        yield diagnosis.disk(name, place, leave if name == "spool" else 0, whose)


def service_places(settings: Settings) -> dict[Disk, Path]:
    """Return the folders of state, results and spool, each once."""
    state, results = settings.agent.state_dir, settings.agent.runs_dir
    found: dict[Disk, Path] = {"state": state}
    if not results.is_relative_to(state):
        found["results"] = results
    if settings.mqtt.enabled or not settings.mqtt.spool.path.is_relative_to(state):
        found["spool"] = settings.mqtt.spool.path.parent
    return found


def gpu(kind: str, nodes: Nodes, whose: str) -> Check | None:
    """Judge whether engines of the service's user could reach the GPU; None without one."""
    name = "permissions.service_gpu"
    if kind == "cpu" and not nodes.refused:
        return None
    if nodes.refused:
        text = f"{', '.join(nodes.refused[:_SHOWN])} cannot be opened by {whose}, so its engines "
        user = whose.removeprefix("user ")
        groups = ",".join(nodes.groups) or "video,render"
        hint = f"sudo usermod -aG {groups} {user}, then sudo systemctl restart edgeagent"
        return Check(name, "fault", text + "run on the CPU", hint)
    if nodes.usable:
        return Check(name, "ok", f"{', '.join(nodes.usable[:_SHOWN])} can be opened by {whose}")
    return None
