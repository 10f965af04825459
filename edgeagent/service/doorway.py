"""What do people and timers on this box ask of the daemon, and how are they answered?

Each is served in a thread of the control socket, which puts the question to the daemon's thread and
waits. Whoever is still waiting when the daemon ends is told so.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from edgeagent.core.commands import FINAL, CommandState, Head, Override, Sweep
from edgeagent.errors import EdgeAgentError
from edgeagent.service.commanding import Commander
from edgeagent.service.control import Answer, Peer

_LIFE_MS = 24 * 3600 * 1000
_PULSE_S = 5.0
_ENDING: Answer = {
    "last": True,
    "error": "ending",
    "text": "the daemon is ending; ask again when it is back",
}


@dataclass(frozen=True, eq=False)
class Ask:
    """Somebody at the socket, and where the answers go."""

    request: Mapping[str, Any]
    peer: Peer
    answers: SimpleQueue[Answer] = field(default_factory=SimpleQueue)


class Doorway:
    """See the module. `serve` is called in threads, everything else in the daemon's."""

    def __init__(self, ask: Callable[[Ask], None]) -> None:
        """`ask` puts a question to the daemon's thread."""
        self._ask = ask
        self._waiting: dict[str, Ask] = {}

    def serve(self, request: Mapping[str, Any], peer: Peer) -> Iterator[Answer]:
        """Serve one connection: ask the daemon's thread and wait."""
        ask = Ask(request, peer)
        self._ask(ask)
        while True:
            try:
                answer = ask.answers.get(timeout=_PULSE_S)
            except Empty:
                yield {"waiting": True}  # notices when the other end has gone
                continue
            yield answer
            if answer.get("last"):
                return

    def trigger(self, ask: Ask, commander: Commander, now_ms: int) -> None:
        """Begin a sweep for somebody on this box."""
        profile = ask.request.get("profile")
        if not isinstance(profile, str):
            refuse(ask, "schema", "profile has to be a name")
            return
        issuer = f"uid-{ask.peer.uid}"
        head = Head(str(uuid.uuid4()), now_ms, now_ms + _LIFE_MS, issuer, "box")
        try:
            state = commander.asked(Sweep(head, profile, Override()))
        except EdgeAgentError as error:
            refuse(ask, "spool_full", str(error))
            return
        over = state.state in FINAL
        waits = ask.request.get("wait") is True and not over
        ask.answers.put({**told(state), **({} if waits else {"last": True})})
        if waits:
            self._waiting[state.id] = ask
            commander.watch(state.id, self._hear)

    def _hear(self, state: CommandState) -> None:
        over = state.state in FINAL
        ask = self._waiting.pop(state.id) if over else self._waiting[state.id]
        ask.answers.put({**told(state), **({"last": True} if over else {})})

    def close(self) -> None:
        """Tell everybody who waits that the daemon ends."""
        for ask in self._waiting.values():
            ask.answers.put(_ENDING)
        self._waiting.clear()


def turn_away(ask: Ask) -> None:
    """Nothing is begun any more."""
    ask.answers.put(_ENDING)


def refuse(ask: Ask, code: str, text: str) -> None:
    """Say no, and why."""
    ask.answers.put({"last": True, "error": code, "text": text})


def answer(ask: Ask, document: Mapping[str, object]) -> None:
    """Say it all at once."""
    ask.answers.put({"last": True, **document})


def told(state: CommandState) -> dict[str, object]:
    """What a person hears of a command."""
    return {
        "id": state.id,
        "state": state.state,
        "code": state.code,
        "reason": state.reason,
        "run": state.run,
        "done": state.done,
        "total": state.total,
    }
