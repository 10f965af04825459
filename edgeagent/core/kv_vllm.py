"""How much of vLLM's pool does one more sequence take, by arithmetic alone?

    page               block x kv_heads x (key_dim + value_dim) x bytes, of one layer
    group              layers of one kind; all groups have as many, the last is filled up
    block of the pool  one page in each layer of a group; every group draws from the one pool
    a sequence         ceil(length / block) blocks in each group that sees all, at most
                       ceil(min(window - 1 + tokens in flight, length) / block) + 1 in a
                       windowed one, one in a recurrent one
    null block         one block of the pool holds nothing

The pool is taken at the start, so process memory does not follow sequences (facts of vLLM's
vllm/v1/core/kv_cache_utils.py, vllm/v1/kv_cache_interface.py, and for recurrent layers
vllm/platforms/interface.py).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from edgeagent.core.kv import MemoryPrediction, ModelMemory
from edgeagent.core.kv_model import CacheShape, Layer, State
from edgeagent.core.kv_types import vllm_element_bytes

GPU_BLOCK = 16
CPU_BLOCK = 128
IN_FLIGHT_TOKENS = 2048
"""Default `--max-num-batched-tokens` below 70 GiB of device memory."""

_ALIGNMENT = 16
"""Blocks of a hybrid are multiples of what the attention kernels take."""

_FEW = 1.5
"""A kind with fewer than this many times the layers of the other sets the size of groups."""

_STATE_BYTES = 4
"""A recurrent memory in float32, which CPUs and most models' configurations ask for."""


@dataclass(frozen=True)
class PoolLayout:
    """How vLLM is asked to divide its pool."""

    sequences: int
    length: int
    """Tokens of each sequence (`--max-model-len`)."""
    kv_type: str = "auto"
    element_type: str | None = None
    """The model's own element type, as its configuration names it."""
    block_tokens: int = GPU_BLOCK
    in_flight_tokens: int = IN_FLIGHT_TOKENS


@dataclass(frozen=True)
class Pool:
    """What the rules make of a model and a layout."""

    block_tokens: int
    """As asked, or raised where a recurrent state needs a larger page."""
    bytes_per_block: int
    attention_blocks: int
    """Of one sequence, in all groups that have attention."""
    state_blocks: int
    """Of one sequence, in all recurrent groups."""

    @property
    def sequence_blocks(self) -> int:
        """Blocks of one sequence."""
        return self.attention_blocks + self.state_blocks

    def blocks(self, sequences: int) -> int:
        """Blocks for so many sequences, the null block included."""
        return sequences * self.sequence_blocks + 1

    def blocks_in(self, pool_bytes: int) -> int:
        """How many blocks a pool of so many bytes has (`--kv-cache-memory-bytes`)."""
        return pool_bytes // self.bytes_per_block


@dataclass(frozen=True)
class PoolFound:
    """The pool, or the reason why the rules do not tell."""

    pool: Pool | None = None
    reason: str | None = None


def pool(shape: CacheShape, layout: PoolLayout) -> PoolFound:
    """The blocks of one sequence. Raises UsageError for an unknown type of cache."""
    element = vllm_element_bytes(layout.kv_type, layout.element_type)
    rows = {_row_bytes(layer, element) for layer in shape.layers}
    if len(rows) > 1:
        return PoolFound(
            reason="its layers differ in size, and vLLM pads their pages by its own rules"
        )
    if not rows:
        return PoolFound(reason="it has no attention, and vLLM's page is then its state")
    row = rows.pop()
    block = layout.block_tokens
    if shape.state is not None:
        state_page = _state_page(shape.state, layout.element_type)
        block = max(block, _ALIGNMENT * _steps(state_page, _ALIGNMENT * row))
    return PoolFound(_divided(shape, layout, block, block * row))


def predict_vllm(model: ModelMemory, found: Pool, layout: PoolLayout) -> MemoryPrediction:
    """Expected memory of vLLM with a pool that just holds the sequences."""
    blocks = found.blocks(layout.sequences)
    state_blocks = layout.sequences * found.state_blocks
    kv_bytes = (blocks - state_blocks) * found.bytes_per_block
    state_bytes = state_blocks * found.bytes_per_block
    known = (model.weights_bytes, kv_bytes, state_bytes, model.compute_bytes)
    return MemoryPrediction(
        weights_bytes=model.weights_bytes,
        kv_bytes=kv_bytes,
        state_bytes=state_bytes,
        output_bytes=None,
        metadata_bytes=0,
        draft_bytes=0,
        compute_bytes=model.compute_bytes,
        total_bytes=sum(part or 0 for part in known),
        bytes_per_slot=found.sequence_blocks * found.bytes_per_block,
    )


def token_bytes(shape: CacheShape, kv_type: str, element_type: str | None) -> int:
    """Cache of one token in all layers. Raises UsageError for an unknown type."""
    element = vllm_element_bytes(kv_type, element_type)
    return sum(_row_bytes(layer, element) for layer in shape.layers)


def _divided(shape: CacheShape, layout: PoolLayout, block: int, page: int) -> Pool:
    kinds: Counter[int | None] = Counter(layer.window for layer in shape.layers)
    counts = list(kinds.values())
    if shape.state is not None:
        counts.append(shape.state.layers)
    fewest, most = min(counts), max(counts)
    size = most if most < _FEW * fewest else fewest
    placed = replace(layout, block_tokens=block)
    return Pool(
        block_tokens=block,
        bytes_per_block=size * page,
        attention_blocks=sum(
            _steps(layers, size) * _blocks_of(window, placed) for window, layers in kinds.items()
        ),
        state_blocks=_steps(shape.state.layers, size) if shape.state else 0,
    )


def _blocks_of(window: int | None, layout: PoolLayout) -> int:
    """Blocks of one sequence in one group."""
    if window is None:
        return _steps(layout.length, layout.block_tokens)
    # Admission's bound; what is behind the window is given back while the sequence runs.
    seen = min(window - 1 + layout.in_flight_tokens, layout.length)
    return _steps(seen, layout.block_tokens) + 1


def _row_bytes(layer: Layer, element: int) -> int:
    return (layer.key_row + layer.value_row) * element


def _state_page(state: State, element_type: str | None) -> int:
    shift = vllm_element_bytes("auto", element_type) * state.shift_elements
    return shift + _STATE_BYTES * state.memory_elements


def _steps(amount: int, step: int) -> int:
    return -(-amount // step)
