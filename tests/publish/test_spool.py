"""What a producer, a pump and a collector can rely on."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from spool_places import (
    START_MS,
    Hands,
    commit_until_full,
    entry,
    gaps_of,
    limits,
    numbers_of,
    opened,
)

from edgeagent.core.delivery import Entry, Stamp
from edgeagent.publish.spool import Spool, SpoolFull, SpoolUnavailable


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool.db"


def with_telemetry(path: Path, n: int, clock: Hands | None = None) -> Spool:
    spool = opened(path, clock=clock)
    for i in range(1, n + 1):
        spool.add(entry("M", i))
    assert spool.flush() is None
    return spool


def test_a_row_comes_back_as_it_was_committed(path: Path) -> None:
    stamp = Stamp(START_MS, "77ca4c85", 42, "unsync")
    value = {"tokens_per_s": 12.5, "name": "Zürich", "none": None, "levels": [{"concurrency": 1}]}
    result = Entry("R", "r/run/a", "edgeagent.run/1", stamp, value, {"engine": "llamacpp"})
    spool = opened(path)
    row = spool.commit(result)
    assert (row.seq, row.tries, row.state, row.epoch) == (1, 0, "new", spool.epoch)
    assert row.entry == result
    assert spool.due("R", 0, 10) == [row]
    spool.close()
    again = opened(path)
    assert again.due("R", 0, 10) == [row]
    again.close()


def test_numbers_are_contiguous_per_stream_and_never_given_again(path: Path) -> None:
    spool = with_telemetry(path, 3)
    assert spool.commit(entry("R", 1)).seq == 1
    for stream in ("R", "M"):
        spool.sent(stream, numbers_of(spool, stream))
    assert spool.receipt({"R": 1, "M": 3}) == 4
    assert spool.stats().rows == 0
    epoch = spool.epoch
    spool.close()
    spool = opened(path)
    assert spool.epoch == epoch
    spool.add(entry("M", 4))
    spool.flush()
    assert numbers_of(spool, "M") == [4]
    assert spool.commit(entry("R", 2)).seq == 2
    spool.close()


def test_several_results_are_taken_whole_or_not_at_all(path: Path) -> None:
    spool = opened(path, limits(0.5))
    with pytest.raises(SpoolFull, match="takes nothing more: results that nobody has confirmed"):
        spool.commit_all([entry("R", i, 60_000) for i in range(20)])
    assert numbers_of(spool, "R") == []
    assert [row.seq for row in spool.commit_all([entry("R", 1), entry("R", 2)])] == [1, 2]
    spool.close()


def test_a_value_that_is_kept_with_results_is_there_with_them_or_not_at_all(path: Path) -> None:
    spool = opened(path, limits(0.5))
    with pytest.raises(SpoolFull):
        spool.commit_all([entry("R", i, 60_000) for i in range(20)], {"run.a": "c0ffee"})
    assert spool.get("run.a") is None
    spool.commit_all([entry("R", 1)], {"run.a": "c0ffee"})
    spool.close()
    again = opened(path)
    assert again.get("run.a") == "c0ffee"
    again.close()


def test_telemetry_is_handed_out_only_after_a_flush(path: Path) -> None:
    spool = opened(path)
    spool.add(entry("M", 1))
    assert numbers_of(spool, "M") == []
    assert spool.stats().waiting == 1
    spool.flush()
    assert numbers_of(spool, "M") == [1]
    spool.close()


def test_closing_writes_what_waits(path: Path) -> None:
    spool = opened(path)
    spool.add(entry("M", 1))
    spool.close()
    spool = opened(path)
    assert numbers_of(spool, "M") == [1]
    spool.close()


def test_due_goes_on_where_the_pump_left_off(path: Path) -> None:
    spool = with_telemetry(path, 10)
    spool.sent("M", [1, 2, 5])
    assert [row.seq for row in spool.due("M", 0, 3)] == [3, 4, 6]
    assert [row.seq for row in spool.due("M", 6, 100)] == [7, 8, 9, 10]
    spool.close()


def test_rows_without_a_receipt_are_sent_again(path: Path) -> None:
    spool = with_telemetry(path, 5)
    spool.tried("M", [1, 2, 3])
    spool.sent("M", [1, 2, 3])
    assert spool.receipt({"M": 1}) == 1
    assert spool.rewind("M") == 2
    assert [(row.seq, row.tries) for row in spool.due("M", 0, 9)] == [
        (2, 1),
        (3, 1),
        (4, 0),
        (5, 0),
    ]
    spool.close()


def test_a_receipt_lets_go_of_nothing_that_was_never_sent(path: Path) -> None:
    spool = with_telemetry(path, 4)
    spool.sent("M", [1])
    spool.tried("M", [2])
    assert spool.receipt({"M": 1_000_000}) == 2
    assert numbers_of(spool, "M") == [3, 4]
    spool.sent("M", [3])  # the receipt came before the broker's answer
    assert numbers_of(spool, "M") == [4]
    assert spool.rewind("M") == 0
    spool.close()


def test_marks_about_another_epoch_change_nothing(path: Path) -> None:
    spool = with_telemetry(path, 2)
    assert spool.acknowledged("M", [1], "00000000") == 0
    spool.sent("M", [1], "00000000")
    assert spool.receipt({"M": 2}, "00000000") == 0
    assert spool.resync("M", 1, 2, "00000000") == 0
    assert numbers_of(spool, "M") == [1, 2]
    assert spool.acknowledged("M", [1], spool.epoch) == 1
    spool.close()


def test_a_parked_row_is_declared_missing_once_and_can_be_sent_after_all(path: Path) -> None:
    spool = with_telemetry(path, 3)
    spool.park("M", 2, "too_large")
    assert numbers_of(spool, "M") == [1, 3]
    assert spool.stats().parked == 1
    gap = {"stream": "M", "from": 2, "to": 2, "n": 1, "reason": "too_large"}
    assert gaps_of(spool) == [gap]
    spool.sent("M", [1, 3])
    spool.receipt({"M": 3})  # the gap let the watermark pass
    assert spool.unpark("M") == 1
    spool.tried("M", [2])
    spool.receipt({"M": 3})
    assert numbers_of(spool, "M") == [2]  # the watermark says nothing of it
    spool.park("M", 2, "too_large")
    assert gaps_of(spool) == [gap]
    spool.unpark("M")
    spool.sent("M", [2])
    assert spool.stats().streams["M"].rows == 0
    spool.close()


def test_confirmed_results_can_be_sent_again_and_telemetry_is_declared_gone(path: Path) -> None:
    spool = with_telemetry(path, 3)
    for i in range(3):
        spool.commit(entry("R", i))
    spool.sent("R", [1, 2, 3])
    spool.sent("M", [1, 2, 3])
    spool.receipt({"R": 2, "M": 2})
    assert spool.stats().streams["R"].kept == 2
    assert spool.resync("R", 1, 2) == 2
    assert spool.resync("M", 1, 99) == 1
    assert numbers_of(spool, "R") == [1, 2, 4]
    assert gaps_of(spool) == [{"stream": "M", "from": 1, "to": 2, "n": 2, "reason": "not_kept"}]
    spool.receipt({"R": 2})
    assert numbers_of(spool, "R") == [1, 2, 4]
    spool.sent("R", [1, 2])
    assert spool.stats().streams["R"].kept == 2
    spool.close()


def test_what_a_collector_has_lost_is_sent_again_as_far_as_it_is_there(path: Path) -> None:
    spool = with_telemetry(path, 4)
    for i in range(4):
        spool.commit(entry("R", i))
    spool.sent("R", [1, 2, 3, 4])
    spool.sent("M", [1, 2, 3])
    spool.receipt({"R": 4, "M": 3})
    assert spool.confirmed() == {"R": 4, "M": 3}
    assert spool.step_back("R", 2) == 2
    assert spool.step_back("M", 1) == 0
    assert spool.confirmed() == {"R": 2, "M": 1}
    assert numbers_of(spool, "R") == [3, 4, 5]
    assert numbers_of(spool, "M") == [4]
    assert gaps_of(spool) == [{"stream": "M", "from": 2, "to": 3, "n": 2, "reason": "not_kept"}]
    spool.sent("R", [3, 4, 5])
    assert spool.stats().streams["R"].rows == 3, "they wait for a receipt, as any row"
    spool.receipt({"R": 5, "M": 3})
    assert spool.stats().streams["R"].rows == 0
    assert spool.step_back("R", 9) == 0
    assert spool.confirmed() == {"R": 5, "M": 3}
    spool.close()


def test_a_step_back_of_another_life_changes_nothing(path: Path) -> None:
    spool = with_telemetry(path, 2)
    spool.sent("M", [1, 2])
    spool.receipt({"M": 2})
    assert spool.step_back("M", 0, "00000000") == 0
    assert (spool.confirmed()["M"], gaps_of(spool)) == (2, [])
    spool.close()


def test_a_row_that_is_parked_while_it_is_sent_again_is_declared_too(path: Path) -> None:
    spool = with_telemetry(path, 3)
    spool.sent("M", [1, 2, 3])
    assert spool.resync("M", 1, 3) == 3
    spool.park("M", 2, "too_large")
    assert [gap["from"] for gap in gaps_of(spool)] == [2]
    spool.close()


def test_many_holes_in_a_resync_are_one_record(path: Path) -> None:
    spool = with_telemetry(path, 100)
    spool.acknowledged("M", range(1, 101, 2))
    assert spool.resync("M", 1, 100) == 0
    assert gaps_of(spool) == [{"stream": "M", "from": 1, "to": 99, "n": 50, "reason": "not_kept"}]
    spool.tried("M", [2])
    spool.receipt({"M": 99})
    assert numbers_of(spool, "M")[0] == 2
    spool.close()


def test_confirmed_results_are_kept_for_a_month(path: Path) -> None:
    clock = Hands()
    spool = opened(path, clock=clock)
    spool.commit(entry("R", 1))
    spool.sent("R", [1])
    spool.receipt({"R": 1})
    clock.forward(29 * 86400)
    spool.commit(entry("R", 2))
    spool.sent("R", [2])
    spool.receipt({"R": 2})
    assert spool.stats().streams["R"].kept == 2
    clock.forward(2 * 86400)
    spool.receipt({"R": 2})
    assert spool.resync("R", 1, 2) == 1
    assert numbers_of(spool, "R") == [2, 3]
    assert gaps_of(spool, "R") == [
        {"stream": "R", "from": 1, "to": 1, "n": 1, "reason": "not_kept"}
    ]
    spool.close()


def test_confirmed_results_are_kept_up_to_a_size(path: Path) -> None:
    small = replace(limits(8), kept_bytes=25_000)
    spool = opened(path, small)
    for i in range(5):
        spool.commit(entry("R", i, 10_000))
    spool.sent("R", [1, 2, 3, 4, 5])
    spool.receipt({"R": 5})
    assert spool.resync("R", 1, 5) == 2
    assert numbers_of(spool, "R")[:2] == [4, 5]
    spool.close()


def test_a_collector_that_comes_late_gets_the_kept_results_and_hears_of_the_rest(
    path: Path,
) -> None:
    spool = with_telemetry(path, 4)
    spool.commit(entry("R", 1))
    spool.commit(entry("R", 2))
    assert spool.acknowledged("M", [1, 2, 3]) == 3
    assert spool.acknowledged("R", [1]) == 1
    spool.receipt({"R": 0, "M": 0})
    assert [row.entry.value.get("i") for row in spool.due("R", 0, 9)][:2] == [1, 2]
    assert gaps_of(spool) == [{"stream": "M", "from": 1, "to": 3, "n": 3, "reason": "not_kept"}]
    spool.receipt({"R": 0, "M": 0})
    assert len(gaps_of(spool)) == 1
    spool.close()


def test_a_late_collector_hears_of_gaps_whose_records_went_by_the_brokers_word(path: Path) -> None:
    spool = opened(path, limits(0.5))

    def offer(first: int) -> None:
        for i in range(first, first + 300):
            spool.add(entry("M", i, 1_200))
        assert spool.flush() is None

    offer(1)
    gaps = numbers_of(spool, "R")
    assert spool.acknowledged("R", gaps) == len(gaps) > 0
    offer(301)
    assert spool.stats().streams["R"].kept == 0  # they went first
    spool.receipt({"R": 0, "M": 0})
    declared = {
        number
        for gap in gaps_of(spool)
        for number in range(int(str(gap["from"])), int(str(gap["to"])) + 1)
        if number % int(str(gap.get("every", number + 1)))
    }
    assert declared | set(numbers_of(spool, "M")) == set(range(1, 601))
    spool.close()


def test_telemetry_makes_room_for_results_and_every_lost_row_is_declared(path: Path) -> None:
    spool = opened(path, limits(1))
    for i in range(1, 1001):
        spool.add(entry("M", i, 1_200))
        if not i % 100:
            assert spool.flush() is None
    stats = spool.stats()
    assert stats.used_bytes <= 1024 * 1024 // 2
    there = numbers_of(spool, "M")
    assert stats.evicted == 1000 - len(there)
    assert sum(int(str(gap["n"])) for gap in gaps_of(spool)) == stats.evicted
    assert {gap["reason"] for gap in gaps_of(spool)} == {"thinned", "evicted"}
    thinned_to = max(int(str(g["to"])) for g in gaps_of(spool) if g["reason"] == "thinned")
    coarse = [n for n in there if n <= thinned_to]
    assert coarse
    assert all(n % 5 == 0 for n in coarse)
    assert there[len(coarse) :] == list(range(thinned_to + 1, 1001))
    taken = commit_until_full(spool, 20_000)
    assert taken > 30
    assert spool.stats().streams["M"].bytes < 20_000
    assert "nobody has confirmed" in str(spool.refusal())
    assert spool.stats().used_bytes <= 1024 * 1024
    results = [row for row in spool.due("R", 0, 10_000) if row.entry.topic != "e/gap"]
    assert [row.entry.value["i"] for row in results] == list(range(taken))
    spool.close()


def test_a_spool_full_of_results_takes_no_telemetry_and_declares_it_when_it_can(path: Path) -> None:
    spool = opened(path, replace(limits(0.5), waiting_rows=10))
    for size in (20_000, 0):
        commit_until_full(spool, size)
    for i in range(1, 31):
        spool.add(entry("M", i, 4_000))
    trouble = spool.flush()
    assert isinstance(trouble, SpoolFull)
    assert spool.stats().waiting == 10
    rows = numbers_of(spool, "R")
    spool.sent("R", rows)
    spool.receipt({"R": rows[-1]})
    assert spool.refusal() is None
    assert spool.flush() is None
    assert gaps_of(spool) == [
        {"stream": "M", "from": 1, "to": 20, "n": 20, "reason": "not_written"}
    ]
    assert [row.entry.value["i"] for row in spool.due("M", 0, 99)] == list(range(21, 31))
    assert spool.stats().streams["M"].lost == 20
    spool.close()


def test_empty_pages_go_back_to_the_disk(path: Path) -> None:
    spool = opened(path, limits(64))
    for i in range(400):
        spool.add(entry("M", i, 50_000))
    spool.flush()
    rows = numbers_of(spool, "M")
    spool.sent("M", rows)
    spool.receipt({"M": rows[-1]})
    for _ in range(20):
        spool.flush()
    spool.close()
    assert path.stat().st_size < 10_000_000


def test_what_else_must_not_be_forgotten_is_kept(path: Path) -> None:
    spool = opened(path)
    assert spool.get("mode") is None
    spool.put("mode", "receipt")
    spool.put("mode", "puback")
    assert [spool.count_up("session_n") for _ in range(3)] == [1, 2, 3]
    spool.close()
    spool = opened(path)
    assert spool.get("mode") == "puback"
    assert spool.count_up("session_n") == 4
    spool.close()


def test_a_command_is_known_from_its_first_sight_on(path: Path) -> None:
    spool = opened(path)
    assert spool.seen("a") is None
    assert spool.remember("a", "sweep", "accepted", {"profile": "night"}) == "first"
    assert spool.remember("a", "ping", "rejected", {}) == "again"
    spool.state("a", "running", {"progress": 0.5})
    spool.close()
    spool = opened(path)
    (running,) = spool.unfinished()
    assert (running.id, running.op, running.state) == ("a", "sweep", "running")
    assert running.detail == {"progress": 0.5}
    spool.state("a", "interrupted", {})
    assert spool.unfinished() == []
    known = spool.seen("a")
    assert known is not None
    assert known.state == "interrupted"
    spool.close()


def test_commands_are_forgotten_after_a_month_unless_they_are_unfinished(path: Path) -> None:
    clock = Hands()
    spool = opened(path, clock=clock)
    spool.remember("done", "sweep", "succeeded", {})
    spool.remember("open", "sweep", "running", {})
    clock.forward(31 * 86400)
    spool.remember("new", "ping", "succeeded", {})
    assert spool.seen("done") is None
    assert spool.seen("open") is not None
    spool.close()


def test_above_ten_thousand_ids_the_refused_ones_are_forgotten_first(path: Path) -> None:
    import sqlite3
    from contextlib import closing

    spool = opened(path)
    spool.remember("ran", "sweep", "succeeded", {})
    with closing(sqlite3.connect(path)) as db, db:
        db.executemany(
            "INSERT INTO cmd_seen VALUES (?, 'sweep', ?)",
            [(f"no-{i}", START_MS + i) for i in range(9_999)],
        )
        db.executemany(
            "INSERT INTO cmd_state VALUES (?, 'rejected', '{}', 0)",
            [(f"no-{i}",) for i in range(9_999)],
        )
    spool.remember("new", "sweep", "accepted", {})
    assert spool.seen("no-0") is None
    assert spool.seen("no-1") is not None
    assert spool.seen("ran") is not None
    spool.close()


def test_only_one_process_sends_at_a_time(path: Path) -> None:
    one, two = opened(path), opened(path)
    lock = one.pump_lock()
    assert lock is not None
    assert two.pump_lock() is None
    lock.release()
    other = two.pump_lock()
    assert other is not None
    other.release()
    one.close()
    two.close()


def test_threads_share_one_spool(path: Path) -> None:
    spool = opened(path)

    def produce(first: int) -> None:
        for i in range(first, first + 25):
            spool.commit(entry("R", i))
            spool.add(entry("M", i))
        spool.flush()

    threads = [threading.Thread(target=produce, args=(n * 100,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert numbers_of(spool, "R") == list(range(1, 101))
    assert numbers_of(spool, "M") == list(range(1, 101))
    spool.close()


def test_a_closed_spool_says_so(path: Path) -> None:
    spool = opened(path)
    spool.close()
    with pytest.raises(SpoolUnavailable, match="is closed"):
        spool.commit(entry("R", 1))
    spool.add(entry("M", 1))
    assert isinstance(spool.flush(), SpoolUnavailable)
    spool.close()
