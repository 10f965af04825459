"""Which commands have been seen, and how far did each get?

Both stand in the database before anything acts on a command: one that was being carried out when
the box lost power is found again as unfinished, and the same id never starts twice.

All functions run inside a transaction of the caller's and raise sqlite3.Error.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

MOST_IDS = 10_000
KEPT_MS = 30 * 86_400_000
FINAL = ("succeeded", "failed", "cancelled", "interrupted", "rejected")

Novelty = Literal["first", "again"]


@dataclass(frozen=True)
class CommandState:
    """A command that was seen: what was answered last, and when (wall clock, ms since 1970)."""

    id: str
    op: str
    at_ms: int
    state: str
    detail: Mapping[str, object]
    changed_ms: int


_SELECT = "SELECT id, op, at_ms, state, detail, changed_ms FROM cmd_seen JOIN cmd_state USING (id)"


def remember(db: sqlite3.Connection, command: CommandState) -> Novelty:
    """Note a command and its first state, unless its id is known: then nothing changes."""
    added = db.execute(
        "INSERT OR IGNORE INTO cmd_seen (id, op, at_ms) VALUES (?, ?, ?)",
        (command.id, command.op, command.at_ms),
    ).rowcount
    if not added:
        return "again"
    db.execute(
        "INSERT INTO cmd_state (id, state, detail, changed_ms) VALUES (?, ?, ?, ?)",
        (command.id, command.state, json.dumps(dict(command.detail)), command.changed_ms),
    )
    forget(db, command.at_ms)
    return "first"


def move_on(db: sqlite3.Connection, command: CommandState) -> None:
    """Note a later state of a command that is known; of an unknown one, nothing."""
    db.execute(
        "UPDATE cmd_state SET state = ?, detail = ?, changed_ms = ? WHERE id = ?",
        (command.state, json.dumps(dict(command.detail)), command.changed_ms, command.id),
    )


def find(db: sqlite3.Connection, command_id: str) -> CommandState | None:
    """Return what is known of a command, or None for one never seen."""
    row = db.execute(_SELECT + " WHERE id = ?", (command_id,)).fetchone()
    return None if row is None else _command(row)


def unfinished(db: sqlite3.Connection) -> list[CommandState]:
    """Return the commands without a final state, the oldest first."""
    rows = db.execute(
        _SELECT + " WHERE state NOT IN (?, ?, ?, ?, ?) ORDER BY at_ms, id", FINAL
    ).fetchall()
    return [_command(row) for row in rows]


def forget(db: sqlite3.Connection, now_ms: int) -> None:
    """Drop what is older than 30 days, and above 10,000 ids the least needed.

    Refused ones go first, since forgetting one that ran could let it run again; one that is
    unfinished never goes.
    """
    db.execute(
        "DELETE FROM cmd_seen WHERE at_ms < ? AND id IN"
        " (SELECT id FROM cmd_state WHERE state IN (?, ?, ?, ?, ?))",
        (now_ms - KEPT_MS, *FINAL),
    )
    (count,) = db.execute("SELECT count(*) FROM cmd_seen").fetchone()
    if count > MOST_IDS:
        db.execute(
            "DELETE FROM cmd_seen WHERE id IN (SELECT id FROM cmd_seen JOIN cmd_state USING (id)"
            " WHERE state IN (?, ?, ?, ?, ?) ORDER BY state <> 'rejected', at_ms LIMIT ?)",
            (*FINAL, count - MOST_IDS),
        )
    db.execute("DELETE FROM cmd_state WHERE id NOT IN (SELECT id FROM cmd_seen)")


def _command(row: tuple[str, str, int, str, str, int]) -> CommandState:
    command_id, op, at_ms, state, detail, changed_ms = row
    return CommandState(command_id, op, at_ms, state, json.loads(detail), changed_ms)


@dataclass(frozen=True)
class Heirloom:
    """What goes from one life of a spool to the next: the settled facts and the commands seen."""

    meta: Mapping[str, str]
    commands: tuple[CommandState, ...]


NO_HEIRLOOM = Heirloom({}, ())


def heirloom(db: sqlite3.Connection) -> Heirloom:
    """Return what the next life has to know, read whole."""
    meta = dict(db.execute("SELECT name, value FROM meta WHERE name NOT LIKE 'spool.%'"))
    return Heirloom(meta, tuple(_command(row) for row in db.execute(_SELECT)))


def inherit(db: sqlite3.Connection, left: Heirloom) -> None:
    """Take over what an earlier life left."""
    db.executemany("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", left.meta.items())
    for command in left.commands:
        remember(db, command)
