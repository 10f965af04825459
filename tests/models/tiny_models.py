"""Tiny models of other kinds, whole enough for the real llama-server to load: all weights are 0."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gguf_maker import Tensor, Value, gguf

WIDTH, FEED, WORDS = 64, 64, 259
LOOK_BACK = 33
"""Longer than any real one, so that the state shows in a log of two decimals."""

F32 = 0
Shapes = Mapping[str, tuple[int, ...]]


def _whole(architecture: str, keys: Mapping[str, Value], shapes: Shapes) -> bytes:
    """A file with a tokenizer of single bytes, these keys, and zeros of these shapes."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    metadata = {
        "general.architecture": Value("string", architecture),
        "tokenizer.ggml.model": Value("string", "llama"),
        "tokenizer.ggml.tokens": Value("string", pieces),
        "tokenizer.ggml.scores": Value("f32", [0.0] * WORDS),
        "tokenizer.ggml.token_type": Value("i32", [2, 3, 3] + [6] * 256),
        "tokenizer.ggml.bos_token_id": Value("u32", 1),
        "tokenizer.ggml.eos_token_id": Value("u32", 2),
        **{f"{architecture}.{key}": value for key, value in _common().items()},
        **{f"{architecture}.{key}": value for key, value in keys.items()},
    }
    tensors, end = [], 0
    for name, shape in {"token_embd.weight": (WIDTH, WORDS), **shapes}.items():
        tensors.append(Tensor(name, shape, F32, end))
        end += math.ceil(math.prod(shape) * 4 / 32) * 32
    return gguf(metadata, tensors, bytes(end))


def _common() -> Mapping[str, Value]:
    return {
        "context_length": Value("u32", 8192),
        "embedding_length": Value("u32", WIDTH),
        "feed_forward_length": Value("u32", FEED),
        "attention.layer_norm_rms_epsilon": Value("f32", 1e-5),
        "rope.freq_base": Value("f32", 10000.0),
    }


def _network(layer: int) -> Shapes:
    return {
        f"blk.{layer}.attn_norm.weight": (WIDTH,),
        f"blk.{layer}.ffn_norm.weight": (WIDTH,),
        f"blk.{layer}.ffn_gate.weight": (WIDTH, FEED),
        f"blk.{layer}.ffn_down.weight": (FEED, WIDTH),
        f"blk.{layer}.ffn_up.weight": (WIDTH, FEED),
    }


def hybrid() -> bytes:
    """LFM2: five layers with a short convolution and one with attention of 2 heads."""
    kv_heads = [0, 0, 2, 0, 0, 0]
    shapes: dict[str, tuple[int, ...]] = {"token_embd_norm.weight": (WIDTH,)}
    for layer, heads in enumerate(kv_heads):
        shapes.update(_network(layer))
        name = f"blk.{layer}"
        if heads:
            shapes |= {
                f"{name}.attn_q_norm.weight": (32,),
                f"{name}.attn_k_norm.weight": (32,),
                f"{name}.attn_q.weight": (WIDTH, WIDTH),
                f"{name}.attn_k.weight": (WIDTH, 32 * heads),
                f"{name}.attn_v.weight": (WIDTH, 32 * heads),
                f"{name}.attn_output.weight": (WIDTH, WIDTH),
            }
        else:
            shapes |= {
                f"{name}.shortconv.conv.weight": (LOOK_BACK, WIDTH),
                f"{name}.shortconv.in_proj.weight": (WIDTH, 3 * WIDTH),
                f"{name}.shortconv.out_proj.weight": (WIDTH, WIDTH),
            }
    keys = {
        "block_count": Value("u32", 6),
        "attention.head_count": Value("u32", 2),
        "attention.head_count_kv": Value("i32", kv_heads),
        "shortconv.l_cache": Value("u32", LOOK_BACK),
        "vocab_size": Value("u32", WORDS),
    }
    return _whole("lfm2", keys, shapes)


def recurrent() -> bytes:
    """Mamba: four layers and no attention."""
    inner, state, rank, kernel = 2 * WIDTH, 16, 4, 4
    shapes: dict[str, tuple[int, ...]] = {"output_norm.weight": (WIDTH,)}
    for layer in range(4):
        name = f"blk.{layer}"
        shapes |= {
            f"{name}.attn_norm.weight": (WIDTH,),
            f"{name}.ssm_in.weight": (WIDTH, 2 * inner),
            f"{name}.ssm_conv1d.weight": (kernel, inner),
            f"{name}.ssm_conv1d.bias": (inner,),
            f"{name}.ssm_x.weight": (inner, rank + 2 * state),
            f"{name}.ssm_dt.weight": (rank, inner),
            f"{name}.ssm_dt.bias": (inner,),
            f"{name}.ssm_a": (state, inner),
            f"{name}.ssm_d": (inner,),
            f"{name}.ssm_out.weight": (inner, WIDTH),
        }
    keys = {
        "block_count": Value("u32", 4),
        "attention.head_count": Value("u32", 0),
        "ssm.conv_kernel": Value("u32", kernel),
        "ssm.inner_size": Value("u32", inner),
        "ssm.state_size": Value("u32", state),
        "ssm.time_step_rank": Value("u32", rank),
    }
    return _whole("mamba", keys, shapes)


def latent() -> bytes:
    """DeepSeek 2: three layers that keep one row of 64 + 32 for keys and values together."""
    heads, rank, rope, nope, value = 4, 64, 32, 32, 32
    shapes: dict[str, tuple[int, ...]] = {"output_norm.weight": (WIDTH,)}
    for layer in range(3):
        shapes.update(_network(layer))
        name = f"blk.{layer}"
        shapes |= {
            f"{name}.attn_q_a_norm.weight": (32,),
            f"{name}.attn_q_a.weight": (WIDTH, 32),
            f"{name}.attn_q_b.weight": (32, heads * (nope + rope)),
            f"{name}.attn_kv_a_norm.weight": (rank,),
            f"{name}.attn_kv_a_mqa.weight": (WIDTH, rank + rope),
            f"{name}.attn_k_b.weight": (nope, rank, heads),
            f"{name}.attn_v_b.weight": (rank, value, heads),
            f"{name}.attn_output.weight": (heads * value, WIDTH),
        }
    keys = {
        "block_count": Value("u32", 3),
        "attention.head_count": Value("u32", heads),
        "attention.head_count_kv": Value("u32", 1),
        "attention.key_length": Value("u32", rank + rope),
        "attention.value_length": Value("u32", rank),
        "attention.key_length_mla": Value("u32", nope + rope),
        "attention.value_length_mla": Value("u32", value),
        "attention.kv_lora_rank": Value("u32", rank),
        "attention.q_lora_rank": Value("u32", 32),
        "rope.dimension_count": Value("u32", rope),
        "leading_dense_block_count": Value("u32", 3),
        "expert_feed_forward_length": Value("u32", FEED),
        "expert_shared_count": Value("u32", 1),
        "expert_weights_scale": Value("f32", 1.0),
        "vocab_size": Value("u32", WORDS),
    }
    return _whole("deepseek2", keys, shapes)


KINDS: Sequence[str] = ("hybrid", "recurrent", "latent")


def tiny(kind: str) -> bytes:
    """The file of a kind."""
    return {"hybrid": hybrid, "recurrent": recurrent, "latent": latent}[kind]()
