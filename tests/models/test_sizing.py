"""`edgeagent memory` without its words: a model and a box in, the contract's document out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gguf_maker import Tensor, Value, gguf

from edgeagent.errors import UsageError
from edgeagent.sizing import SizingRequest, size

MIB, GIB = 1 << 20, 1 << 30


def header(**more: Value) -> dict[str, Value]:
    """SmolLM2's sizes, and a vocabulary of 49,152."""
    return {
        "general.architecture": Value("string", "llama"),
        "llama.block_count": Value("u32", 30),
        "llama.context_length": Value("u32", 8192),
        "llama.embedding_length": Value("u32", 576),
        "llama.attention.head_count": Value("u32", 9),
        "llama.attention.head_count_kv": Value("u32", 3),
        "llama.vocab_size": Value("u32", 49_152),
        **more,
    }


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A GGUF file of exactly 1 MiB."""
    path = tmp_path / "model.gguf"
    head = gguf(header(), [Tensor("w", (64,), 0)])
    path.write_bytes(head + bytes(MIB - len(head)))
    return path


@pytest.fixture
def box(tmp_path: Path) -> Path:
    """A box without a GPU that has 2 GiB left."""
    root = tmp_path / "box"
    (root / "proc").mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemTotal: 8388608 kB\nMemAvailable: 2097152 kB\n")
    return root


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Hugging Face folder of SmolLM2's sizes with weights of 256 MiB."""
    made = tmp_path / "SmolLM2"
    made.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
    }
    (made / "config.json").write_text(json.dumps(config))
    index = {"metadata": {"total_size": 256 * MIB}, "weight_map": {}}
    (made / "model.safetensors.index.json").write_text(json.dumps(index))
    return made


def ask(model: Path, slots: tuple[int, ...] = (1, 4), **more: Any) -> SizingRequest:
    return replace(SizingRequest(model, context_per_slot=1024, slots=slots), **more)


def test_the_document_has_what_the_contract_names(model: Path, box: Path) -> None:
    document = size(ask(model), box)
    assert document["model"] == str(model)
    assert (document["engine"], document["kv_type"]) == ("llamacpp", "f16")
    assert document["context_per_slot"] == 1024
    assert document["kv_bytes_per_slot"] == 22.5 * MIB
    assert document["state_bytes_per_slot"] == 0
    assert document["kv_bytes_per_token"] == document["lasting_kv_bytes_per_token"] == 23_040
    assert document["weights_bytes"] == MIB
    assert [row["slots"] for row in document["rows"]] == [1, 4]
    row = document["rows"][1]
    assert row["kv_bytes"] == 90 * MIB
    assert row["output_bytes"] == 0.75 * MIB
    assert row["compute_bytes"] is None
    assert row["total_bytes"] == 91.75 * MIB + 4 * 1024 * 48
    assert row["fits"] is True
    assert document["reason"] is None
    json.dumps(document)


def test_the_budget_is_what_the_box_has_left_less_a_reserve(model: Path, box: Path) -> None:
    document = size(ask(model), box)
    assert document["budget"] == {
        "total_bytes": 2 * GIB,
        "reserve_bytes": 512 * MIB,
        "usable_bytes": 1536 * MIB,
        "source": "host",
        "class": "cpu",
        "reason": None,
    }
    # 1 MiB of weights; a slot takes 22.5 MiB, 192 KiB and 48 KiB.
    assert document["max_slots"] == 67
    assert document["rows"][0]["headroom_bytes"] == 1536 * MIB - document["rows"][0]["total_bytes"]


def test_a_control_groups_limit_counts_where_it_is_less(model: Path, box: Path) -> None:
    (box / "proc/1").mkdir()  # a tree with processes of its own
    (box / "proc/self").mkdir()
    (box / "proc/self/cgroup").write_text("0::/plant\n")
    group = box / "sys/fs/cgroup/plant"
    group.mkdir(parents=True)
    (box / "sys/fs/cgroup/cgroup.controllers").write_text("memory\n")
    (group / "memory.max").write_text(f"{GIB}\n")
    budget = size(ask(model), box)["budget"]
    assert (budget["total_bytes"], budget["source"]) == (GIB, "cgroup")


def test_a_budget_and_a_reserve_may_be_given(model: Path, box: Path) -> None:
    document = size(ask(model, budget_bytes=100 * MIB, reserve_bytes=10 * MIB), box)
    assert document["budget"]["usable_bytes"] == 90 * MIB
    assert document["budget"]["source"] == "given"
    assert [row["fits"] for row in document["rows"]] == [True, False]
    assert document["max_slots"] == 3
    assert document["max_context_per_slot"] == 768  # for 4 slots
    assert [(a["change"], a["slots"], a["kv_type"], a["context_per_slot"])
            for a in document["advice"]] == [
        ("slots", 3, "f16", 1024), ("kv_type", 4, "q8_0", 1024), ("context", 4, "f16", 768),
    ]  # fmt: skip
    assert all(found["total_bytes"] <= 90 * MIB for found in document["advice"])


