"""How is a batch written, and how far does it move the watermarks?

The same statements for both databases, inside a transaction that the store has begun. Order of the
steps: first the rows, in the order of their keys, then the watermarks. Whoever waits for a
watermark's lock sees afterwards what the other one has committed, so that two collectors that each
have half of a stream arrive at the same number; and because all lock in the same order, neither
waits for the other in a circle.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from edgeagent.core.watermark import Hole, advance
from edgeagent.fleet import store_hours
from edgeagent.fleet.hands import Hands
from edgeagent.fleet.standing import Standing, merged
from edgeagent.fleet.store import (
    Batch,
    BootRow,
    GapRow,
    MessageRow,
    NodeNews,
    PointRow,
    RunRow,
    StreamKey,
    Taken,
    TelemetryRow,
    UnclearRow,
    Watermark,
)

MOST_QUARANTINED = 10_000
_SIZES = (1, 8, 50, 200)
_KEYS_AT_ONCE = _SIZES[-1]
_LOOK_AHEAD = 2_000
"""So far above a watermark rows are looked for at a time; a box has at most 500 under way."""


_Key = TypeVar("_Key", bound=tuple[str, ...])


def write(hands: Hands, batch: Batch) -> Taken:
    """Write everything of a batch; return what became of it."""
    messages = sorted(batch.messages, key=_row_key)
    telemetry = sorted(batch.telemetry, key=_row_key)
    stored = hands.insert("message", MessageRow._fields, messages)
    stored += hands.insert("telemetry", TelemetryRow._fields, telemetry)
    points = sorted(batch.points, key=lambda row: (row.node, row.run, row.point))
    hands.many(_UPSERT_POINT, points)
    runs = sorted(batch.runs, key=lambda row: (row.node, row.run_id))
    hands.many(_UPSERT_RUN, runs)
    gaps = sorted(batch.gaps, key=_gap_key)
    hands.many(_INSERT_GAP, gaps)
    store_hours.mark(hands, batch.hours, batch.now_ms)
    _repair(hands, batch)
    _tell_nodes(hands, batch.nodes)
    _quarantine(hands, batch)
    marks = _move_watermarks(hands, batch)
    offered = len(batch.messages) + len(batch.telemetry)
    return Taken(stored, offered - stored, marks)


def claim(hands: Hands, node: str, site: str) -> str:
    """Return the site that owns a node: `site` itself if nobody did, or the node was retired."""
    hands.many(
        "INSERT INTO owner (node, site) VALUES (?, ?) ON CONFLICT (node) DO UPDATE"
        " SET site = excluded.site WHERE EXISTS (SELECT 1 FROM node"
        " WHERE node.node = owner.node AND node.retired_ms IS NOT NULL)",
        [(node, site)],
    )
    return str(hands.rows("SELECT site FROM owner WHERE node = ?", (node,))[0][0])


def watermarks(
    query: Callable[[str, Sequence[object]], list[tuple[Any, ...]]], since_ms: int
) -> list[Watermark]:
    """Return the watermarks touched at or after a moment."""
    found = query(
        "SELECT node, epoch, stream, wm, seen, born_ms, touched_ms FROM watermark"
        " WHERE touched_ms >= ?",
        (since_ms,),
    )
    return [Watermark(*row) for row in found]


# ---------------------------------------------------------------- rows


def _insert(table: str, row: type[Any], names: Mapping[str, str] | None = None) -> str:
    columns = [(names or {}).get(name, name) for name in row._fields]
    places = ", ".join("?" * len(columns))
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})"  # noqa: S608  # because the names are ours


def _replace(row: type[Any], key: Sequence[str], names: Mapping[str, str] | None = None) -> str:
    columns = [(names or {}).get(name, name) for name in row._fields]
    return ", ".join(f"{name} = excluded.{name}" for name in columns if name not in key)


_INSERT_GAP = f"{_insert('gap', GapRow)} ON CONFLICT DO NOTHING"
_CLASS = {"class_": "class"}
# A result that comes again in another life of the box, or under a later number, is the newer word.
_NEWER = " WHERE excluded.epoch <> {0}.epoch OR excluded.seq > {0}.seq"
_UPSERT_POINT = (
    f"{_insert('point', PointRow)} ON CONFLICT (node, run, point) DO UPDATE SET "
    f"{_replace(PointRow, ('node', 'run', 'point'))}{_NEWER.format('point')}"
)
_UPSERT_RUN = (
    f"{_insert('run', RunRow, _CLASS)} ON CONFLICT (node, run_id) DO UPDATE SET "
    f"{_replace(RunRow, ('node', 'run_id'), _CLASS)}{_NEWER.format('run')}"
)


def _row_key(row: MessageRow | TelemetryRow) -> tuple[str, str, str, int]:
    return row[:4]


def _gap_key(row: GapRow) -> tuple[str, str, str, int, int]:
    return (row.node, row.epoch, row.stream, row.first, row.last)


def _quarantine(hands: Hands, batch: Batch) -> None:
    if not batch.quarantined:
        return
    ordered = sorted(batch.quarantined, key=lambda row: (row.topic, row.reason))
    hands.many(
        "INSERT INTO quarantine (rx_ms, topic, reason, payload, size) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (topic, reason) DO UPDATE SET n = quarantine.n + 1,"
        " rx_ms = excluded.rx_ms, payload = excluded.payload, size = excluded.size",
        ordered,
    )
    hands.many(
        "DELETE FROM quarantine WHERE id <= (SELECT max(id) FROM quarantine) - ?",
        [(MOST_QUARANTINED,)],
    )


# ---------------------------------------------------------------- clocks


def _repair(hands: Hands, batch: Batch) -> None:
    """Put the time of rows right whose box did not know it, once the boot's true clock is known."""
    hands.many(
        f"{_insert('boot', BootRow)} ON CONFLICT (node, boot) DO UPDATE SET "
        f"{_replace(BootRow, ('node', 'boot'))} WHERE excluded.mono_ms > boot.mono_ms",
        sorted(batch.boots),
    )
    hands.many(f"{_insert('unclear', UnclearRow)} ON CONFLICT DO NOTHING", sorted(batch.unclear))
    boots = {row[:2] for row in batch.boots} | {row[:2] for row in batch.unclear}
    found = list(_repairable(hands, sorted(boots)))
    if not found:
        return
    for table in ("message", "telemetry"):
        hands.many(
            f"UPDATE {table} SET ts_ms = ?, clk = 'repaired'"  # noqa: S608  # because the names are ours
            " WHERE node = ? AND epoch = ? AND stream = ? AND seq = ?",
            [(ts, node, epoch, stream, seq) for node, _, epoch, stream, seq, ts in found],
        )
    for table in ("point", "run"):
        hands.many(
            f"UPDATE {table} SET ts_ms = ? WHERE node = ? AND epoch = ? AND seq = ?",  # noqa: S608  # because the names are ours
            [(ts, node, epoch, seq) for node, _, epoch, stream, seq, ts in found if stream == "R"],
        )
    store_hours.mark_rows(hands, [(row[0], *row[2:5]) for row in found], batch.now_ms)
    hands.many(
        "DELETE FROM unclear WHERE node = ? AND boot = ? AND epoch = ? AND stream = ? AND seq = ?",
        [row[:5] for row in found],
    )


