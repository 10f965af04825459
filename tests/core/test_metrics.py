"""Metrics of recordings small enough to be worked out by hand.

Pictures: one line a request, `s` sent, `o` a token event, ten milliseconds a column.
"""

from __future__ import annotations

import json
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import MS, S, cell, record, request

from edgeagent.core.metrics import (
    CellMetrics,
    ClientSummary,
    Window,
    gaps_ns,
    meets,
    summarise,
    tpot_s,
    ttfat_s,
    window_of,
)
from edgeagent.core.model import (
    CellRecord,
    ClientCost,
    ErrorKind,
    MemorySample,
    RequestTrace,
    Shape,
    Slo,
)
from edgeagent.core.result import plain

NO_LIMITS = Slo()


def metrics_of(of: CellRecord, *traces: RequestTrace, slo: Slo = NO_LIMITS) -> CellMetrics:
    return summarise(of, traces, (), slo)


# ------------------------------------------------------------------------------ one request


def test_latencies_of_one_request() -> None:
    # s....o.o..o.o   sent at 0, tokens at 50, 70, 100, 120 ms
    found = metrics_of(record(), request(0, [50, 70, 100, 120]))
    assert found.ttft_s.mean == 0.05
    assert found.e2e_s.mean == 0.12
    assert found.tpot_s.mean == pytest.approx(0.07 / 3)  # 70 ms for the three after the first
    assert found.gap_max_s.mean == 0.03
    assert found.headers_s.mean == 0.001
    assert (found.itl_s.n, found.itl_s.max) == (3, 0.03)
    assert found.itl_s.mean == pytest.approx(0.07 / 3)


def test_tokens_of_the_first_event_are_not_divided_by() -> None:
    # Five tokens at 50 ms, then three and two at 60 and 90: 40 ms for five tokens.
    assert tpot_s(request(0, [50, 60, 90], event_tokens=(5, 3, 2))) == pytest.approx(0.008)


def test_one_event_has_no_time_per_token_and_no_gap() -> None:
    found = metrics_of(record(), request(0, [50], event_tokens=(8,), output_tokens=8))
    assert found.tpot_s.n == found.itl_s.n == found.gap_max_s.n == 0
    assert found.tpot_s.mean is None
    assert found.ttft_s.n == 1


def test_the_first_answer_comes_after_the_reasoning() -> None:
    assert ttfat_s(request(0, [50, 60, 90], first_answer_event=2)) == 0.09
    assert ttfat_s(request(0, [50, 60, 90], first_answer_event=None)) is None


def test_gaps_around_a_shared_read_are_left_out_and_counted() -> None:
    # The fourth event came in one read with the third: 2-3 is too long, 3-4 is nothing, and 4-5
    # touches it. Left are 10-20 and 50-60.
    trace = request(0, [10, 20, 40, 40, 50, 60], shared_events=(3,))
    assert list(gaps_ns(trace)) == [10 * MS, 10 * MS]
    found = metrics_of(record(), trace)
    assert (found.itl_s.n, found.shared_reads, found.gap_max_s.max) == (2, 1, 0.02)


@given(st.lists(st.integers(0, 50), max_size=30), st.sets(st.integers(1, 29)))
def test_gaps_without_shared_reads_are_all_the_gaps(steps: list[int], shared: set[int]) -> None:
    stamps = [sum(steps[: i + 1]) for i in range(len(steps))]
    trace = request(0, stamps)
    every = [right - left for left, right in pairwise(trace.event_ns)]
    assert list(gaps_ns(trace)) == every
    some = replace(trace, shared_events=tuple(sorted(i for i in shared if i < len(stamps))))
    assert len(list(gaps_ns(some))) <= len(every)


# --------------------------------------------------------------------- failures and good ones


def failed(kind: ErrorKind, sent_ms: int = 0, *events_ms: int) -> RequestTrace:
    return request(sent_ms, events_ms, error=kind, finish_reason=None, output_tokens=None)


