"""What there is to look at: gaps in fixed bins and a cell over time, worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import MS, S, cell, record, request

from edgeagent.core.metrics import summarise
from edgeagent.core.model import MemorySample, RequestTrace, Slo
from edgeagent.core.series import (
    EDGES_NS,
    EDGES_S,
    MOST_STEPS,
    Series,
    Steps,
    Timeline,
    distributions,
    gap_counts,
    inflight,
    steps_over,
    timeline,
)

moments = st.integers(0, 10**12)


def drawn(traces: Sequence[RequestTrace], samples: Sequence[MemorySample] = ()) -> Timeline:
    found = timeline(record(), traces, samples, "cpu")
    assert found is not None
    return found


def sample(at_ms: int, **values: int | None) -> MemorySample:
    names = {name.replace("__", "."): value for name, value in values.items()}
    return MemorySample(at_ms * MS, 0, "x", names)


# ------------------------------------------------------------------------------ distributions


def test_bins_are_the_same_in_every_run() -> None:
    # 6 decades of 20 bins; each edge is 10 to the power of 1/20 above the one before
    assert len(EDGES_S) == 121
    assert (EDGES_S[0], EDGES_S[20], EDGES_S[120]) == (1e-4, 1e-3, 100.0)
    ratios = [right / left for left, right in pairwise(EDGES_S)]
    assert ratios == pytest.approx([1.122018] * 120, rel=1e-4)


def test_gaps_are_counted_where_they_lie() -> None:
    # 10, 10 and 1000 ms: 10 ms is an edge, so its bin is the one that begins there
    found = gap_counts([request(0, [50, 60, 70, 1070])])
    assert [(index, n) for index, n in enumerate(found.counts) if n] == [(40, 2), (80, 1)]
    assert (EDGES_S[40], EDGES_S[80]) == (0.01, 1.0)
    assert (found.below, found.above) == (0, 0)


def test_gaps_beyond_the_bins_are_counted_apart() -> None:
    stamps = (0, 99_999, 99_999 + 100 * S)
    found = gap_counts([replace(request(0, [1, 2, 3]), event_ns=stamps)])
    assert (found.below, sum(found.counts), found.above) == (1, 0, 1)


def test_only_what_itl_counts_is_counted() -> None:
    served = request(0, [50, 60, 70, 80], shared_events=(2,))
    others = (
        request(0, [50, 60], role="lead_in"),
        request(0, [50, 60], role="warmup"),
        request(0, [50, 60], error="reset"),
    )
    itl = summarise(record(), [served, *others], (), Slo()).itl_s
    found = gap_counts([served, *others])
    # 60 to 70 shares a read; what comes before and after it is as doubtful
    assert sum(found.counts) == itl.n == 0
    assert sum(gap_counts([request(0, [50, 60, 70, 80, 90], shared_events=(2,))]).counts) == 1


def test_repeats_are_pooled_and_levels_are_not() -> None:
    first, second, other = cell(2, repeat=0), cell(2, repeat=1), cell(4)
    short, long = gap_counts([request(0, [50, 60])]), gap_counts([request(0, [50, 60, 160])])
    two, four = distributions([(other, short), (second, long), (first, short)])
    assert (two.concurrency, two.n, two.cells) == (2, 3, ("x2-off-0", "x2-off-1"))
    assert (two.counts[40], two.counts[60]) == (2, 1)
    assert (four.concurrency, four.n, four.cells) == (4, 1, ("x4-off-0",))


def test_a_level_without_a_gap_has_no_distribution() -> None:
    assert distributions([(cell(2), gap_counts([request(0, [50])]))]) == ()


@given(st.lists(st.lists(st.integers(0, 2 * 10**11), max_size=8), max_size=4))
def test_every_gap_is_counted_once(gaps: list[list[int]]) -> None:
    traces = []
    for own in gaps:
        stamps = [S]
        for gap in own:
            stamps.append(stamps[-1] + gap)
        traces.append(
            replace(
                request(0, [1] * len(stamps)),
                event_ns=tuple(stamps),
                finished_ns=stamps[-1],
            )
        )
    found = gap_counts(traces)
    every = [gap for own in gaps for gap in own]
    assert found.below + sum(found.counts) + found.above == len(every)
    assert found.below == sum(gap < EDGES_NS[0] for gap in every)
    assert found.above == sum(gap >= EDGES_NS[-1] for gap in every)
    assert summarise(record(), traces, (), Slo()).itl_s.n == len(every)


# ---------------------------------------------------------------------------------- timelines


def test_a_cell_over_time() -> None:
    # s---o---o---o      sent at 0 and at 100 ms, tokens every 100 ms, over at 300 and 400 ms;
    #     s---o---o---o  a step is two gaps: 200 ms
    found = drawn(
        [request(0, [100, 200, 300]), request(100, [200, 300, 400], event_tokens=(2,) * 3)]
    )
    assert found.step_s == 0.2
    # 0 to 200: one all the time, the other for half of it; 200 to 400: half and all
    assert found.inflight == (1.5, 1.5)
    # At 100 one token; at 200 and 300 one and two each, at 400, the end, two
    assert found.output_tokens_per_s == pytest.approx((1 / 0.2, 8 / 0.2))


def test_time_begins_with_the_first_request_whenever_that_was() -> None:
    early = drawn([request(0, [100, 200])])
    late = drawn([request(5_000, [5_100, 5_200])])
    assert replace(late, cell_id=early.cell_id) == early


def test_lead_in_is_part_of_it_and_warming_up_is_not() -> None:
    found = drawn(
        [
            request(0, [10, 20], role="warmup"),
            request(1_000, [1_100, 1_200], role="lead_in"),
            request(1_000, [1_100, 1_200]),
        ]
    )
    assert found.inflight == (2.0,)


def test_the_most_memory_of_each_step_is_shown_and_its_absence_too() -> None:
    seen = [
        sample(100, engine__anon_bytes=5),
        sample(150, engine__anon_bytes=7),
        sample(250, engine__anon_bytes=None, host__used_bytes=900),
        sample(450, engine__anon_bytes=6),
        sample(9_000, engine__anon_bytes=99),
    ]
    found = drawn([request(0, [100, 200, 300, 400, 500, 600])], seen)
    assert (found.step_s, found.memory_bytes) == (0.2, (7, None, 6))
    assert (found.memory_domain, found.memory_source) == ("host", "rss_anon")
    assert found.memory_reason is None


def test_without_a_sample_there_is_a_reason() -> None:
    found = drawn([request(0, [100, 200])])
    assert set(found.memory_bytes) == {None}
    assert (found.memory_domain, found.memory_source) == (None, None)
    assert found.memory_reason == "no sample was taken"


def test_the_steady_window_is_marked() -> None:
    of = record(cell(2))
    traces = [
        request(1_000, [1_100, 1_500], role="lead_in"),
        request(1_000, [1_100, 1_600]),
        request(1_500, [1_700, 2_000]),
    ]
    found = timeline(of, traces, (), "cpu")
    assert found is not None
    # Two measured ones are in flight from 1.5 s to 1.6 s
    assert (found.steady_from_s, found.steady_to_s) == pytest.approx((0.5, 0.6))


def test_nothing_sent_is_nothing_to_show() -> None:
    assert timeline(record(), [], (), "cpu") is None
    assert timeline(record(), [replace(request(0, []), sent_ns=None)], (), "cpu") is None


@given(moments, moments, st.integers(1, 10**10))
def test_there_are_never_too_many_steps_and_they_reach_over_all(
    begin: int, length: int, least: int
) -> None:
    steps = steps_over(begin, begin + length, least)
    assert 1 <= steps.count <= MOST_STEPS
    assert steps.step_ns >= least
    assert steps.count * steps.step_ns >= length
    assert (steps.count - 1) * steps.step_ns <= length
    assert str(steps.step_ns).rstrip("0") in ("1", "2", "5")


@given(
    st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)).map(sorted), min_size=1),
    st.integers(1, 10**9),
)
def test_the_area_in_flight_is_the_sum_of_all_durations(spans: list[list[int]], least: int) -> None:
    steps = steps_over(min(b for b, _ in spans), max(e for _, e in spans), least)
    area = sum(inflight([(b, e) for b, e in spans], steps)) * steps.step_ns
    assert area == pytest.approx(sum(end - begin for begin, end in spans), rel=1e-9, abs=1e-3)


def test_a_span_that_ends_with_the_last_step_fills_it() -> None:
    assert inflight([(0, 30)], Steps(0, 10, 3)) == (1.0, 1.0, 1.0)
    assert inflight([(10, 20)], Steps(0, 10, 3)) == (0.0, 1.0, 0.0)
    assert inflight([(5, 12), (12, 12)], Steps(0, 10, 3)) == (0.5, 0.2, 0.0)


@given(st.lists(st.lists(st.integers(1, 5_000), min_size=1, max_size=20), min_size=1, max_size=5))
def test_no_token_is_lost_over_time(requests: list[list[int]]) -> None:
    traces = [request(0, sorted(events)) for events in requests]
    found = drawn(traces)
    tokens = sum(rate * found.step_s for rate in found.output_tokens_per_s)
    assert tokens == pytest.approx(sum(trace.tokens for trace in traces))


# ------------------------------------------------------------------------------- cell by cell


def test_the_first_repeat_of_the_highest_concurrency_is_shown_of_each_setting() -> None:
    series = Series("cpu")
    for of in (cell(1), cell(4, repeat=1), cell(4), cell(2), cell(4, repeat=2), cell(8, "on")):
        series.add(record(of), [request(0, [50, 60])], ())
    assert [found.cell_id for found in series.timelines] == ["x4-off-0", "x8-on-0"]
    assert [(d.concurrency, len(d.cells)) for d in series.distributions] == [
        (1, 1), (2, 1), (4, 3), (8, 1),
    ]  # fmt: skip


def test_the_order_in_which_cells_are_read_does_not_matter() -> None:
    cells = [cell(1), cell(4), cell(4, repeat=1), cell(2, "on")]
    forth, back = Series("cpu"), Series("cpu")
    for of in cells:
        forth.add(record(of), [request(0, [50, 60])], ())
    for of in reversed(cells):
        back.add(record(of), [request(0, [50, 60])], ())
    assert forth.timelines == back.timelines
    assert forth.distributions == back.distributions
