"""From bytes to a command: each fault with its code, and nothing in it that could do harm."""

from __future__ import annotations

import dataclasses
import json
import threading
import types
from collections.abc import Iterator, Mapping
from queue import SimpleQueue
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from pydantic import BaseModel

from edgeagent.core.commands import (
    Cancel,
    Code,
    Command,
    Head,
    Meta,
    Override,
    Ping,
    Resync,
    Sweep,
)
from edgeagent.publish.command_messages import CmdCancel, CmdMeta, CmdPing, CmdResync, CmdSweep
from edgeagent.publish.commands import Arrived, Refused, Request, depth, received
from edgeagent.publish.signature import Key, signed

ID = "0b2f6a5e-1111-4222-8333-444455556666"
OTHER = "ffffffff-1111-4222-8333-444455556666"
KEY = Key(b"k" * 32)
HEAD: Mapping[str, object] = {
    "id": ID,
    "issued_at": 1_796_006_000_000,
    "expires_at": 1_796_009_600_000,
    "issuer": "plant-operator",
}
SWEEP: Mapping[str, object] = {
    "schema": "edgeagent.cmd.sweep/1",
    **HEAD,
    "profile": "nightly-llama",
    "override": {"concurrency": [1, 2, 4, 8]},
    "dry_run": False,
}


def got(
    payload: bytes | Mapping[str, object],
    topic: str = f"cmd/sweep/{ID}",
    retain: Literal["live", "retained"] = "live",
    key: Key | None = None,
) -> Request | Refused | None:
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return received(Arrived(topic, data, retain), key)


def refused(
    payload: bytes | Mapping[str, object],
    retain: Literal["live", "retained"] = "live",
    key: Key | None = None,
) -> Code:
    outcome = got(payload, retain=retain, key=key)
    assert isinstance(outcome, Refused)
    assert (outcome.operation, outcome.id) == ("sweep", ID)
    return outcome.rejected.code


def understood(payload: Mapping[str, object], operation: str = "sweep") -> Command:
    outcome = got(payload, f"cmd/{operation}/{ID}")
    assert isinstance(outcome, Request), outcome
    return outcome.command


# ------------------------------------------------------------------------------ what is understood


def test_a_sweep_is_understood() -> None:
    head = Head(ID, 1_796_006_000_000, 1_796_009_600_000, "plant-operator")
    assert understood(SWEEP) == Sweep(head, "nightly-llama", Override(concurrency=(1, 2, 4, 8)))
    short = {"schema": "edgeagent.cmd.sweep/1", **HEAD, "profile": "p", "dry_run": True}
    assert understood(short) == Sweep(head, "p", mode="dry_run")


def test_the_other_operations_are_understood() -> None:
    head = Head(ID, 1_796_006_000_000, 1_796_009_600_000, "plant-operator")

    def of(operation: str, **more: object) -> Command:
        return understood({"schema": f"edgeagent.cmd.{operation}/1", **HEAD, **more}, operation)

    assert of("cancel", target=OTHER) == Cancel(head, OTHER)
    assert of("resync", stream="R", **{"from": 3, "to": 9}) == Resync(head, "R", 3, 9)
    assert of("ping") == Ping(head)
    assert of("meta") == Meta(head)


def test_every_number_of_an_override_arrives_where_it_belongs() -> None:
    numbers = {
        "concurrency": [1, 2],
        "requests": 3,
        "repeats": 5,
        "output_tokens": 6,
        "prompt_tokens": 7,
        "prefix_tokens": 8,
        "context": 9,
        "memory_slots": [10],
    }
    command = understood({**SWEEP, "override": numbers})
    assert isinstance(command, Sweep)
    assert command.override == Override((1, 2), 3, None, 5, 6, 7, 8, 9, (10,))
    command = understood({**SWEEP, "override": {"seconds": 4}})
    assert isinstance(command, Sweep)
    assert command.override == Override(seconds=4)


def test_an_empty_message_asks_for_nothing_because_it_clears_a_retained_one() -> None:
    assert got(b"") is None
    assert got(b"", retain="retained") is None


