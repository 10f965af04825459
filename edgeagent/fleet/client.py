"""How does a collector hold its connection to the broker?

As a box does (publish/link.py): one thread of ours drives paho, a fresh client for each attempt,
callbacks that only take notes. What differs is what a collector needs: a session that outlives it,
many messages at once, and an acknowledgement only when somebody says that a message is stored. The
broker sends no more than `receive_maximum` messages ahead of those acknowledgements, which is what
bounds our memory when the database is away.

MQTT 5 is meant. With 3.1.1 (mqtt.protocol = "3.1.1") it works too, without the broker's reasons,
without a bound from the broker, and with our own receipts coming back to us.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from queue import Empty, SimpleQueue
from random import Random
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from edgeagent.core.backoff import Backoff, Pace
from edgeagent.errors import ConfigError
from edgeagent.publish import tls
from edgeagent.publish.broker import Broker, checked

RECEIVE_MAXIMUM = 1_000
_PACE = Pace(first_s=0.0, return_s=1.0, most_s=15.0, refused_s=15.0)
"""There is one collector, or a few: nobody has to be spread out as boxes are."""
MOST_PACKET_BYTES = 1_048_576
_MOST_PASSING = 4_000
"""So many messages without an acknowledgement (live readings) may wait; more are dropped."""
_READS_AT_ONCE = 64
SESSION_S = 86_400
"""How long a broker keeps what came for us while we are away; boxes keep everything anyway."""


@dataclass(frozen=True)
class Subscription:
    """What to listen to; `echo` is a filter of which our own messages are not wanted back.

    `session_s` is how long the broker keeps what comes while we are away; 0: not at all.
    """

    filters: tuple[str, ...]
    echo: str | None = None
    session_s: int = SESSION_S


@dataclass(frozen=True)
class Arrived:
    """A message; `client.ack(arrived)` once it is stored."""

    generation: int
    mid: int
    qos: int
    topic: str
    payload: bytes
    retained: bool
    rx_ms: int


@dataclass
class Link:
    """How the connection is; written by the client's thread, read by anybody."""

    generation: int = 0
    connection: str = "down"
    subscribed_s: float = 0.0
    text: str = "not connected yet"
    dropped: int = 0
    """Live readings that found no room."""


