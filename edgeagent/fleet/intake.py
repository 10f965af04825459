"""What is to be stored of one message, or why is it set aside?

Values in, values out. Whatever a box sends ends in rows of its own, or in the quarantine:

- The topic says who speaks, because that is what the broker's access list checks; an envelope that
  names somebody else is forged.
- A row is stored if its key is sound. A schema that nobody here knows is kept as it came. Known
  schemas whose values are not as published are kept raw too, and noted, so that a watermark never
  waits for a row that will not get better.
- A row above the size limit is declared lost, for the same reason.
- Live readings (stream L) are only looked at.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, NoReturn

from edgeagent.fleet.places import Place, kind
from edgeagent.fleet.store import (
    TELEMETRY_KINDS,
    BootRow,
    GapRow,
    MessageRow,
    NodeNews,
    PointRow,
    Quarantined,
    RunRow,
    TelemetryRow,
    UnclearRow,
)

MOST_PAYLOAD_BYTES = 524_288
_MOST_STATE_BYTES = 131_072
"""Of a status or a description, which are kept with the box and read by every view."""
MOST_JUMP = 10_000_000
"""A number so far above the highest known one is nobody's: a box makes half a million a year."""
_KEPT_OF_PAYLOAD = 2_000
_MOST = 1 << 53
_LONGEST_WORD = 200
_LONGEST_NAME = 64
_MOST_VALUES = 400
_NUMBERS = frozenset({int, float})
_CLOCKS = frozenset({"sync", "holdover", "unsync"})
_STREAMS = frozenset({"R", "M", "L"})
_STATES = frozenset({"online", "offline"})
_TELEMETRY = frozenset(f"edgeagent.{name}/1" for name in TELEMETRY_KINDS)
_STATUS, _META = "edgeagent.status/", "edgeagent.meta.node/"


class Incoming(NamedTuple):
    """A message as it came; `rx_ms` is our wall clock."""

    topic: str
    payload: bytes
    retained: bool
    rx_ms: int


class Verdict(NamedTuple):
    """What becomes of a message; empty for one that is only an echo."""

    message: MessageRow | None = None
    telemetry: TelemetryRow | None = None
    point: PointRow | None = None
    run: RunRow | None = None
    gaps: tuple[GapRow, ...] = ()
    boot: BootRow | None = None
    unclear: UnclearRow | None = None
    news: NodeNews | None = None
    quarantined: Quarantined | None = None
    told: Mapping[str, Any] | None = None
    """What a receipt on the broker tells a box: epoch and wm."""
    place: Place | None = None


class RefusedError(Exception):
    """Why a message is set aside; the text has nothing that a box could choose."""


def judge(incoming: Incoming, place: Place | None) -> Verdict:
    """Return what becomes of a message from a place."""
    if place is None:
        return aside(incoming, place, "no box has such a topic")
    try:
        return _judged(incoming, place)
    except RefusedError as refused:
        return aside(incoming, place, str(refused))


def aside(incoming: Incoming, place: Place | None, reason: str) -> Verdict:
    """Return the verdict that sets a message aside."""
    return Verdict(quarantined=_note(incoming, place, reason), place=place)


def _note(incoming: Incoming, place: Place | None, reason: str) -> Quarantined:
    # By kind, not by topic: a box chooses the names of its runs, and must not fill the table.
    topic = incoming.topic
    if place is not None:
        head = topic[: len(topic) - len(place.below)]
        topic = head + "/".join(place.below.split("/", 2)[:2])
    return Quarantined(
        incoming.rx_ms,
        _clean(topic[:_LONGEST_WORD]),
        reason,
        _clean(incoming.payload[:_KEPT_OF_PAYLOAD].decode("utf-8", "replace")),
        len(incoming.payload),
    )


def _judged(incoming: Incoming, place: Place) -> Verdict:
    what = kind(place.below)
    if what is None:
        raise RefusedError("nothing is sent on such a topic")
    if not incoming.payload and what != "row":
        return Verdict()  # because a retained message was cleared
    if what != "row" and len(incoming.payload) > _MOST_STATE_BYTES:
        raise RefusedError("too large")
    document = parsed(incoming.payload)
    if what == "rx":
        return Verdict(told=document, place=place)
    if what == "status":
        return _status(incoming, place, document)
    if what == "meta":
        return _meta(incoming, place, document)
    return _row(incoming, place, document)


