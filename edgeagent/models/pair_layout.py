"""Which tensor of a GGUF file is which of a Hugging Face folder, and what does config.json say?

Known are Llama, Qwen 2 and Qwen 3. What is not understood in full is refused by name: a weight or
a setting left out would give a model that runs and answers, and is another one.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from edgeagent.errors import UsageError

_MAX_LAYERS = 1 << 12
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3_CONTEXT = 8192
_ROPE_FREQS = "rope_freqs.weight"

_Bias = Literal["none", "qkv", "all"]
"""Which of the attention's projections have one."""

_UNDERSTOOD = {
    "block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size",
    "attention.head_count", "attention.head_count_kv", "attention.key_length",
    "attention.value_length", "attention.layer_norm_rms_epsilon", "rope.dimension_count",
    "rope.freq_base", "rope.scaling.type", "rope.scaling.factor",
    "rope.scaling.original_context_length", "rope.scaling.finetuned",
}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where a tensor goes."""

    name: str
    """Hugging Face name."""
    shape: tuple[int, ...]
    """Rows first, as Hugging Face has it."""
    head_rows: int | None = None
    """Rows of one head when llama.cpp keeps them in another order, else None."""


@dataclass(frozen=True)
class Layout:
    """A model in both forms."""

    config: Mapping[str, object]
    """What config.json says of the network; of tokens and types it says nothing yet."""
    places: Mapping[str, Place]
    """By the tensor's name in the GGUF file."""


@dataclass(frozen=True)
class _Family:
    model_type: str
    class_name: str
    permuted: bool
    """Whether llama.cpp keeps the rows of queries and keys interleaved for its kind of rotation."""
    attention_bias: bool
    head_norms: bool


_FAMILIES = {
    "llama": _Family("llama", "LlamaForCausalLM", True, False, False),
    "qwen2": _Family("qwen2", "Qwen2ForCausalLM", False, True, False),
    "qwen3": _Family("qwen3", "Qwen3ForCausalLM", False, False, True),
}


@dataclass(frozen=True)
class _Sizes:
    width: int
    feed: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    words: int


