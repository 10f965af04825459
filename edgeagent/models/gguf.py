"""What does a GGUF file say of itself?

An own small reader of the header: metadata and the list of tensors, never the weights, and no
numpy. Sizes come from a file that may be damaged or hostile, so every length is bounded before it
is used, and the tensors must lie inside the file: a truncated download is refused before an engine
trips over it. Format: GGUF versions 2 and 3 (ggml's docs/gguf.md).
"""

from __future__ import annotations

import math
import re
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from edgeagent.core.model import ModelIdentity
from edgeagent.errors import UsageError
from edgeagent.models.pair_identity import weights_digest

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_ITEMS = 1 << 20
_MAX_STRING = 1 << 24
_MAX_ARRAY = 1 << 22
_KEPT_ARRAY = 1 << 12
"""Longer arrays (vocabularies) are counted, not kept."""

_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q",
    12: "<d",
}  # fmt: skip
_STRING = 8
_ARRAY = 9

# Elements per block and bytes per block of ggml's tensor types (ggml-common.h's block structs).
_TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4),
    27: ("I64", 1, 8), 28: ("F64", 1, 8), 29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
}  # fmt: skip

# general.file_type, which names the recipe of a quantized file (llama.h's llama_ftype).
_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K",
    11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S",
    17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS",
    23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M",
    30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE",
}  # fmt: skip


@dataclass(frozen=True)
class GgufFacts:
    """What a header holds."""

    metadata: Mapping[str, object]
    lengths: Mapping[str, int]
    """Number of elements of every array, kept or not."""
    tensor_types: Mapping[str, int]
    """Parameters by tensor type name."""
    parameters: int
    size_bytes: int

    def of_architecture(self, name: str) -> object:
        """The value of `<architecture>.<name>`, or None."""
        return self.metadata.get(f"{self.architecture}.{name}")

    @property
    def architecture(self) -> str | None:
        """`general.architecture`."""
        value = self.metadata.get("general.architecture")
        return value if isinstance(value, str) else None

    @property
    def quantization(self) -> str | None:
        """The file's own word for its recipe, else the type most parameters have."""
        kind = self.metadata.get("general.file_type")
        if isinstance(kind, int) and kind in _FILE_TYPES:
            return _FILE_TYPES[kind]
        return max(self.tensor_types, key=self.tensor_types.__getitem__, default=None)

    @property
    def vocabulary(self) -> int | None:
        """Number of tokens."""
        return self.lengths.get("tokenizer.ggml.tokens") or _int(self.of_architecture("vocab_size"))

    @property
    def context_length(self) -> int | None:
        """Tokens the model was trained for."""
        return _int(self.of_architecture("context_length"))


@dataclass(frozen=True)
class GgufTensor:
    """Where a tensor lies in its file."""

    name: str
    shape: tuple[int, ...]
    """Fastest dimension first, as the file has it."""
    type: str
    begin: int
    """First byte, counted from the beginning of the file."""
    size_bytes: int


@dataclass(frozen=True)
class GgufContents:
    """Everything a file holds but the weights themselves: for tools, never for the agent."""

    path: Path
    facts: GgufFacts
    """With every list whole."""
    entries: Mapping[str, tuple[int, int]]
    """First byte of a metadata entry, its key included, and the byte behind it."""
    tensors: tuple[GgufTensor, ...]


class _DamagedError(Exception):
    """The header does not hold what it must."""


