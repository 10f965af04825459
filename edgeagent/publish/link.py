"""How is a connection to the broker held, and held again after it was lost?

One thread of ours does everything that paho-mqtt is asked to do, and paho has no thread of its own:
no lock is held across its callbacks, nothing hangs in stopping it, and an error in it ends one
connection instead of a thread that still looks alive. Each attempt has a fresh client with freshly
read certificates: nothing of an old connection, such as messages that paho would send again on its
own, lives on. When to try again is decided in core/backoff.py, what to send by the pump.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from queue import SimpleQueue
from random import Random
from typing import Any, Literal

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from edgeagent.core.backoff import Backoff, Cause, Pace
from edgeagent.core.window import Ending, Server
from edgeagent.errors import ConfigError
from edgeagent.publish import tls
from edgeagent.publish.broker import Broker, checked
from edgeagent.publish.outbox import Outbox
from edgeagent.publish.topics import Topics
from edgeagent.publish.wire import (
    Answer,
    Bug,
    Command,
    Down,
    Event,
    Message,
    Protocol_,
    Refused,
    Rx,
    Session,
    Up,
)

__all__ = ["Broker", "PahoLink", "checked"]

_INCOMING_BYTES = 65_536
_INCOMING_AT_ONCE = 10
_TAKEN_OVER = 0x8E
_BAD_PROTOCOL = "Unsupported protocol version"
_REFUSED_NAMES = {
    "Bad user name or password",
    "Not authorized",
    "Client identifier not valid",
    "Bad authentication method",
    "Banned",
}
_RENEW_BEFORE = timedelta(days=7)
_RENEW_EVERY_S = 86_400.0
_CLOSED_BEFORE_FALLBACK = 2


class PahoLink:
    """A real connection; see `Link`."""

    def __init__(
        self, broker: Broker, topics: Topics, random: Random, pace: Pace | None = None
    ) -> None:
        self._broker = checked(broker)
        self._topics = topics
        self._random = random
        self._backoff = Backoff(pace or Pace())
        self._dialect = _Dialect(broker.protocol)
        self._box = Outbox()
        self._thread: threading.Thread | None = None

    def start(self, events: SimpleQueue[Event], session: Callable[[], Session]) -> None:
        """Begin to connect."""
        self._thread = threading.Thread(
            target=self._live_on, args=(events, session), name="mqtt-link", daemon=True
        )
        self._thread.start()

    def send(self, message: Message, generation: int) -> Refused | None:
        """Take a message for one connection."""
        return self._box.take(message, generation)

    def live(self, message: Message) -> Refused | None:
        """Take a live reading if it can go at once."""
        return self._box.take_live(message)

    def ack(self, command: Command) -> None:
        """Tell the broker that a command is stored."""
        self._box.acks.append((command.generation, command.mid))
        self._box.wake()

    def alive(self) -> bool:
        """Return whether the thread lives."""
        return self._thread is not None and self._thread.is_alive()

    def stop(self, timeout_s: float) -> Literal["stopped", "abandoned"]:
        """Say goodbye and end the thread; one that hangs in a connect is left to itself."""
        self._box.stopping.set()
        self._box.wake()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                return "abandoned"
        self._box.close()
        return "stopped"

    # ------------------------------------------------------------ the thread

    def _live_on(self, events: SimpleQueue[Event], session: Callable[[], Session]) -> None:
        wait_s = self._backoff.first_wait_s(self._random)
        generation = 0
        while not self._box.stopping.wait(wait_s):
            generation += 1
            down = self._attempt(generation, events, session)
            self._backoff = self._backoff.ended(down.up_s)
            wait_s = self._backoff.wait_s(down.cause, down.up_s, self._random)
            if self._dialect.ended(down):
                wait_s = 0.0  # because the broker only speaks the older protocol
            events.put(down)

    def _attempt(
        self, generation: int, events: SimpleQueue[Event], session: Callable[[], Session]
    ) -> Down:
        try:
            connection = _Connection(
                replace(self._broker, keepalive_s=self._dialect.keepalive(self._broker)),
                self._topics,
                self._box,
                _Introduction(generation, session(), self._dialect.spoken),
                events,
            )
        except Exception as error:  # noqa: BLE001  # because the thread outlives each attempt
            return self._bug(generation, error, events)
        try:
            return connection.run(self._dialect)
        except Exception as error:  # noqa: BLE001  # because the thread outlives each attempt
            return self._bug(generation, error, events)
        finally:
            connection.discard()

    def _bug(self, generation: int, error: Exception, events: SimpleQueue[Event]) -> Down:
        events.put(Bug(generation, "".join(traceback.format_exception(error))))
        return Down(
            generation, "ordinary", "ours", f"a fault of ours ended the connection: {error!r}"
        )


@dataclass
class _Dialect:
    """Which protocol is spoken, and what was learned of this broker."""

    setting: Literal["auto", "5", "3.1.1"]
    spoken: Protocol_ = "5"
    closed_early: int = 0
    keepalive_s: int | None = None

    def __post_init__(self) -> None:
        if self.setting == "3.1.1":
            self.spoken = "3.1.1"

    def keepalive(self, broker: Broker) -> int:
        """Return ours, or the broker's if that is less."""
        return min(broker.keepalive_s, self.keepalive_s or broker.keepalive_s)

    def ended(self, down: Down) -> bool:
        """Learn from an end; return whether to try at once in the other protocol."""
        if self.setting != "auto" or down.up_s is not None:
            self.closed_early = 0
            return False
        if _BAD_PROTOCOL in down.text and self.spoken == "5":
            self.spoken = "3.1.1"
            return True
        if down.ending == "closed" and down.cause == "ordinary":
            # because some old brokers hang up on MQTT 5 without a word
            self.closed_early += 1
            if self.closed_early % (_CLOSED_BEFORE_FALLBACK + 1) == _CLOSED_BEFORE_FALLBACK:
                self.spoken = "3.1.1"
            else:
                self.spoken = "5"
        return False


