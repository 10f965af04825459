"""How does the plant's side hold one connection to the broker?

The only importer of paho here, and nothing but one connection from the first packet to the last: it
has no thread and no memory of an earlier one. Whoever holds it does its work by calling `step`, and
decides what to do when `NotHeldError` says how it ended: the collector's listener (listener.py)
connects anew from a thread of its own, an operator's command (line.py) while it waits.

MQTT 5 is meant. With 3.1.1 (mqtt.protocol = "3.1.1") it works too, without the broker's reasons,
without a bound from the broker, and with our own receipts coming back to us.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal, NamedTuple

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from edgeagent.core.backoff import Cause
from edgeagent.errors import UnreachableError
from edgeagent.fleet.packets import Published
from edgeagent.fleet.tap import Tap
from edgeagent.publish import tls
from edgeagent.publish.broker import Broker, checked

RECEIVE_MAXIMUM = 2_000
"""Two batches of the collector: one is on its way while the other is written."""
MOST_PACKET_BYTES = 1_048_576
NOBODY_LISTENS = 0x10
DENIED = 0x87
FIRST_FAILURE = 0x80
_TAKEN_OVER = 0x8E
_FILTERS_AT_ONCE = 50
_MOST_UNSENT_BYTES = 65_536
_ANSWER_S = 15.0
_GOODBYE_S = 5.0


class NotHeldError(UnreachableError):
    """There is no connection (any more); the text is a sentence, `cause` says for how long."""

    def __init__(self, text: str, cause: Cause = "ordinary") -> None:
        super().__init__(text)
        self.cause = cause


@dataclass(frozen=True)
class Manner:
    """How a connection is held.

    `session_s` is how long the broker keeps what comes while we are away. With `acks` "asked", a
    message is acknowledged by `ack`, and no more than `RECEIVE_MAXIMUM` come ahead of that.
    """

    session_s: int = 0
    acks: Literal["at once", "asked"] = "at once"


class Arrived(NamedTuple):
    """A message; `rx_ms` is our wall clock."""

    mid: int
    qos: int
    topic: str
    payload: bytes
    retained: bool
    rx_ms: int


class Letter(NamedTuple):
    """What is sent, with QoS 1. An empty payload that is retained clears what was there."""

    topic: str
    payload: bytes
    keep: Literal["passing", "retained"] = "passing"
    expiry_s: int | None = None


@dataclass
class _Heard:
    """What paho's callbacks put down; they do nothing else."""

    connack: ReasonCode | None = None
    goodbye: ReasonCode | None = None
    words: str = ""


