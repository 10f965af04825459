"""What is too old goes, also of boxes that say nothing any more, and not a day before."""

from contextlib import closing
from pathlib import Path

from store_places import minute

from edgeagent.fleet import store_hours
from edgeagent.fleet.store import Batch, HourMark, Store, TelemetryRow, UnclearRow, open_store
from edgeagent.fleet.store_hours import HOUR_MS, HOURS_KEPT_MS

DAY_MS = 86_400_000
KEEP_MS = 60 * DAY_MS
MINUTE_MS = 60_000


def _minutes(seqs: range, node: str, **changes: object) -> list[TelemetryRow]:
    return [
        minute(
            seq, node, ts_ms=seq * MINUTE_MS, rx_ms=seq * MINUTE_MS, v='{"a_mean": 1}', **changes
        )
        for seq in seqs
    ]


def _take(store: Store, rows: list[TelemetryRow], unclear: tuple[UnclearRow, ...] = ()) -> None:
    hours = {HourMark(row.node, row.kind, row.ts_ms - row.ts_ms % HOUR_MS) for row in rows}
    store.take(Batch(telemetry=rows, hours=sorted(hours), unclear=unclear, now_ms=1))


def _now_ms(store: Store) -> int:
    """When it took a batch last, by its own clock."""
    return int(store.query("SELECT max(touched_ms) FROM watermark")[0][0])


def _tidied(store: Store, at_ms: int, times: int = 1) -> None:
    """As a collector does it from minute to minute."""
    for n in range(times):
        while store.tidy(at_ms + n * MINUTE_MS, KEEP_MS, 20):
            pass


def _left(store: Store) -> list[tuple[str, int]]:
    found = store.query("SELECT node, count(*) FROM telemetry GROUP BY node ORDER BY node")
    return [(str(node), int(n)) for node, n in found]


def test_minutes_of_boxes_that_are_silent_go_as_those_of_others(store: Store) -> None:
    boxes = [f"edge-{n:02}" for n in range(30)]
    for name in boxes:
        _take(store, [*_minutes(range(1, 4), name), *_minutes(range(4, 6), name, kind="gpu_1m")])
    later_ms = _now_ms(store) + 2 * KEEP_MS
    _tidied(store, later_ms)
    assert 0 < len(_left(store)) < len(boxes)
    # Some boxes at a time; nothing comes in between.
    _tidied(store, later_ms + MINUTE_MS, 3)
    assert _left(store) == []
    assert store.query("SELECT sum(n) FROM telemetry_hour") == [(5 * len(boxes),)]


def test_minutes_go_a_sixtieth_late_and_then_all_that_are_old(store: Store) -> None:
    _take(store, _minutes(range(1, 2), "edge-2"))
    now_ms = max(_now_ms(store), 200 * DAY_MS)
    first = (now_ms - KEEP_MS) // MINUTE_MS
    old = _minutes(range(first, first + 3 * 1440, 60), "edge-1")
    _take(store, [row._replace(seq=n) for n, row in enumerate(old, 1)])
    store.change("DELETE FROM stale_hour")  # because all of them are summed up by then
    _tidied(store, now_ms + DAY_MS - MINUTE_MS)
    assert ("edge-1", 72) in _left(store)
    _tidied(store, now_ms + DAY_MS + 2 * MINUTE_MS)
    assert ("edge-1", 72 - 25) in _left(store)


def test_what_is_above_a_watermark_goes_once_nothing_has_moved_it_for_as_long(
    store: Store,
) -> None:
    _take(store, _minutes(range(5, 8), "edge-1"))
    now_ms = _now_ms(store)
    _tidied(store, now_ms + KEEP_MS - DAY_MS)
    assert _left(store) == [("edge-1", 3)]
    _tidied(store, now_ms + 2 * KEEP_MS)
    assert _left(store) == []
    # The box comes back, and sends what it was never told to forget.
    _take(store, _minutes(range(1, 8), "edge-1"))
    assert store.query("SELECT wm FROM watermark") == [(7,)]


def test_a_row_that_came_lately_stays_however_old_it_is(store: Store) -> None:
    now_ms = 200 * DAY_MS
    rows = _minutes(range(1, 4), "edge-1")
    _take(store, [rows[0], rows[1], rows[2]._replace(rx_ms=1 << 50)])
    _tidied(store, _now_ms(store) + now_ms)
    assert _left(store) == [("edge-1", 1)]


def test_rows_whose_time_nobody_knows_are_forgotten_with_them(store: Store) -> None:
    rows = _minutes(range(1, 4), "edge-1")
    kept = UnclearRow("edge-1", "b1", "e1", "R", 1, 5)
    unclear = tuple(UnclearRow("edge-1", "b1", "e1", "M", row.seq, row.seq) for row in rows)
    _take(store, rows, (*unclear, kept))
    _tidied(store, _now_ms(store) + 2 * KEEP_MS)
    assert store.query("SELECT stream, seq FROM unclear") == [("R", 1)]


def test_hours_go_three_years_after_the_next_and_of_a_silent_box_they_stay(store: Store) -> None:
    _take(store, [*_minutes(range(1, 120), "edge-1"), *_minutes(range(1, 120), "edge-2")])
    now_ms = max(_now_ms(store), 2 * HOURS_KEPT_MS) + DAY_MS
    _tidied(store, now_ms)
    assert _hours(store) == [("edge-1", 2), ("edge-2", 2)]
    change = "UPDATE telemetry_hour SET hour_ms = ? WHERE hour_ms > 0 AND node = ?"
    # A clock that is far ahead says nothing about what is old.
    store.change(change, (now_ms + HOURS_KEPT_MS, "edge-1"))
    _tidied(store, now_ms)
    assert _hours(store) == [("edge-1", 2), ("edge-2", 2)]
    store.change(change, (now_ms, "edge-1"))
    _tidied(store, now_ms)
    assert _hours(store) == [("edge-1", 1), ("edge-2", 2)]


def _hours(store: Store) -> list[tuple[str, int]]:
    found = store.query("SELECT node, count(*) FROM telemetry_hour GROUP BY node ORDER BY node")
    return [(str(node), int(n)) for node, n in found]


def test_whether_anything_is_too_old_is_seen_by_index(tmp_path: Path) -> None:
    """So that the look costs the same, however many rows there are."""
    with closing(open_store(f"sqlite://{tmp_path}/fleet.db", "collect")) as store:
        found = store.query(f"EXPLAIN QUERY PLAN {store_hours.OLD_MINUTES}", (5,))
    plan = "\n".join(str(row) for row in found)
    assert "SEARCH t USING COVERING INDEX telemetry_time (node=? AND kind=?)" in plan
