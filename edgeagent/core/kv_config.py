"""What does a Hugging Face configuration say about the memory of a request?

`config.json` holds what differs from the defaults of the model's class (transformers'
models/TYPE/configuration_TYPE.py), may nest the language model inside another, and names the same
thing in many ways. What cannot be known is a reason, never a number. The layers are as vLLM keeps
them (vllm/v1/kv_cache_interface.py): latent attention is one row for keys and values together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgeagent.core.kv_model import MAX_LAYERS, CacheShape, Found, Layer, State

_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
_DEEPEST = 4
_MOST = 1 << 40
"""No size of a model comes near it; JSON's numbers have no end of their own."""

_CLASS_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "gemma": {"num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256},
    "gemma2": {"num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
               "head_dim": 256, "sliding_window": 4096, "sliding_window_pattern": 2},
    "gemma3_text": {"num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
                    "head_dim": 256, "sliding_window": 4096, "sliding_window_pattern": 6,
                    "vocab_size": 262_208, "max_position_embeddings": 131_072},
    "gemma3n_text": {"num_hidden_layers": 35, "num_attention_heads": 8, "num_key_value_heads": 2,
                     "head_dim": 256, "sliding_window": 512, "sliding_window_pattern": 5,
                     "num_kv_shared_layers": 15},
    "cohere2": {"sliding_window": 4096, "sliding_window_pattern": 4},
    "gpt_oss": {"num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8,
                "head_dim": 64, "sliding_window": 128, "sliding_window_pattern": 2},
    "mistral": {"num_key_value_heads": 8},
    "mixtral": {"num_key_value_heads": 8},
    "qwen3": {"head_dim": 128},
    "qwen3_moe": {"head_dim": 128},
    "qwen3_next": {"num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2,
                   "head_dim": 256, "full_attention_interval": 4, "linear_conv_kernel_dim": 4,
                   "linear_key_head_dim": 128, "linear_value_head_dim": 128,
                   "linear_num_key_heads": 16, "linear_num_value_heads": 32},
}  # fmt: skip

_SAME_CLASS: Mapping[str, str] = {"gemma3": "gemma3_text", "gemma3n": "gemma3n_text"}

_NAMES: Mapping[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": (
        "num_key_value_heads", "n_head_kv", "num_kv_heads", "multi_query_group_num",
        "num_attention_groups",
    ),
    "width": ("hidden_size", "n_embd", "d_model"),
    "head_dim": ("head_dim", "kv_channels", "attention_head_dim"),
}  # fmt: skip
"""Different words for the same number, first one first."""

_LATENT = frozenset({"deepseek_v2", "deepseek_v3", "kimi_k2", "longcat_flash", "pangu_ultra_moe"})
"""Types whose latent attention vLLM keeps as such (ModelArchConfigConvertor.is_deepseek_mla)."""

_RECURRENT_SIGNS = (
    "attn_layer_", "attn_type_list", "conv_L_cache", "hybrid_", "layers_block_type", "linear_attn",
    "mamba_", "ssm_", "state_size",
)  # fmt: skip
"""Keys that begin like this tell of recurrent layers."""

_ALL_WINDOWED = frozenset({"mistral", "mixtral"})
"""A window that no list of layers restricts holds for all layers of these."""

_FIRST_LAYERS_FULL = frozenset({"qwen2", "qwen2_moe", "qwen3", "qwen3_moe"})
"""Their `max_window_layers` first layers see everything."""

_OTHER_CACHES: Mapping[str, str] = {
    **dict.fromkeys(
        ("bert", "roberta", "xlm-roberta", "modernbert", "nomic_bert"),
        "it answers with embeddings and keeps no cache",
    ),
    **dict.fromkeys(("t5", "mt5", "umt5", "bart", "whisper"), "its encoder and decoder differ"),
}


class _UnknownError(Exception):
    """Why the configuration does not tell."""


def language_part(config: Mapping[str, object]) -> Mapping[str, object]:
    """The part that describes the language model, with the defaults of its class filled in."""
    part = config
    for _ in range(_DEEPEST):
        inner = next((part[key] for key in _NESTED if isinstance(part.get(key), Mapping)), None)
        if not isinstance(inner, Mapping):
            break
        # A nested part without a type of its own is of the outer one's.
        part = {"model_type": part.get("model_type"), **inner}
    kind = str(part.get("model_type", ""))
    defaults = _CLASS_DEFAULTS.get(_SAME_CLASS.get(kind, kind), {})
    return {**defaults, **{key: value for key, value in part.items() if value is not None}}


def from_config(config: Mapping[str, object]) -> Found:
    """What a model keeps, as its `config.json` describes it, or why that cannot be computed."""
    try:
        return Found(_shape(_Part(language_part(config))))
    except _UnknownError as why:
        return Found(reason=f"the memory of a request cannot be computed: {why}")


def _shape(part: _Part) -> CacheShape:
    why = _OTHER_CACHES.get(part.kind)
    if why is not None:
        raise _UnknownError(why)
    if part.number("index_topk"):
        raise _UnknownError("its sparse attention keeps an index of its own")
    count = part.named("layers")
    if not count or count > MAX_LAYERS:
        raise _UnknownError("config.json names no layers")
    kinds = _kinds(part, count)
    owners = count - (part.number("num_kv_shared_layers") or 0)
    if owners <= 0:
        raise _UnknownError("config.json contradicts itself about shared layers")
    attention = [kind for kind in kinds[:owners] if kind in _ATTENTION]
    if not attention:
        raise _UnknownError("config.json names no layer with attention")
    return CacheShape(
        tuple(_layer(part, windowed=kind != "full_attention") for kind in attention),
        _state(part, sum(kind not in _ATTENTION for kind in kinds)),
    )