class Connection:
    """See the module. `heard` is called with each message, from within `step`."""

    def __init__(self, broker: Broker, manner: Manner, heard: Callable[[Arrived], None]) -> None:
        self._broker, self._manner, self._deliver = checked(broker), manner, heard
        self._heard = _Heard()
        self._subacks: dict[int, list[ReasonCode]] = {}
        self._answers: list[tuple[int, int]] = []
        self._five = broker.protocol != "3.1.1"
        self._last_byte = time.monotonic()
        self._paho = self._client()

    # ------------------------------------------------------------ what can be done with it

    def open(self) -> None:
        """Connect. Raises NotHeldError, and ConfigError for files that cannot be used."""
        try:
            self._connect()
        except (OSError, ValueError, paho.WebsocketConnectionError) as error:
            raise self._not_reached(error) from error
        deadline = time.monotonic() + self._broker.connect_timeout_s
        while self._heard.connack is None:
            if time.monotonic() >= deadline:
                raise NotHeldError(f"the broker {self._broker.place} did not answer our greeting")
            try:
                self.step(0.2)
            except NotHeldError:
                if self._heard.connack is None:
                    raise
        if self._heard.connack.is_failure:
            raise NotHeldError(
                f"the broker {self._broker.place} refused us ({self._who()}): "
                f"{self._heard.connack}; look at mqtt.username_file, mqtt.password_file and "
                "mqtt.tls.cert_file",
                "refused",
            )
        # Its log is formatted for every message, whether or not anybody reads it; what it says of
        # TLS it has said by now.
        self._paho.on_log = None

    def subscribe(self, filters: Iterable[str], echo: str | None = None) -> None:
        """Listen; `echo` is a filter of which our own messages are not wanted back.

        Raises NotHeldError: of the cause "refused" if the broker says no.
        """
        wanted: list[tuple[str, Any]] = [(name, self._options("all")) for name in filters]
        if echo is not None:
            wanted.append((echo, self._options("of others")))
        for start in range(0, len(wanted), _FILTERS_AT_ONCE):
            self._subscribe(wanted[start : start + _FILTERS_AT_ONCE])

    def publish(self, letter: Letter) -> int:
        """Send it; return the number that its answer comes with."""
        properties: Any = None
        if self._five and letter.expiry_s is not None:
            properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]  # because paho left it so
            properties.MessageExpiryInterval = letter.expiry_s
        keep = letter.keep == "retained"
        return int(self._paho.publish(letter.topic, letter.payload, 1, keep, properties).mid)

    def answers(self) -> list[tuple[int, int]]:
        """Return the broker's answers since the last call: number of the letter, reason code."""
        found, self._answers = self._answers, []
        return found

    def ack(self, mid: int) -> None:
        """Tell the broker that a message is stored."""
        self._paho.ack(mid, 1)

    def congested(self) -> bool:
        """Return whether so much waits for the network that more should not be written now."""
        return self._unsent() > _MOST_UNSENT_BYTES

    def step(self, timeout_s: float, ear: socket.socket | None = None) -> None:
        """Read and write what can be; wait for the network or the `ear` if there is nothing.

        Raises NotHeldError once there is no connection.
        """
        self._write()
        sock = self._live()
        pending = sock.pending() > 0
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLIN | (select.POLLOUT if sock.unsent else 0))
        if ear is not None:
            poll.register(ear.fileno(), select.POLLIN)
        seen = dict(poll.poll(0 if pending else timeout_s * 1000))
        if ear is not None and ear.fileno() in seen:
            with suppress(OSError):
                ear.recv(4096)
        if pending or seen.get(sock.fileno(), 0) & ~select.POLLOUT:
            self._read(sock)
        self._paho.loop_misc()
        self._write()
        if time.monotonic() - self._last_byte >= 2 * self._broker.keepalive_s:
            raise self._ended(f"the broker {self._broker.place} fell silent")

    def close(self) -> None:
        """Say goodbye, after what was written has left; the session stays as long as it shall."""
        deadline = time.monotonic() + _GOODBYE_S
        with suppress(NotHeldError):
            while self._unsent() and time.monotonic() < deadline:
                self.step(0.2)
            self._paho.disconnect()
            while self._paho.socket() is not None and time.monotonic() < deadline:
                self.step(0.2)
        self.discard()

    def discard(self) -> None:
        """Let go without a word."""
        sock = self._paho.socket()
        if sock is not None:
            with suppress(OSError, ValueError):
                sock.close()
        for name in ("connect", "subscribe", "disconnect", "publish", "log"):
            setattr(self._paho, f"on_{name}", None)  # because the cycle would outlive us

    # ------------------------------------------------------------ beginning

    def _client(self) -> paho.Client:
        made = _Paho(
            CallbackAPIVersion.VERSION2,
            client_id=self._broker.client_id,
            clean_session=None if self._five else not self._manner.session_s,
            protocol=MQTTProtocolVersion.MQTTv5 if self._five else MQTTProtocolVersion.MQTTv311,
            transport=self._broker.transport,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        made.connect_timeout = self._broker.connect_timeout_s
        made.max_inflight_messages_set(0)  # because whoever publishes counts what is under way
        if self._broker.transport == "websockets":
            made.ws_set_options(path=self._broker.path)
        made.on_connect = self._on_connect
        made.on_subscribe = self._on_subscribe
        made.on_disconnect = self._on_disconnect
        made.on_publish = self._on_publish
        made.on_log = self._on_log
        return made

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
        more: dict[str, Any] = {}
        if self._five:
            properties: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # because paho left it so
            properties.SessionExpiryInterval = self._manner.session_s
            properties.ReceiveMaximum = RECEIVE_MAXIMUM
            properties.MaximumPacketSize = MOST_PACKET_BYTES
            more = {"clean_start": not self._manner.session_s, "properties": properties}
        self._paho.connect(broker.host, broker.port, broker.keepalive_s, **more)

    def _options(self, whose: Literal["all", "of others"]) -> Any:
        return SubscribeOptions(qos=1, noLocal=whose == "of others") if self._five else 1

    def _subscribe(self, wanted: Sequence[tuple[str, Any]]) -> None:
        code, mid = self._paho.subscribe(list(wanted))
        if code != MQTTErrorCode.MQTT_ERR_SUCCESS or mid is None:
            raise self._ended(f"the broker {self._broker.place} closed the connection")
        deadline = time.monotonic() + _ANSWER_S
        while mid not in self._subacks:
            if time.monotonic() >= deadline:
                raise self._ended(
                    f"the broker {self._broker.place} did not answer our subscription"
                )
            self.step(0.2)
        for (name, _), said in zip(wanted, self._subacks.pop(mid), strict=False):
            if said.is_failure:
                raise NotHeldError(
                    f"the broker {self._broker.place} refused our subscription to {name} "
                    f"({self._who()}): {said}; let this user read it",
                    "refused",
                )

    def _who(self) -> str:
        user = f', user "{self._broker.username}"' if self._broker.username else ""
        return f'client id "{self._broker.client_id}"{user}'

    # ------------------------------------------------------------ the socket

    def _live(self) -> Tap:
        sock: Any = self._paho.socket()
        if sock is None:
            raise self._ended(f"the broker {self._broker.place} closed the connection")
        return sock  # type: ignore[no-any-return]  # because `_Paho` has put it there

    def _unsent(self) -> int:
        sock: Any = self._paho.socket()
        return 0 if sock is None else int(sock.unsent)

    def _write(self) -> None:
        sock = self._live()
        try:
            sock.flush()
        except OSError as error:
            self._heard.words = self._heard.words or str(error)
            raise self._ended(f"the connection to {self._broker.place} broke") from error

    def _read(self, sock: Tap) -> None:
        self._last_byte = time.monotonic()
        rx_ms = time.time_ns() // 1_000_000
        for message in sock.fill():
            self._take(message, rx_ms)
        while sock.for_paho:
            try:
                code = self._paho.loop_read()
            except Exception as error:  # because paho raises of many kinds on bad bytes
                self._heard.words = f"what it sent is no MQTT ({type(error).__name__}: {error})"
                raise self._ended("") from error
            if code != MQTTErrorCode.MQTT_ERR_SUCCESS:
                raise self._ended(f"the broker {self._broker.place} closed the connection")
            self._live()

    def _take(self, message: Published, rx_ms: int) -> None:
        topic, payload, qos, mid, retained = message
        self._deliver(Arrived(mid, qos, topic, payload, retained, rx_ms))
        if qos and self._manner.acks == "at once":
            self.ack(mid)

    # ------------------------------------------------------------ how it ended

    def _not_reached(self, error: Exception) -> NotHeldError:
        files, place = self._broker.tls_files, self._broker.place
        if files is not None and isinstance(error, ssl.SSLEOFError | ConnectionResetError):
            return self._not_let_in(files, None)
        if files is not None and isinstance(error, ssl.SSLError):
            return NotHeldError(tls.explain(error, self._peer(files), _now()))
        said = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return NotHeldError(f"the broker {place} cannot be reached: {said}")

    def _not_let_in(self, files: tls.TlsFiles, said: str | None) -> NotHeldError:
        """The broker hung up in the middle of TLS, or just after it."""
        peer = self._peer(files)
        said = said or tls.alert(peer) or tls.HUNG_UP
        cause: Cause = "refused" if tls.refused_for_good(said) else "ordinary"
        return NotHeldError(tls.explain_text(said, peer, _now()), cause)

    def _peer(self, files: tls.TlsFiles) -> tls.Peer:
        return tls.Peer(self._broker.host, self._broker.port, files)

    def _ended(self, otherwise: str) -> NotHeldError:
        files, place, heard = self._broker.tls_files, self._broker.place, self._heard
        if files is not None and heard.connack is None:
            return self._not_let_in(files, heard.words if "SSL" in heard.words.upper() else None)
        if heard.goodbye is not None and heard.goodbye.value == _TAKEN_OVER:
            return NotHeldError(
                f'another client with the id "{self._broker.client_id}" took our connection to '
                f"{place} over; give each its own mqtt.client_id",
                "taken_over",
            )
        if heard.goodbye is not None and heard.goodbye.is_failure:
            return NotHeldError(f"the broker {place} ended the connection: {heard.goodbye}")
        if heard.words:
            return NotHeldError(f"the connection to {place} broke: {heard.words}")
        return NotHeldError(otherwise)

    # ------------------------------------------------------------ paho's callbacks: notes only

    def _on_connect(self, _c: Any, _u: Any, _f: Any, reason: ReasonCode, _p: Any) -> None:
        self._heard.connack = reason

    def _on_subscribe(self, _c: Any, _u: Any, mid: int, codes: list[ReasonCode], _p: Any) -> None:
        self._subacks[mid] = codes

    def _on_disconnect(self, _c: Any, _u: Any, _f: Any, reason: ReasonCode, _p: Any) -> None:
        self._heard.goodbye = reason

    def _on_publish(self, _c: Any, _u: Any, mid: int, reason: ReasonCode, _p: Any) -> None:
        self._answers.append((mid, int(reason.value)))

    def _on_log(self, _c: Any, _u: Any, level: int, words: str) -> None:
        if level in {paho.MQTT_LOG_ERR, paho.MQTT_LOG_WARNING}:
            self._heard.words = words.removeprefix("failed to receive on socket: ")


class _Paho(paho.Client):
    """paho, which reads and writes through a tap."""

    def _create_socket(self) -> Any:
        return Tap(super()._create_socket(), int(self.protocol))


def _now() -> datetime:
    return datetime.now(timezone.utc)
