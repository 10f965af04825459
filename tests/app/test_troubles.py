"""What a user sees when engines die for good, disks are full at once, or waves meet a cache."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent import (
    edgeagent,
    fake,
    lines,
    measured_well,
    processes_of,
    result,
    sentence,
    sweep,
)

from edgeagent.clock import SystemClock
from edgeagent.core.model import MemorySample
from edgeagent.ports import Readings
from edgeagent.probes.sampler import Sampler


def test_the_first_wave_of_a_warm_cell_finds_its_opening_in_the_cache(tmp_path: Path) -> None:
    run = tmp_path / "run"
    engine = fake(ttft_ms=10, itl_ms=2)
    measured_well(sweep(run, engine, "--shape=fanout", "--prefix-cache=on"), run)
    measured = [line for line in lines(run, "requests.jsonl") if line["role"] == "measured"]
    # 48 of 64 prompt tokens are the shared opening; each slot was primed with it. What follows is
    # random, and may begin with the same token or two as the request before in that slot.
    assert measured
    assert all(48 <= line["cached_tokens"] <= 50 for line in measured)


def test_a_warm_cell_with_prompts_sized_by_text_is_not_doubted_for_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    sweep(run, fake(ttft_ms=30), "--chat", "--prefix-cache=on", "--prefix-tokens=96")
    for cell in result(run)["cells"]:
        assert "cache_contradicts_label" not in cell["findings"]


def test_an_engine_that_dies_whenever_it_is_asked_is_given_up(tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = sweep(run, fake("--fault=die"), "--prefix-cache=off")
    assert done.returncode == 3
    assert "it died 3 times, giving it up" in sentence_of_last_line(done)
    assert result(run)["status"] == "failed"
    assert processes_of(run) == []


def sentence_of_last_line(done: subprocess.CompletedProcess[str]) -> str:
    assert "Traceback" not in done.stderr
    return done.stderr.strip().splitlines()[-1]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(folder)],
        check=False,
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip("only root may mount a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_full_at_once_leaves_nothing_half_written(tiny_disk: Path) -> None:
    done = edgeagent("sweep", *fake(), "--out", tiny_disk / "run")
    assert done.returncode == 2
    assert "No space left" in sentence(done)
    assert list(tiny_disk.iterdir()) == []


class SlowProbe:
    """Says when it is being read, and takes its time."""

    name = "slow"

    def __init__(self) -> None:
        self.reading = threading.Event()
        self.go_on = threading.Event()

    def read(self, pids: object) -> Readings:
        self.reading.set()
        self.go_on.wait(10)
        return {"slow.value": 1}, {}

    def facts(self) -> dict[str, object]:
        return {}

    def close(self) -> None:
        pass


def test_a_cell_that_has_ended_gets_no_sample_more() -> None:
    # Else a cell judged at its end and judged again from the files would differ.
    kept: list[MemorySample] = []
    probe = SlowProbe()
    sampler = Sampler((probe,), SystemClock(), kept.append)
    sampler.mark("c")
    sampler.start()
    try:
        assert probe.reading.wait(10)
        threading.Timer(0.2, probe.go_on.set).start()
        sampler.mark(None)
        seen = [sample for sample in kept if sample.cell_id == "c"]
        assert len(seen) == 1
    finally:
        sampler.stop()
    assert [sample for sample in kept if sample.cell_id == "c"] == seen
