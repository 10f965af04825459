"""Are the files that the configuration names there, and safe?

Looked at apart from loading, because it depends on who asks: an ordinary user's `memory` needs
nobody's private key, the service needs all of them. `config check` asks on the service's behalf:
whether a mode lets it in is worked out, not tried. `doctor` tries it, in that user's rights.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgeagent.config import did_you_mean, why
from edgeagent.errors import ConfigError
from edgeagent.policy_file import read_policy
from edgeagent.settings import Settings, profile_request
from edgeagent.settings_faults import Fault, SettingsError, is_secret
from edgeagent.settings_keys import FileKey, KeyPath, keys

_GROUP_AND_OTHERS = 0o077
_MAY_WRITE = 0o022
_READ, _ENTER = 0o4, 0o1
_HOMES = (Path("/home"), Path("/root"), Path("/run/user"))
_CREDENTIALS = Path("/run/credentials")


@dataclass(frozen=True)
class Reader:
    """On whose behalf files are looked at."""

    uid: int
    gids: frozenset[int] = frozenset()
    name: str = "this user"
    credentials: Path | None = None
    """systemd's folder; what stands in it is guarded by systemd."""
    trusted: frozenset[int] = frozenset({0})
    """Who may own a policy file."""
    home_hidden: Literal["hidden", "visible"] = "visible"
    """Whether ProtectHome= hides /home from it."""
    manner: Literal["worked out", "tried"] = "worked out"
    """`tried`: this process runs in the reader's rights, so the kernel is asked."""


def myself() -> Reader:
    """This process."""
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    groups = frozenset({*os.getgroups(), os.getegid()})
    # the kernel knows of access lists too, which systemd 257 gives to credentials
    return Reader(
        os.geteuid(), groups, credentials=Path(folder) if folder else None, manner="tried"
    )


def service(name: str = "edgeagent") -> Reader:
    """The user that the service runs as. Raises ConfigError when this box has no such user."""
    import pwd

    try:
        entry = pwd.getpwnam(name)
    except KeyError as error:
        raise ConfigError(f"user {name} does not exist here: name one that does") from error
    groups = frozenset(os.getgrouplist(name, entry.pw_gid))
    return Reader(entry.pw_uid, groups, f"user {name}", home_hidden="hidden")


def require_files(settings: Settings, reader: Reader) -> None:
    """Raise SettingsError with every file that is missing, unreadable or not safe."""
    faults = [fault for fault in file_faults(settings, reader) if fault.severity == "error"]
    if faults:
        raise SettingsError(faults)


def file_faults(settings: Settings, reader: Reader) -> tuple[Fault, ...]:
    """What is wrong with the files that the configuration names."""
    return tuple(_faults(settings, reader))


def check(settings: Settings, reader: Reader) -> tuple[Fault, ...]:
    """All that can be found out without starting anything: files, and every profile's plan."""
    return (*file_faults(settings, reader), *_faults_of_profiles(settings, reader))


def _faults(settings: Settings, reader: Reader) -> Iterator[Fault]:
    for path, kind, file in (*_named_files(settings), *_key_files(settings)):
        for text in _faults_of_file(file, kind, reader):
            yield Fault(settings.origin(*path), ".".join(path), text)
    if settings.mqtt.commands.enabled:
        yield from _faults_of_policy(settings, reader)


_Named = tuple[KeyPath, Literal["secret", "file"], Path]


def _named_files(settings: Settings) -> Iterator[_Named]:
    values = dict(settings.values())
    for path, key in keys():
        value = values.get(path)
        for mark in key.metadata:
            if not isinstance(mark, FileKey) or not isinstance(value, Path):
                continue
            if mark.kind in ("secret", "file"):  # a policy is read, a place is ours to make
                yield path, mark.kind, value


def _key_files(settings: Settings) -> Iterator[_Named]:
    for name, engine in settings.engines.items():
        if engine.api_key_file:
            yield ("engines", name, "api_key_file"), "secret", Path(engine.api_key_file)
    for profile, keys_ in settings.sweep.profiles.items():
        for name, engine in keys_.engines.items():
            if engine.api_key_file:
                path = ("sweep", "profiles", profile, "engines", name, "api_key_file")
                yield path, "secret", Path(engine.api_key_file)


def _faults_of_file(path: Path, kind: Literal["secret", "file"], reader: Reader) -> Iterator[str]:
    if _is_credential(path, reader) and reader.credentials is None:
        return  # it is there while the service runs, and for nobody else
    try:
        status = path.stat()
    except OSError as error:
        yield f"names {path}, which cannot be looked at ({why(error)}): {_remedy(error, reader)}"
        return
    if not stat.S_ISREG(status.st_mode):
        yield f"names {path}, which is no file: name a file"
        return
    if not _may_read(path, status, reader):
        yield f"names {path}, which {reader.name} may not read: chown or chmod it"
    if kind == "secret" and not _is_credential(path, reader):
        yield from _faults_of_secret(path, status, reader)


