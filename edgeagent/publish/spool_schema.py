"""How is the spool's database laid out, and how does a connection have to be set up?

`q` holds the rows, numbered without holes by (stream, seq); `streams` what must outlive the rows,
first of all the last number given; `tally` counts rows and bytes, kept true by triggers, so that no
question asked at start or by a status needs to walk the rows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

PAGE_BYTES = 4096
BUSY_S = 10.0
WAL_PAGES = 256
WAL_LIMIT_BYTES = 4 * 1024 * 1024

Sync = Literal["full", "normal"]

SCHEMA = """
CREATE TABLE q (
  stream TEXT NOT NULL,
  seq INTEGER NOT NULL,
  state TEXT NOT NULL,
  late INTEGER NOT NULL DEFAULT 0,
  declared INTEGER NOT NULL DEFAULT 0,
  tries INTEGER NOT NULL DEFAULT 0,
  topic TEXT NOT NULL,
  schema TEXT NOT NULL,
  ts_ms INTEGER NOT NULL,
  size INTEGER NOT NULL,
  kept_ms INTEGER,
  payload TEXT NOT NULL,
  PRIMARY KEY (stream, seq)
);
CREATE INDEX q_state ON q (stream, state, seq);
CREATE TABLE streams (
  stream TEXT PRIMARY KEY,
  last INTEGER NOT NULL DEFAULT 0,
  durable INTEGER NOT NULL DEFAULT 0,
  wm INTEGER NOT NULL DEFAULT 0,
  acked INTEGER NOT NULL DEFAULT 0,
  thinned INTEGER NOT NULL DEFAULT 0,
  evicted INTEGER NOT NULL DEFAULT 0,
  lost INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
INSERT INTO streams (stream) VALUES ('R'), ('M');
CREATE TABLE tally (
  stream TEXT NOT NULL,
  state TEXT NOT NULL,
  n INTEGER NOT NULL DEFAULT 0,
  bytes INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (stream, state)
) WITHOUT ROWID;
INSERT INTO tally (stream, state) VALUES
  ('R', 'new'), ('R', 'sent'), ('R', 'parked'), ('R', 'kept'),
  ('M', 'new'), ('M', 'sent'), ('M', 'parked'), ('M', 'kept');
CREATE TRIGGER q_came AFTER INSERT ON q BEGIN
  UPDATE tally SET n = n + 1, bytes = bytes + NEW.size
    WHERE stream = NEW.stream AND state = NEW.state;
END;
CREATE TRIGGER q_went AFTER DELETE ON q BEGIN
  UPDATE tally SET n = n - 1, bytes = bytes - OLD.size
    WHERE stream = OLD.stream AND state = OLD.state;
END;
CREATE TRIGGER q_moved AFTER UPDATE OF state ON q WHEN OLD.state <> NEW.state BEGIN
  UPDATE tally SET n = n - 1, bytes = bytes - OLD.size
    WHERE stream = OLD.stream AND state = OLD.state;
  UPDATE tally SET n = n + 1, bytes = bytes + NEW.size
    WHERE stream = NEW.stream AND state = NEW.state;
END;
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE cmd_seen (
  id TEXT PRIMARY KEY,
  op TEXT NOT NULL,
  at_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX cmd_seen_at ON cmd_seen (at_ms);
CREATE TABLE cmd_state (
  id TEXT PRIMARY KEY,
  state TEXT NOT NULL,
  detail TEXT NOT NULL,
  changed_ms INTEGER NOT NULL
) WITHOUT ROWID;
PRAGMA user_version = 1;
"""


def connect(path: Path, max_bytes: int | None = None) -> sqlite3.Connection:
    """Return a connection that is set up; `max_bytes` is the backstop that SQLite itself keeps.

    Raises sqlite3.Error.
    """
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
    try:
        # Pages given back by an eviction can go back to the disk as well. Counts only before the
        # first table is made.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        # Little waits in the log to be carried over, so that the ballast is enough to do it on a
        # full disk; and the log keeps its length, so that it can be written again there.
        connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT_BYTES}")
        connection.execute("PRAGMA cache_size = -1024")  # KiB: the agent has to stay small
        if max_bytes is not None:
            connection.execute(f"PRAGMA max_page_count = {max(64, max_bytes // PAGE_BYTES)}")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def laying_out(connection: sqlite3.Connection) -> Iterator[None]:
    """Lay the tables out together with what the caller adds, wholly or not at all.

    Raises sqlite3.Error.
    """
    connection.execute("PRAGMA synchronous = FULL")
    try:
        connection.executescript(f"BEGIN IMMEDIATE; {SCHEMA}")
        yield
        connection.execute("UPDATE streams SET durable = last")
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise


def is_laid_out(connection: sqlite3.Connection) -> bool:
    """Return whether the tables are there. Raises sqlite3.Error."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0]) > 0


@contextmanager
def transaction(connection: sqlite3.Connection, sync: Sync) -> Iterator[None]:
    """Hold the write lock; commit at the end, roll back on any exception. Raises sqlite3.Error.

    "full" returns when the disk has it; "normal" leaves that to the next one that is full or to
    the next checkpoint.
    """
    connection.execute(f"PRAGMA synchronous = {sync}")
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        if sync == "full":
            # One fsync covers all that stands before it in the log.
            connection.execute("UPDATE streams SET durable = last WHERE durable < last")
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise


def roll_back(connection: sqlite3.Connection) -> None:
    """Undo what was begun; SQLite may have done it by itself when the disk failed."""
    with suppress(sqlite3.Error):
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def used_bytes(connection: sqlite3.Connection) -> int:
    """Return the bytes of all pages in use, a transaction's own included. Raises sqlite3.Error."""
    pages: int = connection.execute("PRAGMA page_count").fetchone()[0]
    return (pages - free_pages(connection)) * PAGE_BYTES


def free_pages(connection: sqlite3.Connection) -> int:
    """Return the pages of the file that hold nothing. Raises sqlite3.Error."""
    free: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
    return free


def give_back(connection: sqlite3.Connection, pages: int) -> None:
    """Shrink the file by up to `pages` empty ones. Raises sqlite3.Error."""
    # A script is stepped to its end; execute() would free one page and stop.
    connection.executescript(f"PRAGMA incremental_vacuum({pages})")