def test_failed_requests_stay_in_denominators_and_out_of_latencies() -> None:
    found = metrics_of(
        record(), request(0, [50, 60]), failed("idle", 100, 900), failed("http_5xx", 950)
    )
    assert (found.requests.ok, found.requests.failed, found.requests.planned) == (1, 2, 20)
    assert found.requests.errors == {"idle": 1, "http_5xx": 1}
    assert found.good_fraction == pytest.approx(1 / 3)
    assert (found.ttft_s.n, found.ttft_s.max) == (1, 0.05)


def test_a_good_request_keeps_every_limit() -> None:
    trace = request(0, [50, 60, 90])  # ttft 50 ms, tpot 20 ms, e2e 90 ms
    assert meets(trace, Slo())
    assert meets(trace, Slo(ttft_s=0.05, tpot_s=0.02, e2e_s=0.09))
    assert not meets(trace, Slo(ttft_s=0.049))
    assert not meets(trace, Slo(tpot_s=0.019))
    assert not meets(trace, Slo(e2e_s=0.089))


def test_a_request_of_one_token_cannot_fail_the_time_between_tokens() -> None:
    assert meets(request(0, [50]), Slo(tpot_s=0.001))


def test_goodput_counts_good_requests_over_the_window() -> None:
    # One after the other: sent 0, 100, 200; over at 100, 200, 300; the window is 0 to 300 ms.
    traces = [request(0, [20, 100]), request(100, [190, 200]), request(200, [220, 300])]
    found = metrics_of(record(), *traces, slo=Slo(ttft_s=0.05))
    assert found.goodput_per_s == pytest.approx(2 / 0.3)
    assert found.good_fraction == pytest.approx(2 / 3)
    assert found.request_throughput_per_s == pytest.approx(3 / 0.3)


def test_a_cell_in_which_nothing_was_served_has_no_numbers() -> None:
    found = metrics_of(record(), failed("connect"), failed("connect"))
    assert found.requests.failed == 2
    assert found.good_fraction == 0.0
    for name in ("output_tokens_per_s", "steady_s", "inflight_mean", "cached_prompt_fraction"):
        assert getattr(found, name) is None
    assert found.ttft_s.mean is None


def test_a_cell_without_any_record_has_no_numbers() -> None:
    found = metrics_of(record())
    assert (found.requests.ok, found.duration_s, found.good_fraction) == (0, None, None)


# --------------------------------------------------------------------------- the steady window


def lead_in(sent_ms: int, *events_ms: int) -> RequestTrace:
    return request(sent_ms, events_ms, role="lead_in")


def test_the_window_opens_when_the_last_lead_in_has_handed_over_its_slot() -> None:
    # slot 1   L====100 M====================400
    # slot 2   L==========200 M========300 M======500
    # Two measured requests are in flight from 200 on, until 400.
    traces = [
        lead_in(0, 50, 100),
        lead_in(0, 60, 200),
        request(100, [150, 250, 400]),
        request(200, [260, 300]),
        request(300, [350, 500]),
    ]
    assert window_of(record(cell(2)), traces) == Window(200 * MS, 400 * MS, steady=True)
    found = metrics_of(record(cell(2)), *traces)
    assert found.steady_s == pytest.approx(0.2)
    # After 200 and up to 400: 250, 260, 300, 350, 400.
    assert found.output_tokens_per_s == pytest.approx(5 / 0.2)
    assert found.inflight_mean == pytest.approx(2.0)
    # 300 and 400 ended inside: 320 prompt tokens each.
    assert found.request_throughput_per_s == pytest.approx(2 / 0.2)
    assert found.total_tokens_per_s == pytest.approx((5 + 2 * 320) / 0.2)
    assert found.duration_s == pytest.approx(0.5)
    # The lead-in is in no latency: 50, 60 and 50 ms are those of the three measured ones.
    assert found.ttft_s.mean == pytest.approx(0.16 / 3)
    assert found.ttft_s.n == found.requests.ok == 3


