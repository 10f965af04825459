"""Where does an empty store come from, of either kind?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from postgres_places import Postgres, postgres

from edgeagent.fleet.store import MessageRow, TelemetryRow, open_store

Fresh = Callable[[], str]
"""Return the URL of a database that nobody has used."""


@contextmanager
def fresh_databases(kind: str, folder: Path) -> Iterator[Fresh]:
    """Databases of one kind."""
    if kind == "postgres":
        with postgres() as cluster:
            yield cluster.database
        return
    count = iter(range(10_000))
    yield lambda: f"sqlite://{folder}/fleet-{next(count)}.db"


def message(seq: int, node: str = "edge-1", **changes: object) -> MessageRow:
    """A sound row of stream R."""
    row = MessageRow(
        node, "e1", "R", seq, "edgeagent.oom/1", "oom", 1_000 + seq, 2_000, "b1", seq, "sync", "{}"
    )
    return row._replace(**changes)  # type: ignore[arg-type]  # because each test knows its columns


def minute(seq: int, node: str = "edge-1", **changes: object) -> TelemetryRow:
    """A sound row of stream M."""
    row = TelemetryRow(
        node, "e1", "M", seq, "mem_1m", 1_000 + seq, 1_000 + seq, 2_000, "sync", '{"samples": 12}'
    )
    return row._replace(**changes)  # type: ignore[arg-type]  # because each test knows its columns


__all__ = ["Fresh", "Postgres", "fresh_databases", "message", "minute", "open_store"]
