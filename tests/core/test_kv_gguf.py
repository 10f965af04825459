"""A GGUF header becomes the layers and the state that llama.cpp makes of it, or a reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.core.kv import CacheLayout, ModelMemory, predict_llamacpp, state_bytes, token_bytes
from edgeagent.core.kv_gguf import from_gguf
from edgeagent.core.kv_model import CacheShape, Layer, State, uniform

F32 = 4


def header(architecture: str, **values: object) -> dict[str, object]:
    """A header with `llama.cpp`'s keys; `__` stands for a dot."""
    keys = {f"{architecture}.{key.replace('__', '.')}": value for key, value in values.items()}
    return {"general.architecture": architecture, **keys}


def plain(architecture: str = "llama", **values: object) -> dict[str, object]:
    """SmolLM2's sizes."""
    base: dict[str, object] = {
        "block_count": 30,
        "embedding_length": 576,
        "attention__head_count": 9,
        "attention__head_count_kv": 3,
    }
    return header(architecture, **(base | values))


def gemma(**values: object) -> dict[str, object]:
    """Gemma 3 4B's sizes."""
    base: dict[str, object] = {
        "block_count": 34,
        "embedding_length": 2560,
        "attention__head_count": 8,
        "attention__head_count_kv": 4,
        "attention__key_length": 256,
        "attention__value_length": 256,
        "attention__sliding_window": 1024,
    }
    return header("gemma3", **(base | values))


def shape(metadata: dict[str, object]) -> CacheShape:
    found = from_gguf(metadata)
    assert found.shape is not None, found.reason
    return found.shape


def reason(metadata: dict[str, object]) -> str:
    found = from_gguf(metadata)
    assert found.shape is None
    assert found.reason is not None
    return found.reason


def windowed(metadata: dict[str, object]) -> list[int]:
    """The numbers of the windowed layers."""
    return [n for n, layer in enumerate(shape(metadata).layers) if layer.window is not None]


# ------------------------------------------------------------------------------------- heads


def test_head_size_defaults_to_embedding_over_heads() -> None:
    assert shape(plain()) == uniform(30, 3, 64, 64)  # 576 / 9 = 64


def test_missing_key_value_heads_mean_as_many_as_heads() -> None:
    without = plain()
    del without["llama.attention.head_count_kv"]
    assert shape(without) == uniform(30, 9, 64, 64)


def test_keys_and_values_may_differ_in_size() -> None:
    found = shape(plain(attention__key_length=192, attention__value_length=128))
    assert found.layers[0] == Layer(3, 192, 128)


def test_heads_may_be_named_for_each_layer() -> None:
    # As in pruned models: a layer without attention keeps nothing.
    found = shape(plain(block_count=3, attention__head_count_kv=(2, 0, 4)))
    assert [layer.kv_heads for layer in found.layers] == [2, 0, 4]
    assert token_bytes(found) == 6 * 2 * 64 * 2


def test_layers_for_prediction_have_no_part_in_the_cache() -> None:
    assert len(shape(plain(nextn_predict_layers=1)).layers) == 29
    listed = plain(block_count=3, attention__head_count_kv=(2, 2, 4), nextn_predict_layers=1)
    assert [layer.kv_heads for layer in shape(listed).layers] == [2, 2]


def test_a_model_that_runs_its_layers_twice_caches_them_twice() -> None:
    assert len(shape(plain("nanbeige", num_loops=2)).layers) == 60


# ----------------------------------------------------------------------------- latent attention


def test_latent_attention_is_one_row_of_576() -> None:
    # DeepSeek V2 Lite: rank 512 + 64 rotated, which its converter writes as the key's length.
    found = shape(
        header(
            "deepseek2",
            block_count=27,
            embedding_length=2048,
            attention__head_count=16,
            attention__head_count_kv=1,
            attention__key_length=576,
            attention__value_length=512,
            attention__key_length_mla=192,
            attention__value_length_mla=128,
            attention__kv_lora_rank=512,
        )
    )
    assert set(found.layers) == {Layer(1, 576, 0)}
    assert token_bytes(found) == 31_104


