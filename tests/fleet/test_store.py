"""One suite for both stores: what holds for SQLite holds for PostgreSQL."""

import json
import random
import threading
from contextlib import closing
from typing import Any

import pytest
from store_places import Fresh, message, minute

from edgeagent.errors import BusyError, UsageError
from edgeagent.fleet import migrations
from edgeagent.fleet.store import (
    Batch,
    BootRow,
    GapRow,
    HourMark,
    NodeNews,
    PointRow,
    Quarantined,
    RowRefusedError,
    RunRow,
    Store,
    UnclearRow,
    open_store,
    shown,
)
from edgeagent.fleet.store_hours import HOUR_MS, RIPE_MS

R, M = ("edge-1", "e1", "R"), ("edge-1", "e1", "M")


def _run(seq: int, status: str, epoch: str = "e1") -> RunRow:
    return RunRow(
        "edge-1", "A", epoch, seq, status, "whole", None, None, "dgpu", 5, 6, None, None, "{}"
    )


def test_a_row_that_comes_twice_is_stored_once(store: Store) -> None:
    first = store.take(Batch(messages=[message(1), message(2)], now_ms=1))
    again = store.take(Batch(messages=[message(2), message(3)], telemetry=[minute(1)], now_ms=2))
    assert (first.stored, first.known) == (2, 0)
    assert (again.stored, again.known) == (2, 1)
    assert store.query("SELECT count(*) FROM message") == [(3,)]


def test_the_first_word_of_a_row_stays(store: Store) -> None:
    store.take(Batch(messages=[message(1, payload="first")], now_ms=1))
    store.take(Batch(messages=[message(1, payload="second")], now_ms=2))
    assert store.query("SELECT payload FROM message") == [("first",)]


def test_watermarks_wait_for_what_is_missing(store: Store) -> None:
    assert store.take(Batch(messages=[message(1), message(3)], now_ms=1)).watermarks == {R: 1}
    assert store.take(Batch(messages=[message(4)], now_ms=1)).watermarks == {R: 1}
    assert store.take(Batch(messages=[message(2)], now_ms=1)).watermarks == {R: 4}


def test_watermarks_pass_over_declared_gaps_also_of_the_other_stream(store: Store) -> None:
    gaps = [
        GapRow("edge-1", "e1", "M", 1, 9, 5, "evicted", 1),
        GapRow("edge-1", "e1", "R", 2, 3, None, "parked", 1),
    ]
    taken = store.take(Batch(messages=[message(1), message(4)], gaps=gaps, now_ms=1))
    assert taken.watermarks == {R: 4, M: 4}
    assert store.take(Batch(telemetry=[minute(5)], now_ms=1)).watermarks == {M: 9}


def test_each_life_of_a_spool_has_its_own_watermark(store: Store) -> None:
    rows = [message(1), message(2), message(1, epoch="e2")]
    assert store.take(Batch(messages=rows, now_ms=1)).watermarks == {
        R: 2,
        ("edge-1", "e2", "R"): 1,
    }


def test_numbers_of_many_thousand_rows_are_found_again_after_a_restart(databases: Fresh) -> None:
    url = databases()
    with closing(open_store(url, "collect")) as first:
        first.take(Batch(messages=[message(n) for n in range(2, 7_001)], now_ms=1))
    with closing(open_store(url, "collect")) as second:
        assert second.take(Batch(messages=[message(1)], now_ms=2)).watermarks == {R: 7_000}


@pytest.mark.parametrize("seed", range(3))
def test_in_any_order_and_with_repeats_every_row_is_there_once(store: Store, seed: int) -> None:
    order = random.Random(seed)
    numbers = [n for n in range(1, 400) if n % 7] * 2
    order.shuffle(numbers)
    gaps = [GapRow("edge-1", "e1", "R", n, n, None, "evicted", 1) for n in range(7, 400, 7)]
    order.shuffle(gaps)
    while numbers:
        some, numbers = numbers[:30], numbers[30:]
        declared, gaps = gaps[:3], gaps[3:]
        store.take(Batch(messages=[message(n) for n in some], gaps=declared, now_ms=1))
    store.take(Batch(gaps=gaps, now_ms=1))
    assert [(mark.wm, mark.seen) for mark in store.watermarks()] == [(399, 399)]
    assert store.query("SELECT count(*) FROM message") == [(342,)]


