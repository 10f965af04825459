"""NVML in a child process, against a library of our own that plays several machines."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import nvml_library
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.ports import Readings
from edgeagent.probes.host import HostProbe
from edgeagent.probes.nvml import NvmlProbe, Patience, library_is_there, parse, with_wsl
from edgeagent.probes.nvml_sense import NOT_TOLD, OTHER_NAMESPACE, SHARED

MIB = 1 << 20
GIB = 1 << 30

ENGINE = 4242
NEIGHBOUR = 77

# Long enough for a busy machine; what must not happen again within a test is hours away.
PATIENT = Patience(answer_s=20.0, start_s=30.0, hang_s=30.0, again_s=6000.0, ask_again_s=6000.0)

Machine = Callable[..., NvmlProbe]

TOPICS = {
    "memory",
    "processes",
    "utilisation",
    "sm_clock",
    "memory_clock",
    "power",
    "energy",
    "temperature",
    "throttle_reasons",
    "throttle_counters",
}


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvml_library.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def processes(tmp_path: Path) -> Path:
    """A /proc of the initial pid namespace, with the engine and one other process."""
    folder = tmp_path / "processes"
    for pid in (ENGINE, NEIGHBOUR):
        (folder / str(pid)).mkdir(parents=True)
    namespace = folder / "self/ns/pid"
    namespace.parent.mkdir(parents=True)
    namespace.symlink_to("pid:[4026531836]")
    return folder


@pytest.fixture
def machine(library: Path, processes: Path, tmp_path: Path) -> Iterator[Machine]:
    probes = []
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(
        f"MemTotal: {128 * GIB // 1024} kB\nMemAvailable: {98 * GIB // 1024} kB\n"
    )

    def plays(profile: str, patience: Patience = PATIENT, **settings: str) -> NvmlProbe:
        usual = {
            "FAKE_NVML_PID": str(ENGINE),
            "FAKE_NVML_OTHER": str(NEIGHBOUR),
            "EDGEAGENT_SYSROOT": str(tmp_path),
        }
        env = nvml_library.environment(library, profile, **{**usual, **settings})
        probe = NvmlProbe(env, patience, tmp_path, processes)
        probes.append(probe)
        return probe

    yield plays
    for probe in probes:
        probe.close()


# ------------------------------------------------------------------------------ what a device tells


def test_a_desktop_card_tells_everything_and_a_process_in_two_lists_counts_once(
    machine: Machine,
) -> None:
    probe = machine("rtx")

    values, absent = probe.read([ENGINE])

    assert values.pop("gpu.GPU-1.energy_j") > 0  # type: ignore[attr-defined]
    assert values == {
        "gpu.devices": 1,
        "gpu.GPU-1.total_bytes": 8192 * MIB,
        "gpu.GPU-1.used_bytes": 1024 * MIB,
        "gpu.GPU-1.reserved_bytes": 400 * MIB,
        "gpu.GPU-1.utilisation_fraction": 0.42,
        "gpu.GPU-1.sm_clock_hz": 1_800_000_000,
        "gpu.GPU-1.memory_clock_hz": 7_000_000_000,
        "gpu.GPU-1.power_w": 11.17,
        "gpu.GPU-1.temperature_c": 61,
        "gpu.GPU-1.throttle_reasons": 0x4,
        "gpu.GPU-1.throttle_s": 3.5,  # software thermal 2, hardware thermal 1, power brake 0.5
        "gpu.GPU-1.engine_bytes": 512 * MIB,
        "gpu.GPU-1.rows_dropped": 0,
        "gpu.engine_bytes": 512 * MIB,
        "gpu.foreign_processes": 1,
    }
    assert absent == {}
    assert probe.quality == "attributed"
    assert probe.capabilities == {"GPU-1": dict.fromkeys(TOPICS, "ok")}
    assert probe.warnings() == ()


def test_the_facts_name_the_driver_and_each_device(machine: Machine) -> None:
    probe = machine("rtx")
    probe.read([ENGINE])

    assert probe.facts() == {
        "driver": "595.78",
        "nvml": "13.595.78",
        "cuda": "13.2",
        "quality": "attributed",
        "reason": None,
        "refused": {},
        "devices": [
            {
                "uuid": "GPU-1",
                "name": "Test Card",
                "pci_bus_id": "00000000:01:00.0",
                "power_limit_w": 200.0,
                "memory": "own",
                "memory_version": 2,
                "total_bytes": 8192 * MIB,
                "quality": "attributed",
            }
        ],
    }


@pytest.mark.parametrize("profile", ["old", "missing"])
def test_an_older_driver_is_asked_by_older_calls(machine: Machine, profile: str) -> None:
    probe = machine(profile)

    values, absent = probe.read([ENGINE])

    assert values["gpu.GPU-1.used_bytes"] == 1424 * MIB  # version 1: with what the driver reserves
    assert values["gpu.GPU-1.reserved_bytes"] is None
    assert "version 1" in absent["gpu.GPU-1.reserved_bytes"]
    assert probe.devices[0]["memory_version"] == 1
    assert values["gpu.GPU-1.engine_bytes"] == 512 * MIB
    assert values["gpu.GPU-1.throttle_reasons"] == 0x4
    assert values["gpu.GPU-1.throttle_s"] == 2.0  # only what heat held back


def test_functions_that_the_library_lacks_are_named(machine: Machine) -> None:
    probe = machine("missing")

    _, absent = probe.read([ENGINE])

    assert absent["gpu.GPU-1.energy_j"] == "NVML says function_not_found"
    assert probe.warnings() == ("Test Card: NVML does not tell energy (function_not_found)",)


def test_throttle_counters_have_other_numbers_under_driver_575(machine: Machine) -> None:
    values, _ = machine("mid").read([ENGINE])

    assert values["gpu.GPU-1.throttle_s"] == 3.5


def test_without_an_engine_there_is_no_engine_memory(machine: Machine) -> None:
    values, absent = machine("rtx").read([])

    assert values["gpu.engine_bytes"] is None
    assert set(absent.values()) == {"no engine of ours is running"}
    assert values["gpu.foreign_processes"] == 2


@pytest.mark.parametrize("profile", ["orin", "orin7"])
def test_what_a_jetson_does_not_support_is_null_with_a_reason_never_zero(
    machine: Machine, profile: str
) -> None:
    probe = machine(profile)

    values, absent = probe.read([ENGINE])

    assert values.pop("gpu.devices") == 1  # type: ignore[attr-defined]
    assert set(values) == set(absent)
    assert set(values.values()) == {None}
    memory = {name for name, why in absent.items() if why == SHARED}
    assert {name.rsplit(".")[-1] for name in memory} == {
        "total_bytes",
        "used_bytes",
        "reserved_bytes",
    }
    assert {absent[name] for name in set(absent) - memory - {"gpu.foreign_processes"}} == {
        "NVML says not_supported"
    }
    (words,) = probe.capabilities.values()
    assert words == dict.fromkeys(TOPICS, "not_supported")
    assert len(probe.warnings()) == 1
    assert probe.quality == "system_delta"


def test_the_zeros_and_the_nonsense_of_a_jetson_are_not_believed(machine: Machine) -> None:
    probe = machine("orinzero")

    values, absent = probe.read([ENGINE])

    assert values.pop("gpu.devices") == 1  # type: ignore[attr-defined]
    assert values.pop("gpu.index-0.rows_dropped") == 4  # type: ignore[attr-defined]
    assert set(values.values()) == {None}
    assert set(values) == set(absent)
    assert probe.devices[0]["memory"] == "shared"


def test_a_thor_tells_processes_and_load(machine: Machine) -> None:
    values, absent = machine("thor").read([ENGINE])

    told = {name for name, value in values.items() if value is not None}
    assert told == {
        "gpu.devices",
        "gpu.GPU-thor.utilisation_fraction",
        "gpu.GPU-thor.engine_bytes",
        "gpu.GPU-thor.rows_dropped",
        "gpu.engine_bytes",
        "gpu.foreign_processes",
    }
    assert absent["gpu.GPU-thor.used_bytes"] == SHARED


@pytest.mark.parametrize("profile", ["gb10", "gb10total"])
def test_memory_shared_with_the_host_is_known_by_a_refusal_and_by_a_copied_total(
    machine: Machine, profile: str
) -> None:
    probe = machine(profile)

    values, absent = probe.read([ENGINE])

    assert probe.devices[0]["memory"] == "shared"
    for name in ("total", "used", "reserved"):
        assert values[f"gpu.GPU-gb10.{name}_bytes"] is None
        assert absent[f"gpu.GPU-gb10.{name}_bytes"] == SHARED
    assert values["gpu.engine_bytes"] == 512 * MIB
    assert values["gpu.GPU-gb10.power_w"] == 11.17
    assert probe.quality == "attributed"


@pytest.mark.parametrize("profile", ["gb10", "gb10total"])
def test_what_the_host_uses_is_not_taken_for_the_gpus(
    machine: Machine, tmp_path: Path, profile: str
) -> None:
    values, _ = machine(profile, FAKE_NVML_PID="0").read([ENGINE])
    host, _ = HostProbe(tmp_path).read([])

    assert values["gpu.engine_bytes"] == 0
    assert host["host.used_bytes"] == 30 * GIB


def test_mig_devices_are_asked_and_the_card_itself_says_that_it_may_not_be(
    machine: Machine,
) -> None:
    probe = machine("mig")

    values, absent = probe.read([ENGINE])

    assert values["gpu.devices"] == 1
    assert "no_permission" in absent["gpu.GPU-1.used_bytes"]
    assert absent["gpu.GPU-1.engine_bytes"] == "its MIG devices tell this"
    assert values["gpu.GPU-1.power_w"] == 11.17
    assert values["gpu.MIG-1.total_bytes"] == 4096 * MIB
    assert values["gpu.MIG-1.engine_bytes"] == 512 * MIB
    assert values["gpu.MIG-2.engine_bytes"] == 0  # its list has a row of the other instance
    assert values["gpu.engine_bytes"] == 512 * MIB
    assert absent["gpu.MIG-1.utilisation_fraction"] == "NVML says not_supported"
    assert probe.devices[1]["mig_parent"] == "GPU-1"
    assert probe.capabilities["GPU-1"]["processes"] == "told_by_mig"
    assert probe.capabilities["GPU-1"]["memory"] == "no_permission"


def test_two_gpus_are_told_apart_and_one_that_tells_nothing_lowers_the_quality(
    machine: Machine,
) -> None:
    probe = machine("two")

    values, _ = probe.read([ENGINE])

    assert values["gpu.devices"] == 2
    assert values["gpu.GPU-1.engine_bytes"] == values["gpu.engine_bytes"] == 512 * MIB
    assert values["gpu.GPU-2.engine_bytes"] is None
    assert [device["memory"] for device in probe.devices] == ["own", "shared"]
    assert probe.quality == "attributed_partly"


# ------------------------------------------------------------------------------- rows of processes


@pytest.mark.parametrize("profile", ["wsl", "zero"])
def test_memory_that_is_not_attributed_is_null_and_the_device_is_what_remains(
    machine: Machine, profile: str
) -> None:
    probe = machine(profile)

    values, absent = probe.read([ENGINE])

    assert values["gpu.engine_bytes"] is None
    assert absent["gpu.engine_bytes"] == NOT_TOLD
    assert values["gpu.GPU-1.used_bytes"] == 1024 * MIB
    assert probe.quality == "device_delta"


def test_ids_of_another_pid_namespace_are_recognised(machine: Machine, processes: Path) -> None:
    namespace = processes / "self/ns/pid"
    namespace.unlink()
    namespace.symlink_to("pid:[4026532177]")
    probe = machine("foreign")

    values, absent = probe.read([ENGINE])

    assert values["gpu.engine_bytes"] is None
    assert absent["gpu.engine_bytes"] == OTHER_NAMESPACE
    assert values["gpu.GPU-1.rows_dropped"] == 0
    assert values["gpu.foreign_processes"] is None
    assert probe.quality == "device_delta"


def test_rows_that_cannot_be_true_are_counted_and_lower_the_quality(machine: Machine) -> None:
    probe = machine("garbage")

    values, absent = probe.read([ENGINE])

    assert values["gpu.GPU-1.rows_dropped"] == 8  # four in each of two lists
    assert values["gpu.engine_bytes"] == 512 * MIB
    assert values["gpu.foreign_processes"] == 1
    assert probe.quality == "attributed_partly"
    assert "more is used than there is" in absent["gpu.GPU-1.used_bytes"]
    assert "cannot be" in absent["gpu.GPU-1.utilisation_fraction"]
    assert probe.capabilities["GPU-1"]["memory"] == "not_believed"


def test_a_row_larger_than_the_host_is_nonsense_where_memory_is_shared(
    machine: Machine, tmp_path: Path
) -> None:
    rows = tmp_path / "rows"
    rows.write_text(f"{ENGINE} {20 * GIB}\n{NEIGHBOUR} {129 * GIB}\n")

    values, _ = machine("gb10", FAKE_NVML_ROWS=str(rows)).read([ENGINE])

    assert values["gpu.engine_bytes"] == 20 * GIB
    assert values["gpu.GPU-gb10.rows_dropped"] == 2
    assert values["gpu.foreign_processes"] == 0


def test_memory_is_followed_as_the_engine_takes_more(machine: Machine, tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    rows.write_text(f"{ENGINE} {100 * MIB}\n")
    probe = machine("rtx", FAKE_NVML_ROWS=str(rows))

    before, _ = probe.read([ENGINE])
    rows.write_text(f"{ENGINE} {164 * MIB}\n")
    after, _ = probe.read([ENGINE])

    assert (before["gpu.engine_bytes"], after["gpu.engine_bytes"]) == (100 * MIB, 164 * MIB)


# ----------------------------------------------------------------------- late, lost, and mismatched


def test_a_call_that_failed_is_not_asked_at_every_sample(machine: Machine, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    probe = machine("orin7", FAKE_NVML_CALLS=str(calls))

    readings = [probe.read([ENGINE]) for _ in range(5)]

    assert readings[0] == readings[-1]
    asked = calls.read_text().split()
    assert asked.count("nvmlDeviceGetUtilizationRates") == 1
    assert asked.count("nvmlDeviceGetMemoryInfo_v2") == 1


def test_what_comes_up_late_is_found(machine: Machine) -> None:
    probe = machine("late", replace(PATIENT, ask_again_s=0.0))

    seen = [probe.read([])[0]["gpu.GPU-1.utilisation_fraction"] for _ in range(5)]

    assert seen == [None, None, None, 0.42, 0.42]
    assert probe.capabilities["GPU-1"]["utilisation"] == "ok"


def test_a_lost_gpu_is_a_gap_with_its_reason_and_the_other_goes_on(machine: Machine) -> None:
    probe = machine("two", FAKE_NVML_LOST_AFTER="1")
    probe.read([ENGINE])

    values, absent = probe.read([ENGINE])

    lost = {name for name, why in absent.items() if "gpu_is_lost" in why}
    assert {name for name in values if name.startswith("gpu.GPU-1.")} <= lost
    assert values["gpu.devices"] == 2
    assert absent["gpu.GPU-2.power_w"] == "NVML says not_supported"
    assert set(probe.capabilities["GPU-1"].values()) == {"gpu_is_lost"}


def test_a_gpu_that_is_lost_from_the_start_does_not_hide_the_other(machine: Machine) -> None:
    probe = machine("two", FAKE_NVML_REFUSES="1")

    values, _ = probe.read([ENGINE])

    assert values["gpu.engine_bytes"] == 512 * MIB
    assert values["gpu.devices"] == 1
    assert probe.facts()["refused"] == {"index-1": "gpu_is_lost"}


def test_when_no_gpu_is_given_the_reason_is_why(machine: Machine) -> None:
    _, absent = machine("rtx", FAKE_NVML_REFUSES="0").read([])

    assert "gpu_is_lost" in absent["gpu.devices"]


def test_when_every_gpu_stays_lost_the_process_lets_go_of_the_driver(machine: Machine) -> None:
    probe = machine("lost", replace(PATIENT, ask_again_s=0.0), FAKE_NVML_LOST_AFTER="1")
    known, _ = probe.read([])

    values, absent = probe.read([])

    assert set(values) == set(known) == set(absent)
    assert set(values.values()) == {None}
    assert all("gpu_is_lost" in why for why in absent.values())
    assert probe._child is None


@pytest.mark.parametrize(
    ("profile", "word", "hint"),
    [
        ("nodrv", "driver_not_loaded", "load it, or reboot"),
        ("mismatch", "lib_rm_version_mismatch", "load the new module, or reboot"),
        ("unknown", "unknown", "daemon-reload"),
    ],
)
def test_a_driver_that_cannot_be_used_is_a_reason_with_a_hint_and_no_restart_loop(
    machine: Machine, tmp_path: Path, profile: str, word: str, hint: str
) -> None:
    calls = tmp_path / "calls"
    probe = machine(profile, FAKE_NVML_CALLS=str(calls))

    readings = [probe.read([]) for _ in range(3)]

    assert readings[0] == readings[1] == readings[2]
    values, absent = readings[0]
    assert values == {"gpu.devices": None}
    assert f"NVML says {word} (" in absent["gpu.devices"]
    assert hint in absent["gpu.devices"]
    assert calls.read_text().split() == ["nvmlInitWithFlags"]
    assert probe.facts()["reason"] == absent["gpu.devices"]


def test_a_new_process_is_tried_after_a_while(machine: Machine) -> None:
    probe = machine("nodrv", replace(PATIENT, again_s=0.0))
    probe.read([])

    probe._env["FAKE_NVML"] = "rtx"  # as when the driver is loaded meanwhile
    values, _ = probe.read([])

    assert values["gpu.devices"] == 1


def test_a_driver_without_a_gpu_is_tried_again_as_well(machine: Machine) -> None:
    _, absent = machine("none").read([])

    assert absent == {"gpu.devices": "NVML finds no GPU"}


def test_each_failure_makes_the_next_pause_twice_as_long_up_to_a_limit(machine: Machine) -> None:
    probe = machine("nodrv", replace(PATIENT, again_s=1000.0))
    pauses = []
    for _ in range(7):
        probe._not_before_s = 0.0
        probe.read([])
        pauses.append(round((probe._not_before_s - time.monotonic()) / 1000.0))

    assert pauses == [1, 2, 4, 8, 16, 16, 16]


def test_a_crash_in_nvml_costs_the_values_and_not_the_agent(machine: Machine) -> None:
    _, absent = machine("segfault").read([])

    assert absent == {"gpu.devices": "NVML crashed its process (signal 11)"}


def test_a_hang_in_nvml_costs_one_deadline_per_read_and_then_the_child(machine: Machine) -> None:
    patience = replace(PATIENT, answer_s=0.05, start_s=0.5, hang_s=0.5)
    probe = machine("hang", patience)

    readings = [probe.read([])]
    while readings[-1][1]["gpu.devices"] == "NVML has not answered yet":
        readings.append(_later(probe))

    assert readings[-1][1] == {
        "gpu.devices": "NVML did not answer for 0.5 s, so its process was ended"
    }
    assert probe.read([]) == readings[-1]


def test_an_answer_that_comes_late_is_used_by_the_next_read(machine: Machine) -> None:
    probe = machine("slow", replace(PATIENT, answer_s=0.0, stale_s=3600.0))

    values, _ = _until_answered(probe)

    assert values["gpu.GPU-1.utilisation_fraction"] == 0.42


def test_an_answer_that_is_too_old_is_not_used(machine: Machine) -> None:
    probe = machine("slow", replace(PATIENT, answer_s=0.0, stale_s=0.0))
    assert probe.read([])[1] == {"gpu.devices": "NVML has not answered yet"}
    child = probe._child
    assert child is not None
    assert child._process.stdout is not None

    select.select([child._process.stdout], [], [])  # the answer is there, and old
    values, absent = probe.read([])

    assert set(values.values()) == {None}
    assert set(absent.values()) == {"NVML has not answered yet"}
    assert probe.devices[0]["name"] == "Test Card"  # what does not age was taken from it


def _until_answered(probe: NvmlProbe) -> Readings:
    readings = probe.read([])
    while probe.reason is not None:
        assert probe.reason == "NVML has not answered yet"
        readings = _later(probe)
    return readings


def _later(probe: NvmlProbe) -> Readings:
    time.sleep(0.02)  # the child runs in real time
    return probe.read([])


def test_values_that_were_known_stay_listed_after_the_child_has_ended(machine: Machine) -> None:
    probe = machine("rtx")
    known, _ = probe.read([])

    probe.close()
    probe._not_before_s = float("inf")  # as after a crash: not yet time for another child
    probe.reason = "NVML crashed its process (signal 11)"
    values, absent = probe.read([])

    assert set(values) == set(known) == set(absent)
    assert set(values.values()) == {None}
    assert probe.devices[0]["uuid"] == "GPU-1"


# ------------------------------------------------------------------------------------- the library


def test_where_there_is_no_library_no_child_is_started(tmp_path: Path) -> None:
    probe = NvmlProbe({"LD_LIBRARY_PATH": str(tmp_path)}, root=tmp_path)

    values, absent = probe.read([])

    assert values == {"gpu.devices": None}
    assert absent == {"gpu.devices": "libnvidia-ml.so.1 is not installed: no NVIDIA driver here"}
    assert probe._child is None


def test_the_library_is_found_in_the_loader_cache(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(b"glibc-ld.so.cache1.1\0libnvidia-ml.so.1\0/opt/x\0")

    assert library_is_there({}, tmp_path)
    assert not library_is_there({}, tmp_path / "elsewhere")


def test_the_library_of_wsl_is_found_and_put_on_the_loaders_path(tmp_path: Path) -> None:
    folder = tmp_path / "usr/lib/wsl/lib"
    folder.mkdir(parents=True)
    assert with_wsl({"A": "b"}, tmp_path) == {"A": "b"}

    (folder / "libnvidia-ml.so.1").touch()

    assert library_is_there({}, tmp_path)
    assert with_wsl({}, tmp_path) == {"LD_LIBRARY_PATH": str(folder)}
    assert with_wsl({"LD_LIBRARY_PATH": "/x"}, tmp_path) == {"LD_LIBRARY_PATH": f"/x:{folder}"}


def test_closing_twice_and_before_any_reading_is_fine() -> None:
    probe = NvmlProbe()
    probe.close()
    probe.close()


def test_nvml_is_never_loaded_by_the_agent_itself(machine: Machine) -> None:
    machine("rtx").read([ENGINE])

    assert "libnvidia-ml" not in Path(f"/proc/{os.getpid()}/maps").read_text()


@given(st.binary())
def test_whatever_the_child_writes_is_an_answer_or_a_reason(line: bytes) -> None:
    assert isinstance(parse(line), str)


@pytest.mark.parametrize("profile", nvml_library.PROFILES)
def test_every_machine_keeps_the_promises_of_the_port(machine: Machine, profile: str) -> None:
    hasty = Patience(answer_s=0.2, stale_s=600.0, start_s=3.0, hang_s=1.0, again_s=6000.0)
    probe = machine(profile, hasty if profile == "hang" else PATIENT)

    for pids in ((), (ENGINE,), (1, 4_194_303)):
        values, absent = probe.read(pids)
        assert {name for name, value in values.items() if value is None} == set(absent)
        assert all(absent.values())
