"""Tiny random models, as Hugging Face has their weights and as a GGUF file has them."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, quants
from gguf_maker import Tensor, Value, gguf

WIDTH, FEED, HEADS, KV_HEADS, HEAD, LAYERS = 128, 192, 4, 2, 32, 2
MERGES = ["a l", "al a", "ala r", "alar m", "Ġ alarm"]
F32 = GGMLQuantizationType.F32
Weights = Mapping[str, Any]


def byte_letters() -> list[str]:
    """The letter that stands for each byte in a vocabulary of bytes, as GPT-2 chose them."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return [chr(byte if byte in plain else next(spare)) for byte in range(256)]


def tokens() -> list[str]:
    joined = [merge.replace(" ", "") for merge in MERGES]
    return [*byte_letters(), *joined, "<|begin|>", "<|end|>", "<|tool|>"]


WORDS = len(tokens())


@dataclass(frozen=True)
class Tiny:
    """Which model: its architecture, and how its GGUF packs matrices and vectors."""

    architecture: str = "llama"
    matrices: GGMLQuantizationType = F32
    tied: bool = True
    biases: str = "none"
    keys: Mapping[str, Value] = field(default_factory=dict)
    """More metadata, or other."""
    head: int = HEAD
    layers: int = LAYERS
    words: int = WORDS
    feed: int = FEED


def shapes_of(tiny: Tiny) -> dict[str, tuple[int, ...]]:
    """By Hugging Face name, rows first."""
    queries, keys = HEADS * tiny.head, KV_HEADS * tiny.head
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (tiny.words, WIDTH),
        "model.norm.weight": (WIDTH,),
    }
    if not tiny.tied:
        shapes["lm_head.weight"] = (tiny.words, WIDTH)
    for layer in range(tiny.layers):
        block = {
            "input_layernorm.weight": (WIDTH,),
            "self_attn.q_proj.weight": (queries, WIDTH),
            "self_attn.k_proj.weight": (keys, WIDTH),
            "self_attn.v_proj.weight": (keys, WIDTH),
            "self_attn.o_proj.weight": (WIDTH, queries),
            "post_attention_layernorm.weight": (WIDTH,),
            "mlp.gate_proj.weight": (tiny.feed, WIDTH),
            "mlp.up_proj.weight": (tiny.feed, WIDTH),
            "mlp.down_proj.weight": (WIDTH, tiny.feed),
        }
        if tiny.biases != "none":
            block |= {
                "self_attn.q_proj.bias": (queries,),
                "self_attn.k_proj.bias": (keys,),
                "self_attn.v_proj.bias": (keys,),
            }
        if tiny.biases == "all":
            block["self_attn.o_proj.bias"] = (WIDTH,)
        if tiny.architecture == "qwen3":
            block |= {"self_attn.q_norm.weight": (tiny.head,)}
            block |= {"self_attn.k_norm.weight": (tiny.head,)}
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in block.items()}
    return shapes


def weights(tiny: Tiny, seed: int = 7) -> Weights:
    """Under Hugging Face names, in 32 bits."""
    random = np.random.default_rng(seed)
    # Far enough from 0 that attention looks at something, near enough that nothing overflows.
    return {
        name: random.normal(1.0 if "norm" in name else 0.0, 0.3, shape).astype(np.float32)
        for name, shape in shapes_of(tiny).items()
    }


_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip


def gguf_name(name: str) -> str:
    stem, _, end = name.rpartition(".")
    if stem.startswith("model.layers."):
        layer, _, inner = stem.removeprefix("model.layers.").partition(".")
        return f"blk.{layer}.{_NAMES[inner]}.{end}"
    return f"{_NAMES[stem]}.{end}"


