"""What becomes of telemetry as it ages: minutes become hours, and old minutes go?

An hour of a box is summed up once nothing came for it for a while, and again when a backlog brings
more of it later. A mark says that an hour is due. Marks are made before or with the rows, at most
every `MARK_EVERY_MS` for the same hour, and are only looked at when they are much older than that:
so no row of an hour can still be on its way into the table when the hour is summed up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from edgeagent.fleet.hands import Hands
from edgeagent.fleet.store import HourMark

HOUR_MS = 3_600_000
MARK_EVERY_MS = 600_000
RIPE_MS = 3 * MARK_EVERY_MS

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
    """Sum up to `most` hours up and drop what is older than `keep_ms`; return how many hours."""
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
    old_ms = now_ms - keep_ms
    hands.many(
        # What lies above a watermark is still needed to move it.
        "DELETE FROM telemetry WHERE node = ? AND kind = ? AND ts_ms < ? AND rx_ms < ?"
        " AND seq <= (SELECT w.wm FROM watermark w WHERE w.node = telemetry.node"
        " AND w.epoch = telemetry.epoch AND w.stream = telemetry.stream)",
        [(node, kind, old_ms, old_ms) for node, kind in sorted({row[:2] for row in due})],
    )
    return len(due)


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
        " n = excluded.n, min = excluded.min, mean = excluded.mean, max = excluded.max",
        rows,
    )
