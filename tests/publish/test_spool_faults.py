"""What kills, full and read-only disks, damage, clones and a second process do to a spool."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from spool_places import (
    ROOMY,
    Hands,
    commit_until_full,
    entry,
    fill_disk,
    gaps_of,
    limits,
    numbers_of,
    opened,
    small_disk,
)

from edgeagent.core.eviction import MIB, SpoolLimits
from edgeagent.publish import spool_check
from edgeagent.publish.spool import Spool, SpoolFull, SpoolUnavailable
from edgeagent.publish.spool_file import beside

CHILD = Path(__file__).with_name("spool_child.py")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool.db"


def child(path: Path, what: str) -> subprocess.Popen[str]:
    """A process that holds the spool and says on its output what it has done."""
    return subprocess.Popen(
        [sys.executable, str(CHILD), str(path), what],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )


def lines(process: subprocess.Popen[str], n: int) -> list[int]:
    assert process.stdout is not None
    return [int(process.stdout.readline()) for _ in range(n)]


def kill(process: subprocess.Popen[str]) -> list[int]:
    """End it as the kernel's OOM killer does; return what it still had said."""
    process.send_signal(signal.SIGKILL)
    out, _ = process.communicate()
    return [int(line) for line in out.split()]


def events(spool: Spool) -> list[dict[str, object]]:
    rows = spool.due("R", 0, 1000)
    return [dict(row.entry.value) for row in rows if row.entry.topic == "e/spool"]


# --- kills ---


def test_every_result_that_was_committed_outlives_a_kill(path: Path) -> None:
    said: list[int] = []
    for _ in range(3):
        process = child(path, "commit")
        said += lines(process, 20)
        said += kill(process)
    spool = opened(path)
    there = numbers_of(spool, "R")
    assert there == list(range(1, len(there) + 1))
    assert set(said) <= set(there)
    assert len(said) == len(set(said))
    assert spool.stats().streams["R"].rows == len(there)
    spool.close()


def test_a_kill_in_the_middle_of_evictions_leaves_every_loss_declared(path: Path) -> None:
    process = child(path, "evict")
    lines(process, 40)
    kill(process)
    spool = opened(path, limits(0.5))
    stats = spool.stats().streams["M"]
    assert stats.evicted > 0
    assert sum(int(str(gap["n"])) for gap in gaps_of(spool)) == stats.evicted
    assert stats.rows + stats.evicted == stats.last_seq
    spool.close()


def test_a_command_that_was_running_at_a_kill_is_found_unfinished_and_not_new(path: Path) -> None:
    process = child(path, "command")
    lines(process, 1)
    kill(process)
    spool = opened(path)
    assert [command.state for command in spool.unfinished()] == ["running"]
    assert spool.remember("id-1", "sweep", "accepted", {}) == "again"
    spool.close()


# --- several processes ---


def test_two_processes_commit_into_one_row_of_numbers(path: Path) -> None:
    processes = [child(path, "commit"), child(path, "commit")]
    said = [number for process in processes for number in lines(process, 30)]
    spool = opened(path)
    said.append(spool.commit(entry("R", 0)).seq)
    for process in processes:
        said += kill(process)
    assert len(said) == len(set(said))
    there = numbers_of(spool, "R")
    assert there == list(range(1, len(there) + 1))
    assert set(said) <= set(there)
    spool.close()


def test_the_right_to_send_ends_with_its_process(path: Path) -> None:
    spool = opened(path)
    process = child(path, "pump")
    lines(process, 1)
    assert spool.pump_lock() is None
    kill(process)
    lock = spool.pump_lock()
    assert lock is not None
    lock.release()
    spool.close()


def test_a_second_process_follows_when_the_first_replaced_a_damaged_file(path: Path) -> None:
    one, two = opened(path), opened(path)
    for i in range(200):
        one.commit(entry("R", i, 2_000))
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:  # the pages behind the first ones are lost
        file.seek(8 * 4096)
        file.write(os.urandom(path.stat().st_size - 8 * 4096))
    for spool in (one, two):
        spool._worker.submit(spool._store._detach).result()  # and no cache knows them
    one.commit(entry("R", 1))
    epoch = one.epoch
    row = two.commit(entry("R", 2))
    assert row.epoch == epoch
    assert [row.seq for row in one.due("R", 0, 10)] == [1, 2, 3]
    one.close()
    two.close()


# --- damage ---


def used_spool(path: Path) -> str:
    spool = opened(path)
    for i in range(50):
        spool.commit(entry("R", i, 2_000))
    spool.put("session_n", "41")
    spool.remember("id-1", "sweep", "succeeded", {})
    epoch = spool.epoch
    spool.close()
    return epoch


def killed_spool(path: Path) -> None:
    process = child(path, "commit")
    lines(process, 20)
    kill(process)


def garbage_at(path: Path, at: int, size: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"\xa5" * size)


