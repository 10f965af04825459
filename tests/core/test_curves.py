"""From cells to curves to comparisons."""

from __future__ import annotations

from dataclasses import replace

import pytest
from recordings import cell

from edgeagent.core.comparability import Doubt
from edgeagent.core.curves import Point, compare_points, compared_by, comparisons, curve, points_of
from edgeagent.core.energy import Energy
from edgeagent.core.findings import CellStatus
from edgeagent.core.metrics import CellMetrics, RequestCounts
from edgeagent.core.model import EngineSpec, Slo
from edgeagent.core.result import CellResult
from edgeagent.core.stats import Distribution

RATE = "output_tokens_per_s"


def measured(
    engine: str, concurrency: int, repeat: int, rate: float | None, status: CellStatus = "ok"
) -> CellResult:
    one = cell(concurrency, "on", repeat)
    config = replace(one.config, engine=EngineSpec(engine, "llamacpp"))
    metrics = CellMetrics(
        RequestCounts(20, 20, 0),
        output_tokens_per_s=rate,
        ttft_s=Distribution(n=20, p95=0.5),
        energy=Energy(per_output_token_j=None),
    )
    return CellResult(replace(one, config=config), status, metrics)


CELLS = [
    measured(engine, concurrency, repeat, rate * (1 + repeat / 100))
    for engine, rates in (("llamacpp", (20.0, 30.0)), ("vllm", (10.0, 90.0)))
    for concurrency, rate in zip((1, 8), rates, strict=True)
    for repeat in range(3)
]


def test_two_engines_of_a_run_are_compared_by_every_metric_that_they_have() -> None:
    found = {one.metric: one for one in comparisons(CELLS)}
    assert set(found) == {RATE, "ttft_s.p95"}  # no energy and no goodput on either side
    rate = found[RATE]
    assert (rate.outcome, rate.a, rate.b) == ("crosses", "llamacpp", "vllm")
    assert (rate.prefix_cache, rate.speculation) == ("on", "off")
    assert rate.levels[0].factor == pytest.approx(2.0)
    assert found["ttft_s.p95"].reason == "both have the same value in every repeat"


def test_a_failed_cell_gives_no_point_and_a_suspect_one_is_counted() -> None:
    changed = [replace(CELLS[0], status="failed"), replace(CELLS[1], status="suspect"), *CELLS[2:]]
    (found,) = comparisons(changed, [RATE])
    assert [level.replicates for level in found.levels] == [2, 3]
    assert "1 of 11 cells are suspect" in found.notes


def test_what_weakens_a_comparison_stands_beside_it() -> None:
    doubts = {("llamacpp", "vllm"): [Doubt("label", "x", "not on equal weights")]}
    (found,) = comparisons(CELLS, [RATE], doubts)
    assert (found.outcome, found.notes[0]) == ("crosses", "not on equal weights")


def test_what_refuses_a_comparison_leaves_no_numbers() -> None:
    doubts = {("llamacpp", "vllm"): [Doubt("refuse", "x", "different models")]}
    (found,) = comparisons(CELLS, [RATE], doubts)
    assert (found.outcome, found.levels) == ("unresolved", ())
    assert found.text == "not compared: different models"


def test_a_refusal_of_one_metric_leaves_the_others() -> None:
    doubts = {
        ("llamacpp", "vllm"): [Doubt("refuse", "x", "other SLO", frozenset({"goodput_per_s"}))]
    }
    (found,) = comparisons(CELLS, [RATE], doubts)
    assert (found.outcome, found.notes) == ("crosses", ())


def test_goodput_is_compared_by_only_where_a_limit_gives_it_a_meaning() -> None:
    assert "goodput_per_s" in compared_by(Slo(tpot_s=0.1))
    assert "goodput_per_s" not in compared_by(Slo())


def test_a_block_without_a_cell_is_a_gap_in_the_curve() -> None:
    points = points_of([CELLS[0], CELLS[2]], [RATE])
    values = curve(points, "llamacpp", RATE).values
    assert values == {1: [20.0, None, pytest.approx(20.4)]}


def test_only_equal_settings_are_compared() -> None:
    points = [
        Point("a", "on", "off", 1, 0, {RATE: 1.0}),
        Point("b", "off", "off", 1, 0, {RATE: 1.0}),
        Point("b", "on", "ngram", 1, 0, {RATE: 1.0}),
    ]
    assert compare_points(points, [RATE]) == ()


def test_three_engines_make_three_pairs() -> None:
    points = [Point(name, "on", "off", 1, 0, {RATE: 1.0}) for name in "abc"]
    assert [(c.a, c.b) for c in compare_points(points, [RATE])] == [
        ("a", "b"),
        ("a", "c"),
        ("b", "c"),
    ]
