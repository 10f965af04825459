"""How does a fleet of ordinary size live in one file?

SQLite in WAL mode: one process collects, any number read meanwhile. A batch is on the disk when
`take` returns (synchronous FULL), because the boxes forget what a receipt covers.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from edgeagent.errors import BusyError, UsageError
from edgeagent.fleet import migrations, store_hours, store_rows
from edgeagent.fleet.store import (
    Batch,
    Dialect,
    Purpose,
    RowRefusedError,
    StoreAwayError,
    Taken,
    Watermark,
)

_BUSY_S = 10.0
_CACHE_KIB = 32_768


class SqliteStore:
    """See `Store`; may be used by several threads, one at a time."""

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: int | None) -> None:
        self._path, self._db, self._lock = path, connection, lock
        self._turn = threading.RLock()

    @property
    def dialect(self) -> Dialect:
        """Which SQL it speaks."""
        return "sqlite"

    # ------------------------------------------------------------ writing

    def take(self, batch: Batch) -> Taken:
        """Write a batch."""
        with self._transaction():
            return store_rows.write(self, batch)

    def claim(self, node: str, site: str) -> str:
        """Return the site that owns a node."""
        with self._transaction():
            return store_rows.claim(self, node, site)

    def tidy(self, now_ms: int, keep_ms: int, most: int) -> int:
        """Sum hours up, drop what is old."""
        with self._transaction():
            return store_hours.tidy(self, now_ms, keep_ms, most)

    def change(self, sql: str, values: Sequence[object] = ()) -> int:
        """Write one statement."""
        with self._transaction():
            return self._db.execute(sql, values).rowcount

    def leads(self) -> bool:
        """Return whether it is the one that collects."""
        return self._lock is not None

    # ------------------------------------------------------------ reading

    def owners(self) -> dict[str, str]:
        """Return the site of every node."""
        return dict(self.query("SELECT node, site FROM owner"))

    def watermarks(self, since_ms: int = 0) -> list[Watermark]:
        """Return the watermarks touched since."""
        return store_rows.watermarks(self.query, since_ms)

    def query(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Read."""
        with self._turn, self._told():
            return self._db.execute(sql, values).fetchall()

    def close(self) -> None:
        """Let go of it."""
        with self._turn:
            with suppress(sqlite3.Error):
                self._db.execute("PRAGMA optimize")
            self._db.close()
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    # ------------------------------------------------------------ for store_rows

    def many(self, sql: str, rows: Iterable[Sequence[object]]) -> int:
        """Run a statement for each row; return how many rows changed."""
        before = self._db.total_changes
        self._db.executemany(sql, rows)
        return self._db.total_changes - before

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> int:
        """Insert the rows whose keys are not there; return how many that were."""
        places = ", ".join("?" * len(columns))
        names = ", ".join(columns)
        sql = f"INSERT INTO {table} ({names}) VALUES ({places}) ON CONFLICT DO NOTHING"  # noqa: S608  # because the names are ours
        return self.many(sql, rows)

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Read inside the transaction."""
        return self._db.execute(sql, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._turn, self._told():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    with suppress(sqlite3.Error):
                        self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.DataError, sqlite3.IntegrityError, OverflowError) as error:
            raise RowRefusedError(str(error)) from error
        except sqlite3.Error as error:
            raise StoreAwayError(
                f"the store {self._path} cannot be used: {error}; see to the disk and its rights"
            ) from error


def open_sqlite(place: str, purpose: Purpose) -> SqliteStore:
    """Open a file; `place` is the URL's path. Raises as `open_store`."""
    path = Path(unquote(place.partition("?")[0]))
    if purpose == "read" and not path.exists():
        raise UsageError(f"there is no store at {path}; edgeagent fleet collect makes one")
    lock = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if purpose == "collect":
            lock = _only_one(path)
        return _opened(path, purpose, lock)
    except (OSError, sqlite3.Error) as error:
        if lock is not None:
            os.close(lock)
        raise StoreAwayError(f"the store {path} cannot be opened: {error}") from error


def _only_one(path: Path) -> int:
    """Hold the lock of the one that collects into a file; it goes with the process."""
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise BusyError(
            f"another collector stores into {path}; several of them need a postgresql:// store"
        ) from error
    return lock


def _opened(path: Path, purpose: Purpose, lock: int | None) -> SqliteStore:
    if purpose != "read":
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o640))
    connection = sqlite3.connect(
        path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
    )
    try:
        if purpose != "read":
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            # rows of a thousand boxes in turn each touch pages of their own: a longer log lets a
            # page be changed several times before it is written to its place (16 MiB)
            connection.execute("PRAGMA wal_autocheckpoint = 4000")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        _migrate(connection, path, purpose)
        if purpose == "read":
            connection.execute("PRAGMA query_only = ON")
    except BaseException:
        connection.close()
        raise
    return SqliteStore(path, connection, lock)


def _migrate(connection: sqlite3.Connection, path: Path, purpose: Purpose) -> None:
    at = int(connection.execute("PRAGMA user_version").fetchone()[0])
    migrations.check(at, str(path), purpose)
    if purpose == "read":
        return
    for step in range(at + 1, migrations.VERSION + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Asked again under the lock: another process may have been faster.
            if int(connection.execute("PRAGMA user_version").fetchone()[0]) < step:
                for statement in migrations.statements(step, "sqlite"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {step}")
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
