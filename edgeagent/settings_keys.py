"""Which keys has the configuration, of which type, with which default, and what does each mean?

The descriptions here are the one source: the annotated configs/edgeagent.toml, the reference in
docs/configuration.md and `edgeagent config schema` are made from them (settings_text.py).
Values of the wrong type are refused, not bent: `port = "8883"` is a mistake that somebody should
see. The tables of a plan keep the plan's own, milder reading (config.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo

from edgeagent.config import EngineKeys, SweepKeys
from edgeagent.core.windows import parse as parse_window

_IDENTIFIER = re.compile(r"[a-z0-9][a-z0-9-]{1,62}")
_TIMES = re.compile(r"\{(site|node)\}")


@dataclass(frozen=True)
class FileKey:
    """Marks a key that names a file: it is relative to where it is written, and it is checked.

    `secret`: nobody else may read it. `policy`: nobody but root may write it. `place`: made by us.
    """

    kind: Literal["secret", "file", "policy", "place"]


# -------------------------------------------------------------------------------- kinds of values


def _path(value: object) -> object:
    if not isinstance(value, str):
        return value
    return Path(value) if value else None


def _identifier(value: str) -> str:
    if not _IDENTIFIER.fullmatch(value):
        raise ValueError("should be 2 to 63 of a-z, 0-9 and -, and not begin with -")
    return value


def _host(value: str) -> str:
    if "://" in value:
        raise ValueError("should be a host alone: port, transport and TLS have keys of their own")
    if "@" in value:
        raise ValueError("should be a host alone: a user is named with username_file")
    if re.search(r"[\s/]", value):
        raise ValueError("should be a host name or an address, without blanks and slashes")
    return value.removeprefix("[").removesuffix("]")


def _topic(value: str) -> str:
    left = _TIMES.sub("x", value)
    if re.search(r"[+#{}\s\x00]", left):
        raise ValueError("may hold {site} and {node}, but no other braces, no + or #, no blanks")
    if "" in left.split("/"):
        raise ValueError("should have no empty level: no / at its ends, no //")
    if "{node}" not in value:
        raise ValueError("should hold {node}: two boxes on one topic would mix their results")
    return value


def _template(value: str) -> str:
    if re.search(r"[+#/{}\s\x00]", _TIMES.sub("x", value)) or not value:
        raise ValueError("may hold {site} and {node}, but no + # / and no blanks")
    return value


def _windows(value: tuple[str, ...]) -> tuple[str, ...]:
    for text in value:
        parse_window(text)
    return value


def _unit(value: str) -> str:
    if value and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9:_.\\@-]{0,240}\.service", value):
        raise ValueError("should be the name of a systemd service, like vllm.service")
    return value


def _url(value: str) -> str:
    if value and not re.fullmatch(r"https?://[^\s/@]+(/\S*)?", value):
        raise ValueError("should be a URL without a user in it, like http://127.0.0.1:8080")
    return value


def _web_path(value: str) -> str:
    if not re.fullmatch(r"/[^\s]*", value):
        raise ValueError("should begin with / and hold no blanks")
    return value


_Identifier = Annotated[str, AfterValidator(_identifier)]
_File = Annotated[Path | None, BeforeValidator(_path), FileKey("file")]
_Secret = Annotated[Path | None, BeforeValidator(_path), FileKey("secret")]
_Policy = Annotated[Path, BeforeValidator(_path), FileKey("policy")]
_Place = Annotated[Path, BeforeValidator(_path), FileKey("place")]
_MaybePlace = Annotated[Path | None, BeforeValidator(_path), FileKey("place")]
_Port = Annotated[int, Field(ge=1, le=65_535)]
_Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
_Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
_Megabytes = Annotated[int, Field(ge=1, le=1_000_000_000)]


def _key(default: Any, meaning: str, takes_effect: Literal["reload", "restart"] = "reload") -> Any:
    return Field(
        default=default, description=meaning, json_schema_extra={"takes_effect": takes_effect}
    )


class Table(BaseModel):
    """A table of the configuration: no unknown keys, no bent types, no change once it is read."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


# -------------------------------------------------------------------------------------- the tables


class AgentKeys(Table):
    """Who this box is, and where the agent keeps its files."""

    site: _Identifier = _key("default", "name of the plant, part of every topic", "restart")
    node: _Identifier = _key(
        "",
        "name of this box; default: its host name in lower case, with - for what is not a-z, 0-9",
        "restart",
    )
    state_dir: _Place = _key(
        Path("/var/lib/edgeagent"),
        "the agent's own state; for an ordinary user ~/.local/state/edgeagent",
        "restart",
    )
    runs_dir: _Place = _key(
        Path("{state_dir}/runs"), "where the service keeps its run folders", "restart"
    )
    runs_max_mb: _Megabytes = _key(4096, "oldest run folders go when all are larger than this")
    runs_max_age_d: Annotated[int, Field(ge=1, le=36_500)] = _key(
        180, "run folders older than so many days go"
    )