def test_tokens_of_a_lead_in_that_is_still_running_count() -> None:
    # One stays above what was asked for: three in flight, two of them measured.
    traces = [lead_in(0, 100, 250), request(50, [150, 300]), request(100, [200, 300])]
    found = metrics_of(record(cell(2)), *traces)
    # From 100 to 300: 150, 200, 250 and two at 300; 100 itself was before.
    assert found.output_tokens_per_s == pytest.approx(5 / 0.2)
    assert found.inflight_mean == pytest.approx(2.75)  # the lead-in leaves at 250


def test_too_few_requests_fall_back_to_first_sent_until_last_token() -> None:
    traces = [request(0, [50, 100]), request(20, [90, 180])]
    found = metrics_of(record(cell(4)), *traces)
    assert found.steady_s is None
    assert found.output_tokens_per_s == pytest.approx(4 / 0.18)
    assert found.inflight_mean == pytest.approx((100 + 160) / 180)


def test_a_wave_is_measured_from_its_first_request_to_its_last_token() -> None:
    fanout = record(cell(2, shape="fanout"))
    waves = [
        request(0, [50, 100], wave=0),
        request(0, [60, 140], wave=0),
        request(150, [200, 250], wave=1),
        request(150, [210, 300], wave=1),
    ]
    found = metrics_of(fanout, *waves)
    assert found.steady_s == pytest.approx(0.3)
    assert found.output_tokens_per_s == pytest.approx(8 / 0.3)
    assert found.inflight_mean == pytest.approx((100 + 140 + 100 + 150) / 300)


@pytest.mark.parametrize("shape", ["fanout", "sustained"])
def test_the_last_request_counts_although_its_end_is_said_after_its_last_token(
    shape: Shape,
) -> None:
    # The finish event of the last request arrives 5 ms after its last token, where a window that
    # ends with the last token is closed already.
    of = record(cell(4, shape=shape))
    last = replace(request(0, [60, 200]), finished_ns=205 * MS)
    found = metrics_of(of, request(0, [50, 100]), last)
    assert found.request_throughput_per_s == pytest.approx(2 / 0.2)
    assert found.goodput_per_s == pytest.approx(2 / 0.2)
    assert found.total_tokens_per_s == pytest.approx((4 + 640) / 0.2)


def test_a_failed_request_holds_its_place_until_it_is_given_up() -> None:
    traces = [request(0, [50, 300]), failed("idle", 0), request(200, [250, 300])]
    traces[1] = replace(traces[1], finished_ns=200 * MS)
    found = metrics_of(record(cell(2)), *traces)
    assert found.steady_s == pytest.approx(0.3)
    assert found.output_tokens_per_s == pytest.approx(4 / 0.3)


def test_warm_up_and_priming_leave_no_trace_in_the_numbers() -> None:
    plain_run = [request(0, [50, 100]), request(100, [140, 200])]
    others = [
        request(10, [90, 400], role="warmup", cached_tokens=300),
        request(10, [90, 400], role="prime", cached_tokens=300),
    ]
    assert metrics_of(record(), *plain_run, *others) == metrics_of(record(), *plain_run)


runs = st.lists(
    st.tuples(
        st.sampled_from(["lead_in", "measured"]),
        st.integers(0, 200),
        st.lists(st.integers(0, 40), max_size=6),
        st.booleans(),
    ),
    max_size=12,
)


