"""Requests over a real mosquitto: each fault with its code, and a connection that outlives them."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from random import Random
from typing import Literal

import paho.mqtt.client as paho
import pytest
from broker_places import PATIENCE_S, Mosquitto, mosquitto, observer
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from edgeagent.core.backoff import Pace
from edgeagent.publish.commands import Arrived, Refused, Request, received
from edgeagent.publish.link import Broker, PahoLink
from edgeagent.publish.topics import Topics
from edgeagent.publish.wire import Command, Event, Session, Up

TOPICS = Topics("edgeagent/v1/plant7/edge-0001")
SWIFT = Pace(first_s=0.0, return_s=0.1, most_s=0.2, refused_s=0.1, taken_over_s=0.2, stable_s=0.5)
ID = "0b2f6a5e-1111-4222-8333-444455556666"
REQUEST: Mapping[str, object] = {
    "schema": "edgeagent.cmd.ping/1",
    "id": ID,
    "issued_at": 1_796_006_000_000,
    "expires_at": 1_796_009_600_000,
    "issuer": "plant-operator",
}
TOPIC = TOPICS.full(f"cmd/ping/{ID}")
WHOLE = json.dumps(REQUEST).encode()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    with mosquitto(tmp_path / "broker") as made:
        yield made


class Box:
    """A link that hears commands, and what `received` makes of them."""

    def __init__(self, port: int) -> None:
        self.events: SimpleQueue[Event] = SimpleQueue()
        numbers = itertools.count(1)
        self.link = PahoLink(
            Broker("127.0.0.1", port, "edge-0001", plaintext="allowed", commands="heard"),
            TOPICS,
            Random(1),
            SWIFT,
        )
        self.link.start(self.events, lambda: Session(next(numbers), "s", TOPICS.status, b"gone"))
        while not isinstance(self.events.get(timeout=PATIENCE_S), Up):
            pass

    def next(self) -> Request | Refused | None:
        """What the next message that comes is; nothing else may happen before it."""
        try:
            event = self.events.get(timeout=PATIENCE_S)
        except Empty:
            raise AssertionError("no command came") from None
        assert isinstance(event, Command), event
        self.link.ack(event)
        below = TOPICS.below(event.topic)
        assert below is not None
        retain: Literal["live", "retained"] = "retained" if event.retain == "retained" else "live"
        return received(Arrived(below, event.payload, retain), None)

    def code(self) -> str | None:
        outcome = self.next()
        return outcome.rejected.code if isinstance(outcome, Refused) else None


@contextmanager
def box(port: int) -> Iterator[Box]:
    made = Box(port)
    try:
        yield made
    finally:
        assert made.link.stop(PATIENCE_S) == "stopped"


def test_each_fault_has_its_code_and_the_connection_stands(broker: Mosquitto) -> None:
    faults = [
        (WHOLE, None),
        (b"\xff\xfe", "schema"),
        (b"{", "schema"),
        (b"[" * 5000, "too_large"),
        (b" " * 9216, "too_large"),
        (json.dumps({**REQUEST, "more": 1}).encode(), "schema"),
        (json.dumps({**REQUEST, "issued_at": "now"}).encode(), "schema"),
        (WHOLE, None),
    ]
    with box(broker.port) as agent, observer(broker.port, ()) as plant:
        for payload, expected in faults:
            plant.publish(TOPIC, payload)
            assert agent.code() == expected


def test_a_retained_request_is_known_as_such_at_once_and_at_the_next_connection(
    broker: Mosquitto,
) -> None:
    with observer(broker.port, ()) as plant:
        with box(broker.port) as agent:
            plant.publish(TOPIC, WHOLE, retain=True)
            assert agent.code() == "retained"
        with box(broker.port) as agent:
            assert agent.code() == "retained"
            plant.publish(TOPIC, b"", retain=True)
            assert agent.next() is None
            plant.publish(TOPIC, WHOLE)
            assert agent.code() is None


def test_a_sender_with_an_older_protocol_is_understood(broker: Mosquitto) -> None:
    with box(broker.port) as agent:
        old = paho.Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv311)
        old.connect("127.0.0.1", broker.port)
        old.loop_start()
        old.publish(TOPIC, WHOLE, 1).wait_for_publish(PATIENCE_S)
        assert agent.code() is None
        old.disconnect()
        old.loop_stop()


def fuzzed(rng: random.Random) -> tuple[str, bytes]:
    """A topic below cmd/ and a payload: noise, or a request with some bytes changed."""
    levels = [rng.choice(("ping", "sweep", "é", "", "..", ID, "x" * 200)) for _ in range(3)]
    topic = rng.choice((TOPIC, TOPICS.full("cmd/" + "/".join(levels[: rng.randint(1, 3)]))))
    data = bytearray(rng.choice((WHOLE, rng.randbytes(rng.randint(0, 300)), b"{" * 9000)))
    for _ in range(rng.randint(0, 3)):
        if data:
            data[rng.randrange(len(data))] = rng.randrange(256)
    return topic, bytes(data)


def test_10000_messages_of_any_kind_leave_the_connection_standing(broker: Mosquitto) -> None:
    rng = random.Random(20261130)
    with box(broker.port) as agent, observer(broker.port, ()) as plant:
        for _ in range(100):
            messages = [fuzzed(rng) for _ in range(100)]
            for topic, payload in messages:
                plant._client.publish(topic, payload, 1)
            for _ in messages:
                agent.next()
        assert agent.link.alive()
        plant.publish(TOPIC, WHOLE)
        assert agent.code() is None
