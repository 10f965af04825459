"""The victims' tokens around newcomers, laid over each other, worked out by hand.

Two in flight, each with a token every 100 ms from 50 ms on: 20 tokens a second. Nobody comes at
6 s, a newcomer at 12 s, and so on every 12 s; two quiet seconds before, four after the moment.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import COST, MS, S, cell, request

from edgeagent.core.model import Arrival, ArrivalRecord, ArrivalSpec, RequestTrace
from edgeagent.core.series import MOST_STEPS
from edgeagent.core.series_arrivals import Overlay, arrivals, overlay

SPEC = ArrivalSpec(
    pairs=1, first="none", prompt_tokens=448, wanted_prompt_tokens=1280, output_tokens=4,
    quiet_s=2.0,
)  # fmt: skip
JOINED_MS = (12_000, 24_000)


def a_record(pairs: int = 1) -> ArrivalRecord:
    windows = [Arrival(2 * S, 4 * S, "rehearsal")]
    for pair in range(pairs):
        begin = 6 + 12 * pair
        windows.append(Arrival(begin * S, (begin + 4) * S, "none"))
        windows.append(Arrival((begin + 6) * S, (begin + 10) * S, "operator"))
    of = replace(cell(2), purpose="arrival", arrival=replace(SPEC, pairs=pairs))
    return ArrivalRecord(
        of, "a1", 0, (8 + 12 * pairs) * S, slots=3, client=COST, arrivals=tuple(windows)
    )


def victims(stall_ms: int = 0, at_ms: int = 12_000, seconds: int = 20) -> list[RequestTrace]:
    """Everything from a moment on comes later by the stall."""
    times = [50 + 100 * tick for tick in range(seconds * 10)]
    moved = [at + stall_ms if at >= at_ms else at for at in times]
    return [request(0, moved, index=index) for index in range(2)]


def newcomer(at_ms: int, first_ms: int, last_ms: int, index: int = 9) -> RequestTrace:
    return request(at_ms, [first_ms, last_ms], role="operator", index=index)


def seen(record: ArrivalRecord, traces: list[RequestTrace]) -> Overlay:
    found = overlay(record, traces)
    assert found is not None
    return found


def test_a_stall_shows_as_steps_without_tokens() -> None:
    traces = [*victims(800), newcomer(12_000, 12_900, 13_500)]
    (found,) = arrivals([seen(a_record(), traces)])
    # Usual gaps of 104 ms (0.8 s were lost in 199 gaps): 256 ms is the first power of two that
    # holds two of them; 2 s before the moment hold 7 whole steps, 4 s after it hold 15.
    assert (found.step_s, found.arrivals, found.prompt_tokens) == (0.256, 1, 448)
    assert found.from_s == pytest.approx(-7 * 0.256)
    assert len(found.victims_tokens_per_s) == 22
    # From 12 s: nothing until 12.85 s, so three steps are empty and the fourth, which ends at
    # 13.024 s, has 12.85 and 12.95 of both
    assert found.victims_tokens_per_s[7:11] == pytest.approx((0, 0, 0, 4 / 0.256))
    # The step before: 11.744 to 12 s has 11.75, 11.85 and 11.95 of both
    assert found.victims_tokens_per_s[6] == pytest.approx(6 / 0.256)
    assert (found.operator_first_token_s, found.operator_end_s) == pytest.approx((0.9, 1.5))


def test_several_arrivals_are_averaged() -> None:
    traces = [
        *victims(seconds=32),
        newcomer(12_000, 12_500, 13_000, index=8),
        newcomer(24_000, 24_700, 25_400, index=9),
    ]
    (found,) = arrivals([seen(a_record(2), traces)])
    assert found.arrivals == 2
    assert sum(found.victims_tokens_per_s) / len(found.victims_tokens_per_s) == pytest.approx(
        20, rel=0.03
    )
    assert found.operator_first_token_s == pytest.approx(0.6)
    assert found.operator_end_s == pytest.approx(1.2)


def test_zero_is_when_the_request_was_sent_not_when_it_was_due() -> None:
    late = replace(newcomer(12_000, 12_900, 13_500), sent_ns=12_100 * MS)
    (found,) = arrivals([seen(a_record(), [*victims(), late])])
    assert (found.operator_first_token_s, found.operator_end_s) == pytest.approx((0.8, 1.4))


def test_a_newcomer_that_failed_is_left_out() -> None:
    bad = newcomer(12_000, 12_900, 13_500)
    bad = replace(bad, error="reset")
    good = newcomer(24_000, 24_500, 25_000, index=10)
    (found,) = arrivals([seen(a_record(2), [*victims(seconds=32), bad, good])])
    assert found.arrivals == 1
    assert found.operator_first_token_s == pytest.approx(0.5)
    assert overlay(a_record(), [*victims(), bad]) is None


def test_the_rehearsal_is_left_out() -> None:
    rehearsal = newcomer(2_000, 2_500, 3_000)
    assert overlay(a_record(), [*victims(), rehearsal]) is None


def test_cells_of_one_setting_are_put_together_however_long_their_windows_were() -> None:
    plain = seen(a_record(), [*victims(), newcomer(12_000, 12_500, 13_000)])
    # The same, but the last window was watched for 40 s: its own steps are longer
    long_one = a_record()
    windows = (*long_one.arrivals[:-1], Arrival(12 * S, 52 * S, "operator"))
    other = seen(
        replace(long_one, arrivals=windows, finished_ns=60 * S),
        [*victims(seconds=60), newcomer(12_000, 12_700, 13_200)],
    )
    assert other.step_ns > plain.step_ns
    (found,) = arrivals([plain, other])
    assert found.arrivals == 2
    assert found.operator_first_token_s == pytest.approx(0.6)
    assert found.from_s >= -2
    assert found.from_s + len(found.victims_tokens_per_s) * found.step_s <= 4
    assert found.victims_tokens_per_s == pytest.approx(
        [20] * len(found.victims_tokens_per_s), rel=0.3
    )


def test_another_engine_is_another_picture() -> None:
    one = seen(a_record(), [*victims(), newcomer(12_000, 12_500, 13_000)])
    warm = replace(one, cell=replace(one.cell, config=replace(one.cell.config, prefix_cache="on")))
    assert [found.prefix_cache for found in arrivals([warm, one])] == ["on", "off"]


@given(st.lists(st.integers(8_000, 18_000), min_size=1, max_size=40))
def test_every_token_of_the_shown_stretch_is_in_one_step(events_ms: list[int]) -> None:
    events = sorted(set(events_ms))
    traces = [request(0, events), newcomer(12_000, 12_500, 13_000)]
    for found in arrivals([seen(a_record(), traces)]):
        begin_ns = 12 * S + round(found.from_s * S)
        end_ns = begin_ns + round(len(found.victims_tokens_per_s) * found.step_s * S)
        inside = sum(begin_ns <= at * MS < end_ns for at in events)
        assert sum(found.victims_tokens_per_s) * found.step_s == pytest.approx(inside)
        assert len(found.victims_tokens_per_s) <= MOST_STEPS
