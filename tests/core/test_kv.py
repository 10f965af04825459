"""The attention cache by arithmetic, against figures worked out by hand or read from a log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.core.kv import (
    Attention,
    CacheLayout,
    cache_bytes,
    from_gguf,
    lasting_token_bytes,
    predict_llamacpp,
    token_bytes,
)
from edgeagent.errors import UsageError

MIB = 1 << 20

SMOLLM2 = Attention(layers=30, kv_heads=3, key_dim=64, value_dim=64)
LLAMA_3B = Attention(layers=28, kv_heads=8, key_dim=128, value_dim=128)
QWEN25_7B = Attention(layers=28, kv_heads=4, key_dim=128, value_dim=128)
QWEN3_4B = Attention(layers=36, kv_heads=8, key_dim=128, value_dim=128)
GEMMA3_4B = Attention(34, 4, 256, 256, 1024, tuple(layer % 6 != 5 for layer in range(34)))
GPT_OSS = Attention(24, 8, 64, 64, 128, tuple(layer % 2 == 0 for layer in range(24)))


@pytest.mark.parametrize(
    ("attention", "expected"),
    [
        (SMOLLM2, 23_040),  # 30 layers x 3 heads x (64 + 64) x 2 bytes
        (LLAMA_3B, 114_688),  # 28 x 8 x 256 x 2
        (QWEN25_7B, 57_344),  # 28 x 4 x 256 x 2
        (QWEN3_4B, 147_456),  # 36 x 8 x 256 x 2
        (GEMMA3_4B, 139_264),  # 34 x 4 x 512 x 2
        (GPT_OSS, 49_152),  # 24 x 8 x 128 x 2
    ],
)
def test_a_token_costs_heads_times_dimensions_in_every_layer(
    attention: Attention, expected: int
) -> None:
    assert token_bytes(attention) == expected


@pytest.mark.parametrize(
    ("kv_type", "mib"),
    # 112 MiB of f16, times (34, 24, 22, 20, 18) / 64: bytes of a 32-block over its f16 bytes
    [
        ("f32", 224.0),
        ("f16", 112.0),
        ("bf16", 112.0),
        ("q8_0", 59.5),
        ("q5_1", 42.0),
        ("q5_0", 38.5),
        ("q4_1", 35.0),
        ("q4_0", 31.5),
        ("iq4_nl", 31.5),
    ],
)
def test_quantized_caches_count_their_blocks(kv_type: str, mib: float) -> None:
    assert token_bytes(LLAMA_3B, kv_type) * 1024 == mib * MIB


def test_beyond_the_window_only_layers_that_see_all_grow() -> None:
    assert lasting_token_bytes(GEMMA3_4B) == 20_480  # 5 of 34 layers x 4 x 512 x 2
    assert lasting_token_bytes(GPT_OSS) == 24_576  # half of its layers
    assert lasting_token_bytes(LLAMA_3B) == token_bytes(LLAMA_3B)


@pytest.mark.parametrize(
    ("slots", "kv_type", "mib"),
    # As llama-server b10434 logged them for SmolLM2-135M with 1,024 tokens per slot.
    [(2, "f16", 45.0), (4, "f16", 90.0), (8, "f16", 180.0), (8, "q8_0", 95.625)],
)
def test_the_prediction_is_what_llama_server_logs(slots: int, kv_type: str, mib: float) -> None:
    assert cache_bytes(SMOLLM2, CacheLayout(slots, 1024, kv_type)) == mib * MIB


@pytest.mark.parametrize(
    ("attention", "context", "mib"),
    [
        (GEMMA3_4B, 4_096, 254.0),  # 5 x 4096 + 29 x 1536 cells of 4,096 bytes
        (GEMMA3_4B, 8_192, 334.0),
        (GEMMA3_4B, 32_768, 814.0),
        (GPT_OSS, 1_024, 42.0),  # 12 x 1024 + 12 x 768 cells of 2,048 bytes
        (GPT_OSS, 4_096, 114.0),
        (GPT_OSS, 8_192, 210.0),
    ],
)
def test_windowed_layers_keep_the_window_and_one_batch(
    attention: Attention, context: int, mib: float
) -> None:
    assert cache_bytes(attention, CacheLayout(1, context)) == mib * MIB


@pytest.mark.parametrize(
    ("attention", "slots", "mib"),
    [
        (GEMMA3_4B, 1, 334.0),
        (GEMMA3_4B, 4, 682.0),  # 5 x 8192 + 29 x (4 x 1024 + 512) cells
        (GEMMA3_4B, 8, 1_088.0),  # the windows of eight exceed the cache: all layers are full
        (GPT_OSS, 4, 216.0),
        (GPT_OSS, 8, 228.0),
        (GPT_OSS, 16, 252.0),
    ],
)
def test_a_unified_cache_grows_by_windows_alone(
    attention: Attention, slots: int, mib: float
) -> None:
    layout = CacheLayout(slots, 8_192 // slots, sharing="unified")
    assert cache_bytes(attention, layout) == mib * MIB


def test_a_slot_is_padded_to_256_cells() -> None:
    assert cache_bytes(SMOLLM2, CacheLayout(1, 257)) == 512 * 23_040
    assert cache_bytes(SMOLLM2, CacheLayout(3, 256)) == 3 * 256 * 23_040


def test_every_slot_has_a_row_of_logits() -> None:
    # SmolLM2's vocabulary has 49,152 entries: 4 x 49152 x 4 = 0.75 MiB, as the log says.
    prediction = predict_llamacpp(SMOLLM2, CacheLayout(4, 1024), 100 * MIB, 49_152)
    assert prediction.output_bytes == 0.75 * MIB
    assert prediction.total_bytes == (100 + 90 + 0.75) * MIB


def test_what_is_unknown_stays_none_and_out_of_the_total() -> None:
    prediction = predict_llamacpp(SMOLLM2, CacheLayout(1, 256), None, None)
    assert prediction.weights_bytes is None
    assert prediction.output_bytes is None
    assert prediction.compute_bytes is None
    assert prediction.total_bytes == prediction.kv_bytes


def test_an_unknown_cache_type_is_named_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="q9_9 is not known: use one of f32, f16"):
        token_bytes(SMOLLM2, "q9_9")


def test_heads_that_do_not_fill_a_block_are_refused_as_llama_cpp_does() -> None:
    with pytest.raises(UsageError, match="packs 32 elements and this model's heads have 80"):
        token_bytes(Attention(2, 2, 80, 80), "q8_0")


def test_layers_may_differ_in_heads() -> None:
    # 2 heads, none, 4 heads, each head 2 x 64 elements of 2 bytes
    assert token_bytes(Attention(3, (2, 0, 4), 64, 64)) == 6 * 256


@given(
    slots=st.integers(1, 64),
    context=st.integers(1, 40_000),
    attention=st.sampled_from([SMOLLM2, GEMMA3_4B, GPT_OSS]),
)
def test_a_split_cache_is_proportional_to_slots(
    slots: int, context: int, attention: Attention
) -> None:
    one = cache_bytes(attention, CacheLayout(1, context))
    assert cache_bytes(attention, CacheLayout(slots, context)) == slots * one
    assert one <= token_bytes(attention) * (context + 255)
    # A unified cache never needs more than a split one: padding and batches are shared.
    assert cache_bytes(attention, CacheLayout(slots, context, sharing="unified")) <= slots * one


# ------------------------------------------------------------------------- from a GGUF header


def header(**values: object) -> dict[str, object]:
    base: dict[str, object] = {
        "general.architecture": "llama",
        "llama.block_count": 30,
        "llama.embedding_length": 576,
        "llama.attention.head_count": 9,
        "llama.attention.head_count_kv": 3,
    }
    return base | {f"llama.{key}": value for key, value in values.items()}


def gemma(**values: object) -> dict[str, object]:
    base: dict[str, object] = {
        "general.architecture": "gemma3",
        "gemma3.block_count": 34,
        "gemma3.embedding_length": 2560,
        "gemma3.attention.head_count": 8,
        "gemma3.attention.head_count_kv": 4,
        "gemma3.attention.key_length": 256,
        "gemma3.attention.value_length": 256,
        "gemma3.attention.sliding_window": 1024,
    }
    return base | {f"gemma3.attention.{key}": value for key, value in values.items()}


def test_head_size_defaults_to_embedding_over_heads() -> None:
    assert from_gguf(header()).attention == SMOLLM2  # 576 / 9 = 64


def test_missing_key_value_heads_mean_as_many_as_heads() -> None:
    plain = header()
    del plain["llama.attention.head_count_kv"]
    attention = from_gguf(plain).attention
    assert attention is not None
    assert attention.kv_heads == 9


def test_every_sixth_layer_of_gemma3_sees_all() -> None:
    assert from_gguf(gemma()).attention == GEMMA3_4B
    by_layer = gemma(sliding_window_pattern=tuple(layer % 6 != 5 for layer in range(34)))
    assert from_gguf(by_layer).attention == GEMMA3_4B
    assert from_gguf(gemma(sliding_window_pattern=6)).attention == GEMMA3_4B


def test_a_period_of_one_windows_no_layer_and_of_none_all() -> None:
    never = from_gguf(gemma(sliding_window_pattern=1)).attention
    always = from_gguf(gemma(sliding_window_pattern=0)).attention
    assert never is not None
    assert always is not None
    assert lasting_token_bytes(never) == token_bytes(never)
    assert lasting_token_bytes(always) == 0


def test_a_window_whose_layers_are_unknown_is_not_guessed() -> None:
    assert "windowed" in (from_gguf(header(**{"attention.sliding_window": 4096})).reason or "")


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("attention.kv_lora_rank", "latent attention"),
        ("ssm.state_size", "recurrent"),
        ("attention.shared_kv_layers", "share their cache"),
    ],
)
def test_other_rules_are_named_not_approximated(key: str, words: str) -> None:
    found = from_gguf(header(**{key: 16}))
    assert found.attention is None
    assert words in (found.reason or "")


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "block_count",
                "embedding_length",
                "attention.head_count",
                "attention.head_count_kv",
                "attention.key_length",
                "attention.value_length",
                "attention.sliding_window",
                "attention.sliding_window_pattern",
            ]
        ),
        st.none()
        | st.booleans()
        | st.integers(-3, 100)
        | st.sampled_from(["6", "", 2.5, (), (1, 2), (True,) * 30, (3,) * 30, (0, -1)]),
    )
)
def test_any_header_gives_attention_or_a_reason(values: dict[str, object]) -> None:
    found = from_gguf(header(**values))
    assert (found.attention is None) != (found.reason is None)
    if found.attention is not None:
        assert token_bytes(found.attention) >= 0
        assert cache_bytes(found.attention, CacheLayout(2, 300)) >= 0


def test_an_empty_header_gives_a_reason() -> None:
    assert from_gguf({}).reason is not None