# ---------------------------------------------------------------- JSON


def parsed(payload: bytes) -> dict[str, Any]:
    """Return a JSON object; RefusedError for anything else."""
    try:
        document = _decode(payload.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RefusedError("not UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise RefusedError("not JSON, or with numbers that JSON has not") from error
    if not isinstance(document, dict):
        raise RefusedError("not a JSON object")
    return document


def _no_number(_text: str) -> NoReturn:
    raise ValueError("NaN and Infinity are no JSON")


_decode = json.JSONDecoder(parse_constant=_no_number).decode


def _clean(text: str) -> str:
    """Return text that both databases take."""
    if text.isascii() and "\x00" not in text:
        return text
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def _json(document: object) -> str:
    """Return JSON that both databases take; 1e999 is read as infinite, and is none."""
    try:
        made = _encode(document)
    except RecursionError as error:
        raise RefusedError("nested too deep") from error
    except ValueError as error:
        raise RefusedError("a number too large") from error
    if "\\u0000" in made:
        made = made.replace("\\u0000", "\ufffd")
    return _clean(made)


_encode = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
).encode


# ---------------------------------------------------------------- status, meta


def _status(incoming: Incoming, place: Place, document: Mapping[str, Any]) -> Verdict:
    schema = document.get("schema")
    if not isinstance(schema, str) or not schema.startswith(_STATUS):
        raise RefusedError("not a status")
    _same_box(document, place)
    if _one_of(document, "state", _STATES) is None:
        raise RefusedError("a status without a state")
    _number(document, "session_n")
    _json(document)  # because it is kept, and both databases have to take it
    heard_ms = incoming.rx_ms
    if incoming.retained:
        # It may be old: the box's own word for when it was, and never later than now.
        heard_ms = min(heard_ms, _optional_number(document, "ts") or 0)
    news = NodeNews(
        place.node,
        _site(document, place),
        heard_ms,
        status=document,
        clk=_one_of(document, "clk", _CLOCKS),
    )
    return Verdict(news=news, place=place)


def _meta(incoming: Incoming, place: Place, document: Mapping[str, Any]) -> Verdict:
    schema = document.get("schema")
    if not isinstance(schema, str) or not schema.startswith(_META):
        raise RefusedError("not a description of a box")
    _same_box(document, place)
    _json(document)  # because it is kept, and both databases have to take it
    heard_ms = 0 if incoming.retained else incoming.rx_ms
    news = NodeNews(place.node, _site(document, place), heard_ms, meta=document)
    return Verdict(news=news, place=place)


def _same_box(document: Mapping[str, Any], place: Place) -> None:
    if document.get("node") != place.node:
        raise RefusedError("forged: the node inside is not the topic's")
    if place.site is not None and document.get("site") != place.site:
        raise RefusedError("forged: the site inside is not the topic's")


def _site(document: Mapping[str, Any], place: Place) -> str:
    return place.site or _text(document, "site", _LONGEST_NAME)


# ---------------------------------------------------------------- rows


def _row(incoming: Incoming, place: Place, document: dict[str, Any]) -> Verdict:
    _same_box(document, place)
    stream = _one_of(document, "stream", _STREAMS)
    if stream == "L":
        return _live(incoming, place, document)
    if stream is None:
        raise RefusedError("of no stream")
    head = _head(incoming, place, document, stream)
    if len(incoming.payload) > MOST_PAYLOAD_BYTES:
        return _too_large(incoming, place, head)
    news = _heard(incoming, place, document, head)
    boot = unclear = None
    if head.clk == "sync":
        boot = BootRow(head.node, head.boot, head.ts_ms - head.mono_ms, head.mono_ms)
    elif head.clk == "unsync":
        unclear = UnclearRow(head.node, head.boot, head.epoch, head.stream, head.seq, head.mono_ms)
    whole = Verdict(boot=boot, unclear=unclear, news=news, place=place)
    return _known(incoming, whole, head, document)


def _head(incoming: Incoming, place: Place, document: Mapping[str, Any], stream: str) -> MessageRow:
    schema = _text(document, "schema", _LONGEST_WORD)
    seq = _number(document, "seq")
    if seq < 1:
        raise RefusedError("its number is below 1")
    clk = _one_of(document, "clk", _CLOCKS)
    if clk is None:
        raise RefusedError("a clock of no known state")
    return MessageRow(
        place.node,
        _text(document, "epoch", _LONGEST_NAME),
        stream,
        seq,
        schema,
        schema.removeprefix("edgeagent.").partition("/")[0],
        _number(document, "ts"),
        incoming.rx_ms,
        _text(document, "boot", _LONGEST_NAME),
        _number(document, "mono_ms"),
        clk,
        None,
    )


def _heard(
    incoming: Incoming, place: Place, document: Mapping[str, Any], head: MessageRow
) -> NodeNews:
    late = document.get("replay") is not False
    return NodeNews(
        head.node,
        _site(document, place),
        incoming.rx_ms,
        clk=head.clk,
        lag_ms=None if late else incoming.rx_ms - head.ts_ms,
    )


def _live(incoming: Incoming, place: Place, document: Mapping[str, Any]) -> Verdict:
    values = document.get("v")
    if not isinstance(values, dict) or not _flat(values):
        raise RefusedError("live values that are not flat numbers")
    _json(values)  # because the last ones are kept, and both databases have to take them
    if len(incoming.payload) > MOST_PAYLOAD_BYTES:
        raise RefusedError("too large")
    news = NodeNews(place.node, _site(document, place), incoming.rx_ms, live=values)
    return Verdict(news=news, place=place)


def _too_large(incoming: Incoming, place: Place, head: MessageRow) -> Verdict:
    gap = GapRow(
        head.node, head.epoch, head.stream, head.seq, head.seq, None, "too_large", head.rx_ms
    )
    return Verdict(gaps=(gap,), quarantined=_note(incoming, place, "too large"), place=place)


def _known(
    incoming: Incoming, whole: Verdict, head: MessageRow, document: Mapping[str, Any]
) -> Verdict:
    """Add what the schema says; a row that only looks like it is kept raw and noted."""
    reading = _READ.get(head.schema)
    try:
        if head.schema in _TELEMETRY and head.stream == "M":
            return whole._replace(telemetry=_telemetry(head, document))
        if reading is not None:
            return reading(whole, head, document)
    except RefusedError as refused:
        raw = whole._replace(message=_raw(head, incoming))
        return raw._replace(quarantined=_note(incoming, whole.place, f"kept raw: {refused}"))
    return whole._replace(message=_raw(head, incoming))


def _raw(head: MessageRow, incoming: Incoming) -> MessageRow:
    return head._replace(payload=_clean(incoming.payload.decode("utf-8", "replace")))


def _telemetry(head: MessageRow, document: Mapping[str, Any]) -> TelemetryRow:
    values = document.get("v")
    if not isinstance(values, dict) or not _flat(values):
        raise RefusedError("telemetry that is not flat numbers")
    return TelemetryRow(
        head.node,
        head.epoch,
        head.stream,
        head.seq,
        head.kind,
        head.ts_ms,
        head.ts_ms,
        head.rx_ms,
        head.clk,
        _json(values),
    )


def _flat(values: Mapping[str, Any]) -> bool:
    return len(values) <= _MOST_VALUES and _NUMBERS.issuperset(map(type, values.values()))


def _point(whole: Verdict, head: MessageRow, document: Mapping[str, Any]) -> Verdict:
    values = document.get("v")
    if not isinstance(values, dict):
        raise RefusedError("a level without values")
    read = partial(_optional_float, values)
    count = partial(_optional_number, values)
    number = document.get("point")
    point = PointRow(
        node=head.node,
        epoch=head.epoch,
        seq=head.seq,
        run=_text(document, "run", _LONGEST_WORD),
        point=f"{head.epoch}-{head.seq}" if number is None else _clean(str(number)[:_LONGEST_NAME]),
        engine=_optional_text(document, "engine"),
        engine_ver=_optional_text(document, "engine_ver"),
        model=_optional_text(document, "model"),
        quant=_optional_text(document, "quant"),
        ctx=_optional_number(document, "ctx"),
        slots=_optional_number(document, "slots"),
        concurrency=_number(values, "concurrency"),
        prefix_cache=_optional_text(values, "prefix_cache"),
        speculation=_optional_text(values, "speculation"),
        ts_ms=head.ts_ms,
        output_tokens_per_s=read("output_tokens_per_s"),
        ttft_p50_s=read("ttft_p50_s"),
        ttft_p95_s=read("ttft_p95_s"),
        tpot_p50_s=read("tpot_p50_s"),
        tpot_p95_s=read("tpot_p95_s"),
        e2e_p95_s=read("e2e_p95_s"),
        goodput_per_s=read("goodput_per_s"),
        requests_ok=count("requests_ok"),
        requests_failed=count("requests_failed"),
        memory_bytes_per_slot=read("memory_bytes_per_slot"),
        max_slots=count("max_slots"),
        v=_json(values),
    )
    return whole._replace(point=point, message=head._replace(payload=_json(document)))


def _run(whole: Verdict, head: MessageRow, document: Mapping[str, Any]) -> Verdict:
    values = document.get("v")
    if not isinstance(values, dict) or not isinstance(values.get("result"), dict):
        raise RefusedError("a run without a result")
    result = values["result"]
    host = result.get("host")
    run = RunRow(
        node=head.node,
        run_id=_text(values, "run_id", _LONGEST_WORD),
        epoch=head.epoch,
        seq=head.seq,
        status=_text(values, "status", _LONGEST_NAME),
        extent=_text(values, "extent", _LONGEST_NAME),
        started_at=_optional_text(result, "started_at"),
        finished_at=_optional_text(result, "finished_at"),
        class_=_optional_text(host, "class") if isinstance(host, dict) else None,
        ts_ms=head.ts_ms,
        rx_ms=head.rx_ms,
        result_sha256=_optional_text(values, "result_sha256"),
        result_file=_optional_text(values, "result_file"),
        document=_json(result),
        comparison=_listed(result.get("comparison")),
        findings=_listed(result.get("findings")),
    )
    return whole._replace(run=run, message=head)


def _listed(values: object) -> str | None:
    return _json(values) if isinstance(values, list) else None


def _gap(whole: Verdict, head: MessageRow, document: Mapping[str, Any]) -> Verdict:
    values = document.get("v")
    if not isinstance(values, dict):
        raise RefusedError("a gap without values")
    stream = _one_of(values, "stream", _STREAMS)
    if stream is None or stream == "L":
        raise RefusedError("a gap of no stream")
    first, last = _number(values, "from"), _number(values, "to")
    every = _optional_number(values, "every")
    if not 1 <= first <= last or (every is not None and every < 2):  # noqa: PLR2004  # because every number is no gap with exceptions
        raise RefusedError("a gap that ends before it begins")
    reason = _optional_text(values, "reason") or "unknown"
    gap = GapRow(head.node, head.epoch, stream, first, last, every, reason, head.rx_ms)
    return whole._replace(gaps=(gap,), message=head._replace(payload=_json(document)))


_READ = {"edgeagent.point/1": _point, "edgeagent.run/1": _run, "edgeagent.gap/1": _gap}


# ---------------------------------------------------------------- single values


def _text(document: Mapping[str, Any], name: str, longest: int) -> str:
    value = document.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= longest:
        raise RefusedError(f"{name} is missing, or no word of at most {longest} characters")
    return _clean(value)


def _one_of(document: Mapping[str, Any], name: str, words: frozenset[str]) -> str | None:
    value = document.get(name)
    return value if isinstance(value, str) and value in words else None


def _optional_text(document: Mapping[str, Any], name: str) -> str | None:
    value = document.get(name)
    return _clean(value[:_LONGEST_WORD]) if isinstance(value, str) else None


def _number(document: Mapping[str, Any], name: str) -> int:
    value = document.get(name)
    if type(value) is not int or not 0 <= value < _MOST:
        raise RefusedError(f"{name} is missing, or no whole number from 0 to 2**53")
    return value


def _optional_number(document: Mapping[str, Any], name: str) -> int | None:
    value = document.get(name)
    return value if type(value) is int and 0 <= value < _MOST else None


def _optional_float(document: Mapping[str, Any], name: str) -> float | None:
    value = document.get(name)
    if type(value) is float:
        return value if math.isfinite(value) else None
    return float(value) if type(value) is int and abs(value) < _MOST else None