def test_the_same_request_has_the_same_fingerprint_however_it_is_laid_out_or_signed() -> None:
    spread = json.dumps(dict(reversed(list(SWEEP.items()))), indent=2).encode()
    signed_one = {**SWEEP, "sig": signed(SWEEP, KEY)}
    prints = set()
    for payload in (SWEEP, spread, signed_one):
        outcome = got(payload)
        assert isinstance(outcome, Request)
        prints.add(outcome.fingerprint)
    assert len(prints) == 1
    other = got({**SWEEP, "dry_run": True})
    assert isinstance(other, Request)
    assert other.fingerprint not in prints


# --------------------------------------------------------------------------------- what is refused


def nested(levels: int) -> bytes:
    return b'{"a":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


def without(name: str) -> Mapping[str, object]:
    return {key: value for key, value in SWEEP.items() if key != name}


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"\xff\xfe{}", "schema"),
        (b'{"id": "\xc3"}', "schema"),
        (b"{", "schema"),
        (b"nonsense", "schema"),
        (b"[]", "schema"),
        (b"null", "schema"),
        (b'"text"', "schema"),
        (b"\xef\xbb\xbf{}", "schema"),
        (b"1" * 8000, "schema"),
        (b'{"seconds": 1e999}', "schema"),
        (b'{"seconds": NaN}', "schema"),
        (b'{"seconds": -Infinity}', "schema"),
        (b'{"id": 1, "id": 2}', "schema"),
        (b'{"override": {"a": 1, "a": 1}}', "schema"),
        (b'{"a": "\\ud800"}', "schema"),
        (b" " * (9 * 1024), "too_large"),
        (b'{"a":"' + b"x" * (9 * 1024) + b'"}', "too_large"),
        (nested(8), "schema"),
        (nested(9), "too_large"),
        (b"[" * 4096, "too_large"),
        (b'{"a":' * 1600, "too_large"),
    ],
)
def test_what_is_no_json_object_of_a_modest_size_is_refused(payload: bytes, expected: Code) -> None:
    assert refused(payload) == expected


@pytest.mark.parametrize(
    "payload",
    [
        {**SWEEP, "surprise": 1},
        {**SWEEP, "override": {"model": "/etc/passwd"}},
        {**SWEEP, "override": {"args": ["--help"]}},
        {**SWEEP, "override": {"concurrency": 4}},
        {**SWEEP, "override": {"concurrency": []}},
        {**SWEEP, "override": {"concurrency": [1, 1]}},
        {**SWEEP, "override": {"concurrency": ["1"]}},
        {**SWEEP, "override": {"concurrency": [True]}},
        {**SWEEP, "override": {"concurrency": [0]}},
        {**SWEEP, "override": {"concurrency": list(range(1, 34))}},
        {**SWEEP, "override": {"requests": 10**30}},
        {**SWEEP, "override": {"seconds": 1.5}},
        {**SWEEP, "override": {"requests": 5, "seconds": 5}},
        {**SWEEP, "override": []},
        {**SWEEP, "dry_run": "no"},
        {**SWEEP, "dry_run": 0},
        {**SWEEP, "issued_at": "1796006000000"},
        {**SWEEP, "issued_at": True},
        {**SWEEP, "issued_at": -1},
        {**SWEEP, "expires_at": 1 << 60},
        {**SWEEP, "profile": "../../etc/passwd"},
        {**SWEEP, "profile": "a b"},
        {**SWEEP, "profile": "p\n"},
        {**SWEEP, "profile": ""},
        {**SWEEP, "issuer": "$(reboot)"},
        {**SWEEP, "issuer": "p" * 64},
        {**SWEEP, "id": OTHER},
        {**SWEEP, "id": ID.upper()},
        {**SWEEP, "id": 5},
        {**SWEEP, "schema": "edgeagent.cmd.sweep/2"},
        {**SWEEP, "schema": "edgeagent.cmd.ping/1"},
        {**SWEEP, "schema_": "edgeagent.cmd.sweep/1"},
        {**SWEEP, "sig": "hmac-sha256:xyz"},
        *(without(name) for name in ("schema", "id", "issued_at", "expires_at", "issuer")),
        without("profile"),
    ],
)
def test_what_does_not_follow_the_schema_to_the_letter_is_refused(
    payload: Mapping[str, object],
) -> None:
    assert refused(payload) == "schema"


def test_a_range_of_rows_runs_forward() -> None:
    resync = {"schema": "edgeagent.cmd.resync/1", **HEAD, "stream": "R", "from": 9, "to": 3}
    outcome = got(resync, f"cmd/resync/{ID}")
    assert isinstance(outcome, Refused)
    assert outcome.rejected.code == "schema"


