"""Is everything that the boxes recorded in the store, once; and still so when it has aged?

Two counts, each exact. First of rows: a stream's numbers run from 1 without holes, (node, epoch,
stream, seq) is the key of the tables, so a stream is complete when as many rows are stored as were
recorded and not declared, none of them above the last number or within a declared gap. Then the
minutes are summed up to hours and, as if a hundred days had passed, dropped; from then on the
`n` of the hours has to say what the rows said.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from week_boxes import KEPT_ONE_OF, MINUTE_MS, Box, Life

from edgeagent.core.delivery import Stream
from edgeagent.fleet.store import Store
from edgeagent.fleet.store_hours import HOUR_MS

KEEP_MS = 60 * 86_400_000
"""The least that `--keep-days` takes."""
_LATER_MS = 100 * 86_400_000
_HOURS_AT_ONCE = 100
_MOST_MINUTES = 10_000
"""So many looks it may take until everything old is gone."""
_SAMPLES = 2_000
Key = tuple[str, str, Stream]


@dataclass(frozen=True)
class Count:
    """Of all boxes together. `strange` are rows that no box recorded."""

    recorded: int
    stored: int
    declared: int
    lost: int
    strange: int


def streams(boxes: Sequence[Box]) -> Iterator[tuple[Key, Box, Life]]:
    for box in boxes:
        for life in box.lives:
            yield (box.identity.node, life.epoch, "R"), box, life
            yield (box.identity.node, life.epoch, "M"), box, life


def counted(store: Store, boxes: Sequence[Box]) -> Count:
    """Count every stream, and hold watermarks, gaps, results and times against the boxes."""
    found = _stored(store)
    recorded = stored = declared = lost = 0
    for key, _, life in streams(boxes):
        lane = life.lanes[key[2]]
        gone = sum(gap.rows for gap in lane.thinned)
        rows, most = found.pop(key, (0, 0))
        rows -= _within_gaps(store, key, life)
        rows -= _above(store, key, lane.last) if most > lane.last else 0
        recorded, stored, declared = recorded + lane.last, stored + rows, declared + gone
        lost += lane.last - gone - rows
    total = sum(n for _, (n, _) in _stored(store).items())
    return Count(recorded, stored, declared, lost, total - stored)


def _stored(store: Store) -> dict[tuple[Any, ...], tuple[int, int]]:
    """Rows and highest number of each stream."""
    found: dict[tuple[Any, ...], tuple[int, int]] = {}
    for table in ("message", "telemetry"):
        for node, epoch, stream, n, most in store.query(
            f"SELECT node, epoch, stream, count(*), max(seq) FROM {table}"  # noqa: S608  # because the names are ours
            " GROUP BY node, epoch, stream"
        ):
            before = found.get((node, epoch, stream), (0, 0))
            found[node, epoch, stream] = (before[0] + n, max(before[1], most))
    return found


def _above(store: Store, key: Key, last: int) -> int:
    sql = "SELECT count(*) FROM {} WHERE node = ? AND epoch = ? AND stream = ? AND seq > ?"
    return sum(
        int(store.query(sql.format(table), (*key, last))[0][0])
        for table in ("message", "telemetry")
    )


def _within_gaps(store: Store, key: Key, life: Life) -> int:
    """Rows whose number was declared gone."""
    if key[2] == "R":
        return 0
    return sum(
        int(
            store.query(
                "SELECT count(*) FROM telemetry WHERE node = ? AND epoch = ? AND stream = ?"
                " AND seq >= ? AND seq <= ? AND seq % ? <> 0",
                (*key, gap.first, gap.last, KEPT_ONE_OF),
            )[0][0]
        )
        for gap in life.lanes["M"].thinned
    )


def agrees(store: Store, boxes: Sequence[Box]) -> None:
    """Hold everything else that the store says against what the boxes know."""
    wanted = {key: life.lanes[key[2]].last for key, _, life in streams(boxes)}
    marks = {(one.node, one.epoch, one.stream): one.wm for one in store.watermarks()}
    assert {key: last for key, last in wanted.items() if last} == marks
    gaps = {tuple(row) for row in store.query(
        "SELECT node, epoch, stream, first, last, every, reason FROM gap"
    )}  # fmt: skip
    assert gaps == {
        (*key, gap.first, gap.last, KEPT_ONE_OF, "thinned")
        for key, _, life in streams(boxes)
        if key[2] == "M"
        for gap in life.lanes["M"].thinned
    }
    assert store.query("SELECT topic, reason, n FROM quarantine") == []
    results = [
        sum(_results(life, which) for key, _, life in streams(boxes) if key[2] == "R")
        for which in ("level", "run")
    ]
    assert [store.query(f"SELECT count(*) FROM {name}")[0][0] for name in ("point", "run")] == (  # noqa: S608  # because the names are ours
        results
    )
    _same_times(store, boxes)
    _same_words(store, boxes)


def _results(life: Life, which: str) -> int:
    seqs = (seq for seq in range(1, life.lanes["R"].last + 1) if seq not in life.gaps)
    return sum((seq % 10 == 0) == (which == "run") for seq in seqs)


def _same_times(store: Store, boxes: Sequence[Box]) -> None:
    """The sum of all times of a box's minutes is the sum of what it recorded."""
    wanted: dict[str, int] = defaultdict(int)
    for box in boxes:
        for life in box.lives:
            lane = life.lanes["M"]
            first, last = box.ts_ms(life, "M", 1), box.ts_ms(life, "M", lane.last)
            wanted[box.identity.node] += (first + last) * lane.last // 2 if lane.last else 0
            wanted[box.identity.node] -= sum(
                box.ts_ms(life, "M", seq)
                for gap in lane.thinned
                for seq in range(gap.first, gap.last + 1)
                if gap.has(seq)
            )
    # As hours and rests, because SQLite's integers end at 2**63.
    found = store.query(
        f"SELECT node, sum(ts_ms / {HOUR_MS}), sum(ts_ms % {HOUR_MS}) FROM telemetry GROUP BY node"  # noqa: S608  # because a number of ours
    )
    assert {node: hours * HOUR_MS + rest for node, hours, rest in found} == dict(wanted)


