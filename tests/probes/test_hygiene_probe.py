"""The state of the box, from recorded trees."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.probes.hygiene import (
    HygieneProbe,
    hottest_c,
    load_1min,
    power_saver,
    stalled_s,
    total,
)


def _write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


BOX = {
    "proc/loadavg": "1.25 0.80 0.50 2/345 6789\n",
    "proc/pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\n"
    "full avg10=0.00 avg60=0.00 avg300=0.00 total=1\n",
    "sys/class/thermal/thermal_zone0/temp": "45500\n",
    "sys/class/thermal/thermal_zone1/temp": "71000\n",
    "sys/class/thermal/thermal_zone2/temp": "-274000\n",
    "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "3\n",
    "sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count": "4\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver": "acpi-cpufreq\n",
}


def test_a_box_that_tells_everything(tmp_path: Path) -> None:
    values, absent = HygieneProbe(_write(tmp_path, BOX)).read([])

    assert values == {
        "hygiene.temperature_max_c": 71.0,  # a zone that is switched off says -274 degrees
        "hygiene.throttle_count": 7,
        "hygiene.overcurrent_count": None,
        "hygiene.load_1min": 1.25,
        "hygiene.power_saver": 1,
        "hygiene.pressure_cpu_some_s": None,
        "hygiene.pressure_memory_some_s": 2.5,
        "hygiene.pressure_io_some_s": None,
    }
    assert set(absent) == {name for name, value in values.items() if value is None}


def test_a_box_that_tells_nothing_gives_null_with_reasons(tmp_path: Path) -> None:
    values, absent = HygieneProbe(tmp_path).read([])

    assert set(values.values()) == {None}
    assert set(absent) == set(values)


def test_it_is_not_read_more_often_than_it_changes(tmp_path: Path) -> None:
    probe = HygieneProbe(_write(tmp_path, BOX), every_s=3600.0)

    first, _ = probe.read([])
    second = probe.read([])

    assert first["hygiene.load_1min"] == 1.25
    assert second == ({}, {})


def test_the_settings_are_told_in_words(tmp_path: Path) -> None:
    facts = HygieneProbe(_write(tmp_path, BOX)).facts()

    assert facts["cpu_governors"] == ["powersave"]
    assert facts["cpu_frequency_driver"] == "acpi-cpufreq"
    assert facts["boost"] is None


@pytest.mark.parametrize(
    ("governors", "driver", "profile", "saving"),
    [
        ([], None, None, None),
        (["performance"], "acpi-cpufreq", None, 0),
        (["performance", "powersave"], "acpi-cpufreq", None, 1),
        # intel_pstate's "powersave" goes to full speed under load
        (["powersave"], "intel_pstate", None, 0),
        (["powersave"], "intel_pstate", "low-power", 1),
        (["schedutil"], "cpufreq-dt", None, 0),
        ([], None, "balanced", 0),
    ],
)
def test_what_counts_as_saving_power(
    governors: list[str], driver: str | None, profile: str | None, saving: int | None
) -> None:
    assert power_saver(governors, driver, profile) == saving


@given(st.text())
def test_any_text_is_a_value_or_none(text: str) -> None:
    for parse in (load_1min, stalled_s):
        assert parse(text) is None or isinstance(parse(text), float)
    assert hottest_c([text]) is None or isinstance(hottest_c([text]), float)
    assert total([text]) is None or isinstance(total([text]), int)
