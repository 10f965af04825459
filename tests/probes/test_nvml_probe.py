"""NVML in a child process, against a library of our own that plays several machines."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.ports import Readings
from edgeagent.probes.nvml import LIBRARY, NvmlProbe, Patience, library_is_there, parse
from edgeagent.probes.nvml_child import Row, engine_bytes

MIB = 1 << 20
SOURCE = Path(__file__).parent / "fixtures" / "fake_nvml.c"

# Long enough for a busy machine; a hang is noticed after `hang_s` and `start_s`.
PATIENT = Patience(answer_s=20.0, start_s=30.0, hang_s=30.0, again_s=600.0)

Machine = Callable[..., NvmlProbe]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to build the NVML of our own")
    folder = tmp_path_factory.mktemp("nvml")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", folder / LIBRARY, SOURCE],
        check=True,
    )
    return folder


@pytest.fixture
def machine(library: Path) -> Iterator[Machine]:
    probes = []

    def plays(profile: str, patience: Patience = PATIENT) -> NvmlProbe:
        env = {
            **os.environ,
            "LD_LIBRARY_PATH": str(library),
            "FAKE_NVML": profile,
            "FAKE_NVML_PID": str(os.getpid()),
        }
        probe = NvmlProbe(env, patience)
        probes.append(probe)
        return probe

    yield plays
    for probe in probes:
        probe.close()


def test_a_desktop_card_tells_everything_and_a_process_in_two_lists_counts_once(
    machine: Machine,
) -> None:
    probe = machine("rtx")

    values, absent = probe.read([os.getpid()])

    assert values == {
        "gpu.devices": 1,
        "gpu.GPU-1.total_bytes": 8192 * MIB,
        "gpu.GPU-1.used_bytes": 1024 * MIB,  # version 2: without what the driver reserves
        "gpu.GPU-1.utilisation_fraction": 0.42,
        "gpu.GPU-1.engine_bytes": 512 * MIB,
    }
    assert absent == {}
    assert probe.devices == ({"uuid": "GPU-1", "name": "Test Card"},)


def test_an_older_driver_is_asked_in_version_1(machine: Machine) -> None:
    values, _ = machine("old").read([])

    assert values["gpu.GPU-1.used_bytes"] == 1424 * MIB


def test_without_an_engine_there_is_no_engine_memory(machine: Machine) -> None:
    values, absent = machine("rtx").read([])

    assert values["gpu.GPU-1.engine_bytes"] is None
    assert absent == {"gpu.GPU-1.engine_bytes": "no engine of ours is running"}


def test_what_a_jetson_does_not_support_is_null_with_a_reason_never_zero(machine: Machine) -> None:
    values, absent = machine("orin").read([os.getpid()])

    assert values.pop("gpu.devices") == 1  # type: ignore[attr-defined]
    assert set(values) == set(absent)
    assert set(values.values()) == {None}
    assert set(absent.values()) == {"NVML says Not Supported"}


@pytest.mark.parametrize(
    ("profile", "reason"),
    [
        ("wsl", "the driver does not tell the memory of a process"),
        ("foreign", "NVML lists processes by ids of another pid namespace"),
    ],
)
def test_memory_that_cannot_be_attributed_is_null(
    machine: Machine, profile: str, reason: str
) -> None:
    values, absent = machine(profile).read([os.getpid()])

    assert values["gpu.GPU-1.engine_bytes"] is None
    assert absent == {"gpu.GPU-1.engine_bytes": reason}


def test_a_library_without_its_driver_is_a_reason_and_not_asked_again_at_once(
    machine: Machine,
) -> None:
    probe = machine("nodrv")

    first = probe.read([])
    second = probe.read([])

    assert first == second
    assert first == (
        {"gpu.devices": None},
        {"gpu.devices": "NVML cannot be used: Driver Not Loaded"},
    )


def test_a_crash_in_nvml_costs_the_values_and_not_the_agent(machine: Machine) -> None:
    _, absent = machine("crash").read([])

    assert absent == {"gpu.devices": "NVML crashed its process (signal 6)"}


def test_a_hang_in_nvml_costs_one_deadline_per_read_and_then_the_child(machine: Machine) -> None:
    probe = machine("hang", Patience(answer_s=0.05, start_s=0.5, hang_s=0.5, again_s=600.0))

    readings = [probe.read([])]
    while readings[-1][1]["gpu.devices"] == "NVML has not answered yet":
        readings.append(_later(probe))

    assert readings[-1][1] == {
        "gpu.devices": "NVML did not answer for 0.5 s, so its process was ended"
    }
    assert probe.read([]) == readings[-1]


def _later(probe: NvmlProbe) -> Readings:
    time.sleep(0.02)  # the child runs in real time
    return probe.read([])


def test_values_that_were_known_stay_listed_after_the_child_has_ended(machine: Machine) -> None:
    probe = machine("rtx")
    known, _ = probe.read([])

    probe.close()
    probe._not_before_s = float("inf")  # as after a crash: not yet time for another child
    values, absent = probe.read([])

    assert set(values) == set(known) == set(absent)
    assert set(values.values()) == {None}


def test_where_there_is_no_library_no_child_is_started(tmp_path: Path) -> None:
    if library_is_there({}):
        pytest.skip("this machine has an NVIDIA driver")
    probe = NvmlProbe(env={"LD_LIBRARY_PATH": str(tmp_path)})

    values, absent = probe.read([])

    assert values == {"gpu.devices": None}
    assert absent == {"gpu.devices": "libnvidia-ml.so.1 is not installed: no NVIDIA driver here"}
    assert probe._child is None


def test_the_library_is_found_in_the_loader_cache(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(b"glibc-ld.so.cache1.1\0libnvidia-ml.so.1\0/opt/x\0")

    assert library_is_there({}, tmp_path)
    assert not library_is_there({}, tmp_path / "elsewhere")


def test_closing_twice_and_before_any_reading_is_fine() -> None:
    probe = NvmlProbe()
    probe.close()
    probe.close()


@given(st.binary())
def test_whatever_the_child_writes_is_an_answer_or_a_reason(line: bytes) -> None:
    assert isinstance(parse(line), str)


rows = st.lists(st.builds(Row, st.integers(0, 9), st.none() | st.integers(0, 1 << 40)))


@given(rows, st.lists(st.integers(0, 9), unique=True))
def test_engine_memory_is_the_largest_row_of_each_process_or_has_a_reason(
    listed: list[Row], pids: list[int]
) -> None:
    used_bytes, reason = engine_bytes(listed, pids, lambda _: True)

    ours = [row for row in listed if row.pid in pids]
    if not pids or any(row.used_bytes is None for row in ours):
        assert used_bytes is None
        assert reason
    else:
        known = [(row.pid, row.used_bytes or 0) for row in ours]
        assert used_bytes == sum(
            max(size for pid, size in known if pid == one) for one in {pid for pid, _ in known}
        )
