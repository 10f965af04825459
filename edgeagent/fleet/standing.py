"""Does a box stand as its latest status says, or is that status outdated?

Births, deaths and wills of one box come from the broker in an order that is not theirs: retained
ones after a restart, wills half a minute late. `session_n` counts the box's connections up; it
begins anew with a new spool.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Standing:
    """What is known of a box: its state, since which connection, and its last full status."""

    state: str
    session_n: int
    heard_ms: int
    document: Mapping[str, Any]

    @property
    def backlog_rows(self) -> int | None:
        """Rows that wait in its spool, None if it did not say."""
        spool = self.document.get("spool")
        rows = spool.get("rows") if isinstance(spool, Mapping) else None
        return rows if isinstance(rows, int) and 0 <= rows < 1 << 53 else None


def merged(old: Standing | None, said: Mapping[str, Any], heard_ms: int) -> Standing | None:
    """Return how the box stands after a status, or None if that status is outdated."""
    state, session_n = str(said["state"]), int(said["session_n"])
    if old is not None and _outdated(old, said, state, session_n):
        return None
    # A will says little: what the box last said of itself stays known.
    kept = dict(old.document) if old is not None and state == "offline" else {}
    kept.pop("reason", None)
    document = {**kept, **said}
    return Standing(state, session_n, max(heard_ms, old.heard_ms if old else 0), document)


def _outdated(old: Standing, said: Mapping[str, Any], state: str, session_n: int) -> bool:
    if session_n > old.session_n:
        return False
    if session_n == old.session_n and state == "offline":
        return False
    if session_n == old.session_n and old.state == "offline":
        return True
    if state == "offline":
        return True
    then, now = old.document.get("ts"), said.get("ts")
    if isinstance(then, int) and isinstance(now, int):
        return now < then if session_n == old.session_n else now <= then
    return session_n < old.session_n
