"""How much memory does the attention cache take, by arithmetic alone?

For attention with keys and values per head (multi-head, grouped-query, multi-query), with or
without a sliding window, as llama.cpp lays it out:

    one token in one layer    kv_heads x (key_dim + value_dim) x bytes per element
    cells of a slot           its context, padded to 256
    cells of a windowed layer min(context, window + batch), padded to 256
    split                     every slot owns its cells
    unified                   all slots share slots x context cells; a windowed layer keeps
                              min(all of them, slots x window + batch), padded to 256
    output                    one row of 4-byte logits per slot, on the host

Latent attention (MLA) and recurrent layers follow other rules: `from_gguf` says so and computes
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from edgeagent.errors import UsageError

CELL_STEP = 256
"""llama.cpp rounds the number of cells up to a multiple of this."""

BATCH_TOKENS = 512
"""llama-server's default `--ubatch-size`; a windowed layer keeps room for one more batch."""

_LOGIT_BYTES = 4

_BLOCKS: Mapping[str, tuple[int, int]] = {
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
"""Bytes of a block and how many elements it holds, by the type of the cache."""

_PERIODS: Mapping[str, int] = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2, "cohere2": 4}
"""The last layer of every so many sees everything, where the file does not say which do."""

_WINDOW_IGNORED = frozenset({"phi3"})
"""llama.cpp caches these in full although the file names a window."""


@dataclass(frozen=True)
class Attention:
    """What of a model decides the size of its attention cache."""

    layers: int
    kv_heads: int | tuple[int, ...]
    """Of every layer alike, or of each; a layer with 0 keeps no cache."""
    key_dim: int
    value_dim: int
    window: int | None = None
    """How many tokens the windowed layers look back; None when none is windowed."""
    windowed: tuple[bool, ...] = ()
    """Which layers are windowed; empty when none is."""

    def heads_of(self, layer: int) -> int:
        """Key-value heads of one layer."""
        return self.kv_heads if isinstance(self.kv_heads, int) else self.kv_heads[layer]

    def sees_all(self, layer: int) -> bool:
        """Whether a layer keeps every token."""
        return self.window is None or not self.windowed or not self.windowed[layer]


@dataclass(frozen=True)
class CacheLayout:
    """How one launch divides its cache."""

    slots: int
    context_per_slot: int
    kv_type: str = "f16"
    sharing: Literal["split", "unified"] = "split"
    batch_tokens: int = BATCH_TOKENS


@dataclass(frozen=True)
class MemoryPrediction:
    """Expected memory of a launch. What is None is not in `total_bytes`."""

    weights_bytes: int | None
    kv_bytes: int
    output_bytes: int | None
    compute_bytes: int | None
    total_bytes: int


@dataclass(frozen=True)
class GgufAttention:
    """What a GGUF header says of attention: either `attention` or the reason why not."""

    attention: Attention | None = None
    reason: str | None = None


# ------------------------------------------------------------------------------ the arithmetic


def token_bytes(attention: Attention, kv_type: str = "f16") -> int:
    """Cache of one token that every layer still sees. Raises UsageError for an unknown type."""
    return sum(_layer_bytes(attention, layer, kv_type) for layer in range(attention.layers))


def lasting_token_bytes(attention: Attention, kv_type: str = "f16") -> int:
    """Cache of one more token beyond the window: of the layers that see all tokens."""
    return sum(
        _layer_bytes(attention, layer, kv_type)
        for layer in range(attention.layers)
        if attention.sees_all(layer)
    )


def cache_bytes(attention: Attention, layout: CacheLayout) -> int:
    """What llama.cpp allocates for the attention cache of all slots."""
    streams = layout.slots if layout.sharing == "split" else 1
    full = layout.context_per_slot
    lookers = 1
    if layout.sharing == "unified":
        full *= layout.slots
        lookers = layout.slots
    full = _padded(full)
    narrow = _padded(min(full, (attention.window or 0) * lookers + layout.batch_tokens))
    return streams * sum(
        _layer_bytes(attention, layer, layout.kv_type)
        * (full if attention.sees_all(layer) else narrow)
        for layer in range(attention.layers)
    )


def predict_llamacpp(
    attention: Attention,
    layout: CacheLayout,
    weights_bytes: int | None,
    vocabulary: int | None,
    compute_bytes: int | None = None,
) -> MemoryPrediction:
    """Expected memory of llama-server; compute buffers are known from its log alone."""
    kv_bytes = cache_bytes(attention, layout)
    output_bytes = None if vocabulary is None else _LOGIT_BYTES * vocabulary * layout.slots
    return MemoryPrediction(
        weights_bytes=weights_bytes,
        kv_bytes=kv_bytes,
        output_bytes=output_bytes,
        compute_bytes=compute_bytes,
        total_bytes=kv_bytes + (weights_bytes or 0) + (output_bytes or 0) + (compute_bytes or 0),
    )


