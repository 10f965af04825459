"""How the memory of slots is read: at rest, under load, and when the engine has gone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_runner import SPEC, Notebook, OurEngine, a_plan, run

pytestmark = pytest.mark.anyio

MEMORY = replace(SPEC, memory_slots=(1, 2), memory_repeats=1)


async def test_memory_is_read_before_during_and_after_a_load_and_once_the_engine_has_gone() -> None:
    notebook = Notebook(OurEngine())
    await run(notebook, a_plan(MEMORY))
    assert notebook.steps == ["start", "warmup", "measure", "measure", "stop", "memory", "memory"]
    of_one_start = notebook.readings[: len(notebook.readings) // 2]
    assert of_one_start == [
        (True, None), "settled", "read before, 0 alive",
        (True, "start"), (True, None), "settled", "read ready, 1 alive",
        (True, "load"), (True, None), "settled", "read loaded, 1 alive",
        "settled", "read released, 0 alive", (False, None),
    ]  # fmt: skip
    assert [launch.slots for launch in notebook.launches] == [2, 1, 2]
    assert [launch.role for launch in notebook.launches] == ["load", "memory", "memory"]
    assert [record.cell.concurrency for record in notebook.records[-2:]] == [1, 2]


async def test_every_slot_serves_a_request_of_the_sweeps_shape() -> None:
    notebook = Notebook(OurEngine())
    await run(notebook, a_plan(MEMORY))
    served = [t for t in notebook.traces if t.cell_id == notebook.records[-1].cell.cell_id]
    assert len(served) == 2
    assert notebook.records[-1].cell.workload.output_tokens == SPEC.workload.output_tokens


async def test_an_engine_that_dies_under_the_load_leaves_a_failed_start_and_the_next_goes_on() -> (
    None
):
    notebook = Notebook(OurEngine(), kill_at=12)
    await run(notebook, a_plan(MEMORY))
    first, second = notebook.records[-2:]
    assert first.failure == "it was ended by SIGKILL"
    assert second.failure is None
    assert notebook.engine.alive == 0


async def test_a_start_that_fails_is_told_and_the_next_goes_on() -> None:
    notebook = Notebook(OurEngine(failures=[False, True, False]))
    await run(notebook, a_plan(MEMORY))
    assert [str(error) for error in notebook.failed] == ["it did not start; say please"]
    assert [record.cell.concurrency for record in notebook.records[2:]] == [2]


async def test_a_stop_while_memory_is_read_leaves_no_engine_and_no_record() -> None:
    notebook = Notebook(OurEngine(), stop_at=12, slow_s=0.02)
    await run(notebook, a_plan(MEMORY))
    assert len(notebook.records) == 2
    assert notebook.engine.alive == 0


async def test_the_memory_of_one_engine_is_seen_to_return_before_the_next_is_started() -> None:
    notebook = Notebook(OurEngine())
    await run(notebook, a_plan(replace(SPEC, repeats=3)))
    assert notebook.steps.count("start") == 3
    assert notebook.readings.count("settled") == 2


POOL = {"kv_blocks": 9, "kv_blocks_used": 6, "requests_running": 2, "requests_waiting": 1}


async def test_an_engine_with_a_pool_is_asked_for_it_and_for_its_queue_while_it_serves() -> None:
    notebook = Notebook(OurEngine(told={**POOL, "preemptions": 3}), slow_s=0.02)
    await run(notebook, a_plan(replace(SPEC, concurrency=(2,))))
    assert {f"pool.{name}": value for name, value in POOL.items()} in notebook.readings
    assert notebook.records[0].server_deltas == {"preemptions": 0}, "a gauge has no growth"


async def test_an_engine_without_a_pool_is_left_alone_while_it_serves() -> None:
    notebook = Notebook(OurEngine(told={"output_tokens": 5}))
    await run(notebook, a_plan(replace(SPEC, concurrency=(2,))))
    assert notebook.readings == []