def _repairable(
    hands: Hands, boots: Sequence[tuple[str, str]]
) -> Iterator[tuple[str, str, str, str, int, int]]:
    """Yield the rows of these boots whose time can be said by now, and their time."""
    for _, values, places in _portions(boots):
        yield from hands.rows(
            "SELECT u.node, u.boot, u.epoch, u.stream, u.seq, u.mono_ms + b.offset_ms"  # noqa: S608  # because only ?
            " FROM unclear u JOIN boot b ON b.node = u.node AND b.boot = u.boot"
            f" WHERE (u.node, u.boot) IN (VALUES {places})"
            " ORDER BY u.node, u.epoch, u.stream, u.seq",
            values,
        )


# ---------------------------------------------------------------- boxes

_HEARD = """
INSERT INTO node (node, site, first_rx_ms, last_rx_ms, clk, lag_ms) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (node) DO UPDATE SET site = excluded.site,
  last_rx_ms = CASE WHEN excluded.last_rx_ms > node.last_rx_ms THEN excluded.last_rx_ms
    ELSE node.last_rx_ms END,
  retired_ms = CASE WHEN excluded.last_rx_ms > node.retired_ms THEN NULL ELSE node.retired_ms END,
  clk = COALESCE(excluded.clk, node.clk),
  lag_ms = COALESCE(excluded.lag_ms, node.lag_ms)
"""


