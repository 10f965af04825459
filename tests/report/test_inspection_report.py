"""How a reading and a check-up look to people."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.report.inspect import amount, flowed, groups, render_doctor, render_reading, unknown

GIB = 1 << 30
HOST = {"node": "press-7", "class": "dgpu", "board": None, "cpu": "Some CPU"}


def reading(**parts: object) -> dict[str, object]:
    return {
        "schema": "edgeagent.monitor/1",
        "at": "2026-11-30T08:15:01.123Z",
        "host": HOST,
        **parts,
    }


def lines(document: dict[str, object]) -> dict[str, tuple[str, ...]]:
    return {group.title: group.pairs for group in groups(document)}


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("host.used_bytes", 1.5 * GIB, "1.5 GiB"),
        ("host.used_bytes", 300 << 20, "300 MiB"),
        ("host.used_bytes", 0, "0"),
        ("gpu.x.utilisation_fraction", 0.426, "43 %"),
        ("gpu.x.sm_clock_hz", 1_980_000_000, "1.98 GHz"),
        ("jetson.gpu_frequency_hz", 612_000_000, "612 MHz"),
        ("gpu.x.power_w", 71.25, "71.2 W"),
        ("hygiene.temperature_max_c", 48.6, "49 °C"),
        ("hygiene.on_battery", 1, "yes"),
        ("hygiene.power_saver", 0, "no"),
        ("hygiene.foreign_cpu_cores", 0.25, "0.2 cores"),
        ("gpu.x.throttle_reasons", 0, "nothing"),
        ("gpu.x.throttle_reasons", 0x01 | 0x04 | 0x40, "power limit, heat (hardware)"),
        ("engine.processes", 2, "2"),
    ],
)
def test_a_value_is_told_in_the_unit_of_its_name(name: str, value: float, text: str) -> None:
    assert amount(name, value) == text


def test_what_is_used_is_told_of_how_much() -> None:
    values = {"host.total_bytes": 8 * GIB, "host.used_bytes": 2 * GIB, "host.swap_used_bytes": 0}

    assert lines(reading(values=values)) == {"host memory": ("used 2.0 GiB of 8.0 GiB", "swap 0")}


def test_each_gpu_has_a_line_under_its_name() -> None:
    values = {
        "gpu.devices": 2,
        "gpu.GPU-1.used_bytes": 1 * GIB,
        "gpu.GPU-1.total_bytes": 8 * GIB,
        "gpu.GPU-1.power_w": 70.0,
        "gpu.GPU-2.used_bytes": None,
        "gpu.GPU-2.temperature_c": 41,
    }
    facts = {"gpu": {"devices": [{"uuid": "GPU-1", "name": "Test Card"}]}}

    found = [group.pairs for group in groups(reading(values=values, facts=facts))]

    assert found == [
        ("Test Card", "memory 1.0 GiB of 8.0 GiB", "70.0 W"),
        ("GPU-2", "41 °C"),
    ]


def test_counters_are_told_by_their_change_and_paging_only_where_there_is_any() -> None:
    document = reading(
        values={"pressure.memory_some_s": 70.5, "vm.swap_in_pages": 12, "power.rapl_j": 9e6},
        rates={"pressure.memory_some_s": 0.25, "vm.swap_in_pages": 0.0, "power.rapl_j": 11.0},
    )

    assert lines(document) == {"power": ("processor 11.0 W",), "stalls": ("memory 25 %",)}


def test_an_engine_is_told_by_kind_place_and_model() -> None:
    engine = {"kind": "llamacpp", "pid": 42, "port": 8080, "model": "/models/a.gguf"}

    assert lines(reading(engines=[engine])) == {"engines": ("llamacpp pid 42 port 8080 a.gguf",)}


def test_what_is_not_known_is_gathered_by_its_reason() -> None:
    absent = {
        "engine.rss_bytes": "no engine",
        "engine.anon_bytes": "no engine",
        "gpu.engine_bytes": "no engine",
        "gpu.GPU-1.engine_bytes": "no engine",
        "hygiene.on_battery": "no supply",
        "gpu.GPU-1.power_w": "not supported",
        "gpu.GPU-2.power_w": "not supported",
    }
    values = {"hygiene.load_1min": 0.1, "gpu.devices": 2}

    assert unknown(reading(values=values, absent=absent)) == (
        "engine's memory; NVIDIA GPU engine: no engine",
        "on battery: no supply",
        "NVIDIA GPU power: not supported",
    )


words = st.lists(st.text("ab", min_size=1, max_size=12))


@given(words, st.integers(1, 30))
def test_lines_keep_every_pair_whole_and_in_order(pairs: list[str], width: int) -> None:
    found = flowed(pairs, width)

    assert [pair for line in found for pair in line.split(" · ")] == pairs
    assert all(len(line) <= width or " · " not in line for line in found)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    values = {"host.total_bytes": 8 * GIB, "host.used_bytes": 2 * GIB, "host.available_bytes": GIB}
    absent = {"hygiene.on_battery": "the kernel shows no power supply " * 4}

    text = render_reading(reading(values=values, absent=absent), width)

    assert max(map(len, text.splitlines())) <= width
    assert "press-7, dgpu, Some CPU" in text


def check(name: str, state: str, hint: str | None = None) -> dict[str, object]:
    return {"name": name, "state": state, "text": f"text of {name}", "hint": hint}


def test_a_check_up_has_its_worst_first_each_with_what_to_do() -> None:
    checks = [check("a", "ok"), check("b", "missing"), check("c", "fault", "reboot")]

    text = render_doctor({"host": HOST, "checks": checks}, 80)

    assert [line.split()[0] for line in text.splitlines() if "text of" in line] == [
        "failed",
        "absent",
        "ok",
    ]
    assert "→ reboot" in text
    assert text.endswith("1 failed, 0 notes.\n")


def test_a_sound_box_is_told_so() -> None:
    text = render_doctor({"host": HOST, "checks": [check("a", "ok")]}, 80)

    assert text.endswith("Nothing failed: this box is fit to measure with.\n")


def test_what_could_not_be_asked_is_counted_apart_and_each_state_has_its_word() -> None:
    checks = [check("a", "unasked"), check("b", "warning")]

    text = render_doctor({"host": HOST, "checks": checks}, 80)

    assert "not asked" in text
    assert text.endswith("Nothing failed, 1 note. 1 thing could not be asked.\n")


def test_a_check_up_says_who_asked_and_why_readings_are_missing() -> None:
    document = {
        "host": HOST,
        "checks": [check("a", "ok")],
        "asked": {"by": {"user": "root"}, "service": {"user": "edgeagent"}, "root": "/"},
        "probes": [
            {"values": {"gpu.x.power_w": None}, "absent": {"gpu.x.power_w": "not_supported"}}
        ],
    }

    text = render_doctor(document, 80)

    assert "asked by root, the service's user is edgeagent" in text
    assert "not_supported" in text


json = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(), part, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["values", "absent", "rates", "engines", "host"]), json))
def test_whatever_a_document_holds_is_shown(document: dict[str, object]) -> None:
    assert render_reading(document, 80)
