"""How does what waits in the spool get to the broker, and who learns how that goes?

One thread: it takes the link's events, carries out what core/window.py decides, and moves rows
between the spool and the link. It is the only one that sends rows. Live readings pass it by: they
go straight to the link, or nowhere when it cannot take them now.

A spool that cannot be used for a while (disk full, read-only, held by somebody) is a trouble that
the status tells; the pump goes on and tries again, and rows that it could not mark are sent twice.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from queue import Empty, SimpleQueue
from typing import Literal
from uuid import uuid4

from pydantic import ValidationError

from edgeagent.core.delivery import Entry, Row, Stamp, Stream
from edgeagent.core.step_back import StepBack, Told
from edgeagent.core.window import STREAMS, Key, Verdict, Window
from edgeagent.errors import BusyError, EdgeAgentError
from edgeagent.publish import status
from edgeagent.publish.messages import LiveFrom, Receipt, envelope, live_envelope
from edgeagent.publish.pump_needs import Around, Figures, Manner, Right, Store
from edgeagent.publish.status import About, Backlog, LinkState, Moment, Reason
from edgeagent.publish.topics import Identity, Topics, kind
from edgeagent.publish.wire import (
    Again,
    Answer,
    Bug,
    Command,
    Down,
    Event,
    Link,
    Message,
    Refused,
    Rx,
    Session,
    Up,
    Wake,
)

__all__ = ["Around", "Manner", "Pump", "Store"]

_PAGE = 100
"""Rows that are read at once from the spool."""
_MOST_PAGES = 10
"""Pages of resting rows that are passed in one turn, so that no turn is long."""
_MOST_RX_BYTES = 4096
_PACKET_HEAD_BYTES = 24
"""What a packet has beside topic and payload, at most."""
_GOODBYE = "goodbye"
_GOODBYE_S = 2.0
_STATUS_AT_LEAST_S = 1.0
"""Between two statuses, so that a quick change of troubles is no flood."""
_LOOK_AGAIN_S = 60.0
"""Until the spool is read from its front again: somebody else may have put rows back."""


@dataclass
class _Answers:
    """What the broker said about rows, gathered so that the spool is written once."""

    epoch: str
    sent: dict[Stream, list[int]] = field(default_factory=lambda: {"R": [], "M": []})
    deleted: dict[Stream, list[int]] = field(default_factory=lambda: {"R": [], "M": []})


@dataclass
class _Retained:
    payload: bytes
    expiry_s: int | None


class Pump:
    """See the module. `start` and `stop` once each; the rest from any thread."""

    def __init__(
        self,
        store: Store,
        link: Link,
        topics: Topics,
        identity: Identity,
        manner: Manner,
        around: Around,
    ) -> None:
        self._store, self._link = store, link
        self._topics, self._identity = topics, identity
        self._manner, self._around = manner, around
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._announcements: SimpleQueue[tuple[str, bytes, int | None]] = SimpleQueue()
        self._live_numbers: itertools.count[int] | None = None
        self._live_dropped = 0
        self._state = LinkState()
        self._stopping = threading.Event()
        self._reason: Reason = "shutdown"
        self._thread = threading.Thread(target=self._run, name="mqtt-pump", daemon=True)
        # the pump thread's own from here on
        self._window = Window(manner.limits, manner.setting)
        self._less = StepBack(manner.limits.no_progress_s)
        self._retained: dict[str, _Retained] = {}
        self._up: Up | None = None
        self._session_n = 0
        self._right: Right | None = None
        self._epoch = ""
        self._packet_limit: int | None = None
        self._denied: set[str] = set()
        self._store_trouble: str | None = None
        self._begun = False
        self._front_s = self._figures_s = 0.0
        self._status_s: float | None = None
        self._status_said: tuple[object, ...] = ()
        self._goodbye_answered = False

    # ------------------------------------------------------------ from any thread

    def start(self) -> None:
        """Begin to connect and to deliver."""
        self._thread.start()

    def wake(self) -> None:
        """Say that there is something new in the spool; it would be seen within a second anyway."""
        self._events.put(Wake())

    def again(self) -> None:
        """Say that rows which had their turn are new again; without it that is seen late."""
        self._events.put(Again())

    def state(self) -> LinkState:
        """Return how delivery stands."""
        return self._state

    def alive(self) -> bool:
        """Return whether the pump's thread and the link's live."""
        return self._thread.is_alive() and self._link.alive()

    def live(self, below: str, schema: str, value: Mapping[str, object], stamp: Stamp) -> bool:
        """Send a reading that is worth nothing later; False if it could not go now.

        `stamp` is when it was measured.
        """
        numbers = self._live_numbers
        if numbers is None:
            return False
        where = LiveFrom(self._identity, self._epoch, next(numbers))
        refused = self._link.live(
            Message(
                self._topics.full(below),
                live_envelope(schema, stamp, value, where),
                qos=0,
                expiry_s=self._manner.live_expiry_s,
            )
        )
        if refused is not None:
            self._live_dropped += 1
        return refused is None

    def announce(self, below: str, payload: bytes, expiry_s: int | None = None) -> None:
        """Publish a retained document, now and on every connection; empty bytes clear it."""
        self._announcements.put((below, payload, expiry_s))
        self.wake()

    def stored(self, command: Command) -> None:
        """Say that a command is stored, so that the broker may forget it."""
        self._link.ack(command)

    def stop(self, reason: Reason, timeout_s: float) -> Literal["stopped", "abandoned"]:
        """Say why we leave, disconnect in good order and end both threads, within a time."""
        self._reason = reason
        self._stopping.set()
        self.wake()
        self._thread.join(timeout_s / 2)
        ended = self._link.stop(timeout_s / 2)
        return "abandoned" if self._thread.is_alive() else ended

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        self._live_numbers = itertools.count(max(1, self._around.stamp().ts_ms))
        while not self._begun and not self._stopping.is_set():
            if self._safely(self._begin) == "troubled":
                self._stopping.wait(1.0)
        while not self._stopping.is_set():
            self._turn()
        self._leave()
        if self._right is not None:
            self._right.release()

    def _safely(self, step: Callable[[], None]) -> Literal["done", "troubled"]:
        """Take a step; a spool that fails is a trouble, no end."""
        try:
            step()
        except EdgeAgentError as error:
            if str(error) != self._store_trouble:
                self._around.note("spool_trouble", {"text": str(error)})
            self._store_trouble = str(error)
            return "troubled"
        return "done"

    def _begin(self) -> None:
        """Rows that were sent in an earlier life may be lost with their broker: once more."""
        self._right = self._right or self._store.pump_lock()
        if self._right is None:
            raise BusyError("another process delivers from this spool; waiting until it has ended")
        settled = self._store.get("delivery")
        self._window = Window(
            self._manner.limits, self._manner.setting, "receipt" if settled == "receipt" else None
        )
        self._epoch = self._store.epoch
        for stream in STREAMS:
            self._store.rewind(stream)
            self._store.unpark(stream)  # because whoever starts us may have put right what it was
        self._snapshot()
        self._link.start(self._events, self._next_session)
        self._begun = True

    def _turn(self) -> None:
        """Go round once: what happened, what follows from it, what is to be said."""
        answers = _Answers(self._epoch)
        steps: list[Callable[[], None]] = [
            partial(self._handle, event, answers)
            for event in self._gather(self._window.wake_s(self._around.now_s()))
        ]
        steps += [partial(self._mark, answers), self._resume, self._announce_all, self._fill]
        # each for itself: an event that is lost, such as that of a connection, is never repeated
        outcomes = [self._safely(step) for step in steps]
        if "troubled" in outcomes:
            self._stopping.wait(0.2)  # because a broken disk is not asked more often for it
        else:
            self._store_trouble = None
        self._safely(self._snapshot)
        self._say_status()

    def _gather(self, wait_s: float) -> list[Event]:
        events: list[Event] = []
        try:
            events.append(self._events.get(timeout=max(0.0, wait_s)))
            while len(events) < _PAGE:
                events.append(self._events.get_nowait())
        except Empty:
            pass
        return events

    def _handle(self, event: Event, answers: _Answers) -> None:
        if isinstance(event, Up):
            self._came_up(event)
        elif isinstance(event, Down):
            self._went_down(event)
        elif isinstance(event, Bug):
            self._around.note("mqtt_bug", {"generation": event.generation, "text": event.text})
        elif isinstance(event, Wake):
            pass
        elif isinstance(event, Again):
            self._window.look_again()
        elif isinstance(event, Command):
            # Also before Up: what the broker kept comes ahead of its SUBACK. One of a connection
            # that is gone comes again, and its id is known by then.
            self._around.command(event)
        elif self._up is None or event.generation != self._up.generation:
            return  # because it belongs to a connection that is gone
        elif isinstance(event, Answer):
            self._answered(event, answers)
        else:
            self._receipted(event)

    # ------------------------------------------------------------ up and down

    def _came_up(self, event: Up) -> None:
        now_s = self._around.now_s()
        self._up = event
        jitter_s = 0.0
        if self._state.backlog.rows > self._manner.limits.window:
            jitter_s = self._around.random.uniform(0.0, self._manner.backfill_jitter_s)
        self._window.up(event.server, now_s, jitter_s)
        state = self._state
        self._state = replace(
            state,
            connection="up",
            since_s=now_s,
            generation=event.generation,
            session_n=event.session.n,
            reconnects=state.reconnects + (1 if state.generation else 0),
            protocol=event.protocol,
        )
        self._around.note(
            "mqtt_connected",
            {"generation": event.generation, "protocol": event.protocol, "note": event.note},
        )
        self._status_s = None  # because the will of an earlier session may stand there
        for below, retained in list(self._retained.items()):
            self._send_retained(below, retained)
            if not retained.payload:
                del self._retained[below]  # because it is cleared now
        before, self._packet_limit = self._packet_limit, event.server.max_packet_bytes
        if _wider(self._packet_limit, before):
            for stream in STREAMS:
                self._store.unpark(stream)  # because what was too large may pass now

    def _went_down(self, event: Down) -> None:
        was_up = self._up is not None and self._up.generation == event.generation
        now_s = self._around.now_s()
        state = replace(self._state, last_error=event.text)
        if was_up:
            self._up = None
            state = replace(state, connection="down", since_s=now_s)
        self._state = state
        self._around.note(
            "mqtt_disconnected" if was_up else "mqtt_not_connected",
            {"generation": event.generation, "cause": event.cause, "text": event.text},
        )
        culprits = self._window.down(event.ending) if was_up else ()
        if event.cause == "taken_over":
            self._tell("taken_over", event.text)
        for stream, seq in culprits:
            self._park(stream, seq, "poison", f"row {stream}-{seq} ended the connection each time")

    def _next_session(self) -> Session:
        """Return a session with a number of its own; called in the link's thread alone."""
        try:
            self._session_n = self._store.count_up("session_n")
        except EdgeAgentError:
            self._session_n += 1  # because a broken disk is to be told of, over a connection
        n, name = self._session_n, uuid4().hex
        return Session(n, name, self._topics.status, status.will(self._identity, name, n))

    # ------------------------------------------------------------ answers and receipts

    def _answered(self, event: Answer, answers: _Answers) -> None:
        if event.token == _GOODBYE:
            self._goodbye_answered = True
            return
        if not isinstance(event.token, _Token) or event.token.epoch != self._epoch:
            return
        now_s = self._around.now_s()
        token = event.token
        verdict: Verdict = self._window.answered(token.key, event.code, now_s)
        stream, seq = token.key
        if verdict in {"sent", "delete"}:
            self._denied.discard(token.kind)
        if verdict == "sent":
            answers.sent[stream].append(seq)
        elif verdict == "delete":
            answers.deleted[stream].append(seq)
        elif verdict == "park":
            self._park(stream, seq, "refused", f"the broker calls row {stream}-{seq} invalid")
        elif verdict == "deny" and token.kind not in self._denied:
            self._denied.add(token.kind)
            if token.kind != "e/link":  # because that refusal would tell of itself for ever
                what = f"{self._topics.full(token.kind)} (reason {event.code:#04x})"
                self._tell("denied", f"the broker refuses {what}", token.kind)

    def _mark(self, answers: _Answers) -> None:
        for stream in STREAMS:
            if answers.sent[stream]:
                self._store.sent(stream, answers.sent[stream], answers.epoch)
            if answers.deleted[stream]:
                self._store.acknowledged(stream, answers.deleted[stream], answers.epoch)

    def _receipted(self, event: Rx) -> None:
        if not event.payload or len(event.payload) > _MOST_RX_BYTES:
            return
        try:
            receipt = Receipt.model_validate_json(event.payload)
        except ValidationError as error:
            self._around.note("mqtt_bad_receipt", {"text": str(error.errors()[:1])})
            return
        if receipt.epoch != self._epoch or self._manner.setting == "puback":
            return  # because it is about another life of the spool, or not wanted
        settled = self._window.receipt(receipt.wm, self._around.now_s(), receipt.u)
        if settled:
            self._store.put("delivery", "receipt")
            self._around.note("mqtt_receipts", {"epoch": receipt.epoch})
        if not settled:
            self._step_back(receipt)
        self._store.receipt(receipt.wm, self._epoch)
        if settled:
            self._window.look_again()  # because what the collector never saw is new again

    def _step_back(self, receipt: Receipt) -> None:
        """Send again what a collector has lost that was restored from a backup."""
        had = self._store.confirmed()
        for stream in STREAMS:
            upto = receipt.wm.get(stream)
            if upto is None or receipt.ts is None:
                continue
            told = Told(stream, upto, receipt.ts)
            if self._less.heard(told, had[stream], self._around.now_s()):
                rows = self._store.step_back(stream, upto, self._epoch)
                self._window.step_back(stream, upto)
                self._around.note(
                    "mqtt_step_back",
                    {"stream": stream, "first": upto + 1, "last": had[stream], "rows": rows},
                )

    # ------------------------------------------------------------ sending

    def _resume(self) -> None:
        now_s = self._around.now_s()
        if self._store.epoch != self._epoch:
            self._epoch = self._store.epoch
            self._window.new_epoch()
            self._less = StepBack(self._manner.limits.no_progress_s)
        self._window.reopen(now_s)
        if now_s - self._front_s >= _LOOK_AGAIN_S:
            self._front_s = now_s
            self._window.look_again()
        for stream in self._window.stalled(now_s):
            rows = self._store.rewind(stream)
            self._around.note("mqtt_go_back", {"stream": stream, "rows": rows})

    def _fill(self) -> None:
        """Send what may go, results first: while one of them waits for room, nothing else goes."""
        if self._up is None:
            return
        now_s = self._around.now_s()
        for stream in STREAMS:
            if self._fill_from(stream, now_s) == "waiting":
                return

    def _fill_from(self, stream: Stream, now_s: float) -> Literal["waiting", "exhausted"]:
        for _ in range(_MOST_PAGES):
            room = self._window.room(stream, now_s)
            # more than may go only where some rows are to be passed
            limit = _PAGE if room and self._window.anything_rests(now_s) else min(_PAGE, room or 1)
            rows = self._store.due(stream, self._window.after(stream), limit)
            if not rows:
                self._window.exhausted(stream)
                return "exhausted"
            if not self._send_page(rows, room, now_s):
                return "waiting"
        self.wake()  # because there may be more behind the rows that rest
        return "waiting"

    def _send_page(self, rows: Sequence[Row], room: int, now_s: float) -> bool:
        """Send up to `room` of these rows and pass those that rest; False when room ran out."""
        chosen: list[Row] = []
        for row in rows:
            if self._is_to_wait(row, now_s):
                if chosen:
                    break  # because passing it would pass the chosen ones, which go first
                self._window.skip((row.entry.stream, row.seq))
            elif len(chosen) < room:
                chosen.append(row)
            else:
                self._send_rows(chosen, now_s)
                return False
        return self._send_rows(chosen, now_s)

    def _is_to_wait(self, row: Row, now_s: float) -> bool:
        key: Key = (row.entry.stream, row.seq)
        return self._window.under_way(key) or self._window.rests(kind(row.entry.topic), now_s)

    def _send_rows(self, rows: Sequence[Row], now_s: float) -> bool:
        """Send them in order; False as soon as the link takes no more."""
        if not rows:
            return True
        # before sending: a row that may have reached somebody must never look untouched
        self._store.tried(rows[0].entry.stream, [row.seq for row in rows], self._epoch)
        return all(self._send_row(row, now_s) for row in rows)

    def _send_row(self, row: Row, now_s: float) -> bool:
        assert self._up is not None  # noqa: S101  # because _fill looked
        key: Key = (row.entry.stream, row.seq)
        payload = envelope(row, self._identity, self._window.replay(key, row.tries))
        topic = self._topics.full(row.entry.topic)
        size = len(payload) + len(topic.encode()) + _PACKET_HEAD_BYTES
        if self._window.too_large(len(payload), size):
            self._window.skip(key)
            self._park(*key, "oversize", f"row {row.entry.stream}-{row.seq} has {size} bytes")
            return True
        what = kind(row.entry.topic)
        message = Message(
            topic,
            payload,
            expiry_s=self._manner.telemetry_expiry_s if row.entry.stream == "M" else None,
            token=_Token(row.epoch, key, what),
        )
        if self._link.send(message, self._up.generation) is not None:
            return False
        self._window.sent(key, what, now_s)
        return True

    def _park(
        self, stream: Stream, seq: int, why: Literal["oversize", "poison", "refused"], text: str
    ) -> None:
        self._store.park(stream, seq, why, self._epoch)
        self._tell("poison" if why == "refused" else why, text)

    def _tell(self, what: str, text: str, topic: str | None = None) -> None:
        """Put an event about the connection into the spool; it goes out when it can."""
        value: dict[str, object] = {"what": what, "detail": text}
        if topic is not None:
            value["topic"] = topic
        self._around.note(f"mqtt_{what}", {"text": text})
        entry = Entry("R", "e/link", "edgeagent.link/1", self._around.stamp(), value)
        self._store.commit(entry)

    # ------------------------------------------------------------ retained documents and status

    def _announce_all(self) -> None:
        while True:
            try:
                below, payload, expiry_s = self._announcements.get_nowait()
            except Empty:
                return
            self._retained[below] = _Retained(payload, expiry_s)
            if self._up is not None:
                self._send_retained(below, self._retained[below])
                if not payload:
                    del self._retained[below]

    def _send_retained(self, below: str, retained: _Retained) -> Refused | None:
        assert self._up is not None  # noqa: S101  # because the callers looked
        return self._link.send(
            Message(
                self._topics.full(below),
                retained.payload,
                retain="retained",
                expiry_s=retained.expiry_s,
            ),
            self._up.generation,
        )

    def _say_status(self) -> None:
        if self._up is None:
            return
        now_s = self._around.now_s()
        about = self._around.about()
        said = (self._state.troubles, self._state.delivery, about)
        age_s = inf if self._status_s is None else now_s - self._status_s
        changed = said != self._status_said and age_s >= _STATUS_AT_LEAST_S
        if changed or age_s >= self._manner.status_every_s:
            self._send_status("online", about, None, None)
            self._status_s, self._status_said = now_s, said

    def _send_status(
        self,
        state: Literal["online", "offline"],
        about: About,
        reason: Reason | None,
        token: object,
    ) -> Refused | None:
        assert self._up is not None  # noqa: S101  # because the callers looked
        session = self._up.session
        moment = Moment(self._identity, session.name, session.n, self._around.stamp())
        payload = status.document(state, moment, self._state, about, reason)
        return self._link.send(
            Message(self._topics.status, payload, retain="retained", token=token),
            self._up.generation,
        )

    def _leave(self) -> None:
        """Say that we go, and wait shortly for the broker to have heard it."""
        if self._up is None:
            return
        self._send_status("offline", self._around.about(), self._reason, _GOODBYE)
        deadline_s = self._around.now_s() + _GOODBYE_S
        while not self._goodbye_answered and self._up is not None:
            left_s = deadline_s - self._around.now_s()
            if left_s <= 0:
                return
            answers = _Answers(self._epoch)
            for event in self._gather(min(left_s, 0.2)):
                if isinstance(event, Answer | Down):
                    self._safely(partial(self._handle, event, answers))
            self._safely(partial(self._mark, answers))

    # ------------------------------------------------------------ the snapshot

    def _snapshot(self) -> None:
        now_s = self._around.now_s()
        backlog = self._state.backlog
        if self._store_trouble is None and now_s - self._figures_s >= self._manner.figures_every_s:
            self._figures_s = now_s
            backlog = _backlog(self._store.stats())
        self._state = replace(
            self._state,
            turned_s=now_s,
            link_thread="alive" if self._link.alive() else "dead",
            delivery=self._window.delivery,
            troubles=self._troubles(backlog),
            backlog=backlog,
            in_flight=self._window.in_flight,
            unreceipted=self._window.unreceipted(),
            unheard=tuple(
                sorted(
                    self._topics.full(kind)
                    for kind, why in self._window.resting(now_s).items()
                    if why == "hold"
                )
            ),
            live_dropped=self._live_dropped,
        )

    def _troubles(self, backlog: Backlog) -> tuple[str, ...]:
        found = [
            f"the broker refuses {self._topics.full(what)}; check this node's access rights"
            for what in sorted(self._denied)
        ]
        if backlog.parked:
            found.append(f"{backlog.parked} rows are set aside: too large, or refused")
        if self._store_trouble is not None:
            found.append(self._store_trouble)
        if self._up is not None and self._up.note is not None:
            found.append(self._up.note)
        return tuple(found)


@dataclass(frozen=True)
class _Token:
    """What comes back with the broker's answer for a row."""

    epoch: str
    key: Key
    kind: str


def _wider(limit: int | None, before: int | None) -> bool:
    return before is not None and (limit is None or limit > before)


def _backlog(figures: Figures) -> Backlog:
    return Backlog(
        figures.rows, figures.bytes, figures.oldest_ts_ms, figures.parked, figures.evicted
    )
