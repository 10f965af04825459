"""What are a tensor's values, in the type that both engines get?

The only module that needs numpy, and `gguf` for unpacking quantized blocks. A tensor goes through
in chunks of rows, so that memory is bounded by a chunk and not by the model.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias

from edgeagent.errors import UsageError
from edgeagent.models.gguf import GgufTensor

Halves: TypeAlias = Any
"""A numpy array of 16-bit patterns; not named, since the package is there for this command only."""
PairType = Literal["bf16", "f16"]
_CHUNK_VALUES = 1 << 20
"""4 MiB as 32-bit numbers, and several times that while they are made."""


def load_libraries() -> tuple[Any, Any]:
    """The two packages. Raises UsageError, which says how they come, when they are not there."""
    try:
        return importlib.import_module("numpy"), importlib.import_module("gguf")
    except ImportError as error:
        raise UsageError(
            f"making a pair needs the Python package {error.name or 'gguf'}, which is not "
            "installed: run pip install 'edgeagent[pair]'"
        ) from error


def can_unpack(kind: str) -> bool:
    """Whether values of this type of GGUF tensor can be read."""
    np, gguf = load_libraries()
    found = gguf.GGMLQuantizationType.__members__.get(kind)
    if found is None:
        return False
    _, block_bytes = gguf.GGML_QUANT_SIZES[found]
    try:
        gguf.quants.dequantize(np.zeros((1, block_bytes), dtype=np.uint8), found)
    except NotImplementedError:
        return False
    return True


def chunks(
    path: Path,
    tensor: GgufTensor,
    kind: PairType,
    head_rows: int | None,
    chunk_values: int = _CHUNK_VALUES,
) -> Iterator[Halves]:
    """Rows of 16-bit values in the order of the file; chunks hold whole heads.

    Raises UsageError when a value is not finite in that type.
    """
    np, gguf = load_libraries()
    quantization = gguf.GGMLQuantizationType[tensor.type]
    rows, columns = math.prod(tensor.shape[1:]), tensor.shape[0]
    if len(tensor.shape) == 1 and head_rows:
        rows, columns = columns, 1  # a bias has one value a row
    block, block_bytes = gguf.GGML_QUANT_SIZES[quantization]
    if columns % block:
        raise UsageError(
            f"the tensor {tensor.name!r} has rows of {columns} values and its type packs {block} "
            "together: fetch the model again"
        )
    row_bytes = columns // block * block_bytes
    step = max(1, chunk_values // columns)
    if head_rows:
        step = max(head_rows, step // head_rows * head_rows)
    with path.open("rb") as file:
        file.seek(tensor.begin)
        for first in range(0, rows, step):
            count = min(step, rows - first)
            data = file.read(count * row_bytes)
            if len(data) < count * row_bytes:
                raise UsageError(f"model {path} became shorter while it was read: try again")
            packed = np.frombuffer(data, dtype=np.uint8).reshape(count, row_bytes)
            values = gguf.quants.dequantize(packed, quantization).reshape(count, columns)
            yield _narrowed(np, values, kind, tensor.name)


def _narrowed(np: Any, values: Any, kind: PairType, name: str) -> Any:
    """Rounded to the nearest, ties to even. Raises UsageError for what is not finite."""
    with np.errstate(over="ignore"):
        narrow = _bf16(np, values) if kind == "bf16" else values.astype(np.float16).view(np.uint16)
    exponent = 0x7F80 if kind == "bf16" else 0x7C00  # all ones: infinite, or no number
    if not np.isfinite(values).all() or ((narrow & exponent) == exponent).any():
        hint = "give another model" if kind == "bf16" else "use --type bf16 or give another model"
        raise UsageError(f"the tensor {name!r} holds a value that is no number in {kind}: {hint}")
    return narrow


def _bf16(np: Any, values: Any) -> Any:
    """The upper halves of finite 32-bit numbers."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widened(halves: Halves, kind: PairType) -> bytes:
    """The same values as little-endian 32-bit numbers."""
    np, _ = load_libraries()
    if kind == "f16":
        return bytes(halves.view(np.float16).astype("<f4").tobytes())
    return bytes((halves.astype("<u4") << 16).tobytes())


def in_rotation_order(halves: Halves, head_rows: int) -> Halves:
    """Whole heads in Hugging Face's order of rows: first halves of all pairs, then the second.

    llama.cpp keeps the two rows of a pair beside each other for architecture `llama`.
    """
    rows, columns = halves.shape
    paired = halves.reshape(rows // head_rows, head_rows // 2, 2, columns)
    return paired.swapaxes(1, 2).reshape(rows, columns)


def little_endian(halves: Halves) -> bytes:
    """As both files keep them."""
    return bytes(halves.astype("<u2").tobytes())


def floats(path: Path, tensor: GgufTensor) -> tuple[float, ...]:
    """All values of a small F32 tensor."""
    np, _ = load_libraries()
    with path.open("rb") as file:
        file.seek(tensor.begin)
        return tuple(map(float, np.frombuffer(file.read(tensor.size_bytes), dtype="<f4")))
