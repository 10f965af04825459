"""How does a test hold a real link and wait for what it says?"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from random import Random
from typing import TypeVar

from broker_places import PATIENCE_S

from edgeagent.core.backoff import Pace
from edgeagent.publish.link import Broker, PahoLink
from edgeagent.publish.topics import Topics
from edgeagent.publish.wire import Event, Session

TOPICS = Topics("edgeagent/v1/plant7/edge-0001")
SWIFT = Pace(first_s=0.0, return_s=0.05, most_s=0.1, refused_s=0.1, taken_over_s=0.2, stable_s=60.0)

E = TypeVar("E", bound=Event)


class Held:
    """A link that was started, and its events in order."""

    def __init__(self, broker: Broker, pace: Pace) -> None:
        self.link = PahoLink(broker, TOPICS, Random(1), pace)
        self.events: SimpleQueue[Event] = SimpleQueue()
        self.passed: list[Event] = []
        numbers = itertools.count(1)
        self.link.start(self.events, lambda: Session(next(numbers), "name", TOPICS.status, b"gone"))

    def next(self, kind: type[E]) -> E:
        """The next event of a kind; others before it are kept in `passed`."""
        while True:
            try:
                event = self.events.get(timeout=PATIENCE_S)
            except Empty:
                raise AssertionError(f"no {kind.__name__} came after {self.passed}") from None
            if isinstance(event, kind):
                return event
            self.passed.append(event)


@contextmanager
def held(broker: Broker, pace: Pace = SWIFT) -> Iterator[Held]:
    made = Held(broker, pace)
    try:
        yield made
    finally:
        assert made.link.stop(30.0) == "stopped"
