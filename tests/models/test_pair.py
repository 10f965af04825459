"""One GGUF becomes two files with the same numbers, and whatever cannot is refused by name."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, quants
from gguf_maker import Value
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_pair import F32, HEAD, WORDS, Tiny, file, gguf_name, hollow, safetensors, weights

from edgeagent.errors import BusyError, UsageError
from edgeagent.models import gguf, hf, pair_values
from edgeagent.models.hashing import sha256
from edgeagent.models.pair import Pair, make
from edgeagent.models.pair_identity import weights_digest
from edgeagent.models.pair_layout import llama3_factors

BF16, F16 = GGMLQuantizationType.BF16, GGMLQuantizationType.F16
Q4_0, Q8_0 = GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q8_0


def paired(folder: Path, data: bytes, kind: Literal["bf16", "f16"] = "bf16") -> Pair:
    source = folder / "source.gguf"
    source.write_bytes(data)
    return make(source, folder / "pair", kind, sha256)


def halves(values: Any, kind: GGMLQuantizationType = BF16) -> Any:
    """The 16-bit patterns by another program's rounding."""
    return quants.quantize(np.ascontiguousarray(values), kind).view(np.uint16).reshape(values.shape)


def unpacked(values: Any, kind: GGMLQuantizationType) -> Any:
    if values.ndim == 1 or kind == F32:
        return values
    return quants.dequantize(quants.quantize(values, kind), kind)


def refused(folder: Path, data: bytes, kind: Literal["bf16", "f16"] = "bf16") -> str:
    """The sentence; nothing is left behind."""
    with pytest.raises(UsageError) as caught:
        paired(folder, data, kind)
    assert [path.name for path in folder.iterdir()] == ["source.gguf"]
    sentence = str(caught.value)
    assert sentence
    assert "\n" not in sentence
    return sentence


# ------------------------------------------------------------------------------- the same numbers

MODELS = {
    "llama": Tiny(),
    "llama with a head of its own": Tiny(tied=False),
    "llama with biases": Tiny(biases="all"),
    "llama packed in 8 bits": Tiny(matrices=Q8_0),
    "llama packed in 4 bits": Tiny(matrices=Q4_0, tied=False),
    "llama in 16 bits": Tiny(matrices=BF16),
    "llama with wide heads": Tiny(head=64),
    "qwen2": Tiny("qwen2", biases="qkv"),
    "qwen3": Tiny("qwen3", head=64, matrices=F16),
}


@pytest.mark.parametrize("tiny", MODELS.values(), ids=MODELS.keys())
def test_the_folder_has_the_weights_that_the_model_was_made_of(tmp_path: Path, tiny: Tiny) -> None:
    original = weights(tiny)
    pair = paired(tmp_path, file(tiny, original))
    found = safetensors(pair.hf / "model.safetensors")
    assert found.keys() == original.keys()
    for name, values in original.items():
        kind, patterns = found[name]
        assert kind == "BF16"
        # Rows keep their packing when they are put in another order, so packing goes first.
        assert np.array_equal(patterns, halves(unpacked(values, tiny.matrices))), name


@pytest.mark.parametrize("tiny", MODELS.values(), ids=MODELS.keys())
def test_the_gguf_keeps_its_order_and_carries_the_rounded_values(
    tmp_path: Path, tiny: Tiny
) -> None:
    pair = paired(tmp_path, file(tiny, weights(tiny)))
    before = {tensor.name: tensor for tensor in GGUFReader(tmp_path / "source.gguf").tensors}
    after = {tensor.name: tensor for tensor in GGUFReader(pair.gguf).tensors}
    assert list(after) == list(before)
    for name, tensor in after.items():
        assert list(tensor.shape) == list(before[name].shape)
        assert tensor.tensor_type == (F32 if len(tensor.shape) == 1 else BF16)
        wanted = quants.dequantize(before[name].data, before[name].tensor_type)
        rounded = quants.dequantize(quants.quantize(wanted, BF16), BF16)
        values = quants.dequantize(tensor.data, tensor.tensor_type)
        assert np.array_equal(values, rounded), name


