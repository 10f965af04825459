"""How is this box to run the agent, and who said so?

`load` reads the layers (settings_layers.py), checks them against the keys (settings_keys.py) and
against each other, and returns frozen `Settings` that know where every value comes from. Every
fault is told at once, in one SettingsError (exit status 78). What the named files are like is
looked at apart from that (settings_check.py): only who uses a key has to be able to read it.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from edgeagent.config import EngineKeys, EngineOptions, SweepRequest, did_you_mean, plan_request
from edgeagent.core.nodes import node_name
from edgeagent.core.policy import KNOBS, Window
from edgeagent.core.windows import parse as parse_window
from edgeagent.errors import ConfigError, UsageError
from edgeagent.settings_faults import Fault, SettingsError, of_validation
from edgeagent.settings_keys import (
    AgentKeys,
    DaemonKeys,
    KeyPath,
    MqttKeys,
    ScheduleKeys,
    SettingsFile,
    SigningKeys,
    SweepTable,
    TelemetryKeys,
    keys,
)
from edgeagent.settings_layers import (
    Reading,
    Surroundings,
    read_environment,
    read_files,
    read_options,
)

__all__ = [
    "OVERRIDES",
    "Changes",
    "Settings",
    "SettingsError",
    "Surroundings",
    "after_reload",
    "changes",
    "examine",
    "load",
    "profile_request",
    "surroundings",
]

_PLAINTEXT_PORT = 1883
OVERRIDES = frozenset(KNOBS)
"""Keys of a profile that somebody elsewhere may set: numbers, and lists of them, nothing else."""
_LISTS = ("concurrency", "memory_slots")


@dataclass(frozen=True)
class Settings:
    """The whole configuration: placeholders filled in, paths absolute, secrets only as paths."""

    agent: AgentKeys
    mqtt: MqttKeys
    sweep: SweepTable
    engines: Mapping[str, EngineKeys]
    schedule: ScheduleKeys
    signing: SigningKeys
    telemetry: TelemetryKeys
    daemon: DaemonKeys
    scope: Literal["system", "user"] = "system"
    topic_template: str = "edgeagent/v1/{site}/{node}"
    client_template: str = "{node}"
    group_template: str = "{site}"
    files: tuple[Path, ...] = ()
    warnings: tuple[Fault, ...] = ()
    origins: Mapping[KeyPath, str] = field(default_factory=dict)
    """`FILE:LINE`, a variable's name, `--set KEY` or `default`, of keys and tables."""

    def origin(self, *path: str) -> str:
        """Who said this key: `origin("mqtt", "port")`; "default" when nobody did."""
        return self.origins.get(path, "default")

    def as_node(self, node: str) -> Settings:
        """The same under another node's name, wherever {node} stands for it."""
        names = {"{site}": self.agent.site, "{node}": node}
        sparkplug = {"group": _filled(self.group_template, names)}
        mqtt = {
            "topic_prefix": _filled(self.topic_template, names),
            "client_id": _filled(self.client_template, names),
            "sparkplug": self.mqtt.sparkplug.model_copy(update=sparkplug),
        }
        return replace(
            self,
            agent=self.agent.model_copy(update={"node": node}),
            mqtt=self.mqtt.model_copy(update=mqtt),
        )

    def values(self) -> Iterator[tuple[KeyPath, object]]:
        """Every key with its value, profiles and engines included."""
        for name in SettingsFile.model_fields:
            yield from _values(getattr(self, name), (name,))

    def profiles(self) -> tuple[str, ...]:
        """Names of the sweeps that may be asked for."""
        return tuple(self.sweep.profiles)

    def windows(self) -> tuple[Window, ...]:
        """When a sweep may begin; none at all: any time."""
        return tuple(parse_window(text) for text in self.schedule.windows)

    def broker_is_local(self) -> bool:
        """Whether nothing leaves this machine on the way to the broker."""
        return self.mqtt.transport == "unix" or is_loopback(self.mqtt.host)

    def encrypted(self) -> bool:
        """Whether TLS is spoken with the broker."""
        return _encrypted(self.mqtt)


