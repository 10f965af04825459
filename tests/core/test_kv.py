"""The attention cache by arithmetic, against figures worked out by hand or read from a log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.core.kv import (
    CELL_METADATA_BYTES,
    CacheLayout,
    ModelMemory,
    Sharing,
    cache_bytes,
    cells,
    lasting_token_bytes,
    predict_llamacpp,
    state_bytes,
    token_bytes,
)
from edgeagent.core.kv_model import CacheShape, Layer, State, uniform
from edgeagent.errors import UsageError

MIB = 1 << 20

SMOLLM2 = uniform(layers=30, kv_heads=3, key_dim=64, value_dim=64)
LLAMA_3B = uniform(layers=28, kv_heads=8, key_dim=128, value_dim=128)
QWEN25_7B = uniform(layers=28, kv_heads=4, key_dim=128, value_dim=128)
QWEN3_4B = uniform(layers=36, kv_heads=8, key_dim=128, value_dim=128)
GEMMA3_4B = CacheShape(
    tuple(Layer(4, 256, 256, None if layer % 6 == 5 else 1024) for layer in range(34))
)
GPT_OSS = CacheShape(
    tuple(Layer(8, 64, 64, 128 if layer % 2 == 0 else None) for layer in range(24))
)
# One row of 512 + 64 elements in each of 27 layers, no values.
DEEPSEEK_V2_LITE = CacheShape((Layer(1, 576, 0),) * 27)
# 12 layers with attention, 36 with a state of 3 x 8192 and 128 x 4096 elements.
QWEN3_NEXT = CacheShape((Layer(2, 256, 256),) * 12, State(36, 3 * 8192, 128 * 4096))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (SMOLLM2, 23_040),  # 30 layers x 3 heads x (64 + 64) x 2 bytes
        (LLAMA_3B, 114_688),  # 28 x 8 x 256 x 2
        (QWEN25_7B, 57_344),  # 28 x 4 x 256 x 2
        (QWEN3_4B, 147_456),  # 36 x 8 x 256 x 2
        (GEMMA3_4B, 139_264),  # 34 x 4 x 512 x 2
        (GPT_OSS, 49_152),  # 24 x 8 x 128 x 2
        (DEEPSEEK_V2_LITE, 31_104),  # 27 x 576 x 2
        (QWEN3_NEXT, 24_576),  # 12 x 2 x 512 x 2
    ],
)
def test_a_token_costs_heads_times_dimensions_in_every_layer(
    shape: CacheShape, expected: int
) -> None:
    assert token_bytes(shape) == expected


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
    ("shape", "context", "mib"),
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
    shape: CacheShape, context: int, mib: float
) -> None:
    assert cache_bytes(shape, CacheLayout(1, context)) == mib * MIB


@pytest.mark.parametrize(
    ("shape", "slots", "mib"),
    [
        (GEMMA3_4B, 1, 334.0),
        (GEMMA3_4B, 4, 682.0),  # 5 x 8192 + 29 x (4 x 1024 + 512) cells
        (GEMMA3_4B, 8, 1_088.0),  # the windows of eight exceed the cache: all layers are full
        (GPT_OSS, 4, 216.0),
        (GPT_OSS, 8, 228.0),
        (GPT_OSS, 16, 252.0),
    ],
)
def test_a_unified_cache_grows_by_windows_alone(shape: CacheShape, slots: int, mib: float) -> None:
    layout = CacheLayout(slots, 8_192 // slots, sharing="unified")
    assert cache_bytes(shape, layout) == mib * MIB


def test_a_slot_is_padded_to_256_cells() -> None:
    assert cache_bytes(SMOLLM2, CacheLayout(1, 257)) == 512 * 23_040
    assert cache_bytes(SMOLLM2, CacheLayout(3, 256)) == 3 * 256 * 23_040


@pytest.mark.parametrize(
    ("shape", "f16", "q8_0", "q4_0"),
    [
        (LLAMA_3B, 112.0, 59.5, 31.5),
        (QWEN25_7B, 56.0, 29.75, 15.75),
        (QWEN3_4B, 144.0, 76.5, 40.5),
        (GEMMA3_4B, 136.0, 72.25, 38.25),
        (GPT_OSS, 48.0, 25.5, 13.5),
        (SMOLLM2, 22.5, 11.953125, 6.328125),
    ],
)
def test_a_thousand_tokens_of_known_models(
    shape: CacheShape, f16: float, q8_0: float, q4_0: float
) -> None:
    found = [token_bytes(shape, kind) * 1024 / MIB for kind in ("f16", "q8_0", "q4_0")]
    assert found == [f16, q8_0, q4_0]


def test_a_full_cache_for_windowed_layers_is_as_large_as_if_none_were() -> None:
    layout = CacheLayout(1, 4_096, window_cache="full")
    assert cache_bytes(GEMMA3_4B, layout) == 544 * MIB  # 34 x 4096 cells of 4,096 bytes


def test_latent_attention_keeps_one_row_and_no_values() -> None:
    assert cache_bytes(DEEPSEEK_V2_LITE, CacheLayout(2, 1024)) == 2 * 1024 * 31_104
    assert token_bytes(DEEPSEEK_V2_LITE, "q8_0") == 27 * 576 // 32 * 34


def test_a_recurrent_state_is_paid_per_slot_and_not_per_token() -> None:
    # 36 layers x 4 bytes x (3 x 8192 + 128 x 4096) = 79,036,416 bytes = 75.4 MiB
    assert state_bytes(QWEN3_NEXT, 1) == 79_036_416
    model = ModelMemory(QWEN3_NEXT)
    short = predict_llamacpp(model, CacheLayout(4, 256))
    long = predict_llamacpp(model, CacheLayout(4, 8192))
    quantized = predict_llamacpp(model, CacheLayout(4, 8192, "q8_0"))
    unified = predict_llamacpp(model, CacheLayout(4, 8192, sharing="unified"))
    assert {item.state_bytes for item in (short, long, quantized, unified)} == {4 * 79_036_416}
    assert long.kv_bytes == 4 * 8192 * 24_576


def test_without_attention_there_is_no_cache_and_no_cell() -> None:
    mamba = CacheShape((), State(24, 3 * 1536, 16 * 1536))
    prediction = predict_llamacpp(ModelMemory(mamba), CacheLayout(4, 8192))
    assert (prediction.kv_bytes, prediction.metadata_bytes) == (0, 0)
    assert prediction.bytes_per_slot == 24 * 4 * (3 + 16) * 1536


def test_without_flash_attention_values_are_as_wide_as_the_widest_layer() -> None:
    mixed = CacheShape((Layer(2, 64, 64), Layer(4, 64, 64)))
    # keys 128 and 256 elements, values 256 twice, 2 bytes each
    off = CacheLayout(1, 256, flash_attention="off")
    assert cache_bytes(mixed, off) == 256 * 2 * (128 + 256 + 256 + 256)
    assert cache_bytes(LLAMA_3B, off) == cache_bytes(LLAMA_3B, CacheLayout(1, 256))
    assert cache_bytes(DEEPSEEK_V2_LITE, off) == 256 * 31_104


def test_every_slot_has_a_row_of_logits() -> None:
    # SmolLM2's vocabulary has 49,152 entries: 4 x 49152 x 4 = 0.75 MiB, as the log says.
    model = ModelMemory(SMOLLM2, 100 * MIB, 49_152)
    prediction = predict_llamacpp(model, CacheLayout(4, 1024))
    assert prediction.output_bytes == 0.75 * MIB
    assert prediction.metadata_bytes == 4 * 1024 * 48
    assert prediction.total_bytes == (100 + 90 + 0.75) * MIB + 4 * 1024 * 48


@pytest.mark.parametrize(
    ("vocabulary", "kib"),
    [(128_256, 501), (152_064, 594), (262_144, 1024), (201_088, 785.5), (49_152, 192)],
)
def test_a_row_of_logits_of_known_models(vocabulary: int, kib: float) -> None:
    prediction = predict_llamacpp(ModelMemory(SMOLLM2, 0, vocabulary), CacheLayout(1, 256))
    assert prediction.output_bytes == kib * 1024


def test_one_more_slot_costs_its_cells_its_row_and_its_records() -> None:
    prediction = predict_llamacpp(ModelMemory(SMOLLM2, 100 * MIB, 49_152), CacheLayout(4, 1024))
    # 22.5 MiB of cache, 192 KiB of logits, 48 KiB of records
    assert prediction.bytes_per_slot == 22.5 * MIB + (192 + 48) * 1024


def test_records_are_kept_of_the_full_and_of_the_windowed_cells() -> None:
    assert cells(SMOLLM2, CacheLayout(2, 1000)) == 2 * 1024
    assert cells(GEMMA3_4B, CacheLayout(2, 4096)) == 2 * (4096 + 1536)
    assert cells(GEMMA3_4B, CacheLayout(2, 4096, sharing="unified")) == 8192 + 2560
    assert CELL_METADATA_BYTES == 4 + 8 + 4 + 256 // 8


def test_a_draft_model_has_the_same_cells_in_its_own_sizes() -> None:
    draft = ModelMemory(SMOLLM2, 100 * MIB, 49_152)
    target = ModelMemory(LLAMA_3B, 2000 * MIB, 49_152, draft=draft)
    layout = CacheLayout(4, 1024, "q8_0")
    prediction = predict_llamacpp(target, layout)
    alone = predict_llamacpp(draft, CacheLayout(4, 1024))  # in f16, which is the draft's default
    assert prediction.draft_bytes == alone.total_bytes
    assert prediction.kv_bytes == 4 * 59.5 * MIB
    # one row of logits more for each of three drafted tokens
    assert prediction.output_bytes == 4 * 4 * 49_152 * 4
    more = 59.5 * MIB + 4 * 4 * 49_152 + 1024 * 48 + alone.bytes_per_slot
    assert prediction.bytes_per_slot == more


def test_what_is_unknown_stays_none_and_out_of_the_total() -> None:
    prediction = predict_llamacpp(ModelMemory(SMOLLM2), CacheLayout(1, 256))
    assert prediction.weights_bytes is None
    assert prediction.output_bytes is None
    assert prediction.compute_bytes is None
    assert prediction.total_bytes == prediction.kv_bytes + prediction.metadata_bytes
    known = ModelMemory(SMOLLM2, compute_bytes=15 * MIB, compute_source="measured")
    with_compute = predict_llamacpp(known, CacheLayout(1, 256))
    assert with_compute.total_bytes == prediction.total_bytes + 15 * MIB


def test_an_unknown_cache_type_is_named_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="q9_9 is not known: use one of f32, f16"):
        token_bytes(SMOLLM2, "q9_9")


def test_heads_that_do_not_fill_a_block_are_refused_as_llama_cpp_does() -> None:
    with pytest.raises(UsageError, match="packs 32 elements and this model's heads have 80"):
        token_bytes(uniform(2, 2, 80, 80), "q8_0")


def test_layers_may_differ_in_heads() -> None:
    # 2 heads, none, 4 heads, each head 2 x 64 elements of 2 bytes
    mixed = CacheShape((Layer(2, 64, 64), Layer(0, 64, 64), Layer(4, 64, 64)))
    assert token_bytes(mixed) == 6 * 256


@given(
    slots=st.integers(1, 64),
    context=st.integers(1, 40_000),
    shape=st.sampled_from([SMOLLM2, GEMMA3_4B, GPT_OSS, DEEPSEEK_V2_LITE, QWEN3_NEXT]),
)
def test_a_split_cache_is_proportional_to_slots(
    slots: int, context: int, shape: CacheShape
) -> None:
    one = cache_bytes(shape, CacheLayout(1, context))
    assert cache_bytes(shape, CacheLayout(slots, context)) == slots * one
    assert one <= token_bytes(shape) * (context + 255)
    # A unified cache never needs more than a split one: padding and batches are shared.
    assert cache_bytes(shape, CacheLayout(slots, context, sharing="unified")) <= slots * one


@given(
    slots=st.integers(1, 64),
    context=st.integers(1, 40_000),
    shape=st.sampled_from([SMOLLM2, GEMMA3_4B, QWEN3_NEXT]),
    sharing=st.sampled_from(["split", "unified"]),
)
def test_one_more_slot_or_token_never_takes_less(
    slots: int, context: int, shape: CacheShape, sharing: Sharing
) -> None:
    def total(more_slots: int, more_context: int) -> int:
        layout = CacheLayout(slots + more_slots, context + more_context, sharing=sharing)
        return predict_llamacpp(ModelMemory(shape, 1000, 50_000), layout).total_bytes

    assert total(0, 0) <= total(0, 1) <= total(1, 1)
    layout = CacheLayout(slots, context, sharing=sharing)
    prediction = predict_llamacpp(ModelMemory(shape, 1000, 50_000), layout)
    assert prediction.bytes_per_slot == total(1, 0) - total(0, 0)