class Client:
    """A connection that comes back by itself. `arrived` is what came, in its order."""

    def __init__(self, broker: Broker, wanted: Subscription, pace: Pace | None = None) -> None:
        self._broker, self._wanted = checked(broker), wanted
        self._backoff, self._random = Backoff(pace or _PACE), Random()  # noqa: S311  # because it spreads retries
        self.link = Link()
        self.arrived: SimpleQueue[Arrived] = SimpleQueue()
        self._acks: deque[tuple[int, int]] = deque()
        self._outbox: OrderedDict[str, bytes] = OrderedDict()
        self._turn = threading.Lock()
        self._ear, self._bell = socket.socketpair()
        for end in (self._ear, self._bell):
            end.setblocking(False)
        self._stopping = threading.Event()
        self._giving_up = 0
        self._thread = threading.Thread(target=self._live_on, name="fleet-link", daemon=True)

    def start(self) -> None:
        """Begin to connect."""
        self._thread.start()

    def take(self, most: int, wait_s: float) -> list[Arrived]:
        """Return what came, at least one unless nothing comes for a while."""
        try:
            taken = [self.arrived.get(timeout=wait_s)]
        except Empty:
            return []
        with suppress(Empty):
            while len(taken) < most:
                taken.append(self.arrived.get_nowait())
        return taken

    def ack(self, stored: list[Arrived]) -> None:
        """Tell the broker that these are stored; those of an old connection come again."""
        self._acks.extend((one.generation, one.mid) for one in stored if one.qos)
        self._ring()

    def tell(self, topic: str, payload: bytes) -> None:
        """Publish retained, as soon as it can be; a later word on the same topic replaces it."""
        with self._turn:
            self._outbox[topic] = payload

    def ring(self) -> None:
        """Have what was told sent now."""
        self._ring()

    def again(self) -> None:
        """Give the connection up and make a fresh one."""
        self._giving_up = self.link.generation
        self._ring()

    def alive(self) -> bool:
        """Return whether the thread lives."""
        return self._thread.is_alive()

    def stop(self, timeout_s: float) -> None:
        """Say goodbye; the session stays, so that nothing is missed until we are back."""
        self._stopping.set()
        self._ring()
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            self._ear.close()
            self._bell.close()

    def _ring(self) -> None:
        with suppress(OSError):
            self._bell.send(b"!")

    # ------------------------------------------------------------ the thread

    def _live_on(self) -> None:
        wait_s = 0.0
        while not self._stopping.wait(wait_s):
            self.link.generation += 1
            with self._turn:
                self._outbox.clear()  # because whoever tells starts over with each connection
            attempt = _Attempt(self._broker, self._wanted, self)
            self.link.text = self._outcome(attempt)
            self.link.connection = "down"
            up_s = None if attempt.up_at is None else time.monotonic() - attempt.up_at
            attempt.discard()
            self._backoff = self._backoff.ended(up_s)
            wait_s = self._backoff.wait_s(attempt.cause, up_s, self._random)

    def _outcome(self, attempt: _Attempt) -> str:
        try:
            return attempt.run()
        except ConfigError as error:
            return str(error)
        except (OSError, paho.WebsocketConnectionError) as error:
            return _not_reached(error, self._broker)
        except Exception:  # noqa: BLE001  # because the thread outlives each attempt
            return "a fault of ours ended the connection: " + traceback.format_exc()

    # ------------------------------------------------------------ for the attempt

    @property
    def stopping(self) -> bool:
        """Whether the thread is to end."""
        return self._stopping.is_set()

    @property
    def giving_up(self) -> bool:
        """Whether this connection is no longer wanted."""
        return self._giving_up == self.link.generation

    @property
    def ear(self) -> socket.socket:
        """What rings when there is something to send."""
        return self._ear

    def due_acks(self) -> Iterator[int]:
        """Yield what to acknowledge on this connection."""
        while self._acks:
            generation, mid = self._acks.popleft()
            if generation == self.link.generation:
                yield mid

    def next_word(self) -> tuple[str, bytes] | None:
        """Return the next message to send, None for nothing."""
        with self._turn:
            return self._outbox.popitem(last=False) if self._outbox else None


