"""How much memory does a llama.cpp launch take, by arithmetic alone?

    one token in one layer    kv_heads x (key_dim + value_dim), each packed by its cache type
    cells of a slot           its context, padded to 256
    cells of a windowed layer min(context, window + batch), padded to 256
    split                     every slot owns its cells
    unified                   all slots share slots x context cells; a windowed layer keeps
                              min(all of them, slots x window + batch), padded to 256
    state                     recurrent layers, 4 bytes an element, once for each slot
    output                    one row of 4-byte logits per slot and drafted token, on the host
    metadata                  48 bytes for each cell, on the host
    draft model               the same cells again in its own sizes, and its weights

Sources, in llama.cpp's src/: llama-kv-cache.cpp (rows and streams), llama-kv-cache-iswa.cpp
(windows), llama-context.cpp (padding, output), llama-memory-recurrent.cpp (state),
llama-kv-cells.h (metadata), and common/speculative.cpp (draft). Compute buffers follow no closed
formula. How a model's description becomes a `CacheShape`: core/kv_gguf.py and core/kv_config.py.
vLLM's rules: core/kv_vllm.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from edgeagent.core.kv_model import CacheShape, Layer
from edgeagent.core.kv_types import vector_bytes

CELL_STEP = 256
"""llama.cpp rounds the number of cells up to a multiple of this (llama-context.cpp)."""

BATCH_TOKENS = 512
"""llama-server's default `--ubatch-size`; a windowed layer keeps room for one more batch."""

MAX_SLOTS = 256
"""llama.cpp's LLAMA_MAX_SEQ."""

DRAFTED_TOKENS = 3
"""llama-server's default `--spec-draft-n-max`."""

_LOGIT_BYTES = 4
_STATE_BYTES = 4
"""A recurrent state is kept in F32 whatever the cache's type (llama-model.cpp, create_memory)."""

CELL_METADATA_BYTES = 48
"""Of a cell, whatever the model: position 4, extension 8, shift 4, set of 256 sequences 32.

Read in llama-kv-cells.h, not seen in any log: it is kept apart from what the engine reports.
"""

Sharing = Literal["split", "unified"]
ComputeSource = Literal["engine", "measured", "given"]


@dataclass(frozen=True)
class CacheLayout:
    """How one launch divides its cache."""

    slots: int
    context_per_slot: int
    kv_type: str = "f16"
    sharing: Sharing = "split"
    batch_tokens: int = BATCH_TOKENS
    flash_attention: Literal["on", "off"] = "on"
    """Off, values are stored transposed and padded to the widest layer."""
    window_cache: Literal["windowed", "full"] = "windowed"
    """`full` is llama-server's `--swa-full`."""


@dataclass(frozen=True)
class ModelMemory:
    """A model as the prediction needs it."""

    shape: CacheShape
    weights_bytes: int | None = None
    vocabulary: int | None = None
    compute_bytes: int | None = None
    """As the engine projected it or as it was measured; there is no formula."""
    compute_source: ComputeSource | None = None
    draft: ModelMemory | None = None
    """The model that drafts tokens for this one."""


@dataclass(frozen=True)
class MemoryPrediction:
    """Expected memory of a launch. What is None is not in `total_bytes`."""

    weights_bytes: int | None
    kv_bytes: int
    """The attention cache alone: what the engine reports as its KV buffers."""
    state_bytes: int
    """Of recurrent layers: what the engine reports as its RS buffers."""
    output_bytes: int | None
    metadata_bytes: int
    draft_bytes: int
    """All of the draft model, its weights included; 0 without one."""
    compute_bytes: int | None
    total_bytes: int
    bytes_per_slot: int
    """What one more slot of the same context would add."""


# ------------------------------------------------------------------------------ the arithmetic


def token_bytes(shape: CacheShape, kv_type: str = "f16") -> int:
    """Cache of one token that every layer still sees. Raises UsageError for an unknown type."""
    return sum(_layer_bytes(layer, kv_type) for layer in shape.layers)


