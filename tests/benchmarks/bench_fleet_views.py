"""How long do the questions behind `fleet status` and `fleet report` take in a large store?

    python bench_fleet_views.py [--telemetry 10000000] [--results 100000] [--boxes 1000]
        [--store sqlite:///tmp/bench-fleet.db | --store postgresql://… | --postgres] [--keep]

Makes a store of so many rows (one that is there already is asked as it is), asks each question
three times, and prints the fastest and the slowest answer as JSON, and how much of a core the
cheapest took (`cpu_s`). The rows are made inside the database; the newest result of each box is a
real document, since documents are what is large. With --postgres a PostgreSQL of its own is started
for it, and removed afterwards.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fleet"))

import psutil
from postgres_places import Postgres, postgres

from edgeagent.errors import UsageError
from edgeagent.fleet import queries, store_hours, views
from edgeagent.fleet.queries import Chosen
from edgeagent.fleet.store import Store, open_store
from edgeagent.fleet.summary import fitnesses, outliers

_EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "llamacpp-vllm-cpu" / "result.json"
_LEFT_OUT = ("cells", "canary", "timelines", "distributions", "arrivals")
_CLASSES = ("cpu", "dgpu", "uma-nvgpu")
_LEVELS = (1, 4, 8, 16, 32)
_ENGINES = ("llamacpp", "vllm")
_NOW_MS = 1_796_040_000_000
_MINUTE_MS, _HOUR_MS, _DAY_MS = 60_000, 3_600_000, 86_400_000

_COUNTED = (
    "WITH RECURSIVE s(n) AS (SELECT CAST(1 AS BIGINT) UNION ALL SELECT n + 1 FROM s WHERE n < {n})"
)

_NODE = """
INSERT INTO node (node, site, first_rx_ms, last_rx_ms, state, session_n, status_ms, status, meta,
  clk, cert_not_after_ms, backlog_rows, health, version, class)
VALUES (?, ?, ?, ?, 'online', 3, ?, ?, ?, 'sync', ?, 0, 'ok', '1.2.0', ?)
"""
_TELEMETRY = (
    "INSERT INTO telemetry (node, epoch, stream, seq, kind, ts_ms, box_ms, rx_ms, clk, v) "
    + _COUNTED
    + """
SELECT '{node}', 'e1', 'M', n, 'mem_1m', {now} - ({n} - n) * 60000, {now} - ({n} - n) * 60000,
  {now} - ({n} - n) * 60000, 'sync',
  CAST('{"samples":12,"ram_used_bytes_mean":' || (4000000000 + n * 1000) || '}' AS {json}) FROM s
"""
)
_HOURS = (
    "INSERT INTO telemetry_hour (node, kind, hour_ms, name, n, min, mean, max) "
    + _COUNTED
    + """
SELECT '{node}', 'mem_1m', {hour} - ({n} - n) * 3600000, '{name}', 60,
  4e9 + n, 4e9 + 2 * n, 4e9 + 3 * n FROM s
"""
)
_RUNS = (
    "INSERT INTO run (node, run_id, epoch, seq, status, extent, started_at, finished_at, class,"
    " ts_ms, rx_ms, document, comparison, findings) "
    + _COUNTED
    + """
SELECT '{node}', 'run-' || n, 'e1', n * 11, 'complete', 'summary', '2026-11-01T00:00:00Z', NULL,
  '{class}', {now} - ({n} - n) * 86400000, {now} - ({n} - n) * 86400000,
  CAST('{"status":"complete","findings":[],"comparison":[]}' AS {json}), CAST('[]' AS {json}),
  CAST('[]' AS {json}) FROM s
"""
)
_POINTS = (
    "INSERT INTO point (node, epoch, seq, run, point, engine, engine_ver, model, quant, ctx, slots,"
    " concurrency, prefix_cache, speculation, ts_ms, output_tokens_per_s, ttft_p50_s, ttft_p95_s,"
    " memory_bytes_per_slot, max_slots, v) "
    + _COUNTED
    + """
