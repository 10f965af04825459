"""Which request is in this message, or why is there none?

From bytes to a command in the order in which a stranger's message is least able to do harm: topic,
retain flag, size, depth, JSON, signature, schema. Nothing is parsed that is too long or nested too
deep, and no field is looked at before the signature is right, where one is wanted. No message
whatever makes `received` raise.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NoReturn

from pydantic import ValidationError

from edgeagent.core.canonical import digest
from edgeagent.core.commands import (
    Cancel,
    Command,
    Head,
    Meta,
    Override,
    Ping,
    Rejected,
    Resync,
    Sweep,
)
from edgeagent.core.policy import OPERATIONS, Operation
from edgeagent.publish.command_messages import (
    REQUEST_ID,
    CmdCancel,
    CmdMeta,
    CmdPing,
    CmdResync,
    CmdSweep,
)
from edgeagent.publish.command_messages import Override as MessageOverride
from edgeagent.publish.signature import Key, verify

MOST_BYTES = 8 * 1024
MOST_DEPTH = 8

_ID = re.compile(REQUEST_ID.replace("$", r"\Z"))
_TOPIC_LEVELS = 3


@dataclass(frozen=True)
class Arrived:
    """A message as it came: `topic` is what stands below the prefix, "cmd/sweep/ID"."""

    topic: str
    payload: bytes
    retain: Literal["live", "retained"]


@dataclass(frozen=True)
class Request:
    """A command that can be judged."""

    command: Command
    fingerprint: str
    """Of what it says, without its signature: a resent request has the same one."""
    document: Mapping[str, object]
    """What it says, without its signature; `understood` makes the same command of it."""


@dataclass(frozen=True)
class Refused:
    """No command. Where the topic names no operation and id of ours, there is nobody to answer."""

    rejected: Rejected
    operation: Operation | None = None
    id: str | None = None


def received(message: Arrived, key: Key | None) -> Request | Refused | None:
    """What the message asks for; None for an empty one, which only clears a retained message."""
    address = _address(message.topic)
    if isinstance(address, Rejected):
        return Refused(address)
    if not message.payload:
        return None
    operation, request_id = address
    outcome = _opened(message, operation, request_id, key)
    return Refused(outcome, operation, request_id) if isinstance(outcome, Rejected) else outcome


def _address(topic: str) -> tuple[Operation, str] | Rejected:
    levels = topic.split("/")
    operation = next((known for known in OPERATIONS if known in levels[1:2]), None)
    if len(levels) != _TOPIC_LEVELS or levels[0] != "cmd" or operation is None:
        return Rejected(
            "schema", f"the topic is none of cmd/{{{'|'.join(OPERATIONS)}}}/ID: use one of those"
        )
    if not _ID.match(levels[2]):
        return Rejected(
            "schema", "the topic does not end in a UUID in small letters: give the request's id"
        )
    return operation, levels[2]


def _opened(
    message: Arrived, operation: Operation, request_id: str, key: Key | None
) -> Request | Rejected:
    if message.retain == "retained":
        return Rejected(
            "retained",
            "the request was published with retain, so it would come again at every connection: "
            "clear it with an empty retained message and send a new one without",
        )
    document = _document(message.payload)
    if isinstance(document, Rejected):
        return document
    if key is not None and (refusal := _signature(document, key)):
        return refusal
    command = understood(document, operation)
    if isinstance(command, Rejected):
        return command
    if command.head.id != request_id:
        return Rejected("schema", "id is not the one that the topic ends in: make them the same")
    unsigned = {name: value for name, value in document.items() if name != "sig"}
    return Request(command, digest(unsigned), unsigned)


# --------------------------------------------------------------------------------------- the JSON


def _document(payload: bytes) -> Mapping[str, object] | Rejected:
    if len(payload) > MOST_BYTES:
        return Rejected(
            "too_large", f"the request has {len(payload)} bytes, and {MOST_BYTES} are allowed"
        )
    if depth(payload) > MOST_DEPTH:
        return Rejected("too_large", f"the request is nested deeper than {MOST_DEPTH} levels")
    try:
        document = json.loads(
            payload.decode("utf-8"),
            object_pairs_hook=_each_key_once,
            parse_constant=_not_json,
            parse_float=_not_whole,
        )
    except ValueError as error:  # also UnicodeDecodeError and JSONDecodeError
        return Rejected("schema", f"the request is not JSON as it is wanted here: {_why(error)}")
    if not isinstance(document, dict):
        return Rejected("schema", "the request is not a JSON object: write {…}")
    return document


def depth(payload: bytes) -> int:
    """How deep the brackets of a JSON text are nested, found out without parsing it."""
    deepest = level = 0
    inside = escaped = False
    for byte in payload:
        if escaped:
            escaped = False
        elif inside:
            escaped = byte == ord("\\")
            inside = byte != ord('"')
        elif byte == ord('"'):
            inside = True
        elif byte in b"[{":
            level += 1
            deepest = max(deepest, level)
        elif byte in b"]}":
            level -= 1
    return deepest


def _each_key_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    document = dict(pairs)
    if len(document) < len(pairs):
        # Readers differ in which of two they keep, so one signature would cover two requests.
        raise ValueError("a key stands in it twice")
    return document


def _not_json(_: str) -> NoReturn:
    raise ValueError("NaN and Infinity are no numbers of JSON")


def _not_whole(_: str) -> NoReturn:
    raise ValueError("numbers are whole in a request")


def _why(error: ValueError) -> str:
    """The fault without any text of the message."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8"
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos}"
    return str(error).partition(";")[0]


