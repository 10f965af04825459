"""What a result says of a Hugging Face folder's weights; what the folder does not say is null."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from pathlib import Path

import pytest

from edgeagent.errors import UsageError
from edgeagent.models.hashing import sha256
from edgeagent.models.hf import identify

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 8192,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "SmolLM2"
    made.mkdir()
    put(made, {})
    return made


def put(folder: Path, more: dict[str, object]) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **more}))


def weights(folder: Path, name: str, *shapes: tuple[int, ...]) -> bytes:
    """A file of 2-byte tensors, all zero."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for number, shape in enumerate(shapes):
        size = 2
        for side in shape:
            size *= side
        tensor = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        header[f"t{number}"] = tensor
        end += size
    text = json.dumps(header).encode()
    data = struct.pack("<Q", len(text)) + text + bytes(end)
    (folder / name).write_bytes(data)
    return data


def test_a_folder_is_identified_by_its_weights(folder: Path) -> None:
    data = weights(folder, "model.safetensors", (3, 4), (5,), ())
    found = identify(folder, 23040.0, sha256)
    assert (found.id, found.format, found.architecture) == (
        "SmolLM2", "safetensors", "LlamaForCausalLM",
    )  # fmt: skip
    assert (found.parameters, found.quantization) == (3 * 4 + 5 + 1, "BF16")
    assert (found.size_bytes, found.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert (found.context_length, found.kv_bytes_per_token) == (8192, 23040.0)
    assert (found.reason, found.weights_digest) == (None, None)


def test_several_files_have_one_hash_in_the_order_of_their_names(folder: Path) -> None:
    parts = [weights(folder, f"model-0000{n}-of-00002.safetensors", (n, 8)) for n in (1, 2)]
    found = identify(folder, None, sha256)
    lines = "\n".join(hashlib.sha256(part).hexdigest() for part in parts)
    assert found.sha256 == hashlib.sha256(lines.encode()).hexdigest()
    assert found.parameters == 24


def test_an_index_names_the_files_that_count(folder: Path) -> None:
    data = weights(folder, "a.safetensors", (8,))
    weights(folder, "b.safetensors", (8,))
    index = {"weight_map": {"t0": "a.safetensors"}, "metadata": {"total_size": 16}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    found = identify(folder, None, sha256)
    assert (found.sha256, found.parameters) == (hashlib.sha256(data).hexdigest(), 8)


def test_an_index_that_names_a_pipe_is_refused(folder: Path) -> None:
    os.mkfifo(folder / "a.safetensors")
    index = {"weight_map": {"t0": "a.safetensors"}, "metadata": {"total_size": 16}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UsageError, match=r"a\.safetensors is missing"):
        identify(folder, None, sha256)


@pytest.mark.parametrize(
    ("given", "shown"),
    [("HuggingFaceTB/SmolLM2", "HuggingFaceTB/SmolLM2"), ("/home/me/out", "SmolLM2"),
     ("./out", "SmolLM2"), ("", "SmolLM2"), (3, "SmolLM2")],
)  # fmt: skip
def test_the_name_is_the_models_own_or_the_folders(folder: Path, given: object, shown: str) -> None:
    put(folder, {"_name_or_path": given})
    assert identify(folder, None, sha256).id == shown


def test_packed_weights_are_not_counted(folder: Path) -> None:
    put(folder, {"quantization_config": {"quant_method": "awq"}})
    weights(folder, "model.safetensors", (3, 4))
    found = identify(folder, None, sha256)
    assert (found.quantization, found.parameters) == ("awq", None)
    assert found.reason is not None


def test_a_folder_without_weights_says_so(folder: Path) -> None:
    found = identify(folder, None, sha256)
    assert (found.format, found.sha256, found.parameters, found.size_bytes) == (None,) * 4
    assert found.reason == "the folder holds no weight files"


def test_an_old_format_is_named_and_not_opened(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"pickled")
    found = identify(folder, None, sha256)
    assert (found.format, found.parameters) == ("pytorch", None)
    assert found.sha256 == hashlib.sha256(b"pickled").hexdigest()


@pytest.mark.parametrize(
    "data",
    [b"", b"\x08", struct.pack("<Q", 1 << 63),
     *(struct.pack("<Q", len(header)) + header for header in (
         b"null", b"{", b'{"t": [1]}', b'{"t": {"shape": -1}}', b'{"t": {"shape": [-1]}}',
         b'{"t": {"shape": [true]}}', b"[" * 9000,
     ))],
)  # fmt: skip
def test_a_damaged_header_leaves_the_parameters_unknown(folder: Path, data: bytes) -> None:
    (folder / "model.safetensors").write_bytes(data)
    found = identify(folder, None, sha256)
    assert found.parameters is None
    assert found.reason == "the number of parameters is not in the weight files' headers"
    assert found.sha256 == hashlib.sha256(data).hexdigest()
