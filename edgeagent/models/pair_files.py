"""How are the two files of a pair written, tensor by tensor, with their hashes?

Both formats are a header with every tensor's place, then the bytes: sizes are known before the
first value is, so the values stream through. Formats: GGUF version 3 (ggml's docs/gguf.md) and
safetensors (its README: eight bytes of length, a JSON header, the bytes without holes).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from edgeagent.models.gguf import MAGIC

_ALIGNMENT = 32
_GGUF_TYPES = {"F32": 0, "F16": 1, "BF16": 30}
_WIDTH = {"F32": 4, "F16": 2, "BF16": 2}
_UINT32 = 4

FileType = Literal["F32", "F16", "BF16"]


@dataclass(frozen=True)
class Slot:
    """A tensor that a file will hold."""

    name: str
    shape: tuple[int, ...]
    """Rows first."""
    type: FileType

    @property
    def size_bytes(self) -> int:
        """Without padding."""
        return math.prod(self.shape) * _WIDTH[self.type]


class HashedFile:
    """A file that is written once, front to back, and knows its SHA-256 at the end."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("xb")
        self._hash = hashlib.sha256()
        self.size_bytes = 0

    def write(self, data: bytes) -> None:
        """Append."""
        self._file.write(data)
        self._hash.update(data)
        self.size_bytes += len(data)

    def pad(self, alignment: int) -> None:
        """Append zeros up to a multiple."""
        self.write(bytes(-self.size_bytes % alignment))

    def finish(self) -> str:
        """Bring it to the disk and close it; its SHA-256 as hex."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return self._hash.hexdigest()

    def close(self) -> None:
        """Give it up."""
        self._file.close()


def safetensors_header(slots: Sequence[Slot]) -> bytes:
    """Everything before the first value."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for slot in slots:
        end = begin + slot.size_bytes
        header[slot.name] = {
            "dtype": slot.type,
            "shape": list(slot.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def gguf_header(entries: Mapping[str, bytes], slots: Sequence[Slot]) -> bytes:
    """Everything before the first value; `entries` are whole metadata entries, keys included."""
    parts = [MAGIC, struct.pack("<IQQ", 3, len(slots), len(entries)), *entries.values()]
    begin = 0
    for slot in slots:
        parts += [
            _text(slot.name),
            struct.pack(f"<I{len(slot.shape)}Q", len(slot.shape), *reversed(slot.shape)),
            struct.pack("<IQ", _GGUF_TYPES[slot.type], begin),
        ]
        begin += aligned(slot.size_bytes)
    header = b"".join(parts)
    return header + bytes(-len(header) % _ALIGNMENT)


def aligned(size_bytes: int) -> int:
    """With the padding that follows a tensor in a GGUF file."""
    return math.ceil(size_bytes / _ALIGNMENT) * _ALIGNMENT


def number_entry(key: str, value: int) -> bytes:
    """A metadata entry with a 32-bit number."""
    return _text(key) + struct.pack("<II", _UINT32, value)


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data
