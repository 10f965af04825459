"""What passes between the connection's thread and the pump's?

Values only. The link puts events into a queue and takes messages from one; neither thread ever
holds a lock while it calls the other (a lock held around publishing and inside its callback has
frozen agents for good). Each event says to which connection it belongs, its generation, so that a
late answer of an old connection is not taken for one of the new.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Literal, Protocol, TypeAlias

from edgeagent.core.backoff import Cause
from edgeagent.core.window import Ending, Server

Retain = Literal["retained", "passing"]
Protocol_ = Literal["5", "3.1.1"]
Refused = Literal["not_connected", "full"]


@dataclass(frozen=True)
class Message:
    """One message to send: `token` comes back with the broker's answer, None if nobody asks."""

    topic: str
    payload: bytes
    qos: Literal[0, 1] = 1
    retain: Retain = "passing"
    expiry_s: int | None = None
    token: object = None


@dataclass(frozen=True)
class Session:
    """One connection as it introduces itself: its number, its name and its will."""

    n: int
    name: str
    will_topic: str
    will: bytes
    will_retain: Retain = "retained"


@dataclass(frozen=True)
class Up:
    """Connected and subscribed."""

    generation: int
    session: Session
    server: Server
    protocol: Protocol_
    note: str | None = None
    """A sentence about something that does not work as asked, such as a refused subscription."""


@dataclass(frozen=True)
class Down:
    """An attempt or a connection ended; `text` is a sentence for the operator."""

    generation: int
    cause: Cause
    ending: Ending
    text: str
    up_s: float | None = None
    """How long it stood, None if it never did."""


@dataclass(frozen=True)
class Answer:
    """The broker answered for the message with this token."""

    generation: int
    token: object
    code: int


@dataclass(frozen=True)
class Rx:
    """Something came on the topic of receipts."""

    generation: int
    payload: bytes


@dataclass(frozen=True)
class Command:
    """Something came on a topic of commands; `link.ack(command)` only after it is safely stored."""

    generation: int
    mid: int
    topic: str
    payload: bytes
    retain: Retain
    response_topic: str | None = None
    correlation: bytes | None = None
    traceparent: str | None = None


@dataclass(frozen=True)
class Bug:
    """The connection's thread met an error of ours and goes on with a fresh connection."""

    generation: int
    text: str


@dataclass(frozen=True)
class Wake:
    """Somebody has work for the pump."""


@dataclass(frozen=True)
class Again:
    """Rows that have had their turn are to go once more: the pump begins at the front."""


Event: TypeAlias = Up | Down | Answer | Rx | Command | Bug | Wake | Again
Events: TypeAlias = "SimpleQueue[Event]"


class Link(Protocol):
    """A connection to a broker that comes and goes, and comes back by itself."""

    def start(self, events: Events, session: Callable[[], Session]) -> None:
        """Begin to connect; `session` is asked at each attempt, in the link's thread."""
        ...

    def send(self, message: Message, generation: int) -> Refused | None:
        """Take a message for the connection `generation`; None when taken. Never waits."""
        ...

    def live(self, message: Message) -> Refused | None:
        """Take a message of QoS 0 if it can go at once. Never waits; any thread may call."""
        ...

    def ack(self, command: Command) -> None:
        """Tell the broker that a command is stored; nothing if its connection is gone."""
        ...

    def alive(self) -> bool:
        """Return whether the link's thread lives."""
        ...

    def stop(self, timeout_s: float) -> Literal["stopped", "abandoned"]:
        """Say goodbye to the broker and end the thread, or leave it after a while."""
        ...