def test_a_batch_is_written_wholly_or_not_at_all(store: Store) -> None:
    bad: Any = None
    with pytest.raises((RowRefusedError, ValueError)):
        store.take(Batch(messages=[message(1)], runs=[_run(5, "complete")._replace(ts_ms=bad)]))
    assert store.query("SELECT count(*) FROM message") == [(0,)]
    assert store.watermarks() == []


def test_whoever_comes_first_owns_a_name(store: Store) -> None:
    assert store.claim("edge-1", "plant7") == "plant7"
    assert store.claim("edge-1", "plant8") == "plant7"
    assert store.owners() == {"edge-1": "plant7"}


def test_a_node_that_was_retired_may_come_back_at_another_site(store: Store) -> None:
    store.claim("edge-1", "plant7")
    store.take(Batch(nodes=[NodeNews("edge-1", "plant7", 10)], now_ms=1))
    store.change("UPDATE node SET retired_ms = 20 WHERE node = 'edge-1'")
    store.take(Batch(nodes=[NodeNews("edge-1", "plant7", 15)], now_ms=1))
    assert store.query("SELECT retired_ms FROM node") == [(20,)]
    assert store.claim("edge-1", "plant8") == "plant8"
    store.take(Batch(nodes=[NodeNews("edge-1", "plant8", 30)], now_ms=1))
    assert store.query("SELECT site, retired_ms FROM node") == [("plant8", None)]
    assert store.claim("edge-1", "plant9") == "plant8"


def test_the_time_of_rows_is_put_right_once_the_box_knows_it(store: Store) -> None:
    store.take(
        Batch(
            messages=[message(1, ts_ms=77, clk="unsync", mono_ms=500)],
            telemetry=[minute(1, ts_ms=78, clk="unsync")],
            unclear=[
                UnclearRow("edge-1", "b1", "e1", "R", 1, 500),
                UnclearRow("edge-1", "b1", "e1", "M", 1, 900),
            ],
            now_ms=1,
        )
    )
    store.take(Batch(boots=[BootRow("edge-1", "b2", 5_000_000, 10)], now_ms=2))
    assert store.query("SELECT ts_ms, clk FROM message") == [(77, "unsync")]
    store.take(Batch(boots=[BootRow("edge-1", "b1", 1_000_000, 1_500)], now_ms=3))
    assert store.query("SELECT ts_ms, clk FROM message") == [(1_000_500, "repaired")]
    assert store.query("SELECT ts_ms, box_ms, clk FROM telemetry") == [
        (1_000_900, 1_001, "repaired")
    ]


def test_a_row_that_comes_after_the_clock_was_known_is_put_right_at_once(store: Store) -> None:
    store.take(Batch(boots=[BootRow("edge-1", "b1", 1_000_000, 1_500)], now_ms=1))
    unclear = UnclearRow("edge-1", "b1", "e1", "R", 1, 500)
    row = message(1, ts_ms=77, clk="unsync", mono_ms=500)
    store.take(Batch(messages=[row], unclear=[unclear], now_ms=2))
    assert store.query("SELECT ts_ms, clk FROM message") == [(1_000_500, "repaired")]
    assert store.query("SELECT count(*) FROM unclear") == [(0,)]


def test_a_box_is_what_it_last_said(store: Store) -> None:
    meta = {"version": "0.2", "host": {"class": "uma-nvgpu"}}
    status = {"state": "online", "session_n": 2, "spool": {"rows": 9}, "cert_not_after": 99}
    store.take(
        Batch(
            nodes=[
                NodeNews("edge-1", "plant7", 10, meta=meta),
                NodeNews("edge-1", "plant7", 20, status=status),
                NodeNews("edge-1", "plant7", 30, status={"state": "offline", "session_n": 1}),
                NodeNews("edge-1", "plant7", 15, live={"a": 1}, clk="sync", lag_ms=3),
            ],
            now_ms=1,
        )
    )
    assert store.query(
        "SELECT site, first_rx_ms, last_rx_ms, state, session_n, backlog_rows, cert_not_after_ms,"
        " version, class, clk, lag_ms FROM node"
    ) == [("plant7", 10, 30, "online", 2, 9, 99, "0.2", "uma-nvgpu", "sync", 3)]


