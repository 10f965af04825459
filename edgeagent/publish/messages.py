"""What does each message on the broker look like?

One pydantic model a message, from which its published JSON Schema is made. Rules: changes within a
major version only add; the type of a field never changes, because collectors drop what they cannot
parse; numbers are finite; units stand in names. What we send tolerates additions (`extra` allowed),
what we obey does not (command_messages.py forbids them).

`envelope` makes the bytes of a row at the moment of sending.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from edgeagent.core.delivery import Row, Stamp
from edgeagent.core.window import Replay
from edgeagent.publish.command_messages import CmdCancel, CmdMeta, CmdPing, CmdResync, CmdSweep
from edgeagent.publish.topics import Identity

Number = Annotated[int | float, Field(allow_inf_nan=False)]
Id = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{1,62}$")]
Millis = Annotated[int, Field(ge=0)]


class _Open(BaseModel):
    """Ours to send: readers ignore fields that they do not know."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


class _Flat(_Open):
    """Telemetry: flat, numbers only, whatever the box has; absent is missing."""

    __pydantic_extra__: dict[str, Number]


# ---------------------------------------------------------------- telemetry


class MemValues(_Flat):
    """Memory of the box at one moment, in bytes."""

    ram_total_bytes: Number | None = None
    ram_used_bytes: Number | None = None
    swap_used_bytes: Number | None = None
    gpu_used_bytes: Number | None = None
    gpu_total_bytes: Number | None = None
    slots_busy: Number | None = None


class GpuValues(_Flat):
    """GPU at one moment; further GPUs as gpu1_util_fraction and so on."""

    gpu_util_fraction: Number | None = None
    gpu_power_w: Number | None = None
    gpu_temperature_c: Number | None = None
    gpu_clock_hz: Number | None = None


class MinuteValues(_Flat):
    """A minute of telemetry: NAME_min, NAME_mean, NAME_max and NAME_last for each value."""

    samples: int = Field(ge=0)
    span_s: Number = Field(ge=0)


# ---------------------------------------------------------------- results


class PointValues(_Flat):
    """One level of concurrency of one run, flat, for dashboards."""

    __pydantic_extra__: dict[str, Number | str | None]  # type: ignore[assignment]  # because words
    # such as a prefix cache's "on" belong to a point, and only to it
    concurrency: int = Field(ge=1)
    requests_ok: int | None = None
    requests_failed: int | None = None
    ttft_p50_s: Number | None = None
    ttft_p95_s: Number | None = None
    tpot_p50_s: Number | None = None
    tpot_p95_s: Number | None = None
    e2e_p95_s: Number | None = None
    output_tokens_per_s: Number | None = None
    memory_bytes_per_slot: Number | None = None


class RunValues(_Open):
    """One run's result: whole, or without its cells when it would be too large."""

    run_id: str
    status: Literal["complete", "partial", "failed"]
    extent: Literal["whole", "summary"]
    result: dict[str, Any]
    result_sha256: str | None = None
    result_file: str | None = None


# ---------------------------------------------------------------- events


class GapValues(_Open):
    """Rows that will not come: the collector's watermark may pass over them.

    `from` and `to` are inclusive numbers of `stream`; `n` of them are gone for `reason`, None where
    nobody can say how many of these numbers were ever given.
    """

    stream: Literal["R", "M"]
    first: int = Field(alias="from", ge=1)
    last: int = Field(alias="to", ge=1)
    n: int | None = Field(default=None, ge=1)
    reason: str
    every: int | None = None
    """Multiples of it are not meant: they are still to come."""


class AuditValues(_Open):
    """What a command led to."""

    op: str
    id: str
    state: str
    code: str | None = None
    issuer: str | None = None
    profile: str | None = None


class OomValues(_Open):
    """Somebody was ended for lack of memory."""

    victim: str
    pid: int | None = None
    source: Literal["kernel", "guard", "cgroup"]


class ThrottleValues(_Open):
    """The box slowed itself down."""

    reason: str
    device: str | None = None
    temperature_c: Number | None = None


class ClockStepValues(_Open):
    """The wall clock jumped; `boot` and `mono_ms` let a collector repair earlier rows."""

    boot: str
    mono_ms: int
    old_ts: int
    new_ts: int


class CertValues(_Open):
    """A certificate nears its end, or has passed it."""

    file: str
    not_after: Millis
    days_left: Number


class SpoolValues(_Open):
    """Another database took the spool's place: what happened to the one before."""

    what: str
    detail: str | None = None
    n: int | None = None
    kept_as: str | None = None
    """The file's new name."""
    previous_epoch: str | None = None
    rows_left: int | None = None
    """Undelivered rows in that file."""


