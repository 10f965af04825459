"""What becomes of telemetry as it ages: minutes become hours, and old minutes go?

An hour of a box is summed up once nothing came for it for a while, and again when a backlog brings
more of it later. A mark says that an hour is due. Marks are made before or with the rows, at most
every `MARK_EVERY_MS` for the same hour, and are only looked at when they are much older than that:
so no row of an hour can still be on its way into the table when the hour is summed up.

A minute goes only when its hour is summed up, however late that is. What comes for an hour whose
minutes have gone changes its sums only if it is more than they speak of.

Whether anything of a box is too old is asked of every box, also of one that is silent: by index, a
look for each box and kind, whenever no hour is due. Minutes go a sixtieth of their time late, so
that a box has many to drop at once, and not one every minute.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from edgeagent.fleet.hands import Hands
from edgeagent.fleet.store import TELEMETRY_KINDS, HourMark

HOUR_MS = 3_600_000
MARK_EVERY_MS = 600_000
RIPE_MS = 3 * MARK_EVERY_MS
HOURS_KEPT_MS = 1_100 * 86_400_000
_SLACK = 60
_PAIRS_AT_ONCE = 20
_DROPPED_AT_ONCE = 20_000

_LATER = """
ON CONFLICT (node, kind, hour_ms) DO UPDATE SET marked_ms = excluded.marked_ms
  WHERE excluded.marked_ms > stale_hour.marked_ms
"""
_INTO = "INSERT INTO stale_hour (node, kind, hour_ms, marked_ms) "
_MARK = _INTO + "VALUES (?, ?, ?, ?)" + _LATER
_MARK_ROW = f"""{_INTO}
SELECT node, kind, ts_ms - ts_ms % {HOUR_MS}, CAST(? AS BIGINT) FROM telemetry
  WHERE node = ? AND epoch = ? AND stream = ? AND seq = ? {_LATER}
"""  # noqa: S608  # because the words are ours
_KINDS = ", ".join(f"('{kind}')" for kind in TELEMETRY_KINDS)
_TOO_OLD = f"""
WITH kinds (kind) AS (VALUES {_KINDS}), boxes (node) AS (SELECT DISTINCT node FROM watermark)
SELECT b.node, k.kind FROM boxes b CROSS JOIN kinds k WHERE
  (SELECT t.{{time}} FROM {{table}} t WHERE t.node = b.node AND t.kind = k.kind
    ORDER BY t.{{time}} LIMIT 1) < {{old}}
ORDER BY b.node, k.kind
"""  # noqa: S608  # because the words are ours
# The oldest of each, not EXISTS: for that PostgreSQL would read the whole table.
# What lies above a watermark is still needed to move it, unless nothing has moved it for as long:
# of that the box was told nothing, and would send it again.
_DROP = f"""
DELETE FROM telemetry WHERE node = ? AND kind = ? AND ts_ms < ? AND rx_ms < ?
  AND EXISTS (SELECT 1 FROM watermark w WHERE w.node = telemetry.node
    AND w.epoch = telemetry.epoch AND w.stream = telemetry.stream
    AND (w.wm >= telemetry.seq OR w.touched_ms < ?))
  AND NOT EXISTS (SELECT 1 FROM stale_hour s WHERE s.node = telemetry.node
    AND s.kind = telemetry.kind AND s.hour_ms = telemetry.ts_ms - telemetry.ts_ms % {HOUR_MS})
"""  # noqa: S608  # because a number of ours
_DROP_UNCLEAR = """
DELETE FROM unclear WHERE node = ? AND stream = 'M' AND NOT EXISTS (SELECT 1 FROM telemetry t
  WHERE t.node = unclear.node AND t.epoch = unclear.epoch AND t.stream = unclear.stream
    AND t.seq = unclear.seq)
"""
_NEWEST_HOUR = """
(SELECT max(m.hour_ms) FROM telemetry_hour m
  WHERE m.node = {node} AND m.kind = {kind} AND m.hour_ms <= CAST(? AS BIGINT)) - CAST(? AS BIGINT)
"""
OLD_MINUTES = _TOO_OLD.format(table="telemetry", time="ts_ms", old="?")
_OLD_HOURS = _TOO_OLD.format(
    table="telemetry_hour", time="hour_ms", old=_NEWEST_HOUR.format(node="b.node", kind="k.kind")
)
_DROP_HOURS = f"""
DELETE FROM telemetry_hour WHERE node = ? AND kind = ? AND hour_ms <
  {_NEWEST_HOUR.format(node="telemetry_hour.node", kind="telemetry_hour.kind")}
