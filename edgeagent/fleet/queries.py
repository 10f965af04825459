"""What does the collector's database say of the fleet, without reading more of it than it must?

Each question is written once, in SQL that SQLite and PostgreSQL both take; where they differ, the
dialect has the word. Nothing here reads raw telemetry: status and report stand on the rows of the
boxes, on the last results of each box by index, and on hourly roll-ups. That is what keeps them
under a second with ten million rows of telemetry (tests/benchmarks/bench_fleet_views.py).

What comes back was sent by boxes: every value is checked for its kind before it is used, and a
value of another kind is as good as none.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from edgeagent.fleet.store import Dialect, Store
from edgeagent.report.reading import mapping, mappings, number, sequence

PER_BOX = 60
"""So many of the newest levels of a box are read: the last result and what it is compared with."""

_MOST_FINDINGS = 50
"""More of one run nobody reads; a box that sends thousands does not fill the page."""

_MOST_LEVELS = 10_000
"""More simultaneous requests than that no box has; what a plot's arithmetic takes."""


@dataclass(frozen=True)
class Chosen:
    """Of which boxes; None for all."""

    site: str | None = None
    box_class: str | None = None

    def ask(self, store: Store, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Ask about these boxes: `{boxes}` in the SQL is a condition on node n.

        It stands before every `?` of `values`. Retired boxes are no part of the fleet any more.
        """
        parts = [("site", self.site), ("class", self.box_class)]
        named = [(name, value) for name, value in parts if value is not None]
        known = ["n.retired_ms IS NULL", *(f"n.{name} = ?" for name, _ in named)]
        text = sql.replace("{boxes}", " AND ".join(known)).replace("{newest}", _NEWEST_RUN)
        return store.query(text, [*(value for _, value in named), *values])


EVERY = Chosen()


# ------------------------------------------------------------------------------------- boxes


@dataclass(frozen=True)
class Spool:
    """What waits on a box; None where the box did not say."""

    rows: int | None = None
    bytes: int | None = None
    oldest_age_s: float | None = None
    parked: int | None = None
    evicted: int | None = None


@dataclass(frozen=True)
class LastResult:
    """The newest result of a box."""

    run_id: str
    status: str | None
    at_ms: int | None
    engines: tuple[str, ...] = ()
    """What was measured, each with its version."""


@dataclass(frozen=True)
class Box:
    """A box as the collector knows it. Times are the collector's, in milliseconds."""

    node: str
    site: str
    box_class: str | None
    state: str | None
    """What its retained status says: online or offline."""
    reason: str | None
    first_rx_ms: int | None
    last_rx_ms: int | None
    status_ms: int | None
    """When its last status came."""
    clk: str | None
    lag_ms: int | None
    """Our clock minus the box's, when its last message came."""
    cert_not_after_ms: int | None
    version: str | None
    troubles: tuple[str, ...] = ()
    spool: Spool = Spool()
    configured: tuple[str, ...] = ()
    """The engines that it is set up for."""
    last: LastResult | None = None


_BOXES = """
SELECT n.node, n.site, n.class, n.state, n.status, n.meta, n.first_rx_ms, n.last_rx_ms,
  n.status_ms, n.clk, n.lag_ms, n.cert_not_after_ms, n.backlog_rows, n.version,
  r.run_id, r.status, r.ts_ms
FROM node n LEFT JOIN run r ON r.node = n.node AND r.run_id = {newest}
WHERE {boxes} ORDER BY n.site, n.node
"""

_NEWEST_RUN = """
(SELECT q.run_id FROM run q WHERE q.node = n.node ORDER BY q.ts_ms DESC, q.run_id DESC LIMIT 1)
"""

_ENGINES = """
SELECT DISTINCT p.node, p.run, p.engine, p.engine_ver
FROM node n JOIN point p ON p.node = n.node AND p.run = {newest}
WHERE {boxes} ORDER BY 1, 3, 4
"""


def boxes(store: Store, chosen: Chosen = EVERY) -> list[Box]:
    """Every box, by site and name, with its newest result."""
    engines = _engines(store, chosen)
    return [_box(row, engines) for row in chosen.ask(store, _BOXES)]


def _engines(store: Store, chosen: Chosen) -> dict[tuple[str, str], tuple[str, ...]]:
    """What was measured in the newest result of each box."""
    found: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for node, run, engine, version in chosen.ask(store, _ENGINES):
        name = _word(engine)
        if name is not None:
            found[node, run].append(f"{name} {_word(version) or ''}".rstrip())
    return {key: tuple(names) for key, names in found.items()}


def _box(row: Sequence[Any], engines: Mapping[tuple[str, str], tuple[str, ...]]) -> Box:
    node, site, box_class, state, status, meta, first, last, *more = row
    status_ms, clk, lag, cert, backlog, version, *run = more
    said, described = mapping(_json(status)), mapping(_json(meta))
    spool = mapping(said.get("spool"))
    return Box(
        node=str(node),
        site=_word(site) or "",
        box_class=_word(box_class),
        state=_word(state),
        reason=_word(said.get("reason")),
        first_rx_ms=_whole(first),
        last_rx_ms=_whole(last),
        status_ms=_whole(status_ms),
        clk=_word(clk),
        lag_ms=_whole(lag),
        cert_not_after_ms=_whole(cert),
        version=_word(version),
        troubles=tuple(str(one) for one in sequence(said.get("troubles")))[:_MOST_FINDINGS],
        spool=Spool(
            _whole(spool.get("rows")) if backlog is None else _whole(backlog),
            _whole(spool.get("bytes")),
            _finite(spool.get("oldest_age_s")),
            _whole(spool.get("parked")),
            _whole(spool.get("evicted")),
        ),
        configured=tuple(
            name
            for one in mappings(described.get("engines"))[:_MOST_FINDINGS]
            if (name := _word(one.get("kind"))) is not None
        ),
        last=_last(str(node), run, engines),
    )


def _last(
    node: str, run: Sequence[Any], engines: Mapping[tuple[str, str], tuple[str, ...]]
) -> LastResult | None:
    run_id, status, at = run
    if run_id is None:
        return None
    return LastResult(str(run_id), _word(status), _whole(at), engines.get((node, run_id), ()))


# ------------------------------------------------------------------------------------ levels


@dataclass(frozen=True)
class Kind:
    """What makes two measurements comparable."""

    box_class: str
    engine: str
    model: str
    quant: str
    ctx: int | None
    prefix_cache: str
    speculation: str


class Measured(NamedTuple):
    """One level of one run of one box. A value of None was not measured."""

    node: str
    kind: Kind
    run: str
    at_ms: int
    engine_ver: str | None
    concurrency: int
    output_tokens_per_s: float | None
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    memory_bytes_per_slot: float | None


_MEASURED = """
SELECT p.node, p.run, p.ts_ms, p.engine_ver, p.concurrency,
  p.output_tokens_per_s, p.ttft_p50_s, p.ttft_p95_s, p.memory_bytes_per_slot,
  n.class, p.engine, p.model, p.quant, p.ctx, p.prefix_cache, p.speculation
FROM node n CROSS JOIN {points} WHERE {boxes} AND {of_box}
"""
# No order, because for its sake SQLite would go through every point there is.

_POINTS: Mapping[Dialect, tuple[str, str]] = {
    "sqlite": (
        "point p",
        "p.rowid IN (SELECT q.rowid FROM point q WHERE q.node = n.node"
        " ORDER BY q.ts_ms DESC LIMIT {most})",
    ),
    "postgres": (
        "LATERAL (SELECT q.* FROM point q WHERE q.node = n.node"
        " ORDER BY q.ts_ms DESC LIMIT {most}) p",
        "1 = 1",
    ),
}
"""The newest points of a box, so that each database goes from box to box by its index."""


def measured(store: Store, chosen: Chosen = EVERY, per_box: int = PER_BOX) -> list[Measured]:
    """The newest levels of each box, oldest first; by index, however many there are in all."""
    points, of_box = _POINTS[store.dialect]
    sql = _MEASURED.replace("{points}", points).replace("{of_box}", of_box)
    rows = chosen.ask(store, sql.replace("{most}", str(int(per_box))))
    kinds: dict[tuple[object, ...], Kind | None] = {}
    found = [one for row in rows if (one := _measured(row, kinds)) is not None]
    return sorted(found, key=_in_time)


def _in_time(one: Measured) -> tuple[str, int, str, str, str, int]:
    kind = one.kind
    setting = f"{kind.model} {kind.prefix_cache} {kind.speculation}"
    return one.node, one.at_ms, one.run, kind.engine, setting, one.concurrency


def _measured(
    row: tuple[Any, ...], kinds: dict[tuple[object, ...], Kind | None]
) -> Measured | None:
    node, run, at, version, level, rate, ttft, ttft95, slot, *what = row
    # Few kinds, many rows: each kind is made once.
    key = tuple(what)
    if key not in kinds:
        kinds[key] = _kind(what)
    kind = kinds[key]
    concurrency = _whole(level)
    if kind is None or concurrency is None or not 1 <= concurrency <= _MOST_LEVELS:
        return None
    return Measured(
        node, kind, run, _whole(at) or 0, _word(version), concurrency,
        _above_zero(rate), _above_zero(ttft), _above_zero(ttft95), _above_zero(slot),
    )  # fmt: skip


def _kind(what: Sequence[object]) -> Kind | None:
    box_class, engine, model, quant, ctx, cache, speculation = what
    name = _word(engine)
    if name is None:
        return None
    return Kind(
        _word(box_class) or "",
        name,
        _word(model) or "",
        _word(quant) or "",
        _whole(ctx),
        _word(cache) or "",
        _word(speculation) or "",
    )


# ----------------------------------------------------------------- what the newest results say


@dataclass(frozen=True)
class Crossing:
    """What a box found out about two engines by one metric."""

    node: str
    box_class: str
    metric: str
    a: str
    b: str
    outcome: str
    low: float | None
    high: float | None
    prefix_cache: str
    speculation: str


@dataclass(frozen=True)
class Doubt:
    """A finding in the newest result of a box."""

    node: str
    code: str
    severity: str
    text: str


@dataclass(frozen=True)
class Said:
    """What the newest results say besides their levels."""

    crossings: tuple[Crossing, ...] = ()
    doubts: tuple[Doubt, ...] = ()


_SAID = """
SELECT n.node, n.class, r.comparison, r.findings
FROM node n JOIN run r ON r.node = n.node AND r.run_id = {newest}
WHERE {boxes} ORDER BY n.site, n.node
"""


def said(store: Store, chosen: Chosen = EVERY) -> Said:
    """Comparisons and findings of each box's newest result; the documents stay in the database."""
    crossings: list[Crossing] = []
    doubts: list[Doubt] = []
    for node, box_class, comparison, findings in chosen.ask(store, _SAID):
        crossings += _crossings(str(node), _word(box_class) or "", _json(comparison))
        doubts += _doubts(str(node), _json(findings))
    return Said(tuple(crossings), tuple(doubts))


def _crossings(node: str, box_class: str, comparison: object) -> Iterator[Crossing]:
    for one in mappings(comparison)[:_MOST_FINDINGS]:
        metric, outcome, a, b = (_word(one.get(key)) for key in ("metric", "outcome", "a", "b"))
        if metric and outcome and a and b:
            yield Crossing(
                node, box_class, metric, a, b, outcome,
                _above_zero(one.get("low")), _above_zero(one.get("high")),
                _word(one.get("prefix_cache")) or "", _word(one.get("speculation")) or "",
            )  # fmt: skip


def _doubts(node: str, findings: object) -> Iterator[Doubt]:
    for one in mappings(findings)[:_MOST_FINDINGS]:
        code = _word(one.get("code"))
        if code is not None:
            yield Doubt(node, code, _word(one.get("severity")) or "", _word(one.get("text")) or "")


# -------------------------------------------------------------------------- what did not arrive


@dataclass(frozen=True)
class Lost:
    """Rows that a box declared lost, by reason."""

    node: str
    stream: str
    reason: str
    gaps: int
    rows: int
    """At most: of a gap that spares every so many rows, those are counted off."""


_LOST = """
SELECT g.node, g.stream, g.reason, COUNT(*), SUM(g.last - g.first + 1 - CASE
  WHEN COALESCE(g.every, 0) > 0 THEN g.last / g.every - (g.first - 1) / g.every ELSE 0 END)
FROM gap g JOIN node n ON n.node = g.node
WHERE {boxes} GROUP BY g.node, g.stream, g.reason ORDER BY 5 DESC, 1, 2, 3
"""


def lost(store: Store, chosen: Chosen = EVERY) -> list[Lost]:
    """Declared losses of each box, most rows first."""
    found = chosen.ask(store, _LOST)
    return [
        Lost(str(node), str(stream), _word(reason) or "", int(gaps), int(rows))
        for node, stream, reason, gaps, rows in found
    ]


@dataclass(frozen=True)
class Refused:
    """Messages that were put aside, by reason."""

    reason: str
    messages: int
    last_rx_ms: int | None
    topic: str


def refused(store: Store, most: int = 20) -> list[Refused]:
    """Why messages were put aside, most first."""
    found = store.query(
        "SELECT reason, SUM(n), MAX(rx_ms), MAX(topic) FROM quarantine"
        " GROUP BY reason ORDER BY 2 DESC, 1 LIMIT ?",
        (most,),
    )
    return [
        Refused(_word(reason) or "", int(n), _whole(rx), _word(topic) or "")
        for reason, n, rx, topic in found
    ]


# ------------------------------------------------------------------------------------ memory


def peaks(store: Store, name: str, since_ms: int) -> dict[str, float]:
    """The highest value of each box by the hourly roll-ups, such as of `ram_used_bytes`."""
    found = store.query(
        "SELECT node, MAX(max) FROM telemetry_hour WHERE name = ? AND hour_ms >= ? GROUP BY node",
        (name, since_ms),
    )
    return {str(node): value for node, most in found if (value := _finite(most)) is not None}


# ------------------------------------------------------------------------------------- values


def _json(value: object) -> object:
    """What a column holds: text in SQLite, already read in PostgreSQL."""
    if not isinstance(value, (str, bytes)):
        return value
    try:
        found: object = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return found


def _word(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


_LARGEST = 1 << 62


def _whole(value: object) -> int | None:
    if type(value) is int and abs(value) < _LARGEST:
        return value
    found = _finite(value)
    return None if found is None or abs(found) > _LARGEST else int(found)


def _finite(value: object) -> float | None:
    found = number(value)
    return None if found is None or not math.isfinite(found) else found


def _above_zero(value: object) -> float | None:
    if type(value) is float and 0.0 < value < _SENSIBLE:
        return value  # the ordinary case, of which there are very many
    found = _finite(value)
    return None if found is None or not 0 < found < _SENSIBLE else found


_SENSIBLE = 1e18
"""No measured quantity of a box is larger; a plot's arithmetic would be."""
