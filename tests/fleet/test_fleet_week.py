"""A hundredth of a plant's week loses nothing, and the account would see it if it did."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from week_account import age, agrees, counted, streams
from week_boxes import Box, Life, boxes
from week_run import WEEK, Size, played

from edgeagent.core.window import Limits
from edgeagent.fleet.batch import Recent
from edgeagent.fleet.intake import Incoming, Verdict, judge
from edgeagent.fleet.places import layout
from edgeagent.fleet.store import Store, open_store
from edgeagent.publish.messages import envelope

HOUR_MS = 3_600_000
NOW_MS = 1_796_000_400_000


@pytest.mark.scenario
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundredth_of_a_week_with_all_that_can_end_is_stored_to_the_last_row(
    tmp_path: Path,
) -> None:
    account = played(tmp_path / "plant", WEEK, Size.scaled(0.01))
    assert account.committed == account.received + account.declared
    assert account.committed > 105_000
    assert account.declared > 0
    assert account.duplicates > 1_000
    assert account.lost == 0
    assert account.figures["spools begun anew"] == "3"


# ---------------------------------------------------------------- the account itself


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(f"sqlite://{tmp_path}/fleet.db", "collect")) as made:
        yield made


@pytest.fixture
def plant() -> list[Box]:
    """Two boxes, two hours each; one has thinned its telemetry, and begun another epoch."""
    made = list(boxes(2, 1, NOW_MS - 3 * HOUR_MS, Limits()))
    for minute in range(1, 121):
        for box in made:
            box.life.record(minute)
        if minute == 80:
            made[0].life.thin()
            made[0].begin_life(minute)
    return made


def _verdicts(box: Box, life: Life) -> Iterator[Verdict]:
    for stream in ("R", "M"):
        lane = life.lanes[stream]
        while (seq := lane.take()) is not None:
            row = box.row(life, stream, seq)
            topic = f"{box.prefix}/{row.entry.topic}"
            incoming = Incoming(topic, envelope(row, box.identity, "replay"), False, NOW_MS)
            yield judge(incoming, layout("edgeagent/v1").place(topic))


def _all_taken(store: Store, plant: list[Box]) -> None:
    verdicts = [one for box in plant for life in box.lives for one in _verdicts(box, life)]
    store.take(Recent().batch(verdicts, NOW_MS))


def test_a_whole_store_is_whole(store: Store, plant: list[Box]) -> None:
    _all_taken(store, plant)
    count = counted(store, plant)
    # 120 minutes and 12 results a box, and the row that declares what was thinned; of the older
    # half of 80 minutes four in five are gone.
    assert (count.recorded, count.declared) == (2 * 132 + 1, 32)
    assert (count.stored, count.lost, count.strange) == (265 - 32, 0, 0)
    agrees(store, plant)


def test_a_row_that_is_missing_is_lost(store: Store, plant: list[Box]) -> None:
    _all_taken(store, plant)
    node, epoch, stream = next(key for key, _, _ in streams(plant) if key[2] == "M")
    store.change(
        "DELETE FROM telemetry WHERE node = ? AND epoch = ? AND stream = ? AND seq = 50",
        (node, epoch, stream),
    )
    assert counted(store, plant).lost == 1
    with pytest.raises(AssertionError):
        agrees(store, plant)


@pytest.mark.parametrize("seq", [1, 9_999])
def test_a_row_that_nobody_recorded_makes_up_for_none(
    store: Store, plant: list[Box], seq: int
) -> None:
    """Number 1 was declared thinned, number 9,999 never given."""
    _all_taken(store, plant)
    store.change("DELETE FROM telemetry WHERE seq = 50 AND node LIKE '%0'")
    store.change(
        "INSERT INTO telemetry SELECT node, epoch, stream, ?, kind, ts_ms, box_ms, rx_ms, clk, v"
        " FROM telemetry WHERE seq = 45 AND node LIKE '%0'",
        (seq,),
    )
    count = counted(store, plant)
    assert (count.lost, count.strange) == (1, 1)


def test_hours_speak_of_every_minute_when_the_minutes_are_gone(
    store: Store, plant: list[Box]
) -> None:
    _all_taken(store, plant)
    aged = age(store, NOW_MS)
    assert aged.minutes_before == aged.minutes_summed == 240 - 32
    assert aged.minutes_after == 0
    assert aged.hours > 0


def test_an_hour_that_lacks_a_minute_is_seen(store: Store, plant: list[Box]) -> None:
    _all_taken(store, plant)
    while store.tidy(NOW_MS + HOUR_MS, 60 * 24 * HOUR_MS, 100):
        pass
    store.change("UPDATE telemetry_hour SET n = n - 1 WHERE hour_ms = (SELECT min(hour_ms) FROM"
                 " telemetry_hour)")  # fmt: skip
    with pytest.raises(AssertionError):
        age(store, NOW_MS)
