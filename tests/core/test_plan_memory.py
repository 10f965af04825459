"""Where the starts for memory and the canary stand in a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_plan import LLAMA, OTHER, SPEC, kinds, plan

from edgeagent.core.model import EngineSpec, Measure, MeasureMemory, StopEngine
from edgeagent.core.plan import label, memory_configurations, memory_levels, remaining

WITH_MEMORY = replace(SPEC, memory_repeats=2, concurrency=(1, 4, 8))
WITH_CANARY = replace(SPEC, canary=5, prefix_cache=("off",), cooldown_s=0.0)


def test_memory_is_measured_at_every_slot_count_upwards_and_then_downwards() -> None:
    steps = [step for step in plan(WITH_MEMORY).steps if isinstance(step, MeasureMemory)]
    assert [step.cell.config.slots for step in steps] == [1, 4, 8, 8, 4, 1]
    assert [step.waves for step in steps] == [(1,), (4,), (8,), (8,), (4,), (1,)]
    assert len({step.cell.cell_id for step in steps}) == 6
    assert kinds(plan(WITH_MEMORY))[-6:] == ["memory"] * 6


def test_the_context_of_a_slot_stays_the_same_at_every_slot_count() -> None:
    assert {c.context_per_slot for c in memory_configurations(WITH_MEMORY)} == {512}


def test_only_engines_that_we_start_and_that_allocate_by_slot_are_measured_so() -> None:
    attached = EngineSpec("there", "llamacpp", url="http://127.0.0.1:1")
    unknown = EngineSpec("some", "openai", url="http://127.0.0.1:2")
    spec = replace(WITH_MEMORY, engines=(LLAMA, attached, unknown))
    assert {c.engine.id for c in memory_configurations(spec)} == {"llamacpp"}


def test_an_engine_with_a_pool_is_loaded_wave_by_wave_and_started_at_both_ends_once() -> None:
    there = EngineSpec("there", "vllm", url="http://127.0.0.1:1")
    steps = [
        step
        for step in plan(replace(WITH_MEMORY, engines=(OTHER, there))).steps
        if isinstance(step, MeasureMemory)
    ]
    assert [(s.cell.config.engine.id, s.cell.config.slots, s.waves) for s in steps] == [
        ("vllm", 1, (1,)), ("vllm", 8, (1, 4, 8)), ("there", 8, (1, 4, 8)),
    ]  # fmt: skip


def test_each_speculation_is_measured_and_one_setting_of_the_cache_is_enough() -> None:
    spec = replace(WITH_MEMORY, speculation=("off", "ngram"))
    found = {(c.speculation, c.prefix_cache) for c in memory_configurations(spec)}
    assert found == {("off", "off"), ("ngram", "off")}


@pytest.mark.parametrize(
    ("concurrency", "levels"),
    [
        ((1, 4, 8, 16), (1, 4, 8, 16)),
        ((1,), (1, 2, 3)),
        ((8,), (1, 4, 8)),
        ((1, 2), (1, 2, 3)),
        ((2, 16), (1, 2, 8, 16)),
        ((1, 2, 4, 8, 16, 32), (1, 4, 8, 32)),
    ],
)
def test_slot_counts_are_the_concurrencies_or_a_line_between_them(
    concurrency: tuple[int, ...], levels: tuple[int, ...]
) -> None:
    assert memory_levels(concurrency) == levels


@given(st.lists(st.integers(1, 1024), min_size=1, max_size=12, unique=True))
def test_slot_counts_are_three_or_four_and_reach_from_end_to_end(levels: list[int]) -> None:
    chosen = memory_levels(levels)
    assert 3 <= len(chosen) <= 4
    assert list(chosen) == sorted(set(chosen))
    assert chosen[-1] >= max(levels)
    assert chosen[0] <= min(levels)


def test_chosen_slot_counts_are_taken_as_they_are() -> None:
    spec = replace(WITH_MEMORY, memory_slots=(2, 6))
    assert [c.slots for c in memory_configurations(spec)] == [2, 6]


def test_the_canary_opens_the_first_start_and_closes_the_last_of_one_configuration() -> None:
    one = plan(WITH_CANARY)
    measured = [step.cell for step in one.steps if isinstance(step, Measure)]
    assert [cell.purpose for cell in measured] == [
        "canary", "load", "load", "load", "load", "canary",
    ]  # fmt: skip
    assert measured[0].config == measured[-1].config
    assert (measured[0].concurrency, measured[0].requests) == (1, 5)
    assert isinstance(one.steps[-1], StopEngine)
    assert [label(cell) for cell in one.canaries] == [
        "llamacpp, canary at the beginning", "llamacpp, canary at the end",
    ]  # fmt: skip


def test_with_one_repeat_both_canaries_stand_in_the_same_start() -> None:
    one = plan(replace(WITH_CANARY, repeats=1))
    assert kinds(one) == ["start", "warmup", "measure", "measure", "measure", "measure", "stop"]


def test_a_resumed_run_takes_up_only_what_is_missing() -> None:
    one = plan(replace(WITH_CANARY, memory_repeats=1))
    done = {cell.cell_id for cell in (*one.cells, *one.memory, one.canaries[0])}
    left = remaining(one, done)
    assert kinds(left) == ["start", "warmup", "measure", "stop"]
    assert [s.cell for s in left.steps if isinstance(s, Measure)] == [one.canaries[1]]
    all_but_one = {cell.cell_id for cell in (*one.cells, *one.canaries, *one.memory[1:])}
    assert (
        list(remaining(one, all_but_one).steps)
        == [step for step in one.steps if isinstance(step, MeasureMemory)][:1]
    )


def test_cells_keep_their_ids_whether_or_not_memory_is_measured() -> None:
    assert [c.cell_id for c in plan(SPEC).cells] == [
        c.cell_id for c in plan(replace(SPEC, memory_repeats=2, canary=5)).cells
    ]
