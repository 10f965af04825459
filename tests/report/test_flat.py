"""Rows for a spreadsheet: nothing is lost, nothing is invented, nothing is run."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from edgeagent.report import flat

EXAMPLE = Path(__file__).parents[2] / "docs/examples/llamacpp-vllm-cpu/result.json"


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def example() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(EXAMPLE.read_text())
    return document


def test_there_is_one_row_a_cell_with_every_number_as_the_result_has_it() -> None:
    document = example()
    found = rows(flat.cells([document]))
    assert len(found) == len(document["cells"])
    for row, cell in zip(found, document["cells"], strict=True):
        assert row["cell_id"] == cell["cell_id"]
        assert float(row["output_tokens_per_s"]) == cell["output_tokens_per_s"]
        assert float(row["ttft_s.p95"]) == cell["ttft_s"]["p95"]
        assert int(row["requests.ok"]) == cell["requests"]["ok"]


def test_there_is_one_row_a_level_with_both_ends_of_each_interval() -> None:
    document = example()
    found = rows(flat.levels([document]))
    assert len(found) == len(document["levels"])
    for row, level in zip(found, document["levels"], strict=True):
        rate = level["metrics"]["output_tokens_per_s"]
        assert float(row["output_tokens_per_s.mean"]) == rate["mean"]
        assert [float(row[f"output_tokens_per_s.{end}"]) for end in ("low", "high")] == rate["ci95"]


def test_rows_of_several_runs_name_their_run_and_box() -> None:
    first, second = example(), example()
    second["run_id"], second["host"] = "other", {"hostname": "jetson"}
    found = rows(flat.levels([first, second]))
    assert {(row["run_id"], row["hostname"]) for row in found} == {
        (first["run_id"], first["host"]["hostname"]),
        ("other", "jetson"),
    }


def test_what_is_missing_is_empty_and_zero_is_zero() -> None:
    cell = {"cell_id": "c", "draft_acceptance": None, "shared_reads": 0, "requests": {"ok": 0}}
    (row,) = rows(flat.cells([{"cells": [cell]}]))
    assert (row["draft_acceptance"], row["shared_reads"], row["requests.ok"]) == ("", "0", "0")


def test_a_hostile_name_is_no_formula_and_breaks_no_row() -> None:
    name = '=HYPERLINK("http://x")\r\n"; rm'
    (row,) = rows(flat.cells([{"cells": [{"cell_id": "c", "model": name}]}]))
    assert row["model"] == "'" + name


def test_a_result_without_cells_is_an_empty_table() -> None:
    assert rows(flat.cells([{}])) == []
