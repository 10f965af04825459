"""How does the mirror reach the broker?

A thread of its own beside a link of its own, because the node needs a will of its own. Everything
comes to it through one queue, so that `Mirror` needs no lock; nobody who hands readings over ever
waits. What cannot be sent at once is not sent later: the connection is given up, and the next birth
shows everything.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Literal, Protocol

from edgeagent.publish.sparkplug import Metric
from edgeagent.publish.sparkplug_mirror import (
    NAMESPACE,
    Action,
    HangUp,
    Mirror,
    Names,
    death,
    next_bdseq,
)
from edgeagent.publish.topics import Topics
from edgeagent.publish.wire import Command, Down, Link, Message, Rx, Session, Up

BDSEQ_NAME = "bdseq"
_STOP_S = 5.0


class Notes(Protocol):
    """Where the bdSeq outlives the agent; the spool is one."""

    def get(self, name: str) -> str | None:
        """The note of this name."""
        ...

    def put(self, name: str, value: str) -> None:
        """Keep a note for good."""
        ...


@dataclass(frozen=True)
class HostTopics(Topics):
    """What a link is to subscribe to: node commands, and the state of a primary host.

    A link hears two topics. What it calls receipts are the node commands here; what it calls
    commands is the state of the primary host, heard only when the broker's `commands` are "heard".
    """

    names: Names

    @property
    def receipts(self) -> str:
        """Node commands."""
        return self.names.commands

    @property
    def commands(self) -> str:
        """The primary host's state."""
        return self.names.host_state or self.names.commands

    def full(self, below: str) -> str:
        """The one topic below which a "command" can come."""
        return self.commands if below.startswith("cmd") else super().full(below)


def host_topics(names: Names) -> HostTopics:
    """The topics for the link of a mirror with these names."""
    return HostTopics(NAMESPACE, names)


@dataclass(frozen=True)
class _Readings:
    metrics: tuple[Metric, ...]
    device: str | None


@dataclass(frozen=True)
class _Gone:
    device: str


@dataclass(frozen=True)
class _Stop:
    pass


class SparkplugClient:
    """The mirror at work: readings go in, and the host sees them while there is a connection.

    `link` makes a fresh link with `host_topics`, a clean session without expiry and no will delay.
    """

    def __init__(
        self, names: Names, link: Callable[[], Link], notes: Notes, now_ms: Callable[[], int]
    ) -> None:
        self._names, self._make_link, self._notes, self._now_ms = names, link, notes, now_ms
        self._mirror = Mirror(names)
        self._link = link()
        self._generation = 0
        # Any: the link puts its events beside what others hand over, and queues are invariant
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self._thread = threading.Thread(target=self._live_on, name="sparkplug", daemon=True)

    def start(self) -> None:
        """Begin to connect."""
        self._link.start(self._inbox, self._session)
        self._thread.start()

    def readings(self, metrics: Iterable[Metric], device: str | None = None) -> None:
        """New values of the node or of a device; any thread may call, and never waits."""
        self._inbox.put(_Readings(tuple(metrics), device))

    def gone(self, device: str) -> None:
        """A device is no more."""
        self._inbox.put(_Gone(device))

    def alive(self) -> bool:
        """Whether both threads live."""
        return self._thread.is_alive() and self._link.alive()

    def stop(self, timeout_s: float = _STOP_S) -> Literal["stopped", "abandoned"]:
        """Send NDEATH, disconnect, and end the threads."""
        self._inbox.put(_Stop())
        self._thread.join(timeout_s)
        return "abandoned" if self._thread.is_alive() else "stopped"

    # ------------------------------------------------------------------------ the link's thread

    def _session(self) -> Session:
        """A new bdSeq for every attempt, kept before it is used."""
        noted = self._notes.get(BDSEQ_NAME)
        bdseq = next_bdseq(int(noted) if noted is not None and noted.isdigit() else None)
        self._notes.put(BDSEQ_NAME, str(bdseq))
        will = death(self._names, bdseq, self._now_ms())
        return Session(bdseq, f"bdseq-{bdseq}", will.topic, will.payload, will_retain="passing")

    # --------------------------------------------------------------------------- our own thread

    def _live_on(self) -> None:
        while not isinstance(item := self._inbox.get(), _Stop):
            self._do(self._decided(item))
        self._do(self._mirror.leaving(self._now_ms()))
        self._link.stop(_STOP_S)

    def _decided(self, item: object) -> Sequence[Action]:
        now_ms = self._now_ms()
        match item:
            case Up():
                self._generation = item.generation
                return self._mirror.connected(item.session.n, now_ms)
            case Down():
                self._mirror.lost()
            case Rx():
                return self._mirror.received(self._names.commands, item.payload, now_ms)
            case Command():
                self._link.ack(item)
                return self._mirror.received(item.topic, item.payload, now_ms)
            case _Readings():
                return self._mirror.readings(item.metrics, now_ms, item.device)
            case _Gone():
                return self._mirror.gone(item.device, now_ms)
        return ()

    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, HangUp):
                self._connect_anew()
                return
            message = Message(action.topic, action.payload, action.qos)
            refused = self._link.send(message, self._generation)
            if refused is None:
                continue
            self._mirror.lost()  # a host must not see a seq that was left out
            if refused == "full":
                self._connect_anew()
            return  # what is not connected says so itself, and comes back in its own time

    def _connect_anew(self) -> None:
        self._link.stop(_STOP_S)
        self._link = self._make_link()
        self._link.start(self._inbox, self._session)
