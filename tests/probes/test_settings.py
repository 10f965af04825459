"""How a box is set, from trees and from this box."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.probes.settings import chosen, clock_state, settings, swaps

TREE = {
    "proc/uptime": "5025.17 9000.00\n",
    "proc/loadavg": "1.25 0.80 0.50 2/345 6789\n",
    "proc/swaps": "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
    "/dev/zram0                              partition\t655360\t\t1024\t\t5\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "arch_sys_counter\n",
    "sys/devices/system/cpu/cpufreq/policy0/related_cpus": "0 1 2 3\n",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "schedutil\n",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_driver": "cpufreq-dt\n",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_min_freq": "729600\n",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq": "1510400\n",
    "sys/devices/system/cpu/cpufreq/policy0/cpuinfo_max_freq": "1728000\n",
    "sys/class/thermal/thermal_zone0/type": "tj-thermal\n",
    "sys/class/thermal/thermal_zone0/temp": "51250\n",
    "sys/class/thermal/thermal_zone1/type": "cv0-thermal\n",
    "sys/class/thermal/thermal_zone1/temp": "-274000\n",
    "sys/class/power_supply/BAT0/type": "Battery\n",
    "sys/class/power_supply/BAT0/status": "Discharging\n",
    "sys/class/power_supply/BAT0/capacity": "81\n",
}


def test_the_settings_of_a_recorded_box(tmp_path: Path) -> None:
    for name, text in TREE.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    assert settings(tmp_path) == {
        "cpu_governors": ["schedutil"],
        "cpu_frequency_driver": "cpufreq-dt",
        "cpu_policies": [
            {
                "cores": "0 1 2 3",
                "governor": "schedutil",
                "driver": "cpufreq-dt",
                "min_hz": 729_600_000,
                "max_hz": 1_510_400_000,
                "hardware_max_hz": 1_728_000_000,
            }
        ],
        "platform_profile": None,
        "boost": None,
        "no_turbo": None,
        "power_supplies": [
            {
                "name": "BAT0",
                "type": "Battery",
                "status": "Discharging",
                "online": None,
                "capacity_percent": "81",
            }
        ],
        "thermal_zones_c": {"tj-thermal": 51.25},
        "transparent_hugepages": "madvise",
        "page_size_bytes": os.sysconf("SC_PAGE_SIZE"),
        "swap_devices": [
            {
                "name": "/dev/zram0",
                "type": "partition",
                "size_bytes": 655_360 * 1024,
                "used_bytes": 1024 * 1024,
            }
        ],
        "uptime_s": 5025.17,
        "load": [1.25, 0.8, 0.5],
        "clock_source": "arch_sys_counter",
        # A tree cannot say what the kernel thinks of its clock.
        "clock_synchronised": None,
        "clock_error_s": None,
    }


def test_an_empty_tree_has_no_settings_but_the_size_of_a_page(tmp_path: Path) -> None:
    known = {name for name, value in settings(tmp_path).items() if value is not None}
    assert known == {"page_size_bytes"}


def test_this_kernel_says_whether_its_clock_is_synchronised() -> None:
    state = clock_state()
    assert state["clock_synchronised"] in (True, False, None)
    assert (state["clock_error_s"] is None) == (not state["clock_synchronised"])
    assert isinstance(settings()["uptime_s"], float)


@pytest.mark.parametrize(
    ("text", "found"),
    [(None, None), ("Filename Type Size Used Priority\n", []), ("", []), ("x\nbroken line\n", [])],
)
def test_no_swap_is_an_empty_list_and_no_file_is_none(
    text: str | None, found: list[object] | None
) -> None:
    assert swaps(text) == found


@given(st.text())
def test_any_text_is_taken_apart(text: str) -> None:
    assert isinstance(swaps(text), list)
    assert chosen(text) is None or f"[{chosen(text)}]" in text
