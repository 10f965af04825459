import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from store_places import message, minute

from edgeagent.fleet.places import layout
from edgeagent.fleet.receipts import Receipts, Telling
from edgeagent.fleet.store import Batch, NodeNews, Store, open_store


@dataclass
class _Desk:
    """Receipts over a real store, with a clock that is moved."""

    store: Store
    now_s: float = 100.0
    told: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        telling = Telling(self._tell, lambda: self.now_s, lambda: 42)
        self.receipts = Receipts(self.store, layout("edgeagent/v1"), 10_000, telling)

    def _tell(self, topic: str, payload: bytes) -> None:
        self.told.append((topic, json.loads(payload)))

    def keep(self, *seqs: int, node: str = "edge-1", now_ms: int = 1) -> None:
        news = [NodeNews(node, "plant7", now_ms)]
        rows = [message(seq, node) for seq in seqs]
        self.store.take(Batch(messages=rows, nodes=news, now_ms=now_ms))

    def tick(self, later_s: float) -> list[dict[str, Any]]:
        self.now_s += later_s
        self.told.clear()
        self.receipts.tick()
        return [receipt for _, receipt in self.told]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[_Desk]:
    with closing(open_store(f"sqlite://{tmp_path}/fleet.db", "collect")) as store:
        yield _Desk(store)


def test_a_box_is_told_up_to_where_both_streams_are_stored(desk: _Desk) -> None:
    desk.keep(1, 2, 4)
    desk.store.take(Batch(telemetry=[minute(1)], now_ms=2))
    desk.tick(0.0)
    assert desk.told == [
        (
            "edgeagent/v1/plant7/edge-1/rx",
            {"schema": "edgeagent.rx/1", "epoch": "e1", "wm": {"R": 2, "M": 1}, "u": 200, "ts": 42},
        )
    ]


def test_a_little_progress_is_told_once_a_second(desk: _Desk) -> None:
    desk.keep(1)
    assert len(desk.tick(0.0)) == 1
    desk.keep(2, now_ms=2)
    assert desk.tick(0.5) == []
    assert [one["wm"]["R"] for one in desk.tick(0.6)] == [2]
    assert desk.tick(60.0) == []


def test_a_quarter_of_what_may_be_under_way_is_told_at_once(desk: _Desk) -> None:
    desk.keep(1)
    desk.tick(0.0)
    desk.keep(*range(2, 50), now_ms=2)
    assert desk.tick(0.2) == []
    desk.keep(50, 51, now_ms=3)
    assert [one["wm"]["R"] for one in desk.tick(0.2)] == [51]


def test_a_box_that_sends_what_is_stored_is_told_again(desk: _Desk) -> None:
    desk.keep(1)
    desk.tick(0.0)
    desk.keep(1, now_ms=2)
    assert [one["wm"]["R"] for one in desk.tick(1.1)] == [1]


def test_after_a_lost_connection_every_box_is_told_again(desk: _Desk) -> None:
    desk.keep(1)
    desk.keep(1, node="edge-2")
    assert len(desk.tick(0.0)) == 2
    desk.receipts.anew()
    assert len(desk.tick(0.2)) == 2


def test_boxes_learn_that_they_have_become_many(desk: _Desk) -> None:
    for n in range(50):
        desk.keep(1, node=f"box-{n}")
    assert {one["u"] for one in desk.tick(0.0)} == {100}
    for n in range(50, 100):
        desk.keep(1, node=f"box-{n}", now_ms=2)
    assert {one["u"] for one in desk.tick(11.0)} == {50}


def test_only_the_life_of_the_spool_that_spoke_last_is_told(desk: _Desk) -> None:
    desk.keep(1, 2, 3)
    desk.store.take(Batch(messages=[message(1, epoch="e2")], now_ms=5))
    assert [(one["epoch"], one["wm"]["R"]) for one in desk.tick(0.0)] == [("e2", 1)]


def test_a_clock_that_goes_back_delays_receipts_only_for_a_moment(desk: _Desk) -> None:
    desk.keep(1, now_ms=9_000_000)
    desk.tick(0.0)
    desk.keep(2, now_ms=5_000)
    assert [one["wm"]["R"] for one in desk.tick(11.0)] == [2]
    desk.keep(3, now_ms=5_001)
    assert [one["wm"]["R"] for one in desk.tick(1.1)] == [3]


def test_an_earlier_life_of_the_spool_that_speaks_again_is_told_again(desk: _Desk) -> None:
    desk.keep(1, 2, 3)
    desk.store.take(Batch(messages=[message(1, epoch="e2")], now_ms=5))
    desk.tick(0.0)
    desk.keep(4, now_ms=6)
    assert [(one["epoch"], one["wm"]["R"]) for one in desk.tick(1.1)] == [("e1", 4)]


def test_who_does_not_lead_tells_nobody(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/fleet.db"
    with closing(open_store(url, "collect")) as leading, closing(open_store(url, "write")) as other:
        _Desk(leading).keep(1)
        assert _Desk(other).tick(0.0) == []


def test_a_retired_box_is_not_told(desk: _Desk) -> None:
    desk.keep(1)
    desk.store.change("UPDATE node SET retired_ms = 5")
    assert desk.tick(0.0) == []
