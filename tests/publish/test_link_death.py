"""What the plant sees of a box that dies without a goodbye, and of one that only blinks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from broker_places import Mosquitto, mosquitto, observer, retained_at, until
from link_places import TOPICS

CHILD = """
import itertools, queue, sys
from random import Random
from edgeagent.core.backoff import Pace
from edgeagent.publish.link import Broker, PahoLink
from edgeagent.publish.topics import Topics
from edgeagent.publish.wire import Message, Session, Up

port, delay, n = map(int, sys.argv[1:])
topics = Topics("edgeagent/v1/plant7/edge-0001")
broker = Broker("127.0.0.1", port, "edge-0001", will_delay_s=delay)
link, events = PahoLink(broker, topics, Random(1), Pace(first_s=0.0)), queue.SimpleQueue()
link.start(events, lambda: Session(n, "s", topics.status, b"offline %d" % n))
up = events.get()
assert isinstance(up, Up), up
link.send(Message(topics.status, b"online %d" % n, retain="retained", token=1), up.generation)
events.get()
print("online", flush=True)
sys.stdin.read()
"""


@contextmanager
def box(broker: Mosquitto, delay_s: int, session_n: int) -> Iterator[subprocess.Popen[str]]:
    """An agent's link in a process of its own, online; killed at the end."""
    words = [sys.executable, "-c", CHILD, str(broker.port), str(delay_s), str(session_n)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "online\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_killed_box_is_offline_after_the_delay_of_its_will(tmp_path: Path) -> None:
    with mosquitto(tmp_path) as broker:
        with box(broker, 1, 1):
            assert retained_at(broker.port, TOPICS.status) == b"online 1"
        until(lambda: retained_at(broker.port, TOPICS.status) == b"offline 1", "the will")


def test_a_box_that_is_back_within_the_delay_was_never_offline(tmp_path: Path) -> None:
    with mosquitto(tmp_path) as broker, observer(broker.port, (TOPICS.status,)) as plant:
        with box(broker, 3600, 1):
            pass
        with box(broker, 3600, 2):
            until(lambda: b"online 2" in [seen.payload for seen in plant.seen], "back")
        assert [seen.payload for seen in plant.seen] == [b"online 1", b"online 2"]


def test_a_box_that_takes_over_from_itself_leaves_the_newer_status(tmp_path: Path) -> None:
    """The old connection is still open at the broker when the new one comes: a dead cable."""
    with (
        mosquitto(tmp_path) as broker,
        observer(broker.port, (TOPICS.status,)) as plant,
        box(broker, 30, 1) as old,
    ):
        old.send_signal(19)  # SIGSTOP: it neither closes nor answers
        with box(broker, 30, 2):
            until(lambda: b"online 2" in [seen.payload for seen in plant.seen], "taken over")
            assert retained_at(broker.port, TOPICS.status) == b"online 2"
            assert b"offline 1" not in [seen.payload for seen in plant.seen]
