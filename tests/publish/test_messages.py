from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from golden_payloads import GOLDEN, IDENTITY, STAMP, payloads
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.core.delivery import Entry, Row, Stream
from edgeagent.errors import ConfigError
from edgeagent.publish.messages import MESSAGES, encoded, envelope, message_schema
from edgeagent.publish.topics import DEFAULT_PREFIX, Identity, kind, topics


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_every_message_has_a_kept_payload_that_its_model_and_its_schema_still_read(
    name: str,
) -> None:
    text = (GOLDEN / f"{name}.json").read_text("utf-8")
    read = MESSAGES[name].model_validate_json(text)
    jsonschema.validate(
        json.loads(text),
        message_schema(name),
        cls=jsonschema.Draft202012Validator,
    )
    again = json.loads(read.model_dump_json(by_alias=True, exclude_unset=True))
    assert again == json.loads(text)


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_this_version_still_makes_the_payload_that_was_kept(name: str) -> None:
    kept = json.loads((GOLDEN / f"{name}.json").read_text("utf-8"))
    assert json.loads(payloads()[name]) == kept


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_every_schema_is_a_sound_json_schema_and_says_what_it_is(name: str) -> None:
    schema = message_schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"edgeagent.{name}/1"


def test_an_unknown_message_has_no_schema() -> None:
    with pytest.raises(KeyError):
        message_schema("nothing")


def row(value: dict[str, object], stream: Stream = "M", **dims: object) -> Row:
    entry = Entry(stream, "m/mem_1m", "edgeagent.mem_1m/1", STAMP, value, dims)
    return Row(entry, "9f3c2a1b", 1042, 0, "new", 1)


def sent(value: dict[str, object], stream: Stream = "M", **dims: object) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(envelope(row(value, stream, **dims), IDENTITY, "live"))
    return document


def test_the_envelope_is_as_the_specification_has_it() -> None:
    assert json.loads(envelope(row({"ram_used_bytes": 5}), IDENTITY, "replay")) == {
        "schema": "edgeagent.mem_1m/1",
        "id": "9f3c2a1b-M-1042",
        "site": "plant7",
        "node": "edge-0001",
        "epoch": "9f3c2a1b",
        "stream": "M",
        "seq": 1042,
        "boot": "77ca4c85",
        "mono_ms": 8123456,
        "ts": 1796006611123,
        "clk": "sync",
        "replay": True,
        "v": {"ram_used_bytes": 5},
    }


def test_of_telemetry_what_is_missing_or_not_finite_is_left_out() -> None:
    nan, inf = float("nan"), float("inf")
    assert sent({"a": None, "b": nan, "c": -inf, "d": 0})["v"] == {"d": 0}


def test_in_a_result_what_is_missing_stays_null() -> None:
    value: dict[str, object] = {"a": None, "b": [1, float("nan"), {"c": float("inf")}]}
    assert sent(value, "R")["v"] == {"a": None, "b": [1, None, {"c": None}]}


def test_results_carry_their_dimensions_beside_the_envelope() -> None:
    document = sent({}, "R", engine="vllm", slots=8, quant=None)
    assert (document["engine"], document["slots"]) == ("vllm", 8)
    assert "quant" not in document


def test_words_that_utf_8_cannot_carry_do_not_stop_a_message() -> None:
    assert encoded({"a": "\ud800x"}) == b'{"a":"?x"}'


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), JSON, max_size=5))
def test_whatever_a_producer_hands_over_becomes_strict_json(value: dict[str, object]) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    for stream in ("R", "M"):
        entry = replace(row(value).entry, stream=stream)
        payload = envelope(replace(row(value), entry=entry), IDENTITY, "live")
        json.loads(payload.decode("utf-8"), parse_constant=refuse)


# ---------------------------------------------------------------- topics


def test_the_prefix_is_filled_in() -> None:
    assert topics(DEFAULT_PREFIX, IDENTITY).status == "edgeagent/v1/plant7/edge-0001/status"
    isa95 = "acme/plant7/packaging/line3/edgeagent/v1/{node}"
    made = topics(isa95, IDENTITY)
    assert made.full("r/run/1") == "acme/plant7/packaging/line3/edgeagent/v1/edge-0001/r/run/1"
    assert made.below(made.full("r/run/1")) == "r/run/1"
    assert made.below("acme/other") is None


@pytest.mark.parametrize(
    "template",
    [
        "", "edgeagent/v1/{site}", "a/{node}x", "a/+/{node}", "a/#/{node}", "a//{node}",
        "/{node}", "{node}/", "$SYS/{node}", "a/{nodes}/{node}", "a b/{node}",
    ],
)  # fmt: skip
def test_a_prefix_that_could_mix_boxes_or_confuse_brokers_is_refused(template: str) -> None:
    with pytest.raises(ConfigError, match=r"mqtt\.topic_prefix"):
        topics(template, IDENTITY)


@pytest.mark.parametrize(
    "text", ["", "a", "A1", "-a", "a/b", "a+", "a#", "a b", "a\n", "ä1", "a" * 64]
)
def test_an_id_that_is_not_sound_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="node is"):
        Identity("plant7", text)
    with pytest.raises(ConfigError, match="site is"):
        Identity(text, "edge-0001")


def test_the_kind_of_a_message_is_its_first_two_levels() -> None:
    assert [kind(below) for below in ("r/run/1", "m/mem_1m", "e/gap", "status")] == [
        "r/run",
        "m/mem_1m",
        "e/gap",
        "status",
    ]
