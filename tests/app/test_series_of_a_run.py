"""What there is to look at in the result of a whole sweep, and that it follows from the records."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from agent import edgeagent, fake, result, sweep

from edgeagent import archive
from edgeagent.core.result import plain
from edgeagent.core.series import EDGES_S
from edgeagent.store.runfolder import RunReader


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    sweep(
        folder, fake(ttft_ms=40, itl_ms=20), "--prefix-cache=off", "--second-operator",
        "--context=512", "--output-tokens=8", "--memory-repeats=1", "--memory-slots=1,2",
    )  # fmt: skip
    return folder


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def test_gaps_are_those_behind_the_percentiles(finished: Path) -> None:
    document = result(finished)
    values = {cell["cell_id"]: cell["itl_s"]["n"] for cell in document["cells"]}
    found = document["distributions"]
    assert [line["concurrency"] for line in found] == [1, 2]
    for line in found:
        assert line["edges"] == list(EDGES_S)
        assert line["n"] == line["below"] + sum(line["counts"]) + line["above"]
        assert line["n"] == sum(values[cell] for cell in line["cells"]) > 0


def test_a_timeline_shows_the_highest_level(finished: Path) -> None:
    document = result(finished)
    (line,) = document["timelines"]
    (cell,) = [cell for cell in document["cells"] if cell["concurrency"] == 2]
    assert line["cell_id"] == cell["cell_id"]
    steps = len(line["inflight"])
    assert steps == len(line["output_tokens_per_s"]) == len(line["memory_bytes"]) <= 120
    assert steps * line["step_s"] >= cell["duration_s"] > (steps - 1) * line["step_s"]
    assert max(line["inflight"]) == pytest.approx(2, abs=0.2)
    tokens = sum(line["output_tokens_per_s"]) * line["step_s"]
    assert tokens >= cell["output_tokens"]  # the lead-in's, too
    assert (line["memory_domain"], line["memory_source"]) == ("host", "rss_anon")
    assert any(line["memory_bytes"])


def test_arrivals_lie_over_each_other(finished: Path) -> None:
    document = result(finished)
    (line,) = document["arrivals"]
    (cost,) = document["interference"]
    assert line["arrivals"] == cost["pairs"] > 0
    assert line["prompt_tokens"] == cost["operator"]["prompt_tokens"]
    assert line["operator_first_token_s"] == pytest.approx(cost["operator"]["ttft_s"])
    until_s = line["from_s"] + len(line["victims_tokens_per_s"]) * line["step_s"]
    assert line["from_s"] < 0 < line["operator_first_token_s"] < line["operator_end_s"] < until_s


def test_the_command_can_be_read_and_repeated(finished: Path) -> None:
    document = result(finished)
    assert document["command"][:3] == ["edgeagent", "sweep", "--engine=fake"]
    assert str(finished) in document["command"]
    assert document["command_reason"] is None


def test_every_planned_cell_has_its_fate(finished: Path) -> None:
    document = result(finished)
    plan = json.loads((finished / "plan.json").read_text())
    assert document["plan"]["digest"] == plan["digest"]
    planned = document["plan"]["cells"]
    assert [cell["cell_id"] for cell in planned] == [cell["cell_id"] for cell in plan["cells"]]
    assert {cell["purpose"] for cell in planned} == {"load", "arrival", "memory"}
    assert {cell["status"] for cell in planned} <= {"ok", "suspect"}
    named = {cell for answer in document["answers"].values() for cell in answer["cells"]}
    assert named <= {cell["cell_id"] for cell in planned}
    assert "hygiene" in document["box"]


def test_it_all_keeps_to_the_schema_and_follows_from_the_records(finished: Path) -> None:
    schema = json.loads(edgeagent("schema", "result").stdout)
    jsonschema.validate(result(finished), schema)
    assert {"distributions", "timelines", "arrivals", "command", "plan", "box"} <= set(
        schema["properties"]
    )
    assert edgeagent("verify", finished).returncode == 0


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("distributions", "counts"),
        ("timelines", "inflight"),
        ("timelines", "output_tokens_per_s"),
        ("arrivals", "victims_tokens_per_s"),
    ],
)
def test_an_edited_picture_is_found_and_named(copied: Path, name: str, field: str) -> None:
    document: dict[str, Any] = result(copied)
    document[name][0][field][-1] += 1
    (copied / "result.json").write_text(json.dumps(document))
    done = edgeagent("verify", copied)
    assert done.returncode == 1
    assert f"{name}[0].{field}" in "".join(done.stdout.split())


def test_a_cell_that_was_not_measured_is_missing(copied: Path) -> None:
    lines = (copied / "cells.jsonl").read_text().splitlines()
    gone = json.loads(lines[0])["cell_id"]
    (copied / "cells.jsonl").write_text("".join(f"{line}\n" for line in lines[1:]))
    run = archive.recall(RunReader(copied))
    document = plain(archive.result_of(run, None, {}))
    fates = {cell["cell_id"]: cell["status"] for cell in document["plan"]["cells"]}
    assert [cell for cell, fate in fates.items() if fate == "missing"] == [gone]
