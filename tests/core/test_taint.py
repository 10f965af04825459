"""What disturbed a cell, by its samples: small ones by hand, and long ones drawn at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import S

from edgeagent.core.findings import CODES
from edgeagent.core.model import MemorySample
from edgeagent.core.taint import rise, taints

Value = float | int | None


def over(**series: Sequence[Value]) -> list[MemorySample]:
    """Samples two seconds apart; `hygiene__load_1min` stands for hygiene.load_1min."""
    length = max(len(values) for values in series.values())
    return [
        MemorySample(
            at * 2 * S,
            0,
            "x",
            {n.replace("__", "."): v[at] for n, v in series.items() if at < len(v)},
        )
        for at in range(length)
    ]


def codes(**series: Sequence[Value]) -> list[str]:
    return [code for code, _ in taints(over(**series))]


def text(**series: Sequence[Value]) -> str:
    ((_, words),) = taints(over(**series))
    return words


QUIET: Mapping[str, Sequence[Value]] = {
    "hygiene__throttle_count": [40, 40, 40],
    "hygiene__overcurrent_count": [2, 2, 2],
    "hygiene__cooling_state": [0, 0, 0],
    "hygiene__foreign_cpu_cores": [None, 0.1, 0.2],
    "hygiene__cpu_cores": [4, 4, 4],
    "hygiene__trip_margin_c": [40.0, 30.0, 5.0],
    "hygiene__power_saver": [0, 0, 0],
    "hygiene__on_battery": [0, 0, 0],
    "jetson__power_mode": [2, 2, 2],
    "jetson__clocks_locked": [1, 1, 1],
    "jetson__overcurrent_count": [2, 2, 2],
    "gpu.a__throttle_s": [17.5, 17.5, 17.5],
    "gpu.a__throttle_reasons": [0x0, 0x4, 0x1],
    "gpu__foreign_processes": [0, 0, 0],
    "drm__foreign_processes": [0, None, 0],
    "vm__swap_in_pages": [900, 900, 900],
    "vm__swap_out_pages": [900, 950, 990],
    "vm__refault_file": [10, 1000, 4010],
    "pressure__memory_some_s": [5.0, 5.1, 5.19],
    "pressure__memory_full_s": [3.0, 3.02, 3.03],
}
"""Everything just within its limit, over four seconds."""


def test_a_quiet_box_taints_nothing_however_high_its_counters_stand() -> None:
    assert codes(**QUIET) == []
    assert list(taints([])) == []


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"hygiene__throttle_count": [40, 40, 43]}, "throttled"),
        ({"hygiene__overcurrent_count": [2, 3, 3]}, "throttled"),
        ({"jetson__overcurrent_count": [2, 3, 3]}, "throttled"),
        ({"hygiene__cooling_state": [0, 2, 0]}, "throttled"),
        ({"gpu.a__throttle_s": [17.5, 17.5, 17.75]}, "throttled"),
        ({"gpu.a__throttle_reasons": [0, 0x40, 0]}, "throttled"),
        ({"vm__swap_in_pages": [900, 901, 901]}, "memory_pressure"),
        ({"vm__refault_file": [10, 10, 4011]}, "memory_pressure"),
        ({"pressure__memory_some_s": [5.0, 5.0, 5.21]}, "memory_pressure"),
        ({"pressure__memory_full_s": [3.0, 3.0, 3.05]}, "memory_pressure"),
        ({"jetson__power_mode": [2, 2, 0]}, "power_mode_changed"),
        ({"jetson__clocks_locked": [1, 0, 1]}, "power_mode_changed"),
        ({"hygiene__on_battery": [0, 1, 1]}, "power_mode_changed"),
        ({"hygiene__foreign_cpu_cores": [None, 0.2, 0.21]}, "foreign_cpu"),
        ({"gpu__foreign_processes": [0, 1, 0]}, "foreign_gpu"),
        ({"drm__foreign_processes": [None, 2, 0]}, "foreign_gpu"),
        ({"hygiene__trip_margin_c": [9.9, 30.0]}, "hot_start"),
        ({"hygiene__cooling_state": [1, 1, 0]}, "hot_start"),
        ({"hygiene__power_saver": [1, 1, 1]}, "power_saver"),
    ],
)
def test_each_disturbance_has_its_own_code(
    changes: Mapping[str, Sequence[Value]], code: str
) -> None:
    assert codes(**{**QUIET, **changes}) == [code]
    assert code in CODES


def test_the_numbers_stand_in_the_text() -> None:
    assert text(hygiene__throttle_count=[40, 41, 43], hygiene__overcurrent_count=[0, 2]) == (
        "the CPU's throttle counters rose by 3; over-current counters rose by 2: "
        "cool it, or give it a stronger supply"
    )
    # Two probes count the same events.
    assert "rose by 2:" in text(
        hygiene__overcurrent_count=[0, 2], jetson__overcurrent_count=[10, 12]
    )
    assert text(**{"gpu.GPU-1__throttle_reasons": [0x0, 0x48, 0x44, 0x0]}).startswith(
        "GPU-1 ran with hardware slowdown and thermal slowdown (hardware) in 2 of 4 samples"
    )
    assert text(vm__swap_in_pages=[0, 7]).startswith("7 pages came back from swap")
    assert text(jetson__power_mode=[2, 0, 0, 2]).startswith(
        "the power mode changed from 2 to 0, from 0 to 2"
    )
    assert text(hygiene__foreign_cpu_cores=[1, 2], hygiene__cpu_cores=[4, 4]).startswith(
        "other programs used 1.50 of 4 cores (38%)"
    )
    # 0.5 s of 4 s
    assert text(pressure__memory_some_s=[1.0, 1.25, 1.5]).startswith(
        "a task waited for memory in 12.5% of the time"
    )


def test_a_reset_and_a_gap_say_nothing() -> None:
    assert codes(hygiene__throttle_count=[40, 0, 0]) == []
    assert codes(vm__swap_in_pages=[None, 900, None, 900, None]) == []
    assert codes(**{"gpu.a__throttle_s": [None, 5.0]}) == []
    assert codes(jetson__power_mode=[None, 2, None, 2]) == []
    # What comes after a reset counts again: 2 of 40, 42, 1, 2, 3.
    assert rise([(at, value) for at, value in enumerate([40.0, 42.0, 1.0, 2.0, 3.0])]) == 4


def test_no_share_is_taken_of_less_than_a_second() -> None:
    short = [
        MemorySample(
            at * S // 4, 0, "x", {"pressure.memory_some_s": at / 10, "vm.refault_file": at * 999}
        )
        for at in range(4)
    ]
    assert list(taints(short)) == []


def test_use_by_others_needs_to_be_known_against_the_number_of_cores() -> None:
    assert codes(hygiene__foreign_cpu_cores=[3.0, 3.0]) == []


# One sweep of several cells; in some of them something is injected, between them as well.
COUNTERS = {
    "hygiene.throttle_count": "throttled",
    "hygiene.overcurrent_count": "throttled",
    "gpu.GPU-1.throttle_s": "throttled",
    "vm.swap_in_pages": "memory_pressure",
}
injections = st.sets(st.tuples(st.integers(0, 5), st.sampled_from(sorted(COUNTERS))))
between = st.sets(st.integers(0, 5))


@given(injections, between, st.data())
def test_exactly_the_disturbed_cells_are_tainted(
    injected: set[tuple[int, str]], resting: set[int], data: st.DataObject
) -> None:
    totals: dict[str, float] = {
        name: data.draw(st.integers(0, 10**9), label=name) for name in COUNTERS
    }
    for cell in range(6):
        if cell in resting:  # while nothing is measured, counters may rise as they like
            totals = {name: total + 1 for name, total in totals.items()}
        moment = data.draw(st.integers(1, 4), label="when")
        samples = []
        for at in range(6):
            if at == moment:
                for name in COUNTERS:
                    totals[name] += (cell, name) in injected
            hidden = data.draw(st.sets(st.sampled_from(sorted(COUNTERS))), label="gaps")
            gaps = hidden if 0 < at < 5 else set()
            values = {name: None if name in gaps else total for name, total in totals.items()}
            samples.append(MemorySample(at * S, 0, str(cell), values))
        expected = {COUNTERS[name] for where, name in injected if where == cell}
        assert {code for code, _ in taints(samples)} == expected


@given(st.lists(st.floats(0, 1e12), max_size=30))
def test_a_counter_never_falls_and_rises_by_no_more_than_its_steps_up(values: list[float]) -> None:
    found = rise(list(enumerate(values)))
    assert found >= 0
    if values == sorted(values) and values:
        assert found == pytest.approx(values[-1] - values[0])