@dataclass(frozen=True)
class _Introduction:
    generation: int
    session: Session
    protocol: Protocol_


@dataclass
class _Heard:
    """What paho's callbacks have put down for the thread; they do nothing else."""

    connack: tuple[ReasonCode, Any] | None = None
    suback: list[ReasonCode] | None = None
    goodbye: ReasonCode | None = None
    words: str = ""
    """Of paho's log, the last that tell of an error."""
    unanswered: dict[int, object] = field(default_factory=dict)


class _Connection:
    """One attempt, from the first packet to the last."""

    def __init__(
        self,
        broker: Broker,
        topics: Topics,
        box: Outbox,
        introduction: _Introduction,
        events: SimpleQueue[Event],
    ) -> None:
        self._broker, self._topics, self._box = broker, topics, box
        self._me = introduction
        self._events = events
        self._heard = _Heard()
        self._server = Server()
        self._up_at: float | None = None
        self._last_byte = time.monotonic()
        self._client = _client(broker, introduction)
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = self._on_subscribe
        self._client.on_disconnect = self._on_disconnect
        self._client.on_publish = self._on_publish
        self._client.on_message = self._on_message
        self._client.on_log = self._on_log

    def run(self, dialect: _Dialect) -> Down:
        """Connect, serve until the end, and say how it ended."""
        failed = self._connect() or self._introduce()
        if failed is not None:
            return failed
        assert self._heard.connack is not None  # noqa: S101  # because _introduce saw it
        properties = self._heard.connack[1]
        self._server = Server(
            getattr(properties, "ReceiveMaximum", None),
            getattr(properties, "MaximumPacketSize", None),
        )
        dialect.keepalive_s = getattr(properties, "ServerKeepAlive", None)
        self._up_at = time.monotonic()
        self._box.opened(self._me.generation)
        self._events.put(
            Up(self._me.generation, self._me.session, self._server, self._me.protocol, self._note())
        )
        try:
            return self._serve()
        finally:
            self._box.closed()

    def discard(self) -> None:
        """Close what is open; the client is not used again."""
        client = self._client
        sock = client.socket()
        if sock is not None:
            with suppress(OSError, ValueError):
                sock.close()
        for name in ("connect", "subscribe", "disconnect", "publish", "message", "log"):
            setattr(client, f"on_{name}", None)  # because the cycle would outlive the attempt

    # ------------------------------------------------------------ beginning

    def _connect(self) -> Down | None:
        broker = self._broker
        extra: dict[str, Any] = {}
        if self._me.protocol == "5":
            properties = _properties(
                PacketTypes.CONNECT,
                SessionExpiryInterval=broker.session_expiry_s,
                ReceiveMaximum=_INCOMING_AT_ONCE,
                MaximumPacketSize=_INCOMING_BYTES,
            )
            extra = {"clean_start": not broker.session_expiry_s, "properties": properties}
        try:
            if broker.tls_files is not None:
                self._client.tls_set_context(tls.context(broker.tls_files))
            _authenticate(self._client, broker)
            self._client.connect(broker.host, broker.port, broker.keepalive_s, **extra)
        except ConfigError as error:
            return self._down("refused", "ours", str(error))
        except (OSError, ValueError, paho.WebsocketConnectionError) as error:
            _close_what_was_opened(error)
            return self._not_reached(error)
        return None

    def _introduce(self) -> Down | None:
        deadline = time.monotonic() + self._broker.connect_timeout_s
        if not self._until(lambda: self._heard.connack is not None, deadline):
            return self._down(*self._how_it_ended("did not answer the greeting"))
        assert self._heard.connack is not None  # noqa: S101  # because _until saw it
        reason = self._heard.connack[0]
        if reason.is_failure:
            cause: Cause = "refused" if str(reason) in _REFUSED_NAMES else "ordinary"
            return self._down(cause, "closed", self._refusal(str(reason)))
        self._client.subscribe(self._filters())
        if not self._until(lambda: self._heard.suback is not None, deadline):
            return self._down(*self._how_it_ended("did not answer our subscription"))
        return None

    def _filters(self) -> list[Any]:
        wanted = [self._topics.receipts]
        if self._broker.commands == "heard":
            wanted.append(self._topics.commands)
        if self._me.protocol == "5":
            # because a request that was published retained is to be seen as such at once
            options = SubscribeOptions(qos=1, retainAsPublished=True)
            return [(name, options) for name in wanted]
        return [(name, 1) for name in wanted]

    def _note(self) -> str | None:
        if any(code.is_failure for code in self._heard.suback or ()):
            return (
                f"the broker {self._broker.place} refused our subscription to receipts or "
                f"commands below {self._topics.prefix}; let this node read rx and cmd/#"
            )
        if self._me.protocol == "3.1.1" and self._broker.protocol == "auto":
            return (
                f"the broker {self._broker.place} speaks MQTT 3.1.1 only: what it refuses it "
                "drops without saying so; run a collector that sends receipts"
            )
        return None

    # ------------------------------------------------------------ serving

    def _serve(self) -> Down:
        renew_at = self._renew_at()
        while not self._box.stopping.is_set():
            self._hand_over()
            now = time.monotonic()
            silent = now - self._last_byte >= 2 * self._broker.keepalive_s
            if not self._step(1.0) or silent:
                return self._down(*self._how_it_ended("fell silent"))
            if renew_at is not None and now >= renew_at:
                self._say_goodbye()
                return self._down("ordinary", "ours", "reconnecting to use renewed certificates")
        self._say_goodbye()
        return self._down("ordinary", "ours", "disconnected as asked")

    def _hand_over(self) -> None:
        """Give paho what it can write; the rest waits here, where it is bounded."""
        for mid in self._due_acks():
            self._client.ack(mid, 1)
        while self._box.live and not self._client.want_write():
            self._publish(self._box.live.popleft())
        most = self._server.receive_maximum or 65_535
        for queue in (self._box.urgent, self._box.rows):
            while queue and len(self._heard.unanswered) < most and not self._client.want_write():
                generation, message = queue.popleft()
                if generation == self._me.generation:
                    self._publish(message)

    def _due_acks(self) -> Iterator[int]:
        while self._box.acks:
            generation, mid = self._box.acks.popleft()
            # what came with QoS 0 has no number and wants no answer: brokers hang up on one
            if generation == self._me.generation and mid:
                yield mid

    def _publish(self, message: Message) -> None:
        properties = None
        if self._me.protocol == "5" and message.expiry_s is not None:
            properties = _properties(PacketTypes.PUBLISH, MessageExpiryInterval=message.expiry_s)
        info = self._client.publish(
            message.topic,
            message.payload,
            message.qos,
            message.retain == "retained",
            properties,
        )
        if message.qos and info.rc in {
            MQTTErrorCode.MQTT_ERR_SUCCESS,
            MQTTErrorCode.MQTT_ERR_AGAIN,
        }:
            self._heard.unanswered[info.mid] = message.token

    def _say_goodbye(self) -> None:
        self._box.generation = 0  # because nothing more may be taken
        deadline = time.monotonic() + 2.0
        self._hand_over()
        self._client.disconnect()
        self._until(lambda: self._client.socket() is None, deadline)

    def _renew_at(self) -> float | None:
        files = self._broker.tls_files
        held = tls.validity(files.cert_file) if files and files.cert_file else None
        if held is None or held.not_after - _now() > _RENEW_BEFORE:
            return None
        return time.monotonic() + _RENEW_EVERY_S

    # ------------------------------------------------------------ the socket

    def _until(self, reached: Callable[[], bool], deadline: float) -> bool:
        while not reached():
            left = deadline - time.monotonic()
            if left <= 0 or not self._step(min(left, 0.5)) or self._gives_up():
                return reached()
        return True

    def _gives_up(self) -> bool:
        return self._box.stopping.is_set() and self._up_at is None

    def _step(self, timeout_s: float) -> bool:
        """Wait for the socket or the bell, let paho read and write; False at the end."""
        sock = self._client.socket()
        if sock is None:
            return False
        ready = self._ready(sock, timeout_s)
        if ready.get("bell"):
            self._box.heard()
        if ready.get("read") and not self._read():
            return False
        if self._client.want_write() and self._client.socket() is not None:
            self._client.loop_write()
        self._client.loop_misc()
        return self._client.socket() is not None

    def _ready(self, sock: Any, timeout_s: float) -> Mapping[str, bool]:
        pending = sock.pending() > 0 if hasattr(sock, "pending") else False
        poll = select.poll()
        wanted = select.POLLIN | (select.POLLOUT if self._client.want_write() else 0)
        poll.register(sock.fileno(), wanted)
        poll.register(self._box.bell.fileno(), select.POLLIN)
        seen = dict(poll.poll(0 if pending else timeout_s * 1000))
        return {
            "read": pending or bool(seen.get(sock.fileno(), 0) & ~select.POLLOUT),
            "bell": self._box.bell.fileno() in seen,
        }

    def _read(self) -> bool:
        before = time.monotonic()
        try:
            code = self._client.loop_read()
        except Exception as error:  # noqa: BLE001  # because paho raises of many kinds on bad bytes
            self._heard.words = f"what it sent is no MQTT ({type(error).__name__}: {error})"
            return False
        self._last_byte = before
        return code == MQTTErrorCode.MQTT_ERR_SUCCESS

    # ------------------------------------------------------------ how it ended

    def _down(self, cause: Cause, ending: Ending, text: str) -> Down:
        up_s = None if self._up_at is None else time.monotonic() - self._up_at
        return Down(self._me.generation, cause, ending, text, up_s)

    def _how_it_ended(self, otherwise: str) -> tuple[Cause, Ending, str]:
        place, heard = self._broker.place, self._heard
        if heard.goodbye is not None and heard.goodbye.value == _TAKEN_OVER:
            return (
                "taken_over",
                "closed",
                f'another client with the id "{self._broker.client_id}" took our connection to '
                f"{place} over; give each box its own node",
            )
        if self._broker.tls_files is not None and (
            "SSL" in heard.words.upper() or self._closed_unheard()
        ):
            return self._about_tls(heard.words, self._broker.tls_files)
        if heard.goodbye is not None and str(heard.goodbye) not in _NOT_SAID:
            ending: Ending = "silent" if "Keep alive" in str(heard.goodbye) else "closed"
            return "ordinary", ending, f"the broker {place} disconnected us: {heard.goodbye}"
        if heard.words:
            return "ordinary", "closed", f"the connection to {place} broke: {heard.words}"
        if self._client.socket() is None:
            return "ordinary", "closed", f"the broker {place} closed the connection"
        return "ordinary", "silent", f"the broker {place} {otherwise}"

    def _closed_unheard(self) -> bool:
        return self._client.socket() is None and self._heard.connack is None

    def _about_tls(self, words: str, files: tls.TlsFiles) -> tuple[Cause, Ending, str]:
        peer = tls.Peer(self._broker.host, self._broker.port, files)
        if self._closed_unheard() and not tls.refused_for_good(words):
            words = tls.alert(peer) or words or tls.HUNG_UP
        cause: Cause = "refused" if tls.refused_for_good(words) else "ordinary"
        return cause, "closed", tls.explain_text(words, peer, _now())

    def _refusal(self, reason: str) -> str:
        who = f'client id "{self._broker.client_id}"'
        if self._broker.username:
            who += f', user "{self._broker.username}"'
        return f"the broker {self._broker.place} refused us ({who}): {reason}"

    def _not_reached(self, error: Exception) -> Down:
        place = self._broker.place
        if self._broker.tls_files is not None and isinstance(
            error, ssl.SSLError | ConnectionResetError
        ):
            peer = tls.Peer(self._broker.host, self._broker.port, self._broker.tls_files)
            cause: Cause = "refused" if tls.refused_for_good(str(error)) else "ordinary"
            return self._down(cause, "silent", tls.explain(error, peer, _now()))
        said = str(error)
        if isinstance(error, socket.gaierror):
            said = f"the name cannot be resolved ({error.strerror})"
        elif isinstance(error, TimeoutError):
            said = f"no answer within {self._broker.connect_timeout_s:g} s"
        elif isinstance(error, OSError) and error.errno:
            said = os.strerror(error.errno)
        elif isinstance(error, OSError):
            return self._down("ordinary", "closed", f"the broker {place} hung up: {said}")
        return self._down("ordinary", "silent", f"the broker {place} cannot be reached: {said}")

    # ------------------------------------------------------------ paho's callbacks: notes only

    def _on_connect(self, _c: Any, _u: Any, _f: Any, reason: ReasonCode, more: Any) -> None:
        self._heard.connack = (reason, more)

    def _on_subscribe(self, _c: Any, _u: Any, _m: int, codes: list[ReasonCode], _p: Any) -> None:
        self._heard.suback = codes

    def _on_disconnect(self, _c: Any, _u: Any, flags: Any, reason: ReasonCode, _p: Any) -> None:
        if flags.is_disconnect_packet_from_server and not reason.is_failure:
            reason = _overlooked(self._client) or reason
        self._heard.goodbye = reason

    def _on_publish(self, _c: Any, _u: Any, mid: int, reason: ReasonCode, _p: Any) -> None:
        token = self._heard.unanswered.pop(mid, None)
        if token is not None:
            self._events.put(Answer(self._me.generation, token, int(reason.value)))

    def _on_message(self, _c: Any, _u: Any, message: paho.MQTTMessage) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:
            topic = ""
        if topic == self._topics.receipts:
            self._events.put(Rx(self._me.generation, bytes(message.payload)))
        elif topic.startswith(self._topics.full("cmd/")):
            self._events.put(_command(self._me.generation, topic, message))
            return
        self._box.acks.append((self._me.generation, message.mid))

    def _on_log(self, _c: Any, _u: Any, level: int, words: str) -> None:
        if level in {paho.MQTT_LOG_ERR, paho.MQTT_LOG_WARNING}:
            self._heard.words = words.removeprefix("failed to receive on socket: ")


