"""How does a large fleet live in the plant's own PostgreSQL?

Several collectors may write at once; whoever holds an advisory lock sends the receipts. Where the
extension TimescaleDB is to be had, telemetry becomes a hypertable (tested with 2.19).
The only importer of psycopg. A connection that broke is opened anew at the next call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from edgeagent.errors import ConfigError, UsageError
from edgeagent.fleet import migrations, store_hours, store_rows
from edgeagent.fleet.store import (
    Batch,
    Dialect,
    Purpose,
    RowRefusedError,
    StoreAwayError,
    Taken,
    Watermark,
    shown,
)

if TYPE_CHECKING:
    import psycopg

_CONNECT_S = 10
_STATEMENT_MS = 30_000
_DEAD_AFTER_MS = 20_000
_LEADER_LOCK = 0x6564_6765_6167  # "edgeag": the lock of whoever sends receipts
_LAYOUT_LOCK = _LEADER_LOCK + 1
_DAY_MS = 86_400_000
_AGAIN = 5
"""So often a transaction is repeated that another one's stood in the way of."""

_T = TypeVar("_T")


class PostgresStore:
    """See `Store`; may be used by several threads, one at a time."""

    def __init__(self, url: str, purpose: Purpose) -> None:
        self._psycopg = _driver()
        self._url, self._purpose = url, purpose
        self._turn = threading.RLock()
        self._connection: psycopg.Connection[Any] | None = None
        self._leads = False
        self._prepared = False
        with self._turn:
            self._open()

    @property
    def dialect(self) -> Dialect:
        """Which SQL it speaks."""
        return "postgres"

    # ------------------------------------------------------------ writing

    def take(self, batch: Batch) -> Taken:
        """Write a batch."""

        def write() -> Taken:
            # The database's clock, because the collectors' may differ.
            now_ms = self.rows(
                "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"
            )[0][0]
            return store_rows.write(self, replace(batch, now_ms=now_ms))

        return self._in_transaction(write)

    def claim(self, node: str, site: str) -> str:
        """Return the site that owns a node."""
        return self._in_transaction(lambda: store_rows.claim(self, node, site))

    def tidy(self, now_ms: int, keep_ms: int, most: int) -> int:
        """Sum hours up, drop what is old."""
        return self._in_transaction(lambda: store_hours.tidy(self, now_ms, keep_ms, most))

    def change(self, sql: str, values: Sequence[object] = ()) -> int:
        """Write one statement."""
        return self._in_transaction(lambda: int(self._execute(sql, values).rowcount))

    def leads(self) -> bool:
        """Return whether this one may send receipts."""
        with self._turn, self._told():
            if not self._leads or self._connection is None or self._connection.closed:
                self._leads = bool(
                    self._execute("SELECT pg_try_advisory_lock(?)", (_LEADER_LOCK,)).fetchone()[0]
                )
            return self._leads

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
            return list(self._execute(sql, values).fetchall())

    def close(self) -> None:
        """Let go of it."""
        with self._turn:
            self._let_go()

    # ------------------------------------------------------------ for store_rows

    def many(self, sql: str, rows: Iterable[Sequence[object]]) -> int:
        """Run a statement for each row; return how many rows changed."""
        listed = list(rows)
        if not listed:
            return 0
        with self._cursor() as cursor:
            cursor.executemany(_percent(sql), listed)
            return int(cursor.rowcount)

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> int:
        """Insert the rows whose keys are not there; return how many that were.

        By way of COPY, which takes a fifth of the time of single statements.
        """
        if not rows:
            return 0
        names, passing = ", ".join(columns), f"passing_{table}"
        with self._cursor() as cursor:
            cursor.execute(
                f"CREATE TEMP TABLE IF NOT EXISTS {passing}"
                f" (LIKE {table}) ON COMMIT DELETE ROWS".encode()
            )
            with cursor.copy(f"COPY {passing} ({names}) FROM STDIN".encode()) as copy:
                copy.write("".join(map(_copied, rows)).encode())
            cursor.execute(
                f"INSERT INTO {table} ({names}) SELECT {names} FROM {passing}"  # noqa: S608  # because the names are ours
                " ON CONFLICT DO NOTHING".encode()
            )
            return int(cursor.rowcount)

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Read inside the transaction."""
        return list(self._execute(sql, values).fetchall())

    # ------------------------------------------------------------ the connection

    def _in_transaction(self, work: Callable[[], _T]) -> _T:
        for attempt in range(_AGAIN):
            try:
                return self._once(work)
            except self._psycopg.errors.TransactionRollback:  # a deadlock, a serialization failure
                if attempt == _AGAIN - 1:
                    raise StoreAwayError(
                        f"the store {shown(self._url)} gave up on a transaction {_AGAIN} times"
                    ) from None
        raise AssertionError("unreachable")

    def _once(self, work: Callable[[], _T]) -> _T:
        with self._turn, self._told(), self._open().transaction():
            return work()

    def _execute(self, sql: str, values: Sequence[object] = ()) -> Any:
        return self._open().execute(_percent(sql), values)

    def _cursor(self) -> psycopg.Cursor[Any]:
        return self._open().cursor()

    def _open(self) -> psycopg.Connection[Any]:
        if self._connection is not None and not self._connection.closed:
            return self._connection
        self._leads = False
        with self._told():
            made: psycopg.Connection[Any] = self._psycopg.connect(
                self._url,
                autocommit=True,
                connect_timeout=_CONNECT_S,
                application_name="edgeagent-fleet",
                keepalives_idle=10,
                keepalives_interval=5,
                keepalives_count=3,
                tcp_user_timeout=_DEAD_AFTER_MS,
            )
            try:
                self._set_up(made)
            except BaseException:
                made.close()
                raise
        self._connection = made
        return made

    def _set_up(self, connection: psycopg.Connection[Any]) -> None:
        # Documents are handed on as they are stored: whoever wants a value parses it.
        loader = self._psycopg.types.string.TextLoader
        connection.adapters.register_loader("jsonb", loader)
        connection.adapters.register_loader("numeric", self._psycopg.types.numeric.FloatLoader)
        connection.execute(f"SET statement_timeout = {_STATEMENT_MS}")
        # A receipt lets a box forget: what it covers has to be on the disk, whatever the
        # database's own default is.
        connection.execute("SET synchronous_commit = on")
        if not self._prepared:
            _migrate(connection, shown(self._url), self._purpose)
            self._prepared = True
        if self._purpose == "read":
            connection.execute("SET default_transaction_read_only = on")

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        self._leads = False
        if connection is not None:
            with suppress(Exception):  # because it may have broken long ago
                connection.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        errors = self._psycopg.errors
        try:
            yield
        except errors.TransactionRollback:
            raise
        except (errors.DataError, errors.IntegrityError, self._psycopg.DataError) as error:
            raise RowRefusedError(_first_line(error)) from error
        except UnicodeEncodeError as error:
            raise RowRefusedError(str(error)) from error
        except self._psycopg.ProgrammingError as error:
            if not isinstance(error, errors.InsufficientPrivilege):
                raise  # because wrong SQL is our own fault
            raise self._cannot(error) from error
        except self._psycopg.Error as error:
            self._let_go()
            raise self._cannot(error) from error

    def _cannot(self, error: Exception) -> StoreAwayError:
        return StoreAwayError(
            f"the store {shown(self._url)} cannot be used: {_first_line(error)}; "
            "see whether it runs and lets us in"
        )


def open_postgres(url: str, purpose: Purpose) -> PostgresStore:
    """Open by URL. Raises as `open_store`."""
    return PostgresStore(url, purpose)


def _driver() -> ModuleType:
    try:
        # Here, because it is an extra: a plant with SQLite has no need of it.
        import psycopg
        import psycopg.types.numeric
        import psycopg.types.string
    except ImportError as error:
        raise ConfigError(
            f"a postgresql:// store needs psycopg, which cannot be loaded ({error}); "
            'run: pip install "edgeagent[fleet]"'
        ) from error
    return psycopg


_ESCAPED = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def _copied(row: Sequence[object]) -> str:
    """Return a row as COPY takes it."""
    return "\t".join(["\\N" if one is None else str(one).translate(_ESCAPED) for one in row]) + "\n"


@lru_cache(maxsize=512)
def _percent(sql: str) -> str:
    return sql.replace("%", "%%").replace("?", "%s")


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


# ---------------------------------------------------------------- tables


def _migrate(connection: psycopg.Connection[Any], where: str, purpose: Purpose) -> None:
    if purpose == "read":
        at = _version(connection)
        if at == 0:
            raise UsageError(f"there is no fleet in {where}; edgeagent fleet collect lays it out")
        migrations.check(at, where, purpose)
        return
    timescale = _timescale(connection)
    with connection.transaction():
        # One of several collectors that start together lays the tables out, however long it takes.
        connection.execute("SET LOCAL statement_timeout = 0")
        connection.execute(f"SELECT pg_advisory_xact_lock({_LAYOUT_LOCK})")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)"
        )
        at = _version(connection)
        migrations.check(at, where, purpose)
        for step in range(at + 1, migrations.VERSION + 1):
            for statement in migrations.statements(
                step, "postgres", "there" if timescale else "absent"
            ):
                connection.execute(statement.encode())
            if step == 1 and timescale:
                connection.execute(
                    "SELECT create_hypertable('telemetry', 'box_ms',"
                    f" chunk_time_interval => {7 * _DAY_MS}::bigint)".encode()
                )
        connection.execute(
            "INSERT INTO meta (name, value) VALUES ('schema_version', %s)"
            " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (str(migrations.VERSION),),
        )


def _version(connection: psycopg.Connection[Any]) -> int:
    if connection.execute("SELECT to_regclass('meta')").fetchone() == (None,):
        return 0
    row = connection.execute("SELECT value FROM meta WHERE name = 'schema_version'").fetchone()
    return 0 if row is None else int(row[0])


def _timescale(connection: psycopg.Connection[Any]) -> bool:
    """Return whether TimescaleDB is installed in this database, or can be."""
    there = "SELECT 1 FROM pg_extension WHERE extname = 'timescaledb'"
    if connection.execute(there).fetchone() is not None:
        return True
    offered = "SELECT 1 FROM pg_available_extensions WHERE name = 'timescaledb'"
    if connection.execute(offered).fetchone() is None:
        return False
    try:
        connection.execute("CREATE EXTENSION IF NOT EXISTS timescaledb")
    except Exception:  # noqa: BLE001  # because whatever forbids it, plain tables do as well
        return False
    return True