@pytest.mark.parametrize("how", ["header", "schema", "truncated"])
def test_a_damaged_file_is_put_aside_and_a_new_epoch_begins(path: Path, how: str) -> None:
    epoch = used_spool(path)
    if how == "header":
        garbage_at(path, 0, 100)
    elif how == "schema":
        garbage_at(path, 100, 3000)
    else:
        os.truncate(path, path.stat().st_size // 2 // 4096 * 4096)
    spool = opened(path)
    assert spool.epoch != epoch
    (event,) = events(spool)
    assert event["what"] == "corrupt"
    assert (path.parent / str(event["kept_as"])).exists()
    assert spool.commit(entry("R", 1)).seq == 2
    spool.close()
    spool = opened(path)
    assert len(events(spool)) == 1
    spool.close()


def test_damage_found_at_work_does_not_stop_the_work(path: Path) -> None:
    epoch = used_spool(path)
    size = path.stat().st_size
    garbage_at(path, 16 * 4096, size - 16 * 4096)  # after a clean end nobody looks there
    spool = opened(path)
    assert spool.epoch == epoch
    spool.due("R", 0, 1000)
    assert spool.epoch != epoch
    assert spool.get("session_n") == "41"
    assert spool.seen("id-1") is not None
    assert spool.commit(entry("R", 1)).seq == 2
    spool.close()


def test_after_a_kill_the_whole_file_is_looked_at(path: Path) -> None:
    used_spool(path)
    size = path.stat().st_size
    killed_spool(path)
    garbage_at(path, size - 8 * 4096, 4096)
    spool = opened(path)
    (event,) = events(spool)
    assert event["what"] == "corrupt"
    spool.close()


def test_a_log_with_a_damaged_head_is_damage(path: Path) -> None:
    killed_spool(path)
    garbage_at(beside(path, "-wal"), 0, 64)
    spool = opened(path)
    (event,) = events(spool)
    assert event["what"] == "corrupt"
    assert "log" in str(event["detail"])
    spool.close()


def test_numbers_in_a_damaged_part_of_the_log_are_not_given_again(path: Path) -> None:
    killed_spool(path)
    log = beside(path, "-wal")
    frames = (log.stat().st_size - 32) // 4120
    garbage_at(log, 32 + frames // 2 * 4120 + 100, 500)
    spool = opened(path)
    assert events(spool) == []
    there = numbers_of(spool, "R")
    assert spool.commit(entry("R", 1)).seq > 10_000
    (gap,) = gaps_of(spool, "R")
    assert gap["reason"] == "log_damaged"
    assert gap["from"] == max(n for n in there if n < 10_000) + 1
    spool.close()


def test_a_torn_end_of_the_log_is_no_damage(path: Path) -> None:
    killed_spool(path)
    log = beside(path, "-wal")
    with log.open("ab") as file:
        file.write(b"\0" * 1000)
    spool = opened(path)
    assert events(spool) == []
    assert gaps_of(spool, "R") == []
    assert len(numbers_of(spool, "R")) >= 20
    spool.close()


def test_a_file_that_was_emptied_or_removed_begins_a_new_epoch(path: Path) -> None:
    epoch = used_spool(path)
    os.truncate(path, 0)
    spool = opened(path)
    assert spool.epoch != epoch
    assert [event["what"] for event in events(spool)] == ["empty"]
    epoch = spool.epoch
    path.unlink()
    spool.commit(entry("R", 1))
    assert spool.epoch != epoch
    assert [event["what"] for event in events(spool)] == ["missing"]
    spool.close()


def test_two_damaged_files_are_kept_and_no_more(path: Path) -> None:
    for _ in range(4):
        used_spool(path)
        garbage_at(path, 0, 100)
    opened(path).close()
    assert len(list(path.parent.glob("*.corrupt-*"))) == 2


# --- another machine ---


def test_a_cloned_disk_begins_a_new_epoch_and_sends_nothing_of_the_original(path: Path) -> None:
    epoch = used_spool(path)
    clone = opened(path, machine="box-b")
    assert clone.epoch != epoch
    assert clone.stats().streams["R"].rows == 1
    (event,) = events(clone)
    assert (event["what"], event["previous_epoch"]) == ("other_machine", epoch)
    assert event["rows_left"] == 50
    assert clone.get("session_n") == "41"
    assert clone.seen("id-1") is not None
    clone.close()
    again = opened(path, machine="box-b")
    assert len(numbers_of(again, "R")) == 1
    again.close()
    aside = path.parent / str(event["kept_as"])
    original = opened(aside)
    assert original.epoch == epoch
    assert len(numbers_of(original, "R")) == 50
    original.close()


def test_a_machine_that_could_not_be_told_matches_any(path: Path) -> None:
    opened(path, machine="").close()
    spool = opened(path, machine="box-a")
    epoch = spool.epoch
    spool.close()
    spool = opened(path, machine="")
    assert spool.epoch == epoch
    spool.close()
    spool = opened(path, machine="box-b")
    assert spool.epoch != epoch
    spool.close()


# --- disks ---


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "64m") as folder:
        yield folder


def test_40_mib_offered_102_mib_keep_every_result_and_declare_every_loss(disk: Path) -> None:
    spool = opened(disk / "spool.db", replace(ROOMY, max_bytes=40 * MIB))
    i = 0
    for batch in range(600):
        for _ in range(112):
            i += 1
            spool.add(entry("M", i, 1_300))
        assert spool.flush() is None
        spool.commit(entry("R", batch, 10_000))
    stats = spool.stats()
    assert stats.used_bytes <= 40 * MIB
    kept = [row for row in spool.due("R", 0, 10_000) if row.entry.topic != "e/gap"]
    assert [row.entry.value["i"] for row in kept] == list(range(600))
    m = stats.streams["M"]
    assert sum(int(str(gap["n"])) for gap in gaps_of(spool)) == m.evicted == i - m.rows
    spool.close()


def test_a_disk_that_others_fill_costs_telemetry_first_and_heals(disk: Path) -> None:
    spool = opened(disk / "spool.db", ROOMY)
    for i in range(8_000):
        spool.add(entry("M", i, 1_300))
        if not i % 400:
            spool.flush()
    filler = fill_disk(disk)
    results = commit_until_full(spool, 30_000)
    assert results > 300  # the room of the telemetry
    assert "disk below it is full" in str(spool.refusal())
    for i in range(2_000):
        spool.add(entry("M", i, 1_300))
    spool.flush()
    filler.unlink()
    assert spool.flush() is None
    spool.commit(entry("R", results, 30_000))
    kept = [row.entry.value["i"] for row in spool.due("R", 0, 10_000) if "i" in row.entry.value]
    assert kept == list(range(results + 1))
    m = spool.stats().streams["M"]
    assert sum(int(str(gap["n"])) for gap in gaps_of(spool)) == m.evicted + m.lost
    assert m.rows + m.evicted + m.lost == m.last_seq
    spool.close()


def test_a_disk_that_is_full_at_the_start_says_so_and_heals(disk: Path) -> None:
    filler = fill_disk(disk)
    with pytest.raises((SpoolFull, SpoolUnavailable), match="spool"):
        opened(disk / "spool.db")
    filler.unlink()
    spool = opened(disk / "spool.db")
    assert spool.commit(entry("R", 1)).seq == 1
    spool.close()


def test_telemetry_leaves_the_disk_the_room_it_must_keep_free(disk: Path) -> None:
    spool = opened(disk / "spool.db", replace(ROOMY, min_free_bytes=50 * MIB))
    for i in range(20_000):
        spool.add(entry("M", i, 1_300))
        if not i % 500:
            assert spool.flush() is None
    below = os.statvfs(disk)
    assert below.f_bavail * below.f_frsize > 40 * MIB  # the log comes on top
    assert spool.stats().evicted > 0
    spool.close()


def test_a_read_only_disk_is_a_sentence_and_a_writable_one_goes_on(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "16m") as folder:
        spool = opened(folder / "spool.db")
        spool.commit(entry("R", 1))
        epoch = spool.epoch
        spool.close()
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        with pytest.raises(SpoolUnavailable, match="Read-only file system; make its folder"):
            opened(folder / "spool.db")
        subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)
        spool = opened(folder / "spool.db")
        assert spool.epoch == epoch
        assert numbers_of(spool, "R") == [1]
        spool.close()