_NOT_SAID = {"Normal disconnection", "Unspecified error", "Success"}
"""What paho makes of an end without a reason."""


def _client(broker: Broker, me: _Introduction) -> paho.Client:
    version = MQTTProtocolVersion.MQTTv5 if me.protocol == "5" else MQTTProtocolVersion.MQTTv311
    client = paho.Client(
        CallbackAPIVersion.VERSION2,
        client_id=broker.client_id,
        clean_session=not broker.session_expiry_s if me.protocol == "3.1.1" else None,
        protocol=version,
        transport=broker.transport,
        reconnect_on_failure=False,
        manual_ack=True,
    )
    client.connect_timeout = broker.connect_timeout_s
    client.max_inflight_messages_set(0)  # because the window is ours
    if broker.transport == "websockets":
        client.ws_set_options(path=broker.path)
    properties = None
    if me.protocol == "5":
        properties = _properties(PacketTypes.WILLMESSAGE, WillDelayInterval=broker.will_delay_s)
    client.will_set(
        me.session.will_topic,
        me.session.will,
        1,
        retain=me.session.will_retain == "retained",
        properties=properties,
    )
    return client


def _properties(kind: int, **values: int) -> Properties:
    made: Any = Properties(kind)  # type: ignore[no-untyped-call]  # because paho left it so
    for name, value in values.items():
        setattr(made, name, value)
    properties: Properties = made
    return properties