def _tell_nodes(hands: Hands, news: Sequence[NodeNews]) -> None:
    ordered = sorted(news, key=lambda one: one.node)
    hands.many(
        _HEARD,
        [(one.node, one.site, one.rx_ms, one.rx_ms, one.clk, one.lag_ms) for one in ordered],
    )
    for one in ordered:
        if one.status is not None:
            _tell_status(hands, one)
    hands.many(
        "UPDATE node SET meta = ?, class = COALESCE(?, class), version = COALESCE(?, version)"
        " WHERE node = ?",
        [
            (text(one.meta), _class(one.meta), _word(one.meta, "version"), one.node)
            for one in ordered
            if one.meta is not None
        ],
    )
    hands.many(
        "UPDATE node SET live = ? WHERE node = ?",
        [(text(one.live), one.node) for one in ordered if one.live],
    )


def _tell_status(hands: Hands, news: NodeNews) -> None:
    lock = " FOR UPDATE" if hands.dialect == "postgres" else ""
    state, session_n, status_ms, status = hands.rows(
        f"SELECT state, session_n, status_ms, status FROM node WHERE node = ?{lock}",  # noqa: S608  # because the lock is ours
        (news.node,),
    )[0]
    old = None
    if state is not None:
        document = status if isinstance(status, dict) else json.loads(status or "{}")
        old = Standing(state, session_n, status_ms or 0, document)
    new = merged(old, news.status or {}, news.rx_ms)
    if new is None:
        return
    hands.many(
        "UPDATE node SET state = ?, session_n = ?, status_ms = ?, status = ?,"
        " cert_not_after_ms = ?, backlog_rows = ?, health = ?, version = COALESCE(?, version)"
        " WHERE node = ?",
        [
            (
                new.state,
                new.session_n,
                new.heard_ms,
                text(new.document),
                _whole(new.document.get("cert_not_after")),
                new.backlog_rows,
                _word(new.document, "health"),
                _word(new.document, "version"),
                news.node,
            )
        ],
    )


def _class(meta: Mapping[str, Any] | None) -> str | None:
    host = (meta or {}).get("host")
    return _word(host, "class") if isinstance(host, dict) else None


def _word(document: Mapping[str, Any] | None, name: str) -> str | None:
    value = (document or {}).get(name)
    return value.replace("\x00", "\ufffd")[:200] if isinstance(value, str) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and abs(value) < 1 << 53 else None


def text(document: object) -> str:
    """Return JSON that both databases take: no NUL, no half of a surrogate pair."""
    made = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return made.replace("\\u0000", "\ufffd").encode("utf-8", "replace").decode()


# ---------------------------------------------------------------- watermarks


@dataclass
class _Lane:
    """What a batch brings to one stream."""

    seqs: set[int] = field(default_factory=set)
    holes: list[Hole] = field(default_factory=list)

    def highest(self) -> int:
        """The highest number that it speaks of."""
        return max(max(self.seqs, default=0), max((hole.last for hole in self.holes), default=0))


@dataclass
class _Mark:
    wm: int
    seen: int


def _move_watermarks(hands: Hands, batch: Batch) -> dict[StreamKey, int]:
    lanes = _lanes(batch)
    if not lanes:
        return {}
    keys = sorted(lanes)
    marks = _locked(hands, keys, batch.now_ms)
    behind = []
    for key in keys:
        mark, lane = marks[key], lanes[key]
        if mark.seen > mark.wm:
            behind.append(key)  # because something above the watermark came earlier
        else:
            mark.wm = advance(mark.wm, lane.seqs, lane.holes)
        mark.seen = max(mark.seen, lane.highest(), mark.wm)
    _catch_up(hands, behind, marks)
    hands.many(
        "UPDATE watermark SET wm = ?, seen = ?, touched_ms = ?"
        " WHERE node = ? AND epoch = ? AND stream = ?",
        [(marks[key].wm, marks[key].seen, batch.now_ms, *key) for key in keys],
    )
    return {key: marks[key].wm for key in keys}


def _lanes(batch: Batch) -> dict[StreamKey, _Lane]:
    lanes: dict[StreamKey, _Lane] = defaultdict(_Lane)
    for rows in (batch.messages, batch.telemetry):
        for row in rows:
            lanes[row[:3]].seqs.add(row[3])
    for gap in batch.gaps:
        lanes[gap.node, gap.epoch, gap.stream].holes.append(Hole(gap.first, gap.last, gap.every))
    return lanes


