"""How does a raw record look as one line of JSON?

Rules: a line is one object. `cell_id` (and `attempt`) come first, so that a reader can sort lines
without parsing them. A field that has its default value is left out. `event_ns` holds the first
stamp whole and then the distance of each event from the one before it; `event_tokens` is a single
number where all events carried the same. Keys that this version does not know are ignored: a later
version may have added them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from itertools import accumulate
from operator import sub
from typing import TypeVar, get_args

from edgeagent.core.model import (
    ErrorKind,
    MemorySample,
    RequestTrace,
    Role,
    SamplePhase,
    StampSource,
    TokenSource,
)

T = TypeVar("T")

# One encoder for all lines: json.dumps with separators builds a new one at each call.
# ensure_ascii keeps a lone surrogate from an engine's broken text writable.
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode

_ALWAYS = ("cell_id", "attempt", "index", "role", "scheduled_ns")
_OPTIONAL: tuple[tuple[str, object], ...] = tuple(
    (field.name, field.default)
    for field in fields(RequestTrace)
    if field.default is not MISSING and field.name not in {"event_ns", "event_tokens"}
)


class RecordError(ValueError):
    """A JSON value that is not the record it should be."""


# ---------------------------------------------------------------------------------------- requests


def trace_line(trace: RequestTrace) -> str:
    """Return `trace` as a line of ASCII, without its end."""
    record: dict[str, object] = {name: getattr(trace, name) for name in _ALWAYS}
    for name, default in _OPTIONAL:
        value = getattr(trace, name)
        if value != default:
            record[name] = value
    stamps = trace.event_ns
    if stamps:
        record["event_ns"] = [stamps[0], *map(sub, stamps[1:], stamps)]
    if trace.event_tokens:
        record["event_tokens"] = _packed(trace.event_tokens, len(stamps))
    return _encode(record)


def trace_from(value: object) -> RequestTrace:
    """Return the request of a parsed line. Raises RecordError."""
    record = _object(value)
    event_ns = tuple(accumulate(_ints(record, "event_ns")))
    return RequestTrace(
        cell_id=_need(record, "cell_id", str),
        attempt=_need(record, "attempt", str),
        index=_need(record, "index", int),
        role=_known(_need(record, "role", str), _ROLES),
        scheduled_ns=_need(record, "scheduled_ns", int),
        sent_ns=_maybe(record, "sent_ns", int),
        headers_ns=_maybe(record, "headers_ns", int),
        first_event_ns=_maybe(record, "first_event_ns", int),
        event_ns=event_ns,
        event_tokens=_unpacked(record, len(event_ns)),
        shared_events=_ints(record, "shared_events"),
        first_answer_event=_maybe(record, "first_answer_event", int),
        finished_ns=_maybe(record, "finished_ns", int),
        error=_word(record, "error", _ERRORS),
        error_detail=_maybe(record, "error_detail", str),
        http_status=_maybe(record, "http_status", int),
        finish_reason=_maybe(record, "finish_reason", str),
        expected_tokens=_maybe(record, "expected_tokens", int),
        prompt_tokens=_maybe(record, "prompt_tokens", int),
        cached_tokens=_maybe(record, "cached_tokens", int),
        output_tokens=_maybe(record, "output_tokens", int),
        token_source=_word(record, "token_source", _TOKEN_SOURCES),
        stamp_source=_word(record, "stamp_source", _STAMP_SOURCES) or "kernel",
        late_stamps=_maybe(record, "late_stamps", int) or 0,
        draft_tokens=_maybe(record, "draft_tokens", int),
        draft_accepted=_maybe(record, "draft_accepted", int),
        wave=_maybe(record, "wave", int),
        retried=record.get("retried") is True,
    )


def _packed(tokens: Sequence[int], events: int) -> int | tuple[int, ...]:
    """Return one number for all events where that says the same."""
    first = tokens[0]
    return first if len(tokens) == events and tokens.count(first) == events else tuple(tokens)


def _unpacked(record: Mapping[str, object], events: int) -> tuple[int, ...]:
    packed = record.get("event_tokens")
    return (packed,) * events if type(packed) is int else _ints(record, "event_tokens")


# ----------------------------------------------------------------------------------------- samples


def sample_line(sample: MemorySample) -> str:
    """Return `sample` as a line of ASCII, without its end."""
    record: dict[str, object] = {
        "cell_id": sample.cell_id,
        "at_ns": sample.at_ns,
        "late_ns": sample.late_ns,
        "values": dict(sample.values),
    }
    if sample.absent:
        record["absent"] = dict(sample.absent)
    if sample.phase is not None:
        record["phase"] = sample.phase
    return _encode(record)


def sample_from(value: object) -> MemorySample:
    """Return the sample of a parsed line. Raises RecordError."""
    record = _object(value)
    return MemorySample(
        at_ns=_need(record, "at_ns", int),
        late_ns=_need(record, "late_ns", int),
        cell_id=_maybe(record, "cell_id", str),
        values=_mapping(record, "values", _number_or_none),
        absent=_mapping(record, "absent", _reason),
        phase=_word(record, "phase", _PHASES),
    )


# ---------------------------------------------------------------------------------- reading fields

_ROLES: Mapping[str, Role] = {word: word for word in get_args(Role)}
_ERRORS: Mapping[str, ErrorKind] = {word: word for word in get_args(ErrorKind)}
_TOKEN_SOURCES: Mapping[str, TokenSource] = {word: word for word in get_args(TokenSource)}
_PHASES: Mapping[str, SamplePhase] = {word: word for word in get_args(SamplePhase)}
_STAMP_SOURCES: Mapping[str, StampSource] = {word: word for word in get_args(StampSource)}


def _object(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise RecordError("a record is a JSON object")
    return value


def _need(record: Mapping[str, object], name: str, kind: type[T]) -> T:
    value = _maybe(record, name, kind)
    if value is None:
        raise RecordError(f"{name} is missing")
    return value


def _maybe(record: Mapping[str, object], name: str, kind: type[T]) -> T | None:
    value = record.get(name)
    if value is None:
        return None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise RecordError(f"{name} is {value!r}, not {kind.__name__}")
    return value


def _word(record: Mapping[str, object], name: str, words: Mapping[str, T]) -> T | None:
    value = _maybe(record, name, str)
    return None if value is None else _known(value, words)


def _known(value: str, words: Mapping[str, T]) -> T:
    if value not in words:
        raise RecordError(f"{value!r} is a word that this version does not know")
    return words[value]


def _ints(record: Mapping[str, object], name: str) -> tuple[int, ...]:
    value = record.get(name, [])
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise RecordError(f"{name} is not a list of whole numbers")
    return tuple(value)


def _mapping(
    record: Mapping[str, object], name: str, convert: Callable[[object], T]
) -> Mapping[str, T]:
    value = record.get(name, {})
    if not isinstance(value, dict):
        raise RecordError(f"{name} is not an object")
    return {key: convert(item) for key, item in value.items()}


def _number_or_none(value: object) -> float | int | None:
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return value
    raise RecordError(f"a reading is {value!r}, not a number")


def _reason(value: object) -> str:
    if isinstance(value, str):
        return value
    raise RecordError(f"a reason is {value!r}, not text")
