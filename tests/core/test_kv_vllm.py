"""vLLM's pool by arithmetic, against figures worked out by hand or seen at run time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.core.kv import ModelMemory
from edgeagent.core.kv_model import CacheShape, Layer, State, uniform
from edgeagent.core.kv_vllm import Pool, PoolLayout, pool, predict_vllm, token_bytes
from edgeagent.errors import UsageError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

SMOLLM2 = uniform(layers=30, kv_heads=3, key_dim=64, value_dim=64)
LLAMA_3B = uniform(layers=28, kv_heads=8, key_dim=128, value_dim=128)
GEMMA3_4B = CacheShape(
    tuple(Layer(4, 256, 256, None if layer % 6 == 5 else 1024) for layer in range(34))
)
GPT_OSS = CacheShape(
    tuple(Layer(8, 64, 64, 128 if layer % 2 == 0 else None) for layer in range(24))
)
QWEN3_NEXT = CacheShape((Layer(2, 256, 256),) * 12, State(36, 3 * 8192, 128 * 4096))


def of(shape: CacheShape, layout: PoolLayout) -> Pool:
    found = pool(shape, layout)
    assert found.pool is not None, found.reason
    return found.pool


def test_a_block_of_smollm2_on_a_cpu_is_what_vllm_said() -> None:
    found = of(SMOLLM2, PoolLayout(1, 2048, block_tokens=128))
    assert found.bytes_per_block == 2_949_120  # 30 x 128 x 3 x 128 x 2
    assert found.sequence_blocks == 16
    assert found.blocks_in(GIB) == 364
    assert found.blocks_in(GIB // 2) == 182


def test_sequences_pay_for_whole_blocks_and_the_pool_for_one_more() -> None:
    # Seen with --num-gpu-blocks-override for 2, 8 and 16 sequences of 2,048 tokens.
    found = of(SMOLLM2, PoolLayout(1, 2048, block_tokens=128))
    assert [found.blocks(n) for n in (2, 8, 16)] == [33, 129, 257]
    assert found.sequence_blocks * found.bytes_per_block == 45 * MIB
    assert of(SMOLLM2, PoolLayout(1, 257, block_tokens=128)).sequence_blocks == 3
    assert of(SMOLLM2, PoolLayout(1, 256, block_tokens=128)).sequence_blocks == 2


@pytest.mark.parametrize(
    ("shape", "kib"),
    [
        (LLAMA_3B, 1792),  # 28 x 16 x 8 x 256 x 2 = 1.75 MiB
        (GEMMA3_4B, 320),  # 5 layers of 16 x 4 x 512 x 2
        (GPT_OSS, 384),  # 12 layers of 16 x 8 x 128 x 2
    ],
)
def test_a_block_costs_a_page_in_each_layer_of_a_group(shape: CacheShape, kib: int) -> None:
    assert of(shape, PoolLayout(1, 4096)).bytes_per_block == kib * KIB


def test_each_group_draws_from_the_pool() -> None:
    # Gemma 3: one group of 5 layers that see all, six of windowed ones (one filled up).
    # Windowed: min(1024 - 1 + 2048, 8192) = 3071 tokens, 192 blocks and one more.
    found = of(GEMMA3_4B, PoolLayout(1, 8192))
    assert found.sequence_blocks == 512 + 6 * 193
    # Below the window every group has the whole sequence and its spare block.
    assert of(GEMMA3_4B, PoolLayout(1, 512)).sequence_blocks == 32 + 6 * 33


def test_kinds_of_nearly_as_many_layers_make_one_group_each() -> None:
    # 12 and 13 layers: groups of 13, so that two blocks of a pool serve a step and not many.
    mixed = CacheShape((Layer(1, 64, 64),) * 12 + (Layer(1, 64, 64, 128),) * 13)
    found = of(mixed, PoolLayout(1, 16))
    assert found.bytes_per_block == 13 * 16 * 128 * 2
    assert found.sequence_blocks == 1 + 2


def test_a_recurrent_state_raises_the_block_and_costs_one_in_each_group() -> None:
    # A layer's state: 3 x 8192 x 2 + 128 x 4096 x 4 = 2,146,304 bytes; a token of a layer with
    # attention 2 x 512 x 2 = 2,048. So 16 x ceil(2,146,304 / 32,768) = 1,056 tokens a block.
    found = of(QWEN3_NEXT, PoolLayout(1, 4096))
    assert found.block_tokens == 1056
    assert found.bytes_per_block == 12 * 1056 * 2048
    assert (found.attention_blocks, found.state_blocks) == (4, 3)
    prediction = predict_vllm(ModelMemory(QWEN3_NEXT), found, PoolLayout(2, 4096))
    assert prediction.state_bytes == 6 * found.bytes_per_block
    assert prediction.kv_bytes == 9 * found.bytes_per_block  # two sequences and the null block


@pytest.mark.parametrize(
    ("kv_type", "element_type", "expected"),
    [
        ("auto", "bfloat16", 23_040),
        ("auto", "float16", 23_040),
        ("auto", "float32", 23_040),  # served in 16 bits
        ("auto", None, 23_040),
        ("fp8", "bfloat16", 11_520),
        ("fp8_e5m2", "bfloat16", 11_520),
        ("bfloat16", "float32", 23_040),
    ],
)
def test_the_type_is_the_models_or_8_bits(
    kv_type: str, element_type: str | None, expected: int
) -> None:
    assert token_bytes(SMOLLM2, kv_type, element_type) == expected


def test_a_type_of_the_other_engine_is_refused() -> None:
    with pytest.raises(UsageError, match="q8_0 is not known to vLLM: use one of auto, fp8"):
        pool(SMOLLM2, PoolLayout(1, 256, "q8_0"))


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (CacheShape((Layer(1, 64, 64), Layer(2, 64, 64))), "differ in size"),
        (CacheShape((), State(3, 10, 10)), "no attention"),
    ],
)
def test_what_the_rules_do_not_tell_is_a_reason(shape: CacheShape, words: str) -> None:
    assert words in (pool(shape, PoolLayout(1, 256)).reason or "")


def test_the_total_is_weights_and_pool() -> None:
    layout = PoolLayout(4, 2048, block_tokens=128)
    model = ModelMemory(SMOLLM2, weights_bytes=269 * MIB, compute_bytes=10 * MIB)
    prediction = predict_vllm(model, of(SMOLLM2, layout), layout)
    assert prediction.kv_bytes == 65 * 2_949_120
    assert prediction.total_bytes == 279 * MIB + 65 * 2_949_120
    assert prediction.bytes_per_slot == 45 * MIB
    assert prediction.output_bytes is None


@given(
    shape=st.sampled_from([SMOLLM2, LLAMA_3B, GEMMA3_4B, GPT_OSS, QWEN3_NEXT]),
    length=st.integers(1, 100_000),
    block=st.sampled_from([16, 32, 128]),
)
def test_a_sequence_has_room_for_all_its_tokens(shape: CacheShape, length: int, block: int) -> None:
    found = of(shape, PoolLayout(1, length, block_tokens=block))
    longer = of(shape, PoolLayout(1, length + 1, block_tokens=block))
    assert longer.sequence_blocks >= found.sequence_blocks
    full = sum(2 * (layer.key_row + layer.value_row) for layer in shape.layers if not layer.window)
    assert found.sequence_blocks * found.bytes_per_block >= full * length
