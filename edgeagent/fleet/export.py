"""How does the fleet's data get into pandas, DuckDB and a spreadsheet?

    DIR/points/date=2026-11-30/site=plant7/part-0.parquet     one row a level
    DIR/runs/...                                              one row a result, document included
    DIR/telemetry_hours/...                                   hourly roll-ups
    DIR/boxes-0.parquet                                       one row a box, as it is now
    DIR/*.csv                                                 the same tables, each in one file

Parquet is partitioned by date (UTC) and site in Hive's manner, which every reader understands.
Dates are made from numbers and sites are ids, so nothing that a box sent becomes a path. In CSV,
text that a spreadsheet would take for a formula starts with an apostrophe.

Rows are read and written a slice at a time: what is exported need not fit into memory.
"""

from __future__ import annotations

import csv
import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, TypeAlias

from edgeagent.errors import UsageError
from edgeagent.fleet.queries import Chosen
from edgeagent.fleet.store import Store
from edgeagent.publish.topics import checked_id
from edgeagent.report.flat import field

Format = Literal["both", "parquet", "csv"]
INSTALL = "pip install 'edgeagent[fleet]'"

_SLICE = 20_000
_Row: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class Exported:
    """A table as it is exported."""

    name: str
    columns: Mapping[str, Literal["text", "whole", "number"]]
    """In the order of the query, after node and site."""
    time: str | None
    """The column by whose date it is cut; None for a table of one file."""
    sql: str
    key: Sequence[str]
    """What orders it; slices begin behind the last key of the one before."""
    in_csv: frozenset[str] | None = None
    """The columns that a spreadsheet gets; None for all."""


_POINT_COLUMNS: Mapping[str, Literal["text", "whole", "number"]] = {
    "class": "text", "run": "text", "point": "text", "ts_ms": "whole", "engine": "text",
    "engine_ver": "text", "model": "text", "quant": "text", "ctx": "whole", "slots": "whole",
    "concurrency": "whole", "prefix_cache": "text", "speculation": "text",
    "output_tokens_per_s": "number", "ttft_p50_s": "number", "ttft_p95_s": "number",
    "tpot_p50_s": "number", "tpot_p95_s": "number", "e2e_p95_s": "number",
    "goodput_per_s": "number", "requests_ok": "whole", "requests_failed": "whole",
    "memory_bytes_per_slot": "number", "max_slots": "whole",
}  # fmt: skip
_RUN_COLUMNS: Mapping[str, Literal["text", "whole", "number"]] = {
    "class": "text", "run_id": "text", "ts_ms": "whole", "status": "text", "extent": "text",
    "started_at": "text", "finished_at": "text", "result_sha256": "text", "result_file": "text",
    "document": "text",
}  # fmt: skip
_HOUR_COLUMNS: Mapping[str, Literal["text", "whole", "number"]] = {
    "class": "text", "kind": "text", "hour_ms": "whole", "name": "text", "n": "whole",
    "min": "number", "mean": "number", "max": "number",
}  # fmt: skip
_BOX_COLUMNS: Mapping[str, Literal["text", "whole", "number"]] = {
    "class": "text", "state": "text", "health": "text", "version": "text", "clk": "text",
    "lag_ms": "whole", "first_rx_ms": "whole", "last_rx_ms": "whole", "status_ms": "whole",
    "cert_not_after_ms": "whole", "backlog_rows": "whole",
}  # fmt: skip


def _sql(table: str, columns: Mapping[str, str]) -> str:
    """What one table is asked for, with its box's site and class."""
    own = [f"n.{name}" if name == "class" else f"t.{name}" for name in columns]
    return "\n".join(
        (
            f"SELECT t.node, n.site, {', '.join(own)}",
            f"FROM {table} t JOIN node n ON n.node = t.node",
            "WHERE {boxes} AND {behind} ORDER BY {key} LIMIT {slice}",
        )
    )


TABLES = (
    Exported("boxes", _BOX_COLUMNS, None, _sql("node", _BOX_COLUMNS), ("node",)),
    Exported(
        "points", _POINT_COLUMNS, "ts_ms", _sql("point", _POINT_COLUMNS), ("node", "run", "point"),
    ),
    Exported(
        "runs", _RUN_COLUMNS, "ts_ms", _sql("run", _RUN_COLUMNS), ("node", "run_id"),
        frozenset(_RUN_COLUMNS) - {"document"},
    ),
    Exported(
        "telemetry_hours", _HOUR_COLUMNS, "hour_ms", _sql("telemetry_hour", _HOUR_COLUMNS),
        ("node", "kind", "hour_ms", "name"),
    ),
)  # fmt: skip


