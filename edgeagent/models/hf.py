"""What does a Hugging Face model folder say of itself?

`config.json`, the sizes and headers of the weight files, never the weights. They come from somebody
else: sizes are bounded, and what is damaged gives one sentence. What a configuration means for
memory is core/kv_config.py's matter.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from edgeagent.core.kv_config import language_part
from edgeagent.core.model import ModelIdentity
from edgeagent.errors import UsageError
from edgeagent.models.gguf import joined
from edgeagent.models.pair_identity import weights_digest

CONFIG = "config.json"
_INDEX = "model.safetensors.index.json"
_MOST = 1 << 50
"""Bytes of any model, and more; JSON's numbers have no end of their own."""
_MAX_JSON = 64 << 20
"""The largest index of a real model is a few MB."""


@dataclass(frozen=True)
class HfFacts:
    """What a folder holds."""

    config: Mapping[str, object]
    weights_bytes: int | None
    """None when no weights are there."""
    weight_files: tuple[Path, ...] = ()
    """In the order of their names."""

    @property
    def _language(self) -> Mapping[str, object]:
        return language_part(self.config)

    @property
    def architecture(self) -> str | None:
        """The first of `architectures`, else the type of the model."""
        named = self.config.get("architectures")
        first = _text(named[0]) if isinstance(named, list) and named else None
        return first or _text(self._language.get("model_type"))

    @property
    def element_type(self) -> str | None:
        """Type of the weights' elements, as `dtype` or `torch_dtype` names it."""
        for part in (self._language, self.config):
            for key in ("dtype", "torch_dtype"):
                value = (_text(part.get(key)) or "").removeprefix("torch.")
                if value:
                    return value
        return None

    @property
    def quantization(self) -> str | None:
        """The method that packed the weights, None when they are plain."""
        found = self.config.get("quantization_config")
        return _text(found.get("quant_method")) if isinstance(found, Mapping) else None

    @property
    def vocabulary(self) -> int | None:
        """Number of tokens."""
        return _count(self._language.get("vocab_size"))

    @property
    def context_length(self) -> int | None:
        """Tokens the model was trained for."""
        for key in ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len"):
            value = _count(self._language.get(key))
            if value is not None:
                return value
        return None


def read(folder: Path) -> HfFacts:
    """A folder's facts. Raises UsageError in one sentence for anything that is not one."""
    try:
        if not folder.is_dir():
            what = "is a file" if folder.exists() else "does not exist"
            raise UsageError(f"model {folder} {what}: give the folder that holds {CONFIG}")
        if not (folder / CONFIG).exists():
            raise UsageError(f"model {folder} has no {CONFIG}: give a Hugging Face model folder")
        total, files = _weights(folder)
        return HfFacts(_object(folder / CONFIG), total, files)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UsageError(f"model {folder} cannot be read ({why}): make it readable") from error


def identify(
    folder: Path, kv_bytes_per_token: float | None, hash_file: Callable[[Path], str]
) -> ModelIdentity:
    """What a result says about the weights. Raises UsageError."""
    facts = read(folder)
    hashes = [hash_file(file) for file in facts.weight_files]
    sha256 = joined(hashes) if hashes else None
    parameters = _parameters(facts)
    missing = []
    if sha256 is None:
        missing.append("the folder holds no weight files")
    elif parameters is None:
        missing.append("the number of parameters is not in the weight files' headers")
    quantization = facts.quantization or _PLAIN.get(facts.element_type or "", facts.element_type)
    if quantization is None:
        missing.append(f"{CONFIG} says neither how nor in which type the weights are packed")
    return ModelIdentity(
        id=_name(facts) or folder.absolute().name,
        path=str(folder),
        format=_format(facts),
        architecture=facts.architecture,
        quantization=quantization,
        parameters=parameters,
        size_bytes=facts.weights_bytes,
        sha256=sha256,
        context_length=facts.context_length,
        kv_bytes_per_token=kv_bytes_per_token,
        reason="; ".join(missing) or None,
        weights_digest=weights_digest(folder, sha256) if sha256 else None,
    )


def _name(facts: HfFacts) -> str | None:
    """Whose model it is; not where somebody once had it."""
    name = _text(facts.config.get("_name_or_path"))
    return None if name is None or name.startswith(("/", ".", "~")) else name


_PLAIN = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


def _format(facts: HfFacts) -> str | None:
    if not facts.weight_files:
        return None
    return "safetensors" if facts.weight_files[0].suffix == ".safetensors" else "pytorch"


def _parameters(facts: HfFacts) -> int | None:
    """Elements of all tensors; None for packed ones, whose elements hold several weights."""
    if facts.quantization or _format(facts) != "safetensors":
        return None
    counts = [_elements(file) for file in facts.weight_files]
    return None if None in counts else sum(count for count in counts if count is not None)


def _elements(file: Path) -> int | None:
    """Of a safetensors file, by its header; None when that is damaged."""
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if not 0 < length <= _MAX_JSON:
                return None
            header = json.loads(opened.read(length))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(header, dict):
        return None
    total = 0
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        shape = tensor.get("shape") if isinstance(tensor, dict) else None
        sizes = [_count(size) for size in shape] if isinstance(shape, list) else [None]
        if None in sizes:
            return None
        total += math.prod(size for size in sizes if size is not None)
    return total


def _weights(folder: Path) -> tuple[int | None, tuple[Path, ...]]:
    """Bytes of the tensors by the index, else of the weight files; None when there are none."""
    if (folder / _INDEX).exists():
        index = _object(folder / _INDEX)
        files = index.get("weight_map")
        names = _all_there(folder, files.values() if isinstance(files, Mapping) else ())
        metadata = index.get("metadata")
        total = _count(metadata.get("total_size")) if isinstance(metadata, Mapping) else None
        if total:
            return total, tuple(folder / name for name in names)
    # Some folders hold the same weights twice, under the names of another program.
    for pattern in ("model*.safetensors", "*.safetensors", "pytorch_model*.bin"):
        found = tuple(sorted(path for path in folder.glob(pattern) if path.is_file()))
        if found:
            return sum(path.stat().st_size for path in found), found
    return None, ()


def _all_there(folder: Path, names: Iterable[object]) -> tuple[str, ...]:
    """The names in order. Raises UsageError when one is missing."""
    found = tuple(sorted({name for name in names if isinstance(name, str)}))
    for name in found:
        # Only a plain name: an index must not make us look elsewhere.
        if Path(name).name != name or not (folder / name).is_file():
            raise UsageError(f"model {folder} is split and {name} is missing in it: fetch it again")
    return found


def _object(path: Path) -> Mapping[str, object]:
    """A JSON object from a file. Raises UsageError."""
    if not path.is_file():
        raise UsageError(f"{path} is no file: give a Hugging Face model folder")
    if path.stat().st_size > _MAX_JSON:
        raise UsageError(f"{path} is too large to be one: give a Hugging Face model folder")
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path} was read and is not JSON: fetch it again or give another model"
        ) from error
    if not isinstance(found, dict):
        raise UsageError(f"{path} was read and holds no JSON object: fetch it again")
    return found


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= _MOST else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
