"""How does the collector listen for months, whatever becomes of single connections?

One thread of ours holds a connection (client.py), and makes a fresh one whenever it ended. Messages
are acknowledged only when somebody says that they are stored; the session outlives us, so that the
broker keeps what comes meanwhile.
"""

from __future__ import annotations

import socket
import threading
import time
import traceback
from collections import OrderedDict, deque
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from random import Random

from edgeagent.core.backoff import Backoff, Cause, Pace
from edgeagent.errors import EdgeAgentError
from edgeagent.fleet.client import Arrived, Connection, Letter, Manner, NotHeldError
from edgeagent.publish.broker import Broker, checked

SESSION_S = 86_400
"""How long a broker keeps what came for us while we are away; boxes keep everything anyway."""
_PACE = Pace(first_s=0.0, return_s=1.0, most_s=15.0, refused_s=15.0)
"""There is one collector, or a few: nobody has to be spread out as boxes are."""
_MOST_PASSING = 4_000
"""So many messages without an acknowledgement (live readings) may wait; more are dropped."""
_MOST_UNANSWERED = 64


@dataclass(frozen=True)
class Subscription:
    """What to listen to; `echo` is a filter of which our own messages are not wanted back.

    `session_s` is how long the broker keeps what comes while we are away; 0: not at all.
    """

    filters: tuple[str, ...]
    echo: str | None = None
    session_s: int = SESSION_S


@dataclass
class Link:
    """How the connection is; written by the listener's thread, read by anybody."""

    generation: int = 0
    connection: str = "down"
    subscribed_s: float = 0.0
    text: str = "not connected yet"
    dropped: int = 0
    """Live readings that found no room."""


class Listener:
    """A connection that comes back by itself. `arrived` is what came, in its order."""

    def __init__(self, broker: Broker, wanted: Subscription, pace: Pace | None = None) -> None:
        self._broker, self._wanted = checked(broker), wanted
        self._backoff, self._random = Backoff(pace or _PACE), Random()  # noqa: S311  # because it spreads retries
        self.link = Link()
        self.arrived: SimpleQueue[tuple[int, Arrived]] = SimpleQueue()
        self._acks: deque[tuple[int, int]] = deque()
        self._outbox: OrderedDict[str, bytes] = OrderedDict()
        self._unanswered: set[int] = set()
        self._turn = threading.Lock()
        self._ear, self._bell = socket.socketpair()
        for end in (self._ear, self._bell):
            end.setblocking(False)
        self._stopping = threading.Event()
        self._giving_up = 0
        self._thread = threading.Thread(target=self._live_on, name="fleet-listener", daemon=True)

    def start(self) -> None:
        """Begin to connect."""
        self._thread.start()

    def take(self, most: int, wait_s: float) -> list[tuple[int, Arrived]]:
        """Return what came, each with its connection; nothing only after a wait."""
        try:
            taken = [self.arrived.get(timeout=wait_s)]
        except Empty:
            return []
        with suppress(Empty):
            while len(taken) < most:
                taken.append(self.arrived.get_nowait())
        return taken

    def ack(self, stored: list[tuple[int, Arrived]]) -> None:
        """Tell the broker that these are stored; those of an old connection come again."""
        self._acks.extend((generation, one.mid) for generation, one in stored if one.qos)
        self.ring()

    def tell(self, topic: str, payload: bytes) -> None:
        """Publish retained, as soon as it can be; a later word on the same topic replaces it."""
        with self._turn:
            self._outbox[topic] = payload

    def ring(self) -> None:
        """Have what was told sent now."""
        with suppress(OSError):
            self._bell.send(b"!")

    def again(self) -> None:
        """Give the connection up and make a fresh one."""
        self._giving_up = self.link.generation
        self.ring()

    def alive(self) -> bool:
        """Return whether the thread lives."""
        return self._thread.is_alive()

    def stop(self, timeout_s: float) -> None:
        """Say goodbye; the session stays, so that nothing is missed until we are back."""
        self._stopping.set()
        self.ring()
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            self._ear.close()
            self._bell.close()

    # ------------------------------------------------------------ the thread

    def _live_on(self) -> None:
        wait_s = 0.0
        while not self._stopping.wait(wait_s):
            self.link.generation += 1
            self._unanswered.clear()
            with self._turn:
                self._outbox.clear()  # because whoever tells starts over with each connection
            self.link.subscribed_s = 0.0
            self.link.text, cause = self._once()
            self.link.connection = "down"
            up_s = time.monotonic() - self.link.subscribed_s if self.link.subscribed_s else None
            self._backoff = self._backoff.ended(up_s)
            wait_s = self._backoff.wait_s(cause, up_s, self._random)

    def _once(self) -> tuple[str, Cause]:
        """Hold one connection until it ends; return a sentence about that, and for how long."""
        try:
            connection = Connection(
                self._broker, Manner(self._wanted.session_s, acks="asked"), self._heard
            )
        except EdgeAgentError as error:
            return str(error), "ordinary"
        try:
            connection.open()
            connection.subscribe(self._wanted.filters, self._wanted.echo)
            link = self.link
            link.subscribed_s, link.text, link.connection = time.monotonic(), "connected", "up"
            self._serve(connection)
        except NotHeldError as error:
            return str(error), error.cause
        except EdgeAgentError as error:
            return str(error), "ordinary"
        except Exception:  # noqa: BLE001  # because the thread outlives each connection
            return "a fault of ours ended the connection: " + traceback.format_exc(), "ordinary"
        finally:
            connection.discard()
        return "disconnected as asked", "ordinary"

    def _serve(self, connection: Connection) -> None:
        while not self._stopping.is_set() and self._giving_up != self.link.generation:
            self._hand_over(connection)
            connection.step(1.0, self._ear)
        self._hand_over(connection)
        connection.close()

    def _hand_over(self, connection: Connection) -> None:
        """Give the connection what it can write; the rest waits where it is bounded."""
        while self._acks:
            generation, mid = self._acks.popleft()
            if generation == self.link.generation:
                connection.ack(mid)
        self._unanswered.difference_update(mid for mid, _ in connection.answers())
        while len(self._unanswered) < _MOST_UNANSWERED and not connection.congested():
            with self._turn:
                if not self._outbox:
                    return
                topic, payload = self._outbox.popitem(last=False)
            self._unanswered.add(connection.publish(Letter(topic, payload, "retained")))

    def _heard(self, one: Arrived) -> None:
        if not one.qos and self.arrived.qsize() > _MOST_PASSING:
            self.link.dropped += 1
            return
        self.arrived.put((self.link.generation, one))