def write(store: Store, chosen: Chosen, folder: Path, form: Format) -> dict[str, int]:
    """Write every table into a folder that is new or empty; return how many rows each has.

    The folder is there wholly or not at all. Raises UsageError.
    """
    if form != "csv":
        _need_pyarrow()
    _new_or_empty(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise _unwritable(folder, error) from error
    try:
        counts = {table.name: _table(store, chosen, table, (draft, form)) for table in TABLES}
        draft.chmod(0o777 & ~_umask())
        with suppress(FileNotFoundError):
            folder.rmdir()
        draft.rename(folder)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise _unwritable(folder, error) from error
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return counts


def _need_pyarrow() -> None:
    try:
        import pyarrow.parquet as _  # noqa: F401  # because only its being there is asked
    except ImportError as error:
        raise UsageError(
            f"Parquet needs pyarrow, and it cannot be imported here ({error}): {INSTALL}, or "
            "--format csv"
        ) from error


def _new_or_empty(folder: Path) -> None:
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"--out {folder} is no folder: name one that is new or empty")
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"--out {folder} is not empty: name a folder that is new or empty")


def _unwritable(folder: Path, error: OSError) -> UsageError:
    return UsageError(
        f"could not write {folder}: {error.strerror or error}; name a folder in a place that is "
        "writable and has room (--out DIR)"
    )


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _table(store: Store, chosen: Chosen, table: Exported, where: tuple[Path, Format]) -> int:
    """Write one table in its forms; return its rows."""
    folder, form = where
    count = 0
    with ExitStack() as stack:
        writers: list[Callable[[list[_Row]], None]] = []
        if form != "parquet":
            writers.append(stack.enter_context(_csv(folder / f"{table.name}.csv", table)))
        if form != "csv":
            writers.append(_Parquet(folder, table).write)
        for rows in slices(store, chosen, table):
            count += len(rows)
            for write_rows in writers:
                write_rows(rows)
    return count


def slices(
    store: Store, chosen: Chosen, table: Exported, size: int = _SLICE
) -> Iterator[list[_Row]]:
    """The rows of a table, a slice at a time, in the order of its key."""
    names = ["node", "site", *table.columns]
    places = [names.index(name) for name in table.key]
    last: tuple[object, ...] = ()
    while True:
        rows = chosen.ask(store, _behind(table, last, size), last)
        if not rows:
            return
        yield rows
        if len(rows) < size:
            return
        last = tuple(rows[-1][place] for place in places)


def _behind(table: Exported, last: Sequence[object], size: int) -> str:
    """The question for the rows behind a key; for the first ones where there is none yet."""
    key = ", ".join(f"t.{name}" for name in table.key)
    condition = f"({key}) > ({', '.join('?' * len(last))})" if last else "1 = 1"
    return (
        table.sql.replace("{behind}", condition).replace("{key}", key).replace("{slice}", str(size))
    )


# -------------------------------------------------------------------------------------- writing


@contextmanager
def _csv(path: Path, table: Exported) -> Iterator[Callable[[list[_Row]], None]]:
    """A CSV file (RFC 4180) with a line of names."""
    names = ["node", "site", *table.columns]
    wanted = set(names) if table.in_csv is None else {"node", "site", *table.in_csv}
    places = [n for n, name in enumerate(names) if name in wanted]
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        writer = csv.writer(file, lineterminator="\r\n")
        writer.writerow([names[place] for place in places])
        yield lambda rows: writer.writerows([field(row[place]) for place in places] for row in rows)


class _Parquet:
    """A table as Parquet: a file for each date and site of a slice."""

    def __init__(self, folder: Path, table: Exported) -> None:
        self._folder, self._table = folder, table
        self._part = 0
        names = ["node", "site", *table.columns]
        self._time = None if table.time is None else names.index(table.time)

    def write(self, rows: list[_Row]) -> None:
        """Write a slice."""
        if self._time is None:
            self._file(self._folder / f"{self._table.name}-{self._part}.parquet", rows)
        else:
            cut: defaultdict[tuple[str, str], list[_Row]] = defaultdict(list)
            for row in rows:
                cut[_date(row[self._time]), checked_id("site", row[1])].append(row)
            for (date, site), own in cut.items():
                place = self._folder / self._table.name / f"date={date}" / f"site={site}"
                place.mkdir(parents=True, exist_ok=True)
                self._file(place / f"part-{self._part}.parquet", own)
        self._part += 1

    def _file(self, path: Path, rows: list[_Row]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        kinds = {"text": pa.string(), "whole": pa.int64(), "number": pa.float64()}
        columns = {"node": "text", "site": "text", **self._table.columns}
        # The site of a partitioned file stands in its path; twice it would be ambiguous.
        left_out = set() if self._time is None else {"site"}
        arrays = {
            name: pa.array((_value(row[place], kind) for row in rows), kinds[kind], size=len(rows))
            for place, (name, kind) in enumerate(columns.items())
            if name not in left_out
        }
        pq.write_table(pa.table(arrays), path, compression="zstd")


def _date(ms: object) -> str:
    """The day in UTC; a moment that no calendar has is the first day of 1970."""
    try:
        return datetime.fromtimestamp(int(str(ms)) / 1000, timezone.utc).strftime("%Y-%m-%d")
    except (ValueError, OverflowError, OSError):
        return "1970-01-01"


_MOST = 1 << 63


def _value(value: object, kind: str) -> object:
    """A value as its column takes it; None for one of another kind."""
    if kind == "text":
        return None if value is None else str(value).encode("utf-8", "replace").decode()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if kind == "number":
        return float(value)
    return int(value) if abs(value) < _MOST else None
