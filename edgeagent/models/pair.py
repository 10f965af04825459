"""How do two engines get the same weights from one GGUF file?

Every tensor is unpacked, rounded once to 16 bits, and written twice: under Hugging Face names for
vLLM, and as a GGUF for llama.cpp. Vectors (norms, biases) stand in the GGUF as 32-bit numbers,
since llama.cpp wants them so, but hold the rounded values: both files carry the same numbers, and
one digest over them says so. Memory is bounded by a chunk of a tensor. The folder gets its name
when it is whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from edgeagent.errors import BusyError, UsageError
from edgeagent.models import pair_tokenizer, pair_values
from edgeagent.models.gguf import GgufContents, GgufTensor, read_whole, shards
from edgeagent.models.pair_files import (
    FileType,
    HashedFile,
    Slot,
    aligned,
    gguf_header,
    number_entry,
    safetensors_header,
)
from edgeagent.models.pair_identity import DESCRIPTION, FOLDER, SCHEMA
from edgeagent.models.pair_layout import Layout, Place, layout
from edgeagent.models.pair_values import PairType

WRITER = 1
"""Grows when the same source would give other files."""
WEIGHTS = "model.safetensors"
_SPARE_BYTES = 64 << 20
_FILE_TYPES: Mapping[PairType, int] = {"f16": 1, "bf16": 32}
_TORCH: Mapping[PairType, str] = {"f16": "float16", "bf16": "bfloat16"}
_ROPE_FREQS = "rope_freqs.weight"
_MOST_FREQS = 1 << 16
"""Bytes; one number for every two rows of a head."""
_OWN_ENTRIES = ("general.file_type", "general.alignment", "general.quantization_version")

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Pair:
    """A pair as it was written."""

    folder: Path
    gguf: Path
    hf: Path
    weights_digest: str
    parameters: int
    size_bytes: int


@dataclass(frozen=True)
class _Source:
    """A model that a pair can be made of."""

    path: Path
    parts: tuple[GgufContents, ...]
    layout: Layout
    tokenizer: Mapping[str, Mapping[str, object]]

    @property
    def metadata(self) -> Mapping[str, object]:
        return self.parts[0].facts.metadata

    @property
    def name(self) -> str | None:
        name = self.metadata.get("general.name")
        return name if isinstance(name, str) else None

    def tensors(self) -> Iterator[tuple[Path, GgufTensor]]:
        for part in self.parts:
            for tensor in part.tensors:
                yield part.path, tensor


@dataclass(frozen=True)
class _Work:
    """One tensor: where from, where to."""

    path: Path
    tensor: GgufTensor
    place: Place | None
    """None for what only llama.cpp keeps as a tensor."""


def make(
    source: Path,
    out: Path,
    kind: PairType,
    hash_file: Callable[[Path], str],
    progress: Progress | None = None,
) -> Pair:
    """Write the pair of a GGUF file into the folder `out`, which must not be there yet.

    `progress` is called with tensors done and tensors in all. Raises UsageError.
    """
    pair_values.load_libraries()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} is there already: name another folder with --out, or remove it")
    model = _read(source)
    slots = _slots(model, kind)
    with _unfinished(out) as folder:
        _room(folder, slots)
        (folder / FOLDER).mkdir()
        written = _weights(model, kind, folder, slots, progress)
        _describe_model(model, kind, folder / FOLDER)
        document = {
            "schema": SCHEMA,
            "writer": WRITER,
            "type": kind,
            "architecture": model.metadata.get("general.architecture"),
            "parameters": sum(part.facts.parameters for part in model.parts),
            "source": {
                "path": str(source.absolute()),
                "name": model.name,
                "quantization": model.parts[0].facts.quantization,
                "sha256": [hash_file(part.path) for part in model.parts],
            },
            **written,
        }
        _write_json(folder / DESCRIPTION, document)
    return Pair(
        folder=out,
        gguf=out / _gguf_name(kind),
        hf=out / FOLDER,
        weights_digest=str(written["weights_digest"]),
        parameters=sum(part.facts.parameters for part in model.parts),
        size_bytes=sum(path.stat().st_size for path in out.rglob("*") if path.is_file()),
    )


def _gguf_name(kind: PairType) -> str:
    return f"model-{kind}.gguf"


def _read(source: Path) -> _Source:
    parts = tuple(read_whole(path) for path in shards(source))
    tensors = [(part.path, tensor) for part in parts for tensor in part.tensors]
    shapes = {tensor.name: tensor.shape for _, tensor in tensors}
    if len(shapes) != len(tensors):
        raise UsageError(f"model {source} holds two tensors of one name: fetch it again")
    metadata = parts[0].facts.metadata
    freqs = [found for found in tensors if found[1].name == _ROPE_FREQS]
    if any(tensor.type != "F32" or tensor.size_bytes > _MOST_FREQS for _, tensor in freqs):
        raise UsageError(
            f"the tensor {_ROPE_FREQS!r} of model {source} is no short list of 32-bit numbers: "
            "fetch it again"
        )
    found = layout(metadata, shapes, pair_values.floats(*freqs[0]) if freqs else None)
    words, rows = parts[0].facts.vocabulary or 0, found.config["vocab_size"]
    if words != rows:
        raise UsageError(
            f"model {source} has {words} tokens and embeddings for {rows}: give another model"
        )
    for _, tensor in tensors:
        if not pair_values.can_unpack(tensor.type):
            raise UsageError(
                f"the tensor {tensor.name!r} of model {source} is packed as {tensor.type}, which "
                "the package gguf cannot unpack: give another quantization"
            )
    return _Source(source, parts, found, pair_tokenizer.files(metadata))


@dataclass(frozen=True)
class _Slots:
    gguf: tuple[Slot, ...]
    hf: tuple[Slot, ...]


def _slots(model: _Source, kind: PairType) -> _Slots:
    half: FileType = "BF16" if kind == "bf16" else "F16"
    gguf, hf = [], []
    for _, tensor in model.tensors():
        shape = tuple(reversed(tensor.shape))
        gguf.append(Slot(tensor.name, shape, half if len(shape) > 1 else "F32"))
        place = model.layout.places.get(tensor.name)
        if place is not None:
            hf.append(Slot(place.name, place.shape, half))
    return _Slots(tuple(gguf), tuple(hf))


def _room(folder: Path, slots: _Slots) -> None:
    """Raises UsageError when the disk has too little left."""
    needed = _SPARE_BYTES + sum(slot.size_bytes for slot in slots.hf)
    needed += sum(aligned(slot.size_bytes) for slot in slots.gguf)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UsageError(
            f"the pair needs {needed / 1e9:.1f} GB and the disk of {folder.parent} has "
            f"{free / 1e9:.1f} GB left: make room or name a folder on another disk with --out"
        )


@contextlib.contextmanager
def _unfinished(out: Path) -> Iterator[Path]:
    """A folder beside `out` that gets its name when all went well, else is removed.

    What a killed run left there is removed first. Raises BusyError when another run is at it.
    """
    folder = out.absolute().with_name(f".{out.absolute().name}.unfinished")
    lock: int | None = None
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = _lock(folder, out)
            _empty(folder)
            yield folder
            folder.replace(out)
        except BaseException:
            if lock is None:  # because what stands in a folder that is not ours is another run's
                with contextlib.suppress(OSError):
                    folder.rmdir()
            else:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            if lock is not None:
                os.close(lock)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UsageError(
            f"the pair was to be written to {out} ({why}): make that possible, or name another "
            "folder with --out"
        ) from error


def _lock(folder: Path, out: Path) -> int:
    """A lock on the folder, as an open descriptor. Raises BusyError."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    with contextlib.suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another run may have finished between opening and locking: then the name is not ours.
        if os.path.samestat(os.fstat(lock), folder.lstat()):
            return lock
    os.close(lock)
    raise BusyError(f"another run is writing {out} at this moment: wait for it")


