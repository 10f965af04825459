"""`edgeagent doctor --json` on every machine that the fake NVML plays, beside recorded files.

Each document is compared with `golden/NAME.json`, without what differs from machine to machine.
`EDGEAGENT_REWRITE_GOLDEN=1 pytest tests/cli/test_doctor_golden.py` writes them anew.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from agent import ROOT, words

sys.path.insert(0, str(ROOT / "tests" / "probes"))

import nvml_library  # below the line that finds it
import trees

GOLDEN = Path(__file__).parent / "golden"
REWRITE = "EDGEAGENT_REWRITE_GOLDEN"

NVIDIA = ("dev/nvidia0", "dev/nvidiactl", "dev/nvidia-uvm")
JETSON = ("dev/nvmap", "dev/nvhost-gpu")
DRI = ("dev/dri/renderD128",)


@dataclass(frozen=True)
class Machine:
    """Recorded files, the NVML that plays beside them, and the device files of that driver."""

    tree: str
    profile: str | None
    nodes: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)


MACHINES = {
    "cpu": Machine("cpu", None),
    "amd-apu": Machine("amd-apu", None, DRI),
    "intel": Machine("intel", None, DRI),
    "orin": Machine("orin-jp6", "orin", JETSON),
    "orinzero": Machine("orin-jp6", "orinzero", JETSON),
    "orin7": Machine("orin-jp7", "orin7", JETSON),
    "two": Machine("orin-jp7", "two", (*JETSON, *NVIDIA)),
    "thor": Machine("thor", "thor", NVIDIA),
    "gb10": Machine("gb10", "gb10", NVIDIA),
    "gb10total": Machine("gb10", "gb10total", NVIDIA),
    "wsl": Machine("wsl", "wsl"),
    # Lost between the first reading and the second.
    "lost": Machine("rtx", "lost", settings={"FAKE_NVML_LOST_AFTER": "1"}),
    **{
        profile: Machine("rtx", profile)
        for profile in (
            "rtx", "old", "mid", "mig", "late", "garbage", "foreign", "zero", "none", "nodrv",
            "mismatch", "unknown", "slow", "segfault", "hang", "missing",
        )
    },
}  # fmt: skip


def test_every_machine_that_the_fake_library_plays_is_looked_at() -> None:
    assert {machine.profile for machine in MACHINES.values()} - {None} == set(nvml_library.PROFILES)


@dataclass(frozen=True)
class Visit:
    """What the doctor said."""

    status: int
    stderr: str
    document: dict[str, Any]
    root: Path


@pytest.fixture(scope="session")
def visits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Visit]:
    """Each machine, visited once; a few at a time, as most of a visit is waiting."""
    library = nvml_library.build(tmp_path_factory.mktemp("nvml"))
    folder = tmp_path_factory.mktemp("machines")
    with ThreadPoolExecutor(max_workers=4) as pool:
        found = pool.map(lambda name: visit(MACHINES[name], folder / name, library), MACHINES)
        return dict(zip(MACHINES, found, strict=True))


def visit(machine: Machine, folder: Path, library: Path) -> Visit:
    root = furnished(machine, folder)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EDGEAGENT_")}
    played = nvml_library.environment(library, machine.profile) if machine.profile else {}
    done = subprocess.run(
        words("doctor", "--json"),
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        check=False,
        env={
            **kept,
            **{name: played[name] for name in ("LD_LIBRARY_PATH", "FAKE_NVML") if name in played},
            **machine.settings,
            "EDGEAGENT_SYSROOT": str(root),
            "HOME": str(folder),
            "PATH": str(folder),
        },
    )
    return Visit(done.returncode, done.stderr, json.loads(done.stdout), root)


def furnished(machine: Machine, folder: Path) -> Path:
    """The recorded files, with device files and, where none is recorded, two processes."""
    root = trees.unpack(machine.tree, folder)
    for node in machine.nodes:
        (root / node).parent.mkdir(parents=True, exist_ok=True)
        (root / node).touch()
    if not any(root.glob("proc/[0-9]*")):
        for pid, name in ((1, "systemd"), (900, "edgeagent")):
            process = root / "proc" / str(pid)
            process.mkdir(parents=True)
            (process / "stat").write_text(f"{pid} ({name}) S 0 {pid} {pid} 0 -1 0 0 0 0 0 1 1 0 0")
            (process / "status").write_text("VmRSS: 40000 kB\nRssAnon: 20000 kB\n")
            (process / "cgroup").write_text("0::/system.slice/edgeagent.service\n")
        (root / "proc/self").symlink_to("900")
    return root


# ------------------------------------------------------------------------------------------ golden

OF_THE_MACHINE = ("clocks.stamps", "clocks.date", "disk.", "agent.")
"""Checks of the machine that runs the test, whatever is recorded: how their names begin."""
OF_THE_HOST = ("hostname", "node", "machine", "page_bytes")
NOT_COMPARED = "(of this machine)"
MOVES = re.compile(r"^agent\.|^gpu\..*\.energy_j$")


def comparable(visit: Visit) -> dict[str, Any]:
    """The document without what differs from machine to machine."""
    document: dict[str, Any] = json.loads(
        json.dumps(visit.document).replace(str(visit.root), "(root)")
    )
    checks = [check for check in document["checks"] if not check["name"].startswith(OF_THE_MACHINE)]
    host = {**document["host"], **dict.fromkeys(OF_THE_HOST, NOT_COMPARED)}
    if host["kernel"] == platform.release():  # none is recorded
        host["kernel"] = NOT_COMPARED
    for probe in document["probes"]:
        for name in probe["values"]:
            if MOVES.search(name) and probe["values"][name] is not None:
                probe["values"][name] = NOT_COMPARED
    document["facts"]["host"]["page_bytes"] = NOT_COMPARED
    document["facts"]["hygiene"]["page_size_bytes"] = NOT_COMPARED
    return {
        **document,
        "at": NOT_COMPARED,
        "agent": NOT_COMPARED,
        "asked": NOT_COMPARED,
        "configuration": NOT_COMPARED,
        "host": host,
        "worst": NOT_COMPARED,
        "checks": checks,
    }


@pytest.mark.parametrize("name", MACHINES)
def test_the_doctor_says_what_it_said_before(name: str, visits: Mapping[str, Visit]) -> None:
    said = json.dumps(comparable(visits[name]), indent=1, ensure_ascii=False) + "\n"
    golden = GOLDEN / f"{name}.json"
    if os.environ.get(REWRITE) == "1":
        golden.write_text(said, encoding="utf-8")

    assert golden.exists(), f"write it with {REWRITE}=1, and read it"
    assert said == golden.read_text("utf-8")


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(MACHINES)


# ---------------------------------------------------------------------------------------- promises


@pytest.mark.parametrize("name", MACHINES)
def test_the_doctor_never_fails_and_its_status_is_its_worst_check(
    name: str, visits: Mapping[str, Visit]
) -> None:
    document = visits[name].document
    states = {check["state"] for check in document["checks"]}

    assert visits[name].stderr == ""
    assert visits[name].status == ("fault" in states)
    assert (document["worst"] == "fault") == ("fault" in states)


FAULTY = {"none", "nodrv", "mismatch", "unknown", "segfault", "hang", "lost"}
"""Machines on which something is broken that should work; all others only lack something."""


@pytest.mark.parametrize("name", MACHINES)
def test_only_what_is_broken_is_a_fault(name: str, visits: Mapping[str, Visit]) -> None:
    faults = [
        check["name"]
        for check in visits[name].document["checks"]
        if check["state"] == "fault" and not check["name"].startswith(OF_THE_MACHINE)
    ]

    assert bool(faults) == (name in FAULTY), faults


def values_of(visit: Visit) -> dict[str, float | int | None]:
    return {
        name: value for probe in visit.document["probes"] for name, value in probe["values"].items()
    }


@pytest.mark.parametrize("name", MACHINES)
def test_every_null_has_its_reason_and_only_nulls_have_one(
    name: str, visits: Mapping[str, Visit]
) -> None:
    for probe in visits[name].document["probes"]:
        nulls = {value for value, known in probe["values"].items() if known is None}
        assert nulls == set(probe["absent"]), probe["name"]
        assert all(probe["absent"].values())


MAY_BE_ZERO = {
    "host.swap_used_bytes", "host.zram_bytes", "drm.devices", "drm.foreign_processes",
    "drm.foreign_unreadable", "pressure.memory_some_s", "pressure.memory_full_s",
    "vm.swap_in_pages", "vm.swap_out_pages", "vm.allocstall",
    "vm.refault_file", "vm.swap_zram_bytes", "vm.swap_disk_bytes", "hygiene.throttle_count",
    "hygiene.overcurrent_count", "hygiene.cooling_state", "hygiene.power_saver",
    "hygiene.on_battery", "jetson.clocks_locked", "jetson.overcurrent_count", "jetson.power_mode",
    "gpu.foreign_processes",
}  # fmt: skip
"""Counts and answers of yes or no whose zero stands in the recorded files."""
MAY_BE_ZERO_OF_A_GPU = {"rows_dropped", "throttle_reasons"}


@pytest.mark.parametrize("name", MACHINES)
def test_no_value_is_zero_that_was_not_measured(name: str, visits: Mapping[str, Visit]) -> None:
    zeros = {value for value, known in values_of(visits[name]).items() if known == 0}

    unexpected = {
        zero
        for zero in zeros - MAY_BE_ZERO
        if zero.rpartition(".")[2] not in MAY_BE_ZERO_OF_A_GPU or zero.count(".") == 1
    }
    assert unexpected == set()


ASKED_BY = {
    "used_bytes": "memory",
    "utilisation_fraction": "utilisation",
    "sm_clock_hz": "sm_clock",
    "memory_clock_hz": "memory_clock",
    "power_w": "power",
    "energy_j": "energy",
    "temperature_c": "temperature",
    "throttle_reasons": "throttle_reasons",
    "throttle_s": "throttle_counters",
}


@pytest.mark.parametrize("name", MACHINES)
def test_what_a_gpu_does_not_answer_is_null(name: str, visits: Mapping[str, Visit]) -> None:
    values = values_of(visits[name])

    for device, calls in visits[name].document["capabilities"].items():
        for metric, call in ASKED_BY.items():
            value = values.get(f"gpu.{device}.{metric}")
            assert value is None or calls[call] == "ok", metric
