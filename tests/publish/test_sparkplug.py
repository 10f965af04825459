"""The bytes of Sparkplug B, against the classes that Google's compiler makes of its definition."""

from __future__ import annotations

import math
import random
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from tahutils.tahu import (  # type: ignore[import-untyped]  # because it has no types
    sparkplug_b_pb2 as tahu,
)

from edgeagent.publish.sparkplug import DataType, Metric, Payload, Value, decoded, encoded

TYPES: tuple[DataType, ...] = ("int32", "int64", "uint64", "double", "boolean", "string")
NUMBERS = {
    "int32": tahu.Int32,
    "int64": tahu.Int64,
    "uint64": tahu.UInt64,
    "double": tahu.Double,
    "boolean": tahu.Boolean,
    "string": tahu.String,
}


def theirs(payload: Payload) -> Any:
    """The same payload as tahu's message."""
    message = tahu.Payload()
    if payload.ts_ms is not None:
        message.timestamp = payload.ts_ms
    if payload.seq is not None:
        message.seq = payload.seq
    for ours in payload.metrics:
        metric = message.metrics.add()
        metric.name = ours.name
        metric.datatype = NUMBERS[ours.datatype]
        if ours.ts_ms is not None:
            metric.timestamp = ours.ts_ms
        if ours.history == "historical":
            metric.is_historical = True
        _set_value(metric, ours)
    return message


def _set_value(metric: Any, ours: Metric) -> None:
    value: Any = ours.value
    match ours.datatype:
        case _ if value is None:
            metric.is_null = True
        case "int32":
            metric.int_value = value % (1 << 32)
        case "int64" | "uint64":
            metric.long_value = value % (1 << 64)
        case "double":
            metric.double_value = value
        case "boolean":
            metric.boolean_value = value
        case "string":
            metric.string_value = value


def random_value(datatype: DataType, rng: random.Random) -> Value:
    bits = rng.choice((1, 7, 8, 14, 31, 32, 63))
    match datatype:
        case "int32":
            return rng.getrandbits(min(bits, 31)) * rng.choice((1, -1))
        case "int64":
            return rng.getrandbits(bits) * rng.choice((1, -1))
        case "uint64":
            return rng.getrandbits(bits + 1)
        case "double":
            return rng.choice((0.0, -0.0, math.inf, rng.uniform(-1e300, 1e300), rng.random()))
        case "boolean":
            return rng.random() < 0.5
    return random_text(rng)


def random_text(rng: random.Random) -> str:
    return "".join(rng.choice("aZ0_/ é∞😀") for _ in range(rng.choice((0, 1, 5, 40, 200))))


def random_payload(rng: random.Random) -> Payload:
    metrics = []
    for _ in range(rng.randrange(6)):
        datatype = rng.choice(TYPES)
        metrics.append(
            Metric(
                random_text(rng),
                datatype,
                None if rng.random() < 0.1 else random_value(datatype, rng),
                rng.choice((None, 0, rng.getrandbits(41))),
                rng.choice(("now", "historical")),
            )
        )
    ts_ms = rng.choice((None, 0, rng.getrandbits(41)))
    return Payload(ts_ms, tuple(metrics), rng.choice((None, rng.randrange(256))))


def test_20000_payloads_are_byte_for_byte_those_of_googles_protobuf_and_come_back_whole() -> None:
    rng = random.Random(20261130)
    for _ in range(20_000):
        payload = random_payload(rng)
        data = encoded(payload)
        assert data == theirs(payload).SerializeToString()
        assert decoded(data) == payload


@pytest.mark.parametrize(
    ("datatype", "value"),
    [
        ("int32", 1 << 31),
        ("int32", -(1 << 31) - 1),
        ("int64", 1 << 63),
        ("uint64", -1),
        ("uint64", 1 << 64),
    ],
)
def test_a_number_that_does_not_fit_is_refused(datatype: DataType, value: int) -> None:
    with pytest.raises(ValueError, match=str(value)):
        encoded(Payload(0, (Metric("m", datatype, value),), 0))


@pytest.mark.parametrize(
    ("datatype", "value"),
    [
        ("int32", -(1 << 31)),
        ("int32", (1 << 31) - 1),
        ("int64", -(1 << 63)),
        ("uint64", (1 << 64) - 1),
    ],
)
def test_the_last_number_that_fits_comes_back(datatype: DataType, value: int) -> None:
    payload = Payload(0, (Metric("m", datatype, value),), 0)
    assert encoded(payload) == theirs(payload).SerializeToString()
    assert decoded(encoded(payload)) == payload


def test_unknown_is_not_zero() -> None:
    message = tahu.Payload.FromString(encoded(Payload(0, (Metric("m", "double", None),), 0)))
    assert message.metrics[0].is_null
    assert not message.metrics[0].HasField("double_value")


def test_fields_that_are_not_ours_are_skipped() -> None:
    message = theirs(Payload(5, (Metric("m", "int64", 7, 6),), 3))
    message.uuid = "somebody"
    message.body = b"\x00\xff"
    message.metrics[0].alias = 9
    message.metrics[0].metadata.description = "words"
    message.metrics[0].properties.keys.append("k")
    extra = message.metrics.add()
    extra.name, extra.datatype, extra.float_value = "f", tahu.Float, 1.5
    extra = message.metrics.add()
    extra.name, extra.datatype = "d", tahu.DataSet
    extra.dataset_value.num_of_columns = 2
    found = decoded(message.SerializeToString())
    assert (found.ts_ms, found.seq, found.metrics[0]) == (5, 3, Metric("m", "int64", 7, 6))
    assert [(metric.name, metric.value) for metric in found.metrics[1:]] == [
        ("f", None),
        ("d", None),
    ]


@given(st.binary(max_size=300))
@examples(max_examples=2000)
def test_any_bytes_are_a_payload_or_a_value_error(data: bytes) -> None:
    try:
        decoded(data)
    except ValueError:
        return


def test_so_are_20000_payloads_with_bytes_changed() -> None:
    rng = random.Random(20261201)
    refused = 0
    for _ in range(20_000):
        whole = bytearray(encoded(random_payload(rng)))
        for _ in range(rng.randint(1, 4) if whole else 0):
            whole[rng.randrange(len(whole))] = rng.randrange(256)
        try:
            decoded(bytes(whole))
        except ValueError:
            refused += 1
    assert 0 < refused < 20_000


def test_a_double_of_another_length_is_not_known() -> None:
    metric = b"\x0a\x01m" + b"\x20\x0a" + b"\x6a\x03abc"
    assert decoded(b"\x12" + bytes([len(metric)]) + metric).metrics[0].value is None
    assert struct.calcsize("<d") == 8