def test_a_folder_without_rights_is_a_sentence(ordinary_folder: Path) -> None:
    (ordinary_folder / "locked").mkdir(mode=0o500)
    with pytest.raises(SpoolUnavailable, match="Permission denied; make its folder writable"):
        opened(ordinary_folder / "locked" / "spool.db")


# --- permissions ---


@pytest.mark.parametrize("umask", [0o000, 0o077])
@pytest.mark.parametrize(("folder_mode", "mode"), [(0o2770, 0o660), (0o700, 0o600)])
def test_a_shared_folder_gives_its_group_the_files_and_any_umask_the_same(
    tmp_path: Path, umask: int, folder_mode: int, mode: int
) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    folder.chmod(folder_mode)
    before = os.umask(umask)
    try:
        spool = opened(folder / "spool.db")
        spool.commit(entry("R", 1))
        lock = spool.pump_lock()
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}
    finally:
        os.umask(before)
    assert lock is not None
    lock.release()
    spool.close()
    assert {"spool.db", "spool.db-wal", "spool.db-shm"} <= set(modes)
    assert set(modes.values()) == {mode}


# --- the start ---


def test_a_large_file_is_looked_at_beside_the_work(path: Path) -> None:
    spool = opened(path, SpoolLimits(share_of_disk=1.0, min_free_bytes=0))
    for i in range(700):
        spool.add(entry("M", i, 100_000))
    spool.flush()
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    spool.put("mode", "receipt")  # something in the log, as after a kill
    for suffix in ("", "-wal"):
        shutil.copy(beside(path, suffix), beside(path.parent / "killed.db", suffix))
    spool.close()
    killed = path.parent / "killed.db"
    assert killed.stat().st_size > spool_check.CHECKED_AT_ONCE_BYTES
    garbage_at(killed, 4096 * 9_000, 4096 * 20)
    spool = opened(killed, clock=Hands())
    check = spool._store._check
    assert check is not None
    check._thread.join()
    spool.commit(entry("R", 1))
    assert [event["what"] for event in events(spool)] == ["corrupt"]
    spool.close()
