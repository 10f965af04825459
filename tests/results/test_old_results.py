"""Results of older versions stay readable: whole small run folders that those versions wrote.

    1-first         the first version
    2-memory        with what a slot costs, taint, gates, canary and energy
    3-comparison    with comparisons, capacity, effects, knee and a second operator

When a formula changes, the last test's table says so: that is what it is for.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter

from edgeagent import archive, comparing, reporting, sealing
from edgeagent.core.result import Result

SAMPLES = ("1-first", "2-memory", "3-comparison")
HERE = Path(__file__).parent

every_sample = pytest.mark.parametrize("name", SAMPLES)


def document(name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((HERE / name / "result.json").read_text())
    return value


@every_sample
def test_an_old_result_fits_the_schema_that_is_published_now(name: str) -> None:
    Draft202012Validator(archive.schema("result")).validate(document(name))


@every_sample
def test_an_old_result_is_read_as_a_result(name: str) -> None:
    found = TypeAdapter(Result).validate_python(document(name))
    assert [cell.status for cell in found.cells] == ["ok", "ok"]
    assert found.cells[0].ttft_s.p50 is not None


@every_sample
def test_an_old_run_is_read_for_a_comparison(name: str) -> None:
    assert comparing.read_run(HERE / name).verified


@every_sample
@pytest.mark.parametrize("form", ["text", "csv", "csv-levels", "json"])
def test_an_old_run_is_reported(name: str, form: reporting.Form) -> None:
    text = reporting.rendered(reporting.read_results([HERE / name]), form, 140)
    assert "fake" in text


@every_sample
def test_the_raw_files_of_an_old_run_are_known_by_their_hashes(name: str) -> None:
    found = sealing.examine(HERE / name)
    assert found.files == len(document(name)["files"])
    assert any("no checksum of its own" in note for note in found.notes)


@every_sample
def test_a_changed_file_of_an_old_run_is_found(name: str, tmp_path: Path) -> None:
    for path in (HERE / name).iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    log = next(tmp_path.glob("engine-*.log"))
    log.write_text(log.read_text() + "more\n")
    assert f"{log.name}: was changed: its SHA-256 is not the one in result.json" in (
        sealing.faults(tmp_path)
    )


def test_lists_that_were_not_there_then_are_no_fault() -> None:
    found = sealing.examine(HERE / "3-comparison")
    assert found.faults == ()
    assert any("not in a result of that version" in note for note in found.notes)
    assert found.numbers > 500


@pytest.mark.parametrize(
    ("name", "computes"),
    [("1-first", "differently"), ("2-memory", "differently"), ("3-comparison", "alike")],
)
def test_an_old_run_verifies_or_says_in_a_sentence_that_it_is_computed_differently(
    name: str, computes: str
) -> None:
    found = sealing.faults(HERE / name)
    assert bool(found) == (computes == "differently")
    assert all("written by edgeagent 0.1.0.dev0" in fault for fault in found[:1])
