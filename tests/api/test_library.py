"""edgeagent as a library: a program measures, reads, sums up, and is told in exceptions."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from agent import OF_THE_BOX, processes_of, until
from agent import edgeagent as command

import edgeagent
from edgeagent import config, sealing

QUICK: edgeagent.SweepOptions = {
    "concurrency": [1, 2], "requests": 4, "warmup": 1, "repeats": 1, "cooldown": 0,
    "prefix_tokens": 48, "prompt_tokens": 16, "output_tokens": 4, "prefix_cache": "off",
    "memory_repeats": 0, "canary": 0, "settle": 0.3,
}  # fmt: skip


def scripted(*args: str) -> Mapping[str, edgeagent.EngineOptions]:
    return {"fake": {"kind": "fake", "args": ["--ttft-ms", "60", "--itl-ms", "20", *args]}}


def quick(*args: str, **more: Any) -> edgeagent.Plan:
    return edgeagent.plan({"sweep": {**QUICK, **more}}, engines=scripted(*args))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> edgeagent.Run:
    return edgeagent.run(quick(), out=tmp_path_factory.mktemp("runs") / "run")


# -------------------------------------------------------------------------------------- the plan


def test_a_plan_in_keywords_is_the_plan_of_the_command_line(tmp_path: Path) -> None:
    found = edgeagent.plan(
        {"sweep": {"concurrency": [1, 16], "output_tokens": 8}},
        engines=scripted(), concurrency=(1, 2), repeats=1,
    )  # fmt: skip
    done = command(
        "sweep", "--engine=fake", *(f"--engine-arg=fake={a}" for a in ARGUMENTS),
        "--concurrency=1,2", "--repeats=1", "--output-tokens=8", "--dry-run", "--json",
    )  # fmt: skip
    assert found.document() == json.loads(done.stdout)
    assert [cell.cell_id for cell in found.cells] == [
        cell["cell_id"] for cell in found.document()["cells"]
    ]
    assert "start fake (repeat 1)" in str(found)
    assert found.expected_s[0] < found.expected_s[1]


ARGUMENTS = ("--ttft-ms", "60", "--itl-ms", "20")


def test_keywords_go_over_the_keys_of_a_file_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(
        '[sweep]\nconcurrency = [4]\noutput_tokens = 8\n[engines.a]\nkind = "fake"\nslots = 9\n'
    )
    found = edgeagent.plan(path, engines={"a": {"kv_type": "q8_0"}}, concurrency=[2], repeats=1)
    cell = found.cells[0]
    assert (cell.concurrency, cell.workload.output_tokens) == (2, 8)
    assert (cell.config.slots, cell.config.engine.kv_type) == (9, "q8_0")


def test_equal_questions_have_equal_digests_and_others_another() -> None:
    assert quick().digest == quick().digest
    assert quick().digest != quick(output_tokens=5).digest


def test_the_typed_keys_are_those_that_a_plan_may_have() -> None:
    for typed, checked in (
        (edgeagent.SweepOptions, config.SweepKeys),
        (edgeagent.EngineOptions, config.EngineKeys),
        (edgeagent.SloOptions, config.SloKeys),
    ):
        assert set(typed.__annotations__) == set(checked.model_fields)


@pytest.mark.parametrize(
    ("sweep", "engines", "sentence"),
    [
        ({"concurency": [1]}, {}, "plan(): sweep.concurency is not a known key, did you mean c"),
        ({"concurrency": [0]}, {}, "plan(): sweep.concurrency.0: 0 should be greater than"),
        ({"seconds": 1, "requests": 1}, {"a": {"kind": "fake"}}, "--requests or by --seconds"),
        ({}, {}, "no engine was named"),
        ({}, {"a": {"kid": "fake"}}, "engines.a.kid is not a known key, did you mean kind?"),
        ({}, {"a": 3}, "plan(): engines.a: 3 should be a valid dictionary"),
        ({}, {"a": {"kind": "llamacpp", "model": Path("/no/m.gguf")}}, "/no/m.gguf does not exist"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_sentence(
    sweep: Any, engines: Any, sentence: str
) -> None:
    with pytest.raises(edgeagent.UsageError) as raised:
        edgeagent.plan(engines=engines, **sweep)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_tables_that_are_none_are_refused_with_and_without_keywords() -> None:
    with pytest.raises(edgeagent.UsageError, match="sweep is not a table"):
        edgeagent.plan({"sweep": 3})
    with pytest.raises(edgeagent.UsageError, match="sweep is not a table"):
        edgeagent.plan({"sweep": 3}, repeats=1)
    with pytest.raises(edgeagent.UsageError, match="engines: 3 should be a valid dictionary"):
        edgeagent.plan({"engines": 3}, engines=scripted())


def test_a_server_that_does_not_answer_is_unreachable() -> None:
    with pytest.raises(edgeagent.UnreachableError, match="did not answer"):
        edgeagent.plan(engines={"there": {"url": "http://127.0.0.1:9"}})


# --------------------------------------------------------------------------------------- the run


def test_a_run_is_measured_as_the_command_line_measures_it(measured: edgeagent.Run) -> None:
    doubts = {f.code for f in measured.result.findings if f.severity == "suspect"}
    assert doubts <= OF_THE_BOX
    assert measured.result.status == "complete"
    assert [cell.requests.ok for cell in measured.result.cells] == [4, 4]
    assert [level.concurrency for level in measured.result.levels] == [1, 2]
    assert sealing.faults(measured.path) == []


def test_an_engine_that_does_not_start_is_an_exception_and_its_folder_stays(
    tmp_path: Path,
) -> None:
    notes: list[str] = []
    with pytest.raises(edgeagent.EngineError, match="exit status") as raised:
        edgeagent.run(quick("--no-such-flag"), out=tmp_path / "r", on_note=notes.append)
    assert str(raised.value) in notes
    assert edgeagent.read(tmp_path / "r").result.status == "failed"


def test_a_folder_with_something_in_it_is_refused(measured: edgeagent.Run) -> None:
    with pytest.raises(edgeagent.UsageError, match="has something in it"):
        edgeagent.run(quick(), out=measured.path)


def test_a_run_that_goes_on_has_its_own_folder(measured: edgeagent.Run, tmp_path: Path) -> None:
    with pytest.raises(edgeagent.UsageError, match="goes on in its own folder"):
        edgeagent.run(measured, out=tmp_path / "other")


class OurOwnError(Exception):
    """What a caller's own code raises."""


