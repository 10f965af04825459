import json
from contextlib import closing
from pathlib import Path
from typing import Any

from fleet_boxes import payload

from edgeagent.fleet.batch import Recent
from edgeagent.fleet.intake import Incoming, Verdict, judge
from edgeagent.fleet.places import layout
from edgeagent.fleet.store import open_store
from edgeagent.fleet.store_hours import HOUR_MS

_LAYOUT = layout("edgeagent/v1")
_NOW_MS = 1_796_000_000_000


def _came(number: int, below: str = "e/oom", rx_ms: int = _NOW_MS, **changes: Any) -> Verdict:
    topic = f"edgeagent/v1/plant7/edge-1/{below}"
    return judge(
        Incoming(topic, payload("edge-1", number, **changes), False, rx_ms), _LAYOUT.place(topic)
    )


def _live(rx_ms: int, schema: str, **values: float) -> Verdict:
    return _came(
        1, f"m/{schema}", rx_ms, schema=f"edgeagent.{schema}/1", stream="L", v=dict(values)
    )


def test_rows_of_a_boot_without_a_clock_get_the_time_of_a_later_row(tmp_path: Path) -> None:
    recent = Recent()
    url = f"sqlite://{tmp_path}/fleet.db"
    with closing(open_store(url, "collect")) as store:
        early = [_came(n, clk="unsync", ts=1_000 * n, mono_ms=60_000 * n) for n in (1, 2)]
        store.take(recent.batch(early, _NOW_MS))
        right = _came(3, clk="sync", ts=_NOW_MS, mono_ms=180_000)
        store.take(recent.batch([right], _NOW_MS))
        assert store.query("SELECT seq, ts_ms, clk FROM message ORDER BY seq") == [
            (1, _NOW_MS - 120_000, "repaired"),
            (2, _NOW_MS - 60_000, "repaired"),
            (3, _NOW_MS, "sync"),
        ]
        said = store.query("SELECT payload FROM message WHERE seq = 1")[0][0]
        assert json.loads(said)["ts"] == 1_000


def test_a_clock_that_is_known_is_written_once(tmp_path: Path) -> None:
    recent = Recent()
    first = recent.batch([_came(n, mono_ms=n, ts=_NOW_MS + n) for n in (1, 2, 3)], _NOW_MS)
    assert [boot.mono_ms for boot in first.boots] == [3]
    recent.written(first)
    assert recent.batch([_came(4, mono_ms=4, ts=_NOW_MS + 4)], _NOW_MS).boots == []
    stepped = recent.batch([_came(5, mono_ms=5, ts=_NOW_MS + 9_000)], _NOW_MS)
    assert [boot.offset_ms for boot in stepped.boots] == [_NOW_MS + 8_995]


def test_a_box_is_heard_of_every_five_seconds_whatever_it_sends() -> None:
    recent = Recent()
    first = recent.batch([_came(1), _came(2)], _NOW_MS)
    assert len(first.nodes) == 1
    recent.written(first)
    assert recent.batch([_came(3, rx_ms=_NOW_MS + 4_999)], _NOW_MS).nodes == []
    assert len(recent.batch([_came(3, rx_ms=_NOW_MS + 5_000)], _NOW_MS).nodes) == 1


def test_live_values_of_all_kinds_are_kept_together() -> None:
    recent = Recent()
    recent.written(recent.batch([_live(_NOW_MS, "mem", ram_used_bytes=1)], _NOW_MS))
    assert recent.batch([_live(_NOW_MS + 100, "gpu", gpu_power_w=2)], _NOW_MS).nodes == []
    later = recent.batch([_live(_NOW_MS + 6_000, "mem", ram_used_bytes=3)], _NOW_MS)
    assert [one.live for one in later.nodes] == [{"ram_used_bytes": 3, "gpu_power_w": 2}]


def test_an_hour_is_marked_once_in_ten_minutes() -> None:
    def minute(number: int) -> Verdict:
        return _came(
            number, "m/mem_1m", schema="edgeagent.mem_1m/1", stream="M", v={"a_mean": 1},
            ts=number * 60_000,
        )  # fmt: skip

    recent = Recent()
    first = recent.batch([minute(1), minute(2), minute(60)], _NOW_MS)
    assert sorted(hour.hour_ms for hour in first.hours) == [0, HOUR_MS]
    recent.written(first)
    assert recent.batch([minute(3)], _NOW_MS + 599_999).hours == []
    assert len(recent.batch([minute(3)], _NOW_MS + 600_000).hours) == 1
