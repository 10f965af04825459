"""What is doubted before anything starts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from edgeagent.core.findings import CODES
from edgeagent.core.gates import GIB, gates, refuses

REST: Mapping[str, float | int | None] = {
    "host.available_bytes": 8 * GIB,
    "host.swap_used_bytes": GIB,
    "hygiene.foreign_cpu_cores": 0.2,
    "hygiene.cpu_cores": 4,
    "gpu.foreign_processes": 0,
    "hygiene.trip_margin_c": 10.0,
    "hygiene.power_saver": 0,
}
FULL_POWER = {
    "hygiene": {"cpu_governors": ["performance"], "cpu_frequency_driver": "cpufreq-dt"},
    "jetson": {"power_mode": "MAXN_SUPER", "power_modes": {"0": "15W", "2": "MAXN_SUPER"}},
}


def test_a_box_at_rest_and_at_full_power_passes() -> None:
    assert gates([REST, REST], FULL_POWER, 8 * GIB) == ()


def test_what_is_not_known_does_not_stop_anybody() -> None:
    assert gates([], {}, 8 * GIB) == ()
    assert gates([dict.fromkeys(REST)], {"hygiene": {"cpu_governors": None}}, None) == ()


@pytest.mark.parametrize(
    ("last", "code", "words"),
    [
        ({"host.available_bytes": 7 * GIB}, "host_tainted", "7.00 GiB of memory are available"),
        ({"host.swap_used_bytes": 2 * GIB}, "host_tainted", "swap in use grew by 1.000 GiB"),
        # Half of 0.2 and 0.21 is above 5 % of four cores.
        ({"hygiene.foreign_cpu_cores": 0.21}, "foreign_cpu", "of 4 cores"),
        ({"gpu.foreign_processes": 2}, "foreign_gpu", "2 other programs use the GPU"),
        ({"hygiene.trip_margin_c": 9.5}, "hot_start", "9.5 C from where the kernel"),
        ({"hygiene.power_saver": 1}, "power_saver", "power-saving state"),
    ],
)
def test_each_doubt_about_the_box_names_its_numbers_and_refuses(
    last: Mapping[str, float | int | None], code: str, words: str
) -> None:
    (found,) = gates([REST, {**REST, **last}], FULL_POWER, 8 * GIB)
    assert (found.code, found.severity, found.cells) == (code, CODES[code], ())
    assert words in found.text
    assert refuses(found)


def test_swap_that_is_in_use_but_does_not_grow_is_history() -> None:
    assert (
        gates([{"host.swap_used_bytes": 5 * GIB}, {"host.swap_used_bytes": 4 * GIB}], {}, 0) == ()
    )


def test_less_than_full_power_may_be_the_makers_intent() -> None:
    facts = {
        "hygiene": {"cpu_governors": ["schedutil"], "cpu_frequency_driver": "cpufreq-dt"},
        "jetson": {"power_mode": "30W", "power_modes": {"0": "MAXN", "2": "30W"}},
    }
    (found,) = gates([REST], facts, None)
    assert (found.code, found.severity) == ("power_mode_limited", "info")
    assert found.text.startswith("the CPU's governor is schedutil and the power mode is 30W (there")
    assert not refuses(found)


def test_a_board_without_an_unlimited_mode_is_not_held_to_one() -> None:
    jetson = {"power_mode": "20W", "power_modes": {"0": "15W", "1": "20W"}}
    assert gates([REST], {"jetson": jetson}, None) == ()


def test_a_driver_that_governs_itself_is_at_full_power_by_any_name() -> None:
    facts = {"hygiene": {"cpu_governors": ["powersave"], "cpu_frequency_driver": "intel_pstate"}}
    assert gates([REST], facts, None) == ()