@given(runs, st.integers(1, 4), st.sampled_from(["sustained", "fanout"]))
def test_whatever_was_recorded_the_numbers_hold_together(
    run: list[tuple[str, int, list[int], bool]], concurrency: int, shape: str
) -> None:
    traces = []
    for role, sent, steps, ok in run:
        stamps = [sent + sum(steps[: i + 1]) for i in range(len(steps))]
        error = None if ok and stamps else "no_end"
        traces.append(request(sent, stamps, role=role, error=error))
    of = record(cell(concurrency, shape=shape))
    found = metrics_of(of, *traces)
    total = sum(trace.tokens for trace in traces)
    assert found.requests.ok + found.requests.failed == sum(r[0] == "measured" for r in run)
    if found.output_tokens_per_s is not None:
        window = window_of(of, traces)
        assert window is not None
        assert 0 <= found.output_tokens_per_s * window.seconds <= total + 1e-6
    if found.inflight_mean is not None:
        assert 0 <= found.inflight_mean <= len(traces) + 1e-9
        if found.steady_s and shape == "sustained":
            assert found.inflight_mean > 0
    assert json.loads(json.dumps(plain(found), allow_nan=False))["requests"]["ok"] >= 0
    if found.good_fraction is not None:
        assert 0 <= found.good_fraction <= 1


@given(runs, st.integers(1, 4))
def test_the_order_of_records_does_not_matter(
    run: list[tuple[str, int, list[int], bool]], concurrency: int
) -> None:
    traces = [
        request(sent, [sent + sum(steps[: i + 1]) for i in range(len(steps))], role=role)
        for role, sent, steps, _ in run
    ]
    of = record(cell(concurrency))
    assert metrics_of(of, *traces) == metrics_of(of, *reversed(traces))


# ------------------------------------------------------------------------------------ honesty


def test_cached_prompt_tokens_are_weighed_by_prompt_length() -> None:
    found = metrics_of(
        record(),
        request(0, [50], prompt_tokens=100, cached_tokens=80),
        request(100, [150], prompt_tokens=300, cached_tokens=0),
        request(200, [250], prompt_tokens=500, cached_tokens=None),  # says nothing: not a zero
    )
    assert found.cached_prompt_fraction == pytest.approx(80 / 400)
    assert found.prompt_tokens == 900


def test_an_engine_that_reports_no_cache_has_none() -> None:
    assert metrics_of(record(), request(0, [50], cached_tokens=None)).cached_prompt_fraction is None


def test_a_final_count_that_differs_is_counted() -> None:
    found = metrics_of(
        record(),
        request(0, [50, 60], output_tokens=3),
        request(100, [150, 160], output_tokens=2),
        request(200, [250, 260], output_tokens=None),
    )
    assert found.count_mismatches == 1
    assert found.output_tokens == 6  # what was seen


def test_sources_are_named_and_mixtures_too() -> None:
    usage = request(0, [50], token_source="usage")  # noqa: S106  # because it is a source
    both = metrics_of(record(), request(0, [50]), usage)
    assert str(both.token_count_source).split("+") == ["timings", "usage"]
    slow = request(0, [50], stamp_source="monotonic")
    assert metrics_of(record(), request(0, [50])).stamp_source == "kernel"
    assert metrics_of(record(), slow).stamp_source == "monotonic"
    assert metrics_of(record(), slow, request(0, [50])).stamp_source == "mixed"
    assert metrics_of(record(), request(0, [50], late_stamps=1)).stamp_source == "mixed"
    assert metrics_of(record(), failed("connect")).stamp_source is None


def test_speculation_is_accepted_over_drafted() -> None:
    found = metrics_of(
        record(),
        request(0, [50], draft_tokens=10, draft_accepted=6),
        request(100, [150], draft_tokens=30, draft_accepted=9),
    )
    assert found.draft_acceptance == pytest.approx(15 / 40)
    assert metrics_of(record(), request(0, [50])).draft_acceptance is None
    nothing = request(0, [50], draft_tokens=0, draft_accepted=0)
    assert metrics_of(record(), nothing).draft_acceptance is None


