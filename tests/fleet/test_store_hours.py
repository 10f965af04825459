"""Hours outlive their minutes, however late they are summed up and whatever comes afterwards."""

from store_places import minute

from edgeagent.fleet.store import Batch, HourMark, Store, TelemetryRow
from edgeagent.fleet.store_hours import HOUR_MS

DAY_MS = 86_400_000
KEEP_MS = 60 * DAY_MS
OLD_MS = 10 * HOUR_MS
LATE_MS = OLD_MS + 2 * KEEP_MS


def _minutes(first: int, last: int, rx_ms: int) -> list[TelemetryRow]:
    return [
        minute(seq, ts_ms=OLD_MS + seq * 60_000, rx_ms=rx_ms, v='{"a_mean": 1}')
        for seq in range(first, last + 1)
    ]


def _take(store: Store, rows: list[TelemetryRow], now_ms: int) -> None:
    hours = [HourMark("edge-1", "mem_1m", row.ts_ms - row.ts_ms % HOUR_MS) for row in rows]
    store.take(Batch(telemetry=rows, hours=sorted(set(hours)), now_ms=now_ms))


def _summed(store: Store) -> list[tuple[int, int]]:
    found = store.query("SELECT hour_ms, n FROM telemetry_hour ORDER BY hour_ms")
    return [(int(hour), int(n)) for hour, n in found]


def _due_ms(store: Store) -> int:
    """A moment that is late by the store's own clock."""
    return int(store.query("SELECT max(marked_ms) FROM stale_hour")[0][0]) + LATE_MS


def test_a_minute_does_not_go_before_its_hour_is_summed_up(store: Store) -> None:
    """As when the collector was away for longer than minutes are kept, or its clock leapt."""
    _take(store, _minutes(1, 119, OLD_MS), OLD_MS)
    due_ms = _due_ms(store)
    while store.tidy(due_ms, KEEP_MS, 1):
        pass
    assert _summed(store) == [(OLD_MS, 59), (OLD_MS + HOUR_MS, 60)]
    assert store.query("SELECT count(*) FROM telemetry") == [(0,)]


def test_a_minute_that_comes_when_the_others_are_gone_does_not_stand_for_its_hour(
    store: Store,
) -> None:
    _take(store, _minutes(1, 40, OLD_MS), OLD_MS)
    due_ms = _due_ms(store)
    assert store.tidy(due_ms, KEEP_MS, 9) == 1
    _take(store, _minutes(41, 41, due_ms), due_ms)
    assert store.tidy(_due_ms(store), 10**15, 9) == 1
    assert _summed(store) == [(OLD_MS, 40)]