def _locked(hands: Hands, keys: Sequence[StreamKey], now_ms: int) -> dict[StreamKey, _Mark]:
    """Return the watermarks of these streams, locked; those that were not there are begun."""
    marks = dict(_read_locked(hands, keys))
    missing = [key for key in keys if key not in marks]
    if missing:
        hands.many(
            "INSERT INTO watermark (node, epoch, stream, wm, seen, born_ms, touched_ms)"
            " VALUES (?, ?, ?, 0, 0, ?, ?) ON CONFLICT DO NOTHING",
            [(*key, now_ms, now_ms) for key in missing],
        )
        marks.update(_read_locked(hands, missing))
    return marks


def _read_locked(hands: Hands, keys: Sequence[StreamKey]) -> Iterator[tuple[StreamKey, _Mark]]:
    lock = " FOR UPDATE" if hands.dialect == "postgres" else ""
    for _, values, places in _portions(keys):
        found = hands.rows(
            "SELECT node, epoch, stream, wm, seen FROM watermark"  # noqa: S608  # because only ?
            f" WHERE (node, epoch, stream) IN (VALUES {places})"
            f" ORDER BY node, epoch, stream{lock}",
            values,
        )
        for node, epoch, stream, wm, seen in found:
            yield (node, epoch, stream), _Mark(wm, seen)


def _catch_up(hands: Hands, keys: Sequence[StreamKey], marks: Mapping[StreamKey, _Mark]) -> None:
    """Advance streams of which rows above the watermark are stored already."""
    left = list(keys)
    while left:
        holes = _holes(hands, left)
        stored = _stored_ahead(hands, left, marks)
        moved = []
        for key in left:
            mark = marks[key]
            wm = advance(mark.wm, stored[key], holes[key])
            if wm > mark.wm:
                moved.append(key)
                mark.wm, mark.seen = wm, max(mark.seen, wm)
        # Once more, because the next rows may lie beyond what was looked at.
        left = [key for key in moved if marks[key].seen > marks[key].wm]


def _holes(hands: Hands, keys: Sequence[StreamKey]) -> dict[StreamKey, list[Hole]]:
    holes: dict[StreamKey, list[Hole]] = defaultdict(list)
    for _, values, places in _portions(keys):
        found = hands.rows(
            "SELECT w.node, w.epoch, w.stream, g.first, g.last, g.every FROM watermark w"  # noqa: S608  # because only ?
            " JOIN gap g ON g.node = w.node AND g.epoch = w.epoch AND g.stream = w.stream"
            f" AND g.last > w.wm WHERE (w.node, w.epoch, w.stream) IN (VALUES {places})",
            values,
        )
        for node, epoch, stream, first, last, every in found:
            holes[node, epoch, stream].append(Hole(first, last, every))
    return holes


def _stored_ahead(
    hands: Hands, keys: Sequence[StreamKey], marks: Mapping[StreamKey, _Mark]
) -> dict[StreamKey, set[int]]:
    stored: dict[StreamKey, set[int]] = defaultdict(set)
    for table in ("message", "telemetry"):
        mine = [key for key in keys if table == "message" or key[2] != "R"]
        for some, _, _ in _portions(mine):
            values: list[object] = []
            for key in some:
                values += [*key, marks[key].wm]
            places = ", ".join(["(?, ?, ?, CAST(? AS BIGINT))"] * len(some))
            found = hands.rows(
                f"WITH w (node, epoch, stream, wm) AS (VALUES {places})"  # noqa: S608  # because only ?
                f" SELECT w.node, w.epoch, w.stream, m.seq FROM w CROSS JOIN {table} m"
                " WHERE m.node = w.node AND m.epoch = w.epoch AND m.stream = w.stream"
                f" AND m.seq > w.wm AND m.seq <= w.wm + {_LOOK_AHEAD}",
                values,
            )
            for node, epoch, stream, seq in found:
                stored[node, epoch, stream].add(seq)
    return stored


def _portions(keys: Sequence[_Key]) -> Iterator[tuple[list[_Key], list[object], str]]:
    """Yield some keys at a time, with their values and as many places.

    The last key is repeated to one of a few lengths: so few statements can be kept prepared.
    """
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        some = list(keys[start : start + _KEYS_AT_ONCE])
        length = next(size for size in _SIZES if size >= len(some))
        some += [some[-1]] * (length - len(some))
        places = f"({', '.join('?' * len(some[0]))})"
        yield some, [word for key in some for word in key], ", ".join([places] * length)
