"""How does a command stand in the spool, so that the next life of the agent knows it?

A row holds what `core.commands` knows of a command, its state and fingerprint, and what it said,
because one that was accepted and not begun is taken up again after a restart. It is read with the
same schema as a message: what does not follow it any more, after an update say, is no command.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from edgeagent.core.commands import Code, Command, CommandState, Rejected, Seen, StateName
from edgeagent.core.policy import OPERATIONS, Operation
from edgeagent.publish.commands import understood
from edgeagent.publish.spool_commands import CommandState as Stored

_NOTES = ("code", "reason", "run", "done", "total")


@dataclass(frozen=True)
class Said:
    """What does not change about a command while its state does."""

    fingerprint: str
    document: Mapping[str, object]
    first_ms: int
    """UTC, when it arrived."""
    origin: Literal["plant", "box"] = "plant"


def stored(state: CommandState, said: Said) -> Stored:
    """The row for a command in this state."""
    notes = {name: getattr(state, name) for name in _NOTES}
    detail = {
        **{name: value for name, value in notes.items() if value is not None},
        "fingerprint": said.fingerprint,
        "document": dict(said.document),
        "origin": said.origin,
    }
    return Stored(state.id, state.operation, said.first_ms, state.state, detail, state.at_ms)


def seen(row: Stored | None) -> Seen | None:
    """What `core.commands.repeated` wants to know; None for an id that is new."""
    if row is None:
        return None
    return Seen(str(row.detail.get("fingerprint")), state(row))


def state(row: Stored) -> CommandState:
    """The state that the row holds. Raises ValueError for a row that is none of ours."""
    names: dict[str, StateName] = {name: name for name in get_args(StateName)}
    if row.state not in names:
        raise ValueError(f"the spool has a command in the unknown state {row.state}")
    detail: Mapping[str, Any] = row.detail
    code: Code | None = next((code for code in get_args(Code) if code == detail.get("code")), None)
    return CommandState(
        id=row.id,
        operation=_operation(row),
        state=names[row.state],
        at_ms=row.changed_ms,
        code=code,
        **{name: detail.get(name) for name in _NOTES if name != "code"},
    )


def said(row: Stored) -> Said:
    """What the row says besides its state."""
    document = row.detail.get("document")
    return Said(
        fingerprint=str(row.detail.get("fingerprint")),
        document=document if isinstance(document, dict) else {},
        first_ms=row.at_ms,
        origin="box" if row.detail.get("origin") == "box" else "plant",
    )


def command(row: Stored) -> Command | Rejected:
    """The command itself, as it was when it arrived."""
    known = said(row)
    outcome = understood(known.document, _operation(row))
    if isinstance(outcome, Rejected):
        return outcome
    return replace(outcome, head=replace(outcome.head, origin=known.origin))


def _operation(row: Stored) -> Operation:
    found = next((known for known in OPERATIONS if known == row.op), None)
    if found is None:
        raise ValueError(f"the spool has a command of the unknown operation {row.op}")
    return found