def _signature(document: Mapping[str, object], key: Key) -> Rejected | None:
    result = verify(document, key)
    if result == "good":
        return None
    said = "no sig" if result == "missing" else "a sig that is not this request's"
    return Rejected(
        "bad_sig", f"the request has {said}: sign it with the key of this box (docs/commands.md)"
    )


# ------------------------------------------------------------------------------------ the command


def understood(document: Mapping[str, object], operation: Operation) -> Command | Rejected:
    """The command that a request's document is, by the schema of its operation alone."""
    try:
        return _READERS[operation](document)
    except ValidationError as error:
        return Rejected("schema", _sentence(error))


def _sentence(error: ValidationError) -> str:
    """The first fault: where, and what was expected; the value itself is not repeated."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if first["type"] == "extra_forbidden":
        hint = _did_you_mean(str(first["loc"][-1])[:64])
        return f"the request has a field that this operation does not know{hint}: leave it out"
    place = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ").replace("Input should be", "should be")
    return f"{place or 'the request'}: {message[0].lower()}{message[1:]}"


def _did_you_mean(field: str) -> str:
    """Our own name for what was meant, if it is close to one."""
    known = {*CmdSweep.model_fields, *MessageOverride.model_fields, "target", "stream"}
    close = difflib.get_close_matches(field, sorted(known), n=1, cutoff=0.75)
    return f", did you mean {close[0]}?" if close else ""


def _head(message: CmdSweep | CmdCancel | CmdResync | CmdPing | CmdMeta) -> Head:
    return Head(message.id, message.issued_at, message.expires_at, message.issuer)


def _sweep(document: Mapping[str, object]) -> Command:
    message = CmdSweep.model_validate(document)
    return Sweep(
        _head(message), message.profile, _override(message), "dry_run" if message.dry_run else "run"
    )


def _override(message: CmdSweep) -> Override:
    given = message.override
    if given is None:
        return Override()
    return Override(
        concurrency=_numbers(given.concurrency),
        requests=given.requests,
        seconds=given.seconds,
        repeats=given.repeats,
        output_tokens=given.output_tokens,
        prompt_tokens=given.prompt_tokens,
        prefix_tokens=given.prefix_tokens,
        context=given.context,
        memory_slots=_numbers(given.memory_slots),
    )


def _numbers(values: list[int] | None) -> tuple[int, ...] | None:
    return None if values is None else tuple(values)


def _cancel(document: Mapping[str, object]) -> Command:
    message = CmdCancel.model_validate(document)
    return Cancel(_head(message), message.target)


def _resync(document: Mapping[str, object]) -> Command:
    message = CmdResync.model_validate(document)
    return Resync(_head(message), message.stream, message.first, message.last)


_READERS: Mapping[Operation, Callable[[Mapping[str, object]], Command]] = {
    "sweep": _sweep,
    "cancel": _cancel,
    "resync": _resync,
    "ping": lambda document: Ping(_head(CmdPing.model_validate(document))),
    "meta": lambda document: Meta(_head(CmdMeta.model_validate(document))),
}
