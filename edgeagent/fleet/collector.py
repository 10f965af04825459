"""How do the boxes' messages get into the store, so that nothing is lost wherever something ends?

One loop: take what came, judge it, write it in one transaction, acknowledge it to the broker, tell
the boxes how far they are stored. Nothing is acknowledged before it is on the disk, and nothing is
told that the store does not say; everything else may be lost at any moment and comes again.

While the database is away the same messages are tried again. The broker sends at most
`client.RECEIVE_MAXIMUM` ahead, so memory stays as it is, and the boxes wait for their receipts.
"""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any, TypeAlias

from edgeagent.fleet.batch import Recent
from edgeagent.fleet.client import Arrived
from edgeagent.fleet.intake import MOST_JUMP, Incoming, Verdict, aside, judge
from edgeagent.fleet.listener import Listener, Subscription
from edgeagent.fleet.places import Layout
from edgeagent.fleet.receipts import Receipts, Telling
from edgeagent.fleet.store import (
    Batch,
    GapRow,
    RowRefusedError,
    Store,
    StoreAwayError,
    StreamKey,
    Taken,
)
from edgeagent.journal import Journal
from edgeagent.systemd import Notifier

BATCH = 1_000
_WAIT_S = 0.1
_FIRST_RETRY_S, _LAST_RETRY_S = 0.25, 10.0
_BEFORE_RECEIPTS_S = 1.0
"""After subscribing, what boxes were told earlier is heard first: a store that was restored from a
backup has to learn what they have forgotten meanwhile."""
_ASK_AGAIN_S = 10.0
_SILENCE_S = 900.0
"""Every box says something every five minutes."""
_MOST_REFUSED = 20
"""So many rows in a row may be bad."""
_SAY_S = 10.0
_TIDY_S, _TIDY_IDLE_S, _HOURS_AT_ONCE = 0.5, 60.0, 20
_STREAMS = ("R", "M")
_Came: TypeAlias = tuple[int, Arrived]
"""A message, and the connection that it came on."""


@dataclass(frozen=True)
class Rules:
    """What the operator says."""

    layout: Layout
    queue: int
    """Messages that the broker keeps for one subscriber."""
    share: str | None = None
    """Name of the shared subscription, None for a collector of its own."""
    keep_ms: int = 90 * 86_400_000
    """How long minutes of telemetry are kept; hours stay."""
    owners: Mapping[str, str] | None = None
    """Site of each node; None: whoever comes first owns a name."""

    def subscription(self) -> Subscription:
        """What to listen to."""
        names = (*self.layout.state(), *self.layout.rows(self.share))
        if self.share is None:
            return Subscription(names, self.layout.receipts_filter)
        # A member that is away must leave its group at once: a broker goes on dealing its part to
        # a session that waits for it. What it had is sent again, for want of a receipt.
        return Subscription(names, self.layout.receipts_filter, session_s=0)


@dataclass
class Counts:
    """What happened since the start."""

    stored: int = 0
    known: int = 0
    quarantined: Counter[str] = field(default_factory=Counter)
    away: int = 0


@dataclass(frozen=True)
class Around:
    """Who is told about the collector's own state."""

    journal: Journal
    notifier: Notifier


