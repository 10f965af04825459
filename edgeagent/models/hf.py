"""What does a Hugging Face model folder say of itself?

`config.json` and the sizes of the weight files, never the weights. Both come from somebody else:
sizes are bounded, and what is damaged gives one sentence. What a configuration means for memory is
core/kv_config.py's matter.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from edgeagent.core.kv_config import language_part
from edgeagent.errors import UsageError

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

    @property
    def _language(self) -> Mapping[str, object]:
        return language_part(self.config)

    @property
    def architecture(self) -> str | None:
        """The first of `architectures`, else the type of the model."""
        named = self.config.get("architectures")
        if isinstance(named, list) and named and isinstance(named[0], str):
            return named[0]
        return _text(self._language.get("model_type"))

    @property
    def model_type(self) -> str | None:
        """Type of the weights' elements, as `dtype` or `torch_dtype` names it."""
        for part in (self._language, self.config):
            for key in ("dtype", "torch_dtype"):
                value = _text(part.get(key))
                if value is not None:
                    return value.removeprefix("torch.")
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
        return HfFacts(_object(folder / CONFIG), _weights_bytes(folder))
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UsageError(f"model {folder} cannot be read ({why}): make it readable") from error


def _weights_bytes(folder: Path) -> int | None:
    """Bytes of the tensors by the index, else of the weight files; None when there are none."""
    if (folder / _INDEX).exists():
        index = _object(folder / _INDEX)
        files = index.get("weight_map")
        _all_there(folder, files.values() if isinstance(files, Mapping) else ())
        metadata = index.get("metadata")
        total = _count(metadata.get("total_size")) if isinstance(metadata, Mapping) else None
        if total:
            return total
    # Some folders hold the same weights twice, under the names of another program.
    for pattern in ("model*.safetensors", "*.safetensors", "pytorch_model*.bin"):
        sizes = [path.stat().st_size for path in folder.glob(pattern) if path.is_file()]
        if sizes:
            return sum(sizes)
    return None


def _all_there(folder: Path, names: Iterable[object]) -> None:
    for name in sorted({name for name in names if isinstance(name, str)}):
        # Only a plain name: an index must not make us look elsewhere.
        if Path(name).name != name or not (folder / name).exists():
            raise UsageError(f"model {folder} is split and {name} is missing in it: fetch it again")


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