def _values(
    value: object, path: KeyPath, which: Literal["all", "said"] = "all"
) -> Iterator[tuple[KeyPath, object]]:
    """All keys of the fixed tables; of those with names only what was said, for they inherit."""
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            if which == "all" or name in value.model_fields_set:
                yield from _values(getattr(value, name), (*path, name), which)
    elif isinstance(value, Mapping):
        for name, below in value.items():
            yield from _values(below, (*path, str(name)), "said")
    else:
        yield path, value


# ----------------------------------------------------------------------------------------- loading


def surroundings(scope: Literal["system", "user"] | None = None) -> Surroundings:
    """Those of this process. A user is ordinary who is neither root nor a service of systemd."""
    service = os.geteuid() == 0 or "STATE_DIRECTORY" in os.environ
    return Surroundings(
        environment=dict(os.environ),
        host_name=os.uname().nodename,
        home=Path(os.path.expanduser("~")),  # noqa: PTH111  # because Path.home() may raise
        working_dir=_working_dir(),
        scope=scope or ("system" if service else "user"),
    )


def _working_dir() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:  # somebody removed the folder under us
        return Path("/")


def load(
    here: Surroundings, config: Path | None = None, assignments: Sequence[str] = ()
) -> Settings:
    """The settings of this box.

    `config` stands in for the whole chain of files; `assignments` are `section.key=value`.
    Raises SettingsError with every fault at once, UsageError for an assignment that is none.
    """
    settings, faults = examine(here, config, assignments)
    if faults:
        raise SettingsError(faults)
    return settings


def examine(
    here: Surroundings, config: Path | None = None, assignments: Sequence[str] = ()
) -> tuple[Settings, tuple[Fault, ...]]:
    """As `load`, but what is not sound comes back as faults, beside what is sound."""
    reading = Reading(here)
    read_files(reading, config)
    read_environment(reading)
    read_options(reading, assignments)
    file = _checked(reading)
    faults = [fault for fault in reading.faults if fault.severity == "error"]
    return _settings(file, reading), tuple(sorted(faults, key=_place))


def _place(fault: Fault) -> tuple[str, int]:
    """File by file and down each file: the order in which they are corrected."""
    file, _, line = fault.where.rpartition(":")
    return (file, int(line)) if line.isdecimal() else (fault.where, 0)


def _checked(reading: Reading) -> SettingsFile:
    """The sound part of what was read; what is not sound becomes a fault."""
    sections: dict[str, Any] = {}
    broken: set[KeyPath] = set()
    for name in reading.document:
        section = SettingsFile.model_fields.get(name)
        document = {name: reading.document[name]}
        try:
            sections[name] = getattr(SettingsFile.model_validate(document), name)
        except ValidationError as error:
            for path, text in of_validation(error.errors(include_url=False), ()):
                broken.add(path if section else (name,))
                reading.faults.append(Fault(reading.origin(path), ".".join(path), text))
    file = SettingsFile().model_copy(update=sections)
    for path, text, severity in _rules(file, reading):
        if not any(known[:1] == path[:1] for known in broken):
            where = reading.origin(path)
            reading.faults.append(Fault(where, ".".join(path), text, severity))
    return file


def _settings(file: SettingsFile, reading: Reading) -> Settings:
    here = reading.here
    agent = file.agent
    if ("agent", "state_dir") not in reading.origins:
        agent = agent.model_copy(update={"state_dir": here.state_dir()})
    agent = agent.model_copy(update={"runs_dir": _below(agent.runs_dir, agent)})
    spool = file.mqtt.spool.model_copy(update={"path": _below(file.mqtt.spool.path, agent)})
    settings = Settings(
        agent=agent,
        mqtt=file.mqtt.model_copy(update={"spool": spool}),
        sweep=file.sweep,
        engines=file.engines,
        schedule=file.schedule,
        signing=file.signing,
        telemetry=file.telemetry,
        daemon=file.daemon,
        scope=here.scope,
        topic_template=file.mqtt.topic_prefix,
        client_template=file.mqtt.client_id,
        group_template=file.mqtt.sparkplug.group,
        files=tuple(reading.files),
        warnings=tuple(fault for fault in reading.faults if fault.severity == "warning"),
        origins=dict(reading.origins),
    )
    return settings.as_node(agent.node or node_name(here.host_name))


def _below(path: Path, agent: AgentKeys) -> Path:
    return Path(str(path).replace("{state_dir}", str(agent.state_dir)))


def _filled(text: str, names: Mapping[str, str]) -> str:
    for name, value in names.items():
        text = text.replace(name, value)
    return text