class TlsKeys(Table):
    """TLS to the broker. Files are read anew at every connection: rotation needs no restart."""

    mode: Literal["auto", "on", "off"] = _key(
        "auto",
        "auto: on, unless the broker is this machine or allow_plaintext is set, and no file is "
        "named here",
    )
    ca_file: _File = _key(None, "certificates of the plant's authority; empty: the system's")
    cert_file: _File = _key(None, "this box's certificate (its name should be the node's)")
    key_file: _Secret = _key(None, "the certificate's private key")
    min_version: Literal["1.2", "1.3"] = _key("1.2", "oldest TLS that is spoken")
    ciphers: str = _key("", "cipher list of OpenSSL for TLS 1.2; empty: its default")
    crl_file: _File = _key(None, "certificates that are revoked; empty: not looked at")


class SpoolKeys(Table):
    """What waits for the broker, on disk."""

    path: _Place = _key(Path("{state_dir}/spool.db"), "the database", "restart")
    max_mb: _Megabytes = _key(256, "largest size of the database", "restart")
    reserve_results_mb: _Megabytes = _key(
        128, "part of it that telemetry leaves to results", "restart"
    )
    min_free_mb: Annotated[int, Field(ge=0, le=1_000_000_000)] = _key(
        512, "free disk that is left to everybody else", "restart"
    )


class CommandKeys(Table):
    """Commands from the broker: off unless somebody on this box says otherwise."""

    enabled: bool = _key(default=False, meaning="listen to commands at all")
    policy_file: _Policy = _key(
        Path("/etc/edgeagent/commands.toml"), "which profiles may be asked for, by whom and when"
    )
    hmac_key_file: _Secret = _key(
        None, "key that signs commands; empty: a signature is not asked for"
    )


class SparkplugKeys(Table):
    """A mirror for SCADA systems, on a connection of its own."""

    enabled: bool = _key(
        default=False, meaning="publish Sparkplug B as well", takes_effect="restart"
    )
    group: Annotated[str, AfterValidator(_template)] = _key(
        "{site}", "Sparkplug's group", "restart"
    )
    primary_host: str = _key("", "host application that is waited for; empty: none", "restart")


class MqttKeys(Table):
    """The plant's broker."""

    enabled: bool = _key(default=False, meaning="publish at all", takes_effect="restart")
    host: Annotated[str, AfterValidator(_host)] = _key("", "the broker's name or address")
    port: _Port = _key(8883, "its port: 8883 with TLS, 1883 without")
    transport: Literal["tcp", "websockets", "unix"] = _key("tcp", "how the broker is reached")
    websocket_path: Annotated[str, AfterValidator(_web_path)] = _key(
        "/mqtt", "path on the broker, for websockets"
    )
    unix_socket: _MaybePlace = _key(None, "the broker's socket, for transport unix")
    proxy: Literal["none"] = _key(
        "none", "proxies are not used, whatever the environment says; there is no other value yet"
    )
    allow_plaintext: bool = _key(
        default=False, meaning="talk to another machine without TLS: everybody between can read"
    )
    protocol: Literal["auto", "5", "3.1.1"] = _key("auto", "MQTT version; auto: 5, else 3.1.1")
    username_file: _File = _key(None, "file with the user's name in its first line")
    password_file: _Secret = _key(None, "file with the user's password in its first line")
    topic_prefix: Annotated[str, AfterValidator(_topic)] = _key(
        "edgeagent/v1/{site}/{node}", "what every topic begins with", "restart"
    )
    client_id: Annotated[str, AfterValidator(_template)] = _key(
        "{node}", "the client's name at the broker", "restart"
    )
    keepalive_s: Annotated[int, Field(ge=5, le=3600)] = _key(30, "longest silence on a connection")
    delivery: Literal["auto", "receipt", "puback"] = _key(
        "auto",
        "when a row has arrived: the collector's receipt, or the broker's word alone; auto: the "
        "broker's until a collector has spoken",
    )
    window: Annotated[int, Field(ge=1, le=1000)] = _key(
        20, "messages that wait for the broker's word"
    )
    unreceipted: Annotated[int, Field(ge=10, le=500)] = _key(
        200, "messages that wait for the collector's receipt"
    )
    max_payload_b: Annotated[int, Field(ge=1024, le=268_435_455)] = _key(
        131_072, "largest message in bytes"
    )
    backfill_rate: Annotated[float, Field(gt=0, le=10_000, allow_inf_nan=False)] = _key(
        20.0, "old messages a second, where only the broker's word is known"
    )
    live_interval_s: _Seconds = _key(5.0, "between two live messages of a kind")
    aggregate_s: _Seconds = _key(60.0, "span of one kept message of telemetry")
    tls: TlsKeys = TlsKeys()
    spool: SpoolKeys = SpoolKeys()
    commands: CommandKeys = CommandKeys()
    sparkplug: SparkplugKeys = SparkplugKeys()


