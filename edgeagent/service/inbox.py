"""What comes to the daemon's thread from others, and in which number at most?"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from edgeagent.core.model import MemorySample
from edgeagent.publish.wire import Command as Message
from edgeagent.service.doorway import Ask

_MOST_MESSAGES = 1000
_MOST_SAMPLES = 100
"""In the queue; a sample or message beyond that is let go, so that it cannot grow."""
_MOST_A_TURN = 100


@dataclass(frozen=True)
class Sampled:
    """The box was looked at."""

    sample: MemorySample


@dataclass(frozen=True)
class Signalled:
    """Somebody sent us a signal."""

    number: int


Item = Message | Ask | Sampled | Signalled


class Inbox:
    """What comes in from other threads; what nobody takes out does not pile up."""

    def __init__(self) -> None:
        # This queue may be put into from a signal handler, others deadlock there.
        self._items: SimpleQueue[Item] = SimpleQueue()
        self._dropped = 0

    def put(self, item: Signalled | Ask) -> None:
        """Take it in any case: people and signals are few."""
        self._items.put(item)

    def sample(self, sample: MemorySample) -> None:
        """Take a sample, unless many wait."""
        if self._items.qsize() < _MOST_SAMPLES:
            self._items.put(Sampled(sample))

    def message(self, message: Message) -> bool:
        """Take a message, unless many wait; return whether it was taken."""
        if self._items.qsize() >= _MOST_MESSAGES:
            self._dropped += 1
            return False
        self._items.put(message)
        return True

    def overlooked(self) -> int:
        """Return how many messages were not taken since the last call."""
        count = self._dropped
        self._dropped -= count
        return count

    def take(self, wait_s: float) -> list[Item]:
        """Return what is there, waiting for the first of it."""
        items: list[Item] = []
        with suppress(Empty):
            items.append(self._items.get(timeout=wait_s))
            while len(items) < _MOST_A_TURN:
                items.append(self._items.get_nowait())
        return items