# ------------------------------------------------------------------------ rules across several keys

_Rule = tuple[KeyPath, str, Literal["error", "warning"]]


def _rules(file: SettingsFile, reading: Reading) -> Iterator[_Rule]:
    yield from _rules_of_mqtt(file.mqtt)
    spool = file.mqtt.spool
    if spool.reserve_results_mb >= spool.max_mb:
        text = f"leaves telemetry nothing of max_mb = {spool.max_mb}: reserve less"
        yield ("mqtt", "spool", "reserve_results_mb"), text, "error"
    if file.mqtt.enabled and not file.agent.node and reading.here.host_name in _EVERYBODYS_NAMES:
        text = (
            f"is not set, and the host name {reading.here.host_name} is many boxes' name: give "
            "this one its own"
        )
        yield ("agent", "node"), text, "warning"


_EVERYBODYS_NAMES = frozenset({"localhost", "localhost.localdomain", "ubuntu", "debian", "jetson"})


def _rules_of_mqtt(mqtt: MqttKeys) -> Iterator[_Rule]:
    where = "unix_socket" if mqtt.transport == "unix" else "host"
    if mqtt.enabled and not getattr(mqtt, where):
        text = "is empty, and mqtt.enabled is true: say where the broker is"
        yield ("mqtt", where), text, "error"
    if bool(mqtt.tls.cert_file) != bool(mqtt.tls.key_file):
        given, other = ("cert_file", "key_file")
        if mqtt.tls.key_file:
            given, other = other, given
        text = f"is of no use without mqtt.tls.{other}: name both or neither"
        yield ("mqtt", "tls", given), text, "error"
    if mqtt.password_file and not mqtt.username_file:
        text = "is of no use without mqtt.username_file: name both"
        yield ("mqtt", "password_file"), text, "error"
    yield from _rules_of_plaintext(mqtt)


def _rules_of_plaintext(mqtt: MqttKeys) -> Iterator[_Rule]:
    if mqtt.transport == "unix":
        if mqtt.tls.mode == "on":
            text = "is on, but a unix socket never leaves this machine: leave it on auto"
            yield ("mqtt", "tls", "mode"), text, "error"
        return
    elsewhere = bool(mqtt.host) and not is_loopback(mqtt.host)
    advice = (
        "everybody between could read and change what is sent: use TLS, or say "
        "allow_plaintext = true if that is meant"
    )
    if elsewhere and not mqtt.allow_plaintext and mqtt.tls.mode == "off":
        yield (
            ("mqtt", "tls", "mode"),
            f"is off, and {mqtt.host} is another machine: {advice}",
            "error",
        )
    elif (
        elsewhere
        and not mqtt.allow_plaintext
        and mqtt.port == _PLAINTEXT_PORT
        and mqtt.tls.mode == "auto"
    ):
        text = f"is {mqtt.port}, the port without TLS, and {mqtt.host} is another machine: {advice}"
        yield ("mqtt", "port"), text, "error"
    elif elsewhere and not _encrypted(mqtt) and mqtt.password_file:
        text = f"goes to {mqtt.host} without TLS: everybody between can read it"
        yield ("mqtt", "password_file"), text, "warning"


def _encrypted(mqtt: MqttKeys) -> bool:
    if mqtt.tls.mode != "auto":
        return mqtt.tls.mode == "on"
    named = any((mqtt.tls.ca_file, mqtt.tls.cert_file, mqtt.tls.key_file, mqtt.tls.crl_file))
    bare = mqtt.transport == "unix" or mqtt.allow_plaintext or is_loopback(mqtt.host)
    return mqtt.transport != "unix" and (named or not bare)


