"""What does a GGUF header say about the memory of a request?

The keys are those of ggml's docs/gguf.md; which of them an architecture reads, and what it assumes
where the file is silent, is in llama.cpp's src/llama-model.cpp (load_hparams, create_memory),
src/llama-hparams.cpp and src/models/ARCHITECTURE.cpp. What cannot be known is a reason, never a
number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgeagent.core.kv_model import MAX_LAYERS, CacheShape, Found, Layer, State

# ----------------------------------------------------------------- what architectures assume

_PERIODS: Mapping[str, int] = {
    "afmoe": 4, "cohere2": 4, "cohere2moe": 4, "exaone-moe": 4, "exaone4": 4, "gemma2": 2,
    "gemma3": 6, "gemma3n": 5, "gpt-oss": 2, "laguna": 4, "llama4": 4, "mellum": 4,
    "muse-glimmer": 4, "olmo2": 4, "plamo3": 8, "smallthinker": 4,
}  # fmt: skip
"""One layer of every so many sees everything, where the file does not say which do."""

_FIRST_SEES_ALL = frozenset({"cohere2moe", "laguna", "smallthinker"})
"""Elsewhere it is the last of each period."""

_PATTERN_REQUIRED = frozenset({"gemma4", "granite_swa", "maple", "mimo2", "spark2_5", "step35"})
"""Their files name every layer, or llama.cpp does not load them."""

_FIXED_WINDOWS: Mapping[str, int] = {"llama4": 8192, "smallthinker": 4096}
"""llama.cpp sets these whatever the file says, unless it says 0."""

_DEFAULT_WINDOWS: Mapping[str, int] = {"gemma2": 4096, "llama4": 8192}
"""Where the file names none."""

_WINDOW_IGNORED = frozenset(
    {"llama", "minicpm", "mistral3", "phi3", "phimoe", "qwen2", "qwen2moe", "qwen2vl", "qwen3",
     "qwen3moe", "starcoder2"}
)  # fmt: skip
"""llama.cpp caches these in full although their file may name a window."""

_EXAONE4_WITH_WINDOWS = 64
"""Layers of the one Exaone 4 that has windows."""

_GEMMA3N_OWNERS = 20
"""Layers of Gemma 3n that own a cache; the later ones look into those."""

_RECURRENT = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
"""No layer of these has attention."""

_RECURRENT_WITHOUT_HEADS = frozenset(
    {"bailingmoe3", "granitehybrid", "jamba", "kimi-k3", "kimi-linear", "lfm2", "lfm2moe",
     "nemotron_h", "nemotron_h_moe", "plamo2"}
)  # fmt: skip
"""Hybrids whose recurrent layers are those without key-value heads."""

_RECURRENT_BY_INTERVAL: Mapping[str, int] = {
    "minimax-01": 8, "qwen35": 4, "qwen35moe": 4, "qwen3next": 4,
}  # fmt: skip
"""Hybrids where the last layer of every so many has attention, unless the file names them."""

_OTHER_CACHES: Mapping[str, str] = {
    **dict.fromkeys(
        ("deepseek32", "dots3note", "glm-dsa", "glm5-next", "hy_v4", "minimax-m3", "qwen4exp"),
        "its sparse attention keeps an index of its own",
    ),
    "deepseek4": "it keeps compressed caches of its own kinds",
    **dict.fromkeys(("t5", "t5encoder"), "its encoder and decoder differ"),
    **dict.fromkeys(
        ("eagle3", "dflash", "gemma4-assistant"), "it drafts for another model and shares its cache"
    ),
    **dict.fromkeys(("graniteswitch", "hrm_text"), "its layers are not what the header counts"),
    **dict.fromkeys(("clef", "pockettts", "qwen3tts", "wavtokenizer-dec"), "it makes no text"),
    **dict.fromkeys(("dream", "llada", "llada-moe", "rnd1"), "it diffuses text and keeps no cache"),
    **dict.fromkeys(
        ("bert", "eurobert", "gemma-embedding", "jina-bert-v2", "jina-bert-v3", "modern-bert",
         "neo-bert", "nomic-bert", "nomic-bert-moe"),
        "it answers with embeddings and keeps no cache",
    ),
}  # fmt: skip


# ------------------------------------------------------------------------------------ reading


def from_gguf(metadata: Mapping[str, object]) -> Found:
    """What a model keeps, as its GGUF header describes it, or why that cannot be computed."""
    header = _Header(metadata)
    try:
        return Found(_shape(header))
    except _UnknownError as why:
        return Found(reason=f"the memory of a request cannot be computed: {why}")


class _UnknownError(Exception):
    """Why the header does not tell."""


@dataclass(frozen=True)
class _Roles:
    """What each layer of the trunk is."""

    attention: tuple[bool, ...]
    recurrent: tuple[bool, ...]


def _shape(header: _Header) -> CacheShape:
    why = _OTHER_CACHES.get(header.architecture)
    if why is None and header.number("attention.indexer.key_length"):
        why = "its sparse attention keeps an index of its own"
    if why is not None:
        raise _UnknownError(why)
    blocks = header.number("block_count")
    if not blocks or blocks > MAX_LAYERS:
        raise _UnknownError("the header names no layers")
    # Layers for prediction only have no part in the main cache.
    trunk = blocks - (header.number("nextn_predict_layers") or 0)
    if trunk <= 0:
        raise _UnknownError("the header names no layers besides those for prediction")
    heads = header.each("attention.head_count_kv", blocks) or header.each(
        "attention.head_count", blocks
    )
    roles = _roles(header, trunk, heads)
    layers = _layers(header, trunk, heads, roles) if any(roles.attention) else ()
    if header.architecture == "nanbeige":
        loops = header.number("num_loops") or 1
        if loops * trunk > MAX_LAYERS:
            raise _UnknownError("the header contradicts itself about layers")
        layers *= loops
    return CacheShape(layers, _state(header, sum(roles.recurrent)))


def _roles(header: _Header, trunk: int, heads: Sequence[int]) -> _Roles:
    """Which layers have attention and which are recurrent (create_memory's layer filters)."""
    all_of_them, none_of_them = (True,) * trunk, (False,) * trunk
    architecture = header.architecture
    if architecture in _RECURRENT:
        return _Roles(none_of_them, all_of_them)
    if architecture == "falcon-h1":
        return _Roles(all_of_them, all_of_them)
    if architecture in _RECURRENT_WITHOUT_HEADS:
        if not heads:
            raise _UnknownError("the header does not say which layers have attention")
        plain = _without_feed_forward(header, trunk)
        headless = tuple(count == 0 for count in heads[:trunk])
        return _Roles(
            tuple(ok and not less for less, ok in zip(headless, plain, strict=True)),
            tuple(ok and less for less, ok in zip(headless, plain, strict=True)),
        )
    if architecture in _RECURRENT_BY_INTERVAL:
        recurrent = _recurrent_by_interval(header, trunk)
        return _Roles(tuple(not item for item in recurrent), recurrent)
    if any(header.number(key) for key in ("ssm.state_size", "shortconv.l_cache", "wkv.head_size")):
        raise _UnknownError(f"which layers of {architecture} models are recurrent is not known")
    return _Roles(all_of_them, none_of_them)


def _without_feed_forward(header: _Header, trunk: int) -> tuple[bool, ...]:
    """Nemotron-H has layers that are neither attention nor recurrent: those with a network."""
    if not header.architecture.startswith("nemotron_h"):
        return (True,) * trunk
    widths = header.each("feed_forward_length", trunk)
    if not widths:
        raise _UnknownError("the header does not say which layers have attention")
    return tuple(width == 0 for width in widths)


def _recurrent_by_interval(header: _Header, trunk: int) -> tuple[bool, ...]:
    named = header.flags("attention.recurrent_layers")
    if len(named) == 1:
        return named * trunk
    if named:
        if len(named) < trunk:
            raise _UnknownError("the header contradicts itself about recurrent layers")
        return named[:trunk]
    interval = header.number("full_attention_interval")
    if interval is None:
        interval = _RECURRENT_BY_INTERVAL[header.architecture]
    if interval <= 0:
        raise _UnknownError("the header contradicts itself about recurrent layers")
    return tuple((layer + 1) % interval != 0 for layer in range(trunk))


def _layers(header: _Header, trunk: int, heads: Sequence[int], roles: _Roles) -> tuple[Layer, ...]:
    if not heads:
        raise _UnknownError("the header names no attention heads")
    window = _window(header, trunk)
    windowed = _windowed(header, trunk, roles) if window else (False,) * trunk
    wide = _dimensions(header, "attention.key_length", "attention.value_length")
    narrow = (
        header.number("attention.key_length_swa") or wide[0],
        header.number("attention.value_length_swa") or wide[1],
    )
    if header.number("attention.key_length_mla") and header.number("attention.value_length_mla"):
        # Latent attention: one row for keys and values together (llama-kv-cache.cpp, is_mla).
        wide, narrow = (wide[0], 0), (narrow[0], 0)
    return tuple(
        Layer(
            heads[layer],
            *(narrow if windowed[layer] else wide),
            window=_of(window, windowed[layer]),
        )
        for layer in range(_owners(header, trunk))
        if roles.attention[layer]
    )


def _of(window: int | None, windowed: bool) -> int | None:  # noqa: FBT001  # because it is one item of a list of facts
    return window if windowed else None


def _dimensions(header: _Header, key: str, value: str) -> tuple[int, int]:
    """Head sizes; by default the embedding divided among the first layer's heads."""
    heads = header.first("attention.head_count")
    default = (header.number("embedding_length") or 0) // heads if heads else 0
    key_dim = header.number(key) or default
    value_dim = header.number(value) or default
    if key_dim <= 0 or value_dim <= 0:
        raise _UnknownError("the header contradicts itself about attention heads")
    return key_dim, value_dim


def _owners(header: _Header, trunk: int) -> int:
    """How many layers, from the first, own a cache (gemma3n.cpp, gemma4.cpp)."""
    if header.architecture == "gemma3n":
        return min(_GEMMA3N_OWNERS, trunk)
    shared = header.number("attention.shared_kv_layers") or 0
    if not shared:
        return trunk
    if header.architecture != "gemma4" or shared >= trunk:
        raise _UnknownError("which of its layers share a cache is not known")
    return trunk - shared


# ------------------------------------------------------------------------------------ windows


def _window(header: _Header, trunk: int) -> int | None:
    """Tokens that windowed layers look back; None when llama.cpp keeps everything."""
    architecture = header.architecture
    named = header.number("attention.sliding_window")
    if architecture in _WINDOW_IGNORED or named == 0:
        return None
    if architecture == "exaone4" and trunk != _EXAONE4_WITH_WINDOWS:
        return None
    if architecture in _FIXED_WINDOWS and (named or architecture in _DEFAULT_WINDOWS):
        return _FIXED_WINDOWS[architecture]
    return named or _DEFAULT_WINDOWS.get(architecture)


def _windowed(header: _Header, trunk: int, roles: _Roles) -> tuple[bool, ...]:
    """Which layers are windowed. Raises _UnknownError when the header does not tell."""
    architecture = header.architecture
    if architecture in ("lfm2", "lfm2moe"):
        return roles.attention
    named = header.flags("attention.sliding_window_pattern")
    if header.is_list("attention.sliding_window_pattern"):
        if len(named) < trunk:
            raise _UnknownError("the header contradicts itself about windowed layers")
        return named[:trunk]
    if architecture in _PATTERN_REQUIRED:
        raise _UnknownError("the header does not say which layers are windowed")
    period = header.number("attention.sliding_window_pattern")
    if period is None:
        period = _PERIODS.get(architecture)
    if period is None:
        raise _UnknownError("the header does not say which layers are windowed")
    # A period of 0 means that every layer is windowed (llama_hparams::set_swa_pattern).
    if architecture in _FIRST_SEES_ALL:
        return tuple(not period or layer % period != 0 for layer in range(trunk))
    return tuple(not period or layer % period < period - 1 for layer in range(trunk))


# -------------------------------------------------------------------------------------- state


def _state(header: _Header, layers: int) -> State | None:
    """What recurrent layers keep (llama_hparams::n_embd_r and n_embd_s), or None without any."""
    if not layers:
        return None
    shift, memory = _state_elements(header)
    if shift + memory == 0:
        raise _UnknownError("the header does not say how large the state of its layers is")
    return State(layers, shift, memory)


def _state_elements(header: _Header) -> tuple[int, int]:
    width = header.number("embedding_length") or 0
    head = header.number("wkv.head_size")
    if head:
        shifts = header.number("token_shift_count")
        return (2 if shifts is None else shifts) * width, width * head
    inner, state = header.number("ssm.inner_size") or 0, header.number("ssm.state_size") or 0
    look_back = header.number("shortconv.l_cache")
    if look_back:
        return width * (look_back - 1), state * inner
    heads = header.first("attention.head_count") or 0
    kernel = header.number("ssm.conv_kernel") or 0
    head = header.number("kda.head_dim")
    if head:
        return 3 * (kernel - 1 if kernel else 3) * heads * head, head * head * heads
    if header.architecture == "minimax-01":
        head = _dimensions(header, "attention.key_length", "attention.value_length")[0]
        return 0, head * head * heads
    groups = header.number("ssm.group_count") or 0
    return max(kernel - 1, 0) * (inner + 2 * groups * state), state * inner


class _Header:
    """Typed reading of one architecture's keys; what is of another type or negative is missing."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self._metadata = metadata
        self.architecture = str(metadata.get("general.architecture", ""))

    def _get(self, key: str) -> object:
        return self._metadata.get(f"{self.architecture}.{key}")

    def is_list(self, key: str) -> bool:
        value = self._get(key)
        return isinstance(value, Sequence) and not isinstance(value, str)

    def number(self, key: str) -> int | None:
        value = self._get(key)
        return _count(value)

    def first(self, key: str) -> int | None:
        """The number, or that of the first layer."""
        value = self._get(key)
        if isinstance(value, Sequence) and not isinstance(value, str):
            value = value[0] if value else None
        return _count(value)

    def each(self, key: str, layers: int) -> tuple[int, ...]:
        """One number for each layer; empty when the key is missing. Raises _UnknownError."""
        value = self._get(key)
        if value is None:
            return ()
        items = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
        kept = [count for count in map(_count, items) if count is not None]
        if len(kept) != len(items) or (self.is_list(key) and len(kept) < layers):
            raise _UnknownError(f"the header contradicts itself about {key}")
        return tuple(kept) if self.is_list(key) else tuple(kept) * layers

    def flags(self, key: str) -> tuple[bool, ...]:
        """The value as truths, one for each layer or one for all; empty when it is missing."""
        value = self._get(key)
        if value is None:
            return ()
        items = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
        return tuple(bool(item) for item in items)


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    return value
