"""A Hugging Face folder is read exactly, and anything that is not one gives one sentence."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.errors import UsageError
from edgeagent.models.hf import read

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "num_hidden_layers": 30,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    put(made, CONFIG)
    return made


def put(folder: Path, config: object, name: str = "config.json") -> None:
    (folder / name).write_text(json.dumps(config))


def weights(folder: Path, name: str, size: int) -> None:
    (folder / name).write_bytes(bytes(size))


def test_facts_come_from_the_configuration(folder: Path) -> None:
    facts = read(folder)
    assert facts.architecture == "LlamaForCausalLM"
    assert (facts.element_type, facts.quantization) == ("bfloat16", None)
    assert (facts.vocabulary, facts.context_length) == (49152, 8192)
    assert facts.weights_bytes is None


def test_the_type_may_be_called_dtype_be_nested_or_be_missing(folder: Path) -> None:
    put(folder, {"text_config": {"dtype": "float16"}, "torch_dtype": "float32"})
    assert read(folder).element_type == "float16"
    put(folder, {"torch_dtype": "torch.bfloat16"})
    assert read(folder).element_type == "bfloat16"
    put(folder, {})
    assert read(folder).element_type is None


def test_numbers_beyond_any_model_are_no_numbers(folder: Path) -> None:
    put(folder, {**CONFIG, "vocab_size": 10**4000, "max_position_embeddings": 10**4000})
    facts = read(folder)
    assert (facts.vocabulary, facts.context_length) == (None, None)


def test_packed_weights_name_their_method(folder: Path) -> None:
    put(folder, {**CONFIG, "quantization_config": {"quant_method": "awq"}})
    assert read(folder).quantization == "awq"


def test_the_index_knows_the_size_of_the_weights(folder: Path) -> None:
    index = {"metadata": {"total_size": 1234}, "weight_map": {"a": "model-1.safetensors"}}
    put(folder, index, "model.safetensors.index.json")
    weights(folder, "model-1.safetensors", 2000)
    assert read(folder).weights_bytes == 1234


def test_without_a_size_in_it_the_files_are_counted(folder: Path) -> None:
    put(folder, {"weight_map": {}}, "model.safetensors.index.json")
    weights(folder, "model-00001-of-00002.safetensors", 2000)
    weights(folder, "model-00002-of-00002.safetensors", 500)
    assert read(folder).weights_bytes == 2500


def test_the_same_weights_under_another_name_are_not_counted_twice(folder: Path) -> None:
    weights(folder, "model.safetensors", 2000)
    weights(folder, "consolidated.safetensors", 2000)
    weights(folder, "pytorch_model.bin", 2000)
    assert read(folder).weights_bytes == 2000


def test_older_folders_hold_pickled_weights(folder: Path) -> None:
    weights(folder, "pytorch_model-00001-of-00002.bin", 300)
    weights(folder, "pytorch_model-00002-of-00002.bin", 200)
    assert read(folder).weights_bytes == 500


# ------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize("name", ["gone.safetensors", "../../etc/passwd", "/etc/passwd"])
def test_a_missing_part_is_named_and_other_folders_are_not_looked_into(
    folder: Path, name: str
) -> None:
    put(folder, {"weight_map": {"a": name}}, "model.safetensors.index.json")
    with pytest.raises(UsageError, match=r"is split and .* is missing"):
        read(folder)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("\0\0", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"a": ' + "9" * 10_000 + "}", "is not JSON"),
        ("[]", "holds no JSON object"),
        ("7", "holds no JSON object"),
    ],
)
def test_a_damaged_configuration_is_told(folder: Path, text: str, words: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(UsageError, match=words) as caught:
        read(folder)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text_are_told(folder: Path) -> None:
    (folder / "config.json").write_bytes(b'{"a": "\xff\xfe"}')
    with pytest.raises(UsageError, match="is not JSON"):
        read(folder)


def test_a_file_of_holes_is_not_read(folder: Path) -> None:
    os.truncate(folder / "config.json", 1 << 30)
    with pytest.raises(UsageError, match="too large"):
        read(folder)


def test_a_pipe_is_not_waited_for(folder: Path) -> None:
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    with pytest.raises(UsageError, match="is no file"):
        read(folder)


def test_what_is_no_model_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        read(tmp_path / "none")
    with pytest.raises(UsageError, match=r"has no config\.json"):
        read(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is a file"):
        read(tmp_path / "file")


def test_an_unreadable_configuration_is_told(ordinary_folder: Path) -> None:
    put(ordinary_folder, CONFIG)
    (ordinary_folder / "config.json").chmod(0)
    with pytest.raises(UsageError, match="permission denied"):
        read(ordinary_folder)


def test_values_of_an_unexpected_type_are_unknown_not_an_error(folder: Path) -> None:
    put(
        folder,
        {
            "architectures": "Llama",
            "model_type": ["llama"],
            "torch_dtype": 7,
            "vocab_size": "many",
            "max_position_embeddings": -1,
            "quantization_config": [],
            "text_config": None,
        },
    )
    facts = read(folder)
    assert (facts.architecture, facts.element_type, facts.quantization) == (None, None, None)
    assert (facts.vocabulary, facts.context_length) == (None, None)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
_KEYS = st.sampled_from([*CONFIG, "dtype", "text_config", "quantization_config", "n_positions"])


@given(st.dictionaries(_KEYS, _JSON))
def test_any_configuration_is_read(config: dict[str, object]) -> None:
    with tempfile.TemporaryDirectory() as name:
        put(Path(name), config)
        facts = read(Path(name))
        assert facts.weights_bytes is None
        for value in (facts.architecture, facts.element_type, facts.quantization):
            assert value is None or value
        for number in (facts.vocabulary, facts.context_length):
            assert number is None or number >= 0


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "config.json").write_bytes(data)
        with suppress(UsageError):
            read(Path(name))
