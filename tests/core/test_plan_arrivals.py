"""Where a second operator comes in the plan, and that nothing else changes for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_plan import LLAMA, OTHER, SPEC, kinds, plan

from edgeagent.core.estimate import Speeds, cell_s, time_left_s
from edgeagent.core.model import ArrivalSpec, Cell, MeasureArrival, StartEngine, WorkloadSpec
from edgeagent.core.plan import label, remaining
from edgeagent.report.preview import text as preview

JOINED = replace(SPEC, second_operator="on")


def spec_of(cell: Cell) -> ArrivalSpec:
    assert cell.arrival is not None
    return cell.arrival


def test_it_comes_to_every_launch_after_its_cells() -> None:
    spec = replace(JOINED, prefix_cache=("off",), repeats=1)
    assert kinds(plan(spec)) == [
        "start", "warmup", "measure", "cooldown", "measure", "cooldown", "arrival", "cooldown",
        "stop",
    ]  # fmt: skip


def test_a_warm_fan_out_forgets_and_is_primed_before_it_is_joined() -> None:
    spec = replace(JOINED, prefix_cache=("on",), repeats=1, concurrency=(4,), cooldown_s=0.0)
    assert kinds(plan(spec)) == [
        "start", "warmup", "reset_cache", "prime", "measure", "reset_cache", "prime", "arrival",
        "stop",
    ]  # fmt: skip


def test_the_closing_canary_is_still_the_last() -> None:
    spec = replace(JOINED, canary=5, prefix_cache=("off",), repeats=1, cooldown_s=0.0)
    assert kinds(plan(spec))[-3:] == ["arrival", "measure", "stop"]
    assert len(plan(spec).canaries) == 2


def test_there_is_one_for_each_prefix_cache_setting_engine_and_repeat() -> None:
    spec = replace(JOINED, engines=(LLAMA, OTHER), speculation=("off", "ngram-simple"), repeats=3)
    arrivals = plan(spec).arrivals
    assert len(arrivals) == 2 * 2 * 3
    assert len({cell.cell_id for cell in arrivals}) == len(arrivals)
    assert {cell.config.speculation for cell in arrivals} == {"off"}
    assert {cell.concurrency for cell in arrivals} == {4}
    assert {cell.purpose for cell in arrivals} == {"arrival"}


def test_other_cells_keep_their_ids_and_their_order() -> None:
    assert [c.cell_id for c in plan(JOINED).cells] == [c.cell_id for c in plan().cells]
    full = replace(JOINED, canary=5, memory_repeats=1)
    alone = plan(replace(full, second_operator="off"))
    assert plan(full).canaries == alone.canaries
    assert plan(full).memory == alone.memory
    assert plan(full).cells == alone.cells
    assert plan(full).digest != alone.digest
    assert not {c.cell_id for c in plan(full).arrivals} & {c.cell_id for c in alone.cells}


def test_a_plan_without_it_is_as_before() -> None:
    assert plan().arrivals == ()
    assert not [step for step in plan().steps if isinstance(step, MeasureArrival)]


def test_victims_answer_long_and_the_newcomer_asks_long_as_the_context_allows() -> None:
    # 256 + 64 prompt and 64 output tokens. A context of 512, of which 8 stay free:
    (cell, *_) = plan(JOINED).arrivals
    assert cell.workload.output_tokens == 512 - 320 - 8
    assert spec_of(cell).prompt_tokens == 512 - 64 - 8
    assert spec_of(cell).wanted_prompt_tokens == 4 * 320
    (roomy, *_) = plan(replace(JOINED, context=4096)).arrivals
    assert roomy.workload.output_tokens == 4 * 64
    assert spec_of(roomy).prompt_tokens == 4 * 320
    (tight, *_) = plan(replace(JOINED, context=384)).arrivals
    assert tight.workload.output_tokens == 64
    assert spec_of(tight).prompt_tokens == 384 - 64 - 8


def test_whatever_the_load_is_the_fan_out_that_is_joined_is_steady() -> None:
    work = WorkloadSpec(shape="fanout", seconds=5.0, requests=None)
    (cell, *_) = plan(replace(JOINED, workload=work)).arrivals
    assert (cell.workload.shape, cell.workload.seconds, cell.requests) == ("sustained", None, None)
    step = next(s for s in plan(JOINED).steps if isinstance(s, MeasureArrival))
    assert [(phase.role, phase.requests) for phase in step.phases] == [
        ("lead_in", 4),
        ("measured", None),
    ]


def test_odd_repeats_begin_with_the_newcomer() -> None:
    firsts = {
        cell.repeat: spec_of(cell).first for cell in plan(replace(JOINED, repeats=3)).arrivals
    }
    assert firsts == {0: "none", 1: "operator", 2: "none"}


def test_what_determines_the_arrival_changes_its_id() -> None:
    ids = {cell.cell_id for cell in plan(JOINED).arrivals}
    work = replace(JOINED.workload, output_tokens=63)
    assert not ids & {cell.cell_id for cell in plan(replace(JOINED, workload=work)).arrivals}
    # The number of requests of a load cell is none of its concern.
    more = replace(JOINED, workload=replace(JOINED.workload, requests=77))
    assert ids == {cell.cell_id for cell in plan(more).arrivals}


@given(st.sets(st.integers(0, 11)))
def test_resuming_measures_exactly_what_is_missing(done: set[int]) -> None:
    whole = plan(JOINED)
    every = (*whole.cells, *whole.arrivals)
    assert len(every) == 12
    ids = {every[index].cell_id for index in done}
    left = remaining(whole, ids)
    found = [s.cell.cell_id for s in left.steps if s.kind in ("measure", "arrival")]
    assert sorted(found) == sorted(cell.cell_id for cell in every if cell.cell_id not in ids)
    launches = {(c.config, c.repeat) for c in every if c.cell_id not in ids}
    assert sum(isinstance(step, StartEngine) for step in left.steps) == len(launches)


def test_it_has_a_name_and_words_of_its_own() -> None:
    (cell, *_) = plan(JOINED).arrivals
    assert label(cell) == "llamacpp x4, prefix cache off, second operator, repeat 1"
    document = {"memory": [], "expected_s": {"low": 1, "high": 2}}
    line = next(line for line in preview(document, plan(JOINED)).splitlines() if "second" in line)
    assert line == (
        "  keep 4 in flight, and 4 times let a second operator come with a prompt of 440 tokens "
        f"(not 1280: the context of a slot bounds it), 4 times nobody  [{cell.cell_id}]"
    )


def test_its_time_is_guessed_from_its_windows() -> None:
    (cell, *_) = plan(JOINED).arrivals
    speeds = Speeds(prefill=440.0, one_stream=16.0, all_streams=64.0)
    # A token takes a stream 1/16 s. A window: a quarter of 184 tokens until a slot is free, 1 s of
    # prompt, 64 tokens: 2.875 + 1 + 4 = 7.875 s, and half of that as quiet time twice.
    assert cell_s(cell, speeds) == pytest.approx(9 * 2 * 7.875 + 2 * 184 / 16)


def test_its_measured_time_is_not_taken_for_that_of_a_load_cell() -> None:
    whole = plan(JOINED)
    speeds = Speeds(440.0, 16.0, 64.0)
    load = next(cell for cell in whole.cells if cell.concurrency == 4)
    joined = next(cell for cell in whole.arrivals if cell.config == load.config)
    left = time_left_s([load], [(joined, cell_s(joined, speeds))], speeds)
    assert left == pytest.approx(cell_s(load, speeds))
