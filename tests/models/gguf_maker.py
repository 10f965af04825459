"""A small writer of GGUF files, so that tests hold every byte in their hands."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FORMS = {
    "u8": (0, "<B"), "i8": (1, "<b"), "u16": (2, "<H"), "i16": (3, "<h"), "u32": (4, "<I"),
    "i32": (5, "<i"), "f32": (6, "<f"), "bool": (7, "<?"), "u64": (10, "<Q"), "i64": (11, "<q"),
    "f64": (12, "<d"),
}  # fmt: skip
STRING, ARRAY = 8, 9


@dataclass(frozen=True)
class Value:
    """A value of a named type: a scalar's name, `string`, or a list of one of them."""

    type: str
    value: object


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _plain(kind: str, value: object) -> bytes:
    return text(str(value)) if kind == "string" else struct.pack(FORMS[kind][1], value)


def _number(kind: str) -> int:
    return STRING if kind == "string" else FORMS[kind][0]


def packed(value: Value) -> bytes:
    """Type number and value."""
    if isinstance(value.value, list):
        head = struct.pack("<IIQ", ARRAY, _number(value.type), len(value.value))
        return head + b"".join(_plain(value.type, item) for item in value.value)
    return struct.pack("<I", _number(value.type)) + _plain(value.type, value.value)


@dataclass(frozen=True)
class Tensor:
    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int = 0


def gguf(
    metadata: Mapping[str, Value],
    tensors: Sequence[Tensor] = (),
    data: bytes = b"",
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    """A whole file: header, padding, data."""
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, value in metadata.items():
        out += text(key) + packed(value)
    for tensor in tensors:
        out += text(tensor.name) + struct.pack("<I", len(tensor.shape))
        out += struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape)
        out += struct.pack("<IQ", tensor.kind, tensor.offset)
    return out + bytes(-len(out) % alignment) + data
