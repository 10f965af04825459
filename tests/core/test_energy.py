"""Energy of stretches small enough to be worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import S, record, request

from edgeagent.core.energy import Energy, IdlePower, Spent, Work, energy_of, idle_power, spent_in
from edgeagent.core.metrics import summarise
from edgeagent.core.model import MemorySample, Slo

Value = float | int | None


def at(seconds: float, **values: Value) -> MemorySample:
    """A sample; `power__total_w` stands for power.total_w."""
    named = {name.replace("__", "."): value for name, value in values.items()}
    return MemorySample(round(seconds * S), 0, "x", named)


def over(begin_s: float, end_s: float, *samples: MemorySample) -> Spent:
    return spent_in(samples, round(begin_s * S), round(end_s * S))


# --------------------------------------------------------------------------------- counters


def test_a_counter_is_read_off_at_both_edges_between_its_readings() -> None:
    # 10 W up to 2 s, then 30 W: from 1 to 3 s that is 10 + 30 J.
    found = over(1, 3, *(at(t, power__rapl_j=j) for t, j in ((0, 100), (2, 120), (4, 180))))
    assert found.gross_j == pytest.approx(40)
    assert (found.source, found.domain) == ("rapl_counter", "package")
    assert (found.begin_ns, found.end_ns, found.coverage) == (S, 3 * S, 1.0)


def test_nothing_is_extrapolated_beyond_the_samples() -> None:
    # Samples from 1 to 9 s of a window of ten: 80 % of it, 8 s at 5 W.
    found = over(0, 10, *(at(t, power__rapl_j=5 * t) for t in range(1, 10)))
    assert found.gross_j == pytest.approx(40)
    assert (found.begin_ns, found.end_ns, found.coverage) == (S, 9 * S, 0.8)


def test_a_counter_loses_nothing_in_a_gap_but_at_the_edges() -> None:
    readings = {0.0: 0, 1.0: 10, 9.0: 90, 10.0: 100}
    samples = [at(t, power__rapl_j=j) for t, j in readings.items()]
    assert over(0.5, 9.5, *samples).gross_j == pytest.approx(90)
    edge = over(5, 9.5, *samples)
    assert edge.gross_j is None
    assert edge.reason == "readings of power are missing for 8.0 s"


def test_a_counter_that_fell_was_reset() -> None:
    found = over(0, 3, *(at(t, power__rapl_j=j) for t, j in ((0, 100), (1, 110), (2, 5), (3, 9))))
    assert found.gross_j is None
    assert found.reason == "the energy counter was reset or wrapped around"
    # Before the window it does not matter.
    later = over(2, 3, *(at(t, power__rapl_j=j) for t, j in ((0, 100), (1, 110), (2, 5), (3, 9))))
    assert later.gross_j == pytest.approx(4)


# ------------------------------------------------------------------------------------ power


def test_power_is_summed_up_by_trapezoids_between_the_edges() -> None:
    # 10 W rising to 20 W in a second, then 20 W; from 0.5 s: 15 to 20 W over 0.5 s, 20 W for 1 s.
    samples = [at(t, power__total_w=w) for t, w in ((0, 10), (1, 20), (2, 20), (3, 20))]
    found = over(0.5, 2, *samples)
    assert found.gross_j == pytest.approx(17.5 * 0.5 + 20)
    assert (found.source, found.domain) == ("power_rails", "module rails")


@pytest.mark.parametrize(
    ("rail", "domain"),
    [("VIN", "board input"), ("VDD_IN", "module input"), ("VIN_SYS_5V0", "module rails")],
)
def test_the_rail_that_feeds_all_others_says_what_is_seen(rail: str, domain: str) -> None:
    samples = [at(t, **{"power__total_w": 10, f"power__{rail}_w": 10}) for t in (0, 1)]
    assert over(0, 1, *samples).domain == domain


def test_power_between_readings_far_apart_is_unknown() -> None:
    samples = [at(t, power__total_w=10) for t in (0, 1, 3.5, 4)]
    found = over(0, 4, *samples)
    assert found.gross_j is None
    assert found.reason == "readings of power are missing for 2.5 s"
    assert over(0, 4, *(at(t, power__total_w=10) for t in (0, 2, 4))).gross_j == pytest.approx(40)
    # A null is a gap like any other.
    holed = [at(t, power__total_w=None if 0 < t < 3 else 10) for t in range(5)]
    assert over(0, 4, *holed).reason == "readings of power are missing for 3.0 s"


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        ([], "no energy counter and no power could be read here"),
        ([at(0, power__total_w=None)], "no energy counter and no power could be read here"),
        ([at(0, power__total_w=1)], "there are fewer than two readings in the window"),
        ([at(11, power__total_w=1)] * 2, "there are fewer than two readings in the window"),
        (
            [at(4, power__rapl_j=1), at(5, power__rapl_j=2)],
            "readings of power are missing for 5.0 s",
        ),
    ],
)
def test_what_was_not_measured_is_null_with_a_reason(
    samples: list[MemorySample], reason: str
) -> None:
    found = over(0, 10, *samples)
    assert found.gross_j is None
    assert found.reason == reason


def test_a_short_window_needs_half_of_it_covered() -> None:
    samples = [at(t, power__rapl_j=10 * t) for t in (1.4, 1.8)]
    assert over(0, 3, *samples).reason == "samples cover only 13% of the window"
    assert over(1.2, 2, *samples).gross_j == pytest.approx(4)


def test_why_no_instrument_was_read_is_passed_on() -> None:
    absent = {"power.rapl_j": "only root may read it", "host.used_bytes": "no /proc"}
    sample = replace(at(0, power__rapl_j=None), absent=absent)
    assert over(0, 1, sample).reason == (
        "no energy counter and no power could be read here (power.rapl_j: only root may read it)"
    )


# -------------------------------------------------------------------------------- instrument


GPU = {"gpu.A.energy_j": 5, "gpu.B.energy_j": 50, "power.rapl_j": 7, "power.total_w": 3}


def joules(**held: Value) -> tuple[str | None, float | None]:
    """Source and energy of GPUs at 5 and 50 W and a processor at 7, by what the engine holds."""
    samples = [
        MemorySample(
            t * S,
            0,
            "x",
            {name: value * t if name.endswith("_j") else value for name, value in GPU.items()}
            | {f"gpu.{gpu}.engine_bytes": value for gpu, value in held.items()},
        )
        for t in range(3)
    ]
    found = over(0, 2, *samples)
    return found.source, found.gross_j


def test_gpus_are_summed_unless_the_engine_is_known_not_to_work_on_them() -> None:
    assert joules() == ("nvml_counter", 110)
    assert joules(A=None, B=1 << 30) == ("nvml_counter", 110)
    assert joules(A=0, B=1 << 30) == ("nvml_counter", 100)
    # An engine on the processor: the GPUs' energy is not its own.
    assert joules(A=0, B=0) == ("rapl_counter", 14)


def test_a_gpu_without_a_counter_is_measured_by_its_power() -> None:
    samples = [at(t, **{"gpu.A__power_w": 20 + t, "gpu.A__energy_j": None}) for t in range(3)]
    found = over(0, 2, *samples)
    assert (found.source, found.domain) == ("nvml_power", "gpu")
    assert found.gross_j == pytest.approx(42)


# -------------------------------------------------------------------------------------- work


def test_energy_of_each_token_and_request_with_and_without_the_idle_box() -> None:
    spent = Spent("rapl_counter", "package", ("power.rapl_j",), 0, 4 * S, 1.0, gross_j=100.0)
    found = energy_of(spent, Work(output_tokens=50, requests=2), IdlePower({"power.rapl_j": 10.0}))
    assert found == Energy(
        source="rapl_counter",
        domain="package",
        gross_j=100.0,
        idle_w=10.0,
        net_j=60.0,
        per_output_token_j=2.0,
        per_request_j=50.0,
        net_per_output_token_j=1.2,
        net_per_request_j=30.0,
        coverage=1.0,
    )


def test_without_idle_power_only_the_gross_energy_is_known() -> None:
    spent = Spent("nvml_counter", "gpu", ("gpu.A.energy_j",), 0, 4 * S, 1.0, gross_j=100.0)
    for idle in (None, IdlePower({"power.rapl_j": 10.0})):
        found = energy_of(spent, Work(50, 0), idle)
        assert (found.gross_j, found.per_output_token_j, found.per_request_j) == (100.0, 2.0, None)
        assert (found.idle_w, found.net_j, found.net_per_output_token_j) == (None, None, None)
        assert found.reason == "no idle power was measured"


def test_tokens_are_counted_over_what_is_covered() -> None:
    # Two requests one after the other, a token every 100 ms from 0.1 to 2.0 s; samples from 0 to
    # 1.5 s at 10 W. The window opens as the first request is sent; it has 20 tokens, 15 of them,
    # and one request, within what was sampled.
    traces = [request(t, range(t + 100, t + 1001, 100), index=i) for i, t in enumerate((0, 1000))]
    samples = [at(t / 2, power__rapl_j=5.0 * t) for t in range(4)]
    found = summarise(
        record(), traces, samples, Slo(), idle=IdlePower({"power.rapl_j": 4.0})
    ).energy
    assert found.coverage == pytest.approx(0.75)
    assert found.gross_j == pytest.approx(15.0)
    assert found.per_output_token_j == pytest.approx(1.0)
    assert found.per_request_j == pytest.approx(15.0)
    assert found.net_per_output_token_j == pytest.approx(9.0 / 15)


def test_a_cell_without_tokens_or_samples_says_why_it_has_no_energy() -> None:
    assert "no token was seen" in (summarise(record(), (), (), Slo()).energy.reason or "")
    found = summarise(record(), [request(0, [50, 100])], (), Slo()).energy
    assert found == Energy(reason="no energy counter and no power could be read here")


# --------------------------------------------------------------------------------------- rest


def idle(*samples: MemorySample) -> Mapping[str, float]:
    found = idle_power([replace(sample, phase="idle") for sample in samples])
    return {} if found is None else found.watts


def test_idle_power_is_the_median_of_the_idle_samples_only() -> None:
    samples = [at(t, power__total_w=w) for t, w in enumerate((5, 6, 50))]
    busy = replace(at(3, power__total_w=90), phase="load")
    assert idle(*samples) == {"power.total_w": 6}
    assert idle_power([busy, at(4, power__total_w=1)]) is None
    found = idle_power([busy, *(replace(s, phase="idle") for s in samples)])
    assert found == IdlePower({"power.total_w": 6})


def test_idle_power_of_a_counter_is_its_rate_over_half_seconds() -> None:
    # 8 W, but the counter moves every 200 ms only.
    steps = [at(t / 10, **{"gpu.A__energy_j": 1.6 * (t // 2)}) for t in range(21)]
    assert idle(*steps)["gpu.A.energy_j"] == pytest.approx(8.0, rel=0.1)
    # Less than half a second says nothing, nor does what lies across a load.
    assert idle(*steps[:4]) == {}
    load = replace(at(0.35, **{"gpu.A__energy_j": 900}), phase="load")
    apart = [replace(s, phase="idle") for s in (*steps[:4], *steps[4:8])]
    assert idle_power([*apart[:4], load, *apart[4:]]) is None
    # Nor a counter that begins anew, or a silence of more than two seconds.
    assert idle(at(0, power__rapl_j=9), at(1, power__rapl_j=1)) == {}
    assert idle(at(0, power__rapl_j=0), at(3, power__rapl_j=30)) == {}


@given(
    st.lists(st.floats(0, 1000), min_size=2, max_size=40),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_a_counter_and_the_power_it_was_made_of_agree(
    watts: list[float], left: float, right: float
) -> None:
    # Steps of a second, each at the mean of its ends: what trapezoids take for granted.
    total, counted = 0.0, [0.0]
    for before, after in pairwise(watts):
        total += (before + after) / 2
        counted.append(total)
    end_s = len(watts) - 1
    meter = [at(t, power__total_w=w) for t, w in enumerate(watts)]
    counter = [at(t, power__rapl_j=j) for t, j in enumerate(counted)]
    whole = over(0, end_s, *meter).gross_j
    assert whole == pytest.approx(over(0, end_s, *counter).gross_j)
    # Parts add up to the whole.
    middle = round(min(left, right) * end_s * 1000) / 1000
    if 0 < middle < end_s:
        parts = [over(0, middle, *meter).gross_j, over(middle, end_s, *meter).gross_j]
        assert None not in parts
        assert sum(part for part in parts if part is not None) == pytest.approx(whole, abs=1e-6)