class LinkValues(_Open):
    """Something happened to the connection that an operator should know."""

    what: Literal["taken_over", "denied", "oversize", "poison", "bug"]
    detail: str
    topic: str | None = None


# ---------------------------------------------------------------- envelope


class Envelope(_Open):
    """What stands around the values of every row and every live reading."""

    id: str | None = None
    site: Id
    node: Id
    epoch: str
    stream: Literal["R", "M", "L"]
    seq: int = Field(ge=1)
    boot: str
    mono_ms: Millis
    ts: Millis
    clk: Literal["sync", "holdover", "unsync"]
    replay: bool


class _Dims(_Open):
    engine: str | None = None
    engine_ver: str | None = None
    model: str | None = None
    quant: str | None = None
    ctx: int | None = None
    slots: int | None = None
    run: str | None = None
    point: str | int | None = None


class Mem(Envelope):
    """Live memory."""

    schema_: Literal["edgeagent.mem/1"] = Field(alias="schema")
    v: MemValues


class Gpu(Envelope):
    """Live GPU."""

    schema_: Literal["edgeagent.gpu/1"] = Field(alias="schema")
    v: GpuValues


class Mem1m(Envelope):
    """A minute of memory."""

    schema_: Literal["edgeagent.mem_1m/1"] = Field(alias="schema")
    v: MinuteValues


class Gpu1m(Envelope):
    """A minute of GPU."""

    schema_: Literal["edgeagent.gpu_1m/1"] = Field(alias="schema")
    v: MinuteValues


class Point(Envelope, _Dims):
    """One level of one run."""

    schema_: Literal["edgeagent.point/1"] = Field(alias="schema")
    v: PointValues


class Run(Envelope, _Dims):
    """One run."""

    schema_: Literal["edgeagent.run/1"] = Field(alias="schema")
    v: RunValues


class Gap(Envelope):
    """Declared loss."""

    schema_: Literal["edgeagent.gap/1"] = Field(alias="schema")
    v: GapValues


class Audit(Envelope):
    """A command was judged or ended."""

    schema_: Literal["edgeagent.audit/1"] = Field(alias="schema")
    v: AuditValues


class Oom(Envelope):
    """Out of memory."""

    schema_: Literal["edgeagent.oom/1"] = Field(alias="schema")
    v: OomValues


class Throttle(Envelope):
    """Slowed down."""

    schema_: Literal["edgeagent.throttle/1"] = Field(alias="schema")
    v: ThrottleValues


class ClockStep(Envelope):
    """The wall clock jumped."""

    schema_: Literal["edgeagent.clock_step/1"] = Field(alias="schema")
    v: ClockStepValues


class Cert(Envelope):
    """A certificate's end."""

    schema_: Literal["edgeagent.cert/1"] = Field(alias="schema")
    v: CertValues


class SpoolEvent(Envelope):
    """The spool has something to say."""

    schema_: Literal["edgeagent.spool/1"] = Field(alias="schema")
    v: SpoolValues


class LinkEvent(Envelope):
    """The connection has something to say."""

    schema_: Literal["edgeagent.link/1"] = Field(alias="schema")
    v: LinkValues


# ---------------------------------------------------------------- status, meta


class SpoolFigures(_Open):
    """How far behind the box is."""

    rows: int
    bytes: int
    oldest_age_s: Number | None
    parked: int
    evicted: int


class Status(_Open):
    """Birth, death, and the state between; retained. An offline with a smaller n is outdated."""

    schema_: Literal["edgeagent.status/1"] = Field(alias="schema")
    site: Id
    node: Id
    state: Literal["online", "offline"]
    reason: Literal["lwt", "shutdown", "update"] | None = None
    session: str
    session_n: int = Field(ge=1)
    ts: Millis | None = None
    boot: str | None = None
    clk: Literal["sync", "holdover", "unsync"] | None = None
    version: str | None = None
    health: Literal["ok", "degraded"] | None = None
    troubles: list[str] | None = None
    delivery: Literal["receipt", "puback"] | None = None
    spool: SpoolFigures | None = None
    cert_not_after: Millis | None = None
    policy_sha256: str | None = None


class MetaNode(_Open):
    """What this box is and runs; retained."""

    schema_: Literal["edgeagent.meta.node/1"] = Field(alias="schema")
    site: Id
    node: Id
    version: str
    topic_prefix: str
    host: dict[str, Any]
    engines: list[dict[str, Any]]
    schemas: list[str]


class MetaCommand(_Open):
    """One operation that this box accepts, with its limits; retained."""

    schema_: Literal["edgeagent.meta.cmd/1"] = Field(alias="schema")
    op: Literal["sweep", "cancel", "resync", "ping", "meta"]
    accepts: Literal["yes", "no"]
    request_schema: str
    limits: dict[str, Any]