def test_a_run_that_is_published_again_replaces_the_earlier_one(store: Store) -> None:
    store.take(Batch(runs=[_run(5, "partial")], now_ms=1))
    store.take(Batch(runs=[_run(4, "failed")], now_ms=1))
    assert store.query("SELECT status FROM run") == [("partial",)]
    store.take(Batch(runs=[_run(1, "complete", "e2")], now_ms=1))
    assert store.query("SELECT status FROM run") == [("complete",)]


def test_a_level_is_kept_once(store: Store) -> None:
    values: dict[str, Any] = dict.fromkeys(PointRow._fields)
    row = PointRow(
        **{**values, "node": "edge-1", "epoch": "e1", "seq": 1, "run": "A", "point": "0",
           "concurrency": 8, "ts_ms": 1, "v": "{}"}
    )  # fmt: skip
    store.take(Batch(points=[row, row._replace(epoch="e2")], now_ms=1))
    assert store.query("SELECT epoch, concurrency FROM point") == [("e2", 8)]


def test_the_quarantine_counts_and_does_not_grow(store: Store) -> None:
    note = Quarantined(5, "edgeagent/v1/p/n/e/oom", "forged", "{}", 2)
    store.take(Batch(quarantined=[note] * 50, now_ms=1))
    store.take(Batch(quarantined=[note._replace(rx_ms=9, payload="last")], now_ms=1))
    assert store.query("SELECT rx_ms, reason, payload, n FROM quarantine") == [
        (9, "forged", "last", 51)
    ]


def test_text_comes_back_as_it_was(store: Store) -> None:
    odd = 'tab\t, line\n, return\r, back\\slash, \\N, quote" and Grüße 日本 🙂'
    store.take(Batch(messages=[message(1, payload=odd), message(2, payload=None)], now_ms=1))
    assert store.query("SELECT payload FROM message ORDER BY seq") == [(odd,), (None,)]


def test_json_comes_back_as_text(store: Store) -> None:
    store.take(Batch(telemetry=[minute(1)], now_ms=1))
    assert store.query("SELECT v FROM telemetry") == [('{"samples": 12}',)]


def test_one_of_all_sends_receipts(databases: Fresh) -> None:
    url = databases()
    with closing(open_store(url, "collect")) as first:
        assert first.leads()
        with closing(open_store(url, "write")) as other:
            assert not other.leads()
        if first.dialect == "sqlite":
            with pytest.raises(BusyError, match="another collector"):
                open_store(url, "collect")
    with closing(open_store(url, "collect")) as next_one:
        assert next_one.leads()


def test_only_reading_needs_a_store_and_changes_nothing(databases: Fresh) -> None:
    url = databases()
    with pytest.raises(UsageError, match="edgeagent fleet collect"):
        open_store(url, "read")
    open_store(url, "write").close()
    with closing(open_store(url, "read")) as reading:
        assert reading.query("SELECT count(*) FROM node") == [(0,)]
        with pytest.raises(Exception, match=r"read.?only"):
            reading.change("DELETE FROM node")


def test_a_newer_store_is_left_alone(databases: Fresh) -> None:
    url = databases()
    with closing(open_store(url, "write")) as made:
        if made.dialect == "postgres":
            made.change("UPDATE meta SET value = '99'")
        else:
            made.query("PRAGMA user_version = 99")
    for purpose in ("read", "write"):
        with pytest.raises(UsageError, match="newer edgeagent"):
            open_store(url, purpose)


