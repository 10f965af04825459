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
    on_battery,
    power_saver,
    strongest,
    trip_margin_c,
)
from edgeagent.probes.settings import Supply


def _write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


BOX = {
    "proc/loadavg": "1.25 0.80 0.50 2/345 6789\n",
    "proc/stat": "cpu  100 0 50 850 0 0 0 0 0 0\ncpu0 50 0 25 425 0 0 0 0 0 0\n"
    "cpu1 50 0 25 425 0 0 0 0 0 0\nintr 5 0\n",
    "sys/class/thermal/thermal_zone0/type": "cpu-thermal\n",
    "sys/class/thermal/thermal_zone0/temp": "45500\n",
    "sys/class/thermal/thermal_zone0/trip_point_0_type": "active\n",
    "sys/class/thermal/thermal_zone0/trip_point_0_temp": "46000\n",
    "sys/class/thermal/thermal_zone0/trip_point_1_type": "passive\n",
    "sys/class/thermal/thermal_zone0/trip_point_1_temp": "60000\n",
    "sys/class/thermal/thermal_zone1/temp": "71000\n",
    "sys/class/thermal/thermal_zone1/trip_point_0_type": "critical\n",
    "sys/class/thermal/thermal_zone1/trip_point_0_temp": "104500\n",
    "sys/class/thermal/thermal_zone2/temp": "-274000\n",
    "sys/class/thermal/thermal_zone2/trip_point_0_type": "hot\n",
    "sys/class/thermal/thermal_zone2/trip_point_0_temp": "95000\n",
    "sys/class/thermal/cooling_device0/type": "thermal-cpufreq-0\n",
    "sys/class/thermal/cooling_device0/cur_state": "2\n",
    "sys/class/thermal/cooling_device1/type": "pwm-fan\n",
    "sys/class/thermal/cooling_device1/cur_state": "9\n",
    "sys/class/thermal/cooling_device2/type": "intel_powerclamp\n",
    "sys/class/thermal/cooling_device2/cur_state": "-1\n",
    "sys/class/power_supply/AC/type": "Mains\n",
    "sys/class/power_supply/AC/online": "1\n",
    "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "3\n",
    "sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count": "4\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver": "acpi-cpufreq\n",
}


def test_a_box_that_tells_everything(tmp_path: Path) -> None:
    values, absent = HygieneProbe(_write(tmp_path, BOX)).read([])

    assert values == {
        "hygiene.temperature_max_c": 71.0,  # a zone that is switched off says -274 degrees
        "hygiene.trip_margin_c": 14.5,  # 60 less 45.5; the fan's trip at 46 does not matter
        "hygiene.throttle_count": 7,
        "hygiene.overcurrent_count": None,
        "hygiene.cooling_state": 2,  # the fan does not slow anything down
        "hygiene.load_1min": 1.25,
        "hygiene.power_saver": 1,
        "hygiene.on_battery": 0,
        "hygiene.cpu_cores": 2,
        "hygiene.foreign_cpu_cores": None,  # it takes two readings
    }
    assert set(absent) == {name for name, value in values.items() if value is None}


def test_a_box_that_tells_nothing_gives_null_with_reasons(tmp_path: Path) -> None:
    values, absent = HygieneProbe(tmp_path).read([])

    assert set(values.values()) == {None}
    assert set(absent) == set(values)
    assert all(absent.values())


def test_it_is_not_read_more_often_than_it_changes(tmp_path: Path) -> None:
    probe = HygieneProbe(_write(tmp_path, BOX), every_s=3600.0)

    first, _ = probe.read([])
    second = probe.read([])

    assert first["hygiene.load_1min"] == 1.25
    assert second == ({}, {})


def test_a_core_that_goes_off_line_and_returns_has_not_been_throttled(tmp_path: Path) -> None:
    probe = HygieneProbe(_write(tmp_path, BOX), every_s=0.0)
    counter = tmp_path / "sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count"

    counts = [probe.read([])[0]["hygiene.throttle_count"]]
    counter.unlink()
    counts.append(probe.read([])[0]["hygiene.throttle_count"])
    counter.write_text("4\n")
    counts.append(probe.read([])[0]["hygiene.throttle_count"])

    assert counts == [7, 7, 7]


def test_over_current_counters_of_a_jetson_are_summed(tmp_path: Path) -> None:
    files = {f"sys/class/hwmon/hwmon2/oc{n}_event_cnt": f"{n}\n" for n in (1, 2, 3)}
    values, _ = HygieneProbe(_write(tmp_path, files)).read([])
    assert values["hygiene.overcurrent_count"] == 6


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


def _supply(kind: str, status: str | None = None, scope: str | None = None) -> Supply:
    return Supply("x", kind, status, None, None, scope)


@pytest.mark.parametrize(
    ("supplies", "drained"),
    [
        ([], None),
        ([_supply("Mains")], 0),
        ([_supply("Mains"), _supply("Battery", "Charging")], 0),
        ([_supply("Battery", "Discharging")], 1),
        # A mouse on a box that does not say how it is fed itself
        ([_supply("Battery", "Discharging", "Device")], None),
        ([_supply("USB")], None),
    ],
)
def test_a_box_runs_on_its_own_battery_only(supplies: list[Supply], drained: int | None) -> None:
    assert on_battery(supplies) == drained


@pytest.mark.parametrize(
    ("zones", "margin"),
    [
        ([], None),
        ([("50000", None), ("", 90000), (None, 90000)], None),
        ([("50000", 90000), ("80000", 85000)], 5.0),
        ([("91000", 90000)], -1.0),
        ([("-274000", 90000)], None),
    ],
)
def test_the_margin_is_that_of_the_zone_nearest_to_its_trip(
    zones: list[tuple[str | None, int | None]], margin: float | None
) -> None:
    assert trip_margin_c(zones) == margin


@given(st.text())
def test_any_text_is_a_value_or_none(text: str) -> None:
    assert load_1min(text) is None or isinstance(load_1min(text), float)
    assert hottest_c([text]) is None or isinstance(hottest_c([text]), float)
    assert strongest([text]) is None or isinstance(strongest([text]), int)
    assert trip_margin_c([(text, 1000)]) is None or isinstance(trip_margin_c([(text, 0)]), float)
