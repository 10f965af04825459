"""Which answers stand on the broker, and for how long?

An ack is retained, so that whoever asked may look later; the latest of each operation stay for a
week. Brokers of the older protocol know no expiry, so what is over is cleared by hand. The list
outlives the agent in the spool; one that cannot be written is told again anyway.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Protocol

from edgeagent.core.commands import FINAL, CommandState
from edgeagent.errors import EdgeAgentError
from edgeagent.publish.messages import encoded
from edgeagent.publish.spool import Spool
from edgeagent.service import command_answers as answers

_NAME = "acks"


class Announcing(Protocol):
    """Publishes retained documents."""

    def announce(self, below: str, payload: bytes, expiry_s: int | None = None) -> None:
        """Publish one; empty bytes clear it."""
        ...


class Acks:
    """See the module."""

    def __init__(
        self,
        spool: Spool,
        outlet: Announcing,
        now_ms: Callable[[], int],
        tell: Callable[[str, Mapping[str, object]], None],
    ) -> None:
        self._spool, self._outlet, self._now_ms, self._tell = spool, outlet, now_ms, tell
        self._known: list[tuple[str, str, int]] = []
        """Operation, id, and when it was said; the oldest first."""

    def recall(self) -> None:
        """Learn what an earlier life has said. Raises SpoolUnavailable."""
        found = json.loads(self._spool.get(_NAME) or "[]")
        self._known = [(str(one[0]), str(one[1]), int(one[2])) for one in found]

    def ids(self) -> list[str]:
        """The commands whose acks stand."""
        return [command_id for _, command_id, _ in self._known]

    def announce(self, state: CommandState) -> None:
        """Publish where a command stands, and keep no account of it."""
        self._outlet.announce(
            _topic(state.operation, state.id), encoded(answers.ack(state)), answers.ACK_EXPIRY_S
        )

    def say(self, state: CommandState) -> None:
        """Publish where a command stands; those that are too many now are cleared."""
        self.announce(state)
        others = [one for one in self._known if one[1] != state.id]
        new = len(others) == len(self._known)
        self._known = [*others, (state.operation, state.id, state.at_ms)]
        if not self.forget() and (new or state.state in FINAL):
            self._keep()

    def forget(self) -> bool:
        """Clear the acks that are too old or too many; return whether there were any."""
        oldest_ms = self._now_ms() - answers.ACK_EXPIRY_S * 1000
        kept: list[tuple[str, str, int]] = []
        for operation, command_id, at_ms in reversed(self._known):
            same = sum(one[0] == operation for one in kept)
            if at_ms >= oldest_ms and same < answers.MOST_ACKS:
                kept.append((operation, command_id, at_ms))
            else:
                self._outlet.announce(_topic(operation, command_id), b"")
        if len(kept) == len(self._known):
            return False
        self._known = kept[::-1]
        self._keep()
        return True

    def _keep(self) -> None:
        try:
            self._spool.put(_NAME, json.dumps(self._known))
        except EdgeAgentError as error:
            self._tell("acks_not_kept", {"text": str(error)})


def _topic(operation: str, command_id: str) -> str:
    return f"ack/{operation}/{command_id}"