def test_f16_gives_both_files_in_f16(tmp_path: Path) -> None:
    original = weights(Tiny())
    pair = paired(tmp_path, file(Tiny(), original), "f16")
    assert pair.gguf.name == "model-f16.gguf"
    for name, (kind, patterns) in safetensors(pair.hf / "model.safetensors").items():
        assert kind == "F16"
        assert np.array_equal(patterns, halves(original[name], F16)), name
    assert gguf.read(pair.gguf).quantization == "F16"
    assert json.loads((pair.hf / "config.json").read_bytes())["torch_dtype"] == "float16"


def test_a_model_that_is_bf16_already_is_copied_value_by_value(tmp_path: Path) -> None:
    pair = paired(tmp_path, file(Tiny(matrices=BF16), weights(Tiny())))
    before = {tensor.name: tensor for tensor in GGUFReader(tmp_path / "source.gguf").tensors}
    for tensor in GGUFReader(pair.gguf).tensors:
        if tensor.tensor_type == BF16:
            assert np.array_equal(tensor.data, before[tensor.name].data)


def test_a_pair_of_a_pair_is_the_same_pair(tmp_path: Path) -> None:
    first = paired(tmp_path, file(Tiny(matrices=Q8_0), weights(Tiny())))
    again = make(first.gguf, tmp_path / "again", "bf16", sha256)
    assert again.gguf.read_bytes() == first.gguf.read_bytes()
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (again.hf / name).read_bytes() == (first.hf / name).read_bytes()
    assert again.weights_digest == first.weights_digest


def test_a_tensor_larger_than_a_chunk_keeps_whole_heads_together(tmp_path: Path) -> None:
    original = weights(Tiny())
    source = tmp_path / "source.gguf"
    source.write_bytes(file(Tiny(), original))
    name = "model.layers.0.self_attn.q_proj.weight"
    tensor = next(t for t in gguf.read_whole(source).tensors if t.name == gguf_name(name))
    # 64 rows of 32 values a chunk would cut no head, 40 rows would: it is rounded down to 32.
    rows = [
        pair_values.in_rotation_order(part, HEAD)
        for part in pair_values.chunks(source, tensor, "bf16", HEAD, chunk_values=40 * 128)
    ]
    assert [len(part) for part in rows] == [HEAD] * 4
    assert np.array_equal(np.concatenate(rows), halves(original[name]))


# ------------------------------------------------------------------------------ what the files say


def test_the_gguf_says_everything_that_the_source_said_but_its_packing(tmp_path: Path) -> None:
    tiny = Tiny(matrices=Q8_0, keys={"general.file_type": Value("u32", 7)})
    pair = paired(tmp_path, file(tiny, weights(tiny)))
    before = dict(gguf.read_whole(tmp_path / "source.gguf").facts.metadata)
    after = dict(gguf.read_whole(pair.gguf).facts.metadata)
    assert after.pop("general.file_type") == 32
    del before["general.file_type"]
    assert after == before


def test_config_json_has_the_settings_of_the_gguf(tmp_path: Path) -> None:
    pair = paired(tmp_path, file(Tiny(), weights(Tiny())))
    config = json.loads((pair.hf / "config.json").read_bytes())
    assert config == {
        "_name_or_path": "Tiny Überdruck",
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": 128,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": WORDS,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "rope_theta": 500000.0,
        "rope_scaling": None,
        "bos_token_id": WORDS - 3,
        "eos_token_id": WORDS - 2,
        "pad_token_id": None,
        "torch_dtype": "bfloat16",
    }


