"""Prompts: exact to the token, alike where they should be, and never alike by accident."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.core.model import (
    ArrivalSpec,
    Cell,
    EngineConfig,
    EngineSpec,
    Role,
    Switch,
    WorkloadSpec,
)
from edgeagent.load.workload import NONCE_TOKENS, Job, Prompts, plant_text

ENGINE = EngineSpec("llamacpp", "llamacpp", ("llama-server",), "m.gguf")
TOKENS = tuple(random.Random(1).choices(range(1000, 1400), k=3000))


def cell(cache: Switch = "on", cell_id: str = "c1", **work: int) -> Cell:
    config = EngineConfig(ENGINE, 4, 512, cache, "off")
    return Cell(cell_id, config, 4, 0, WorkloadSpec(**work), 20)  # type: ignore[arg-type]


def ids(a_cell: Cell, index: int, attempt: str = "a", role: Role = "measured") -> tuple[int, ...]:
    prompts = Prompts(TOKENS, "", "completions")
    found = prompts.ask(Job(a_cell, attempt, role, index, 8)).prompt.token_ids
    assert found is not None
    return found


def common(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    pairs = zip(left, right, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


@given(st.integers(0, 400), st.integers(1, 400), st.integers(0, 50))
def test_prompts_have_exactly_the_tokens_asked_for(prefix: int, own: int, index: int) -> None:
    assert len(ids(cell(prefix_tokens=prefix, prompt_tokens=own), index)) == prefix + own


def test_requests_of_a_warm_cell_share_the_opening_and_only_that() -> None:
    warm = cell("on", prefix_tokens=200, prompt_tokens=50)
    for left, right in itertools.combinations(range(10), 2):
        shared = common(ids(warm, left), ids(warm, right))
        assert 200 <= shared < 200 + NONCE_TOKENS


def test_priming_sends_the_opening_that_the_measured_requests_have() -> None:
    warm = cell("on", prefix_tokens=200, prompt_tokens=50)
    assert common(ids(warm, 0, role="prime"), ids(warm, 0)) >= 200


def test_requests_of_a_cold_cell_share_nothing() -> None:
    cold = cell("off", prefix_tokens=200, prompt_tokens=50)
    for left, right in itertools.combinations(range(20), 2):
        assert common(ids(cold, left), ids(cold, right)) < NONCE_TOKENS


def test_neither_cells_nor_attempts_share_an_opening() -> None:
    first = ids(cell("on", "c1"), 0)
    assert common(first, ids(cell("on", "c2"), 0)) < NONCE_TOKENS
    assert common(first, ids(cell("on", "c1"), 0, attempt="b")) < NONCE_TOKENS


def test_the_same_job_is_always_the_same_prompt() -> None:
    assert ids(cell("off"), 3) == ids(cell("off"), 3)


def test_a_prime_is_pinned_to_its_slot_and_others_are_free() -> None:
    prompts = Prompts(TOKENS, "", "completions")
    assert prompts.ask(Job(cell(), "a", "prime", 2, 1)).slot == 2
    assert prompts.ask(Job(cell(), "a", "measured", 2, 1)).slot is None


def test_plant_text_is_repeatable_and_long_enough() -> None:
    text = plant_text(random.Random(7), 5_000)
    assert text == plant_text(random.Random(7), 5_000)
    assert len(text) >= 5_000
    assert "ALARM" in text


def test_without_a_tokenizer_text_is_about_as_long_as_asked() -> None:
    text = plant_text(random.Random(7), 9_000)
    prompts = Prompts(None, text, "chat")
    ask = prompts.ask(Job(cell(prefix_tokens=100, prompt_tokens=50), "a", "measured", 0, 8))
    assert ask.prompt.messages is not None
    assert abs(len(ask.prompt.messages[0]["content"]) - 150 * prompts.chars_per_token) < 10
    assert not prompts.exact


def test_own_traffic_is_sent_in_turn() -> None:
    own = ({"prompt": "one"}, {"messages": [{"role": "user", "content": "two"}]})
    config = EngineConfig(ENGINE, 4, 512, "on", "off")
    mine = Cell("c", config, 1, 0, WorkloadSpec(prompts=own), 4)
    prompts = Prompts(TOKENS, "", "completions")
    asked = [prompts.ask(Job(mine, "a", "measured", index, 8)).prompt for index in range(3)]
    assert [a.text for a in asked] == ["one", None, "one"]
    assert asked[1].messages == ({"role": "user", "content": "two"},)


def joined(cache: Switch, **work: int) -> Cell:
    arrival = ArrivalSpec(2, "none", 300, 300, 8, 2.0)
    return replace(cell(cache, "c1", **work), purpose="arrival", arrival=arrival)


def test_a_second_operators_prompt_has_its_own_length_and_shares_nothing() -> None:
    warm = joined("on", prefix_tokens=100, prompt_tokens=20)
    assert len(ids(warm, 0, role="operator")) == 300
    assert len(ids(warm, 0)) == 120
    assert common(ids(warm, 0, role="operator"), ids(warm, 0)) < NONCE_TOKENS
    assert common(ids(warm, 0, role="operator"), ids(warm, 2, role="operator")) < NONCE_TOKENS
    assert ids(warm, 2, role="operator") == ids(warm, 2, role="operator")


def test_a_second_operator_does_not_send_the_operators_own_traffic() -> None:
    own = WorkloadSpec(prompts=({"prompt": "mine"},))
    theirs = replace(joined("off"), workload=own)
    prompts = Prompts(None, plant_text(random.Random(3), 4000), "completions")
    assert prompts.ask(Job(theirs, "a", "measured", 0, 8)).prompt.text == "mine"
    text = prompts.ask(Job(theirs, "a", "operator", 0, 8)).prompt.text
    assert text is not None
    assert len(text) == pytest.approx(300 * prompts.chars_per_token, rel=0.02)