def test_a_card_must_be_asked_so_its_budget_is_not_guessed(model: Path, box: Path) -> None:
    information = box / "proc/driver/nvidia/gpus/0000:01:00.0/information"
    information.parent.mkdir(parents=True)
    information.write_text("Model: \t\t NVIDIA RTX A2000\n")
    (box / "proc/driver/nvidia/version").write_text("NVRM version: NVIDIA UNIX 570.1\n")
    document = size(ask(model), box)
    assert document["budget"]["class"] == "dgpu"
    assert document["budget"]["total_bytes"] is None
    assert "give --budget" in document["budget"]["reason"]
    assert [row["fits"] for row in document["rows"]] == [None, None]
    assert (document["max_slots"], document["max_context_per_slot"]) == (None, None)
    assert document["rows"][1]["total_bytes"] > 90 * MIB
    assert size(ask(model, budget_bytes=GIB), box)["max_slots"] == 22


def test_a_box_that_says_nothing_has_no_budget(model: Path, tmp_path: Path) -> None:
    document = size(ask(model), tmp_path / "nothing")
    assert document["budget"]["total_bytes"] is None
    assert document["rows"][0]["fits"] is None


def test_compute_buffers_count_when_they_are_known(model: Path, box: Path) -> None:
    unknown, known = size(ask(model), box), size(ask(model, compute_bytes=15 * MIB), box)
    assert known["compute_source"] == "given"
    more = known["rows"][0]["total_bytes"] - unknown["rows"][0]["total_bytes"]
    assert more == 15 * MIB


def test_a_draft_model_counts(model: Path, box: Path) -> None:
    alone, pair = size(ask(model), box), size(ask(model, draft=model), box)
    # The draft: its weights, its cache, its row of logits and its records.
    assert pair["rows"][0]["draft_bytes"] == 23.5 * MIB + 192 * 1024 + 1024 * 48
    # Three drafted tokens have rows of logits of the target's too.
    more = pair["bytes_per_slot"] - alone["bytes_per_slot"]
    assert more == 3 * 192 * 1024 + alone["bytes_per_slot"]


def test_a_unified_cache_is_said(model: Path, box: Path) -> None:
    document = size(ask(model, sharing="unified"), box)
    assert document["sharing"] == "unified"
    assert document["rows"][1]["kv_bytes"] == 90 * MIB


def test_what_cannot_be_computed_is_a_reason_and_never_a_number(tmp_path: Path, box: Path) -> None:
    path = tmp_path / "strange.gguf"
    path.write_bytes(gguf(header(**{"llama.ssm.state_size": Value("u32", 16)})))
    document = size(ask(path), box)
    assert "recurrent" in document["reason"]
    assert document["weights_bytes"] == path.stat().st_size
    assert document["kv_bytes_per_slot"] is None
    assert {document["rows"][0][key] for key in ("kv_bytes", "total_bytes", "fits")} == {None}
    assert document["max_slots"] is None
    assert document["advice"] == []


def test_a_folder_is_for_vllm(folder: Path, box: Path) -> None:
    document = size(ask(folder, context_per_slot=2048), box)
    assert (document["engine"], document["kv_type"]) == ("vllm", "auto")
    assert (document["block_tokens"], document["bytes_per_block"]) == (128, 2_949_120)
    assert document["blocks_per_slot"] == 16
    assert document["kv_bytes_per_slot"] == document["bytes_per_slot"] == 45 * MIB
    assert document["weights_bytes"] == 256 * MIB
    # 65 blocks for four: the null block holds nothing.
    assert document["rows"][1]["kv_bytes"] == 65 * 2_949_120
    assert document["rows"][1]["blocks"] == 65
    assert document["rows"][1]["output_bytes"] is None
    gpu = size(ask(folder, block_tokens=16), box)
    assert gpu["bytes_per_block"] == 16 * 23_040


def test_vllms_smaller_cache_is_fp8(folder: Path, box: Path) -> None:
    document = size(
        ask(folder, context_per_slot=2048, budget_bytes=400 * MIB, reserve_bytes=0), box
    )
    assert [row["fits"] for row in document["rows"]] == [True, False]
    kinds = [found["kv_type"] for found in document["advice"] if found["change"] == "kv_type"]
    assert kinds == ["fp8"]


def test_without_weights_nothing_is_said_to_fit(folder: Path, box: Path) -> None:
    (folder / "model.safetensors.index.json").unlink()
    document = size(ask(folder, budget_bytes=600 * MIB, reserve_bytes=0, slots=(1, 64)), box)
    assert document["weights_bytes"] is None
    assert [row["fits"] for row in document["rows"]] == [None, False]


@pytest.mark.parametrize(
    ("which", "engine", "words"),
    [("model", "vllm", "is no folder"), ("folder", "llamacpp", "reads a GGUF file")],
)
def test_each_engine_reads_its_own_kind_of_model(
    request: pytest.FixtureRequest, box: Path, which: str, engine: str, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        size(ask(request.getfixturevalue(which), engine=engine), box)


def test_a_cache_type_the_engine_does_not_know_is_refused(
    model: Path, folder: Path, box: Path
) -> None:
    with pytest.raises(UsageError, match="--kv-type fp8 is not known: use one of f32"):
        size(ask(model, kv_type="fp8"), box)
    with pytest.raises(UsageError, match="--kv-type q8_0 is not known to vLLM"):
        size(ask(folder, kv_type="q8_0"), box)


def test_a_draft_is_refused_for_vllm(folder: Path, model: Path, box: Path) -> None:
    with pytest.raises(UsageError, match="--draft"):
        size(ask(folder, draft=model), box)
