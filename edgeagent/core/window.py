"""Which row may go to the broker now, and what does an answer mean for it?

Rules of the pump, without its queue and its clock. `Window` is told what happened and answers what
to do; whoever asks carries it out against the spool.

1. At most `window` rows wait for the broker's answer, and no more than the broker's own limit.
2. While a collector sends receipts, at most `unreceipted` rows are under way to it: the broker's
   answer says only that the broker has them, and its queue for a slow collector drops in silence.
   Telemetry may use four fifths of that room, so that it never keeps a result waiting.
3. Results go strictly before telemetry.
4. A kind of message (topic's first two levels) that the broker refuses rests; the others flow.
5. Rows are sent in the order of their numbers; after a rest, a lost connection or a missing receipt
   the scan starts again at the front. Until it has caught up, what is sent is a replay.
6. A row that was the first in flight at three lost connections is parked: it ends them.

Times are seconds of a monotonic clock. Keys are (stream, seq).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from edgeagent.core.delivery import Stream

Key: TypeAlias = tuple[Stream, int]
Delivery = Literal["receipt", "puback"]
Setting = Literal["receipt", "puback", "auto"]
Ending = Literal["closed", "silent", "ours"]
"""How a connection ended: by the other side, by silence, or because we wanted it."""
Replay = Literal["live", "replay"]
Verdict = Literal["sent", "delete", "hold", "slow", "deny", "park", "unknown"]
"""sent: keep until the receipt; delete: done with; hold: nobody listens, later again; slow: the
broker's quota; deny: no right, later again; park: never again; unknown: not one of ours."""

STREAMS: tuple[Stream, ...] = ("R", "M")

NO_SUBSCRIBERS = 0x10
NOT_AUTHORIZED = 0x87
TOPIC_INVALID = 0x90
QUOTA = 0x97
PAYLOAD_INVALID = 0x99
_FAILURE = 0x80


@dataclass(frozen=True)
class Limits:
    """What the operator allows; the broker and the collector may allow less."""

    window: int = 20
    unreceipted: int = 200
    max_payload_bytes: int = 131_072
    backfill_per_s: float = 20.0
    """Pace of replays while only the broker answers for them."""
    no_progress_s: float = 30.0
    hold_s: float = 30.0
    most_hold_s: float = 600.0
    deny_s: float = 900.0
    poison_strikes: int = 3


LEAST_UNRECEIPTED, MOST_UNRECEIPTED = 10, 500


@dataclass(frozen=True)
class Server:
    """What the broker allows on this connection; None where it did not say."""

    receive_maximum: int | None = None
    max_packet_bytes: int | None = None


@dataclass(frozen=True)
class Flight:
    """A row that waits for the broker's answer."""

    kind: str
    since_s: float


@dataclass
class _Rest:
    until_s: float
    times: int
    why: Literal["hold", "deny"]


@dataclass
class _Lane:
    """One stream's place in the scan of the spool."""

    after: int = 0
    caught_up: bool = False
    progress_s: float = 0.0
    rewinds: int = 0
    mark: int = 0
    """Highest number that was sent."""
    wm: int = 0
    under_way: set[int] = field(default_factory=set)
    """Sent, answered by the broker, not yet receipted."""


