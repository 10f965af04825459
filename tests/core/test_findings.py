"""When a reader is told to doubt, and when not."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import ENGINE, S, cell, record, request

from edgeagent.core.findings import (
    CODES,
    CellEvidence,
    examine_cell,
    examine_launch,
    examine_level,
    expected_cached,
    status_of,
)
from edgeagent.core.metrics import (
    CellMetrics,
    ClientSummary,
    MemorySummary,
    RequestCounts,
    summarise,
)
from edgeagent.core.model import Cell, EngineKind, Launch, MemorySample, ServerFacts, Slo
from edgeagent.core.stats import Distribution

FINE = CellMetrics(
    requests=RequestCounts(20, 20, 0),
    steady_s=5.0,
    inflight_mean=1.0,
    itl_s=Distribution(n=1000, p50=0.02),
    cached_prompt_fraction=0.0,
    token_count_source="timings",  # noqa: S106  # because it names a source of counts
    stamp_source="kernel",
    token_events=1000,
    client=ClientSummary(cpu_fraction=0.05),
)
"""A cell that nobody could doubt."""


def codes(metrics: CellMetrics, of: Cell | None = None, **changes: Any) -> list[str]:
    evidence = CellEvidence(record(of, **changes), metrics)
    return [finding.code for finding in examine_cell(evidence)]


def test_the_documentation_lists_every_code_with_its_severity() -> None:
    text = (Path(__file__).parents[2] / "docs" / "findings.md").read_text()
    row = re.compile(r"^\| `([a-z_]+)` \| (suspect|warning|info) \|", re.MULTILINE)
    documented = dict(row.findall(text))
    assert documented == dict(CODES)


def test_a_cell_without_blemish_has_no_findings() -> None:
    assert codes(FINE) == []


def test_a_real_recording_without_blemish_has_no_findings() -> None:
    # Twenty requests one after the other, 200 ms each, a token every 10 ms.
    traces = [
        request(t, range(t + 50, t + 201, 10), index=i) for i, t in enumerate(range(0, 4000, 200))
    ]
    evidence = CellEvidence(record(), summarise(record(), traces, (), Slo()))
    assert examine_cell(evidence) == ()
    assert status_of(evidence, ()) == "ok"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"requests": RequestCounts(20, 19, 1, {"idle": 1})}, "failed_requests"),
        ({"requests": RequestCounts(20, 19, 0)}, "too_few_samples"),
        ({"cached_prompt_fraction": 0.01}, "cache_contradicts_label"),
        ({"cached_prompt_fraction": None}, "cache_unproven"),
        ({"count_mismatches": 1}, "token_count_mismatch"),
        ({"token_count_source": "chunks+usage"}, "chunk_counted"),
        ({"stamp_source": "mixed", "late_stamps": 3}, "stamps_fallback"),
        ({"stamp_source": "monotonic"}, "stamps_fallback"),
        ({"shared_reads": 51}, "shared_reads"),
        ({"client": ClientSummary(cpu_fraction=0.51)}, "client_bound"),
        ({"client": ClientSummary(clock_step_s=0.003)}, "clock_stepped"),
        ({"inflight_mean": 0.94}, "inflight_below_concurrency"),
        ({"steady_s": None}, "no_steady_window"),
        ({"memory": MemorySummary(30, 0.3)}, "late_samples"),
    ],
)
def test_each_blemish_has_its_own_code(changes: dict[str, Any], code: str) -> None:
    found = codes(replace(FINE, **changes))
    # 19 of 20 are too few as well.
    assert [c for c in found if c != "too_few_samples"] or found == [code]
    assert code in found


@pytest.mark.parametrize(
    "changes",
    [
        {"cached_prompt_fraction": 0.0099},
        {"shared_reads": 50},
        {"client": ClientSummary(cpu_fraction=0.5)},
        {"client": ClientSummary(clock_step_s=0.002)},
        {"inflight_mean": 0.95},
        {"memory": MemorySummary(30, 0.25)},
        {"memory": MemorySummary(3, None)},
        # Late timers do not matter where the kernel stamps.
        {"client": ClientSummary(loop_lag_s=Distribution(n=100, p95=0.5))},
    ],
)
def test_limits_are_kept_when_just_reached(changes: dict[str, Any]) -> None:
    assert codes(replace(FINE, **changes)) == []


def test_late_timers_matter_without_kernel_stamps() -> None:
    lag = ClientSummary(loop_lag_s=Distribution(n=100, p95=0.011))  # more than half of 20 ms
    found = codes(replace(FINE, client=lag, stamp_source="monotonic"))
    assert found == ["stamps_fallback", "client_bound"]


def test_every_finding_says_what_to_do_and_where() -> None:
    bad = replace(FINE, cached_prompt_fraction=0.4, inflight_mean=0.2)
    for finding in examine_cell(CellEvidence(record(), bad)):
        assert finding.cells == ("x1-off-0",)
        assert finding.text.startswith("llamacpp x1, prefix cache off, repeat 1: ")
        assert finding.severity == CODES[finding.code]


# -------------------------------------------------------------------------------------- cache


@pytest.mark.parametrize(
    ("kind", "least"),
    # 256 shared of 320: less two tokens, or one block of 128
    [("llamacpp", 254 / 320), ("fake", 254 / 320), ("vllm", 128 / 320), ("openai", 128 / 320)],
)
def test_a_warm_cell_must_find_its_opening_less_one_block(kind: EngineKind, least: float) -> None:
    warm = cell(1, "on")
    config = replace(warm.config, engine=replace(ENGINE, kind=kind))
    warm = replace(warm, config=config)
    assert expected_cached(warm) == pytest.approx(least)
    assert codes(replace(FINE, cached_prompt_fraction=least), warm) == []
    below = replace(FINE, cached_prompt_fraction=least - 0.001)
    assert codes(below, warm) == ["cache_contradicts_label"]


def test_a_warm_cell_without_a_shared_opening_is_expected_to_find_nothing() -> None:
    assert codes(FINE, cell(1, "on", prefix_tokens=0)) == []
    assert expected_cached(cell(1, "on", prefix_tokens=0, prompt_tokens=0)) == 0.0
    # An opening shorter than a block promises nothing either.
    assert expected_cached(cell(1, "on", prefix_tokens=1)) == 0.0


def test_own_traffic_promises_nothing() -> None:
    assert codes(FINE, cell(1, "on", prompts=({"messages": []},))) == []


def test_what_failed_altogether_proves_nothing_about_the_cache() -> None:
    nothing = CellMetrics(requests=RequestCounts(20, 0, 20, {"connect": 20}))
    assert codes(nothing) == ["failed_requests"]


# ------------------------------------------------------------------------------------- engine


def test_fewer_slots_than_requests_is_queueing() -> None:
    eight = cell(8)
    busy = replace(FINE, inflight_mean=8.0)
    assert codes(busy, eight, slots=4) == ["queueing_beyond_slots"]
    assert codes(busy, eight, slots=8) == codes(busy, eight, slots=None) == []


def test_speculation_that_never_helped_is_not_a_measurement_of_it() -> None:
    of = cell()
    of = replace(of, config=replace(of.config, speculation="ngram"))
    assert codes(FINE, of) == ["speculation_never_drafted"]
    assert codes(replace(FINE, draft_acceptance=0.0), of) == ["speculation_never_drafted"]
    assert codes(replace(FINE, draft_acceptance=0.3), of) == []


def test_what_happened_to_the_box_is_a_finding_of_its_cell() -> None:
    samples = [MemorySample(at * S, 0, "x", {"hygiene.throttle_count": 40 + at}) for at in (0, 3)]
    evidence = CellEvidence(record(), FINE, samples=samples)
    (finding,) = examine_cell(evidence)
    assert (finding.code, finding.severity) == ("throttled", "suspect")
    assert finding.text.startswith(
        "llamacpp x1, prefix cache off, repeat 1: the CPU's throttle counters rose by 3: cool it"
    )
    assert status_of(evidence, (finding,)) == "suspect"


def test_approximate_prompts_are_said_unless_they_are_own_traffic() -> None:
    evidence = CellEvidence(record(), FINE, prompts_exact=False)
    assert [f.code for f in examine_cell(evidence)] == ["prompt_size_approximate"]
    own = CellEvidence(record(cell(prompts=({"text": "a"},))), FINE, prompts_exact=False)
    assert examine_cell(own) == ()


def test_a_start_passes_on_what_the_engine_does_differently() -> None:
    facts = ServerFacts(details={"differences": ["slots: asked for 4, has 2"]})
    launch = Launch("llamacpp", 0, (), 4, "off", "off", 1.0, facts, None)
    (finding,) = examine_launch(launch, ["a", "b"])
    assert finding.code == "engine_differs_from_request"
    assert finding.text == "llamacpp: slots: asked for 4, has 2"
    assert finding.cells == ("a", "b")
    assert examine_launch(replace(launch, effective=ServerFacts()), ["a"]) == ()


# ------------------------------------------------------------------------------------- status


@pytest.mark.parametrize(
    ("failure", "kind", "code"),
    [
        ("llama-server ended: out of memory", "engine_died", "engine_died"),
        ("the cell took longer than 300 s", "cell_deadline", "cell_deadline"),
    ],
)
def test_a_cell_that_broke_off_failed(failure: str, kind: Any, code: str) -> None:
    evidence = CellEvidence(record(failure=failure, failure_kind=kind), FINE)
    found = examine_cell(evidence)
    assert [finding.code for finding in found] == [code]
    assert failure in found[0].text
    assert status_of(evidence, found) == "failed"


def test_a_cell_that_served_nothing_failed() -> None:
    evidence = CellEvidence(record(), CellMetrics(requests=RequestCounts(20, 0, 0)))
    assert status_of(evidence, ()) == "failed"


def test_only_suspicions_that_name_a_cell_make_it_suspect() -> None:
    evidence = CellEvidence(record(), replace(FINE, cached_prompt_fraction=0.5))
    (doubt,) = examine_cell(evidence)
    assert status_of(evidence, (doubt,)) == "suspect"
    assert status_of(evidence, (replace(doubt, cells=("another",)),)) == "ok"
    assert status_of(evidence, (replace(doubt, severity="warning"),)) == "ok"


# ------------------------------------------------------------------------------------ repeats


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], []),
        ([100.0], []),
        ([100.0, 101.0, 99.0], []),
        # Mean 100, deviation 20
        ([80.0, 100.0, 120.0], ["unstable_over_repeats"]),
        # The others agree to 1 %, the first is 40 % away: their mean 100.5, its distance 40
        ([60.0, 100.0, 101.0], ["unstable_over_repeats", "first_repeat_stands_out"]),
        # 8 % is not worth a word
        ([92.0, 100.0, 100.0], []),
        # Five in order: p = 2/120
        ([100.0, 101.0, 102.0, 103.0, 104.0], ["trend_over_repeats"]),
        ([0.0, 0.0, 0.0], []),
    ],
)
def test_repeats_are_doubted_when_they_disagree(values: list[float], expected: list[str]) -> None:
    assert [f.code for f in examine_level("level", values, ["a"])] == expected


@given(st.lists(st.floats(1e-3, 1e6), max_size=12), st.floats(0.1, 1000))
def test_doubts_about_repeats_do_not_depend_on_the_unit(values: list[float], unit: float) -> None:
    found = [f.code for f in examine_level("level", values, ())]
    assert set(found) <= {"unstable_over_repeats", "trend_over_repeats", "first_repeat_stands_out"}
    if all(abs(a - b) > 1e-6 * a for a in values for b in values if a is not b):
        rescaled = [f.code for f in examine_level("level", [v * unit for v in values], ())]
        assert ("trend_over_repeats" in rescaled) == ("trend_over_repeats" in found)
