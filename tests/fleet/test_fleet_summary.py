"""What the fleet says as a whole, by hand-made levels."""

from __future__ import annotations

from edgeagent.fleet.queries import Crossing, Doubt, Kind, Measured
from edgeagent.fleet.summary import (
    by_box,
    doubt_summaries,
    fitnesses,
    leads,
    outliers,
    summaries,
    verdicts,
)


def kind(engine: str = "vllm", box_class: str = "cpu", model: str = "m") -> Kind:
    return Kind(box_class, engine, model, "Q4", 4096, "off", "off")


def levels(
    node: str, rates: dict[int, float], run: str = "new", at_ms: int = 100, what: Kind | None = None
) -> list[Measured]:
    return [
        Measured(node, what or kind(), run, at_ms, "1.0", level, rate, 1 / rate, None, 5e6)
        for level, rate in rates.items()
    ]


def test_the_newest_run_of_a_box_counts_and_the_others_are_its_past() -> None:
    (one,) = fitnesses(
        [
            *levels("a", {1: 10.0, 4: 30.0}, "old", 50),
            *levels("a", {1: 12.0}, "new", 100),
        ]
    )
    assert one.now.run == "new"
    assert one.now.values["output_tokens_per_s"] == {1: 12.0}
    assert [run.run for run in one.past] == ["old"]
    assert one.now.slot_bytes == 5e6


def test_medians_are_over_boxes_with_their_ends() -> None:
    measured = [
        level for n, rate in enumerate((10.0, 14.0, 30.0)) for level in levels(f"b{n}", {8: rate})
    ]
    (summed,) = summaries(fitnesses(measured), [])
    found = summed.rates[8]
    assert (found.median, found.low, found.high, found.boxes) == (14.0, 10.0, 30.0, 3)
    assert summed.boxes == 3


def test_a_slow_box_stands_out_in_all_that_it_is_slow_in_and_is_listed_once() -> None:
    measured = [
        level
        for n, rate in enumerate((100.0, 101.0, 99.0, 100.5, 99.5, 70.0))
        for level in levels(f"b{n}", {1: rate, 8: 4 * rate})
    ]
    strange = outliers(fitnesses(measured))
    assert {(one.fitness.node, one.metric, one.turn) for one in strange} == {
        ("b5", "output_tokens_per_s", "worse"),
        ("b5", "ttft_p50_s", "worse"),
    }
    assert [len(own) for own in by_box(strange)] == [2]
    (summed,) = summaries(fitnesses(measured), strange)
    assert summed.outliers == 1


def test_worse_ones_come_before_better_ones_however_strange() -> None:
    rates = (100.0, 101.0, 99.0, 100.5, 99.5, 100.2, 60.0, 900.0)
    measured = [level for n, rate in enumerate(rates) for level in levels(f"b{n}", {1: rate})]
    turns = [one.turn for one in outliers(fitnesses(measured))]
    assert turns == ["worse", "worse", "better", "better"]


def test_boxes_of_another_class_or_model_are_no_peers() -> None:
    measured = [
        *(level for n in range(5) for level in levels(f"b{n}", {1: 100.0})),
        *levels("other-class", {1: 10.0}, what=kind(box_class="dgpu")),
        *levels("other-model", {1: 10.0}, what=kind(model="n")),
    ]
    assert outliers(fitnesses(measured)) == []


def test_the_leading_engine_is_named_level_by_level() -> None:
    measured = [
        *levels("a", {1: 20.0, 8: 40.0}, what=kind("llamacpp")),
        *levels("a", {1: 10.0, 8: 90.0, 16: 120.0}, what=kind("vllm")),
        *levels("b", {1: 5.0}, what=kind("vllm", box_class="dgpu")),
    ]
    (lead,) = leads(summaries(fitnesses(measured), []))
    assert lead.levels == ((1, "llamacpp", 20.0, 10.0), (8, "vllm", 90.0, 40.0))


def crossing(a: str, b: str, outcome: str, low: float | None = None) -> Crossing:
    high = None if low is None else low + 1
    return Crossing("n", "cpu", "output_tokens_per_s", a, b, outcome, low, high, "off", "off")


def test_a_pair_of_engines_is_one_pair_whichever_was_named_first() -> None:
    (found,) = verdicts(
        [
            crossing("vllm", "llamacpp", "a_always"),
            crossing("llamacpp", "vllm", "b_always"),
            crossing("llamacpp", "vllm", "crosses", 2.0),
            crossing("llamacpp", "vllm", "crosses", 4.0),
            crossing("vllm", "llamacpp", "unresolved"),
        ]
    )
    assert (found.a, found.b, found.boxes) == ("llamacpp", "vllm", 5)
    assert (found.a_always, found.b_always, found.unresolved) == (0, 2, 1)
    assert (found.a_first, found.b_first, found.low, found.high) == (2, 0, 3.0, 4.0)


def test_findings_are_counted_by_boxes_the_gravest_first() -> None:
    found = doubt_summaries(
        [
            Doubt("a", "common", "info", "x"),
            Doubt("b", "common", "info", "x"),
            Doubt("a", "grave", "suspect", "y"),
            Doubt("a", "grave", "suspect", "again"),
        ]
    )
    assert [(one.code, one.nodes) for one in found] == [("grave", ("a",)), ("common", ("a", "b"))]