def test_an_older_file_of_latent_attention_stores_whole_heads() -> None:
    found = shape(
        header(
            "deepseek2",
            block_count=27,
            embedding_length=2048,
            attention__head_count=16,
            attention__key_length=192,
            attention__value_length=128,
            attention__kv_lora_rank=512,
        )
    )
    assert set(found.layers) == {Layer(16, 192, 128)}
    assert token_bytes(found) == 27 * 16 * 320 * 2


# -------------------------------------------------------------------------------------- windows


def test_every_sixth_layer_of_gemma3_sees_all() -> None:
    expected = [layer for layer in range(34) if layer % 6 != 5]
    assert windowed(gemma()) == expected
    assert windowed(gemma(attention__sliding_window_pattern=6)) == expected
    listed = tuple(layer % 6 != 5 for layer in range(34))
    assert windowed(gemma(attention__sliding_window_pattern=listed)) == expected


def test_a_period_of_one_windows_no_layer_and_of_none_all() -> None:
    assert windowed(gemma(attention__sliding_window_pattern=1)) == []
    assert len(windowed(gemma(attention__sliding_window_pattern=0))) == 34


def test_a_window_of_zero_is_none() -> None:
    assert windowed(gemma(attention__sliding_window=0)) == []


@pytest.mark.parametrize(
    ("architecture", "layers", "expected"),
    [
        ("gpt-oss", 6, [0, 2, 4]),
        ("cohere2", 8, [0, 1, 2, 4, 5, 6]),
        ("plamo3", 8, [0, 1, 2, 3, 4, 5, 6]),
        ("cohere2moe", 8, [1, 2, 3, 5, 6, 7]),  # the first of each four sees all
    ],
)
def test_other_architectures_have_periods_of_their_own(
    architecture: str, layers: int, expected: list[int]
) -> None:
    metadata = plain(architecture, block_count=layers, attention__sliding_window=128)
    assert windowed(metadata) == expected


def test_some_windows_are_llama_cpps_not_the_files() -> None:
    assert shape(plain("gemma2")).layers[0].window == 4096
    assert shape(plain("smallthinker", attention__sliding_window=77)).layers[1].window == 4096
    assert windowed(plain("smallthinker")) == []
    assert shape(plain("llama4")).layers[0].window == 8192
    assert windowed(plain("llama4", attention__sliding_window=0)) == []


def test_only_the_large_exaone4_has_windows() -> None:
    assert windowed(plain("exaone4", attention__sliding_window=4096)) == []
    assert len(windowed(plain("exaone4", block_count=64, attention__sliding_window=4096))) == 48


def test_a_window_that_llama_cpp_ignores_is_no_window() -> None:
    assert windowed(plain("phi3", attention__sliding_window=2047)) == []
    assert windowed(plain("llama", attention__sliding_window=4096)) == []


def test_windowed_layers_may_have_heads_of_another_size() -> None:
    found = shape(
        plain(
            "gemma4",
            block_count=3,
            attention__head_count_kv=(2, 2, 1),
            attention__key_length=512,
            attention__value_length=512,
            attention__key_length_swa=256,
            attention__value_length_swa=256,
            attention__sliding_window=512,
            attention__sliding_window_pattern=(True, True, False),
        )
    )
    assert found.layers == (Layer(2, 256, 256, 512), Layer(2, 256, 256, 512), Layer(1, 512, 512))


def test_layers_that_share_a_cache_own_none() -> None:
    found = shape(
        plain(
            "gemma4",
            block_count=5,
            attention__shared_kv_layers=2,
            attention__sliding_window=512,
            attention__sliding_window_pattern=(True, True, True, False, True),
        )
    )
    assert [layer.window for layer in found.layers] == [512, 512, 512]
    # Gemma 3n's first 20 layers own one whatever the file says; every fifth sees all.
    nano = shape(plain("gemma3n", attention__sliding_window=512))
    assert [layer.window for layer in nano.layers] == [512, 512, 512, 512, None] * 4


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        (plain("new-one", attention__sliding_window=4096), "which layers are windowed"),
        (plain("gemma4", attention__sliding_window=4096), "which layers are windowed"),
        (
            gemma(attention__sliding_window_pattern=(True, False)),
            "contradicts itself about windowed layers",
        ),
        (plain(attention__shared_kv_layers=5), "share a cache"),
    ],
)
def test_what_the_header_leaves_open_is_not_guessed(
    metadata: dict[str, object], words: str
) -> None:
    assert words in reason(metadata)


