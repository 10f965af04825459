"""Is a database whole after an unclean end, and who looks while the work goes on?

SQLite's quick_check reads the whole file. Up to 64 MiB that is done before the spool is used;
above, it would make the start depend on the backlog, so a thread looks, by its own connection.
"""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing, suppress
from pathlib import Path

from edgeagent.publish.spool_errors import trouble

CHECKED_AT_ONCE_BYTES = 64 * 1024 * 1024


def is_whole(db: sqlite3.Connection) -> str:
    """Return "ok", or the first thing that is wrong. Raises sqlite3.Error."""
    return str(db.execute("PRAGMA quick_check(1)").fetchone()[0])


class LaterCheck:
    """A look at the whole file beside the work; `found` says what is wrong, once it is known."""

    def __init__(self, path: Path) -> None:
        self.found: str | None = None
        self._path = path
        self._db: sqlite3.Connection | None = None
        self._stopped = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._look, name="spool-check", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        try:
            with closing(sqlite3.connect(self._path, check_same_thread=False)) as db:
                with self._lock:
                    if self._stopped:
                        return
                    self._db = db
                try:
                    result = is_whole(db)
                finally:
                    with self._lock:
                        self._db = None
        except sqlite3.Error as error:
            if trouble(error) == "damaged":
                self.found = str(error)
            return  # interrupted, or the disk failed: those who work on it will see
        if result != "ok":
            self.found = result

    def stop(self) -> None:
        """End the look, wherever it is."""
        with self._lock:
            self._stopped = True
            if self._db:
                with suppress(sqlite3.Error):
                    self._db.interrupt()
        self._thread.join(timeout=5.0)