class _Reader:
    """Little-endian values from a file, every length checked against what is left."""

    def __init__(self, file: BinaryIO, size: int, kept_array: int = _KEPT_ARRAY) -> None:
        self._file = file
        self.size = size
        self._kept_array = kept_array
        self.lengths: dict[str, int] = {}

    def take(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) != count:
            raise _DamagedError("it ends in the middle of its header")
        return data

    def number(self, form: str) -> int | float | bool:
        value: int | float | bool
        (value,) = struct.unpack(form, self.take(struct.calcsize(form)))
        return value

    def count(self, limit: int, what: str) -> int:
        value = int(self.number("<Q"))
        if value > limit or value > self.size:
            raise _DamagedError(f"it claims {value} {what}")
        return value

    def string(self) -> str:
        return self.take(self.count(_MAX_STRING, "bytes in one name")).decode("utf-8", "replace")

    def value(self, kind: int, key: str) -> object:
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array(key)
        raise _DamagedError(f"it holds a value of the unknown type {kind}")

    def array(self, key: str) -> object:
        kind = int(self.number("<I"))
        count = self.count(_MAX_ARRAY, "elements in one list")
        self.lengths[key] = count
        if kind in _SCALARS:
            width = struct.calcsize(_SCALARS[kind])
            if count > self._kept_array:
                self.skip(width * count)
                return None
            return tuple(self.number(_SCALARS[kind]) for _ in range(count))
        if kind != _STRING:
            raise _DamagedError(f"it holds a list of the type {kind}")
        if count > self._kept_array:
            for _ in range(count):
                self.skip(self.count(_MAX_STRING, "bytes in one name"))
            return None
        return tuple(self.string() for _ in range(count))

    def skip(self, count: int) -> None:
        if self._file.tell() + count > self.size:
            raise _DamagedError("it ends in the middle of its header")
        self._file.seek(count, 1)

    def tell(self) -> int:
        return self._file.tell()


def read(path: Path) -> GgufFacts:
    """A GGUF file's facts. Raises UsageError in one sentence for anything that is not one."""
    return _read(path, _KEPT_ARRAY).facts


def read_whole(path: Path) -> GgufContents:
    """Facts with every list whole, and where each tensor lies. Raises UsageError like `read`."""
    return _read(path, _MAX_ARRAY)


def _read(path: Path, kept_array: int) -> GgufContents:
    try:
        size = path.stat().st_size
        if path.is_dir():
            raise UsageError(f"model {path} is a folder: give the GGUF file in it")
        if not path.is_file():
            # Opening a pipe would wait for somebody to write to it.
            raise UsageError(f"model {path} is a pipe or a device: give a GGUF file")
        with path.open("rb") as file:
            return _contents(path, file, _Reader(file, size, kept_array))
    except _DamagedError as damage:
        raise UsageError(
            f"model {path} was read and is not a whole GGUF file ({damage}): "
            "fetch it again or give another file"
        ) from damage
    except FileNotFoundError as error:
        raise UsageError(
            f"model {path} does not exist: give --model the path of a GGUF file"
        ) from error
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UsageError(f"model {path} cannot be read ({why}): make it readable") from error


def _contents(path: Path, file: BinaryIO, reader: _Reader) -> GgufContents:
    size = reader.size
    if file.read(4) != MAGIC:
        raise _DamagedError("it does not begin with GGUF")
    version = int(reader.number("<I"))
    if version not in _VERSIONS:
        raise _DamagedError(f"it has format version {version}, known are 2 and 3")
    tensors = reader.count(_MAX_ITEMS, "tensors")
    keys = reader.count(_MAX_ITEMS, "metadata entries")
    metadata: dict[str, object] = {}
    entries: dict[str, tuple[int, int]] = {}
    for _ in range(keys):
        start = reader.tell()
        key = reader.string()
        metadata[key] = reader.value(int(reader.number("<I")), key)
        entries[key] = (start, reader.tell())
    found = [_tensor(reader) for _ in range(tensors)]
    alignment = _int(metadata.get("general.alignment")) or 32
    if not 0 < alignment <= 1 << 20:
        raise _DamagedError(f"it claims an alignment of {alignment}")
    begin = math.ceil(reader.tell() / alignment) * alignment
    placed = tuple(replace(tensor, begin=begin + tensor.begin) for tensor in found)
    end = max((tensor.begin + tensor.size_bytes for tensor in placed), default=begin)
    if end > size:
        raise _DamagedError(f"it has {size} bytes and its tensors need {end}")
    types: Counter[str] = Counter()
    for tensor in placed:
        types[tensor.type] += math.prod(tensor.shape)
    facts = GgufFacts(metadata, reader.lengths, dict(types), sum(types.values()), size)
    return GgufContents(path, facts, entries, placed)