# ---------------------------------------------------------------- answers


class Ack(_Open):
    """How a command stands; retained for a while."""

    schema_: Literal["edgeagent.ack/1"] = Field(alias="schema")
    op: str
    id: str
    state: Literal[
        "accepted", "running", "succeeded", "failed", "cancelled", "interrupted", "rejected"
    ]
    code: str | None = None
    reason: str | None = None
    ts: Millis
    progress: Number | None = None
    run: str | None = None


class Receipt(_Open):
    """The collector's watermark: everything up to `wm`, by stream, is stored or declared lost."""

    schema_: str | None = Field(default=None, alias="schema")
    epoch: Annotated[str, StringConstraints(max_length=64)]
    wm: dict[Literal["R", "M"], Annotated[int, Field(ge=0)]]
    u: int | None = None
    ts: Number | None = None


MESSAGES: Mapping[str, type[BaseModel]] = {
    "status": Status,
    "meta.node": MetaNode,
    "meta.cmd": MetaCommand,
    "mem": Mem,
    "gpu": Gpu,
    "mem_1m": Mem1m,
    "gpu_1m": Gpu1m,
    "point": Point,
    "run": Run,
    "gap": Gap,
    "audit": Audit,
    "oom": Oom,
    "throttle": Throttle,
    "clock_step": ClockStep,
    "cert": Cert,
    "spool": SpoolEvent,
    "link": LinkEvent,
    "ack": Ack,
    "cmd.sweep": CmdSweep,
    "cmd.cancel": CmdCancel,
    "cmd.resync": CmdResync,
    "cmd.ping": CmdPing,
    "cmd.meta": CmdMeta,
    "rx": Receipt,
}
"""Every message by the name in its schema: "edgeagent.NAME/1"."""


@cache
def _schema_text(name: str) -> str:
    document = MESSAGES[name].model_json_schema(by_alias=True)
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"edgeagent.{name}/1",
        **document,
    }
    return json.dumps(whole)


def message_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a message, such as "mem_1m"; KeyError for an unknown name."""
    schema: dict[str, Any] = json.loads(_schema_text(name))
    return schema


# ---------------------------------------------------------------- bytes


def envelope(row: Row, identity: Identity, replay: Replay) -> bytes:
    """Return the bytes of a row as they go to the broker."""
    entry = row.entry
    head = {
        "schema": entry.schema,
        "id": f"{row.epoch}-{entry.stream}-{row.seq}",
        "site": identity.site,
        "node": identity.node,
        "epoch": row.epoch,
        "stream": entry.stream,
        "seq": row.seq,
        **_stamped(entry.stamp),
        "replay": replay == "replay",
    }
    return encoded({**head, **_present(entry.dims), "v": _values(entry.stream, entry.value)})


@dataclass(frozen=True)
class LiveFrom:
    """Who sends a live reading, and its number since the process started."""

    identity: Identity
    epoch: str
    seq: int


def live_envelope(schema: str, stamp: Stamp, value: Mapping[str, object], where: LiveFrom) -> bytes:
    """Return the bytes of a live reading, which is never stored: its stream is "L"."""
    return encoded(
        {
            "schema": schema,
            "site": where.identity.site,
            "node": where.identity.node,
            "epoch": where.epoch,
            "stream": "L",
            "seq": where.seq,
            **_stamped(stamp),
            "replay": False,
            "v": _present(value),
        }
    )


def encoded(document: Mapping[str, object]) -> bytes:
    """Return compact JSON; a number that is not finite becomes null."""
    try:
        return _dumped(document)
    except ValueError:
        return _dumped(_finite(document))


def _dumped(document: object) -> bytes:
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(
        "utf-8", "replace"
    )


def _stamped(stamp: Stamp) -> dict[str, object]:
    return {
        "boot": stamp.boot,
        "mono_ms": stamp.mono_ms,
        "ts": stamp.ts_ms,
        "clk": stamp.clk,
    }


def _values(stream: str, value: Mapping[str, object]) -> Mapping[str, object]:
    return _present(value) if stream == "M" else value


def _present(value: Mapping[str, object]) -> dict[str, object]:
    """Leave out what is missing or not finite: absent is how a flat message says it."""
    return {
        name: number
        for name, number in value.items()
        if number is not None and not (isinstance(number, float) and not math.isfinite(number))
    }


def _finite(document: object) -> object:
    if isinstance(document, float) and not math.isfinite(document):
        return None
    if isinstance(document, Mapping):
        return {name: _finite(inner) for name, inner in document.items()}
    if isinstance(document, list | tuple):
        return [_finite(inner) for inner in document]
    return document
