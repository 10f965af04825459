"""What every connection has to do, the real one to a real mosquitto and the one in memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from random import Random

import pytest
from broker_places import PATIENCE_S, mosquitto, observer, until

from edgeagent.core.backoff import Pace
from edgeagent.publish.fake import FakeBroker, FakeLink
from edgeagent.publish.link import Broker, PahoLink
from edgeagent.publish.topics import Topics
from edgeagent.publish.wire import Answer, Command, Down, Event, Link, Message, Rx, Session, Up

TOPICS = Topics("edgeagent/v1/plant7/edge-0001")
SWIFT = Pace(first_s=0.0, return_s=0.1, most_s=0.2, refused_s=0.1, taken_over_s=0.2, stable_s=0.5)


@dataclass
class Place:
    """A link that has started, and the other side of it."""

    link: Link
    events: SimpleQueue[Event]
    arrived: Callable[[], list[tuple[str, bytes]]]
    publish: Callable[[str, bytes], None]
    break_: Callable[[], None]
    """End the connection from the other side; it may be taken up again at once."""

    def next(self, kind: type[Event]) -> Event:
        """The next event of a kind; others before it are passed."""
        while True:
            try:
                event = self.events.get(timeout=PATIENCE_S)
            except Empty:
                raise AssertionError(f"no {kind.__name__} came") from None
            if isinstance(event, kind):
                return event

    def up(self) -> Up:
        event = self.next(Up)
        assert isinstance(event, Up)
        return event


def sessions() -> Callable[[], Session]:
    numbers = itertools.count(1)

    def following() -> Session:
        n = next(numbers)
        return Session(n, f"session-{n}", TOPICS.status, b"gone")

    return following


@contextmanager
def real(folder: Path) -> Iterator[Place]:
    with mosquitto(folder) as broker, observer(broker.port) as other:
        here = Broker(
            "127.0.0.1", broker.port, "edge-0001", commands="heard", will_delay_s=0, keepalive_s=5
        )
        link = PahoLink(here, TOPICS, Random(1), SWIFT)
        events: SimpleQueue[Event] = SimpleQueue()
        link.start(events, sessions())
        yield Place(
            link,
            events,
            lambda: [(seen.topic, seen.payload) for seen in list(other.seen)],
            other.publish,
            broker.restart,
        )
        link.stop(10.0)


@contextmanager
def in_memory(_: Path) -> Iterator[Place]:
    broker = FakeBroker()
    link = FakeLink(broker, TOPICS)
    events: SimpleQueue[Event] = SimpleQueue()
    link.start(events, sessions())

    def break_() -> None:
        broker.close()
        broker.open()

    yield Place(
        link,
        events,
        lambda: [(message.topic, message.payload) for message in broker.got],
        broker.deliver,
        break_,
    )
    link.stop(1.0)


@pytest.fixture(params=[real, in_memory], ids=["mosquitto", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with request.param(tmp_path / "broker") as made:
        yield made


def test_a_connection_introduces_itself_with_the_session_that_was_asked_for(place: Place) -> None:
    up = place.up()
    assert (up.generation, up.session.n, up.protocol) == (1, 1, "5")


def test_a_message_arrives_and_its_token_comes_back_with_the_answer(place: Place) -> None:
    up = place.up()
    message = Message(TOPICS.full("r/run/1"), b"{}", token=("R", 1))
    assert place.link.send(message, up.generation) is None
    answer = place.next(Answer)
    assert isinstance(answer, Answer)
    assert (answer.token, answer.code) == (("R", 1), 0)
    until(lambda: (TOPICS.full("r/run/1"), b"{}") in place.arrived(), "the message arrives")


def test_a_message_for_a_connection_that_is_gone_is_refused(place: Place) -> None:
    up = place.up()
    assert place.link.send(Message("a/b", b""), up.generation + 1) == "not_connected"


def test_a_live_reading_arrives(place: Place) -> None:
    place.up()
    assert place.link.live(Message(TOPICS.full("m/mem"), b"1", qos=0)) is None
    until(lambda: (TOPICS.full("m/mem"), b"1") in place.arrived(), "the reading arrives")


def test_receipts_and_commands_come_as_such_and_nothing_else_comes(place: Place) -> None:
    place.up()
    place.publish(TOPICS.full("m/mem"), b"not ours to read")
    place.publish(TOPICS.receipts, b"receipt")
    place.publish(TOPICS.full("cmd/ping/1"), b"command")
    receipt, command = place.next(Rx), place.next(Command)
    assert isinstance(receipt, Rx)
    assert isinstance(command, Command)
    assert receipt.payload == b"receipt"
    assert (command.topic, command.payload, command.retain) == (
        TOPICS.full("cmd/ping/1"),
        b"command",
        "passing",
    )
    place.link.ack(command)


def test_a_connection_that_ends_is_followed_by_one_with_a_new_session(place: Place) -> None:
    first = place.up()
    place.break_()
    down = place.next(Down)
    assert isinstance(down, Down)
    assert (down.generation, down.ending) == (first.generation, "closed")
    assert down.up_s is not None
    second = place.up()
    assert second.generation > first.generation
    assert second.session.n > first.session.n
    assert place.link.send(Message("a/b", b""), first.generation) == "not_connected"


def test_a_link_that_was_stopped_is_not_alive(place: Place) -> None:
    place.up()
    assert place.link.alive()
    assert place.link.stop(10.0) == "stopped"
    assert not place.link.alive()
    down = place.next(Down)
    assert isinstance(down, Down)
    assert down.ending == "ours"