# ------------------------------------------------------------------------------ recurrent layers


def test_every_fourth_layer_of_qwen3next_has_attention_and_the_others_a_state() -> None:
    sizes: dict[str, object] = {
        "block_count": 48,
        "embedding_length": 2048,
        "attention__head_count": 16,
        "attention__head_count_kv": 2,
        "attention__key_length": 256,
        "attention__value_length": 256,
        "ssm__conv_kernel": 4,
        "ssm__inner_size": 4096,
        "ssm__state_size": 128,
        "ssm__group_count": 16,
    }
    found = shape(header("qwen3next", **sizes))
    assert token_bytes(found) == 24_576  # 12 x 2 x 512 x 2
    # 36 layers of 3 x (4096 + 2 x 16 x 128) and 128 x 4096 elements: 75.4 MiB
    assert found.state == State(36, 3 * 8192, 128 * 4096)
    assert state_bytes(found, 1) == 79_036_416
    assert shape(header("qwen3next", **sizes, full_attention_interval=2)).state == State(
        24, 3 * 8192, 128 * 4096
    )
    named = (True, True, True, True, False) * 9 + (True, True, False)
    listed = shape(header("qwen3next", **sizes, attention__recurrent_layers=named))
    assert len(listed.layers) == 10


def test_mamba_has_a_state_and_no_cache() -> None:
    sizes: dict[str, object] = {
        "block_count": 24,
        "embedding_length": 768,
        "attention__head_count": 0,
        "ssm__conv_kernel": 4,
        "ssm__inner_size": 1536,
        "ssm__state_size": 16,
    }
    found = shape(header("mamba", **sizes))
    assert found == CacheShape((), State(24, 3 * 1536, 16 * 1536))
    grouped = shape(header("mamba2", **sizes, ssm__group_count=1))
    assert grouped.state == State(24, 3 * (1536 + 2 * 16), 16 * 1536)


def test_falcon_h1_has_both_in_every_layer() -> None:
    found = shape(
        plain(
            "falcon-h1",
            ssm__conv_kernel=4,
            ssm__inner_size=3072,
            ssm__state_size=256,
            ssm__group_count=1,
        )
    )
    assert len(found.layers) == 30
    assert found.state == State(30, 3 * (3072 + 512), 256 * 3072)


def test_a_layer_without_heads_is_recurrent_in_hybrids() -> None:
    found = shape(
        plain(
            "granitehybrid",
            block_count=4,
            attention__head_count_kv=(0, 0, 4, 0),
            ssm__conv_kernel=4,
            ssm__inner_size=3072,
            ssm__state_size=128,
            ssm__group_count=1,
        )
    )
    assert found.layers == (Layer(4, 64, 64),)
    assert found.state == State(3, 3 * (3072 + 256), 128 * 3072)


def test_nemotron_h_has_layers_that_are_neither() -> None:
    found = shape(
        plain(
            "nemotron_h",
            block_count=4,
            attention__head_count_kv=(0, 0, 8, 0),
            feed_forward_length=(0, 12288, 0, 0),
            ssm__conv_kernel=4,
            ssm__inner_size=1024,
            ssm__state_size=128,
            ssm__group_count=8,
        )
    )
    assert len(found.layers) == 1
    assert found.state == State(2, 3 * (1024 + 2 * 8 * 128), 128 * 1024)


def test_lfm2_remembers_the_last_tokens_of_its_convolutions() -> None:
    found = shape(
        plain(
            "lfm2",
            block_count=3,
            embedding_length=1024,
            attention__head_count=16,
            attention__head_count_kv=(0, 8, 0),
            shortconv__l_cache=3,
        )
    )
    assert found.layers == (Layer(8, 64, 64),)
    assert found.state == State(2, 1024 * 2, 0)
    assert state_bytes(found, 3) == 3 * 2 * 2048 * F32


def test_rwkv_remembers_two_tokens_and_a_matrix_for_each_head() -> None:
    sizes: dict[str, object] = {"block_count": 12, "embedding_length": 768, "wkv__head_size": 64}
    assert shape(header("rwkv7", **sizes)).state == State(12, 2 * 768, 768 * 64)
    one = shape(header("arwkv7", **sizes, token_shift_count=1))
    assert one.state == State(12, 768, 768 * 64)