def test_the_same_recording_through_the_formulas_of_vllm() -> None:
    # First events (roles) at 40 and 140; tokens at 50 60 90 and 150 200.
    found = metrics_of(
        record(),
        request(0, [50, 60, 90], first_event_ns=40 * MS),
        request(100, [150, 200], first_event_ns=140 * MS),
    ).vllm_equivalent
    assert found.duration_s == pytest.approx(0.2)
    assert found.output_throughput_per_s == pytest.approx(5 / 0.2)
    assert found.request_throughput_per_s == pytest.approx(2 / 0.2)
    assert found.mean_ttft_s == found.median_ttft_s == pytest.approx(0.04)
    assert found.p99_ttft_s is None  # two values have no p99
    # 50 ms over two tokens, 60 ms over one
    assert found.mean_tpot_s == pytest.approx((0.025 + 0.06) / 2)
    assert found.mean_itl_s == pytest.approx((0.01 + 0.03 + 0.05) / 3)


def test_the_client_answers_for_its_own_cost() -> None:
    cost = ClientCost(cpu_s=0.3, wall_s=2.0, rss_bytes=5, loop_lag_s=(0.001,) * 20)
    found = metrics_of(record(client=cost), request(0, [50, 60, 70])).client
    assert found.cpu_fraction == pytest.approx(0.15)
    assert found.cpu_s_per_1000_events == pytest.approx(100)
    assert (found.loop_lag_s.p95, found.rss_bytes) == (0.001, 5)
    unknown = metrics_of(record(client=replace(cost, cpu_s=None)), request(0, [50])).client
    assert (unknown.cpu_fraction, unknown.cpu_s_per_1000_events) == (None, None)


def sample(at_ms: int, used: int | None, late_ms: int = 0) -> MemorySample:
    reasons = {"gpu.a.used_bytes": "no NVML here"}
    values = {"host.used_bytes": used, "gpu.a.used_bytes": None}
    return MemorySample(at_ms * MS, late_ms * MS, "x", values, reasons)


def test_samples_give_a_peak_and_a_mean_and_gaps_are_explained() -> None:
    samples = [sample(0, 100), sample(100, 300), sample(200, None), sample(300, 200)]
    found = summarise(record(), (), samples, NO_LIMITS).memory
    assert found.samples == 4
    used, gpu = found.values["host.used_bytes"], found.values["gpu.a.used_bytes"]
    assert (used.peak, used.mean, used.reason) == (300, 200, None)
    assert (gpu.peak, gpu.mean, gpu.reason) == (None, None, "no NVML here")


def test_lateness_of_sampling_is_a_quantile_that_needs_twenty_samples() -> None:
    few = [sample(i, 1, late_ms=7) for i in range(19)]
    assert summarise(record(), (), few, NO_LIMITS).memory.late_p95_s is None
    enough = [*few, sample(20, 1, late_ms=7)]
    assert summarise(record(), (), enough, NO_LIMITS).memory.late_p95_s == 0.007


def test_no_samples_are_no_memory() -> None:
    found = metrics_of(record(), request(0, [50])).memory
    assert (found.samples, found.values) == (0, {})


def test_a_long_cell_costs_time_in_proportion() -> None:
    # 16 streams of 5,000 tokens: what matters is that nothing is quadratic in events.
    streams = [request(i, range(50 + i, 50_050 + i, 10)) for i in range(16)]
    found = metrics_of(record(cell(16)), *streams)
    assert found.itl_s.n == 16 * 4_999
    assert found.itl_s.p99 == pytest.approx(0.01)
    # All are in flight from 15 ms, when the last was sent, until the first has its last token.
    assert found.steady_s == pytest.approx((50_040 - 15) * MS / S)


def test_the_documentation_names_every_metric_of_a_cell() -> None:
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    names = {field.name for field in fields(CellMetrics)} | {
        field.name for field in fields(ClientSummary)
    }
    assert [name for name in sorted(names) if f"`{name}`" not in text] == ["requests"]