class ScheduleKeys(Table):
    """When a sweep may take the box from the people who use it."""

    windows: Annotated[tuple[str, ...], Field(strict=False), AfterValidator(_windows)] = _key(
        (), "when sweeps may begin, local time: Mon-Fri 22:00-05:00; empty: any time"
    )
    production_url: Annotated[str, AfterValidator(_url)] = _key(
        "", "the production engine: it is asked how many requests it serves; empty: nobody is asked"
    )
    max_production_requests: Annotated[int, Field(ge=0, le=1_000_000)] = _key(
        0, "requests that it may be serving when a sweep begins"
    )
    max_foreign_cpu: _Fraction = _key(
        0.05, "share of all cores that others may be using when a sweep begins"
    )
    max_foreign_gpu: _Fraction = _key(
        0.05, "share of the GPU that others may be using when a sweep begins"
    )
    idle_for_s: _Seconds = _key(30.0, "how long the box must have been idle")
    production_unit: Annotated[str, AfterValidator(_unit)] = _key(
        "",
        "service that is stopped for a sweep and started again after it; the policy file and a "
        "polkit rule must allow it; empty: none",
    )


class SigningKeys(Table):
    """Who vouches for a result."""

    key_file: _Secret = _key(None, "private key that signs results; empty: they are not signed")


class TelemetryKeys(Table):
    """How often the service looks at the box."""

    sample_interval_s: Annotated[float, Field(ge=0.1, le=3600, allow_inf_nan=False)] = _key(
        1.0, "between two readings of memory and GPU"
    )
    status_interval_s: Annotated[float, Field(ge=10, le=3600, allow_inf_nan=False)] = _key(
        300.0, "longest time between two messages of status"
    )


class DaemonKeys(Table):
    """The service itself."""

    socket: _Place = _key(
        Path("/run/edgeagent/control.sock"), "where `edgeagent trigger` finds it", "restart"
    )
    socket_group: str = _key("edgeagent", "group that may use the socket", "restart")
    watchdog: Literal["auto", "off"] = _key(
        "auto", "auto: systemd's watchdog is fed where it asks for it", "restart"
    )
    stop_timeout_s: _Seconds = _key(10.0, "longest time that ending may take")


class ProfileKeys(SweepKeys):
    """A sweep with a name: the keys of a plan's `[sweep]`, and engines of its own if it has any."""

    engines: dict[str, EngineKeys] = Field(default={})


class SweepTable(SweepKeys):
    """What every profile begins with, and the profiles."""

    profiles: dict[str, ProfileKeys] = Field(default={})


class SettingsFile(Table):
    """Configuration of edgeagent."""

    agent: AgentKeys = AgentKeys()
    mqtt: MqttKeys = MqttKeys()
    sweep: SweepTable = SweepTable()
    engines: dict[str, EngineKeys] = {}
    schedule: ScheduleKeys = ScheduleKeys()
    signing: SigningKeys = SigningKeys()
    telemetry: TelemetryKeys = TelemetryKeys()
    daemon: DaemonKeys = DaemonKeys()


# ------------------------------------------------------------------------------ asking the tables

KeyPath = tuple[str, ...]


def inner(annotation: Any) -> tuple[type[BaseModel] | None, Literal["table", "named"]]:
    """The table that a key holds (or tables by name), or None when it holds a plain value."""
    if get_origin(annotation) is dict:
        return inner(get_args(annotation)[1])[0], "named"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, "table"
    return None, "table"


def table_at(path: KeyPath) -> type[BaseModel] | None:
    """The table whose keys may stand at this path; None where there is none."""
    table: type[BaseModel] | None = SettingsFile
    names = iter(path)
    for name in names:
        if table is None or name not in table.model_fields:
            return None
        table, shape = inner(table.model_fields[name].annotation)
        if shape == "named" and next(names, None) is None:
            return None
    return table


def field_at(path: KeyPath) -> FieldInfo | None:
    """The key at this path; None when it is not known."""
    table = table_at(path[:-1]) if path else None
    return table.model_fields.get(path[-1]) if table else None


def keys(
    table: type[BaseModel] = SettingsFile, path: KeyPath = ()
) -> Iterator[tuple[KeyPath, FieldInfo]]:
    """Every key that holds a plain value, in order; tables by name are left out."""
    for name, field in table.model_fields.items():
        below, shape = inner(field.annotation)
        if below is None or shape == "named":
            yield (*path, name), field
        else:
            yield from keys(below, (*path, name))