def test_what_a_callback_raises_ends_the_sweep_in_order_and_the_rest_can_be_measured(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "r"

    def enough(state: edgeagent.ProgressState) -> None:
        if (state.cell or "").startswith("fake x2") and state.what == "measuring":
            raise OurOwnError

    with pytest.raises(OurOwnError):
        edgeagent.run(quick(), out=folder, on_progress=enough)
    assert not processes_of(folder)
    partial = edgeagent.read(folder)
    assert (partial.result.status, partial.finished) == ("partial", True)
    kept = partial.result.cells
    whole = edgeagent.run(folder)
    assert whole.result.status == "complete"
    assert whole.result.cells[: len(kept)] == kept


# ---------------------------------------------------------------------- loops, threads, interrupts


@pytest.mark.anyio
async def test_in_a_notebook_a_loop_runs_nothing_is_printed_and_no_signal_is_taken(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    names = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(name) for name in names]
    states: list[edgeagent.ProgressState] = []
    during = []

    def told(state: edgeagent.ProgressState) -> None:
        during.append([signal.getsignal(name) for name in names])
        states.append(state)

    found = edgeagent.run(quick(requests=2), out=tmp_path / "r", on_progress=told)
    assert found.result.status == "complete"
    assert all(handlers == before for handlers in during)
    assert [signal.getsignal(name) for name in names] == before
    assert capfd.readouterr() == ("", "")
    assert [states[0].what, states[-1].what] == ["starting the engine", "stopping the engine"]


@pytest.mark.anyio
async def test_the_loop_goes_on_while_a_run_is_awaited(tmp_path: Path) -> None:
    run = asyncio.ensure_future(edgeagent.run_async(quick(requests=2), out=tmp_path / "r"))
    turns = 0
    while not run.done():
        await asyncio.sleep(0.01)
        turns += 1
    assert turns > 10
    assert (await run).result.status == "complete"


@pytest.mark.anyio
async def test_cancelling_ends_the_sweep_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def told(state: edgeagent.ProgressState) -> None:
        if state.what == "measuring":
            loop.call_soon_threadsafe(begun.set)

    slow = quick("--itl-ms", "150")
    run = asyncio.ensure_future(edgeagent.run_async(slow, out=folder, on_progress=told))
    await begun.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert not processes_of(folder)
    left = edgeagent.read(folder)
    assert left.finished
    assert left.result.status in ("failed", "partial")


SCRIPT = """
import sys, edgeagent
plan = edgeagent.plan(
    engines={{"fake": {{"kind": "fake", "args": ["--ttft-ms", "60", "--itl-ms", "150"]}}}},
    **{quick}
)
edgeagent.run(plan, out={out!r}, on_progress=lambda s: print(s.what, flush=True))
"""


def test_ctrl_c_ends_the_sweep_in_order_and_is_an_interrupt_as_ever(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    script = SCRIPT.format(quick=dict(QUICK), out=str(folder))
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until((folder / "requests.jsonl").exists, "the run folder")
    until((folder / "requests.jsonl").read_text, "the first answer")
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert told.rstrip().endswith("KeyboardInterrupt")
    assert process.returncode == -signal.SIGINT
    assert not processes_of(folder)
    assert edgeagent.read(folder).finished


# ------------------------------------------------------------------------------------ reading


def test_what_was_read_is_what_was_measured(measured: edgeagent.Run) -> None:
    found = edgeagent.read(str(measured.path))
    assert (found.result, found.document) == (measured.result, measured.document)
    assert edgeagent.read(measured.path / "result.json").result == measured.result


def test_the_sum_of_the_raw_records_is_the_stored_result(measured: edgeagent.Run) -> None:
    assert edgeagent.summarise(measured) == measured.result
    assert edgeagent.summarise(measured.path) == measured.result


def test_a_run_that_was_cut_off_is_summed_up(measured: edgeagent.Run, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(measured.path, tmp_path / "cut"))
    (copy / "result.json").unlink()
    found = edgeagent.read(copy)
    assert not found.finished
    assert found.result.finished_at is None
    assert found.result.cells == measured.result.cells
    assert not (copy / "result.json").exists()


def test_the_requests_of_a_cell_are_those_that_its_metrics_were_computed_from(
    measured: edgeagent.Run,
) -> None:
    cell = measured.result.cells[1]
    own = [trace for trace in measured.requests(cell.cell_id) if trace.role == "measured"]
    assert (len(own), sum(trace.tokens for trace in own)) == (4, cell.output_tokens)
    everyone = list(measured.requests())
    assert {trace.cell_id for trace in everyone} == {c.cell_id for c in measured.result.cells}
    # 1 and 2 lead-in requests; the warm-up belongs to no cell
    assert len(everyone) == 4 + 1 + 4 + 2


def test_samples_come_by_cell_or_all_in_order(measured: edgeagent.Run) -> None:
    everything = [sample.at_ns for sample in measured.samples()]
    assert everything == sorted(everything)
    for cell in measured.result.cells:
        own = list(measured.samples(cell.cell_id))
        assert len(own) == cell.memory.samples
        assert all(sample.cell_id == cell.cell_id for sample in own)


def test_a_cell_that_is_not_there_is_named(measured: edgeagent.Run) -> None:
    for records in (measured.requests, measured.samples):
        with pytest.raises(edgeagent.UsageError, match="has no finished cell nix"):
            records("nix")


def test_a_result_without_its_records_says_so_before_it_is_read(
    measured: edgeagent.Run, tmp_path: Path
) -> None:
    (tmp_path / "result.json").write_bytes((measured.path / "result.json").read_bytes())
    found = edgeagent.read(tmp_path)
    assert found.result.cells == measured.result.cells
    with pytest.raises(edgeagent.UsageError, match=r"has no requests\.jsonl"):
        found.requests()
    with pytest.raises(edgeagent.UsageError, match=r"has no memory\.jsonl"):
        found.samples()
    with pytest.raises(edgeagent.UsageError, match=r"is not a plan of this version"):
        edgeagent.summarise(found)


def test_a_result_that_was_edited_into_something_else_is_refused(
    measured: edgeagent.Run, tmp_path: Path
) -> None:
    document = {**measured.document, "cells": 3}
    (tmp_path / "result.json").write_text(json.dumps(document))
    with pytest.raises(edgeagent.UsageError, match="is not a result as edgeagent writes it"):
        _ = edgeagent.read(tmp_path).result


@pytest.mark.parametrize("name", ["1-first", "2-memory", "3-comparison"])
def test_runs_of_older_versions_are_read(name: str) -> None:
    found = edgeagent.read(Path(__file__).parents[1] / "results" / name)
    assert found.result.cells[0].ttft_s.p50 is not None
    assert next(iter(found.requests())).event_ns
    assert next(iter(found.samples())).values


def test_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(edgeagent.UsageError, match="is not a run folder"):
        edgeagent.read(tmp_path)


# -------------------------------------------------------------------------- importing the package


def test_importing_the_package_imports_nothing_else_of_it() -> None:
    script = (
        "import sys; old = set(sys.modules); import edgeagent; print(*(set(sys.modules) - old))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    ours = [name for name in done.stdout.split() if name.split(".")[0] == "edgeagent"]
    assert ours == ["edgeagent"]


def test_every_public_name_is_there_and_no_other() -> None:
    for name in edgeagent.__all__:
        assert getattr(edgeagent, name) is not None
        assert name in dir(edgeagent)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = edgeagent.nothing  # type: ignore[attr-defined]