def config_of(folder: Path, tiny: Tiny, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    pair = paired(folder, file(tiny, weights(tiny), extra))
    found: dict[str, Any] = json.loads((pair.hf / "config.json").read_bytes())
    return found


def test_an_output_of_its_own_is_not_tied(tmp_path: Path) -> None:
    assert config_of(tmp_path, Tiny(tied=False))["tie_word_embeddings"] is False


def test_linear_scaling_of_positions_is_kept(tmp_path: Path) -> None:
    keys = {
        "llama.rope.scaling.type": Value("string", "linear"),
        "llama.rope.scaling.factor": Value("f32", 4.0),
    }
    config = config_of(tmp_path, Tiny(keys=keys))
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}


def test_llama_3_scaling_is_recognised_by_its_factors_and_kept_for_llama_cpp(
    tmp_path: Path,
) -> None:
    factors = np.array(llama3_factors(8.0, 500000.0, HEAD), dtype=np.float32)
    # Turns of the slowest pair within 8192 tokens: 8192 / (2 pi 500000^(30/32)) = 0.006, below 1.
    assert (factors[0], factors[-1]) == (1.0, 8.0)
    config = config_of(tmp_path, Tiny(), {"rope_freqs.weight": factors})
    assert config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    written = {t.name: t for t in GGUFReader(tmp_path / "pair" / "model-bf16.gguf").tensors}
    assert np.array_equal(written["rope_freqs.weight"].data, factors)
    assert "rope_freqs.weight" not in safetensors(tmp_path / "pair/hf/model.safetensors")


def test_other_factors_of_positions_are_refused(tmp_path: Path) -> None:
    factors = np.linspace(1, 3, HEAD // 2).astype(np.float32)
    sentence = refused(tmp_path, file(Tiny(), weights(Tiny()), {"rope_freqs.weight": factors}))
    assert "not those of Llama 3" in sentence


# --------------------------------------------------------------------------------------- identity


def test_both_forms_have_the_digest_of_their_values(tmp_path: Path) -> None:
    pair = paired(tmp_path, file(Tiny(), weights(Tiny())))
    one, other = gguf.identify(pair.gguf, None, sha256), hf.identify(pair.hf, None, sha256)
    assert one.weights_digest == other.weights_digest == pair.weights_digest
    assert one.sha256 != other.sha256
    parameters = sum(values.size for values in weights(Tiny()).values())
    assert (one.id, one.parameters, one.quantization) == ("Tiny Überdruck", parameters, "BF16")
    assert (other.id, other.parameters, other.quantization) == (one.id, one.parameters, "BF16")
    assert (one.context_length, other.context_length) == (512, 512)
    assert other.format == "safetensors"
    document = json.loads((pair.folder / "pair.json").read_bytes())
    assert document["schema"] == "edgeagent.pair/1"
    assert document["source"]["sha256"] == [sha256(tmp_path / "source.gguf")]
    assert document["gguf"]["sha256"] == one.sha256
    assert document["hf"]["sha256"] == other.sha256


def test_other_values_have_another_digest_and_another_packing_of_the_same_has_not(
    tmp_path: Path,
) -> None:
    digests = []
    for name, tiny, seed in (("a", F32, 7), ("b", BF16, 7), ("c", BF16, 8)):
        (tmp_path / name).mkdir()
        data = file(Tiny(matrices=tiny), weights(Tiny(), seed))
        digests.append(paired(tmp_path / name, data).weights_digest)
    assert digests[0] == digests[1] != digests[2]


def test_a_model_that_was_changed_later_is_not_taken_for_one_of_the_pair(tmp_path: Path) -> None:
    pair = paired(tmp_path, file(Tiny(), weights(Tiny())))
    data = bytearray(pair.gguf.read_bytes())
    data[-1] ^= 1
    pair.gguf.write_bytes(data)
    assert gguf.identify(pair.gguf, None, sha256).weights_digest is None
    assert hf.identify(pair.hf, None, sha256).weights_digest == pair.weights_digest


def test_a_model_beside_a_pair_is_none_of_it(tmp_path: Path) -> None:
    pair = paired(tmp_path, file(Tiny(), weights(Tiny())))
    other = pair.folder / "other.gguf"
    other.write_bytes(pair.gguf.read_bytes())
    assert weights_digest(other) is None
    assert weights_digest(pair.gguf) == pair.weights_digest
    assert weights_digest(tmp_path / "source.gguf") is None


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "[" * 5000, '{"schema": "edgeagent.pair/1"}', "\x00" * (2 << 20),
     '{"schema": "edgeagent.pair/2", "gguf": {"path": "m.gguf"}, "weights_digest": "sha256:%s"}'
     % ("0" * 64),
     '{"schema": "edgeagent.pair/1", "gguf": {"path": "m.gguf"}, "weights_digest": "x"}',
     '{"schema": "edgeagent.pair/1", "gguf": {"path": ["m.gguf"]}, "weights_digest": 3}'],
)  # fmt: skip
def test_a_damaged_description_proves_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "pair.json").write_text(text)
    (tmp_path / "m.gguf").write_bytes(b"")
    assert weights_digest(tmp_path / "m.gguf") is None