def _empty(folder: Path) -> None:
    for left in folder.iterdir():
        shutil.rmtree(left) if left.is_dir() else left.unlink()


def _weights(
    model: _Source, kind: PairType, folder: Path, slots: _Slots, progress: Progress | None
) -> Mapping[str, object]:
    """Both weight files, and what pair.json says of them."""
    gguf = HashedFile(folder / _gguf_name(kind))
    hf = HashedFile(folder / FOLDER / WEIGHTS)
    with contextlib.closing(gguf), contextlib.closing(hf):
        gguf.write(gguf_header(_entries(model, kind), slots.gguf))
        hf.write(safetensors_header(slots.hf))
        digests: dict[str, str] = {}
        for done, (path, tensor) in enumerate(model.tensors(), start=1):
            work = _Work(path, tensor, model.layout.places.get(tensor.name))
            digest = _tensor(work, kind, gguf, hf)
            if work.place is not None:
                digests[work.place.name] = digest
            gguf.pad(32)
            if progress is not None:
                progress(done, len(slots.gguf))
        return {
            "weights_digest": digest_of(kind, digests),
            "gguf": {
                "path": _gguf_name(kind),
                "size_bytes": gguf.size_bytes,
                "sha256": gguf.finish(),
            },
            "hf": {
                "path": FOLDER,
                "weights": WEIGHTS,
                "size_bytes": hf.size_bytes,
                "sha256": hf.finish(),
            },
        }


