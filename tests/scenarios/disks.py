"""What arrives when the spool's disk is too small, full, damaged or read-only?"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from agent_process import SITE, Feed, Spec
from broker_places import mosquitto, until
from collector import Lane, Store
from ledger import Account, account, arrived, committed
from outages import FORGETS, came
from scenario_places import AgentProcess, agent, collecting
from spool_places import small_disk

MIB = 1024 * 1024


def declared_rows(database: Path, lane: Lane) -> int:
    """How many rows of a lane its gap records say are gone."""
    with closing(Store(database)) as store:
        return sum(gap.n or 0 for gap in store.gaps(lane))


def telemetry_of(box: AgentProcess) -> Lane:
    return Lane(f"{SITE}/{box.spec.node}", box.state()["epoch"], "M")


def cap_reached(folder: Path, telemetry: int = 24_000, results: int = 600) -> Account:
    """T15: 102 MB offered to a spool of 40 MiB while the broker is away."""
    database = folder / "plant.db"
    limits = {"max_bytes": 40 * MIB, "reserve_results_bytes": 20 * MIB}
    with mosquitto(folder / "broker", FORGETS) as broker:
        spec = Spec(broker.port, spool=limits, link="later")
        with collecting(broker.port, database), agent(folder / "agent", spec) as box:
            box.feed(Feed(results, telemetry, result_bytes=10_000, telemetry_bytes=4_000))
            box.fed(240.0)
            size = (folder / "agent" / "spool.db").stat().st_size
            box.order(link=True)
            arrived([box], database)
            made = account(
                "spool of 40 MiB offered 102 MB", [box], database,
                {"file": f"{size / MIB:.1f} MiB"},
            )  # fmt: skip
            assert size <= 44 * MIB
            assert declared_rows(database, telemetry_of(box)) == made.declared
            assert made.declared == box.state()["evicted"]
            assert results_received(database, "r/point/run-1") == results
            return made


def results_received(database: Path, topic_end: str) -> int:
    with closing(Store(database)) as store:
        return len(store.events(topic_end))


def disk_full(folder: Path, telemetry: int = 8_000, results: int = 100) -> Account:
    """T15: a disk of 64 MiB that others fill to the last byte while the agent goes on."""
    database = folder / "plant.db"
    with (
        small_disk(folder / "disk", "64M") as disk,
        mosquitto(folder / "broker", FORGETS) as broker,
        collecting(broker.port, database),
        agent(folder / "agent", Spec(broker.port, spool_folder=str(disk), link="later")) as box,
    ):
        box.feed(Feed(results, telemetry // 4, result_bytes=10_000, telemetry_bytes=4_000))
        box.fed()
        fill(disk)
        samples = box.state()["counts"]["samples"]
        box.feed(Feed(results, telemetry, 800.0, result_bytes=10_000, telemetry_bytes=4_000))
        until(lambda: suffers(box), "the disk is full")
        until(lambda: box.state()["counts"]["samples"] > samples + 2_000, "and sampling goes on")
        (disk / "others").unlink()
        box.fed(240.0)
        box.order(link=True)
        arrived([box], database)
        refused = box.state()["counts"]["refused"]
        figures = {"commits refused meanwhile": f"{refused}"}
        made = account("disk full (64 MiB)", [box], database, figures)
        assert results_received(database, "r/point/run-1") == 2 * results
        assert declared_rows(database, telemetry_of(box)) == made.declared
        return made


def suffers(box: AgentProcess) -> bool:
    """Whether telemetry had to make room for the rest, or nothing could be written at all."""
    state = box.state()
    return bool(state["trouble"] or state.get("evicted") or state["counts"]["refused"])


def fill(disk: Path) -> None:
    """Write until nothing more fits."""
    with (disk / "others").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 65_536)
        except OSError:
            pass
        try:
            while True:
                file.write(b"x" * 512)
        except OSError:
            return


def head_damaged(folder: Path, rows: int = 300) -> Account:
    """T15: the head of the file is overwritten between two starts; what it held is put aside."""
    database = folder / "plant.db"
    with mosquitto(folder / "broker", FORGETS) as broker, collecting(broker.port, database):
        spec = Spec(broker.port)
        with agent(folder / "agent", spec) as box:
            box.feed(Feed(rows // 3, rows - rows // 3))
            box.fed()
            arrived([box], database)
            box.stop()
            first = committed([box])
            path = folder / "agent" / "spool.db"
            with path.open("r+b") as file:
                file.write(os.urandom(100))
            box.start()
            assert box.state()["epoch"] not in {lane.epoch for lane in first}
            box.feed(Feed(rows // 3, rows - rows // 3))
            box.fed()
            arrived([box], database)
            with closing(Store(database)) as store:
                assert [event["what"] for event in store.events("e/spool")] == ["corrupt"]
            assert list((folder / "agent").glob("*.corrupt-*"))
            return account("spool file damaged once delivered", [box], database)


@dataclass
class FailingDisk:
    """A disk that goes read-only under its users, as flash does at its end, until mounted anew."""

    image: Path
    place: Path

    def mount(self) -> None:
        self._run("mount", "-o", "loop,errors=remount-ro", str(self.image), str(self.place))

    def umount(self) -> None:
        self._run("umount", str(self.place))

    def fail(self) -> None:
        self._run("mount", "-o", "remount,abort", str(self.place))

    @staticmethod
    def _run(*words: str) -> None:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(done.stderr)


@contextmanager
def failing_disk(folder: Path) -> Iterator[FailingDisk]:
    """An ext4 of its own; skips, with the reason, where this user may not mount one."""
    folder.mkdir()
    disk = FailingDisk(folder / "image", folder / "disk")
    disk.place.mkdir()
    with disk.image.open("wb") as file:
        file.truncate(64 * MIB)
    try:
        disk._run("mkfs.ext4", "-q", str(disk.image))
        disk.mount()
    except OSError as error:
        pytest.skip(f"no disk of one's own to break: {error}")
    try:
        yield disk
    finally:
        disk.umount()


def disk_read_only(folder: Path, rows: int = 300) -> Account:
    """T15: the disk goes read-only while the agent runs; live readings go on, nothing is lost."""
    database = folder / "plant.db"
    with (
        failing_disk(folder / "flash") as disk,
        mosquitto(folder / "broker", FORGETS) as broker,
        collecting(broker.port, database) as collector,
        agent(folder / "agent", Spec(broker.port, spool_folder=str(disk.place))) as box,
    ):
        box.feed(Feed(rows // 3, rows - rows // 3))
        box.fed()
        arrived([box], database)
        box.feed(Feed(0, 100_000, per_s=100.0))
        until(lambda: came(database) > rows + 20, "rows flow")
        disk.fail()
        until(lambda: box.state()["trouble"], "the disk refuses")
        begun_s = time.monotonic()
        seen, samples = len(collector.live), box.state()["counts"]["samples"]
        until(lambda: len(collector.live) > seen + 20, "live readings go on")
        until(lambda: box.state()["counts"]["samples"] > samples + 100, "sampling goes on")
        until(lambda: box.link["troubles"], "the status tells")
        live_per_s = (len(collector.live) - seen) / (time.monotonic() - begun_s)
        box.stop()
        disk.umount()
        disk.mount()
        box.start()
        box.feed(Feed(rows // 3, rows - rows // 3))
        box.fed()
        arrived([box], database)
        figures = {"live readings while read-only": f"{live_per_s:.0f}/s of 20/s"}
        return account("disk read-only, mounted anew", [box], database, figures)