def _tensor(reader: _Reader) -> GgufTensor:
    """The next tensor of the list; `begin` still counts from the end of the header."""
    name = reader.string()
    dimensions = int(reader.number("<I"))
    if not 0 < dimensions <= 8:  # noqa: PLR2004  # because ggml has four, and room is left
        raise _DamagedError(f"it holds a tensor of {dimensions} dimensions")
    shape = tuple(int(reader.number("<Q")) for _ in range(dimensions))
    kind = int(reader.number("<I"))
    offset = int(reader.number("<Q"))
    label, block, block_bytes = _TENSOR_TYPES.get(kind, (f"type {kind}", 1, 0))
    size = math.ceil(math.prod(shape) / block) * block_bytes
    return GgufTensor(name, shape, label, offset, size)


_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf$")


def shards(path: Path) -> tuple[Path, ...]:
    """All files of a split model, the file itself when it is whole. Raises UsageError."""
    found = _SHARD.match(path.name)
    if found is None:
        return (path,)
    stem, number, total = found.groups()
    if not 0 < int(number) <= int(total):
        return (path,)
    files = tuple(
        path.with_name(f"{stem}-{part:05}-of-{total}.gguf") for part in range(1, int(total) + 1)
    )
    for file in files:
        if not file.exists():
            raise UsageError(f"model {path} is split and {file.name} is missing beside it")
    return files


def read_model(path: Path) -> GgufFacts:
    """The facts of a whole model: what shard 1 says, sizes of all shards. Raises UsageError."""
    files = shards(path)
    facts = [read(file) for file in files]
    first = facts[0]
    parts = _int(first.metadata.get("split.count")) or 1
    if parts != len(files) and parts > 1:
        raise UsageError(
            f"model {path} is one of {parts} files and its name does not tell which: name them "
            f"NAME-00001-of-{parts:05}.gguf and so on, as llama.cpp wants it"
        )
    types: Counter[str] = Counter()
    for fact in facts:
        types.update(fact.tensor_types)
    return replace(
        first,
        tensor_types=dict(types),
        parameters=sum(types.values()),
        size_bytes=sum(fact.size_bytes for fact in facts),
    )


def identify(
    path: Path, kv_bytes_per_token: float | None, hash_file: Callable[[Path], str]
) -> ModelIdentity:
    """What a result says about the weights. Raises UsageError."""
    facts = read_model(path)
    sha256 = joined([hash_file(file) for file in shards(path)])
    return ModelIdentity(
        id=_text(facts.metadata.get("general.name")) or path.name,
        path=str(path),
        format="gguf",
        architecture=facts.architecture,
        quantization=facts.quantization,
        parameters=facts.parameters,
        size_bytes=facts.size_bytes,
        sha256=sha256,
        context_length=facts.context_length,
        kv_bytes_per_token=kv_bytes_per_token,
        weights_digest=weights_digest(path, sha256),
        reason=_missing(facts),
    )


def _missing(facts: GgufFacts) -> str | None:
    """Why something about the weights is null."""
    said = {
        "architecture": facts.architecture,
        "quantization": facts.quantization,
        "context length": facts.context_length,
    }
    absent = [name for name, value in said.items() if value is None]
    return f"the file does not say its {', '.join(absent)}" if absent else None


def joined(hashes: list[str]) -> str:
    """One file's hash as it is; a split model's is the hash over its shards' hashes in order."""
    if len(hashes) == 1:
        return hashes[0]
    import hashlib  # because a split model is rare

    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