SELECT '{node}', 'e1', n * 11 + {place}, 'run-' || n, '{place}', '{engine}', '1.0', 'a model',
  'Q4_K_M', 4096, 32, {level}, 'off', 'off', {now} - ({n} - n) * 86400000,
  {rate} * (1 + 0.01 * ((n * 7 + {box}) % 5)), 0.2, 0.3, 7000000 + 1000 * ((n + {box}) % 9), 256,
  CAST('{}' AS {json}) FROM s
"""
)


_GAPS = (
    "INSERT INTO gap (node, epoch, stream, first, last, every, reason, rx_ms) "
    + _COUNTED
    + """
SELECT '{node}', 'e1', 'M', n * 100, n * 100 + 9, 5, 'thinned', {now} FROM s
"""
)


def main() -> None:
    """Make the store, ask, print."""
    options = _options()
    with postgres() if options.postgres else nullcontext() as cluster:
        url = cluster.database() if isinstance(cluster, Postgres) else options.store
        _measure(url, options)
    path = Path(url.removeprefix("sqlite://"))
    if url.startswith("sqlite") and not options.keep:
        for file in path.parent.glob(f"{path.name}*"):
            file.unlink()


def _measure(url: str, options: argparse.Namespace) -> None:
    try:
        store = open_store(url, "read")
    except UsageError:
        began = time.perf_counter()
        make(url, (options.boxes, options.telemetry, options.results))
        print(json.dumps({"made_in_s": round(time.perf_counter() - began, 1)}), flush=True)
        store = open_store(url, "read")
    print(json.dumps({"rows": _rows(store), "bytes": _bytes(store)}), flush=True)
    for name, ask in questions(store).items():
        print(json.dumps({"question": name, **timed(ask, lambda: _cpu_s(store))}), flush=True)
    store.close()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--telemetry", type=int, default=10_000_000)
    parser.add_argument("--results", type=int, default=100_000)
    parser.add_argument("--boxes", type=int, default=1_000)
    parser.add_argument("--store", default="sqlite:///tmp/bench-fleet.db")
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--keep", action="store_true")
    return parser.parse_args()


def questions(store: Store) -> dict[str, Callable[[], int]]:
    """Everything that the views ask."""
    every = Chosen()
    return {
        "status": lambda: len(views.lines(store, every, _NOW_MS)),
        "report: levels": lambda: len(queries.measured(store, every)),
        "report: comparisons and findings": lambda: len(queries.said(store, every).doubts),
        "report: losses": lambda: len(queries.lost(store, every)),
        "report: put aside": lambda: len(queries.refused(store)),
        "report: memory": lambda: len(queries.peaks(store, "ram_used_bytes", _NOW_MS - _DAY_MS)),
        "report: outliers (no database)": _judging(store),
        "report: the page": lambda: len(views.page(store, every, _NOW_MS)),
        "collector: whose minutes are too old": lambda: len(
            store.query(store_hours.OLD_MINUTES, (_NOW_MS - 400 * _DAY_MS,))
        ),
        "collector: all watermarks": lambda: len(store.watermarks()),
    }


def _judging(store: Store) -> Callable[[], int]:
    levels = queries.measured(store)
    return lambda: len(outliers(fitnesses(levels)))


def timed(ask: Callable[[], int], cpu_s: Callable[[], float]) -> dict[str, float | int]:
    """Ask three times; `cpu_s` is the least time of a core, ours and the database's."""
    took, cost = [], []
    rows = 0
    for _ in range(3):
        began, spent = time.perf_counter(), cpu_s()
        rows = ask()
        took.append(time.perf_counter() - began)
        cost.append(cpu_s() - spent)
    found = {"fastest_s": min(took), "slowest_s": max(took), "cpu_s": min(cost)}
    return {"answer": rows, **{name: round(value, 3) for name, value in found.items()}}


def _cpu_s(store: Store) -> float:
    """Time of a core so far, ours and the database's: what a quiet machine would take."""
    own = time.process_time()
    if store.dialect == "sqlite":
        return own
    pid = int(store.query("SELECT pg_backend_pid()")[0][0])
    try:
        spent = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return own  # because the database runs elsewhere
    return own + spent.user + spent.system


