"""A sweep on boxes with a GPU that is not there: NVML of our own, and a recorded tree."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import nvml_library
import pytest
from agent import SMALL, edgeagent, fake, lines, result, sweep
from trees import unpack

MIB = 1 << 20


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvml_library.build(tmp_path_factory.mktemp("nvml"))


class Driver:
    """Lists the engine below `folder` among the GPU's processes, with 64 MiB for each slot."""

    def __init__(self, rows: Path, folder: Path) -> None:
        self._rows, self._folder = rows, str(folder)
        self._stop = Event()
        rows.write_text("")
        self._thread = Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        draft = self._rows.with_suffix(".draft")
        while not self._stop.wait(0.05):
            draft.write_text("".join(f"{pid} {held}\n" for pid, held in self._engines()))
            draft.replace(self._rows)

    def _engines(self) -> Iterator[tuple[str, int]]:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().decode().split("\0")
            except OSError:
                continue
            if "-np" in words and "--" not in words and any(self._folder in w for w in words):
                slots = int(words[words.index("-np") + 1])
                yield path.parent.name, (100 + 64 * slots) * MIB

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


def on(machine: str, library: Path, root: Path | None = None, **more: str) -> dict[str, str]:
    whole = nvml_library.environment(library, machine, **more)
    place = {"EDGEAGENT_SYSROOT": str(root)} if root is not None else {}
    return {**{k: v for k, v in whole.items() if os.environ.get(k) != v}, **place}


def test_on_a_card_the_cost_of_a_slot_is_the_memory_of_the_engines_processes(
    tmp_path: Path, library: Path
) -> None:
    folder, rows = tmp_path / "run", tmp_path / "rows"
    driver = Driver(rows, folder)
    try:
        environ = on("rtx", library, unpack("rtx", tmp_path), FAKE_NVML_ROWS=str(rows))
        engine = fake("--log-device=CUDA0", f"--slot-bytes={MIB}")
        sweep(
            folder, engine, "--prefix-cache=off", "--concurrency=1", "--device=gpu",
            "--memory-slots=1,2,4", "--memory-repeats=2", "--settle=0.6", environ=environ,
        )  # fmt: skip
    finally:
        driver.close()
    document = result(folder)
    assert document["status"] == "complete", document["findings"]
    assert document["host"]["class"] == "dgpu"
    (gpu,) = document["host"]["gpus"]
    assert gpu["uuid"]
    costs = {cost["domain"]: cost for cost in document["memory"]}
    assert (costs["gpu"]["source"], costs["gpu"]["quality"]) == ("nvml_processes", "attributed")
    assert costs["gpu"]["measured_bytes_per_slot"] == 64 * MIB
    assert costs["gpu"]["base_bytes"] == 100 * MIB
    assert costs["host"]["source"] == "pss_anon"
    assert edgeagent("verify", folder).returncode == 0


def test_an_engine_that_says_gpu_and_is_not_among_its_processes_is_refused(
    tmp_path: Path, library: Path
) -> None:
    rows = tmp_path / "rows"
    rows.write_text("")
    environ = on("rtx", library, FAKE_NVML_ROWS=str(rows))
    engine = fake("--log-device=CUDA0")
    done = sweep(tmp_path / "r", engine, "--prefix-cache=off", "--device=gpu", environ=environ)
    assert done.returncode == 3
    assert "none of the engine's processes uses one" in done.stderr
    found = {finding["code"] for finding in result(tmp_path / "r")["findings"]}
    assert "device_mismatch" in found


@pytest.mark.parametrize("machine", ["orin", "orinzero"])
def test_a_gpu_that_tells_nothing_costs_no_result_and_is_said_once_and_never_zero(
    tmp_path: Path, library: Path, machine: str
) -> None:
    folder = tmp_path / "run"
    environ = on(machine, library, unpack("orin-jp6", tmp_path))
    done = edgeagent(
        "sweep", *fake(), *SMALL, "--prefix-cache=off", "--out", folder, environ=environ
    )
    assert done.returncode in (0, 1), done.stderr
    assert done.stderr.count("NVML does not tell") == 1
    document = result(folder)
    assert all(cell["status"] != "failed" for cell in document["cells"])
    samples = [line["values"] for line in lines(folder, "memory.jsonl")]
    of_devices = {
        name: value
        for values in samples
        for name, value in values.items()
        if name.startswith("gpu.") and name not in ("gpu.devices", "gpu.foreign_processes")
    }
    assert of_devices
    assert all(value is None for name, value in of_devices.items() if "rows" not in name)
    told = {name for line in lines(folder, "memory.jsonl") for name in line.get("absent", {})}
    assert {name for name, value in of_devices.items() if value is None} <= told


def test_a_gpu_that_is_lost_midway_is_a_gap_and_the_sweep_goes_on(
    tmp_path: Path, library: Path
) -> None:
    folder = tmp_path / "run"
    environ = on("lost", library, unpack("rtx", tmp_path), FAKE_NVML_LOST_AFTER="6")
    sweep(folder, fake(ttft_ms=300, itl_ms=100), "--prefix-cache=off", environ=environ)
    document = result(folder)
    assert document["status"] == "complete"
    used = [
        value
        for line in lines(folder, "memory.jsonl")
        for name, value in line["values"].items()
        if name.endswith(".used_bytes") and name.startswith("gpu.")
    ]
    # A new process asks again after a while, and of our library the card has come back by then.
    assert None in used
    assert any(value is not None for value in used)