# ------------------------------------------------------------------------------------ bad material


@pytest.mark.parametrize("architecture", ["gemma3", "mamba", "qwen2moe", ""])
def test_an_unknown_architecture_is_refused_by_name(tmp_path: Path, architecture: str) -> None:
    key = {"general.architecture": Value("string", architecture)}
    sentence = refused(tmp_path, file(Tiny(keys=key), weights(Tiny())))
    assert repr(architecture) in sentence
    assert "llama, qwen2, qwen3" in sentence


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.expert_count", Value("u32", 8)),
        ("llama.attention.sliding_window", Value("u32", 4096)),
        ("llama.rope.scaling.type", Value("string", "yarn")),
        ("llama.rope.scaling.attn_factor", Value("f32", 1.5)),
        ("llama.rope.dimension_count", Value("u32", 16)),
        ("llama.attention.head_count", Value("u32", 0)),
        ("llama.attention.head_count_kv", Value("u32", 3)),
        ("llama.attention.head_count_kv", Value("i32", [2, 2])),
        ("llama.attention.value_length", Value("u32", 64)),
        ("llama.attention.layer_norm_rms_epsilon", Value("f32", float("nan"))),
        ("llama.block_count", Value("u32", 2**31 - 1)),
        ("llama.embedding_length", Value("string", "wide")),
    ],
)
def test_a_setting_that_is_not_understood_is_refused_by_name(
    tmp_path: Path, key: str, value: Value
) -> None:
    assert key in refused(tmp_path, file(Tiny(keys={key: value}), weights(Tiny())))


def test_settings_that_change_nothing_are_passed_over(tmp_path: Path) -> None:
    keys = {"llama.expert_count": Value("u32", 0), "llama.vocab_size": Value("u32", WORDS)}
    assert config_of(tmp_path, Tiny(keys=keys))["model_type"] == "llama"


def test_a_missing_a_foreign_and_a_misshapen_tensor_are_named(tmp_path: Path) -> None:
    whole = weights(Tiny())
    name = "model.layers.1.mlp.up_proj.weight"
    less = {key: value for key, value in whole.items() if key != name}
    assert "lacks the tensor 'blk.1.ffn_up.weight'" in refused(tmp_path, file(Tiny(), less))
    more = {"blk.0.ffn_gate_inp.weight": np.zeros(8, dtype=np.float32)}
    assert "'blk.0.ffn_gate_inp.weight'" in refused(tmp_path, file(Tiny(), whole, more))
    wrong = {**whole, name: whole[name].T.copy()}
    assert "(128, 192) where its settings want (192, 128)" in refused(tmp_path, file(Tiny(), wrong))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -3.4e38])
