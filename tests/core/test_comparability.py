"""What must differ in nothing, and what may differ with a word beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edgeagent.core.comparability import Setup, comparable, doubts_between, equal_weights
from edgeagent.core.model import ModelIdentity

MODEL = ModelIdentity(
    "Small", "m.gguf", format="gguf", architecture="llama", quantization="Q4_1",
    parameters=135_000_000, sha256="aa" * 32,
)  # fmt: skip
WORK = {"shape": "sustained", "prefix_tokens": 256, "prompt_tokens": 64, "output_tokens": 64}
ONE = Setup(
    "one", "llamacpp", "b1", False, MODEL, 512, WORK, {"ttft_s": 1.0}, "box", "cpu", None,
    "0.1", True,
)  # fmt: skip
OTHER = replace(ONE, name="other")


def found(**changes: Any) -> list[tuple[str, str]]:
    return [(one.severity, one.code) for one in comparable(ONE, replace(OTHER, **changes))]


def test_equal_setups_have_nothing_in_the_way() -> None:
    assert found() == []


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"workload": {**WORK, "shape": "fanout"}}, "different_workloads"),
        ({"workload": {**WORK, "output_tokens": 128}}, "different_workloads"),
        ({"model": replace(MODEL, sha256="bb" * 32, parameters=7_000_000_000)}, "different_models"),
        ({"model": replace(MODEL, sha256="bb" * 32, parameters=None, architecture="qwen2")},
         "different_models"),
        ({"slo": {"ttft_s": 2.0}}, "different_slo"),
    ],
)  # fmt: skip
def test_another_question_is_refused(changes: dict[str, Any], code: str) -> None:
    assert found(**changes) == [("refuse", code)]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"model": replace(MODEL, sha256="bb" * 32, quantization="Q8_0")}, "unequal_weights"),
        ({"model": replace(MODEL, sha256=None)}, "weights_unproved"),
        ({"model": None}, "weights_unknown"),
        ({"workload": {**WORK, "seed": 7}}, "different_traffic"),
        ({"context_per_slot": 1024}, "different_contexts"),
        ({"host": "box2"}, "different_boxes"),
        ({"host_class": "dgpu"}, "different_box_classes"),
        ({"power_mode": "15W"}, "different_power_modes"),
        ({"agent_version": "0.2"}, "different_agents"),
        ({"attached": True}, "engine_attached"),
        ({"cache_proved": False}, "cache_unproved"),
        ({"findings": frozenset({"throttled", "too_few_samples"})}, "tainted"),
    ],
)
def test_what_weakens_a_comparison_is_said(changes: dict[str, Any], code: str) -> None:
    assert found(**changes) == [("label", code)]


def test_unequal_weights_are_said_plainly() -> None:
    (doubt,) = comparable(
        ONE, replace(OTHER, model=replace(MODEL, sha256="b", quantization="BF16"))
    )
    assert doubt.text == (
        "not on equal weights: one with Small, Q4_1, gguf, other with Small, BF16, gguf"
    )


def test_the_same_values_in_two_formats_are_equal_weights() -> None:
    pair = replace(
        MODEL, sha256="cc" * 32, format="safetensors", architecture="LlamaForCausalLM",
        weights_digest="d",
    )  # fmt: skip
    assert equal_weights(replace(MODEL, weights_digest="d"), pair)
    assert not equal_weights(MODEL, pair)
    assert found(model=pair) == [("label", "unequal_weights")]


def test_names_of_architectures_are_not_compared_across_formats() -> None:
    other = replace(MODEL, sha256="b", format="safetensors", architecture="LlamaForCausalLM")
    assert found(model=other) == [("label", "unequal_weights")]


def test_another_slo_concerns_goodput_alone() -> None:
    (doubt,) = comparable(ONE, replace(OTHER, slo={"ttft_s": 2.0}))
    assert doubt.metrics == frozenset({"goodput_per_s", "good_fraction"})
    assert doubt.text == "different SLO: one ttft_s 1.0, other ttft_s 2.0"


def test_refusals_come_first() -> None:
    assert [severity for severity, _ in found(host="b", workload={**WORK, "shape": "fanout"})] == [
        "refuse",
        "label",
    ]


def test_every_pair_has_its_doubts() -> None:
    third = replace(ONE, name="third", context_per_slot=1024)
    found = doubts_between([ONE, OTHER, third])
    assert {pair: len(doubts) for pair, doubts in found.items()} == {
        ("one", "other"): 0,
        ("one", "third"): 1,
        ("other", "third"): 1,
    }