def layout(
    metadata: Mapping[str, object],
    shapes: Mapping[str, tuple[int, ...]],
    rope_freqs: tuple[float, ...] | None = None,
) -> Layout:
    """The model's layout; `shapes` as the GGUF has them, fastest dimension first.

    `rope_freqs` are the values of the tensor of that name. Raises UsageError for what is not
    understood.
    """
    architecture = metadata.get("general.architecture")
    family = _FAMILIES.get(architecture) if isinstance(architecture, str) else None
    if family is None:
        named, known = str(architecture)[:40], ", ".join(_FAMILIES)
        raise UsageError(
            f"no pair can be made of the architecture {named!r}, known are {known}: "
            "give a model of one of them"
        )
    keys = _Keys(metadata, f"{architecture}.")
    _only_understood(keys)
    sizes = _sizes(keys, shapes)
    bias = _bias(family, shapes)
    places = _places(family, sizes, bias)
    if "output.weight" in shapes:  # else the embeddings serve twice
        places["output.weight"] = Place("lm_head.weight", (sizes.words, sizes.width))
    _check(places, shapes)
    config: dict[str, object] = {
        "architectures": [family.class_name],
        "model_type": family.model_type,
        "hidden_act": "silu",
        "hidden_size": sizes.width,
        "intermediate_size": sizes.feed,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head,
        "vocab_size": sizes.words,
        "max_position_embeddings": keys.count("context_length"),
        "rms_norm_eps": keys.real("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in shapes,
        "attention_bias": bias == "all" or family.attention_bias,
        **_rope(keys, sizes, rope_freqs),
    }
    return Layout(config, places)


class _Keys:
    """The settings of one architecture."""

    def __init__(self, metadata: Mapping[str, object], prefix: str) -> None:
        self._prefix = prefix
        self.values = {
            key.removeprefix(prefix): value
            for key, value in metadata.items()
            if key.startswith(prefix)
        }

    def count(self, name: str, default: int | None = None) -> int:
        value = self.values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
            raise self.wrong(name)
        return value

    def real(self, name: str, default: float | None = None) -> float:
        value = self.values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.wrong(name)
        if not math.isfinite(value) or value <= 0:
            raise self.wrong(name)
        return _short(float(value))

    def wrong(self, name: str) -> UsageError:
        # Both come from the file: shown short, and on one line.
        key, value = (self._prefix + name)[:60], str(self.values.get(name))[:40]
        return UsageError(
            f"the GGUF file's {key!r} is {value!r}, of which no pair can be made: "
            "give another model"
        )


def _short(value: float) -> float:
    """The shortest decimal that is the same 32-bit number: 1e-05, not 9.999999747378752e-06."""
    try:
        wanted = struct.pack("<f", value)
    except OverflowError:
        return value
    for digits in range(1, 9):
        near = float(f"{value:.{digits}g}")
        if struct.pack("<f", near) == wanted:
            return near
    return value


def _only_understood(keys: _Keys) -> None:
    idle = (0, 0.0, False)
    strange = sorted(
        name for name, value in keys.values.items() if name not in _UNDERSTOOD and value not in idle
    )
    if strange:
        raise keys.wrong(strange[0])


def _sizes(keys: _Keys, shapes: Mapping[str, tuple[int, ...]]) -> _Sizes:
    width = keys.count("embedding_length")
    heads = keys.count("attention.head_count")
    head = keys.count("attention.key_length", width // heads)
    kv_heads = keys.count("attention.head_count_kv", heads)
    layers = keys.count("block_count")
    if keys.count("attention.value_length", head) != head:
        raise keys.wrong("attention.value_length")
    if keys.count("rope.dimension_count", head) != head or head % 2:
        raise keys.wrong("rope.dimension_count")
    if heads % kv_heads:
        raise keys.wrong("attention.head_count_kv")
    if layers > _MAX_LAYERS:
        raise keys.wrong("block_count")
    words = shapes.get("token_embd.weight", (1, 1))[-1]
    if not 0 < words < 1 << 31:
        raise keys.wrong("vocab_size")
    return _Sizes(width, keys.count("feed_forward_length"), layers, heads, kv_heads, head, words)


def _bias(family: _Family, shapes: Mapping[str, tuple[int, ...]]) -> _Bias:
    if family.attention_bias:
        return "qkv"
    return "all" if "blk.0.attn_output.bias" in shapes else "none"


def _places(family: _Family, sizes: _Sizes, bias: _Bias) -> dict[str, Place]:
    places = {
        "token_embd.weight": Place("model.embed_tokens.weight", (sizes.words, sizes.width)),
        "output_norm.weight": Place("model.norm.weight", (sizes.width,)),
    }
    for layer in range(sizes.layers):
        for name, place in _block(family, sizes, bias).items():
            places[f"blk.{layer}.{name}"] = Place(
                f"model.layers.{layer}.{place.name}", place.shape, place.head_rows
            )
    return places


def _block(family: _Family, sizes: _Sizes, bias: _Bias) -> dict[str, Place]:
    queries, keys = sizes.heads * sizes.head, sizes.kv_heads * sizes.head
    rows = sizes.head if family.permuted else None
    width, feed = sizes.width, sizes.feed
    block = {
        "attn_norm.weight": Place("input_layernorm.weight", (width,)),
        "attn_q.weight": Place("self_attn.q_proj.weight", (queries, width), rows),
        "attn_k.weight": Place("self_attn.k_proj.weight", (keys, width), rows),
        "attn_v.weight": Place("self_attn.v_proj.weight", (keys, width)),
        "attn_output.weight": Place("self_attn.o_proj.weight", (width, queries)),
        "ffn_norm.weight": Place("post_attention_layernorm.weight", (width,)),
        "ffn_gate.weight": Place("mlp.gate_proj.weight", (feed, width)),
        "ffn_up.weight": Place("mlp.up_proj.weight", (feed, width)),
        "ffn_down.weight": Place("mlp.down_proj.weight", (width, feed)),
    }
    if bias != "none":
        block |= {
            "attn_q.bias": Place("self_attn.q_proj.bias", (queries,), rows),
            "attn_k.bias": Place("self_attn.k_proj.bias", (keys,), rows),
            "attn_v.bias": Place("self_attn.v_proj.bias", (keys,)),
        }
    if bias == "all":
        block["attn_output.bias"] = Place("self_attn.o_proj.bias", (width,))
    if family.head_norms:
        block |= {
            "attn_q_norm.weight": Place("self_attn.q_norm.weight", (sizes.head,)),
            "attn_k_norm.weight": Place("self_attn.k_norm.weight", (sizes.head,)),
        }
    return block


def _check(places: Mapping[str, Place], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Exactly the tensors that are wanted, each of the shape that is wanted."""
    for name in shapes:
        if name not in places and name != _ROPE_FREQS:
            raise UsageError(
                f"the GGUF file holds the tensor {name[:60]!r}, which no model of its architecture "
                "needs that a pair can be made of: give another model"
            )
    for name, place in places.items():
        found = shapes.get(name)
        if found is None:
            raise UsageError(f"the GGUF file lacks the tensor {name!r}: fetch it again")
        if tuple(reversed(found)) != place.shape:
            raise UsageError(
                f"the tensor {name!r} of the GGUF file has the shape {tuple(reversed(found))} "
                f"where its settings want {place.shape}: fetch it again"
            )


def _rope(keys: _Keys, sizes: _Sizes, rope_freqs: tuple[float, ...] | None) -> Mapping[str, object]:
    base = keys.real("rope.freq_base", 10000.0)
    kind = keys.values.get("rope.scaling.type", "none")
    scaling: Mapping[str, object] | None = None
    if kind == "linear":
        scaling = {"rope_type": "linear", "factor": keys.real("rope.scaling.factor")}
    elif kind != "none":
        raise keys.wrong("rope.scaling.type")
    if rope_freqs is not None:
        if scaling is not None:
            raise keys.wrong("rope.scaling.type")
        scaling = _llama3(rope_freqs, base, sizes.head)
    return {"rope_theta": base, "rope_scaling": scaling}


def _llama3(factors: tuple[float, ...], base: float, head: int) -> Mapping[str, object]:
    """The settings of Llama 3's scaling that give these factors.

    GGUF keeps the factors alone; the settings are found by trying those that were ever published
    and are proved by computing the factors from them again.
    """
    found = {
        "rope_type": "llama3",
        "factor": max(factors, default=1.0),
        **_LLAMA3,
        "original_max_position_embeddings": _LLAMA3_CONTEXT,
    }
    wanted = llama3_factors(max(factors, default=1.0), base, head)
    if len(wanted) != len(factors) or any(
        not math.isclose(one, other, rel_tol=1e-5)
        for one, other in zip(wanted, factors, strict=True)
    ):
        raise UsageError(
            "the GGUF file scales rotary positions by factors that are not those of Llama 3: "
            "give another model"
        )
    return found


def llama3_factors(factor: float, base: float, head: int) -> tuple[float, ...]:
    """What each frequency of a head is divided by (the rule of Llama 3.1 and 3.2)."""
    low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    factors = []
    for pair in range(0, head, 2):
        turns = _LLAMA3_CONTEXT / (2 * math.pi * base ** (pair / head))
        if turns > high:
            factors.append(1.0)
        elif turns < low:
            factors.append(factor)
        else:
            smooth = (turns - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return tuple(factors)