class _Attempt:
    """One connection, from the first packet to the last."""

    def __init__(self, broker: Broker, wanted: Subscription, owner: Client) -> None:
        self._broker, self._wanted, self._owner = broker, wanted, owner
        self.up_at: float | None = None
        self.cause: Any = "ordinary"
        self._connack: ReasonCode | None = None
        self._suback: list[ReasonCode] | None = None
        self._goodbye: ReasonCode | None = None
        self._unanswered: set[int] = set()
        self._words = ""
        self._packets = 0
        self._last_byte = time.monotonic()
        self._five = broker.protocol != "3.1.1"
        self._paho = self._client()

    def _client(self) -> paho.Client:
        made = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=self._broker.client_id,
            clean_session=None if self._five else not self._wanted.session_s,
            protocol=MQTTProtocolVersion.MQTTv5 if self._five else MQTTProtocolVersion.MQTTv311,
            transport=self._broker.transport,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        made.connect_timeout = self._broker.connect_timeout_s
        made.max_inflight_messages_set(0)  # because what is in flight is counted here
        if self._broker.transport == "websockets":
            made.ws_set_options(path=self._broker.path)
        made.on_connect = self._on_connect
        made.on_subscribe = self._on_subscribe
        made.on_disconnect = self._on_disconnect
        made.on_publish = self._on_publish
        made.on_message = self._on_message
        made.on_log = self._on_log
        return made

    def run(self) -> str:
        """Connect and serve; return a sentence about how it ended."""
        place = self._broker.place
        self._connect()
        deadline = time.monotonic() + self._broker.connect_timeout_s
        if not self._until(lambda: self._connack is not None, deadline):
            return self._ended(f"the broker {place} did not answer the greeting")
        if self._connack is not None and self._connack.is_failure:
            self.cause = "refused"
            return f"the broker {place} refused us ({self._who()}): {self._connack}"
        self._paho.subscribe(self._options())
        if not self._until(lambda: self._suback is not None, deadline):
            return self._ended(f"the broker {place} did not answer our subscription")
        if any(code.is_failure for code in self._suback or ()):
            self.cause = "refused"
            return (
                f"the broker {place} refused a subscription of {self._who()}; "
                "let the collector read all topics of the fleet"
            )
        # Its log is formatted for every message, whether or not anybody reads it; what it says of
        # TLS it has said by now.
        self._paho.on_log = None
        self.up_at = time.monotonic()
        link = self._owner.link
        link.subscribed_s, link.text, link.connection = self.up_at, "connected", "up"
        return self._serve()

    def discard(self) -> None:
        """Close what is open."""
        sock = self._paho.socket()
        if sock is not None:
            with suppress(OSError, ValueError):
                sock.close()
        for name in ("connect", "subscribe", "disconnect", "publish", "message", "log"):
            setattr(self._paho, f"on_{name}", None)  # because the cycle would outlive the attempt

    # ------------------------------------------------------------ beginning

    def _connect(self) -> None:
        broker = self._broker
        if broker.tls_files is not None:
            self._paho.tls_set_context(tls.context(broker.tls_files))
        if broker.username is not None:
            password = None
            if broker.password_file is not None:
                secret = tls.read_secret(broker.password_file, "mqtt.password_file")
                password = secret.reveal().decode()
            self._paho.username_pw_set(broker.username, password)
        extra: dict[str, Any] = {}
        if self._five:
            properties: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # because paho left it so
            properties.SessionExpiryInterval = self._wanted.session_s
            properties.ReceiveMaximum = RECEIVE_MAXIMUM
            properties.MaximumPacketSize = MOST_PACKET_BYTES
            extra = {"clean_start": False, "properties": properties}
        self._paho.connect(broker.host, broker.port, broker.keepalive_s, **extra)

    def _options(self) -> list[Any]:
        names = [*self._wanted.filters]
        if not self._five:
            return [
                (name, 1) for name in names + ([self._wanted.echo] if self._wanted.echo else [])
            ]
        wanted: list[Any] = [(name, SubscribeOptions(qos=1)) for name in names]
        if self._wanted.echo is not None:
            wanted.append((self._wanted.echo, SubscribeOptions(qos=1, noLocal=True)))
        return wanted

    def _who(self) -> str:
        user = f', user "{self._broker.username}"' if self._broker.username else ""
        return f'client id "{self._broker.client_id}"{user}'

    # ------------------------------------------------------------ serving

    def _serve(self) -> str:
        while not self._owner.stopping and not self._owner.giving_up:
            self._hand_over()
            silent = time.monotonic() - self._last_byte >= 2 * self._broker.keepalive_s
            if not self._step(1.0) or silent:
                return self._ended(f"the broker {self._broker.place} fell silent")
        deadline = time.monotonic() + 5.0
        self._hand_over()
        while self._paho.want_write() and time.monotonic() < deadline and self._step(0.2):
            self._hand_over()
        self._paho.disconnect()
        self._until(lambda: self._paho.socket() is None, deadline)
        return "disconnected as asked"

    def _hand_over(self) -> None:
        """Give paho what it can write; the rest waits where it is bounded."""
        for mid in self._owner.due_acks():
            self._paho.ack(mid, 1)
        while not self._paho.want_write() and len(self._unanswered) < _READS_AT_ONCE:
            word = self._owner.next_word()
            if word is None:
                return
            info = self._paho.publish(word[0], word[1], 1, True)
            if info.rc in {MQTTErrorCode.MQTT_ERR_SUCCESS, MQTTErrorCode.MQTT_ERR_AGAIN}:
                self._unanswered.add(info.mid)

    def _until(self, reached: Callable[[], bool], deadline: float) -> bool:
        while not reached():
            left = deadline - time.monotonic()
            if left <= 0 or not self._step(min(left, 0.5)):
                return reached()
        return True

    def _step(self, timeout_s: float) -> bool:
        """Wait for the socket or the bell, let paho read and write; False at the end."""
        sock = self._paho.socket()
        if sock is None:
            return False
        pending = hasattr(sock, "pending") and sock.pending() > 0
        poll = select.poll()
        out = select.POLLOUT if self._paho.want_write() else 0
        poll.register(sock.fileno(), select.POLLIN | out)
        poll.register(self._owner.ear.fileno(), select.POLLIN)
        seen = dict(poll.poll(0 if pending else timeout_s * 1000))
        if self._owner.ear.fileno() in seen:
            with suppress(OSError):
                self._owner.ear.recv(4096)
        readable = pending or seen.get(sock.fileno(), 0) & ~select.POLLOUT
        if readable and not self._read():
            return False
        if self._paho.want_write() and self._paho.socket() is not None:
            self._paho.loop_write()
        self._paho.loop_misc()
        return self._paho.socket() is not None

    def _read(self) -> bool:
        """Read some packets, as far as they are there."""
        self._last_byte = time.monotonic()
        for _ in range(_READS_AT_ONCE):
            before = self._packets
            try:
                code = self._paho.loop_read()
            except Exception as error:  # noqa: BLE001  # because paho raises of many kinds on bad bytes
                self._words = f"what it sent is no MQTT ({type(error).__name__}: {error})"
                return False
            if code != MQTTErrorCode.MQTT_ERR_SUCCESS or self._paho.socket() is None:
                return False
            if self._packets == before:
                break  # because nothing whole was there
        return True

    def _ended(self, otherwise: str) -> str:
        broker = self._broker
        if broker.tls_files is not None and "SSL" in self._words.upper():
            peer = tls.Peer(broker.host, broker.port, broker.tls_files)
            if tls.refused_for_good(self._words):
                self.cause = "refused"
            return tls.explain_text(self._words, peer, datetime.now(timezone.utc))
        if self._goodbye is not None and self._goodbye.value == 0x8E:  # noqa: PLR2004  # because MQTT 5, 2.4
            self.cause = "taken_over"
            return (
                f'another client with the id "{broker.client_id}" took our connection to '
                f"{broker.place} over; give each collector its own mqtt.client_id"
            )
        if self._goodbye is not None and self._goodbye.is_failure:
            return f"the broker {broker.place} ended the connection: {self._goodbye}"
        if self._words:
            return f"the connection to {broker.place} broke: {self._words}"
        return otherwise

    # ------------------------------------------------------------ paho's callbacks: notes only

    def _on_connect(self, _c: Any, _u: Any, _f: Any, reason: ReasonCode, _p: Any) -> None:
        self._connack = reason

    def _on_subscribe(self, _c: Any, _u: Any, _m: int, codes: list[ReasonCode], _p: Any) -> None:
        self._suback = codes

    def _on_disconnect(self, _c: Any, _u: Any, _f: Any, reason: ReasonCode, _p: Any) -> None:
        self._goodbye = reason

    def _on_publish(self, _c: Any, _u: Any, mid: int, _reason: ReasonCode, _p: Any) -> None:
        self._packets += 1
        self._unanswered.discard(mid)

    def _on_message(self, _c: Any, _u: Any, message: paho.MQTTMessage) -> None:
        self._packets += 1
        owner = self._owner
        if not message.qos and owner.arrived.qsize() > _MOST_PASSING:
            owner.link.dropped += 1
            return
        try:
            topic = message.topic
        except UnicodeDecodeError:
            topic = ""
        owner.arrived.put(
            Arrived(
                owner.link.generation,
                message.mid,
                message.qos,
                topic,
                bytes(message.payload),
                bool(message.retain),
                time.time_ns() // 1_000_000,
            )
        )

    def _on_log(self, _c: Any, _u: Any, level: int, words: str) -> None:
        if level in {paho.MQTT_LOG_ERR, paho.MQTT_LOG_WARNING}:
            self._words = words.removeprefix("failed to receive on socket: ")


def _not_reached(error: Exception, broker: Broker) -> str:
    if isinstance(error, ssl.SSLError | ConnectionResetError) and broker.tls_files is not None:
        peer = tls.Peer(broker.host, broker.port, broker.tls_files)
        return tls.explain(error, peer, datetime.now(timezone.utc))
    said = getattr(error, "strerror", None) or str(error)
    return f"the broker {broker.place} cannot be reached: {said}"
