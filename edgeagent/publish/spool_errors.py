"""Which failures can a spool explain, and which of SQLite's stands for which?"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Literal

from edgeagent.errors import EdgeAgentError

Trouble = Literal["damaged", "full", "busy", "unavailable"]


class SpoolFull(EdgeAgentError):  # noqa: N818  # because it is a state of the spool, caught by name
    """A result found no room, and nothing that may be dropped is left. Nothing was changed."""

    exit_status = 75


class SpoolUnavailable(EdgeAgentError):  # noqa: N818  # because it is a state of the spool as well
    """The spool cannot be read or written now: rights, a read-only disk, another one's lock."""

    exit_status = 75


def trouble(error: sqlite3.Error) -> Trouble:
    """Return what an error of SQLite's means for the spool.

    By the message, which is the same since long before 3.11 gave the error a code.
    """
    text = str(error)
    if "malformed" in text or "not a database" in text:
        return "damaged"
    if "is full" in text:
        return "full"
    if "locked" in text:
        return "busy"
    return "unavailable"


def explained(error: sqlite3.Error | OSError, path: Path) -> EdgeAgentError:
    """Return the operator's sentence for a spool that could not be used."""
    if isinstance(error, OSError):
        return SpoolUnavailable(
            f"could not open the spool {path}: {error.strerror or error}; make its folder writable "
            "for the user or the group that publishes, or name another spool"
        )
    kind = trouble(error)
    if kind == "full":
        return no_room(path, "the disk below it is full")
    if kind == "busy":
        return SpoolUnavailable(
            f"could not use the spool {path}: another process has held it for too long; see who "
            "has it open (fuser) and try again"
        )
    return SpoolUnavailable(
        f"could not use the spool {path}: {error}; look at the disk below it (mounted read-only, "
        "full, failing) and at the rights on its folder"
    )


def no_room(path: Path, why: str) -> SpoolFull:
    """Return the operator's sentence for a row that found no room."""
    return SpoolFull(
        f"the spool {path} takes nothing more: {why}; let the broker take what waits there, "
        "make room on the disk, or raise the spool's size"
    )
