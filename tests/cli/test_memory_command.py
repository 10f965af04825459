"""`edgeagent memory` from its words to its answer; what is wrong with them is one sentence."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from edgeagent.cli import memory
from edgeagent.errors import UsageError

MIB = 1 << 20


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A Hugging Face folder of SmolLM2's sizes."""
    folder = tmp_path / "SmolLM2"
    folder.mkdir()
    config = {
        "model_type": "llama",
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(bytes(MIB))
    return str(folder)


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    memory.add_to(parser.add_subparsers())
    options = parser.parse_args(["memory", *words])
    status: int = options.run(options)
    return status


def test_json_is_the_document(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--context", "2048", "--slots", "8,1,4", "--budget", "1GiB", "--reserve", "100MiB")
    assert run(model, *words, "--block-size", "128", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["slots"] for row in document["rows"]] == [1, 4, 8]
    assert document["kv_bytes_per_slot"] == 45 * MIB
    assert document["budget"]["usable_bytes"] == 924 * MIB
    # (924 - 1 - 2.8125 of the null block) / 45
    assert document["max_slots"] == 20


def test_people_get_a_table(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(model, "--budget", "1GiB") == 0
    told = capsys.readouterr().out
    assert "vLLM, 4,096 tokens per slot, auto cache" in told
    assert "budget    1.00 GiB given" in told


def test_what_does_not_fit_is_an_answer_too(model: str) -> None:
    assert run(model, "--budget", "1MiB", "--reserve", "0") == 0


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--budget", "plenty"), "--budget 'plenty'"),
        (("--reserve", "-1"), "--reserve '-1'"),
        (("--slots", "1,two"), "--slots '1,two'"),
        (("--slots", ""), "--slots ''"),
        (("--slots", "0"), "--slots '0'"),
        (("--slots", "1,9999"), "--slots '1,9999'"),
        (("--slots", "²"), "--slots"),
        (("--context", "0"), "--context 0"),
        (("--context", "9" * 30), "--context 9"),
        (("--block-size", "0"), "--block-size 0"),
        (("--kv-type", "q8_0"), "--kv-type q8_0"),
        (("--engine", "llamacpp"), "reads a GGUF file"),
    ],
)
def test_what_is_wrong_is_named(model: str, words: tuple[str, ...], named: str) -> None:
    with pytest.raises(UsageError) as caught:
        run(model, *words)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)
