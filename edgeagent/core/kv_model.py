"""What of a model decides how much memory one more request takes?

The layers that keep keys and values of every token, each with its own sizes, and the state that
recurrent layers keep once for each request, however long it is.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_LAYERS = 1024
"""Twice what llama.cpp takes (LLAMA_MAX_LAYERS); more is a damaged file."""


@dataclass(frozen=True)
class Layer:
    """What one layer that owns a cache keeps of each token."""

    kv_heads: int
    key_dim: int
    value_dim: int
    """0 for latent attention (MLA), which keeps one row and no values."""
    window: int | None = None
    """How many tokens it looks back; None when it sees all."""

    @property
    def key_row(self) -> int:
        """Elements of a token's keys."""
        return self.kv_heads * self.key_dim

    @property
    def value_row(self) -> int:
        """Elements of a token's values."""
        return self.kv_heads * self.value_dim


@dataclass(frozen=True)
class State:
    """What recurrent layers keep for each request, in elements of one layer."""

    layers: int
    shift_elements: int
    """The last tokens that a convolution or a token shift looks back at."""
    memory_elements: int
    """The recurrent memory proper."""

    @property
    def elements(self) -> int:
        """Of all layers."""
        return self.layers * (self.shift_elements + self.memory_elements)


@dataclass(frozen=True)
class CacheShape:
    """All that a model keeps for a request."""

    layers: tuple[Layer, ...]
    """Those that own a cache; layers that share another's, or have none, are not among them."""
    state: State | None = None

    @property
    def windows(self) -> bool:
        """Whether some layer looks back over a window only."""
        return any(layer.window is not None for layer in self.layers)

    @property
    def rewinds_by_copies(self) -> bool:
        """Whether an engine can go back to an earlier token only if it kept a copy of it."""
        return self.windows or self.state is not None


@dataclass(frozen=True)
class Found:
    """What a model's description says: either `shape` or the reason why it cannot be known."""

    shape: CacheShape | None = None
    reason: str | None = None


def uniform(layers: int, kv_heads: int, key_dim: int, value_dim: int) -> CacheShape:
    """A model whose layers are all alike and see everything."""
    return CacheShape((Layer(kv_heads, key_dim, value_dim),) * layers)
