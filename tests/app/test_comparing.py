"""Stored runs compared: by engine, by run, and everything that must be refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stored_runs import LLAMA, MODEL, Made, stored

from edgeagent.comparing import compare_runs
from edgeagent.core.model import Slo, WorkloadSpec
from edgeagent.errors import UsageError


def flat(n: int) -> float:
    return 20.0 * math.pow(n, 0.2)


def steep(n: int) -> float:
    return 10.0 * math.pow(n, 0.7)


BOTH = Made({"llamacpp": flat, "vllm": steep})
ALONE = replace(BOTH, spec=replace(BOTH.spec, engines=(LLAMA,)))


def changed(made: Made, **spec: Any) -> Made:
    return replace(made, spec=replace(made.spec, **spec))


def only(document: dict[str, Any], metric: str = "output_tokens_per_s") -> dict[str, Any]:
    (pair,) = document["pairs"]
    (found,) = [one for one in pair["comparison"] if one["metric"] == metric]
    return dict(found)


def codes(document: dict[str, Any]) -> set[str]:
    return {doubt["code"] for pair in document["pairs"] for doubt in pair["doubts"]}


def refusal(*arguments: Any) -> str:
    with pytest.raises(UsageError) as refused:
        compare_runs(*arguments)
    return str(refused.value)


def test_the_engines_of_one_run_are_compared_with_each_other(tmp_path: Path) -> None:
    document = compare_runs([stored(tmp_path / "a", BOTH)])
    rate = only(document)
    # 20 n^0.2 = 10 n^0.7 at n = 4
    assert (rate["outcome"], rate["a"], rate["b"]) == ("crosses", "llamacpp", "vllm")
    assert rate["low"] <= 4 <= rate["high"]
    assert [one["metric"] for one in document["pairs"][0]["comparison"]] == [
        "output_tokens_per_s",
        "ttft_s.p50",
        "ttft_s.p95",
    ]
    assert codes(document) == set()


def test_two_runs_of_one_engine_are_compared_with_a_label(tmp_path: Path) -> None:
    slow, fast = (
        stored(tmp_path / "slow", ALONE),
        stored(tmp_path / "fast", replace(ALONE, rates={"llamacpp": lambda n: 3 * flat(n)})),
    )
    document = compare_runs([slow, fast], "output_tokens_per_s")
    rate = only(document)
    assert rate["text"] == "llamacpp (fast) is better at every concurrency measured"
    assert codes(document) == {"different_runs"}
    assert [run["verified"] for run in document["runs"]] == [True, True]


def test_two_boxes_and_two_quantizations_are_said(tmp_path: Path) -> None:
    other = replace(
        ALONE,
        model=replace(MODEL, sha256="ff" * 32, weights_digest=None, quantization="Q4_1"),
        host={"hostname": "jetson", "class": "uma-nvgpu", "power_mode": "15W"},
    )
    document = compare_runs([stored(tmp_path / "a", ALONE), stored(tmp_path / "b", other)])
    assert codes(document) == {
        "different_runs",
        "unequal_weights",
        "different_boxes",
        "different_box_classes",
        "different_power_modes",
    }


def test_two_runs_of_two_engines_compare_within_and_by_engine(tmp_path: Path) -> None:
    runs = [stored(tmp_path / name, BOTH) for name in "ab"]
    pairs = compare_runs(runs)["pairs"]
    assert [(pair["a"], pair["b"]) for pair in pairs] == [
        ("llamacpp (a)", "vllm (a)"),
        ("llamacpp (a)", "llamacpp (b)"),
        ("vllm (a)", "vllm (b)"),
        ("llamacpp (b)", "vllm (b)"),
    ]


def test_goodput_is_compared_where_an_slo_gives_it_a_meaning(tmp_path: Path) -> None:
    limited = changed(BOTH, slo=Slo(ttft_s=1.0))
    document = compare_runs([stored(tmp_path / "a", limited)])
    assert only(document, "goodput_per_s")["outcome"] == "crosses"


def test_another_slo_refuses_goodput_alone(tmp_path: Path) -> None:
    runs = [
        stored(tmp_path / str(limit), changed(ALONE, slo=Slo(ttft_s=limit))) for limit in (1.0, 2.0)
    ]
    assert "goodput_per_s" not in {
        one["metric"] for one in compare_runs(runs)["pairs"][0]["comparison"]
    }
    assert "different SLO" in refusal(runs, "goodput_per_s")


def test_one_repeat_is_a_weaker_answer(tmp_path: Path) -> None:
    rate = only(compare_runs([stored(tmp_path / "a", changed(BOTH, repeats=1))]))
    assert rate["outcome"] == "unresolved"
    assert rate["text"] == "unresolved: one repeat has no spread, measure at least three"
    assert all(level["factor"] is not None for level in rate["levels"])


def test_files_that_are_not_at_hand_are_said(tmp_path: Path) -> None:
    run = stored(tmp_path / "a", BOTH)
    (run / "plan.json").unlink()
    assert codes(compare_runs([run])) == {"not_verified"}


def test_a_file_that_was_changed_is_refused(tmp_path: Path) -> None:
    run = stored(tmp_path / "a", BOTH)
    (run / "plan.json").write_text("{}")
    assert "plan.json is not the file that result.json was made of" in refusal([run])


def test_another_workload_is_refused(tmp_path: Path) -> None:
    longer = changed(ALONE, workload=WorkloadSpec(output_tokens=128))
    runs = [stored(tmp_path / "a", ALONE), stored(tmp_path / "b", longer)]
    assert refusal(runs) == (
        "llamacpp (a) and llamacpp (b) cannot be compared: different output length: "
        "llamacpp (a) 64, llamacpp (b) 128"
    )


def test_another_model_is_refused(tmp_path: Path) -> None:
    large = replace(
        MODEL, id="Large", parameters=7_000_000_000, sha256="1" * 64, weights_digest="x"
    )
    runs = [stored(tmp_path / "a", ALONE), stored(tmp_path / "b", replace(ALONE, model=large))]
    assert "different models" in refusal(runs)


def test_a_result_of_another_schema_is_refused(tmp_path: Path) -> None:
    run = stored(tmp_path / "a", BOTH, schema="edgeagent.result/2")
    assert "'edgeagent.result/2'" in refusal([run])


def test_a_result_that_was_mangled_is_refused(tmp_path: Path) -> None:
    run = stored(tmp_path / "a", BOTH, cells=[{"engine": "x"}])
    assert "is not what this version writes" in refusal([run])
    (run / "result.json").write_text("[]")
    assert "has the schema None" in refusal([run])
    (run / "result.json").write_text("{")
    assert "is not JSON" in refusal([run])


def test_a_run_without_a_result_is_refused(tmp_path: Path) -> None:
    run = stored(tmp_path / "a", BOTH)
    (run / "result.json").unlink()
    assert "--resume" in refusal([run])
    assert "could not read the run folder" in refusal([tmp_path / "nowhere"])


def test_one_engine_alone_leaves_nothing_to_compare(tmp_path: Path) -> None:
    assert "has one engine only" in refusal([stored(tmp_path / "a", ALONE)])


def test_a_run_named_twice_is_refused(tmp_path: Path) -> None:
    run = stored(tmp_path / "a", ALONE)
    assert "was named 2 times" in refusal([run, run])


def test_settings_that_have_nothing_in_common_are_refused(tmp_path: Path) -> None:
    off = changed(ALONE, prefix_cache=("off",))
    runs = [stored(tmp_path / "a", ALONE), stored(tmp_path / "b", off)]
    assert "no prefix cache and speculation setting in common" in refusal(runs)


def test_a_metric_that_nobody_has_is_refused(tmp_path: Path) -> None:
    run = stored(tmp_path / "a", BOTH)
    assert refusal([run], "energy.per_output_token_j") == (
        "energy.per_output_token_j is null in all cells of these engines: nothing can be compared"
    )


def test_a_metric_that_is_no_metric_is_refused_with_one_that_is(tmp_path: Path) -> None:
    assert "ttft_s.p95" in refusal([tmp_path], "ttft.p95")


def test_the_document_is_json(tmp_path: Path) -> None:
    assert json.loads(json.dumps(compare_runs([stored(tmp_path / "a", BOTH)])))["schema"] == (
        "edgeagent.compare/1"
    )


def test_runs_of_three_engines_are_compared_pair_by_pair(tmp_path: Path) -> None:
    third = replace(LLAMA, id="patched")
    made = replace(
        changed(BOTH, engines=(*BOTH.spec.engines, third)), rates={**BOTH.rates, "patched": flat}
    )
    assert len(compare_runs([stored(tmp_path / "a", made)])["pairs"]) == 3