def _close_what_was_opened(error: BaseException) -> None:
    """Close the sockets of a connect that failed, which paho leaves to the garbage collector."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for value in list(frame.f_locals.values()):
            if isinstance(value, socket.socket):
                value.close()


def _overlooked(client: paho.Client) -> ReasonCode | None:
    """Return the reason in a DISCONNECT that comes without properties: paho 2.1.0 misses it."""
    packet = getattr(client, "_in_packet", {}).get("packet", b"")
    if not packet:
        return None
    try:
        return ReasonCode(PacketTypes.DISCONNECT, identifier=packet[0])
    except KeyError:
        return None


def _authenticate(client: paho.Client, broker: Broker) -> None:
    if broker.username is None:
        return
    password = None
    if broker.password_file is not None:
        password = tls.read_secret(broker.password_file, "mqtt.password_file").reveal().decode()
    client.username_pw_set(broker.username, password)


def _command(generation: int, topic: str, message: paho.MQTTMessage) -> Command:
    properties = message.properties
    users = dict(getattr(properties, "UserProperty", None) or ())
    return Command(
        generation,
        message.mid,
        topic,
        bytes(message.payload),
        "retained" if message.retain else "passing",
        getattr(properties, "ResponseTopic", None),
        getattr(properties, "CorrelationData", None),
        users.get("traceparent"),
    )


def _now() -> datetime:
    return datetime.now(timezone.utc)