def _same_words(store: Store, boxes: Sequence[Box]) -> None:
    """Rows here and there say what their box said."""
    every = [(key, box, life) for key, box, life in streams(boxes) if key[2] == "M"]
    for number in range(_SAMPLES):
        key, box, life = every[number % len(every)]
        lane = life.lanes["M"]
        seq = 1 + number * 7_919 % lane.last
        if any(gap.has(seq) for gap in lane.thinned):
            continue
        said = box.row(life, "M", seq).entry.value
        found = store.query(
            "SELECT v FROM telemetry WHERE node = ? AND epoch = ? AND stream = ? AND seq = ?",
            (*key, seq),
        )
        assert json.loads(found[0][0]) == said, (key, seq)


# ---------------------------------------------------------------- ageing


@dataclass(frozen=True)
class Aged:
    """What is left when minutes have become hours."""

    minutes_before: int
    minutes_summed: int
    minutes_after: int
    hours: int


def age(store: Store, now_ms: int) -> Aged:
    """Sum everything up; then, a hundred days later, drop what is old. The collector's own code."""
    _sum_all_up(store, now_ms + HOUR_MS)
    before = int(store.query("SELECT count(*) FROM telemetry")[0][0])
    _matching(store)
    summed = _summed(store)
    for minute in range(_MOST_MINUTES):
        if not store.query("SELECT 1 FROM telemetry LIMIT 1"):
            break
        store.tidy(now_ms + _LATER_MS + minute * MINUTE_MS, KEEP_MS, _HOURS_AT_ONCE)
    assert _summed(store) == summed, "hours stay when their minutes go"
    after = int(store.query("SELECT count(*) FROM telemetry")[0][0])
    return Aged(before, summed, after, int(store.query(_HOURS)[0][0]))


_HOURS = "SELECT count(*) FROM (SELECT DISTINCT node, kind, hour_ms FROM telemetry_hour)"


def _sum_all_up(store: Store, now_ms: int) -> None:
    while store.tidy(now_ms, KEEP_MS, _HOURS_AT_ONCE):
        pass
    assert store.query("SELECT count(*) FROM stale_hour") == [(0,)]


def _matching(store: Store) -> None:
    """Every hour of every box has as many minutes as are stored of it."""
    of_rows = store.query(
        f"SELECT node, kind, ts_ms - ts_ms % {HOUR_MS}, count(*) FROM telemetry"  # noqa: S608  # because a number of ours
        " GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"
    )
    of_hours = store.query(
        "SELECT node, kind, hour_ms, max(n) FROM telemetry_hour GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"
    )
    assert of_rows == of_hours


def _summed(store: Store) -> int:
    """Minutes that the hours speak of; every minute of a kind has the value named here."""
    sql = "SELECT coalesce(sum(n), 0) FROM telemetry_hour WHERE name IN (?, ?)"
    return int(store.query(sql, ("ram_used_bytes", "gpu_power_w"))[0][0])
