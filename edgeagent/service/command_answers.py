"""What does the box say about a command, and about what it may be asked?

Three documents: the ack of a command (retained, one a command), the values of the audit event that
goes with each of its states, and for every operation what the box accepts (retained below meta).
"""

from __future__ import annotations

from dataclasses import asdict

from edgeagent.core.commands import (
    LONGEST_S,
    QUEUE_ALLOWANCE_S,
    RATE,
    RATE_WINDOW_MS,
    SKEW_S,
    Command,
    CommandState,
    Sweep,
)
from edgeagent.core.policy import Operation, Policy, Window
from edgeagent.publish.commands import MOST_BYTES, MOST_DEPTH

ACK_EXPIRY_S = 7 * 86_400
MOST_ACKS = 20
"""Retained acks of one operation; older ones are cleared."""


def ack(state: CommandState) -> dict[str, object]:
    """The document for P/ack/{op}/{id}; what is not known is left out."""
    document: dict[str, object] = {
        "schema": "edgeagent.ack/1",
        "op": state.operation,
        "id": state.id,
        "state": state.state,
        "ts": state.at_ms,
    }
    more = {
        "code": state.code,
        "reason": state.reason,
        "run": state.run,
        "done": state.done,
        "total": state.total,
        "progress": _share(state),
    }
    return {**document, **{name: value for name, value in more.items() if value is not None}}


def audit(state: CommandState, command: Command | None) -> dict[str, object]:
    """The values of the audit event; `command` is None where none could be read."""
    values: dict[str, object] = {"op": state.operation, "id": state.id, "state": state.state}
    if state.code is not None:
        values["code"] = state.code
    if command is not None:
        values["issuer"] = command.head.issuer
        values["origin"] = command.head.origin
    if isinstance(command, Sweep):
        values["profile"] = command.profile
    return values


def capability(operation: Operation, policy: Policy) -> dict[str, object]:
    """The document for P/meta/cmd/{op}: whether the policy allows it, and its limits."""
    limits: dict[str, object] = {
        "max_bytes": MOST_BYTES,
        "max_depth": MOST_DEPTH,
        "max_validity_s": LONGEST_S,
        "max_age_s": SKEW_S + QUEUE_ALLOWANCE_S,
        "messages": RATE,
        "messages_within_s": RATE_WINDOW_MS / 1000,
    }
    allowed = operation in policy.operations
    if operation == "sweep" and allowed:
        limits |= _sweep_limits(policy)
    return {
        "schema": "edgeagent.meta.cmd/1",
        "op": operation,
        "accepts": "yes" if allowed else "no",
        "request_schema": f"edgeagent.cmd.{operation}/1",
        "limits": limits,
    }


def _sweep_limits(policy: Policy) -> dict[str, object]:
    return {
        "profiles": list(policy.profiles),
        "override": {knob: asdict(bounds) for knob, bounds in policy.bounds.items()},
        "windows": [_window(window) for window in policy.windows],
        "max_runs_per_day": policy.max_runs_per_day,
        "cooldown_s": policy.cooldown_s,
        "max_duration_s": policy.max_duration_s,
        "when_busy": policy.when_busy,
    }


def _window(window: Window) -> dict[str, object]:
    return {"days": list(window.days), "from": _clock(window.begin), "to": _clock(window.end)}


def _clock(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


def _share(state: CommandState) -> float | None:
    return None if state.done is None or not state.total else state.done / state.total
