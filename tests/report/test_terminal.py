"""The table at the end of a sweep, at two widths, with and without what it would like to know."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from sample import document

from edgeagent.report.terminal import all_series, findings, render, show

FOLDER = Path("edgeagent-runs/20260101T000000Z-abcdef")


def _row(text: str, cache: str, at_once: int) -> str:
    """The words of one row of a wide table."""
    rows = [line.split() for line in text.splitlines()]
    return " ".join(next(row for row in rows if row[:2] == [cache, str(at_once)]))


def test_a_level_is_one_row() -> None:
    text = render(document(), FOLDER, 140)

    # 71.96 ± half of the interval's width; 0.1374 s = 137 ms; 3 repeats of 63 ok and 1 failed;
    # the third repeat saw the largest memory, 403 MiB
    assert _row(text, "on", 1) == (
        "on 1 72.0 ± 10.3 137 / 330 13.2 / 110 14.1 12.35 80 % 189 / 3 403 MiB ok"
    )


def test_the_title_says_engine_version_model_and_quantization() -> None:
    assert "llamacpp (b10434), SmolLM2-135M-Instruct, Q4_1" in render(document(), FOLDER, 140)


@pytest.mark.parametrize("width", [80, 100, 123, 124, 140, 200])
def test_every_value_is_readable_and_no_table_is_wider_than_the_terminal(width: int) -> None:
    text = render(document(), FOLDER, width)

    assert all(cell_len(line) <= width for line in text.splitlines())
    assert "…" not in text
    for value in ("1131.4 ± 10.3", "2198 / 5282", "13.2 / 110", "12.35", "80 %", "403 MiB"):
        assert value in text


def test_findings_come_worst_first_with_their_advice() -> None:
    assert [line.severity for line in findings(document())] == ["suspect", "warning", "info"]
    text = " ".join(render(document(), FOLDER, 80).split())
    assert "cache_contradicts_label: 1.4 % of the prompt tokens came from the cache" in text
    assert "look for another client, then measure again" in text
    assert "plan at least 299 for a bound on it" in text


def test_the_same_finding_about_many_cells_is_one_line() -> None:
    result = document()
    result["findings"] += [
        {"code": "too_few_samples", "severity": "warning", "text": f"cell {n}", "cells": [str(n)]}
        for n in range(7)
    ]

    text = " ".join(render(result, FOLDER, 80).split())

    assert text.count("too_few_samples") == 1
    assert "plan at least 299 for a bound on it (and 7 more like it)" in text


def test_a_missing_value_is_a_dash_and_zero_is_zero() -> None:
    result = document()
    level = result["levels"][0]
    level["metrics"] = {"output_tokens_per_s": {"mean": 0.0, "ci95": None}}
    for cell in result["cells"]:
        cell["memory"] = {}
        cell["cached_prompt_fraction"] = None

    dash = "\N{EN DASH}"
    assert _row(render(result, FOLDER, 140), "off", 1) == (
        f"off 1 0.0 {dash} / {dash} {dash} / {dash} {dash} {dash} {dash} 189 / 3 {dash} ok"
    )


def test_the_worst_repeat_gives_a_level_its_status() -> None:
    result = document()
    result["cells"][0]["status"] = "suspect"
    assert _row(render(result, FOLDER, 140), "off", 1).endswith("suspect")

    result["cells"][1]["status"] = "failed"
    assert _row(render(result, FOLDER, 140), "off", 1).endswith("failed")


def test_memory_on_a_gpu_is_told_as_such() -> None:
    result = document()
    values = result["cells"][0]["memory"]["values"]
    values["gpu.GPU-1.engine_bytes"] = {"peak": 3 << 30, "mean": 2 << 30}

    assert "3.00 GiB GPU" in _row(render(result, FOLDER, 140), "off", 1)


def test_speculation_makes_a_table_of_its_own() -> None:
    result = document()
    result["levels"][1]["speculation"] = "ngram"

    assert [series.title for series in all_series(result)] == [
        "llamacpp (b10434), SmolLM2-135M-Instruct, Q4_1",
        "llamacpp (b10434), SmolLM2-135M-Instruct, Q4_1, speculation ngram",
    ]


@pytest.mark.parametrize(
    ("change", "next_step"),
    [
        ({}, f"edgeagent verify {FOLDER}"),
        ({"status": "partial"}, f"edgeagent sweep --resume {FOLDER}"),
        ({"status": "failed"}, "remove the causes"),
    ],
)
def test_the_end_names_the_folder_and_the_next_step(change: dict[str, Any], next_step: str) -> None:
    text = render({**document(), **change}, FOLDER, 80)

    assert f"\n  {FOLDER}\n" in text
    assert next_step in text


def test_a_path_is_never_broken_in_two_and_can_be_pasted() -> None:
    folder = Path("/var/lib/edgeagent/runs of line 3") / ("x" * 90)

    text = render(document(), folder, 80)

    assert f"\n  {folder}\n" in text
    assert f"  edgeagent verify '{folder}'\n" in text


def test_a_document_without_anything_in_it_is_still_an_answer() -> None:
    assert "0 of 0 measured cells ok" in render({}, FOLDER, 80)


def test_a_pipe_gets_no_colour_and_a_stream_of_ascii_no_error() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")

    show(document(), FOLDER, stream)
    stream.flush()

    assert b"\x1b" not in raw.getvalue()
    assert b"403 MiB" in raw.getvalue()


NAMES = [
    "cells",
    "ci95",
    "concurrency",
    "engine",
    "engine.rss_bytes",
    "findings",
    "id",
    "levels",
    "mean",
    "memory",
    "metrics",
    "model",
    "output_tokens_per_s",
    "peak",
    "requests",
    "severity",
    "speculation",
    "status",
    "text",
    "ttft_s.p50",
    "values",
]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(NAMES),
            inner,
            max_size=4,
        )
    ),
    max_leaves=30,
)


@given(
    st.dictionaries(
        st.sampled_from(["levels", "cells", "findings", "engines", "models", "status"]),
        json_values,
    )
)
def test_a_document_of_another_shape_never_breaks_the_table(result: dict[str, object]) -> None:
    assert "measured cells ok" in render(result, FOLDER, 80)
