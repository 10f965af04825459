"""How is a Sparkplug B payload written, and what does a node command say?

Sparkplug B is protobuf (proto2) with a fixed message, of which this writes the part that a mirror
of readings needs: a time stamp, metrics by name, a sequence number. No aliases: a host that missed
the birth would show `alias_7`. Field numbers are those of sparkplug_b.proto; the tests compare with
the classes that Google's compiler makes of it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

DataType = Literal["int32", "int64", "uint64", "double", "boolean", "string"]
Value = int | float | bool | str

_CODES: dict[DataType, int] = {
    "int32": 3,
    "int64": 4,
    "uint64": 8,
    "double": 10,
    "boolean": 11,
    "string": 12,
}
_TYPES = {code: datatype for datatype, code in _CODES.items()}

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


@dataclass(frozen=True)
class Metric:
    """One named value. None says that it is not known, which is not zero."""

    name: str
    datatype: DataType
    value: Value | None
    ts_ms: int | None = None
    history: Literal["now", "historical"] = "now"


@dataclass(frozen=True)
class Payload:
    """A whole message; `seq` is None where there is none, in NDEATH and NCMD."""

    ts_ms: int | None
    metrics: tuple[Metric, ...]
    seq: int | None


# ---------------------------------------------------------------------------------------- writing


def encoded(payload: Payload) -> bytes:
    """The payload's bytes. Raises ValueError for a number that its datatype cannot hold."""
    parts = [] if payload.ts_ms is None else [_number(1, payload.ts_ms)]
    parts += [_bytes(2, _metric(metric)) for metric in payload.metrics]
    if payload.seq is not None:
        parts.append(_number(3, payload.seq))
    return b"".join(parts)


def _metric(metric: Metric) -> bytes:
    parts = [_bytes(1, metric.name.encode())]
    if metric.ts_ms is not None:
        parts.append(_number(3, metric.ts_ms))
    parts.append(_number(4, _CODES[metric.datatype]))
    if metric.history == "historical":
        parts.append(_number(5, 1))
    parts.append(_number(7, 1) if metric.value is None else _value(metric.datatype, metric.value))
    return b"".join(parts)


def _value(datatype: DataType, value: Value) -> bytes:
    if datatype == "string":
        return _bytes(15, str(value).encode())
    if datatype == "boolean":
        return _number(14, int(bool(value)))
    if datatype == "double":
        return _key(13, _FIXED64) + struct.pack("<d", value)
    # Negative numbers go as the unsigned one with the same bits, as the specification wants.
    bits = 32 if datatype == "int32" else 64
    least, most = (0, 1 << bits) if datatype == "uint64" else (-(1 << bits - 1), 1 << bits - 1)
    if not least <= (number := int(value)) < most:
        raise ValueError(f"{number} is no {datatype}")
    return _number(10 if bits == 32 else 11, number % (1 << bits))  # noqa: PLR2004  # because the widths are these two


def _key(field: int, wire: int) -> bytes:
    return _varint(field << 3 | wire)


def _number(field: int, value: int) -> bytes:
    return _key(field, _VARINT) + _varint(value)


def _bytes(field: int, data: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    if not 0 <= value < 1 << 64:
        raise ValueError(f"{value} does not fit into 64 bits")
    out = bytearray()
    while value >> 7:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# ---------------------------------------------------------------------------------------- reading


def decoded(data: bytes) -> Payload:
    """The payload in these bytes; what is not known is skipped. Raises ValueError."""
    ts_ms = seq = None
    metrics = []
    for field, value in _fields(data):
        match field, value:
            case 1, int():
                ts_ms = value
            case 2, bytes():
                metrics.append(_read_metric(value))
            case 3, int():
                seq = value
    return Payload(ts_ms, tuple(metrics), seq)


def _read_metric(data: bytes) -> Metric:
    found = dict(_fields(data))
    code = found.get(4)
    datatype = _TYPES.get(code, "string") if isinstance(code, int) else "string"
    name, ts_ms = found.get(1, b""), found.get(3)
    if not isinstance(name, bytes):
        raise ValueError("a name is no text")  # noqa: TRY004  # because callers expect one kind
    return Metric(
        name=name.decode(),
        datatype=datatype,
        value=_read_value(datatype, found),
        ts_ms=ts_ms if isinstance(ts_ms, int) else None,
        history="historical" if found.get(5) else "now",
    )


def _read_value(datatype: DataType, found: dict[int, int | bytes]) -> Value | None:
    raw = None if found.get(7) else found.get(_VALUE_FIELDS[datatype])
    if isinstance(raw, bytes):
        return _read_bytes(datatype, raw)
    return None if raw is None else _read_number(datatype, raw)


def _read_bytes(datatype: DataType, raw: bytes) -> Value | None:
    if datatype == "string":
        return raw.decode()
    if datatype == "double" and len(raw) == struct.calcsize("<d"):
        return float(struct.unpack("<d", raw)[0])
    return None


def _read_number(datatype: DataType, raw: int) -> Value | None:
    if datatype == "boolean":
        return raw != 0
    if datatype == "uint64":
        return raw
    bits = {"int32": 32, "int64": 64}.get(datatype)
    if bits is None:
        return None
    low = raw % (1 << bits)
    return low - (1 << bits) if low >> (bits - 1) else low


_VALUE_FIELDS: dict[DataType, int] = {
    "int32": 10,
    "int64": 11,
    "uint64": 11,
    "double": 13,
    "boolean": 14,
    "string": 15,
}


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field numbers and raw values, in order."""
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        wire = key & 7
        if wire == _VARINT:
            number, at = _read_varint(data, at)
            yield key >> 3, number
            continue
        if wire == _BYTES:
            length, at = _read_varint(data, at)
        elif wire in (_FIXED32, _FIXED64):
            length = 4 if wire == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {wire} is not used by Sparkplug B")
        if at + length > len(data):
            raise ValueError("the payload ends inside a field")
        yield key >> 3, data[at : at + length]
        at += length


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(_LONGEST_VARINT):
        if at + index >= len(data):
            raise ValueError("the payload ends inside a number")
        byte = data[at + index]
        value |= (byte & 0x7F) << 7 * index
        if not byte >> 7:
            return value & (1 << 64) - 1, at + index + 1
    raise ValueError("a number is longer than ten bytes")
