"""What a vLLM says of itself is believed, compared with what was asked, or refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
from engine_places import FIXTURES
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.core.kv_model import uniform
from edgeagent.core.model import EngineConfig, EngineSpec, ModelIdentity, ServerFacts
from edgeagent.engines.prometheus import parse
from edgeagent.engines.vllm_facts import PoolSeen, believed, counters, pool_seen, with_pool
from edgeagent.engines.vllm_flags import Place, PoolPlan, VllmModel, plan_pool
from edgeagent.errors import DeviceMismatchError, EngineError

METRICS = (FIXTURES / "vllm" / "metrics.txt").read_text(encoding="utf-8")
SPEC = EngineSpec("v", "vllm", ("vllm",), "m")
CONFIG = EngineConfig(SPEC, 4, 512, "on", "off")
GOOD = ServerFacts(slots=4, context_per_slot=512, prefix_cache=True, speculative=False)
SHAPE = uniform(30, 3, 64, 64)


def plan() -> PoolPlan:
    model = VllmModel(ModelIdentity("m", "/m"), SHAPE, element_type="bfloat16")
    found, _ = plan_pool(CONFIG, model, Place(gpu=False, cores=2))
    assert found is not None
    return found


def seen(blocks: int, block_tokens: int = 128) -> ServerFacts:
    return with_pool(
        replace(GOOD, details={"num_gpu_blocks": blocks, "block_size": block_tokens}),
        plan(),
        SHAPE,
    )


# ------------------------------------------------------------------------------------ counters


def test_the_page_of_a_real_one_is_read() -> None:
    assert counters(METRICS) == {
        "prompt_tokens": 0,
        "cached_prompt_tokens": 0,
        "output_tokens": 0,
        "preemptions": 0,
        "requests_running": 0,
        "requests_waiting": 0,
        "kv_blocks": 67,
        "kv_blocks_used": 0,
    }
    assert pool_seen(parse(METRICS)) == PoolSeen(68, 128, "auto", prefix_cache=True)


@given(st.integers(2, 100_000).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))))
def test_blocks_in_use_are_exact_though_told_as_a_share(pool: tuple[int, int]) -> None:
    blocks, used = pool
    page = (
        f'vllm:cache_config_info{{engine="0",num_gpu_blocks="{blocks}"}} 1.0\n'
        f'vllm:kv_cache_usage_perc{{engine="0"}} {used / (blocks - 1)!r}\n'
    )
    assert counters(page) == {"kv_blocks": blocks - 1, "kv_blocks_used": used}


def test_the_blocks_of_several_engines_add_up() -> None:
    page = "".join(
        f'vllm:cache_config_info{{engine="{engine}",num_gpu_blocks="11"}} 1.0\n'
        f'vllm:kv_cache_usage_perc{{engine="{engine}"}} {usage}\n'
        for engine, usage in ((0, 0.2), (1, 0.5))
    )
    assert counters(page) == {"kv_blocks": 20, "kv_blocks_used": 7}


def test_speculation_is_counted_in_drafts_and_tokens() -> None:
    page = (
        "vllm:spec_decode_num_drafts_total 10.0\nvllm:spec_decode_num_drafts_created 1.7e9\n"
        "vllm:spec_decode_num_draft_tokens_total 40.0\n"
        "vllm:spec_decode_num_accepted_tokens_total 12.0\n"
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 8.0\n'
    )
    assert counters(page) == {"drafts": 10, "draft_tokens": 40, "draft_accepted": 12}


@pytest.mark.parametrize(
    "page",
    ["", "html", 'vllm:cache_config_info{num_gpu_blocks="None"} 1.0\nvllm:kv_cache_usage_perc 0.5'],
)
def test_what_it_does_not_say_is_not_counted(page: str) -> None:
    assert counters(page) == {}


@given(st.text(alphabet='vllm:kv_cache_usage_perc{}="0.5 \n'))
def test_any_page_is_read(text: str) -> None:
    counters(text)


# ---------------------------------------------------------------------------------------- pool


def test_a_pool_as_planned_is_known_to_the_byte() -> None:
    details = believed(CONFIG, seen(17)).details
    assert details["differences"] == []
    assert details["kv_block_bytes"] == 2_949_120
    assert details["kv_pool_bytes"] == 17 * 2_949_120
    assert details["kv_blocks_needed"] == 17


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (seen(16), ["its pool has 16 blocks and 4 slots at full length need 17: requests may"]),
        (seen(20), ["its pool has 20 blocks, 17 were asked for"]),
        (seen(136, 16), ["its blocks hold 16 tokens, 128 were expected"]),
        (
            seen(100, 16),
            [
                "its blocks hold 16 tokens, 128 were expected",
                # 4 slots of 512 tokens are 128 blocks of 16, and one that holds nothing.
                "its pool has 100 blocks and 4 slots at full length need 129: requests may be set",
            ],
        ),
        (replace(GOOD, prefix_cache=False), ["asked for prefix caching on, it is off"]),
    ],
)
def test_what_only_weakens_the_answer_is_a_difference(facts: ServerFacts, words: list[str]) -> None:
    differences = believed(CONFIG, facts).details["differences"]
    assert isinstance(differences, list)
    assert len(differences) == len(words)
    assert all(text.startswith(start) for text, start in zip(differences, words, strict=True))


def test_speculation_that_is_off_is_a_difference() -> None:
    config = replace(CONFIG, speculation="ngram")
    assert believed(config, GOOD).details["differences"] == [
        "asked for speculation ngram, it does not speculate"
    ]
    assert believed(config, replace(GOOD, speculative=None)).details["differences"] == []


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (replace(GOOD, slots=2), "asked for 4 sequences at a time, it has 2"),
        (replace(GOOD, context_per_slot=256), "asked for 512 tokens per sequence, it has 256"),
    ],
)
def test_another_question_than_asked_is_refused(facts: ServerFacts, words: str) -> None:
    with pytest.raises(EngineError, match=words):
        believed(CONFIG, facts)


@pytest.mark.parametrize(
    ("asked", "device", "words"),
    [
        ("gpu", "cpu", "the GPU was asked for and it computes on the CPU"),
        ("cpu", "cuda", "the CPU was asked for and it computes on a GPU"),
    ],
)
def test_another_device_than_asked_is_a_mismatch(
    asked: Literal["cpu", "gpu"], device: str, words: str
) -> None:
    facts = replace(GOOD, details={"device": device})
    with pytest.raises(DeviceMismatchError, match=words) as caught:
        believed(replace(CONFIG, device=asked), facts)
    assert str(caught.value).startswith("device_mismatch: ")


@pytest.mark.parametrize(("asked", "device"), [("cpu", "cpu"), ("gpu", "cuda"), ("auto", "cpu")])
def test_the_device_that_was_asked_for_is_believed(
    asked: Literal["auto", "cpu", "gpu"], device: str
) -> None:
    believed(replace(CONFIG, device=asked), replace(GOOD, details={"device": device}))