def lasting_token_bytes(shape: CacheShape, kv_type: str = "f16") -> int:
    """Cache of one more token beyond the window: of the layers that see all tokens."""
    return sum(_layer_bytes(layer, kv_type) for layer in shape.layers if layer.window is None)


def cache_bytes(shape: CacheShape, layout: CacheLayout) -> int:
    """What llama.cpp allocates for the attention cache of all slots."""
    streams = _streams(layout)
    full = _full_cells(layout)
    widest = max((layer.value_row for layer in shape.layers), default=0)
    if layout.flash_attention == "on" or not widest:
        return streams * sum(
            _layer_bytes(layer, layout.kv_type) * _layer_cells(layer, layout, full)
            for layer in shape.layers
        )
    # Latent attention has no values to pad.
    return streams * sum(
        (
            vector_bytes(layer.key_row, layout.kv_type)
            + (vector_bytes(widest, layout.kv_type) if layer.value_dim else 0)
        )
        * _layer_cells(layer, layout, full)
        for layer in shape.layers
    )


def state_bytes(shape: CacheShape, slots: int) -> int:
    """What llama.cpp allocates for the state of recurrent layers; the same split or unified."""
    return 0 if shape.state is None else _STATE_BYTES * shape.state.elements * slots


def cells(shape: CacheShape, layout: CacheLayout) -> int:
    """How many cells llama.cpp keeps a record of: those of the full and of the windowed cache."""
    if not shape.layers:
        return 0
    full = _full_cells(layout)
    windows = [layer for layer in shape.layers if layer.window is not None]
    narrow = _layer_cells(windows[0], layout, full) if windows else 0
    return _streams(layout) * (full + narrow)


def predict_llamacpp(model: ModelMemory, layout: CacheLayout) -> MemoryPrediction:
    """Expected memory of llama-server. Raises UsageError for a cache type that it refuses."""
    now = _parts(model, layout)
    more = _parts(model, replace(layout, slots=layout.slots + 1))
    return replace(now, bytes_per_slot=more.total_bytes - now.total_bytes)


def _parts(model: ModelMemory, layout: CacheLayout) -> MemoryPrediction:
    kv_bytes = cache_bytes(model.shape, layout)
    state = state_bytes(model.shape, layout.slots)
    metadata = CELL_METADATA_BYTES * cells(model.shape, layout)
    draft_bytes, rows = 0, 1
    if model.draft is not None:
        # The draft's context has the target's cells, in the default type (`-ctkd`).
        draft_bytes = _parts(model.draft, replace(layout, kv_type="f16")).total_bytes
        rows += DRAFTED_TOKENS
    output = None
    if model.vocabulary is not None:
        output = _LOGIT_BYTES * model.vocabulary * layout.slots * rows
    known = (model.weights_bytes, kv_bytes, state, output, metadata, draft_bytes)
    return MemoryPrediction(
        weights_bytes=model.weights_bytes,
        kv_bytes=kv_bytes,
        state_bytes=state,
        output_bytes=output,
        metadata_bytes=metadata,
        draft_bytes=draft_bytes,
        compute_bytes=model.compute_bytes,
        total_bytes=sum(part or 0 for part in (*known, model.compute_bytes)),
        bytes_per_slot=0,
    )


def _layer_bytes(layer: Layer, kv_type: str) -> int:
    return layer.kv_heads * (
        vector_bytes(layer.key_dim, kv_type) + vector_bytes(layer.value_dim, kv_type)
    )


def _streams(layout: CacheLayout) -> int:
    return layout.slots if layout.sharing == "split" else 1


def _lookers(layout: CacheLayout) -> int:
    return 1 if layout.sharing == "split" else layout.slots


def _full_cells(layout: CacheLayout) -> int:
    return padded(layout.context_per_slot * _lookers(layout))


def _layer_cells(layer: Layer, layout: CacheLayout, full: int) -> int:
    if layer.window is None or layout.window_cache == "full":
        return full
    return padded(min(full, layer.window * _lookers(layout) + layout.batch_tokens))


def padded(tokens: int) -> int:
    """Tokens rounded up to whole steps of cells."""
    return -(-tokens // CELL_STEP) * CELL_STEP