def test_a_value_that_is_no_number_is_refused(tmp_path: Path, value: float) -> None:
    # -3.4e38 is a number in 32 bits and rounds to one in bf16; in f16 it is infinite
    of = dict(weights(Tiny()))
    of["model.layers.1.mlp.up_proj.weight"][3, 5] = value
    kind: Literal["bf16", "f16"] = "f16" if value == -3.4e38 else "bf16"
    sentence = refused(tmp_path, file(Tiny(), of), kind)
    assert "'blk.1.ffn_up.weight'" in sentence
    assert ("--type bf16" in sentence) == (kind == "f16")


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("tokenizer.ggml.model", Value("string", "bert"), "bert"),
        ("tokenizer.ggml.pre", Value("string", "tekken"), "tekken"),
        ("tokenizer.ggml.tokens", Value("string", ["a"] * WORDS), "same text"),
        ("tokenizer.ggml.tokens", Value("string", ["a", "b"]), "2 tokens and embeddings for 264"),
        ("tokenizer.ggml.tokens", Value("u32", [1] * WORDS), "tokenizer.ggml.tokens"),
        ("tokenizer.ggml.token_type", Value("i32", [1]), "token_type"),
        ("tokenizer.ggml.merges", Value("string", ["al"]), "merges"),
        ("tokenizer.ggml.merges", Value("string", ["a zz"]), "merges"),
        ("tokenizer.ggml.merges", Value("string", [""]), "merges"),
        ("tokenizer.ggml.model", Value("string", "llama"), "tokenizer.ggml.scores"),
        ("tokenizer.ggml.eos_token_id", Value("u32", WORDS), "eos_token_id"),
        ("tokenizer.ggml.bos_token_id", Value("string", "first"), "bos_token_id"),
    ],
)
def test_a_tokenizer_that_cannot_be_written_is_refused(
    tmp_path: Path, key: str, value: Value, word: str
) -> None:
    assert word in refused(tmp_path, file(Tiny(keys={key: value}), weights(Tiny())))


@pytest.mark.parametrize(
    "scores",
    [Value("f32", [0.0]), Value("string", ["x"] * WORDS), Value("bool", [True] * WORDS)],
)
def test_scores_of_pieces_must_be_numbers_of_every_one(tmp_path: Path, scores: Value) -> None:
    keys = {"tokenizer.ggml.model": Value("string", "llama"), "tokenizer.ggml.scores": scores}
    assert "tokenizer.ggml.scores" in refused(tmp_path, file(Tiny(keys=keys), weights(Tiny())))


def test_an_endless_token_is_refused(tmp_path: Path) -> None:
    pieces = Value("string", ["x" * (number + 4000) for number in range(WORDS)])
    keys = {"tokenizer.ggml.tokens": pieces}
    assert "tokenizer.ggml.tokens" in refused(tmp_path, file(Tiny(keys=keys), weights(Tiny())))


def test_a_name_that_is_no_text_is_passed_over(tmp_path: Path) -> None:
    assert config_of(tmp_path, Tiny(keys={"general.name": Value("f32", float("nan"))}))[
        "_name_or_path"
    ] == ("source")


def test_a_file_cut_anywhere_is_refused_in_one_sentence(tmp_path: Path) -> None:
    whole = file(Tiny(), weights(Tiny()))
    for length in (0, 3, 24, 200, len(whole) // 2, len(whole) - 64):
        refused(tmp_path, whole[:length])


_HEADER = len(file(Tiny(), weights(Tiny()))) - sum(
    value.size * 4 for value in weights(Tiny()).values()
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, _HEADER), st.integers(0, 255))
def test_a_header_with_any_byte_changed_gives_a_pair_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, at: int, byte: int
) -> None:
    folder = tmp_path_factory.mktemp("changed")
    data = bytearray(file(Tiny(), weights(Tiny())))
    data[at] = byte
    caught: list[str] = []
    try:
        paired(folder, bytes(data))
    except UsageError as error:
        caught.append(str(error))
    left = [path.name for path in folder.iterdir()]
    assert left == ["source.gguf"] if caught else "pair" in left
    assert not any("\n" in sentence for sentence in caught)


