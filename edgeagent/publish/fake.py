"""What does a broker look like that lives in memory and does as it is told?

For tests of whatever delivers: no thread, no socket, every reaction within the call that caused it.
It passes the same contract suite as the real connection.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Literal

from edgeagent.core.backoff import Cause
from edgeagent.core.window import NO_SUBSCRIBERS, Ending, Server
from edgeagent.publish.topics import Topics
from edgeagent.publish.wire import (
    Answer,
    Command,
    Down,
    Event,
    Message,
    Refused,
    Rx,
    Session,
    Up,
)

_SUCCESS = 0


@dataclass
class FakeBroker:
    """A broker in memory. `judge` says with which code a message is answered."""

    server: Server = field(default_factory=Server)
    judge: Callable[[Message], int] = lambda _: _SUCCESS
    answers: Literal["at_once", "withheld"] = "at_once"
    got: list[Message] = field(default_factory=list)
    retained: dict[str, bytes] = field(default_factory=dict)
    acked: list[Command] = field(default_factory=list)
    link: FakeLink | None = None
    state: Literal["open", "closed"] = "open"

    def open(self) -> None:
        """Let the link in, now and later."""
        self.state = "open"
        if self.link is not None:
            self.link.came_up()

    def close(
        self, ending: Ending = "closed", cause: Cause = "ordinary", text: str = "closed"
    ) -> None:
        """End the connection without a goodbye: the will is published."""
        self.state = "closed"
        if self.link is not None and self.link.session is not None:
            self.retained[self.link.session.will_topic] = self.link.session.will
            self.link.went_down(ending, cause, text)

    def deliver(
        self, topic: str, payload: bytes, retain: Literal["retained", "passing"] = "passing"
    ) -> None:
        """Send something to the link."""
        if self.link is not None:
            self.link.came(topic, payload, retain)

    def taken(self, message: Message) -> int:
        """Take a message; return the code of the answer."""
        code = self.judge(message)
        if code < NO_SUBSCRIBERS:
            self.got.append(message)
            if message.retain == "retained":
                self.retained[message.topic] = message.payload
                if not message.payload:
                    del self.retained[message.topic]
        return code

    def topics(self) -> list[str]:
        """The topics of what came, in order."""
        return [message.topic for message in self.got]


class FakeLink:
    """A connection to a `FakeBroker`; see `Link`."""

    def __init__(self, broker: FakeBroker, topics: Topics) -> None:
        self._broker, self._topics = broker, topics
        self._events: SimpleQueue[Event] | None = None
        self._ask: Callable[[], Session] | None = None
        self._generation = 0
        self._mid = 0
        self.session: Session | None = None
        """Of the connection that stands, None when none does."""
        broker.link = self

    def start(self, events: SimpleQueue[Event], session: Callable[[], Session]) -> None:
        """Connect if the broker is open."""
        self._events, self._ask = events, session
        if self._broker.state == "open":
            self.came_up()

    def send(self, message: Message, generation: int) -> Refused | None:
        """Take a message for one connection."""
        if self.session is None or self._events is None or generation != self._generation:
            return "not_connected"
        code = self._broker.taken(message)
        if message.token is not None and message.qos and self._broker.answers == "at_once":
            self._events.put(Answer(self._generation, message.token, code))
        return None

    def live(self, message: Message) -> Refused | None:
        """Take a live reading."""
        if self.session is None:
            return "not_connected"
        self._broker.taken(message)
        return None

    def ack(self, command: Command) -> None:
        """Note that a command is stored."""
        if self.session is not None and command.generation == self._generation:
            self._broker.acked.append(command)

    def alive(self) -> bool:
        """Return whether it was started and not stopped."""
        return self._events is not None

    def stop(self, timeout_s: float) -> Literal["stopped", "abandoned"]:
        """Disconnect in good order."""
        del timeout_s
        self.went_down("ours", "ordinary", "disconnected as asked")
        self._events = None
        return "stopped"

    # ------------------------------------------------------------ the broker's side

    def came_up(self) -> None:
        """A connection stands."""
        if self._events is None or self._ask is None or self.session is not None:
            return
        self._generation += 1
        self.session = self._ask()
        self._events.put(Up(self._generation, self.session, self._broker.server, "5"))

    def went_down(self, ending: Ending, cause: Cause, text: str) -> None:
        """The connection is gone."""
        if self._events is None or self.session is None:
            return
        self.session = None
        self._events.put(Down(self._generation, cause, ending, text, up_s=1.0))

    def came(self, topic: str, payload: bytes, retain: Literal["retained", "passing"]) -> None:
        """Something was published for us."""
        if self._events is None or self.session is None:
            return
        if topic == self._topics.receipts:
            self._events.put(Rx(self._generation, payload))
        elif topic.startswith(self._topics.full("cmd/")):
            self._mid += 1
            self._events.put(Command(self._generation, self._mid, topic, payload, retain))