class Collector:
    """See the module. `run` returns when `stopping` is set."""

    def __init__(self, store: Store, listener: Listener, rules: Rules, around: Around) -> None:
        self._store, self._listener, self._rules, self._around = store, listener, rules, around
        self._receipts = Receipts(
            store,
            rules.layout,
            rules.queue,
            Telling(listener.tell, time.monotonic, _now_ms),
        )
        self._recent = Recent()
        self._owners: dict[str, str] = {}
        self._asked_s: dict[str, float] = {}
        self._marks: dict[StreamKey, int] = {}
        self._generation = self._refused = 0
        self._connection = "down"
        self._said_s = self._heard_s = time.monotonic()
        self._tidy_s = self._said_s
        self._warned_of: int | None = None
        self._said_stored = 0
        self.counts = Counts()

    def run(self, stopping: Event) -> None:
        """Collect until somebody says stop."""
        self._listener.start()
        self._around.notifier.ready("connecting")
        while not stopping.is_set():
            arrived = self._listener.take(BATCH, _WAIT_S)
            self._listen(arrived)
            if arrived and not self._keep(arrived, stopping):
                break
            self._tell()
            self._say()
        self._around.notifier.stopping("stopping")
        self._listener.stop(10.0)

    def _listen(self, arrived: Sequence[_Came]) -> None:
        """Connect anew if no box is heard for long: a broker can forget what we asked for."""
        now_s = time.monotonic()
        if arrived or self._listener.link.connection != "up":
            self._heard_s = now_s
        elif self._receipts.nodes and now_s - self._heard_s > _SILENCE_S:
            self._heard_s = now_s
            self._around.journal.warning(
                "fleet_silent",
                {"text": f"no box was heard for {_SILENCE_S:.0f} s; connecting anew"},
            )
            self._listener.again()

    # ------------------------------------------------------------ storing

    def _keep(self, arrived: Sequence[_Came], stopping: Event) -> bool:
        """Store and acknowledge; False if somebody said stop while the store was away."""
        retry_s = _FIRST_RETRY_S
        while True:
            try:
                self._store_all(arrived)
            except StoreAwayError as error:
                self._away(str(error))
                if stopping.wait(retry_s):
                    return False
                retry_s = min(_LAST_RETRY_S, retry_s * 2)
            else:
                if retry_s > _FIRST_RETRY_S:
                    self._around.journal.info("fleet_store_back")
                self._listener.ack(list(arrived))
                return True

    def _away(self, text: str) -> None:
        self.counts.away += 1
        self._around.journal.warning("fleet_store_away", {"text": text})
        self._around.notifier.status(text)
        self._alive()

    def _store_all(self, arrived: Sequence[_Came]) -> None:
        verdicts = self._owned(arrived)
        try:
            self._take(verdicts)
        except RowRefusedError as error:
            self._one_by_one(arrived, str(error))

    def _one_by_one(self, arrived: Sequence[_Came], reason: str) -> None:
        """Find what the database refuses by halves, and set that alone aside."""
        if len(arrived) > 1:
            middle = len(arrived) // 2
            self._store_all(arrived[:middle])
            self._store_all(arrived[middle:])
            return
        self._refused += 1
        if self._refused > _MOST_REFUSED:
            # Then it is not the rows: no box may be told to forget them.
            raise StoreAwayError(f"the store refuses every row: {reason}")
        self._around.journal.error("fleet_row_refused", {"text": reason})
        incoming = _incoming(arrived[0][1])
        place = self._rules.layout.place(incoming.topic)
        verdict = self._from_home(incoming, self._judged(incoming))
        row = verdict.message or verdict.telemetry
        lost = aside(incoming, place, "the database refuses it")
        if row is not None:
            # A row that will never be stored must not hold the box's watermark for good.
            gap = GapRow(*row[:3], row.seq, row.seq, None, "refused", incoming.rx_ms)
            lost = lost._replace(gaps=(gap,))
        self._take([lost])

    def _take(self, verdicts: Sequence[Verdict]) -> None:
        batch = self._recent.batch(verdicts, _now_ms())
        taken = self._store.take(batch)
        self._recent.written(batch)
        self._marks.update(taken.watermarks)
        self._count(batch, taken)
        if taken.stored:
            self._refused = 0

    def _count(self, batch: Batch, taken: Taken) -> None:
        self.counts.stored += taken.stored
        self.counts.known += taken.known
        for one in batch.quarantined:
            if not self.counts.quarantined[one.reason]:
                fields = {"text": one.reason, "topic": one.topic}
                self._around.journal.warning("fleet_quarantined", fields)
            self.counts.quarantined[one.reason] += 1

    # ------------------------------------------------------------ whose is it

    def _owned(self, arrived: Sequence[_Came]) -> list[Verdict]:
        """Judge what came, and whether it comes from where its box belongs."""
        verdicts = []
        told = []
        for _, one in arrived:
            incoming = _incoming(one)
            verdict = self._judged(incoming)
            if verdict.told is not None:
                # Only what was retained before we came: the rest says another one of our group.
                if one.retained:
                    told.append(verdict)
                continue
            verdicts.append(self._from_home(incoming, verdict))
        if told:
            self._say_forgotten(told)
        return verdicts

    def _judged(self, incoming: Incoming) -> Verdict:
        place = self._rules.layout.place(incoming.topic)
        try:
            return judge(incoming, place)
        except Exception:  # noqa: BLE001  # because it would come again after every restart
            text = traceback.format_exc()
            self._around.journal.error("fleet_bug", {"text": text, "topic": incoming.topic})
            return aside(incoming, place, "a fault of ours in reading it")

    def _from_home(self, incoming: Incoming, verdict: Verdict) -> Verdict:
        place = verdict.place
        if place is None or (verdict.news is None and not verdict.gaps):
            return verdict
        site = place.site or (verdict.news.site if verdict.news else None)
        if site is not None and self._owner(place.node, site) != site:
            return aside(incoming, place, "the node belongs to another site")
        row = verdict.message or verdict.telemetry
        if row is not None and row.seq - self._marks.get(row[:3], 0) > MOST_JUMP:
            return aside(incoming, place, "its number is far beyond the last one")
        return verdict

    def _owner(self, node: str, site: str) -> str | None:
        if self._rules.owners is not None:
            return self._rules.owners.get(node)
        known = self._owners.get(node)
        if known == site:
            return site
        now_s = time.monotonic()
        # Asked again now and then, because a box that was retired may have moved.
        if known is None or now_s - self._asked_s.get(node, -_ASK_AGAIN_S) >= _ASK_AGAIN_S:
            self._asked_s[node] = now_s
            known = self._owners[node] = self._store.claim(node, site)
        return known

    def _say_forgotten(self, told: Sequence[Verdict]) -> None:
        """What boxes were told to forget, and this store does not have: it is older than that.

        They send what they still have, and declare the rest, once they see that we go on saying
        less (core/step_back.py).
        """
        marks = dict(self._stored_marks())
        for verdict in told:
            if verdict.place is None or verdict.told is None:
                continue
            for stream, upto in _sound_receipt(verdict.told):
                key = (verdict.place.node, str(verdict.told.get("epoch")), stream)
                wm = marks.get(key, 0)
                if wm < upto <= wm + MOST_JUMP:
                    fields = {"node": key[0], "stream": stream, "first": wm + 1, "last": upto}
                    self._around.journal.warning("fleet_forgotten", fields)

    def _stored_marks(self) -> Iterator[tuple[StreamKey, int]]:
        for mark in self._store.watermarks():
            yield (mark.node, mark.epoch, mark.stream), mark.wm

    # ------------------------------------------------------------ telling

    def _tell(self) -> None:
        link = self._listener.link
        if link.connection != "up":
            return
        if time.monotonic() - link.subscribed_s < _BEFORE_RECEIPTS_S:
            return
        try:
            if link.generation != self._generation:
                self._generation = link.generation
                self._receipts.anew()
                self._learn()
            if self._receipts.tick():
                self._listener.ring()
            self._tidy()
        except StoreAwayError as error:
            self._away(str(error))
            time.sleep(_FIRST_RETRY_S)

    def _tidy(self) -> None:
        """Sum hours up, a few at a time, so that nobody waits for it."""
        now_s = time.monotonic()
        if now_s < self._tidy_s or not self._store.leads():
            return
        done = self._store.tidy(_now_ms(), self._rules.keep_ms, _HOURS_AT_ONCE)
        self._tidy_s = now_s + (_TIDY_S if done else _TIDY_IDLE_S)

    def _learn(self) -> None:
        self._marks.update(self._stored_marks())
        self._owners.update(self._store.owners())

    def _say(self) -> None:
        link = self._listener.link
        self._alive()
        if link.connection != self._connection:
            self._connection = link.connection
            note = (
                self._around.journal.info
                if link.connection == "up"
                else self._around.journal.warning
            )
            note(f"fleet_{link.connection}", {"text": link.text})
        now_s = time.monotonic()
        if now_s - self._said_s < _SAY_S:
            return
        self._warn_of_queue()
        rate = (self.counts.stored - self._said_stored) / (now_s - self._said_s)
        self._said_s, self._said_stored = now_s, self.counts.stored
        self._around.notifier.status(self._sentence(rate))

    def _warn_of_queue(self) -> None:
        needed = self._receipts.queue_needed
        if needed is not None and needed != self._warned_of:
            self._warned_of = needed
            text = (
                f"{self._receipts.nodes} boxes need a queue of {needed} messages for one "
                f"subscriber, and --queue-limit is {self._rules.queue}: raise it in the broker "
                "(mosquitto: max_queued_messages) and here, else it drops what it has acknowledged"
            )
            self._around.journal.warning("fleet_queue_short", {"text": text})

    def _sentence(self, rate: float) -> str:
        aside_ = sum(self.counts.quarantined.values())
        return (
            f"{self._listener.link.text}; {self._receipts.nodes} boxes; {rate:.0f} rows a second, "
            f"{self.counts.stored} since the start; {aside_} set aside"
        )

    def _alive(self) -> None:
        if not self._listener.alive():
            raise RuntimeError("the thread of the broker's connection has ended")
        self._around.notifier.alive()


def _incoming(one: Arrived) -> Incoming:
    return Incoming(one.topic, one.payload, one.retained, one.rx_ms)


def _sound_receipt(document: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    marks = document.get("wm")
    if not isinstance(marks, dict) or not isinstance(document.get("epoch"), str):
        return
    for stream in _STREAMS:
        upto = marks.get(stream)
        if type(upto) is int and upto > 0:
            yield stream, upto


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
