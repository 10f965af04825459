"""Waiting, swapping and reclaim, from recorded trees."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from trees import unpack

from edgeagent.probes.pressure import (
    PressureProbe,
    SwapArea,
    parse_pressure,
    parse_swaps,
    parse_vmstat,
)

KIB = 1024
GIB = 1 << 30


def test_a_box_that_swaps_to_compressed_memory(tmp_path: Path) -> None:
    values, absent = PressureProbe(unpack("intel", tmp_path)).read([])

    assert values == {
        "pressure.cpu_some_s": 41.234567,
        "pressure.memory_some_s": 0.9,
        "pressure.memory_full_s": 0.45,
        "pressure.io_some_s": 1.1,
        "pressure.io_full_s": 1.0,
        "vm.swap_in_pages": 210,
        "vm.swap_out_pages": 262_144,
        "vm.refault_file": 5400,
        "vm.allocstall": 0 + 11 + 2,  # by zone: dma32, normal, movable
        "vm.swap_zram_bytes": GIB,
        "vm.swap_disk_bytes": 0,
    }
    assert absent == {}


def test_where_a_box_swaps_to_is_told_as_a_fact(tmp_path: Path) -> None:
    facts = PressureProbe(unpack("cpu", tmp_path)).facts()

    assert facts["swaps"] == [
        {"path": "/dev/nvme0n1p3", "kind": "disk", "size_bytes": 2_097_152 * KIB}
    ]


def test_a_kernel_without_pressure_information_gives_null_and_still_counts(tmp_path: Path) -> None:
    root = unpack("cpu", tmp_path)
    for file in (root / "proc/pressure").iterdir():
        file.unlink()

    values, absent = PressureProbe(root).read([])

    assert values["pressure.memory_some_s"] is None
    assert "CONFIG_PSI" in absent["pressure.memory_some_s"]
    assert values["vm.refault_file"] == 88
    assert set(absent) == {name for name, value in values.items() if value is None}


def test_a_box_without_proc_gives_reasons_only(tmp_path: Path) -> None:
    values, absent = PressureProbe(tmp_path).read([])

    assert set(values.values()) == {None}
    assert set(absent) == set(values)


def test_this_very_kernel_is_understood() -> None:
    values, absent = PressureProbe().read([])

    assert values["vm.allocstall"] is not None
    assert values["vm.swap_disk_bytes"] is not None
    assert set(absent) == {name for name, value in values.items() if value is None}


# ------------------------------------------------------------------------------------------ parsing


def test_stall_totals_are_seconds() -> None:
    some = "some avg10=0.12 avg60=0.00 avg300=0.00 total=2500000\n"

    assert parse_pressure(some) == {"some": 2.5}
    assert parse_pressure(f"{some}full avg10=0.00 avg60=0.00 avg300=0.00 total=1\n") == {
        "some": 2.5,
        "full": 0.000001,
    }


def test_a_counter_that_the_kernel_lacks_is_none() -> None:
    assert parse_vmstat("pswpin 3\nnr_pswpin 9\n") == {
        "vm.swap_in_pages": 3,
        "vm.swap_out_pages": None,
        "vm.refault_file": None,
        "vm.allocstall": None,
    }


def test_swap_areas_are_told_by_kind() -> None:
    text = (
        "Filename\tType\tSize\tUsed\tPriority\n"
        "/dev/zram0  partition\t100\t40\t100\n/swap\\040file  file\t8\t0\t-2\nnonsense\n"
    )

    assert parse_swaps(text) == (
        SwapArea("/dev/zram0", "zram", 102_400, 40_960),
        SwapArea("/swap\\040file", "disk", 8192, 0),
    )


@given(st.text() | st.binary().map(lambda raw: raw.decode("utf-8", "replace")))
def test_any_text_is_parsed_without_an_error(text: str) -> None:
    assert all(seconds >= 0 for seconds in parse_pressure(text).values())
    assert all(count is None or count >= 0 for count in parse_vmstat(text).values())
    assert all(area.used_bytes >= 0 for area in parse_swaps(text))


@given(st.text(st.characters(categories=["Nd"]), min_size=1, max_size=6000))
def test_any_digits_are_parsed_without_an_error(digits: str) -> None:
    parse_pressure(f"some avg10=0.00 total={digits}\n")
    parse_vmstat(f"pswpin {digits}\nallocstall_dma {digits}\n")
    parse_swaps(f"heading\n/swap file {digits} {digits} -2\n")
