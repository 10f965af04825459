"""A sweep's answer to what a slot costs, and what keeps the box alive meanwhile."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest
from agent import (
    begun,
    edgeagent,
    fake,
    lines,
    processes_of,
    result,
    sentence,
    sweep,
    until,
)
from trees import unpack

MIB = 1 << 20
GIB = 1 << 30

SLOTS = ("--memory-slots=1,2,4", "--memory-repeats=2", "--prefix-cache=off", "--concurrency=1")


def test_a_slot_of_64_mib_is_measured_as_such_beside_what_the_engine_reports(
    tmp_path: Path,
) -> None:
    engine = fake(
        f"--slot-bytes={64 * MIB}", f"--map-bytes={256 * MIB}", f"--compute-bytes={2 * MIB}",
        "--log-device=CPU",
    )  # fmt: skip
    folder = tmp_path / "run"
    sweep(folder, engine, *SLOTS)
    document = result(folder)
    (cost,) = document["memory"]
    assert cost["slots"] == [1, 1, 2, 2, 4, 4]
    assert cost["ready_bytes_per_slot"] == pytest.approx(64 * MIB, rel=0.02)
    assert cost["measured_bytes_per_slot"] == pytest.approx(66 * MIB, rel=0.02)
    assert cost["ci95"][0] <= cost["measured_bytes_per_slot"] <= cost["ci95"][1]
    assert cost["mapped_bytes"] == pytest.approx(256 * MIB, rel=0.1)
    assert cost["reported"]["kv_bytes_per_slot"] == pytest.approx(64 * MIB, rel=0.001)
    assert (cost["domain"], cost["source"], cost["quality"]) == ("host", "pss_anon", "attributed")
    assert cost["max_slots"] > 0
    assert "MiB of host memory" in document["answers"]["5"]["text"]
    starts = [launch for launch in document["engines"][0]["launches"] if launch["role"] == "memory"]
    assert sorted(launch["slots"] for launch in starts) == [1, 1, 2, 2, 4, 4]
    assert edgeagent("verify", folder).returncode == 0
    phases = {line.get("phase") for line in lines(folder, "memory.jsonl")}
    assert {"before", "ready", "load", "loaded", "released"} <= phases


def test_a_killed_run_goes_on_with_the_starts_that_are_missing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    engine = fake(f"--slot-bytes={8 * MIB}", ttft_ms=5, itl_ms=2)
    process = begun(
        "sweep", *engine, "--requests=2", "--warmup=0", "--repeats=1", "--cooldown=0",
        "--prefix-tokens=8", "--prompt-tokens=8", "--output-tokens=4", "--canary=0",
        "--settle=0.3", *SLOTS, "--out", folder, "--quiet",
    )  # fmt: skip
    kept = folder / "cells.jsonl"
    until(lambda: kept.exists() and kept.read_text().count("\n") >= 3, "a second start")
    process.kill()
    process.communicate()
    until(lambda: not processes_of(folder), "the end of the engine")
    edgeagent("sweep", "--resume", folder, "--quiet")
    ids = [line["cell_id"] for line in lines(folder, "cells.jsonl")]
    assert len(ids) == len(set(ids)) == 1 + 6
    assert result(folder)["memory"][0]["slots"] == [1, 1, 2, 2, 4, 4]
    assert edgeagent("verify", folder).returncode == 0


def test_memory_left_out_says_how_to_have_it_measured(tmp_path: Path) -> None:
    sweep(tmp_path / "run", fake(), "--prefix-cache=off", "--concurrency=1")
    document = result(tmp_path / "run")
    assert document["memory"] == []
    assert "--memory-repeats" in document["answers"]["5"]["text"]


# -------------------------------------------------------------------------------------- the guard


class Meminfo:
    """The memory of an 8 GiB box, as a file that the test writes."""

    def __init__(self, root: Path) -> None:
        (root / "proc").mkdir(parents=True)
        self._path = root / "proc/meminfo"
        self._path.write_text(self._text(6 * GIB), encoding="ascii")
        self._stop = Event()
        self._thread: Thread | None = None

    def _text(self, available: int) -> str:
        return "".join(
            f"{name}: {value >> 10:12} kB\n"
            for name, value in (
                ("MemTotal", 8 * GIB),
                ("MemFree", 100 * MIB),
                ("MemAvailable", available),
            )
        )

    def fall_once(self, began: Path) -> None:
        """From the moment that `began` has content, lose half a GiB every tenth of a second."""

        def run() -> None:
            available = 6 * GIB
            while not self._stop.wait(0.1):
                if began.exists() and began.stat().st_size:
                    available = max(0, available - GIB // 2)
                    with self._path.open("r+", encoding="ascii") as file:
                        file.write(self._text(available))

        self._thread = Thread(target=run)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()


@pytest.fixture
def meminfo(tmp_path: Path) -> Iterator[Meminfo]:
    made = Meminfo(tmp_path / "root")
    yield made
    made.close()


def test_an_engine_that_takes_the_box_down_is_ended_and_its_cell_says_so(
    tmp_path: Path, meminfo: Meminfo
) -> None:
    folder = tmp_path / "run"
    meminfo.fall_once(folder / "requests.jsonl")
    done = sweep(
        folder, fake(ttft_ms=500, itl_ms=200), "--prefix-cache=off", "--requests=50",
        environ={"EDGEAGENT_SYSROOT": str(tmp_path / "root")},
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    document = result(folder)
    assert "killed_by_guard" in {finding["code"] for finding in document["findings"]}
    killed = [cell for cell in document["cells"] if "killed_by_guard" in cell["findings"]]
    assert all(cell["status"] == "failed" for cell in killed)
    (record,) = json.loads((folder / "environment.json").read_text())["guard"]
    assert "memory was available" in record["reason"]
    looks = record["trace"]
    assert looks[0]["available_bytes"] > looks[-1]["available_bytes"]
    assert not processes_of(folder)


def test_a_start_that_takes_the_box_down_is_ended_before_it_is_ready(
    tmp_path: Path, meminfo: Meminfo
) -> None:
    folder = tmp_path / "run"
    meminfo.fall_once(folder / "agent.log")
    engine = fake(f"--growth-bytes-per-s={16 * MIB}", f"--growth-limit-bytes={64 * MIB}")
    done = sweep(
        folder, engine, "--prefix-cache=off",
        environ={"EDGEAGENT_SYSROOT": str(tmp_path / "root")},
    )  # fmt: skip
    assert done.returncode == 3
    assert "memory guard" in done.stderr
    assert not processes_of(folder)


# ------------------------------------------------------------------------------ device and hygiene


def test_a_gpu_that_was_asked_for_and_is_not_used_is_refused_though_the_engine_is_healthy(
    tmp_path: Path,
) -> None:
    done = sweep(tmp_path / "run", fake("--log-device=CPU"), "--device=gpu", "--prefix-cache=off")
    assert done.returncode == 3
    assert "GPU was asked for" in done.stderr
    found = {finding["code"] for finding in result(tmp_path / "run")["findings"]}
    assert "device_mismatch" in found


def test_strict_refuses_a_box_that_saves_power_before_anything_is_begun(tmp_path: Path) -> None:
    root = unpack("cpu", tmp_path)
    for governor in root.glob("sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"):
        governor.write_text("powersave\n")
    for driver in root.glob("sys/devices/system/cpu/cpu*/cpufreq/scaling_driver"):
        driver.write_text("acpi-cpufreq\n")
    folder = tmp_path / "run"
    environ = {"EDGEAGENT_SYSROOT": str(root)}
    done = sweep(folder, fake(), "--prefix-cache=off", "--strict", environ=environ)
    assert done.returncode == 3
    assert "power-saving" in sentence(done)
    assert not folder.exists()
    lenient = sweep(folder, fake(), "--prefix-cache=off", "--concurrency=1", environ=environ)
    assert lenient.returncode in (0, 1)
    assert "power_saver" in {finding["code"] for finding in result(folder)["findings"]}


def test_a_cell_in_which_the_box_throttled_is_suspect_by_name(tmp_path: Path) -> None:
    root = unpack("cpu", tmp_path)
    counters = sorted(root.glob("sys/devices/system/cpu/cpu*/thermal_throttle/*_throttle_count"))
    assert counters, "the tree has throttle counters"
    folder = tmp_path / "run"
    stop = Event()

    def throttle() -> None:
        count = 0
        while not stop.wait(0.3):
            if (folder / "requests.jsonl").exists():
                count += 1
                draft = tmp_path / "draft"
                draft.write_text(f"{count}\n")
                shutil.move(draft, counters[0])

    thread = Thread(target=throttle)
    thread.start()
    try:
        sweep(
            folder, fake(ttft_ms=300, itl_ms=100), "--prefix-cache=off", "--requests=6",
            environ={"EDGEAGENT_SYSROOT": str(root)},
        )  # fmt: skip
    finally:
        stop.set()
        thread.join()
    cells = result(folder)["cells"]
    assert all("throttled" in cell["findings"] for cell in cells)
    assert {cell["status"] for cell in cells} == {"suspect"}
