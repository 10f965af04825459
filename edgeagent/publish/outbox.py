"""How do other threads hand something to the link's, without a lock and without waiting?"""

from __future__ import annotations

import socket
import threading
from collections import deque
from contextlib import suppress

from edgeagent.publish.wire import Message, Refused

_MOST_WAITING = 1000
"""Messages that wait for the link's thread; the pump's window is far smaller."""
_MOST_LIVE = 4
"""Live readings that wait; more mean that the socket does not take them."""


class Outbox:
    """Queues that one thread fills and another empties, and a bell (a socket pair)."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self.urgent: deque[tuple[int, Message]] = deque()
        self.rows: deque[tuple[int, Message]] = deque()
        self.live: deque[Message] = deque()
        self.acks: deque[tuple[int, int]] = deque()
        self.generation = 0
        """Of the connection that stands, 0 when none does."""
        self.bell, self._rope = socket.socketpair()
        self.bell.setblocking(False)
        self._rope.setblocking(False)

    def take(self, message: Message, generation: int) -> Refused | None:
        """Take a message for one connection; None when taken."""
        if generation != self.generation:
            return "not_connected"
        queue = self.urgent if message.retain == "retained" else self.rows
        if len(queue) >= _MOST_WAITING:
            return "full"
        queue.append((generation, message))
        self.wake()
        return None

    def take_live(self, message: Message) -> Refused | None:
        """Take a live reading unless others still wait; None when taken."""
        if not self.generation:
            return "not_connected"
        if len(self.live) >= _MOST_LIVE:
            return "full"
        self.live.append(message)
        self.wake()
        return None

    def wake(self) -> None:
        """Ring the bell, so that the link's thread looks."""
        with suppress(OSError):  # because a bell that already rings is enough
            self._rope.send(b"\0")

    def heard(self) -> None:
        """Silence the bell."""
        with suppress(OSError):
            self.bell.recv(4096)

    def opened(self, generation: int) -> None:
        """A connection stands; what was measured before it is too old."""
        self.live.clear()
        self.generation = generation

    def closed(self) -> None:
        """No connection stands; what was for it is dropped."""
        self.generation = 0
        for queue in (self.urgent, self.rows, self.live, self.acks):
            queue.clear()

    def close(self) -> None:
        """Close the bell; nothing is taken after that."""
        self.bell.close()
        self._rope.close()
