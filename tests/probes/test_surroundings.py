"""What a check-up looks at beside the probes: device files, clocks, groups, room."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeagent.core.diagnosis import CgroupFacts, Nodes
from edgeagent.probes import surroundings


def write(root: Path, path: str, text: str = "") -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_device_files_are_told_by_what_may_be_done_with_them(ordinary_folder: Path) -> None:
    write(ordinary_folder, "dev/nvidiactl")
    write(ordinary_folder, "dev/nvidia0").chmod(0)

    found = surroundings.device_nodes(ordinary_folder, "dgpu")

    assert found.usable == ("/dev/nvidiactl",)
    assert found.refused == ("/dev/nvidia0",)
    assert found.lacking == ("/dev/nvidia-uvm",)
    assert len(found.groups) == 1


def test_a_box_without_gpu_lacks_nothing(tmp_path: Path) -> None:
    assert surroundings.device_nodes(tmp_path, "cpu") == Nodes()


def test_a_guest_of_windows_needs_the_device_file_of_windows_alone(tmp_path: Path) -> None:
    write(tmp_path, "proc/sys/kernel/osrelease", "5.15.167.4-microsoft-standard-WSL2\n")
    write(tmp_path, "dev/dxg")

    assert surroundings.device_nodes(tmp_path, "dgpu") == Nodes(usable=("/dev/dxg",))


@pytest.mark.parametrize("mode", [0o000, 0o644])
def test_an_energy_counter_is_readable_or_refused(ordinary_folder: Path, mode: int) -> None:
    counter = write(ordinary_folder, "sys/class/powercap/intel-rapl:0/energy_uj", "1\n")
    counter.chmod(mode)

    expected = "readable" if mode else "refused"
    assert surroundings.rapl_access(ordinary_folder) == expected


def test_where_there_is_no_energy_counter_it_is_absent(tmp_path: Path) -> None:
    assert surroundings.rapl_access(tmp_path) == "absent"


def test_this_kernel_stamps_what_arrives_or_says_why_not() -> None:
    stamped, reason = surroundings.kernel_stamps()

    assert stamped == (reason is None)


def test_a_recorded_tree_does_not_tell_the_state_of_the_clock(tmp_path: Path) -> None:
    assert surroundings.wall_clock(tmp_path) is None


def test_the_clock_source_is_the_kernels_word(tmp_path: Path) -> None:
    folder = "sys/devices/system/clocksource/clocksource0"
    write(tmp_path, f"{folder}/current_clocksource", "tsc\n")

    assert surroundings.clock_source(tmp_path) == "tsc"
    assert surroundings.clock_source(tmp_path / "elsewhere") is None


def test_room_is_that_of_the_nearest_folder_that_exists(tmp_path: Path) -> None:
    there = surroundings.place(tmp_path)
    below = surroundings.place(tmp_path / "not" / "yet")

    assert there.writable
    assert below.writable
    assert below.free_bytes is not None
    assert below.path == str(tmp_path / "not" / "yet")


def test_a_folder_in_another_users_is_not_writable(ordinary_folder: Path) -> None:
    ordinary_folder.chmod(0o555)

    assert not surroundings.place(ordinary_folder / "runs").writable


def test_a_delegated_group_is_told_with_its_controllers(tmp_path: Path) -> None:
    write(tmp_path, "sys/fs/cgroup/cgroup.controllers", "cpu memory\n")
    write(tmp_path, "proc/self/cgroup", "0::/system.slice/edgeagent.service\n")
    group = "sys/fs/cgroup/system.slice/edgeagent.service"
    write(tmp_path, f"{group}/cgroup.controllers", "memory pids\n")
    write(tmp_path, f"{group}/cgroup.procs")

    assert surroundings.cgroup(tmp_path) == CgroupFacts(
        "v2", "/system.slice/edgeagent.service", delegated=True, controllers=("memory", "pids")
    )


def test_old_and_missing_groups_are_told_apart(tmp_path: Path) -> None:
    assert surroundings.cgroup(tmp_path) == CgroupFacts("none", None, delegated=False)
    (tmp_path / "sys/fs/cgroup/memory").mkdir(parents=True)
    assert surroundings.cgroup(tmp_path).layout == "v1"
    write(tmp_path, "sys/fs/cgroup/unified/cgroup.controllers")
    assert surroundings.cgroup(tmp_path).layout == "hybrid"