def test_a_retained_request_is_refused_whatever_is_in_it() -> None:
    assert refused(SWEEP, retain="retained") == "retained"
    assert refused(b"x" * 9000, retain="retained") == "retained"


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "cmd",
        "cmd/sweep",
        f"cmd/reboot/{ID}",
        f"cmd/sweep/{ID}/more",
        f"cmd/sweep/{ID.upper()}",
        f"cmd/sweep/{ID}\n",
        "cmd/sweep/../../etc/passwd",
        f"ack/sweep/{ID}",
        f"cmd/sweep/{ID[:-1]}\u0662",
    ],
)
def test_a_topic_that_is_none_of_ours_gets_no_answer(topic: str) -> None:
    outcome = got(SWEEP, topic)
    assert isinstance(outcome, Refused)
    assert (outcome.rejected.code, outcome.operation, outcome.id) == ("schema", None, None)


def test_the_sentence_names_the_place_and_repeats_nothing_of_the_message() -> None:
    first = got({**SWEEP, "proflie": "<script>"})
    assert isinstance(first, Refused)
    assert first.rejected.sentence == (
        "the request has a field that this operation does not know, did you mean profile?: "
        "leave it out"
    )
    level = got({**SWEEP, "override": {"concurrency": [1, "<script>"]}})
    assert isinstance(level, Refused)
    assert level.rejected.sentence == "override.concurrency.1: should be a valid integer"


# --------------------------------------------------------------------------------- the signature


def test_with_a_key_only_a_request_with_its_signature_is_understood() -> None:
    good = {**SWEEP, "sig": signed(SWEEP, KEY)}
    assert isinstance(got(good, key=KEY), Request)
    assert refused(SWEEP, key=KEY) == "bad_sig"
    assert refused({**good, "dry_run": True}, key=KEY) == "bad_sig"
    assert refused({**good, "sig": signed(SWEEP, Key(b"x" * 32))}, key=KEY) == "bad_sig"
    assert refused({**good, "sig": "hmac-sha256:é"}, key=KEY) == "bad_sig"
    assert refused({**good, "sig": 1}, key=KEY) == "bad_sig"


def test_who_has_no_key_learns_nothing_about_the_schema() -> None:
    assert refused({"surprise": 1}, key=KEY) == "bad_sig"
    assert refused(b'{"a": "\\ud800", "sig": "\\ud800"}', key=KEY) == "bad_sig"


def test_a_signed_request_still_has_to_follow_the_schema() -> None:
    wrong = {**SWEEP, "surprise": 1}
    assert refused({**wrong, "sig": signed(wrong, KEY)}, key=KEY) == "schema"


# ---------------------------------------------------------------------- nothing of it can do harm