def _remedy(error: OSError, reader: Reader) -> str:
    if isinstance(error, PermissionError):
        return f"let {reader.name} into every folder above it (chmod a+x, or a group of its own)"
    return "put it there"


def _faults_of_secret(path: Path, status: os.stat_result, reader: Reader) -> Iterator[str]:
    mode = stat.S_IMODE(status.st_mode)
    if mode & _GROUP_AND_OTHERS:
        yield f"names {path}, which others may read (mode {mode:04o}): chmod 0400 {path}"
    if status.st_uid not in (reader.uid, *reader.trusted):
        yield f"names {path}, which belongs to somebody else (uid {status.st_uid}): chown it"


def _faults_of_policy(settings: Settings, reader: Reader) -> Iterator[Fault]:
    path = settings.mqtt.commands.policy_file
    try:
        policy = read_policy(path, reader.trusted).policy
        folder = path.parent.stat()
    except ConfigError as error:
        for line in str(error).split("\n"):
            yield Fault("", "", line)
        return
    except OSError as error:
        yield Fault(str(path.parent), "", f"cannot be looked at ({why(error)}): chmod a+x it")
        return
    # Who may write the folder may put another policy there.
    if folder.st_uid not in reader.trusted or folder.st_mode & _MAY_WRITE:
        text = (
            f"may be written by others than root, and {path.name} in it replaced: "
            "chown root it, chmod go-w it"
        )
        yield Fault(str(path.parent), "", text)
    for name in policy.profiles:
        if name not in settings.sweep.profiles:
            text = f"profiles: {name} is allowed, and there is no [sweep.profiles.{name}]"
            yield Fault(
                str(path), "", f"{text}{did_you_mean(name, [*settings.profiles()])}", "warning"
            )
    unit = settings.schedule.production_unit
    if unit and unit not in policy.production_units:
        text = f"is {unit}, which production_units of {path} does not allow: it will not be stopped"
        where = settings.origin("schedule", "production_unit")
        yield Fault(where, "schedule.production_unit", text, "warning")


def _is_credential(path: Path, reader: Reader) -> bool:
    folder = reader.credentials or _CREDENTIALS
    return path.is_relative_to(folder)


def _may_read(path: Path, status: os.stat_result, reader: Reader) -> bool:
    """Whether modes and owners let the reader in, down from the root of the file system."""
    if reader.manner == "tried":
        return os.access(path, os.R_OK, effective_ids=True)
    return _granted(status, reader, _READ) and all(
        _granted(folder.stat(), reader, _ENTER) for folder in path.absolute().parents
    )


def _granted(status: os.stat_result, reader: Reader, right: int) -> bool:
    if reader.uid == 0:
        return True
    if status.st_uid == reader.uid:
        return bool(status.st_mode & right << 6)
    if status.st_gid in reader.gids:
        return bool(status.st_mode & right << 3)
    return bool(status.st_mode & right)


def _faults_of_profiles(settings: Settings, reader: Reader) -> Iterator[Fault]:
    for name in settings.profiles():
        where, key = settings.origin("sweep", "profiles", name), f"sweep.profiles.{name}"
        try:
            engines = profile_request(settings, name).spec.engines
        except ConfigError as error:
            yield Fault("", "", str(error))
            continue
        for engine in engines:
            for variable, _ in engine.env:
                if is_secret(variable):
                    text = f"gives engine {engine.id} {variable}, which looks like a secret"
                    yield Fault(where, key, f"{text}: let the engine read a file", "warning")
            if engine.model and not engine.url:
                yield from _faults_of_model(Fault(where, key, ""), Path(engine.model), reader)


def _faults_of_model(at: Fault, model: Path, reader: Reader) -> Iterator[Fault]:
    if reader.home_hidden == "hidden" and any(model.is_relative_to(home) for home in _HOMES):
        text = (
            f"uses {model}, and the service cannot look into {model.parts[1]}: move it to "
            "/var/lib/edgeagent/models, or bind it with BindReadOnlyPaths="
        )
        yield Fault(at.where, at.key, text, "warning")
    try:
        seen = model.stat()
    except OSError as error:
        text = f"uses {model}, which cannot be looked at ({why(error)}): put it there"
        yield Fault(at.where, at.key, text, "warning")
        return
    if not _may_read(model, seen, reader):
        text = f"uses {model}, which {reader.name} may not read: chmod a+r it"
        yield Fault(at.where, at.key, text, "warning")
