"""Where does a pump run in a test: with a real spool, and a broker in memory or a real one?"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from broker_places import Seen, until

from edgeagent.core.backoff import Pace
from edgeagent.core.delivery import Entry, Stamp, Stream
from edgeagent.core.eviction import SpoolLimits
from edgeagent.core.window import Limits
from edgeagent.publish.fake import FakeBroker, FakeLink
from edgeagent.publish.link import Broker, PahoLink
from edgeagent.publish.pump import Around, Manner, Pump
from edgeagent.publish.spool import Spool
from edgeagent.publish.status import About
from edgeagent.publish.topics import DEFAULT_PREFIX, Identity, Topics, topics
from edgeagent.publish.wire import Command, Link, Message

IDENTITY = Identity("plant7", "edge-0001")
TOPICS = topics(DEFAULT_PREFIX, IDENTITY)
SWIFT = Pace(
    first_s=0.0, return_s=0.2, most_s=0.5, refused_s=0.2, taken_over_s=300.0, stable_s=60.0
)
"""Waits for tests; only who was thrown out waits as long as in the field."""


def stamp() -> Stamp:
    return Stamp(time.time_ns() // 1_000_000, "77ca4c85", time.monotonic_ns() // 1_000_000, "sync")


def entry(stream: Stream, topic: str = "", size: int = 0, **values: object) -> Entry:
    """Something to deliver; `size` pads it."""
    below = topic or ("r/point/run-1" if stream == "R" else "m/mem_1m")
    name = below.split("/")[1]
    value: dict[str, object] = {"concurrency": 1, **values}
    if size:
        value["pad"] = "x" * size
    return Entry(stream, below, f"edgeagent.{name}/1", stamp(), value)


class Hands:
    """A monotonic clock that runs, and can be moved forward."""

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def now_s(self) -> float:
        return time.monotonic() + self._ahead_s

    def advance(self, seconds: float) -> None:
        self._ahead_s += seconds


@dataclass
class Rig:
    """A pump at work, and everything around it."""

    pump: Pump
    spool: Spool
    hands: Hands
    notes: list[tuple[str, Mapping[str, object]]]
    commands: list[Command]
    about: About = field(default_factory=lambda: About("0.1"))

    def commit(self, how_many: int, stream: Stream = "R", topic: str = "") -> list[int]:
        """Put rows into the spool; return their numbers."""
        if stream == "R":
            rows = self.spool.commit_all([entry("R", topic, n=n) for n in range(how_many)])
            self.pump.wake()
            return [row.seq for row in rows]
        before = self.spool.stats().streams["M"].last_seq
        for n in range(how_many):
            self.spool.add(entry("M", topic, n=n))
        assert self.spool.flush() is None
        self.pump.wake()
        return list(range(before + 1, before + how_many + 1))

    def advance(self, seconds: float) -> None:
        self.hands.advance(seconds)
        self.pump.wake()

    def noted(self, name: str) -> list[Mapping[str, object]]:
        return [fields for said, fields in list(self.notes) if said == name]

    def settled(self, turns: int = 3) -> None:
        """Wait until the pump has gone round a few times."""
        for _ in range(turns):
            before = self.pump.state().turned_s
            self.pump.wake()
            until(lambda before=before: self.pump.state().turned_s > before, "a turn")  # type: ignore[misc]  # because mypy cannot type a default in a lambda


@contextmanager
def rig(
    folder: Path, link_for: Callable[[Topics], Link], manner: Manner | None = None
) -> Iterator[Rig]:
    """A pump over a real spool; started, and stopped at the end."""
    spool = Spool.open(folder / "spool.db", SpoolLimits(), "box", stamp)
    hands = Hands()
    notes: list[tuple[str, Mapping[str, object]]] = []
    commands: list[Command] = []
    made: Rig
    around = Around(
        now_s=hands.now_s,
        stamp=stamp,
        about=lambda: made.about,
        command=commands.append,
        note=lambda name, fields: notes.append((name, fields)),
        random=Random(7),
    )
    pump = Pump(spool, link_for(TOPICS), TOPICS, IDENTITY, manner or quick(), around)
    made = Rig(pump, spool, hands, notes, commands)
    pump.start()
    try:
        yield made
    finally:
        assert pump.stop("shutdown", 20.0) == "stopped"
        spool.close()


def quick(**limits: Any) -> Manner:
    """As in the field, except that nothing waits to spread a fleet out."""
    setting = limits.pop("setting", "auto")
    return Manner(setting, Limits(**limits), backfill_jitter_s=0.0, figures_every_s=0.05)


@contextmanager
def fake_rig(folder: Path, broker: FakeBroker, manner: Manner | None = None) -> Iterator[Rig]:
    with rig(folder, lambda its: FakeLink(broker, its), manner) as made:
        yield made


@contextmanager
def real_rig(
    folder: Path, broker: Broker, manner: Manner | None = None, pace: Pace = SWIFT
) -> Iterator[Rig]:
    with rig(folder, lambda its: PahoLink(broker, its, Random(3), pace), manner) as made:
        yield made


class Receiver:
    """A collector in a test: takes rows, dedupes by key, says how far it has got."""

    def __init__(self, answer: Callable[[bytes], None] | None) -> None:
        self.rows: dict[tuple[str, str, int], dict[str, Any]] = {}
        self.lost: set[tuple[str, str, int]] = set()
        self.duplicates = 0
        self._upto: dict[tuple[str, Stream], int] = {}
        self._answer = answer
        self._lock = threading.Lock()

    def see(self, seen: Seen) -> None:
        """Take what an observer sees."""
        self.take(seen.topic, seen.payload)

    def take(self, topic: str, payload: bytes) -> None:
        """Take one message; others than rows are passed."""
        below = TOPICS.below(topic) or ""
        if below[:2] not in {"r/", "e/", "m/"} or not payload:
            return
        document = json.loads(payload)
        if document.get("stream") not in {"R", "M"}:
            return
        key = (document["epoch"], document["stream"], document["seq"])
        with self._lock:
            self.duplicates += key in self.rows
            self.rows[key] = document
            if document["schema"] == "edgeagent.gap/1":
                lost = document["v"]
                life, of = document["epoch"], lost["stream"]
                self.lost |= {(life, of, seq) for seq in range(lost["from"], lost["to"] + 1)}
        if self._answer is not None:
            self._answer(self.receipt(document["epoch"]))

    def numbers(self, stream: Stream) -> list[int]:
        """The numbers that came, each once, in the order of arrival."""
        with self._lock:
            return [seq for _, of, seq in self.rows if of == stream]

    def watermark(self, epoch: str, stream: Stream) -> int:
        """The highest number up to which everything came or was declared lost."""
        with self._lock:
            at = self._upto.get((epoch, stream), 0)
            while (epoch, stream, at + 1) in self.rows or (epoch, stream, at + 1) in self.lost:
                at += 1
            self._upto[(epoch, stream)] = at
            return at

    def receipt(self, epoch: str, u: int | None = None) -> bytes:
        document: dict[str, object] = {
            "epoch": epoch,
            "wm": {"R": self.watermark(epoch, "R"), "M": self.watermark(epoch, "M")},
        }
        if u is not None:
            document["u"] = u
        return json.dumps(document).encode()


def rows_in(broker: FakeBroker, stream: Stream = "R") -> list[int]:
    """The numbers that a broker in memory took, duplicates included."""
    found = []
    for message in list(broker.got):
        document = json.loads(message.payload) if message.payload else {}
        if document.get("stream") == stream:
            found.append(document["seq"])
    return found


def status_of(broker: FakeBroker) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(broker.retained.get(TOPICS.status, b"{}"))
    return document


def is_kind(message: Message, *kinds: str) -> bool:
    below = TOPICS.below(message.topic) or ""
    return any(below.startswith(what) for what in kinds)
