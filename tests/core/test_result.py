"""The document: what stands in it, how repeats become levels, and what the buyer is told."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from pydantic import TypeAdapter
from recordings import ENGINE

from edgeagent.core.findings import CellStatus
from edgeagent.core.metrics import CellMetrics, RequestCounts
from edgeagent.core.model import (
    EngineConfig,
    EngineIdentity,
    Finding,
    Launch,
    ModelIdentity,
    Plan,
    ServerFacts,
    SweepSpec,
    WorkloadSpec,
)
from edgeagent.core.plan import configurations, expand
from edgeagent.core.result import (
    LEVEL_METRICS,
    CellResult,
    Measured,
    Result,
    RunFacts,
    build,
    levels_of,
    plain,
)
from edgeagent.core.stats import Distribution

SPEC = SweepSpec(engines=(ENGINE,), concurrency=(1, 4), repeats=3, memory_repeats=0, canary=0)
FACTS = RunFacts(
    run_id="r",
    status="complete",
    started_at="2026-01-01T00:00:00Z",
    finished_at=None,
    agent={"version": "0"},
    host={"hostname": "box", "class": "cpu"},
    files={"requests.jsonl": "00"},
)
CONTRACT_CELL = """
    cell_id engine model concurrency prefix_cache speculation repeat status findings requests
    duration_s steady_s inflight_mean ttft_s ttfat_s itl_s tpot_s e2e_s gap_max_s headers_s
    output_tokens_per_s total_tokens_per_s request_throughput_per_s goodput_per_s good_fraction
    output_tokens prompt_tokens cached_prompt_fraction token_count_source stamp_source shared_reads
    draft_acceptance accepted_per_draft vllm_equivalent memory energy client
"""
CONTRACT_RUN = """
    schema run_id status started_at finished_at agent files host engines models workload cells
    levels memory interference comparison capacity effects answers findings