def test_a_packing_that_nobody_can_unpack_is_refused(tmp_path: Path) -> None:
    data = file(Tiny(), weights(Tiny()))
    name = b"token_embd.weight"
    at = data.index(name) + len(name) + 4 + 16
    assert struct.unpack_from("<I", data, at) == (0,)
    changed = data[:at] + struct.pack("<I", 26) + data[at + 4 :]
    assert "packed as I32" in refused(tmp_path, changed)
    changed = data[:at] + struct.pack("<I", 99) + data[at + 4 :]
    assert "packed as type 99" in refused(tmp_path, changed)


# --------------------------------------------------------------------------------------- the folder


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    first = paired(tmp_path, file(Tiny(), weights(Tiny())))
    with pytest.raises(UsageError, match="is there already"):
        make(tmp_path / "source.gguf", first.folder, "bf16", sha256)
    assert weights_digest(first.gguf, sha256(first.gguf)) == first.weights_digest


def test_a_path_that_is_no_text_is_no_trouble(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"m\xff")
    folder.mkdir()
    pair = paired(folder, file(Tiny(), weights(Tiny())))
    document = json.loads((pair.folder / "pair.json").read_bytes())
    assert document["source"]["path"].endswith("m?/source.gguf")


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "pair").mkdir()
    assert paired(tmp_path, file(Tiny(), weights(Tiny()))).gguf.exists()


def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path: Path) -> None:
    left = tmp_path / ".pair.unfinished"
    (left / "hf").mkdir(parents=True)
    (left / "hf" / "model.safetensors").write_bytes(b"half")
    paired(tmp_path, file(Tiny(), weights(Tiny())))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pair", "source.gguf"]


def test_a_second_run_for_the_same_folder_is_told_to_wait(tmp_path: Path) -> None:
    source = tmp_path / "source.gguf"
    source.write_bytes(file(Tiny(), weights(Tiny())))
    seen = []

    def meanwhile(done: int, total: int) -> None:
        if done == total:
            with pytest.raises(BusyError) as caught:
                make(source, tmp_path / "pair", "bf16", sha256)
            seen.append(str(caught.value))

    made = make(source, tmp_path / "pair", "bf16", sha256, meanwhile)
    assert len(seen) == 1
    assert weights_digest(made.gguf, sha256(made.gguf)) == made.weights_digest


def test_an_interrupted_run_leaves_nothing(tmp_path: Path) -> None:
    source = tmp_path / "source.gguf"
    source.write_bytes(file(Tiny(), weights(Tiny())))

    def interrupt(done: int, total: int) -> None:
        assert (tmp_path / ".pair.unfinished").exists()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(source, tmp_path / "pair", "bf16", sha256, interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["source.gguf"]


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    source = tmp_path / "source.gguf"
    source.write_bytes(file(Tiny(), weights(Tiny())))
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="not a directory"):
        make(source, tmp_path / "file" / "pair", "bf16", sha256)


def test_a_disk_that_is_too_small_is_named_before_anything_is_written(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    source = tmp_path / "source.gguf"
    # Two layers of three matrices of 128 columns, in 2 bytes, twice: 3,072 bytes a row.
    hollow(source, Tiny(feed=free // 3072 * 2))
    with pytest.raises(UsageError, match=r"needs [0-9.]+ GB and the disk of .* make room"):
        make(source, tmp_path / "pair", "bf16", sha256)
    assert [path.name for path in tmp_path.iterdir()] == ["source.gguf"]


def test_a_split_model_is_put_together(tmp_path: Path) -> None:
    tiny = Tiny()
    of = weights(tiny)
    names = list(of)
    for number, part in enumerate((names[:3], names[3:]), start=1):
        keys = {"split.count": Value("u16", 2), "split.no": Value("u16", number - 1)}
        data = file(replace(tiny, keys=keys), {name: of[name] for name in part})
        (tmp_path / f"m-0000{number}-of-00002.gguf").write_bytes(data)
    made = make(tmp_path / "m-00001-of-00002.gguf", tmp_path / "pair", "bf16", sha256)
    (tmp_path / "whole").mkdir()
    assert made.weights_digest == paired(tmp_path / "whole", file(tiny, of)).weights_digest
    assert "split.count" not in gguf.read(made.gguf).metadata