def test_delta_attention_keeps_three_convolutions_and_a_matrix_for_each_head() -> None:
    found = shape(
        plain(
            "kimi-linear",
            block_count=2,
            attention__head_count=32,
            attention__head_count_kv=(0, 1),
            attention__key_length=576,
            attention__value_length=512,
            attention__key_length_mla=192,
            attention__value_length_mla=128,
            ssm__conv_kernel=4,
            kda__head_dim=128,
        )
    )
    assert found.layers == (Layer(1, 576, 0),)
    assert found.state == State(1, 3 * 3 * 32 * 128, 128 * 128 * 32)


def test_lightning_attention_keeps_a_matrix_for_each_head() -> None:
    found = shape(
        plain(
            "minimax-01",
            block_count=16,
            attention__head_count=64,
            attention__head_count_kv=8,
            attention__key_length=128,
            attention__value_length=128,
        )
    )
    assert len(found.layers) == 2  # every eighth
    assert found.state == State(14, 0, 128 * 128 * 64)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        (plain("deepseek32"), "an index of its own"),
        (plain("new-one", attention__indexer__key_length=128), "an index of its own"),
        (plain("deepseek4"), "compressed caches"),
        (plain("bert"), "embeddings"),
        (plain("t5"), "encoder and decoder"),
        (plain("eagle3"), "drafts for another model"),
        (plain("new-one", ssm__state_size=16), "which layers of new-one models are recurrent"),
        (plain("mamba"), "how large the state"),
        (plain("jamba", attention__head_count_kv=(0,) * 30), "how large the state"),
        (plain("qwen3next", full_attention_interval=0), "contradicts itself"),
        (plain("nemotron_h", attention__head_count_kv=(0,) * 30), "which layers have attention"),
    ],
)
def test_other_rules_are_named_not_approximated(metadata: dict[str, object], words: str) -> None:
    assert words in reason(metadata)
    assert reason(metadata).startswith("the memory of a request cannot be computed: ")


# ------------------------------------------------------------------------------------ any header


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"general.architecture": 7},
        plain(block_count=0),
        plain(block_count=1 << 40),
        plain(block_count=True),
        plain(nextn_predict_layers=30),
        plain(attention__head_count=0),
        plain(attention__head_count=()),
        plain(attention__head_count_kv=(3, 3)),
        plain(attention__head_count_kv="3"),
        plain(embedding_length=0),
    ],
)
def test_a_header_that_makes_no_sense_gives_a_reason(metadata: dict[str, object]) -> None:
    assert reason(metadata)


@given(
    st.sampled_from(
        ["llama", "gemma3", "gemma4", "qwen3next", "lfm2", "mamba", "rwkv7", "nemotron_h"]
    ),
    st.dictionaries(
        st.sampled_from(
            [
                "block_count",
                "embedding_length",
                "attention.head_count",
                "attention.head_count_kv",
                "attention.key_length",
                "attention.value_length",
                "attention.value_length_mla",
                "attention.key_length_mla",
                "attention.sliding_window",
                "attention.sliding_window_pattern",
                "attention.shared_kv_layers",
                "attention.recurrent_layers",
                "feed_forward_length",
                "full_attention_interval",
                "nextn_predict_layers",
                "ssm.inner_size",
                "ssm.state_size",
                "ssm.conv_kernel",
                "shortconv.l_cache",
                "wkv.head_size",
                "kda.head_dim",
            ]
        ),
        st.none()
        | st.booleans()
        | st.integers(-3, 100)
        | st.sampled_from(["6", "", 2.5, (), (1, 2), (True,) * 30, (3,) * 30, (0, -1), 1 << 63]),
    ),
)
def test_any_header_gives_a_shape_or_a_reason(architecture: str, values: dict[str, object]) -> None:
    metadata = plain(architecture) | {f"{architecture}.{key}": v for key, v in values.items()}
    found = from_gguf(metadata)
    assert (found.shape is None) != (found.reason is None)
    if found.shape is not None:
        prediction = predict_llamacpp(ModelMemory(found.shape), CacheLayout(2, 300))
        assert 0 <= prediction.bytes_per_slot <= prediction.total_bytes
