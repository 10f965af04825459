"""What of a run goes to the broker, and what stays when it is too large."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.core.delivery import Stamp
from edgeagent.core.outgoing import Finished, entries, topic_level

EXAMPLE = Path(__file__).parents[2] / "docs/examples/llamacpp-vllm-cpu/result.json"
STAMP = Stamp(1_796_006_611_123, "b", 5, "sync")


def example() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(EXAMPLE.read_text())
    return document


def finished(document: dict[str, Any]) -> Finished:
    return Finished(document, "ab" * 32, "/var/lib/edgeagent/runs/r/result.json")


def test_every_level_is_a_flat_point_and_the_result_comes_last() -> None:
    document = example()
    found = entries(finished(document), STAMP, 10_000_000)
    *points, run = found
    assert len(points) == len(document["levels"])
    for point, level in zip(points, document["levels"], strict=True):
        assert point.value["concurrency"] == level["concurrency"]
        assert point.value["output_tokens_per_s"] == level["metrics"]["output_tokens_per_s"]["mean"]
        assert all(isinstance(value, (int, float, str)) for value in point.value.values())
    assert (run.value["extent"], run.value["result"]) == ("whole", document)


def test_a_point_says_what_a_further_slot_of_its_engine_costs() -> None:
    document = example()
    costs = {one["engine"]: one["measured_bytes_per_slot"] for one in document["memory"]}
    kinds = {one["id"]: one["kind"] for one in document["engines"]}
    for point in entries(finished(document), STAMP, 10_000_000)[:-1]:
        engine = next(e for e, kind in kinds.items() if kind == point.dims["engine"])
        assert point.value["memory_bytes_per_slot"] == costs[engine]


def test_a_result_over_the_limit_goes_without_its_cells_and_with_its_hash() -> None:
    document = example()
    whole = len(json.dumps(document, separators=(",", ":")))
    run = entries(finished(document), STAMP, whole // 2)[-1]
    kept = run.value["result"]
    assert isinstance(kept, dict)
    assert run.value["extent"] == "summary"
    assert run.value["result_sha256"] == "ab" * 32
    assert "cells" not in kept
    for name in ("levels", "memory", "comparison", "answers", "findings"):
        assert kept[name] == document[name]


@pytest.mark.parametrize("limit", [4_000, 8_000, 16_000, 64_000, 131_072])
def test_no_entry_is_larger_than_the_limit(limit: int) -> None:
    for entry in entries(finished(example()), STAMP, limit):
        assert len(json.dumps(asdict(entry))) <= limit


def test_a_usual_run_name_is_its_topic() -> None:
    assert topic_level("20261130T101500Z-3f9a2c") == "20261130T101500Z-3f9a2c"


@given(st.text(max_size=300), st.text(max_size=300))
def test_any_run_name_is_one_sound_level_and_two_never_become_one(one: str, other: str) -> None:
    level = topic_level(one)
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", level)
    assert (level == topic_level(other)) == (one == other)
