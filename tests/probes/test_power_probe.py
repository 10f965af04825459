"""Rails, the energy counter of a processor, and what the total is made of."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trees import names, unpack

from edgeagent.probes.power import (
    Pace,
    PowerProbe,
    Rail,
    Zone,
    counted,
    name_of,
    summed,
    unique,
    watts,
    what_total_is,
)
from edgeagent.probes.sysfs import Absent

PACKAGE = "sys/class/powercap/intel-rapl:0"
ALWAYS = Pace(every_s=0.0, look_s=0.0)


class Hands:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def _write(root: Path, folder: str, files: dict[str, object]) -> Path:
    (root / folder).mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (root / folder / name).write_text(f"{value}\n")
    return root


def _package(root: Path, energy_uj: int, name: str = "package-0", path: str = PACKAGE) -> Path:
    files = {"name": name, "energy_uj": energy_uj, "max_energy_range_uj": 262_143_328_850}
    return _write(root, path, files)


# ------------------------------------------------------------------------------- recorded boards


def test_an_orin_nano_has_an_input_rail_which_is_the_total(tmp_path: Path) -> None:
    values, absent = PowerProbe(unpack("orin-jp6", tmp_path)).read([])

    assert values == pytest.approx(
        {
            "power.VDD_IN_w": 5.032 * 1.656,
            "power.VDD_CPU_GPU_CV_w": 5.032 * 0.496,
            "power.VDD_SOC_w": 5.024 * 0.376,
            "power.total_w": 5.032 * 1.656,
        }
    )
    assert absent == {}


def test_an_agx_orin_has_none_so_the_rails_are_summed_but_none_twice(tmp_path: Path) -> None:
    values, absent = PowerProbe(unpack("orin-jp7", tmp_path)).read([])

    assert values == pytest.approx(
        {
            "power.VDD_GPU_SOC_w": 19.968 * 0.736,
            "power.VDD_CPU_CV_w": 19.976 * 0.120,
            "power.VIN_SYS_5V0_w": 4.968 * 1.008,
            "power.VDDQ_VDD2_1V8AO_w": 4.968 * 0.320,
            "power.total_w": 19.968 * 0.736 + 19.976 * 0.120 + 4.968 * 1.008,
        }
    )
    assert absent == {}


def test_a_thor_measures_its_whole_board(tmp_path: Path) -> None:
    values, absent = PowerProbe(unpack("thor", tmp_path)).read([])

    assert values == pytest.approx(
        {
            "power.VDD_GPU_w": 19.984 * 0.632,
            "power.VDD_CPU_SOC_MSS_w": 19.992 * 0.528,
            "power.VIN_SYS_5V0_w": 5.024 * 1.112,
            "power.VIN_w": 42.184,
            "power.total_w": 42.184,
        }
    )
    assert absent == {}


def test_a_box_without_any_sensor_says_so_with_one_value(tmp_path: Path) -> None:
    values, absent = PowerProbe(unpack("gb10", tmp_path)).read([])

    assert values == {"power.total_w": None}
    assert set(absent) == {"power.total_w"}


@pytest.mark.parametrize("name", ["amd-apu", "intel", "cpu"])
def test_a_processor_s_energy_is_a_counter_and_no_total(tmp_path: Path, name: str) -> None:
    values, absent = PowerProbe(unpack(name, tmp_path)).read([])

    assert set(values) == {"power.rapl_j"}
    assert values["power.rapl_j"]
    assert absent == {}


@pytest.mark.parametrize("name", names())
def test_whatever_is_none_has_a_reason_and_nothing_else_has(tmp_path: Path, name: str) -> None:
    values, absent = PowerProbe(unpack(name, tmp_path)).read([])

    assert {key for key, value in values.items() if value is None} == set(absent)


# ------------------------------------------------------------------------------- what a total is


def test_the_facts_say_what_the_total_is_and_never_that_it_is_the_system(tmp_path: Path) -> None:
    totals = {
        name: str(PowerProbe(unpack(name, tmp_path)).facts()["total"])
        for name in ("orin-jp6", "orin-jp7", "thor", "gb10")
    }

    assert totals == {
        "orin-jp6": "VDD_IN: the input of the module; what else the carrier board feeds is not "
        "in it",
        "orin-jp7": "VDD_GPU_SOC + VDD_CPU_CV + VIN_SYS_5V0: rails of the module; the carrier "
        "board is not in it",
        "thor": "VIN: the input of the whole board",
        "gb10": "None",
    }
    assert not any("system" in total.lower() for total in totals.values())


def test_the_facts_name_each_rail_s_sensor_by_an_address_that_lasts(tmp_path: Path) -> None:
    assert PowerProbe(unpack("thor", tmp_path)).facts()["rails"] == {
        "VDD_GPU": "ina3221 at 2-0040",
        "VDD_CPU_SOC_MSS": "ina3221 at 2-0040",
        "VIN_SYS_5V0": "ina3221 at 2-0040",
        "VIN": "ina238 at 2-0044",
    }


def test_a_rail_that_hangs_on_another_counts_alone_where_the_other_has_no_sensor() -> None:
    memory = Rail("VDDQ_VDD2_1V8AO", "ina3221", "1-0041")
    five_volts = Rail("VIN_SYS_5V0", "ina3221", "1-0040")

    assert summed([memory]) == (memory,)
    assert summed([five_volts, memory]) == (five_volts,)
    assert what_total_is([]) is None


# ---------------------------------------------------------------------------------------- rails


def test_a_rail_that_cannot_be_read_leaves_the_others_and_takes_the_sum(tmp_path: Path) -> None:
    root = unpack("orin-jp7", tmp_path)
    gated = root / "sys/class/hwmon/hwmon1/curr2_input"
    gated.unlink()
    gated.mkdir()

    values, absent = PowerProbe(root).read([])

    assert values["power.VDD_CPU_CV_w"] is None
    assert values["power.VDD_GPU_SOC_w"] == pytest.approx(19.968 * 0.736)
    assert values["power.total_w"] is None
    assert set(absent) == {"power.VDD_CPU_CV_w", "power.total_w"}
    assert "curr2_input" in absent["power.total_w"]


def test_a_module_rail_that_cannot_be_read_does_not_take_the_input_away(tmp_path: Path) -> None:
    root = unpack("orin-jp6", tmp_path)
    (root / "sys/class/hwmon/hwmon1/curr3_input").unlink()

    values, _ = PowerProbe(root).read([])

    assert values["power.VDD_SOC_w"] is None
    assert values["power.total_w"] == pytest.approx(5.032 * 1.656)


def test_channels_that_are_not_connected_or_switched_off_are_no_rails(tmp_path: Path) -> None:
    files = {
        "name": "ina3221",
        "in1_label": "NC",
        "in1_input": 5000,
        "curr1_input": 100,
        "in2_label": "VDD_SOC",
        "in2_enable": 0,
        "in2_input": 5000,
        "curr2_input": 100,
        "in3_label": "VDD IN/A",
        "in3_input": 5000,
        "curr3_input": -40,
        "in7_label": "sum of shunt voltages",
        "in7_input": 3,
        "curr4_input": 100,
    }

    values, _ = PowerProbe(_write(tmp_path, "sys/class/hwmon/hwmon0", files)).read([])

    assert values == {"power.VDD_IN_A_w": -0.2, "power.total_w": -0.2}


def test_a_promise_of_a_usb_charger_is_no_measurement(tmp_path: Path) -> None:
    folder = "sys/class/hwmon/hwmon0"
    _write(tmp_path, folder, {"name": "ucsi_source_psy_1", "in0_input": 20000, "curr1_input": 3000})

    assert PowerProbe(tmp_path).read([])[0] == {"power.total_w": None}


def test_rails_of_one_name_get_a_number(tmp_path: Path) -> None:
    for n in (0, 1):
        files = {"name": "ina3221", "in1_label": "CPU", "in1_input": 1000, "curr1_input": 1000}
        _write(tmp_path, f"sys/class/hwmon/hwmon{n}", files)

    assert PowerProbe(tmp_path).read([])[0] == {
        "power.CPU_w": 1.0,
        "power.CPU_2_w": 1.0,
        "power.total_w": 2.0,
    }


def test_rails_are_read_four_times_a_second_at_most(tmp_path: Path) -> None:
    hands = Hands()
    probe = PowerProbe(unpack("orin-jp6", tmp_path), clock=hands)

    taken = []
    for _ in range(10):
        taken.append(bool(probe.read([])[0]))
        hands.now_s += 0.1

    assert taken == [True, False, False] * 3 + [True]


def test_a_sensor_that_appears_later_is_found(tmp_path: Path) -> None:
    hands = Hands()
    probe = PowerProbe(tmp_path, clock=hands)
    assert probe.read([])[0] == {"power.total_w": None}

    files = {"name": "ina238", "power1_input": 12_500_000}
    _write(tmp_path, "sys/class/hwmon/hwmon0", files)
    hands.now_s += 5.0

    assert probe.read([])[0] == {"power.VIN_w": 12.5, "power.total_w": 12.5}


def test_a_rail_s_power_is_its_voltage_times_its_current() -> None:
    assert watts(5000, 2000) == 10.0
    assert watts(Absent("gated"), 2000) == Absent("gated")
    assert watts(5000, Absent("gated")) == Absent("gated")


@given(st.text(max_size=40))
def test_a_label_becomes_part_of_a_name_whatever_it_is(label: str) -> None:
    name = name_of(label)

    assert name
    assert all(letter.isalnum() or letter == "_" for letter in name)


@given(st.lists(st.sampled_from(["A", "B", "C"])))
def test_no_two_rails_share_a_name(labels: list[str]) -> None:
    rails = unique(Rail(label, "ina3221", "1-0040") for label in labels)

    assert len({rail.label for rail in rails}) == len(labels)


# ---------------------------------------------------------------------------------- energy counter


def test_the_energy_of_all_packages_is_summed_and_nothing_is_counted_twice(tmp_path: Path) -> None:
    _package(tmp_path, 1_000_000)
    _package(tmp_path, 2_000_000, "package-1", "sys/class/powercap/intel-rapl:1")
    _package(tmp_path, 500_000, "core", "sys/class/powercap/intel-rapl:0:0")
    _package(tmp_path, 9_000_000, "psys", "sys/class/powercap/intel-rapl:2")
    _package(tmp_path, 1_000_000, "package-0", "sys/class/powercap/intel-rapl-mmio:0")
    probe = PowerProbe(tmp_path)

    assert probe.read([]) == ({"power.rapl_j": 3.0}, {})
    assert probe.facts()["rapl_zones"] == ["package-0", "package-1"]


def test_a_counter_that_begins_again_goes_on(tmp_path: Path) -> None:
    probe = PowerProbe(_package(tmp_path, 262_143_000_000), ALWAYS)
    before = probe.read([])[0]["power.rapl_j"]

    _package(tmp_path, 671_149)
    after = probe.read([])[0]["power.rapl_j"]

    assert before == 262_143.0
    assert after == pytest.approx(262_144.0)


@given(st.integers(1, 1000), st.lists(st.integers(0, 1000), min_size=1, max_size=30))
def test_steps_shorter_than_the_range_add_up_over_any_number_of_beginnings(
    range_uj: int, steps: list[int]
) -> None:
    zone = counted(Zone("package-0", range_uj), 0)
    true_uj = 0
    for step in steps:
        true_uj += min(step, range_uj)
        zone = counted(zone, true_uj % (range_uj + 1))

    assert zone.total_uj == true_uj


def test_a_counter_without_a_known_range_never_goes_back() -> None:
    zone = counted(counted(Zone("package-0", 0), 900), 100)

    assert zone.total_uj == 900


def test_a_counter_for_root_alone_is_none_and_says_so(ordinary_folder: Path) -> None:
    _package(ordinary_folder, 1_000_000)
    (ordinary_folder / PACKAGE / "energy_uj").chmod(0)

    values, absent = PowerProbe(ordinary_folder).read([])

    assert values == {"power.rapl_j": None}
    assert absent["power.rapl_j"].endswith("Permission denied; root may")


def test_a_gap_in_the_counter_s_readings_loses_no_energy(tmp_path: Path) -> None:
    probe = PowerProbe(_package(tmp_path, 1_000_000), ALWAYS)
    probe.read([])

    (tmp_path / PACKAGE / "energy_uj").write_text("")
    assert probe.read([])[0] == {"power.rapl_j": None}
    _package(tmp_path, 4_000_000)

    assert probe.read([])[0] == {"power.rapl_j": 4.0}


# ------------------------------------------------------------------------------- what feeds the box


@pytest.mark.parametrize(
    ("supplies", "expected"),
    [
        ({}, (None, None)),
        ({"AC": {"type": "Mains", "online": 1}}, (True, None)),
        (
            {
                "AC": {"type": "Mains", "online": 0},
                "BAT0": {"type": "Battery", "status": "Discharging"},
            },
            (False, "discharging"),
        ),
        ({"mouse": {"type": "Battery", "scope": "Device", "status": "Full"}}, (None, None)),
        ({"ucsi-source-psy-1-0008": {"type": "Mains", "online": 1}}, (None, None)),
    ],
)
def test_the_facts_say_what_feeds_the_box(
    tmp_path: Path, supplies: dict[str, dict[str, object]], expected: tuple[object, object]
) -> None:
    for name, files in supplies.items():
        _write(tmp_path, f"sys/class/power_supply/{name}", files)

    facts = PowerProbe(tmp_path).facts()

    assert (facts["mains_connected"], facts["battery"]) == expected


def test_closing_twice_does_no_harm(tmp_path: Path) -> None:
    probe = PowerProbe(tmp_path)
    probe.close()
    probe.close()