def _tensor(work: _Work, kind: PairType, gguf: HashedFile, hf: HashedFile) -> str:
    """One tensor through; the SHA-256 of its values in Hugging Face's order."""
    tensor, place = work.tensor, work.place
    if place is None:
        with work.path.open("rb") as file:
            file.seek(tensor.begin)
            gguf.write(file.read(tensor.size_bytes))
        return ""
    digest = hashlib.sha256(f"{place.name}\n{place.shape}\n".encode())
    for halves in pair_values.chunks(work.path, tensor, kind, place.head_rows):
        kept = pair_values.little_endian(halves)
        gguf.write(kept if len(tensor.shape) > 1 else pair_values.widened(halves, kind))
        if place.head_rows:
            kept = pair_values.little_endian(pair_values.in_rotation_order(halves, place.head_rows))
        hf.write(kept)
        digest.update(kept)
    return digest.hexdigest()


def digest_of(kind: PairType, tensors: Mapping[str, str]) -> str:
    """One digest over all tensors, whatever order a file has them in."""
    lines = [kind, *(f"{name} {tensors[name]}" for name in sorted(tensors))]
    return "sha256:" + hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _entries(model: _Source, kind: PairType) -> Mapping[str, bytes]:
    """The source's metadata byte for byte, but for what names its packing and its parts."""
    entries: dict[str, bytes] = {}
    first = model.parts[0]
    with first.path.open("rb") as file:
        for key, (begin, end) in first.entries.items():
            if key in _OWN_ENTRIES or key.startswith(("split.", "quantize.")):
                continue
            file.seek(begin)
            entries[key] = file.read(end - begin)
    entries["general.file_type"] = number_entry("general.file_type", _FILE_TYPES[kind])
    return entries


def _describe_model(model: _Source, kind: PairType, folder: Path) -> None:
    """Everything in the Hugging Face folder but the weights."""
    special = {
        f"{short}_token_id": pair_tokenizer.token_id(model.metadata, name)
        for short, name in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
    }
    config = {
        "_name_or_path": model.name or model.path.stem,
        **model.layout.config,
        **special,
        "torch_dtype": _TORCH[kind],
    }
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", special)
    for name, content in model.tokenizer.items():
        _write_json(folder / name, content)


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    # A path need not be text: what is not is shown as "?".
    with path.open("x", encoding="utf-8", errors="replace") as file:
        json.dump(content, file, indent=1, ensure_ascii=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