def leaves(
    hint: Any, where: str, constraints: tuple[Any, ...] = ()
) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Every type that a value of this type is made of, with its place and its constraints."""
    while get_origin(hint) is Annotated:
        hint, *more = get_args(hint)
        constraints = (*constraints, *more)
    if get_origin(hint) in (Union, types.UnionType):
        for member in get_args(hint):
            yield from leaves(member, where, constraints)
    elif get_origin(hint) in (list, tuple):
        yield f"{where} as list", list, constraints
        yield from leaves(get_args(hint)[0], f"{where}[]")
    elif isinstance(hint, type) and issubclass(hint, BaseModel):
        for name, field in hint.model_fields.items():
            yield from leaves(field.annotation, f"{where}.{name}", tuple(field.metadata))
    elif dataclasses.is_dataclass(hint):
        for name, inner in get_type_hints(hint, include_extras=True).items():
            yield from leaves(inner, f"{where}.{name}")
    else:
        yield where, hint, constraints


def limits(constraints: tuple[Any, ...]) -> dict[str, Any]:
    """The constraints by name, out of Field(…) and out of annotated-types."""
    found: dict[str, Any] = {}
    for item in constraints:
        for part in getattr(item, "metadata", ()) or (item,):
            for name in ("ge", "le", "min_length", "max_length", "pattern"):
                if getattr(part, name, None) is not None:
                    found[name] = getattr(part, name)
    return found


@pytest.mark.parametrize("message", [CmdSweep, CmdCancel, CmdResync, CmdPing, CmdMeta])
def test_a_request_holds_words_of_a_list_bounded_numbers_and_names_by_a_pattern_alone(
    message: type[BaseModel],
) -> None:
    seen = list(leaves(message, message.__name__))
    assert len(seen) >= 6
    for where, kind, constraints in seen:
        has = limits(constraints)
        if kind is int:
            assert {"ge", "le"} <= has.keys(), where
        elif kind is str:
            pattern = has["pattern"]
            assert pattern.startswith("^"), where
            assert pattern.endswith("$"), where
            # nothing that a shell, a path, a URL or a format string could read as more than a name
            assert not set(pattern.replace("$", "")) & set("/\\ '\"`;&|<>%~"), where
        elif kind is list:
            assert has["max_length"] <= 32, where
        else:
            assert kind in (bool, type(None)) or get_origin(kind) is Literal, (where, kind)


@pytest.mark.parametrize("command", get_args(Command))
def test_a_command_is_made_of_the_same_few_kinds(command: type) -> None:
    texts = set()
    for where, kind, _ in leaves(command, command.__name__):
        if kind is str:
            texts.add(where.partition(".")[2])
        else:
            assert kind in (int, list, type(None)) or get_origin(kind) is Literal, (where, kind)
    assert texts <= {"head.id", "head.issuer", "of", "profile"}


# --------------------------------------------------------------------------------------- the fuzz

TEXTS = st.text(max_size=40)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.sampled_from([*SWEEP, "sig", "from", "to", "stream", "target"])


@st.composite
def near_misses(draw: st.DrawFn) -> bytes:
    """A sound request with one to three places changed, sometimes cut or with bytes flipped."""
    document = dict(SWEEP)
    for _ in range(draw(st.integers(0, 3))):
        document[draw(FIELDS)] = draw(JSON)
    data = bytearray(json.dumps(document).encode("utf-8", "surrogatepass"))
    for _ in range(draw(st.integers(0, 2))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)


PAYLOADS = st.one_of(
    st.binary(max_size=200),
    near_misses(),
    JSON.map(lambda value: json.dumps(value).encode("utf-8", "surrogatepass")),
    st.integers(0, 20_000).map(lambda count: b"[" * count),
    st.integers(8000, 9000).map(lambda count: b'"' + b"\\" * count),
)
TOPICS = st.one_of(
    st.just(f"cmd/sweep/{ID}"),
    st.sampled_from(["sweep", "cancel", "resync", "ping", "meta"]).map(lambda op: f"cmd/{op}/{ID}"),
    st.text(max_size=80),
    st.lists(TEXTS, max_size=5).map("/".join),
)
KNOWN = set(get_args(Code))


@given(TOPICS, PAYLOADS, st.sampled_from(["live", "retained"]), st.sampled_from([None, KEY]))
@examples(max_examples=10_000)
def test_no_message_makes_it_raise(
    topic: str, payload: bytes, retain: Literal["live", "retained"], key: Key | None
) -> None:
    outcome = received(Arrived(topic, payload, retain), key)
    if isinstance(outcome, Refused):
        assert outcome.rejected.code in KNOWN
        assert len(outcome.rejected.sentence) < 400
    elif isinstance(outcome, Request):
        assert outcome.command.head.id == topic.rpartition("/")[2]


@given(st.lists(PAYLOADS, max_size=30))
@examples(max_examples=50)
def test_the_thread_that_reads_messages_outlives_them_all(payloads: list[bytes]) -> None:
    inbox: SimpleQueue[bytes | None] = SimpleQueue()
    answers: SimpleQueue[object] = SimpleQueue()

    def read() -> None:
        while (payload := inbox.get()) is not None:
            answers.put(received(Arrived(f"cmd/sweep/{ID}", payload, "live"), None))

    thread = threading.Thread(target=read)
    thread.start()
    for payload in (*payloads, json.dumps(SWEEP).encode()):
        inbox.put(payload)
    inbox.put(None)
    thread.join(60)
    assert not thread.is_alive()
    assert answers.qsize() == len(payloads) + 1


@given(JSON)
def test_the_depth_is_known_before_anything_is_parsed(value: object) -> None:
    def deep(inner: object) -> int:
        if isinstance(inner, dict):
            return 1 + max((deep(each) for each in inner.values()), default=0)
        if isinstance(inner, list):
            return 1 + max((deep(each) for each in inner), default=0)
        return 0

    assert depth(json.dumps(value).encode()) == deep(value)