class Window:
    """See the module's rules. Not for use by two threads."""

    def __init__(self, limits: Limits, setting: Setting, settled: Delivery | None = None) -> None:
        self._limits = limits
        self._setting = setting
        first: Delivery = "receipt" if setting == "receipt" else "puback"
        self.delivery: Delivery = settled if setting == "auto" and settled else first
        self._unreceipted = limits.unreceipted
        self._server = Server()
        self._connected = False
        self._lanes: dict[Stream, _Lane] = {stream: _Lane() for stream in STREAMS}
        self._flights: dict[Key, Flight] = {}
        self._strikes: dict[Key, int] = {}
        self._rests: dict[str, _Rest] = {}
        self._slow_s = 0.0
        self._not_before_s = 0.0
        self._backfill_from_s = 0.0

    # ------------------------------------------------------------ the connection

    def up(self, server: Server, now_s: float, backfill_after_s: float = 0.0) -> None:
        """A connection stands; replays that only the broker answers for start after a while."""
        self._server = server
        self._connected = True
        self._slow_s, self._not_before_s = 0.0, now_s
        self._backfill_from_s = now_s + backfill_after_s
        for rest in self._rests.values():
            if rest.why == "hold":
                rest.until_s = now_s  # because whoever subscribes may have come with the broker
        for stream in STREAMS:
            self._from_the_front(stream)
            self._lanes[stream].progress_s = now_s

    def down(self, ending: Ending) -> tuple[Key, ...]:
        """The connection is gone; return the rows to park, because they keep ending it.

        Only an end by the other side counts against a row: a dead cable is nobody's fault.
        """
        self._connected = False
        head = next(iter(self._flights), None)
        self._flights.clear()
        for stream in STREAMS:
            self._from_the_front(stream)
        if head is None or ending != "closed":
            return ()
        self._strikes[head] = self._strikes.get(head, 0) + 1
        if self._strikes[head] < self._limits.poison_strikes:
            return ()
        del self._strikes[head]
        return (head,)

    def new_epoch(self) -> None:
        """The spool began a new life: what is known of numbers is about other rows."""
        self._flights.clear()
        self._strikes.clear()
        self._lanes = {stream: _Lane() for stream in STREAMS}

    # ------------------------------------------------------------ sending

    def room(self, stream: Stream, now_s: float) -> int:
        """Return how many rows of a stream may be sent at this moment."""
        if not self._connected or now_s < self._not_before_s:
            return 0
        room = self._in_flight_room()
        if self.delivery == "receipt":
            room = min(room, self._receipt_room(stream))
        if self._slow_s:
            room = min(room, 1)
        if self._is_backfill(stream):
            room = min(room, self._backfill_room(now_s))
        return max(0, room)

    def after(self, stream: Stream) -> int:
        """Return the number after which the spool is to be read on."""
        return self._lanes[stream].after

    def anything_rests(self, now_s: float) -> bool:
        """Return whether some kind of message has to wait."""
        return any(now_s < rest.until_s for rest in self._rests.values())

    def rests(self, kind: str, now_s: float) -> bool:
        """Return whether a kind of message has to wait."""
        rest = self._rests.get(kind)
        return rest is not None and now_s < rest.until_s

    def skip(self, key: Key) -> None:
        """A row was looked at and is not to be sent now: it rests, or is parked."""
        self._pass(key)

    def under_way(self, key: Key) -> bool:
        """Return whether a row is in flight, or waits for its receipt."""
        return key in self._flights or key[1] in self._lanes[key[0]].under_way

    def replay(self, key: Key, tries: int) -> Replay:
        """Return what a row is that is sent now: a replay if it was tried before, or is late."""
        lane = self._lanes[key[0]]
        late = tries > 0 or not lane.caught_up or key[1] <= lane.mark
        return "replay" if late else "live"

    def sent(self, key: Key, kind: str, now_s: float) -> None:
        """A row went out."""
        lane = self._lanes[key[0]]
        if not lane.under_way and not any(stream == key[0] for stream, _ in self._flights):
            lane.progress_s = now_s  # because nothing was expected until now
        self._flights[key] = Flight(kind, now_s)
        lane.mark = max(lane.mark, key[1])
        self._pass(key)
        if self._slow_s:
            self._not_before_s = now_s + self._slow_s
        elif self._is_backfill(key[0]):
            self._backfill_from_s = max(self._backfill_from_s, now_s - 1.0) + self._backfill_step_s

    def exhausted(self, stream: Stream) -> None:
        """The spool has nothing further of a stream."""
        self._lanes[stream].caught_up = True

    def look_again(self) -> None:
        """Read the spool from its front once more: somebody may have put rows back."""
        for stream in STREAMS:
            self._lanes[stream].after = 0

    def too_large(self, payload_bytes: int, packet_bytes: int) -> bool:
        """Return whether a packet would be refused, by us or by the broker."""
        most = self._server.max_packet_bytes
        return payload_bytes > self._limits.max_payload_bytes or (
            most is not None and packet_bytes > most
        )

    # ------------------------------------------------------------ answers

    def answered(self, key: Key, code: int, now_s: float) -> Verdict:
        """The broker answered for a row; return what that means."""
        flight = self._flights.pop(key, None)
        if flight is None:
            return "unknown"
        self._acquit(key)
        if code < _FAILURE and code != NO_SUBSCRIBERS:
            return self._accepted(key, flight)
        if code == QUOTA:
            self._slow_s = min(30.0, max(self._backfill_step_s, self._slow_s * 2))
            self._not_before_s = now_s + self._slow_s
            self._from_the_front(key[0])
            return "slow"
        if code in {NOT_AUTHORIZED, TOPIC_INVALID}:
            return self._rest(flight.kind, "deny", now_s)
        if code == PAYLOAD_INVALID:
            return "park"
        return self._rest(flight.kind, "hold", now_s)

    def receipt(self, wm: Mapping[Stream, int], now_s: float, u: int | None = None) -> bool:
        """The collector's watermark; return whether delivery has settled on receipts just now."""
        if u is not None:
            self._unreceipted = min(MOST_UNRECEIPTED, max(LEAST_UNRECEIPTED, u))
        for stream, upto in wm.items():
            lane = self._lanes[stream]
            lane.wm = max(lane.wm, min(upto, lane.mark))
            done = {seq for seq in lane.under_way if seq <= upto}
            if done:
                lane.under_way -= done
                lane.progress_s, lane.rewinds = now_s, 0
        if self.delivery == "receipt" or self._setting != "auto":
            return False
        self.delivery = "receipt"
        return True

    def step_back(self, stream: Stream, wm: int) -> None:
        """The collector has lost what it had above `wm`: it is to be sent and receipted again."""
        self._lanes[stream].wm = wm
        self._from_the_front(stream)

    def stalled(self, now_s: float) -> tuple[Stream, ...]:
        """Return the streams whose rows should have been receipted long ago: send them again.

        The wait doubles each time without progress, so that a collector that is away does not find
        the same rows in its queue a thousand times.
        """
        if not self._connected or self.delivery != "receipt":
            return ()
        late = tuple(stream for stream in STREAMS if self._late(self._lanes[stream], now_s))
        for stream in late:
            lane = self._lanes[stream]
            lane.under_way.clear()
            lane.rewinds += 1
            lane.progress_s = now_s
            self._from_the_front(stream)
        return late

    def wake_s(self, now_s: float) -> float:
        """Return for how many seconds nothing changes by time alone, at most 1."""
        times = [self._not_before_s, self._backfill_from_s]
        times += [rest.until_s for rest in self._rests.values()]
        return min([1.0, *(time - now_s for time in times if time > now_s)])

    def reopen(self, now_s: float) -> tuple[str, ...]:
        """Return the kinds whose rest is over; the scan starts again at the front for them."""
        over = tuple(kind for kind, rest in self._rests.items() if rest.until_s <= now_s)
        fresh = tuple(kind for kind in over if self._rests[kind].until_s > 0)
        for kind in fresh:
            self._rests[kind].until_s = 0.0
        if fresh:
            for stream in STREAMS:
                self._from_the_front(stream)
        return fresh

    # ------------------------------------------------------------ facts

    @property
    def in_flight(self) -> int:
        """Rows that wait for the broker's answer."""
        return len(self._flights)

    def high(self, stream: Stream) -> int:
        """Return the highest number that was sent since the start, 0 if none."""
        return self._lanes[stream].mark

    def unreceipted(self, stream: Stream | None = None) -> int:
        """Return how many rows the broker has and the collector has not confirmed."""
        streams: Iterable[Stream] = STREAMS if stream is None else (stream,)
        return sum(len(self._lanes[each].under_way) for each in streams)

    def resting(self, now_s: float) -> dict[str, Literal["hold", "deny"]]:
        """Return the kinds that wait, and why."""
        return {kind: rest.why for kind, rest in self._rests.items() if now_s < rest.until_s}

    # ------------------------------------------------------------ inside

    def _from_the_front(self, stream: Stream) -> None:
        lane = self._lanes[stream]
        lane.after, lane.caught_up = 0, False

    def _pass(self, key: Key) -> None:
        lane = self._lanes[key[0]]
        lane.after = max(lane.after, key[1])

    def _in_flight_room(self) -> int:
        most = self._limits.window
        if self._server.receive_maximum is not None:
            most = min(most, self._server.receive_maximum)
        return (1 if self._strikes else most) - len(self._flights)

    def _receipt_room(self, stream: Stream) -> int:
        most = self._unreceipted if stream == "R" else self._unreceipted * 4 // 5
        return most - self.unreceipted() - len(self._flights)

    def _is_backfill(self, stream: Stream) -> bool:
        return self.delivery == "puback" and not self._lanes[stream].caught_up

    @property
    def _backfill_step_s(self) -> float:
        return 1.0 / self._limits.backfill_per_s

    def _backfill_room(self, now_s: float) -> int:
        saved_s = min(now_s - self._backfill_from_s, 1.0)
        return 0 if saved_s < 0 else int(saved_s / self._backfill_step_s) + 1

    def _accepted(self, key: Key, flight: Flight) -> Verdict:
        if self._rests.pop(flight.kind, None) is not None:
            self._from_the_front(key[0])  # because what was refused before this one is behind us
        if self._slow_s:
            self._slow_s = self._slow_s * 0.9 if self._slow_s > self._backfill_step_s / 4 else 0.0
        if self.delivery == "puback":
            return "delete"
        lane = self._lanes[key[0]]
        if key[1] > lane.wm:  # because below it no receipt will come
            lane.under_way.add(key[1])
        return "sent"

    def _acquit(self, key: Key) -> None:
        """An answer for a row clears it, and whatever stood before it in its stream."""
        for struck in [each for each in self._strikes if each[0] == key[0] and each[1] <= key[1]]:
            del self._strikes[struck]

    def _rest(self, kind: str, why: Literal["hold", "deny"], now_s: float) -> Verdict:
        rest = self._rests.get(kind)
        if rest is not None and now_s < rest.until_s:
            return why  # because a whole window may be refused at once, and that is one refusal
        times = rest.times + 1 if rest is not None and rest.why == why else 1
        wait_s = self._limits.deny_s
        if why == "hold":
            wait_s = min(self._limits.most_hold_s, self._limits.hold_s * 2.0 ** min(times - 1, 16))
        self._rests[kind] = _Rest(now_s + wait_s, times, why)
        return why

    def _late(self, lane: _Lane, now_s: float) -> bool:
        wait_s = self._limits.no_progress_s * 2.0 ** min(lane.rewinds, 16)
        return bool(lane.under_way) and now_s - lane.progress_s >= min(wait_s, 600.0)
