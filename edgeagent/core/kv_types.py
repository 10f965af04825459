"""How many bytes do the numbers in a cache take?

llama.cpp packs a quantized cache in blocks of 32 (block structs of ggml-common.h); vLLM keeps a
cache in the model's own type or in 8 bits.
"""

from __future__ import annotations

from collections.abc import Mapping

from edgeagent.errors import UsageError

LLAMACPP_BLOCKS: Mapping[str, tuple[int, int]] = {
    "f32": (4, 1),
    "f16": (2, 1),
    "bf16": (2, 1),
    "q8_0": (34, 32),
    "q5_1": (24, 32),
    "q5_0": (22, 32),
    "q4_1": (20, 32),
    "q4_0": (18, 32),
    "iq4_nl": (18, 32),
}
"""Bytes of a block and how many elements it holds, by `--cache-type-k`."""

VLLM_BYTES: Mapping[str, int] = {"fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
"""Bytes of an element, by `--kv-cache-dtype`; `auto` is the model's type."""

MODEL_BYTES: Mapping[str, int] = {
    "float32": 4,
    "float": 4,
    "float16": 2,
    "half": 2,
    "bfloat16": 2,
}
"""Bytes of an element, by a Hugging Face model's `torch_dtype`."""


def vector_bytes(elements: int, kv_type: str) -> int:
    """Bytes of one row of a llama.cpp cache. Raises UsageError for what llama.cpp refuses."""
    try:
        block_bytes, block = LLAMACPP_BLOCKS[kv_type]
    except KeyError as error:
        raise UsageError(
            f"--kv-type {kv_type} is not known: use one of {', '.join(LLAMACPP_BLOCKS)}"
        ) from error
    if elements % block:
        raise UsageError(
            f"--kv-type {kv_type} packs {block} elements and this model's heads have {elements}, "
            "which llama.cpp refuses: use f16"
        )
    return elements // block * block_bytes


def vllm_element_bytes(kv_type: str, element_type: str | None) -> int:
    """Bytes of one element of a vLLM cache. Raises UsageError for an unknown type.

    A model that names no type is taken as 16 bits, as vLLM loads it.
    """
    if kv_type == "auto":
        known = MODEL_BYTES.get(element_type or "bfloat16", 2)
        # vLLM serves a model of 32 bits in 16 unless told otherwise (`--dtype auto`).
        return min(known, 2)
    if kv_type in VLLM_BYTES:
        return VLLM_BYTES[kv_type]
    if kv_type in MODEL_BYTES:
        return MODEL_BYTES[kv_type]
    known_types = ", ".join(("auto", *VLLM_BYTES, *MODEL_BYTES))
    raise UsageError(f"--kv-type {kv_type} is not known to vLLM: use one of {known_types}")