def is_loopback(host: str) -> bool:
    """Whether the name or address is this machine's own."""
    if host.lower().rstrip(".") in ("localhost", "ip6-localhost", "ip6-loopback"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# ----------------------------------------------------------------------------------------- profiles


def profile_request(
    settings: Settings, name: str, override: Mapping[str, object] | None = None
) -> SweepRequest:
    """The sweep that a profile asks for, through the same door as a plan.

    `override` may set numbers alone (OVERRIDES): nothing of it becomes an argument, a path, a URL
    or a program. Raises UsageError for an override or a name, ConfigError for the profile itself.
    """
    if name not in settings.sweep.profiles:
        known = list(settings.sweep.profiles)
        raise UsageError(
            f"profile {name} is not known{did_you_mean(name, known)}: profiles are "
            f"{', '.join(known) or 'not configured; write a [sweep.profiles.NAME]'}"
        )
    numbers = _numbers_only(override or {})
    document = profile_plan(settings, name)
    where = f"sweep.profiles.{name} ({settings.origin('sweep', 'profiles', name)})"
    try:
        request = plan_request(document, where, {}, EngineOptions())
    except UsageError as error:
        raise ConfigError(str(error)) from error
    if not numbers:
        return request
    document["sweep"] = _left(document["sweep"], numbers)
    try:
        return plan_request(document, where, numbers, EngineOptions())
    except UsageError as error:
        raise UsageError(str(error).replace("--", "override ", 1)) from error


def profile_plan(settings: Settings, name: str) -> dict[str, Any]:
    """A profile as the tables of a plan: `[sweep]` below it, shared engines below its own."""
    profile = settings.sweep.profiles[name]
    own = profile.model_dump(exclude_unset=True)
    engines = {key: table.model_dump(exclude_unset=True) for key, table in settings.engines.items()}
    mine = own.pop("engines", {})
    chosen = mine or engines
    sweep = settings.sweep.model_dump(exclude_unset=True, exclude={"profiles"})
    return {
        "sweep": _over(sweep, own),
        "engines": {key: _over(engines.get(key, {}), table) for key, table in chosen.items()},
    }


_EITHER = ({"requests", "seconds"}, {"binary", "command"})


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    return {**_left(below, above), **above}


def _left(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """What still counts below other keys: of two that exclude each other the upper one stays."""
    gone = {key for pair in _EITHER if pair & {*above} for key in pair}
    return {key: value for key, value in below.items() if key not in gone}


def _numbers_only(override: Mapping[str, object]) -> dict[str, object]:
    for key, value in override.items():
        if key not in OVERRIDES:
            raise UsageError(
                f"override {key} is not allowed{did_you_mean(key, sorted(OVERRIDES))}: only "
                f"{', '.join(sorted(OVERRIDES))} may be set from elsewhere"
            )
        items = value if isinstance(value, list | tuple) and key in _LISTS else [value]
        if not items or not all(_is_number(item) for item in items):
            raise UsageError(f"override {key} should be a number: it is {type(value).__name__}")
    return {
        key: list(value) if isinstance(value, tuple) else value for key, value in override.items()
    }


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# --------------------------------------------------------------------------------------- reloading


@dataclass(frozen=True)
class Changes:
    """Keys that are different now: which of them take effect, and which wait for a restart."""

    live: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything is different."""
        return bool(self.live or self.restart)


def changes(old: Settings, new: Settings) -> Changes:
    """What a reload from `old` to `new` brings; the keys of each kind in the tables' order."""
    before, after = dict(old.values()), dict(new.values())
    different = [
        path
        for path in {**before, **after}
        if before.get(path, _NOTHING) != after.get(path, _NOTHING)
    ]
    waiting = {path for path, key in keys() if takes_effect(key) == "restart"}
    return Changes(
        live=tuple(".".join(path) for path in different if path not in waiting),
        restart=tuple(".".join(path) for path in different if path in waiting),
    )


_NOTHING = object()


def after_reload(old: Settings, new: Settings) -> Settings:
    """What is in force once `new` was read: keys that wait for a restart keep their old values."""
    settings = replace(
        new,
        topic_template=old.topic_template,
        client_template=old.client_template,
        group_template=old.group_template,
    )
    before = dict(old.values())
    for path, key in keys():
        if takes_effect(key) == "restart":
            section = _with(getattr(settings, path[0]), path[1:], before[path])
            settings = replace(settings, **{path[0]: section})
    return settings


def _with(table: Any, path: KeyPath, value: object) -> Any:
    name, *rest = path
    below = _with(getattr(table, name), tuple(rest), value) if rest else value
    return table.model_copy(update={name: below})


def takes_effect(key: Any) -> Literal["reload", "restart"]:
    """When a new value of this key counts."""
    extra = key.json_schema_extra
    return (
        "restart"
        if isinstance(extra, dict) and extra.get("takes_effect") == "restart"
        else "reload"
    )
