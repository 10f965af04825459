"""Spools for the tests: entries, a clock to move, small disks, and a child that can be killed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from edgeagent.core.delivery import Entry, Stamp, Stream
from edgeagent.core.eviction import MIB, SpoolLimits
from edgeagent.publish.spool import Spool, SpoolFull

ROOMY = SpoolLimits(share_of_disk=1.0, min_free_bytes=0)
START_MS = 1_796_000_000_000


class Hands:
    """A clock whose hands the test moves."""

    def __init__(self) -> None:
        self.at = Stamp(START_MS, "77ca4c85", 8_123_456, "sync")

    def __call__(self) -> Stamp:
        return self.at

    def forward(self, seconds: float) -> None:
        self.at = replace(self.at, ts_ms=self.at.ts_ms + int(seconds * 1000))


def entry(stream: Stream, i: int, size: int = 0) -> Entry:
    topic, schema = (
        ("r/point/night", "edgeagent.point/1")
        if stream == "R"
        else ("m/mem_1m", "edgeagent.mem_1m/1")
    )
    value: dict[str, object] = {"i": i}
    if size:
        value["text"] = "x" * size
    return Entry(stream, topic, schema, Stamp(START_MS + i, "77ca4c85", i, "sync"), value)


def opened(
    path: Path, limits: SpoolLimits = ROOMY, machine: str = "box-a", clock: Hands | None = None
) -> Spool:
    return Spool.open(path, limits, machine, clock or Hands())


def limits(megabytes: float) -> SpoolLimits:
    """A cap with half of it for results, whatever the disk holds."""
    cap = int(megabytes * MIB)
    return replace(ROOMY, max_bytes=cap, reserve_results_bytes=cap // 2)


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of its own on a folder."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
        check=False,
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip("only root may mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill_disk(folder: Path) -> Path:
    """Take all room that a disk has left; return the file that holds it."""
    filler = folder / "filler"
    with filler.open("wb") as file, suppress(OSError):
        while True:
            file.write(b"x" * 65536)
            file.flush()
    return filler


def commit_until_full(spool: Spool, size: int) -> int:
    """Commit results numbered from 0 until one is refused; return how many were taken."""
    for i in range(10_000):
        try:
            spool.commit(entry("R", i, size))
        except SpoolFull:
            return i
    raise AssertionError


def numbers_of(spool: Spool, stream: Stream) -> list[int]:
    return [row.seq for row in spool.due(stream, 0, 1_000_000)]


def gaps_of(spool: Spool, stream: Stream = "M") -> list[dict[str, object]]:
    """The losses of a stream that the spool declares in rows still to be sent."""
    events = [row.entry for row in spool.due("R", 0, 1_000_000)]
    gaps = [dict(event.value) for event in events if event.topic == "e/gap"]
    return [gap for gap in gaps if gap["stream"] == stream]
