"""The comparison as people read it, in a narrow and in a wide window."""

from __future__ import annotations

from typing import Any

from edgeagent.report.comparison import metric_words, render


def comparison(**changes: Any) -> dict[str, Any]:
    return {
        "metric": "output_tokens_per_s",
        "a": "llamacpp",
        "b": "vllm",
        "prefix_cache": "off",
        "speculation": "off",
        "outcome": "crosses",
        "text": "llamacpp is better up to 4, vllm from 8; they cross between 5 and 7 (95 %)",
        "levels": [
            {"concurrency": 1, "factor": 2.0, "ci95": [1.9, 2.1], "better": "a"},
            {"concurrency": 8, "factor": 0.96, "ci95": [0.9, 1.02], "better": None},
            {"concurrency": 16, "factor": None, "ci95": None, "better": "b"},
        ],
        "notes": ["zero has no logarithm"],
        **changes,
    }


def document(*comparisons: dict[str, Any], doubts: Any = ()) -> dict[str, Any]:
    pair = {"a": "llamacpp", "b": "vllm", "doubts": doubts, "comparison": list(comparisons)}
    return {"pairs": [pair]}


def test_a_narrow_window_has_sentences_and_factors() -> None:
    assert render(document(comparison()), 80).splitlines() == [
        "",
        "llamacpp against vllm",
        "",
        " output tokens/s  llamacpp is better up to 4, vllm from 8; they cross between 5",
        "                  and 7 (95 %)",
        " note             zero has no logarithm",
        "",
        " llamacpp / vllm     x1      x8   x16",
        " ────────────────────────────────────",
        " output tokens/s   2.00   0.96?     –",  # noqa: RUF001  # because the dash of a missing value is not a minus
        "",
        "? marks a level whose difference is not resolved (95 %, each level by itself).",
    ]


def test_a_wide_window_has_the_intervals_as_well() -> None:
    text = render(document(comparison()), 120)
    assert "1.90 to 2.10   0.90 to 1.02" in text
    assert max(map(len, text.splitlines())) <= 120


def test_factors_keep_one_direction_although_a_crossing_names_the_sides_the_other_way_round() -> (
    None
):
    turned = comparison(a="vllm", b="llamacpp", levels=[
        {"concurrency": 1, "factor": 4.0, "ci95": [2.0, 5.0], "better": "a"},
    ])  # fmt: skip
    text = render(document(turned), 120)
    assert "llamacpp / vllm" in text
    assert "0.25" in text
    assert "0.20 to 0.50" in text


def test_what_is_in_the_way_comes_first() -> None:
    doubts = [
        {"severity": "refuse", "text": "different SLO: a 1, b 2", "metrics": ["goodput_per_s"]},
        {"severity": "label", "text": "not on equal weights: a Q4_1, b BF16", "metrics": None},
    ]
    lines = render(document(comparison(), doubts=doubts), 80).splitlines()
    assert lines[3:5] == [
        " not compared  goodput: different SLO: a 1, b 2",
        " mind          not on equal weights: a Q4_1, b BF16",
    ]


def test_settings_are_named_where_there_are_several() -> None:
    text = render(
        document(comparison(), comparison(prefix_cache="on"), comparison(speculation="ngram")), 80
    )
    assert "output tokens/s, cache off " in text
    assert "output tokens/s, cache on " in text
    assert "output tokens/s, cache off, ngram " in text


def test_metrics_are_named_as_people_say_them() -> None:
    assert metric_words("ttft_s.p95") == "TTFT p95"
    assert metric_words("energy.per_output_token_j") == "energy a token"
    assert metric_words("new_metric") == "new_metric"


def test_a_document_of_another_shape_does_not_end_the_report() -> None:
    assert render({"pairs": [{"comparison": [{"levels": [{}]}], "doubts": [None]}]}, 80)