def test_a_store_of_the_first_layout_is_brought_up_to_date(databases: Fresh) -> None:
    url = databases()
    document = '{"comparison": [{"metric": "a"}], "findings": [1, 2]}'
    with closing(open_store(url, "write")) as made:
        made.take(Batch(runs=[_run(1, "complete")._replace(document=document)]))
        for column in ("comparison", "findings"):
            made.change(f"ALTER TABLE run DROP COLUMN {column}")
        if made.dialect == "postgres":
            made.change("UPDATE meta SET value = '1'")
        else:
            made.query("PRAGMA user_version = 1")
    with pytest.raises(UsageError, match="brings it up to date"):
        open_store(url, "read")
    with closing(open_store(url, "write")) as made:
        (found,) = made.query("SELECT comparison, findings FROM run")
        assert [json.loads(part) for part in found] == [[{"metric": "a"}], [1, 2]]


def test_two_writers_of_one_stream_arrive_at_one_watermark(databases: Fresh) -> None:
    url = databases()
    with closing(open_store(url, "write")) as left, closing(open_store(url, "write")) as right:

        def write(store: Store, first: int) -> None:
            for start in range(first, 1_001, 20):
                rows = [message(n, f"edge-{k}") for n in range(start, start + 10) for k in range(5)]
                store.take(Batch(messages=rows, now_ms=1))

        threads = [
            threading.Thread(target=write, args=(left, 1)),
            threading.Thread(target=write, args=(right, 11)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {mark.wm for mark in left.watermarks()} == {1_000}
        assert left.query("SELECT count(*) FROM message") == [(5_000,)]


def test_a_step_of_the_layout_is_the_same_for_both_databases() -> None:
    for step in range(1, migrations.VERSION + 1):
        sqlite = migrations.statements(step, "sqlite")
        assert len(sqlite) == len(migrations.statements(step, "postgres"))
        assert not [one for one in sqlite if "{" in one]


def test_with_timescale_the_time_stands_in_the_key() -> None:
    there = "\n".join(migrations.statements(1, "postgres", "there"))
    assert "PRIMARY KEY (node, epoch, stream, seq, box_ms)" in there


def test_a_password_is_not_shown() -> None:
    assert shown("postgresql://me:secret@db/fleet") == "postgresql://me@db/fleet"
    with pytest.raises(UsageError, match="names no store"):
        open_store("mysql://db/fleet")


def _minutes(values: list[tuple[int, float]]) -> list[Any]:
    return [
        minute(
            seq,
            ts_ms=seq * 60_000,
            v=f'{{"samples": 12, "a_b_min": {one - 1}, "a_b_mean": {one}, "a_b_max": {one + 1}}}',
        )
        for seq, one in values
    ]


def test_minutes_become_hours_once_no_more_come(store: Store) -> None:
    rows = _minutes([(1, 2.0), (59, 4.0), (60, 100.0)])
    hours = [HourMark("edge-1", "mem_1m", 0), HourMark("edge-1", "mem_1m", HOUR_MS)]
    now_ms = _marked_ms(store, Batch(telemetry=rows, hours=hours, now_ms=1_000))
    assert store.tidy(now_ms + RIPE_MS - 10_000, 10**15, 9) == 0
    assert store.tidy(now_ms + RIPE_MS + 1, 10**15, 9) == 2
    assert store.query(
        "SELECT hour_ms, name, n, min, mean, max FROM telemetry_hour ORDER BY 1"
    ) == [
        (0, "a_b", 2, 1.0, 3.0, 5.0),
        (HOUR_MS, "a_b", 1, 99.0, 100.0, 101.0),
    ]
    # A backlog brings another minute of the first hour: it is summed up again.
    late = Batch(telemetry=_minutes([(30, 9.0)]), hours=hours[:1], now_ms=2_000)
    now_ms = _marked_ms(store, late)
    assert store.tidy(now_ms + RIPE_MS + 1, 10**15, 9) == 1
    assert store.query("SELECT n, mean FROM telemetry_hour WHERE hour_ms = 0") == [(3, 5.0)]


def _marked_ms(store: Store, batch: Batch) -> int:
    """Take a batch; return when its hours were marked, by the clock of the store."""
    store.take(batch)
    return int(store.query("SELECT max(marked_ms) FROM stale_hour")[0][0])