def make(url: str, sizes: tuple[int, int, int]) -> None:
    """Make a store of so many boxes, rows of telemetry and results."""
    boxes, telemetry, results = sizes
    store = open_store(url, "collect")
    each = (max(1, telemetry // boxes), max(1, results // boxes))
    document = newest_document()
    for number in range(boxes):
        _make_box(store, number, each, document)
    store.change("ANALYZE")  # because a database that has lived for a while knows its tables
    store.close()


def newest_document() -> tuple[str, str, str]:
    """A real result as a box sends it: without its cells, since it would be too large.

    And its comparison and its findings, as they are stored beside it.
    """
    document = json.loads(_EXAMPLE.read_bytes())
    sent = {key: value for key, value in document.items() if key not in _LEFT_OUT}
    return json.dumps(sent), json.dumps(sent["comparison"]), json.dumps(sent["findings"])


def _make_box(
    store: Store, number: int, each: tuple[int, int], document: tuple[str, str, str]
) -> None:
    minutes, runs = each
    node, box_class = f"edge-{number + 1:04}", _CLASSES[number % 3]
    word = "JSONB" if store.dialect == "postgres" else "TEXT"
    own: dict[str, object] = {"node": node, "class": box_class, "box": number, "json": word}
    status = json.dumps({"state": "online", "spool": {"rows": 0, "bytes": 0}, "troubles": []})
    meta = json.dumps({"host": {"class": box_class}, "engines": [{"kind": "llamacpp"}]})
    heard = _NOW_MS - number * 100
    store.change(
        _NODE,
        (
            node, f"site-{number % 20:02}", heard, heard, heard, status, meta,
            _NOW_MS + 200 * _DAY_MS, box_class,
        ),
    )  # fmt: skip
    now = _NOW_MS - _HOUR_MS
    store.change(filled(_TELEMETRY, {**own, "n": minutes, "now": _NOW_MS - _MINUTE_MS}))
    for name in ("ram_used_bytes", "gpu_used_bytes", "slots_busy"):
        hours = {**own, "n": max(1, minutes // 60), "hour": now // _HOUR_MS * _HOUR_MS}
        store.change(filled(_HOURS, {**hours, "name": name}))
    store.change(filled(_GAPS, {**own, "n": 20, "now": now}))
    store.change(
        "INSERT INTO watermark (node, epoch, stream, wm, seen, born_ms, touched_ms)"
        " VALUES (?, 'e1', 'M', ?, ?, 0, ?)",
        (node, minutes, minutes, heard),
    )
    store.change(filled(_RUNS, {**own, "n": runs, "now": now}))
    store.change(
        "UPDATE run SET document = ?, comparison = ?, findings = ? WHERE node = ? AND run_id = ?",
        (*document, node, f"run-{runs}"),
    )
    for place, (engine, level) in enumerate((e, n) for e in _ENGINES for n in _LEVELS):
        rate = round((1 + number % 3) * level**0.6 * (1.4 if engine == "vllm" else 1.0), 3)
        more = {"n": runs, "now": now, "engine": engine, "level": level, "rate": rate}
        store.change(filled(_POINTS, {**own, **more, "place": place}))


def filled(sql: str, words: dict[str, object]) -> str:
    """The statement with its words; all of them are ours."""
    for name, word in words.items():
        sql = sql.replace("{" + name + "}", str(word))
    return sql


def _bytes(store: Store) -> int:
    if store.dialect == "postgres":
        return int(store.query("SELECT pg_database_size(current_database())")[0][0])
    pages, size = store.query(
        "SELECT page_count, page_size FROM pragma_page_count, pragma_page_size"
    )[0]
    return int(pages) * int(size)


def _rows(store: Store) -> dict[str, int]:
    tables: Sequence[str] = ("node", "telemetry", "telemetry_hour", "run", "point")
    return {
        table: int(store.query(f"SELECT COUNT(*) FROM {table}")[0][0])  # noqa: S608  # because the names are ours
        for table in tables
    }


if __name__ == "__main__":
    main()