def _layer_bytes(attention: Attention, layer: int, kv_type: str) -> int:
    heads = attention.heads_of(layer)
    return heads * (
        _vector_bytes(attention.key_dim, kv_type) + _vector_bytes(attention.value_dim, kv_type)
    )


def _vector_bytes(elements: int, kv_type: str) -> int:
    try:
        block_bytes, block = _BLOCKS[kv_type]
    except KeyError as error:
        raise UsageError(
            f"--kv-type {kv_type} is not known: use one of {', '.join(_BLOCKS)}"
        ) from error
    if elements % block:
        raise UsageError(
            f"--kv-type {kv_type} packs {block} elements and this model's heads have {elements}, "
            "which llama.cpp refuses: use f16"
        )
    return elements // block * block_bytes


def _padded(cells: int) -> int:
    return -(-cells // CELL_STEP) * CELL_STEP


# --------------------------------------------------------------------------- from a GGUF header


def from_gguf(metadata: Mapping[str, object]) -> GgufAttention:
    """Attention as a GGUF header describes it, or why it cannot be computed from it."""
    header = _Header(metadata)
    layers, heads = header.number("block_count"), header.numbers("attention.head_count")
    if layers is None or not heads:
        return GgufAttention(reason="the model's header names no layers or no attention heads")
    reason = header.other_rules()
    if reason is not None:
        return GgufAttention(reason=reason)
    default_dim = (header.number("embedding_length") or 0) // max(*heads, 1)
    key_dim = header.number("attention.key_length") or default_dim
    value_dim = header.number("attention.value_length") or default_dim
    kv_heads = header.numbers("attention.head_count_kv") or heads
    if len(kv_heads) not in (1, layers) or key_dim <= 0 or value_dim <= 0:
        return GgufAttention(reason="the model's header contradicts itself about attention heads")
    window = header.window()
    windowed = header.windowed(layers) if window else ()
    if windowed is None:
        return GgufAttention(reason="the model's header does not say which layers are windowed")
    return GgufAttention(
        Attention(
            layers=layers,
            kv_heads=kv_heads[0] if len(kv_heads) == 1 else kv_heads,
            key_dim=key_dim,
            value_dim=value_dim,
            window=window,
            windowed=windowed,
        )
    )


class _Header:
    """Typed reading of one architecture's keys."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self._metadata = metadata
        self._architecture = str(metadata.get("general.architecture", ""))

    def _get(self, key: str) -> object:
        return self._metadata.get(f"{self._architecture}.{key}")

    def number(self, key: str) -> int | None:
        value = self._get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def numbers(self, key: str) -> tuple[int, ...]:
        """One number or one per layer; empty when the key is missing or something else."""
        value = self._get(key)
        items = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
        kept = tuple(i for i in items if isinstance(i, int) and not isinstance(i, bool) and i >= 0)
        return kept if len(kept) == len(items) else ()

    def other_rules(self) -> str | None:
        """Why the arithmetic of this module does not hold for the model, if it does not."""
        rules = {
            "attention.kv_lora_rank": "it keeps latent attention (MLA)",
            "ssm.state_size": "it has recurrent layers",
            "shortconv.l_cache": "it has recurrent layers",
            "wkv.head_size": "it is recurrent",
            "attention.shared_kv_layers": "some of its layers share their cache",
            "attention.key_length_swa": "its windowed layers have heads of another size",
            "nextn_predict_layers": "some of its layers are for prediction only",
        }
        for key, why in rules.items():
            if self._get(key):
                return f"the cache of this model cannot be computed yet: {why}"
        if self._architecture in ("gemma3n", "llama4"):
            return f"the cache of {self._architecture} models cannot be computed yet"
        return None

    def window(self) -> int | None:
        if self._architecture in _WINDOW_IGNORED:
            return None
        return self.number("attention.sliding_window") or None

    def windowed(self, layers: int) -> tuple[bool, ...] | None:
        """Which layers are windowed; None when it cannot be known."""
        pattern = self._get("attention.sliding_window_pattern")
        if isinstance(pattern, Sequence) and not isinstance(pattern, str):
            return tuple(bool(item) for item in pattern) if len(pattern) == layers else None
        period = self.number("attention.sliding_window_pattern")
        if period is None:
            period = _PERIODS.get(self._architecture)
        if period is None:
            return None
        # The last of each period sees all; a period of 0 means that every layer is windowed.
        return tuple(not period or layer % period < period - 1 for layer in range(layers))
