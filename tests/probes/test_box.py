"""The class and the facts of a box, from recorded trees and from this one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trees import unpack

from edgeagent.core.nodes import node_name
from edgeagent.probes.box import (
    Signals,
    available_bytes,
    box_class,
    cgroup_version,
    classify,
    cpu_count,
    cpu_model,
    describe,
    driver_version,
    host_facts,
    meminfo_bytes,
    os_name,
    release_name,
    uptime_s,
    words,
)


def _write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


TREE = "proc/device-tree/compatible"
CARD = "proc/driver/nvidia/gpus/0000:01:00.0/information"
DRIVER = {"proc/driver/nvidia/version": "NVRM version: 580\n"}
ORIN = {TREE: "nvidia,p3768\0nvidia,tegra234\0"}
THOR = {TREE: "nvidia,p3971\0nvidia,tegra264\0"}
VENDOR = "sys/class/drm/card0/device/vendor"
NODE = "sys/class/devfreq/17000000.gpu/device/of_node/name"
WSL = {"proc/sys/kernel/osrelease": "5.15.167.4-microsoft-standard-WSL2\n"}
WSL_LIBRARY = "usr/lib/wsl/lib/libnvidia-ml.so.1"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (ORIN, "uma-nvgpu"),
        ({"etc/nv_tegra_release": "# R36 (release), REVISION: 4.7\n"}, "uma-nvgpu"),
        ({NODE: "ga10b\0"}, "uma-nvgpu"),
        ({"proc/meminfo": "MemTotal: 1 kB\nNvMapMemUsed: 0 kB\n"}, "uma-nvgpu"),
        ({**ORIN, **DRIVER}, "uma-nvgpu"),
        ({**THOR, **DRIVER}, "uma-nvidia"),
        ({"sys/class/devfreq/gpu-gpc-0/cur_freq": "1\n"}, "uma-nvidia"),
        ({CARD: "Model: \t\t NVIDIA GB10\n", **DRIVER}, "uma-nvidia"),
        ({CARD: "Model: \t\t NVIDIA RTX A2000\n", **DRIVER}, "dgpu"),
        ({VENDOR: "0x8086\n", **DRIVER}, "dgpu"),
        ({VENDOR: "0x8086\n"}, "intel"),
        ({"sys/class/drm/card1/device/vendor": "0x1002\n"}, "amd"),
        ({VENDOR: "0x1a03\n"}, "cpu"),
        ({VENDOR: "0x10de\n"}, "cpu"),
        ({NODE: "gpu\0", TREE: "rockchip,rk3588\0"}, "cpu"),
        ({**WSL, WSL_LIBRARY: ""}, "dgpu"),
        (WSL, "cpu"),
        ({}, "cpu"),
    ],
)
def test_the_class_of_a_box_says_what_memory_its_accelerator_works_on(
    tmp_path: Path, files: dict[str, str], expected: str
) -> None:
    assert box_class(_write(tmp_path, files)) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orin-jp6", "uma-nvgpu"),
        ("orin-jp7", "uma-nvgpu"),
        ("thor", "uma-nvidia"),
        ("gb10", "uma-nvidia"),
        ("amd-apu", "amd"),
        ("intel", "intel"),
        ("cpu", "cpu"),
    ],
)
def test_the_class_of_each_recorded_box(tmp_path: Path, name: str, expected: str) -> None:
    assert box_class(unpack(name, tmp_path)) == expected


@pytest.mark.parametrize("own", [ORIN, THOR])
def test_a_board_with_a_card_beside_its_own_gpu_is_the_card_s_class_and_says_so(
    tmp_path: Path, own: dict[str, str]
) -> None:
    box = describe(_write(tmp_path, {**own, CARD: "Model: \t\t NVIDIA RTX A6000\n"}))

    assert box.kind == "dgpu"
    assert "UUID" in box.notes[0]


def test_a_board_whose_own_gpu_has_a_name_not_known_yet_has_no_card(tmp_path: Path) -> None:
    assert describe(_write(tmp_path, {**ORIN, CARD: "Model: \t\t Unknown\n"})).kind == "uma-nvgpu"


def test_notes_say_what_a_reader_of_the_numbers_has_to_know(tmp_path: Path) -> None:
    windows = describe(_write(tmp_path / "a", {**WSL, WSL_LIBRARY: ""}))
    nouveau = describe(_write(tmp_path / "b", {VENDOR: "0x10de\n"}))
    unplugged = describe(_write(tmp_path / "c", DRIVER))

    assert "WSL" in windows.notes[0]
    assert "not loaded" in nouveau.notes[0]
    assert "lists no GPU" in unplugged.notes[0]


def test_a_jetson_s_gpu_has_the_name_that_nvml_gives_it(tmp_path: Path) -> None:
    assert describe(unpack("orin-jp6", tmp_path)).gpus == ("Orin (nvgpu)",)
    assert describe(unpack("thor", tmp_path)).gpus == ("NVIDIA Thor",)


def test_the_facts_of_a_recorded_jetson(tmp_path: Path) -> None:
    facts = host_facts(unpack("orin-jp6", tmp_path))

    assert facts["class"] == "uma-nvgpu"
    assert facts["release"] == "L4T 36.4.4 (JetPack 6)"
    assert str(facts["jetson_release"]).startswith("# R36 (release), REVISION: 4.4")
    assert "\n" not in str(facts["jetson_release"])
    assert facts["board"] == "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super"
    assert facts["cpu"] == "Cortex-A78AE"
    assert facts["cores"] == 6
    assert facts["kernel"] == "5.15.148-tegra"
    assert facts["swap_total_bytes"] == 3_901_056 * 1024
    assert facts["cgroup"] == "v2"
    assert facts["pressure_stall_information"] is False
    assert facts["uptime_s"] == 5231.44


def test_the_facts_of_a_recorded_spark(tmp_path: Path) -> None:
    facts = host_facts(unpack("gb10", tmp_path))

    assert facts["release"] == "DGX OS 7.2.3"
    assert facts["board"] == "NVIDIA_DGX_Spark"
    assert facts["gpu_driver"] == "580.95.05"
    assert facts["cpu"] == "Cortex-A725 + Cortex-X925"
    assert facts["pressure_stall_information"] is True


def test_the_facts_of_a_recorded_box(tmp_path: Path) -> None:
    facts = host_facts(
        _write(
            tmp_path,
            {
                "etc/os-release": 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12"\n',
                "proc/cpuinfo": "processor\t: 0\nmodel name\t: Intel(R) Atom(TM)\n",
                "proc/meminfo": "MemTotal: 16000000 kB\n",
                "var/lib/nvpmodel/status": "pmode:0002\n",
                CARD: "Model: \t\t NVIDIA RTX A2000\nIRQ:   55\n",
            },
        )
    )

    assert facts["os"] == "Debian GNU/Linux 12"
    assert facts["cpu"] == "Intel(R) Atom(TM)"
    assert facts["gpus"] == [{"name": "NVIDIA RTX A2000"}]
    assert facts["memory_total_bytes"] == 16_384_000_000
    assert facts["power_mode"] == "pmode:0002"
    assert facts["swap_total_bytes"] is None
    assert facts["cgroup"] is None


def test_facts_are_found_on_this_box_and_null_on_an_empty_one(tmp_path: Path) -> None:
    assert host_facts()["memory_total_bytes"]
    assert available_bytes()
    assert host_facts(tmp_path)["memory_total_bytes"] is None
    assert available_bytes(tmp_path) is None


def test_a_node_is_the_host_name_in_the_letters_of_a_topic() -> None:
    assert node_name("Line3.Plant_A") == "line3-plant-a"


@pytest.mark.parametrize(
    ("tegra", "dgx", "expected"),
    [
        ("# R35 (release), REVISION: 6.1, GCID: 1", None, "L4T 35.6.1 (JetPack 5)"),
        ("# R39 (release), REVISION: 2.0, GCID: 1", None, "L4T 39.2.0 (JetPack 7)"),
        ("# R41 (release), REVISION: 1.0", None, "L4T 41.1.0"),
        (None, 'DGX_NAME="DGX Spark"\nDGX_SWBUILD_VERSION="7.2.3"', "DGX OS 7.2.3"),
        (None, None, None),
        ("something else", "something else", None),
    ],
)
def test_a_release_is_named_in_a_few_words(
    tegra: str | None, dgx: str | None, expected: str | None
) -> None:
    assert release_name(tegra, dgx) == expected


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("sys/fs/cgroup/cgroup.controllers", "v2"),
        ("sys/fs/cgroup/unified/cgroup.controllers", "hybrid"),
        ("sys/fs/cgroup/memory/tasks", "v1"),
    ],
)
def test_the_layout_of_control_groups(tmp_path: Path, folder: str, expected: str) -> None:
    assert cgroup_version(_write(tmp_path, {folder: "memory\n"})) == expected


@given(st.text())
def test_no_text_breaks_a_parser(text: str) -> None:
    release_name(text, text)
    driver_version(text)
    cpu_model(text)
    cpu_count(text)
    os_name(text)
    meminfo_bytes(text, "MemTotal")
    uptime_s(text)
    assert all(word == word.strip() != "" for word in words(text))


SHORT = st.text(max_size=12)


@given(
    st.builds(
        Signals,
        kernel=st.none() | SHORT,
        compatible=st.lists(SHORT | st.just("nvidia,tegra234")).map(tuple),
        tegra_release=st.none() | SHORT,
        driver=st.none() | SHORT,
        nvidia_gpus=st.lists(SHORT | st.just("NVIDIA GB10")).map(tuple),
        devfreq=st.lists(SHORT | st.just("gpu-gpc-0")).map(tuple),
        drm_vendors=st.lists(st.sampled_from(["0x10de", "0x1002", "0x8086"])).map(tuple),
        has_nvmap=st.booleans(),
    )
)
def test_whatever_a_box_shows_it_gets_a_class(signals: Signals) -> None:
    assert classify(signals).kind in {"dgpu", "uma-nvidia", "uma-nvgpu", "amd", "intel", "cpu"}