_ATTENTION = ("full_attention", "sliding_attention", "chunked_attention")
_RECURRENT = ("linear_attention",)


def _kinds(part: _Part, count: int) -> tuple[str, ...]:
    """What each layer is."""
    named = part.get("layer_types")
    if isinstance(named, Sequence) and not isinstance(named, str):
        kinds = tuple("full_attention" if kind == "attention" else str(kind) for kind in named)
        unknown = sorted(set(kinds) - {*_ATTENTION, *_RECURRENT})
        if len(kinds) != count or unknown:
            what = f"layers of the kind {unknown[0]}" if unknown else "the number of its layers"
            raise _UnknownError(f"config.json names {what}, for which no rule is known")
        # A window that is switched off makes every layer see everything.
        whole = part.window() is None
        return tuple("full_attention" if whole and kind in _ATTENTION else kind for kind in kinds)
    if part.number("linear_num_value_heads"):
        interval = part.number("full_attention_interval") or 4
        return tuple(
            "linear_attention" if (layer + 1) % interval else "full_attention"
            for layer in range(count)
        )
    if part.kind.startswith(("mamba", "rwkv")) or part.any_key(_RECURRENT_SIGNS):
        raise _UnknownError("which of its layers are recurrent is not known")
    if part.window() is None:
        return ("full_attention",) * count
    return _windowed(part, count)


def _windowed(part: _Part, count: int) -> tuple[str, ...]:
    """Which layers are windowed where no list says it."""
    period = part.number("sliding_window_pattern")
    if period:
        # The last of each period sees everything.
        return tuple(
            "full_attention" if layer % period == period - 1 else "sliding_attention"
            for layer in range(count)
        )
    if part.kind in _ALL_WINDOWED:
        return ("sliding_attention",) * count
    first = part.number("max_window_layers")
    if part.kind in _FIRST_LAYERS_FULL and first is not None:
        full = min(first, count)
        return ("full_attention",) * full + ("sliding_attention",) * (count - full)
    raise _UnknownError("config.json does not say which layers are windowed")


def _layer(part: _Part, *, windowed: bool) -> Layer:
    window = part.window() if windowed else None
    rank = part.number("kv_lora_rank")
    if rank:
        if part.kind not in _LATENT:
            raise _UnknownError("whether vLLM keeps its latent attention as such is not known")
        return Layer(1, rank + (part.number("qk_rope_head_dim") or 0), 0, window)
    heads, width = part.named("heads"), part.named("width")
    size = part.named("head_dim") or (width // heads if heads and width else None)
    kv_heads = _kv_heads(part, heads)
    if not size or not kv_heads:
        raise _UnknownError("config.json names no attention heads")
    if not windowed and part.number("global_head_dim"):
        size = part.number("global_head_dim") or size
        kv_heads = part.number("num_global_key_value_heads") or kv_heads
    return Layer(kv_heads, size, size, window)


def _kv_heads(part: _Part, heads: int | None) -> int | None:
    """Key-value heads; as many as heads where nothing says otherwise."""
    if part.get("multi_query") is True and part.get("new_decoder_architecture") is not True:
        return 1  # Falcon and StarCoder: one for all
    if part.get("multi_query_attention") is False:
        return heads
    named = part.named("kv_heads")
    return heads if named is None else named


def _state(part: _Part, layers: int) -> State | None:
    """Of gated delta nets (vLLM's MambaStateShapeCalculator.gated_delta_net_state_shape)."""
    if not layers:
        return None
    keys, values = part.number("linear_num_key_heads"), part.number("linear_num_value_heads")
    key_dim, value_dim = part.number("linear_key_head_dim"), part.number("linear_value_head_dim")
    kernel = part.number("linear_conv_kernel_dim")
    if not keys or not values or not key_dim or not value_dim or not kernel:
        raise _UnknownError("config.json does not say how large the state of its layers is")
    return State(
        layers,
        shift_elements=(kernel - 1) * (2 * key_dim * keys + value_dim * values),
        memory_elements=values * value_dim * key_dim,
    )


class _Part:
    """Typed reading; what is of another type or out of range is missing."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values
        self.kind = str(values.get("model_type", ""))

    def get(self, key: str) -> object:
        return self._values.get(key)

    def any_key(self, beginnings: tuple[str, ...]) -> bool:
        return any(key.startswith(beginnings) for key in self._values)

    def number(self, key: str) -> int | None:
        value = self._values.get(key)
        if isinstance(value, bool) or not isinstance(value, int):
            return None
        return value if 0 <= value <= _MOST else None

    def named(self, what: str) -> int | None:
        """A number under whichever of its names is there; 0 counts as not said."""
        found = (self.number(name) for name in _NAMES[what])
        return next((value for value in found if value), None)

    def window(self) -> int | None:
        """Tokens that windowed layers look back; None when no layer is windowed."""
        if self.get("use_sliding_window") is False:
            return None
        return self.number("sliding_window") or self.number("attention_chunk_size") or None
