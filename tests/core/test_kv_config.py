"""A Hugging Face configuration becomes the layers that vLLM makes of it, or a reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.core.kv_config import from_config, language_part
from edgeagent.core.kv_model import CacheShape, Layer, State, uniform

LLAMA: dict[str, object] = {
    "model_type": "llama",
    "hidden_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "head_dim": 128,
}


def shape(config: dict[str, object]) -> CacheShape:
    found = from_config(config)
    assert found.shape is not None, found.reason
    return found.shape


def reason(config: dict[str, object]) -> str:
    found = from_config(config)
    assert found.shape is None
    return found.reason or ""


def windowed(config: dict[str, object]) -> list[int]:
    return [n for n, layer in enumerate(shape(config).layers) if layer.window is not None]


def test_the_plain_case() -> None:
    assert shape(LLAMA) == uniform(28, 8, 128, 128)


def test_missing_key_value_heads_mean_as_many_as_heads() -> None:
    config = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert shape(config) == uniform(28, 24, 128, 128)


@pytest.mark.parametrize("head_dim", [None, 0, "none"])
def test_head_size_defaults_to_width_over_heads(head_dim: object) -> None:
    assert shape({**LLAMA, "head_dim": head_dim, "hidden_size": 2400}).layers[0].key_dim == 100


@pytest.mark.parametrize("key", ["text_config", "llm_config", "language_config"])
def test_the_language_model_may_be_nested(key: str) -> None:
    outer = {"model_type": "seer", "num_hidden_layers": 99, key: LLAMA}
    assert shape(outer) == uniform(28, 8, 128, 128)


def test_and_nested_twice() -> None:
    omni: dict[str, object] = {"thinker_config": {"model_type": "x", "text_config": LLAMA}}
    assert shape(omni) == uniform(28, 8, 128, 128)


def test_gemma3_4b_leaves_its_heads_to_its_class() -> None:
    config: dict[str, object] = {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 2560,
            "num_hidden_layers": 34,
            "sliding_window": 1024,
        },
    }
    expected = tuple(Layer(4, 256, 256, None if n % 6 == 5 else 1024) for n in range(34))
    assert shape(config).layers == expected
    assert language_part(config)["vocab_size"] == 262_208


def test_a_nested_part_without_a_type_is_of_the_outer_one() -> None:
    config: dict[str, object] = {"model_type": "gemma3", "text_config": {"hidden_size": 2304}}
    assert len(shape(config).layers) == 26


@pytest.mark.parametrize(
    ("config", "kv_heads", "size"),
    [
        # Falcon 7B has one head for all, Falcon 40B names its own.
        ({"model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32,
          "num_attention_heads": 71, "multi_query": True}, 1, 64),
        ({"model_type": "falcon", "hidden_size": 8192, "num_hidden_layers": 60,
          "num_attention_heads": 128, "num_kv_heads": 8, "multi_query": True,
          "new_decoder_architecture": True}, 8, 64),
        ({"model_type": "chatglm", "hidden_size": 4096, "num_layers": 28, "kv_channels": 128,
          "num_attention_heads": 32, "multi_query_attention": True, "multi_query_group_num": 2},
         2, 128),
        ({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12}, 12, 64),
        ({"model_type": "mpt", "d_model": 4096, "n_layers": 32, "n_heads": 32}, 32, 128),
        ({"model_type": "qwen3", "hidden_size": 2560, "num_hidden_layers": 36,
          "num_attention_heads": 32, "num_key_value_heads": 8}, 8, 128),
    ],
)  # fmt: skip
def test_the_same_number_has_many_names(
    config: dict[str, object], kv_heads: int, size: int
) -> None:
    assert shape(config).layers[0] == Layer(kv_heads, size, size)


def test_a_window_that_is_switched_off_is_none() -> None:
    qwen = {**LLAMA, "model_type": "qwen2", "sliding_window": 131_072, "max_window_layers": 28}
    assert windowed({**qwen, "use_sliding_window": False}) == []
    types = ["sliding_attention"] * 28
    assert windowed({**qwen, "use_sliding_window": False, "layer_types": types}) == []
    assert windowed({**qwen, "use_sliding_window": True, "max_window_layers": 26}) == [26, 27]


def test_layers_may_be_named() -> None:
    config: dict[str, object] = {
        "model_type": "gpt_oss",
        "hidden_size": 2880,
        "num_hidden_layers": 24,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
    }
    expected = tuple(Layer(8, 64, 64, 128 if n % 2 == 0 else None) for n in range(24))
    assert shape(config).layers == expected
    del config["layer_types"]
    assert shape(config).layers == expected


def test_a_window_of_all_layers() -> None:
    assert len(windowed({**LLAMA, "model_type": "mistral", "sliding_window": 4096})) == 28
    assert windowed({**LLAMA, "model_type": "mistral", "sliding_window": None}) == []


def test_latent_attention_is_one_row_for_keys_and_values() -> None:
    config: dict[str, object] = {
        "model_type": "deepseek_v2",
        "hidden_size": 2048,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
    }
    assert shape(config).layers == (Layer(1, 576, 0),) * 27


def test_layers_that_share_a_cache_own_none() -> None:
    config: dict[str, object] = {"model_type": "gemma3n_text", "hidden_size": 2048}
    assert len(shape(config).layers) == 20  # 35 less 15
    assert shape(config).layers[4] == Layer(2, 256, 256)


def test_qwen3_next_has_attention_in_every_fourth_layer() -> None:
    found = shape({"model_type": "qwen3_next", "hidden_size": 2048})
    assert found.layers == (Layer(2, 256, 256),) * 12
    # 3 x (2 x 128 x 16 + 128 x 32) and 32 x 128 x 128 elements
    assert found.state == State(36, 3 * 8192, 128 * 4096)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "names no layers"),
        ({**LLAMA, "num_hidden_layers": 1 << 50}, "names no layers"),
        ({**LLAMA, "num_hidden_layers": "28"}, "names no layers"),
        ({**LLAMA, "num_attention_heads": 10**4000, "head_dim": 10**4000}, "no attention heads"),
        ({"model_type": "llama", "num_hidden_layers": 4}, "no attention heads"),
        ({**LLAMA, "sliding_window": 4096}, "which layers are windowed"),
        ({**LLAMA, "layer_types": ["full_attention"]}, "the number of its layers"),
        ({**LLAMA, "layer_types": ["mamba"] * 28}, "layers of the kind mamba"),
        ({**LLAMA, "mamba_d_state": 16}, "which of its layers are recurrent"),
        ({"model_type": "rwkv", "num_hidden_layers": 4}, "which of its layers are recurrent"),
        ({**LLAMA, "linear_attn_config": {}}, "which of its layers are recurrent"),
        ({**LLAMA, "kv_lora_rank": 256}, "latent attention"),
        ({**LLAMA, "index_topk": 2048}, "an index of its own"),
        ({**LLAMA, "num_kv_shared_layers": 28}, "shared layers"),
        ({**LLAMA, "layer_types": ["linear_attention"] * 28}, "no layer with attention"),
        ({"model_type": "t5", "num_layers": 6}, "encoder and decoder"),
        ({"model_type": "bert", "num_hidden_layers": 6}, "embeddings"),
    ],
)
def test_what_the_configuration_leaves_open_is_not_guessed(
    config: dict[str, object], words: str
) -> None:
    assert words in reason(config)


_VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 200)
    | st.floats(allow_nan=True)
    | st.sampled_from(["6", "", [], [1, 2], ["full_attention"] * 28, {}, LLAMA, 1 << 63])
)


@given(
    st.dictionaries(
        st.sampled_from(
            [*LLAMA, "text_config", "layer_types", "sliding_window", "sliding_window_pattern",
             "use_sliding_window", "max_window_layers", "kv_lora_rank", "num_kv_shared_layers",
             "linear_num_value_heads", "multi_query"]
        ),
        _VALUES,
    )
)  # fmt: skip
def test_any_configuration_gives_a_shape_or_a_reason(values: dict[str, object]) -> None:
    found = from_config({**LLAMA, **values})
    assert (found.shape is None) != (found.reason is None)