def permuted(rows: Any, heads: int) -> Any:
    """As llama.cpp's converter does it for Llama: the two rows of a rotated pair side by side."""
    shape = rows.shape
    return rows.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def tokenizer_keys() -> dict[str, Value]:
    return {
        "tokenizer.ggml.model": Value("string", "gpt2"),
        "tokenizer.ggml.pre": Value("string", "gpt-2"),
        "tokenizer.ggml.tokens": Value("string", tokens()),
        "tokenizer.ggml.token_type": Value("i32", [1] * (WORDS - 3) + [3, 3, 4]),
        "tokenizer.ggml.merges": Value("string", MERGES),
        "tokenizer.ggml.bos_token_id": Value("u32", WORDS - 3),
        "tokenizer.ggml.eos_token_id": Value("u32", WORDS - 2),
    }


def metadata(tiny: Tiny) -> dict[str, Value]:
    keys = {
        "block_count": Value("u32", tiny.layers),
        "context_length": Value("u32", 512),
        "embedding_length": Value("u32", WIDTH),
        "feed_forward_length": Value("u32", tiny.feed),
        "attention.head_count": Value("u32", HEADS),
        "attention.head_count_kv": Value("u32", KV_HEADS),
        "attention.layer_norm_rms_epsilon": Value("f32", 1e-6),
        "rope.freq_base": Value("f32", 500000.0),
    }
    if tiny.head * HEADS != WIDTH:
        keys["attention.key_length"] = Value("u32", tiny.head)
        keys["attention.value_length"] = Value("u32", tiny.head)
    return {
        "general.architecture": Value("string", tiny.architecture),
        "general.name": Value("string", "Tiny Überdruck"),
        "general.file_type": Value("u32", 0),
        **{f"{tiny.architecture}.{name}": value for name, value in keys.items()},
        **tokenizer_keys(),
        **tiny.keys,
    }


def packed(values: Any, kind: GGMLQuantizationType) -> bytes:
    return bytes(quants.quantize(values, kind).tobytes())


def file(
    tiny: Tiny,
    of: Weights,
    extra: Mapping[str, Any] | None = None,
    of_metadata: Mapping[str, Value] | None = None,
) -> bytes:
    """The whole GGUF; `extra` are more vectors, under the names that they have there."""
    placed: list[Tensor] = []
    data = bytearray()
    named = {gguf_name(name): values for name, values in of.items()} | dict(extra or {})
    for name, values in named.items():
        kept = values
        if tiny.architecture == "llama" and ".attn_q." in name:
            kept = permuted(values, HEADS)
        if tiny.architecture == "llama" and ".attn_k." in name:
            kept = permuted(values, KV_HEADS)
        kind = F32 if values.ndim == 1 else tiny.matrices
        placed.append(Tensor(name, tuple(reversed(values.shape)), int(kind), len(data)))
        data += packed(kept, kind)
        data += bytes(-len(data) % 32)
    return gguf(of_metadata or metadata(tiny), placed, bytes(data))


def hollow(path: Path, tiny: Tiny) -> None:
    """A model of any size that takes no room on the disk: all weights are holes."""
    placed: list[Tensor] = []
    end = 0
    for name, shape in shapes_of(tiny).items():
        placed.append(Tensor(gguf_name(name), tuple(reversed(shape)), int(F32), end))
        end += math.prod(shape) * 4
    path.write_bytes(gguf(metadata(tiny), placed))
    os.truncate(path, path.stat().st_size + end)


def safetensors(path: Path) -> dict[str, tuple[str, Any]]:
    """Type and 16-bit patterns by name, read as the format's README describes it."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    assert header.pop("__metadata__") == {"format": "pt"}
    body, end, found = data[8 + length :], 0, {}
    for name, tensor in header.items():
        begin, stop = tensor["data_offsets"]
        assert begin == end, "no holes"
        end = stop
        values = np.frombuffer(body[begin:stop], dtype=np.uint16).reshape(tensor["shape"])
        assert values.size == math.prod(tensor["shape"])
        found[name] = (tensor["dtype"], values)
    assert end == len(body)
    return found
