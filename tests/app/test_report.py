"""`edgeagent report` as a user runs it, on real run folders."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from agent import ROOT, SMALL, edgeagent, fake, measured_well, result, sentence, sweep


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reported") / "run"
    measured_well(sweep(folder, fake()), folder)
    return folder


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def test_the_sheet_lies_in_the_run_folder_and_is_no_file_of_the_run(copied: Path) -> None:
    done = edgeagent("report", copied)
    assert (done.returncode, done.stdout) == (0, "")
    sheet = (copied / "report.html").read_text()
    assert sheet.startswith("<!doctype html>")
    addresses = re.findall(r"https?://[^\s\"'<>]*", sheet)
    assert [one for one in addresses if "://www.w3.org/" not in one] == []
    assert edgeagent("verify", copied).returncode == 0


def test_text_holds_all_seven_questions_and_the_table(finished: Path) -> None:
    done = edgeagent("report", finished, "--text")
    for number, answer in result(finished)["answers"].items():
        assert f"\n{number}  " in f"\n{done.stdout}"
        assert answer["text"].split()[0] in done.stdout
    assert "tokens/s" in done.stdout


def test_csv_has_a_row_a_cell_or_a_level(finished: Path) -> None:
    cells = edgeagent("report", finished, "--csv").stdout
    levels = edgeagent("report", finished, "--csv-levels").stdout
    assert len(list(csv.reader(io.StringIO(cells)))) == 1 + len(result(finished)["cells"])
    assert len(list(csv.reader(io.StringIO(levels)))) == 1 + len(result(finished)["levels"])


def test_json_holds_the_results_as_they_are(finished: Path, copied: Path) -> None:
    document = json.loads(edgeagent("report", finished, copied, "--json").stdout)
    assert document["schema"] == "edgeagent.report/1"
    assert [run["result"] for run in document["runs"]] == [result(finished), result(copied)]
    assert len({run["label"] for run in document["runs"]}) == 1  # the same run, copied


def test_a_result_file_alone_is_enough(finished: Path, tmp_path: Path) -> None:
    alone = tmp_path / "sent-by-mail.json"
    shutil.copy(finished / "result.json", alone)
    done = edgeagent("report", alone, "-o", tmp_path / "sheet.html")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "sheet.html").stat().st_size > 10_000


def test_a_run_that_was_killed_gives_a_sheet_that_says_so(copied: Path) -> None:
    (copied / "result.json").unlink()
    cells = (copied / "cells.jsonl").read_text().splitlines(keepends=True)
    (copied / "cells.jsonl").write_text("".join(cells[:2]))
    done = edgeagent("report", copied, "--json")
    document = json.loads(done.stdout)["runs"][0]
    assert (document["finished"], document["result"]["status"]) == (False, "partial")
    assert edgeagent("report", copied, "-o", "-").returncode == 0
    assert not (copied / "result.json").exists()


def test_a_sweep_draws_its_sheet_at_its_end(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    done = subprocess.run(
        [sys.executable, "-m", "edgeagent", "sweep", *fake(), *SMALL, "--prefix-cache=off",
         "--out", str(folder)],
        capture_output=True, text=True, cwd=ROOT, timeout=120, check=False,
    )  # fmt: skip
    assert str(folder / "report.html") in done.stdout
    assert (folder / "report.html").read_text().startswith("<!doctype html>")


def test_a_sweep_that_is_told_not_to_draws_none(finished: Path) -> None:
    assert not (finished / "report.html").exists()  # the runs of our tests are


def test_without_the_libraries_the_way_to_install_them_is_said_and_text_still_works(
    finished: Path, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nsys.modules['matplotlib'] = sys.modules['jinja2'] = None\n"
    )
    environ = {"PYTHONPATH": str(tmp_path)}
    refused = edgeagent("report", finished, environ=environ)
    assert refused.returncode == 2
    assert "pip install 'edgeagent[report]'" in sentence(refused)
    assert edgeagent("report", finished, "--text", environ=environ).returncode == 0
    assert edgeagent("report", finished, "--csv", environ=environ).returncode == 0


@pytest.mark.parametrize("given", ["nowhere", "README.md"])
def test_what_is_no_run_is_refused(given: str) -> None:
    done = edgeagent("report", given)
    assert done.returncode == 2
    assert given in sentence(done)


def test_a_run_given_twice_and_a_place_that_cannot_be_written_are_refused(finished: Path) -> None:
    assert "given twice" in sentence(edgeagent("report", finished, finished))
    done = edgeagent("report", finished, "--csv", "-o", "/proc/nowhere/cells.csv")
    assert (done.returncode, "could not write" in sentence(done)) == (2, True)


def test_a_result_of_another_schema_is_refused(copied: Path) -> None:
    (copied / "result.json").write_text('{"schema": "edgeagent.result/9"}')
    assert "edgeagent.result/9" in sentence(edgeagent("report", copied))
