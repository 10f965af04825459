"""The two files of a pair are one model: both real engines say so, and vLLM's own libraries."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf_maker import Value
from real_pair import asked, llama, named, texts, vllm, vllm_python
from tiny_pair import Tiny, file, metadata, safetensors, weights

from edgeagent.load.workload import plant_text
from edgeagent.models import gguf, hf
from edgeagent.models.hashing import sha256
from edgeagent.models.pair import Pair, make
from edgeagent.models.pair_layout import llama3_factors

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(600)]

# ------------------------------------------------------------------------------ a model for people


@pytest.fixture(scope="module")
def pair() -> Path:
    return named("EDGEAGENT_TEST_PAIR")


@pytest.fixture(scope="module")
def engines(
    pair: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """llama.cpp and vLLM, side by side."""
    logs = tmp_path_factory.mktemp("logs")
    with (
        llama(pair / "model-bf16.gguf", logs / "llama.log") as one,
        vllm(pair / "hf", logs / "vllm.log") as other,
    ):
        yield one, other


def llama_ids(client: httpx.Client, text: str, ends: str = "none") -> list[int]:
    body = {"content": text, "add_special": ends == "added", "parse_special": True}
    found: list[int] = client.post("/tokenize", json=body).json()["tokens"]
    return found


def vllm_ids(client: httpx.Client, text: str) -> list[int]:
    body = {"model": "pair", "prompt": text, "add_special_tokens": False}
    found: list[int] = client.post("/tokenize", json=body).json()["tokens"]
    return found


def test_both_engines_make_the_same_tokens_of_a_text(
    engines: tuple[httpx.Client, httpx.Client],
) -> None:
    one, other = engines
    for text in texts():
        assert llama_ids(one, text) == vllm_ids(other, text), repr(text)


PROMPTS = (
    "The capital of France is",
    "<|im_start|>user\nWhat does a pressure alarm in a boiler mean?<|im_end|>\n"
    "<|im_start|>assistant\n",
    "def fibonacci(n):",
    "Once upon a time",
)
TOKENS = 24


def test_both_engines_give_the_same_greedy_text(
    engines: tuple[httpx.Client, httpx.Client],
) -> None:
    one, other = engines
    far: list[int] = []
    for prompt in (*PROMPTS, plant_text(random.Random(7), 600)):
        ids = llama_ids(one, prompt)
        body = {"prompt": ids, "temperature": 0, "ignore_eos": True}
        first = one.post(
            "/completion",
            json={**body, "n_predict": TOKENS, "return_tokens": True, "cache_prompt": False},
        ).json()["tokens"]
        second = other.post(
            "/v1/completions",
            json={**body, "model": "pair", "max_tokens": TOKENS, "return_token_ids": True},
        ).json()["choices"][0]["token_ids"]
        assert len(first) == len(second) == TOKENS
        far.append(next((at for at in range(TOKENS) if first[at] != second[at]), TOKENS))
    print(f"greedy tokens that agree, of {TOKENS}: {far}")
    # Two programs round differently; a wrong row order or frequency shows in the first token.
    assert min(far) >= 8, far


def test_vllm_runs_the_type_that_the_pair_was_written_in(
    engines: tuple[httpx.Client, httpx.Client], pair: Path
) -> None:
    _, other = engines
    assert other.get("/v1/models").json()["data"][0]["max_model_len"] == 1024
    one = gguf.identify(pair / "model-bf16.gguf", None, sha256)
    two = hf.identify(pair / "hf", None, sha256)
    assert one.weights_digest == two.weights_digest is not None
    assert (one.quantization, two.quantization) == ("BF16", "BF16")
    assert one.parameters == two.parameters


# --------------------------------------------------------------------------- every kind of network

SCALED = np.array(llama3_factors(8.0, 500000.0, 64), dtype=np.float32)
LINEAR = {
    "llama.rope.scaling.type": Value("string", "linear"),
    "llama.rope.scaling.factor": Value("f32", 4.0),
}
KINDS: Mapping[str, tuple[Tiny, Mapping[str, Any]]] = {
    "llama": (Tiny(head=64, tied=False), {}),
    "biases": (Tiny(head=64, biases="all"), {}),
    "llama3": (Tiny(head=64), {"rope_freqs.weight": SCALED}),
    "linear": (Tiny(head=64, keys=LINEAR), {}),
    "qwen2": (Tiny("qwen2", biases="qkv"), {}),
    "qwen3": (Tiny("qwen3", head=64, tied=False), {}),
}

LOGPROBS = """
import json, sys, torch
from transformers import AutoModelForCausalLM
ids, folders = json.loads(sys.argv[1]), sys.argv[2:]
found = []
for folder in folders:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, -1]
    found.append(torch.log_softmax(logits, -1).tolist())
