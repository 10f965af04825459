"""What is found on a box, and what it is worth."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.core import diagnosis
from edgeagent.core.diagnosis import (
    CgroupFacts,
    Check,
    Nodes,
    Place,
    ProbeFacts,
    Program,
    State,
    worst,
)
from edgeagent.core.model import Finding

MIB = 1 << 20
GIB = 1 << 30

LIBRARY_ABSENT = "libnvidia-ml.so.1 is not installed: no NVIDIA driver here"


def test_the_worst_state_decides_and_nothing_at_all_is_well() -> None:
    assert worst([]) == "ok"
    assert worst([Check("a", "ok", ""), Check("b", "missing", "")]) == "missing"
    assert worst([Check("a", "fault", ""), Check("b", "warning", "")]) == "fault"


@pytest.mark.parametrize(
    ("kind", "state"),
    [("cpu", "missing"), ("amd", "missing"), ("uma-nvgpu", "missing"), ("dgpu", "fault")],
)
def test_a_box_without_nvml_is_well_unless_the_nvidia_module_runs(kind: str, state: State) -> None:
    assert diagnosis.nvml(kind, None, LIBRARY_ABSENT, "absent").state == state


@pytest.mark.parametrize(
    ("kind", "reason", "state", "hint"),
    [
        ("dgpu", "NVML says driver_not_loaded (load it)", "fault", "load it"),
        ("cpu", "NVML says driver_not_loaded (load it)", "warning", "load it"),
        ("cpu", "NVML says lib_rm_version_mismatch (reboot)", "fault", "reboot"),
        ("uma-nvidia", "NVML crashed its process (signal 11)", "fault", "update the driver"),
        ("dgpu", "something nobody has seen", "fault", "nvidia-smi"),
    ],
)
def test_an_nvml_that_fails_comes_with_what_to_do(
    kind: str, reason: str, state: State, hint: str
) -> None:
    check = diagnosis.nvml(kind, None, reason, "there")

    assert check.state == state
    assert reason.startswith(check.text)
    assert check.hint is not None
    assert hint in check.hint


def test_a_jetson_under_nvgpu_needs_no_nvml() -> None:
    check = diagnosis.nvml("uma-nvgpu", None, "Driver Not Loaded", "there")

    assert (check.state, check.hint) == ("missing", None)
    assert "its own files" in check.text


def test_values_that_only_an_engine_has_are_not_missed_without_one() -> None:
    found = ProbeFacts("host", {"a.x": 1, "e.y": None}, {"e.y": "no engine"})

    assert diagnosis.probe(found, "no engine") == Check("probe.host", "ok", "1 value")


def test_a_probe_with_nothing_tells_its_reason_once() -> None:
    found = ProbeFacts("drm", {"a": None, "b": None}, {"a": "no card", "b": "no card"})

    assert diagnosis.probe(found, "no engine") == Check("probe.drm", "missing", "no card")


def test_a_probe_with_gaps_names_them() -> None:
    found = ProbeFacts("p", {"p.a": 1, "p.b": None, "p.c": 2}, {"p.b": "gone"})

    assert diagnosis.probe(found, "no engine").text == "2 values, without b"


values = st.dictionaries(st.text(min_size=1), st.none() | st.integers())


@given(values)
def test_a_probe_is_never_a_fault(read: dict[str, int | None]) -> None:
    absent = {name: "why" for name, value in read.items() if value is None}

    assert diagnosis.probe(ProbeFacts("p", read, absent), "x").state in {"ok", "missing"}


def test_a_device_file_that_cannot_be_opened_names_the_group_that_may() -> None:
    check = diagnosis.nodes("amd", Nodes(refused=("/dev/dri/renderD128",), groups=("render",)))

    assert check.state == "fault"
    assert check.hint == "add the user to the group render, then log in again"


def test_a_device_file_that_is_not_there_lets_engines_fall_back_silently() -> None:
    found = Nodes(usable=("/dev/nvidia0", "/dev/nvidiactl"), lacking=("/dev/nvidia-uvm",))

    assert diagnosis.nodes("dgpu", found).state == "warning"
    assert diagnosis.nodes("cpu", Nodes()).state == "missing"


@pytest.mark.parametrize(
    ("free_bytes", "runs", "cache"),
    [
        (40 * GIB, "ok", "ok"),
        (1 * GIB - 1, "warning", "warning"),
        (64 * MIB - 1, "fault", "warning"),
        (0, "fault", "warning"),
        (None, "warning", "warning"),
    ],
)
def test_room_is_needed_for_runs_and_useful_for_the_cache(
    free_bytes: int | None, runs: State, cache: State
) -> None:
    place = Place("/runs", free_bytes, writable=True)

    assert diagnosis.disk("runs", place).state == runs
    assert diagnosis.disk("cache", place).state == cache


def test_a_runs_folder_that_cannot_be_written_is_a_fault() -> None:
    assert diagnosis.disk("runs", Place("/", 9 * GIB, writable=False)).state == "fault"


def test_a_llama_server_that_does_not_run_here_is_a_fault_and_none_at_all_is_not() -> None:
    broken = Program("/x/llama-server", reason="Exec format error")

    assert diagnosis.llama_server(broken).state == "fault"
    assert diagnosis.llama_server(Program(None)).state == "missing"
    assert diagnosis.llama_server(Program("/x/llama-server", "b1 (c)")).text == (
        "b1 (c) at /x/llama-server"
    )


def test_control_groups_count_where_they_are_ours() -> None:
    ours = CgroupFacts("v2", "/a", delegated=True, controllers=("cpu", "memory"))
    foreign = CgroupFacts("v2", "/a", delegated=False)

    assert diagnosis.cgroup(ours, 2 * GIB).text.endswith("engines may use 2.0 GiB")
    assert diagnosis.cgroup(ours).state == "ok"
    assert diagnosis.cgroup(foreign).state == "missing"
    assert diagnosis.cgroup(CgroupFacts("hybrid", "/", delegated=False)).state == "missing"


def test_a_box_whose_memory_is_not_known_cannot_be_measured() -> None:
    assert diagnosis.host_memory(8 * GIB, 6 * GIB).text == "6.0 GiB of 8.0 GiB are available"
    assert diagnosis.host_memory(8 * GIB, None).state == "fault"


def test_swap_in_use_is_a_warning_from_the_size_that_an_engine_feels() -> None:
    assert diagnosis.swap(0, 0).text == "none in use"
    assert diagnosis.swap(12 * MIB, 6 * MIB).state == "ok"
    assert diagnosis.swap(256 * MIB, None).state == "warning"
    assert diagnosis.swap(None, None).state == "missing"


def test_doubts_of_a_sweep_about_the_box_are_checks_with_what_to_do() -> None:
    busy = Finding("foreign_cpu", "warning", "others use 1.5 of 4 cores: end them")
    limited = Finding("power_mode_limited", "info", "the power mode is 15W: quote it")

    checks = diagnosis.at_rest([busy, limited], [("chrome", 1.2), ("git", 0.3)])

    assert checks == (
        Check(
            "hygiene.foreign_cpu",
            "warning",
            "others use 1.5 of 4 cores (chrome 1.2, git 0.3)",
            "end them",
        ),
        Check("hygiene.power_mode_limited", "ok", "the power mode is 15W", "quote it"),
    )
    assert diagnosis.at_rest([]) == ()


def test_energy_that_only_root_may_read_is_missing_with_what_to_do() -> None:
    assert diagnosis.rapl("refused").state == "missing"
    assert diagnosis.rapl("refused").hint is not None
    assert diagnosis.rapl("absent").hint is None


def test_only_nvgpu_has_a_helper() -> None:
    assert diagnosis.nvmap("dgpu", "absent") is None
    helper = diagnosis.nvmap("uma-nvgpu", "readable")
    assert helper is not None
    assert helper.state == "ok"


KINDS = st.sampled_from(["dgpu", "uma-nvgpu", "cpu"])


@given(KINDS, st.dictionaries(st.text(), st.sampled_from(["ok", "not_supported", "unknown"])))
def test_a_gpu_is_judged_whatever_it_refuses(kind: str, calls: dict[str, str]) -> None:
    check = diagnosis.device(kind, "GPU-1", None, calls)

    assert check.text
    assert check.state != "ok" or "ok" in calls.values()


def test_a_gpu_names_the_calls_that_it_refuses_by_reason() -> None:
    calls = {"memory": "not_supported", "power": "not_supported", "name": "ok", "energy": "unknown"}

    check = diagnosis.device("uma-nvidia", "GPU-1", "NVIDIA GB10", calls)

    assert check == Check(
        "gpu.GPU-1",
        "ok",
        "NVIDIA GB10: 1 of 4 calls works; not_supported: memory, power; unknown: energy",
    )


def test_a_gpu_that_is_lost_is_a_fault() -> None:
    check = diagnosis.device("dgpu", "GPU-1", "Card", {"memory": "gpu_is_lost", "name": "ok"})

    assert check.state == "fault"


def test_a_hint_that_comes_with_the_reason_is_told_as_one() -> None:
    reason = "NVML says driver_not_loaded (the kernel module is not loaded: load it, or reboot)"

    check = diagnosis.nvml("dgpu", None, reason, "there")

    assert check.text == "NVML says driver_not_loaded"
    assert check.hint == "the kernel module is not loaded: load it, or reboot"
