"""The facts of a box, from recorded trees and from this one."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeagent.probes.box import available_bytes, box_class, host_facts, node_name


def _write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


TREE = "proc/device-tree/compatible"
CARD = "proc/driver/nvidia/gpus/0000:01:00.0/information"
DRIVER = {"proc/driver/nvidia/version": "NVRM version: 580\n"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({TREE: "nvidia,p3768\0nvidia,tegra234\0"}, "uma-nvgpu"),
        ({TREE: "nvidia,p3971\0nvidia,tegra264\0", **DRIVER}, "uma-nvidia"),
        ({CARD: "Model: \t\t NVIDIA GB10\n", **DRIVER}, "uma-nvidia"),
        ({CARD: "Model: \t\t NVIDIA RTX A2000\n", **DRIVER}, "dgpu"),
        ({"sys/class/drm/card0/device/vendor": "0x8086\n", **DRIVER}, "dgpu"),
        ({"sys/class/drm/card0/device/vendor": "0x8086\n"}, "intel"),
        ({"sys/class/drm/card1/device/vendor": "0x1002\n"}, "amd"),
        ({"sys/class/drm/card0/device/vendor": "0x1a03\n"}, "cpu"),
        ({}, "cpu"),
    ],
)
def test_the_class_of_a_box_says_what_memory_its_accelerator_works_on(
    tmp_path: Path, files: dict[str, str], expected: str
) -> None:
    assert box_class(_write(tmp_path, files)) == expected


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


def test_facts_are_found_on_this_box_and_null_on_an_empty_one(tmp_path: Path) -> None:
    assert host_facts()["memory_total_bytes"]
    assert available_bytes()
    assert host_facts(tmp_path)["memory_total_bytes"] is None
    assert available_bytes(tmp_path) is None


def test_a_node_is_the_host_name_in_the_letters_of_a_topic() -> None:
    assert node_name("Line3.Plant_A") == "line3-plant-a"