print(json.dumps(found))
"""


def test_llama_cpp_and_transformers_compute_the_same_from_every_kind(tmp_path: Path) -> None:
    vllm_python()  # before anything is made
    # f16, since llama.cpp rounds what goes into a product as the weights are rounded.
    pairs: dict[str, Pair] = {}
    probabilities: dict[str, dict[int, float]] = {}
    ids = [int(token) for token in np.random.default_rng(3).integers(0, 256, 300)]
    for name, (tiny, extra) in KINDS.items():
        source = tmp_path / f"{name}.gguf"
        source.write_bytes(file(tiny, weights(tiny), extra))
        pairs[name] = make(source, tmp_path / name, "f16", sha256)
        with llama(pairs[name].gguf, tmp_path / f"{name}.log", 512) as client:
            # The grammar keeps the one sampled token printable; probabilities are those before it.
            body = {"prompt": ids, "n_predict": 1, "temperature": 0, "n_probs": 20,
                    "grammar": "root ::= [a-z]"}  # fmt: skip
            answer = client.post("/completion", json=body).json()
        top = answer["completion_probabilities"][0]["top_logprobs"]
        probabilities[name] = {entry["id"]: entry["logprob"] for entry in top}
    found = asked(LOGPROBS, json.dumps(ids), *(pair.hf for pair in pairs.values()))
    for name, logprobs in zip(pairs, found, strict=True):
        seen = probabilities[name]
        assert max(seen, key=seen.__getitem__) == int(np.argmax(logprobs)), name
        # Seen: at most 0.033 where all is right, and over 10 with another base of positions.
        assert max(abs(logprobs[token] - value) for token, value in seen.items()) < 0.1, name


# ----------------------------------------------------------------------------- every kind of rule

TOKENIZE = """
import json, sys
from transformers import AutoTokenizer
texts = json.load(open(sys.argv[1]))
tokenizer = AutoTokenizer.from_pretrained(sys.argv[2])
print(json.dumps([tokenizer(text, add_special_tokens=True)["input_ids"] for text in texts]))
"""


def of_model(path: Path) -> dict[str, Value]:
    """A real model's tokenizer, as entries for a file of our own."""
    found: dict[str, Value] = {}
    for key, value in gguf.read_whole(path).facts.metadata.items():
        if key.startswith("tokenizer."):
            plain = list(value) if isinstance(value, tuple) else value
            one = plain[0] if isinstance(plain, list) else plain
            kinds = {str: "string", bool: "bool", float: "f32", int: "u32"}
            signed = key == "tokenizer.ggml.token_type"
            found[key] = Value("i32" if signed else kinds[type(one)], plain)
    return found


@pytest.mark.parametrize(
    ("variable", "changes"),
    [
        ("EDGEAGENT_TEST_MODEL", {"tokenizer.ggml.pre": Value("string", "gpt-2")}),
        ("EDGEAGENT_TEST_MODEL", {"tokenizer.ggml.pre": Value("string", "llama-bpe")}),
        ("EDGEAGENT_TEST_MODEL", {"tokenizer.ggml.pre": Value("string", "qwen2")}),
        ("EDGEAGENT_TEST_SWA_MODEL", {}),
        ("EDGEAGENT_TEST_SWA_MODEL", {"tokenizer.ggml.add_space_prefix": Value("bool", True)}),
    ],
    ids=["gpt-2", "llama-bpe", "qwen2", "sentencepiece", "sentencepiece with a space before"],
)
def test_every_rule_gives_the_tokens_that_llama_cpp_gives(
    tmp_path: Path, variable: str, changes: Mapping[str, Value]
) -> None:
    vllm_python()
    tokenizer = {**of_model(named(variable, "EDGEAGENT_REQUIRE_REAL")), **changes}
    words = tokenizer["tokenizer.ggml.tokens"].value
    assert isinstance(words, list)
    tiny = Tiny(matrices=GGMLQuantizationType.Q8_0, words=len(words))
    own = {k: v for k, v in metadata(tiny).items() if not k.startswith("tokenizer.")}
    source = tmp_path / "source.gguf"
    source.write_bytes(file(tiny, weights(tiny), of_metadata={**own, **tokenizer}))
    made = make(source, tmp_path / "pair", "bf16", sha256)
    (tmp_path / "texts.json").write_text(json.dumps(texts()))
    theirs = asked(TOKENIZE, tmp_path / "texts.json", made.hf)
    with llama(made.gguf, tmp_path / "log", 256) as client:
        for text, ids in zip(texts(), theirs, strict=True):
            assert llama_ids(client, text, "added") == ids, repr(text)


# ------------------------------------------------------------------------------------- the format

READ = """
import hashlib, json, sys
from safetensors import safe_open
with safe_open(sys.argv[1], "pt") as file:
    found = {}
    for name in file.keys():
        tensor = file.get_tensor(name)
        data = tensor.contiguous().view(-1).view(dtype=__import__("torch").uint8).numpy().tobytes()
        found[name] = [list(tensor.shape), str(tensor.dtype), hashlib.sha256(data).hexdigest()]
    print(json.dumps({"metadata": file.metadata(), "tensors": found}))
"""


def test_the_library_reads_what_we_wrote(tmp_path: Path) -> None:
    vllm_python()
    tiny = Tiny(tied=False, biases="all")
    source = tmp_path / "source.gguf"
    source.write_bytes(file(tiny, weights(tiny)))
    path = make(source, tmp_path / "pair", "bf16", sha256).hf / "model.safetensors"
    found = asked(READ, path)
    assert found["metadata"] == {"format": "pt"}
    assert found["tensors"] == {
        name: [
            list(values.shape),
            "torch.bfloat16",
            hashlib.sha256(values.tobytes()).hexdigest(),
        ]
        for name, (_, values) in safetensors(path).items()
    }