"""


def identity(config: EngineConfig) -> EngineIdentity:
    model = ModelIdentity("Small Model", "m.gguf", quantization="Q4_1", sha256="ab" * 32)
    return EngineIdentity(config.engine.id, "llamacpp", "b1", "cd" * 32, (), (), False, model)


def plan(spec: SweepSpec = SPEC) -> Plan:
    return expand(spec, {config: identity(config) for config in configurations(spec)})


def results(rates: dict[tuple[str, int], list[float | None]]) -> list[CellResult]:
    """A result for every cell whose (cache, concurrency) has a rate for its repeat."""
    found = []
    for cell in plan().cells:
        level = rates.get((cell.config.prefix_cache, cell.concurrency), [])
        if cell.repeat < len(level):
            metrics = CellMetrics(
                requests=RequestCounts(20, 20, 0),
                output_tokens_per_s=level[cell.repeat],
                ttft_s=Distribution(n=20, p50=0.1 * (cell.repeat + 1), p95=0.5),
                cached_prompt_fraction=0.0 if cell.config.prefix_cache == "off" else 0.8,
            )
            found.append(CellResult(cell, "ok", metrics))
    return found


def judged(result: CellResult, status: CellStatus, *findings: Finding) -> CellResult:
    return replace(result, status=status, findings=findings)


def document(cells: list[CellResult], launches: tuple[Launch, ...] = ()) -> dict[str, Any]:
    made: dict[str, Any] = plain(build(FACTS, plan(), launches, Measured(tuple(cells))))
    return made


# -------------------------------------------------------------------------------------- levels


def test_repeats_become_a_mean_with_an_interval() -> None:
    (level,) = levels_of(results({("off", 4): [10.0, 11.0, 12.0]}))
    rate = level.metrics["output_tokens_per_s"]
    assert (level.concurrency, level.replicates, level.suspect) == (4, 3, 0)
    assert rate.mean == pytest.approx(11)
    # Half width 4.3027 x 1 / sqrt(3), from the table of t
    assert rate.ci95 == pytest.approx((11 - 2.4841, 11 + 2.4841), abs=1e-4)
    assert level.metrics["ttft_s.p50"].mean == pytest.approx(0.2)  # 0.1, 0.2, 0.3
    assert level.metrics["ttft_s.p99"].mean is None


def test_an_interval_ends_where_the_value_cannot_be() -> None:
    # TTFT p50 0.1 and rates 1, 1, 10: 4 ± 4.3027 x 5.196 / sqrt(3) would begin at -8.9.
    (level,) = levels_of(results({("off", 4): [1.0, 1.0, 10.0]}))
    rate = level.metrics["output_tokens_per_s"]
    assert rate.ci95 == pytest.approx((0.0, 4 + 12.908), abs=1e-3)


def test_two_repeats_have_no_interval() -> None:
    (level,) = levels_of(results({("off", 4): [10.0, 12.0]}))
    assert level.metrics["output_tokens_per_s"].mean == 11
    assert level.metrics["output_tokens_per_s"].ci95 is None


def test_failed_repeats_are_left_out_and_suspect_ones_counted() -> None:
    first, second, third = results({("off", 4): [10.0, 12.0, 99.0]})
    (level,) = levels_of([first, judged(second, "suspect"), judged(third, "failed")])
    assert (level.replicates, level.suspect) == (2, 1)
    assert level.metrics["output_tokens_per_s"].mean == 11


def test_a_level_whose_repeats_all_failed_stays_visible_without_numbers() -> None:
    failed = [judged(found, "failed") for found in results({("off", 1): [5.0]})]
    (level,) = levels_of(failed)
    assert level.replicates == 0
    assert {metric.mean for metric in level.metrics.values()} == {None}


def test_the_order_of_measuring_does_not_show_in_levels() -> None:
    cells = results({("on", 4): [1.0, 2.0], ("off", 1): [3.0], ("off", 4): [4.0], ("on", 1): [5.0]})
    keys = [(level.prefix_cache, level.concurrency) for level in levels_of(cells)]
    assert keys == [("off", 1), ("off", 4), ("on", 1), ("on", 4)]
    assert levels_of(cells) == levels_of(cells[::-1])


def test_every_level_metric_is_a_number_of_a_cell() -> None:
    (level,) = levels_of(results({("off", 1): [5.0]}))
    assert tuple(level.metrics) == LEVEL_METRICS


# ------------------------------------------------------------------------------------ document


def test_the_document_has_the_names_of_the_contract() -> None:
    found = document(results({("off", 1): [5.0]}))
    assert set(CONTRACT_RUN.split()) <= set(found)
    assert set(CONTRACT_CELL.split()) <= set(found["cells"][0])
    assert found["schema"] == "edgeagent.result/1"
    expected = "n mean p50 p90 p95 p99 max p90_upper p95_upper p99_upper"
    assert list(found["cells"][0]["ttft_s"]) == expected.split()
    assert found["workload"]["shared_prefix"] is True


def test_a_cell_names_its_model_as_the_list_of_models_does() -> None:
    found = document(results({("off", 1): [5.0]}))
    assert [model["id"] for model in found["models"]] == ["Small Model"]
    assert found["cells"][0]["model"] == "Small Model"


def test_every_cell_of_the_plan_has_its_fate_and_why_it_failed() -> None:
    first, second = results({("off", 1): [5.0, 6.0]})
    broken = judged(second, "failed", Finding("engine_died", "suspect", "it died", ("x",)))
    found = document([first, broken])["plan"]
    assert found["digest"] == plan().digest
    assert len(found["cells"]) == len(plan().cells) == 12
    fates = {cell["cell_id"]: (cell["status"], cell["reason"]) for cell in found["cells"]}
    assert fates.pop(first.cell.cell_id) == ("ok", None)
    assert fates.pop(second.cell.cell_id) == ("failed", "it died")
    assert set(fates.values()) == {("missing", None)}
    assert found["cells"][0]["label"] == "llamacpp x1, prefix cache off, repeat 1"


def test_a_start_for_memory_has_its_fate_too() -> None:
    spec = replace(SPEC, memory_repeats=1, memory_slots=(1, 4))
    one, four = plan(spec).memory
    measured = Measured(starts={one.cell_id: None, four.cell_id: "it was killed"})
    made = plain(build(FACTS, plan(spec), (), measured))["plan"]["cells"]
    fates = {cell["cell_id"]: cell for cell in made if cell["purpose"] == "memory"}
    assert fates[one.cell_id]["status"] == "ok"
    assert (fates[four.cell_id]["status"], fates[four.cell_id]["reason"]) == (
        "failed",
        "it was killed",
    )


def test_the_command_is_told_or_why_not() -> None:
    asked = build(replace(FACTS, command=("edgeagent", "sweep")), plan(), (), Measured())
    assert (asked.command, asked.command_reason) == (("edgeagent", "sweep"), None)
    found = document([])
    assert found["command"] is None
    assert "not asked for on a command line" in found["command_reason"]


def test_a_launchs_secrets_are_not_published() -> None:
    argv = ("llama-server", "--api-key", "hush", "-np", "4")
    launch = Launch("llamacpp", 0, argv, 4, "off", "off", 1.0, ServerFacts(), None)
    (engine,) = document([], (launch,))["engines"]
    assert engine["launches"][0]["argv"] == ["llama-server", "--api-key", "***", "-np", "4"]


def test_a_result_from_before_the_pictures_can_still_be_read() -> None:
    old = document(results({("off", 1): [5.0]}))
    added = ("distributions", "timelines", "arrivals", "command", "command_reason", "plan", "box")
    for name in added:
        del old[name]
    read = TypeAdapter(Result).validate_python(old)
    assert (read.distributions, read.plan, read.command) == ((), None, None)


def test_what_later_work_fills_is_empty() -> None:
    found = document([])
    for name in ("memory", "interference", "comparison", "capacity", "effects"):
        assert found[name] == []


def test_the_document_is_plain_json_and_reads_back_as_itself() -> None:
    facts = ServerFacts(slots=4, context_per_slot=512, details={"kv_mib": 45.0})
    launch = Launch("llamacpp", 0, ("llama-server",), 4, "off", "off", 1.5, facts, "engine-1.log")
    found = document(results({("off", 1): [5.0, float("nan"), None]}), (launch,))
    text = json.dumps(found, allow_nan=False)
    again = TypeAdapter(Result).validate_json(text)
    assert plain(again) == found
    assert found["cells"][1]["output_tokens_per_s"] is None
    assert found["engines"][0]["context_per_slot"] == 512
    assert found["engines"][0]["launches"][0]["effective"]["slots"] == 4


def test_the_document_keeps_its_published_schema() -> None:
    schema = TypeAdapter(Result).json_schema()
    jsonschema.validate(document(results({("off", 1): [5.0, 6.0, 7.0]})), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document([]) | {"status": "fine"}, schema)


def test_a_reader_ignores_what_it_does_not_know() -> None:
    newer = document(results({("off", 1): [5.0]})) | {"from_the_future": 1}
    assert TypeAdapter(Result).validate_python(newer).run_id == "r"


# ------------------------------------------------------------------------------------ findings


def test_findings_are_collected_gravest_first() -> None:
    (found,) = results({("off", 1): [5.0]})
    few = Finding("too_few_samples", "info", "few", (found.cell.cell_id,))
    bad = Finding("failed_requests", "suspect", "bad", (found.cell.cell_id,))
    made = document([judged(found, "suspect", few, bad)])
    assert [f["code"] for f in made["findings"]] == ["failed_requests", "too_few_samples"]
    assert made["cells"][0]["findings"] == ["too_few_samples", "failed_requests"]
    assert made["cells"][0]["status"] == "suspect"


def test_repeats_that_disagree_are_found_and_name_their_cells() -> None:
    cells = results({("off", 4): [60.0, 100.0, 101.0]})
    made = document(cells)
    assert {f["code"] for f in made["findings"]} == {
        "unstable_over_repeats",
        "first_repeat_stands_out",
    }
    for finding in made["findings"]:
        assert finding["cells"] == [found.cell.cell_id for found in cells]


def test_what_an_engine_does_differently_is_said_once_for_all_its_starts() -> None:
    facts = ServerFacts(details={"differences": ["slots: asked for 4, has 2"]})
    launches = tuple(
        Launch("llamacpp", repeat, (), 4, "off", "off", 1.0, facts, None) for repeat in range(3)
    )
    cells = results({("off", 1): [5.0], ("on", 1): [5.0]})
    (finding,) = document(cells, launches)["findings"]
    assert finding["code"] == "engine_differs_from_request"
    cold = [f.cell.cell_id for f in cells if f.cell.config.prefix_cache == "off"]
    assert finding["cells"] == cold


# ------------------------------------------------------------------------------------- answers


def test_all_seven_questions_have_an_answer() -> None:
    for cells in ([], results({("off", 1): [5.0, 6.0, 7.0], ("on", 4): [9.0]})):
        answers = document(cells)["answers"]
        assert list(answers) == ["1", "2", "3", "4", "5", "6", "7"]
        assert all(answer["text"] for answer in answers.values())


def test_the_first_answer_names_engine_version_and_weights() -> None:
    answer = document([])["answers"]["1"]
    assert answer["text"] == "llamacpp (b1) with Small Model, Q4_1."
    assert "weights SHA-256 abababababab…" in answer["details"][0]


def test_the_second_answer_stands_on_cells_that_did_not_fail() -> None:
    first, second = results({("off", 1): [5.0, 6.0]})
    answer = document([first, judged(second, "failed")])["answers"]["2"]
    assert "llamacpp, 1 at once: 5.0 output tokens/s" in answer["text"]
    assert "llamacpp with 1 at once, prefix cache off: 5.0 output tokens/s" in answer["details"][0]
    assert answer["cells"] == [first.cell.cell_id]


def test_a_curve_is_answered_by_its_ends_and_every_level_stands_in_the_details() -> None:
    answer = document(results({("on", 1): [5.0, 6.0], ("on", 4): [9.0, 11.0]}))["answers"]["2"]
    assert (
        "llamacpp, 1 to 4 at once: 5.5 to 10.0 output tokens/s, first token after 0.15 to 0.15 s"
        in answer["text"]
    )
    assert [row.split(":")[0] for row in answer["details"]] == [
        "llamacpp with 1 at once, prefix cache on",
        "llamacpp with 4 at once, prefix cache on",
    ]


def test_the_answer_is_about_the_setting_that_is_bought_and_the_others_are_details() -> None:
    both: dict[tuple[str, int], list[float | None]] = {
        ("off", 1): [5.0],
        ("off", 4): [7.0],
        ("on", 1): [6.0],
        ("on", 4): [9.0],
    }
    answer = document(results(both))["answers"]["2"]
    assert "prefix cache on" in answer["text"]
    assert "prefix cache off" not in answer["text"]
    assert any("prefix cache off" in detail for detail in answer["details"])


def test_reuse_is_proved_by_what_the_engine_counted() -> None:
    answer = document(results({("off", 1): [5.0], ("on", 1): [6.0]}))["answers"]["4"]
    assert answer["text"].endswith("with the cache off, 0%; with the cache on, 80%.")
    assert len(answer["cells"]) == 2


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (SPEC, "yes, where the prefix cache is on: 256 of 320"),
        (replace(SPEC, prefix_cache=("off",)), "no: openings of 256 tokens were made different"),
        (replace(SPEC, workload=WorkloadSpec(prefix_tokens=0)), "no: every request was different"),
        (replace(SPEC, workload=WorkloadSpec(prompts=({"text": "a"},))), "operator's own traffic"),
    ],
)
def test_the_third_answer_is_about_what_was_really_sent(spec: SweepSpec, words: str) -> None:
    assert words in build(FACTS, plan(spec), (), Measured()).answers["3"].text


def test_what_was_not_measured_says_so() -> None:
    answers = document([])["answers"]
    for number in ("2", "5", "6", "7"):
        assert answers[number]["text"].startswith("not measured")
        assert answers[number]["cells"] == []