"""  # noqa: S608  # because the words are ours
_EACH = {
    "sqlite": ("json_each(t.v) e", "e.value"),
    "postgres": ("jsonb_each_text(t.v) e", "CAST(e.value AS DOUBLE PRECISION)"),
}


def mark(hands: Hands, hours: Sequence[HourMark], now_ms: int) -> None:
    """Say that these hours have to be summed up."""
    hands.many(_MARK, [(*hour, now_ms) for hour in sorted(hours)])


def mark_rows(hands: Hands, keys: Sequence[tuple[str, str, str, int]], now_ms: int) -> None:
    """Say it of the hours in which these rows of telemetry now stand."""
    hands.many(_MARK_ROW, [(now_ms, *key) for key in keys])


def tidy(hands: Hands, now_ms: int, keep_ms: int, most: int) -> int:
    """Sum up to `most` hours up, or drop some of what is too old; return how many hours."""
    due = hands.rows(
        "SELECT node, kind, hour_ms, marked_ms FROM stale_hour WHERE marked_ms < ?"
        " ORDER BY marked_ms LIMIT ?",
        (now_ms - RIPE_MS, most),
    )
    for node, kind, hour_ms, _ in due:
        _sum_up(hands, HourMark(node, kind, hour_ms))
    hands.many(
        "DELETE FROM stale_hour WHERE node = ? AND kind = ? AND hour_ms = ? AND marked_ms = ?", due
    )
    if len(due) < most:
        _drop_minutes(hands, now_ms, keep_ms)
        _drop_hours(hands, now_ms)
    return len(due)


def _drop_minutes(hands: Hands, now_ms: int, keep_ms: int) -> None:
    old_ms = now_ms - keep_ms
    dropped = 0
    for pair in _some(hands.rows(OLD_MINUTES, (old_ms - keep_ms // _SLACK,)), now_ms):
        gone = hands.many(_DROP, [(*pair, old_ms, old_ms, old_ms)])
        if gone:
            hands.many(_DROP_UNCLEAR, [pair[:1]])
        dropped += gone
        if dropped >= _DROPPED_AT_ONCE:
            return


def _drop_hours(hands: Hands, now_ms: int) -> None:
    """Counted from a box's newest hour: whoever is silent keeps what there was."""
    kept_ms = HOURS_KEPT_MS + HOURS_KEPT_MS // _SLACK
    pairs = _some(hands.rows(_OLD_HOURS, (now_ms, kept_ms)), now_ms)
    hands.many(_DROP_HOURS, [(*pair, now_ms, HOURS_KEPT_MS) for pair in pairs])


def _some(pairs: Sequence[tuple[Any, ...]], now_ms: int) -> Sequence[tuple[Any, ...]]:
    """Return some boxes and kinds, others from minute to minute.

    Because of some it may have to stay: what came lately, or what belongs to an hour that is not
    summed up.
    """
    turn = now_ms // 60_000 * _PAIRS_AT_ONCE % max(1, len(pairs))
    return [*pairs[turn:], *pairs[:turn]][:_PAIRS_AT_ONCE]


def _sum_up(hands: Hands, hour: HourMark) -> None:
    """Replace an hour by what its minutes say: least, mean and most of each value."""
    each, number = _EACH[hands.dialect]
    found = hands.rows(
        f"SELECT e.key, count(*), min({number}), avg({number}), max({number})"  # noqa: S608  # because the words are ours
        f" FROM telemetry t, {each}"
        " WHERE t.node = ? AND t.kind = ? AND t.ts_ms >= ? AND t.ts_ms < ? GROUP BY e.key",
        (hour.node, hour.kind, hour.hour_ms, hour.hour_ms + HOUR_MS),
    )
    parts: dict[str, dict[str, tuple[int, float, float, float]]] = defaultdict(dict)
    for key, n, low, mean, high in found:
        name, _, which = str(key).rpartition("_")
        parts[name][which] = (n, low, mean, high)
    rows = [
        (
            *hour,
            name,
            its["mean"][0],
            its["min"][1] if "min" in its else None,
            its["mean"][2],
            its["max"][3] if "max" in its else None,
        )
        for name, its in sorted(parts.items())
        if name and "mean" in its
    ]
    hands.many(
        "INSERT INTO telemetry_hour (node, kind, hour_ms, name, n, min, mean, max)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (node, kind, hour_ms, name) DO UPDATE SET"
        " n = excluded.n, min = excluded.min, mean = excluded.mean, max = excluded.max"
        " WHERE excluded.n >= telemetry_hour.n",
        rows,
    )
