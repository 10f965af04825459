"""How does one command of an operator speak to the broker while it lasts?

No thread: whoever waits for something to happen does the connection's work meanwhile, so that
Ctrl-C interrupts the waiting and nothing else. The session ends with the connection; after a lost
one a fresh client subscribes again and says again what nobody has confirmed, which does no harm:
a box knows a request by its id, and an answer is retained.
"""

from __future__ import annotations

import secrets
import select
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any, Literal, TypeAlias

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from edgeagent.errors import UnreachableError
from edgeagent.publish import tls
from edgeagent.publish.broker import Broker, checked

_FILTERS_AT_ONCE = 50
_STEP_S = 0.2
"""Longest wait for the socket at once."""
_ANSWER_S = 15.0
_UNCONFIRMED_AT_ONCE = 50
_WAIT_AT_MOST_S = 10.0


@dataclass(frozen=True)
class Letter:
    """A message to the broker; `token` comes back with its answer. An empty payload clears."""

    topic: str
    payload: bytes
    token: str
    keep: Literal["passing", "retained"] = "passing"
    expiry_s: int | None = None


@dataclass(frozen=True)
class Arrived:
    """A message from the broker."""

    topic: str
    payload: bytes
    kind: Literal["passing", "retained"]


@dataclass(frozen=True)
class Taken:
    """The broker's answer to a letter: below 0x80 it has it, 0x10 that nobody listens."""

    token: str
    code: int


@dataclass(frozen=True)
class Lost:
    """The connection broke; it is tried again."""

    text: str


@dataclass(frozen=True)
class Back:
    """Connected again, after so long."""

    away_s: float


Event: TypeAlias = Arrived | Taken | Lost | Back

NOBODY_LISTENS = 0x10
DENIED = 0x87
_FIRST_FAILURE = 0x80


@dataclass
class _Heard:
    """What paho's callbacks put down; they do nothing else."""

    connack: ReasonCode | None = None
    goodbye: str = ""
    subacks: dict[int, list[ReasonCode]] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    tokens: dict[int, str] = field(default_factory=dict)


class Line:
    """A connection that is held until `close`; `name` is how it is seen at the broker."""

    def __init__(self, broker: Broker, name: str) -> None:
        suffix = secrets.token_hex(4)  # because two operators may ask at the same time
        self._broker = checked(replace(broker, client_id=f"{name}-{suffix}"))
        self._filters: list[str] = []
        self._unconfirmed: dict[str, Letter] = {}
        self._unsent: list[Letter] = []
        self._events: list[Event] = []
        self._heard = _Heard()
        self._client: paho.Client | None = None
        self._lost_at: float | None = None
        self._attempts = 0
        self._try_at = 0.0

    # ------------------------------------------------------------ what a command does with it

    def open(self) -> None:
        """Connect. Raises UnreachableError, and ConfigError for files that cannot be used."""
        try:
            self._connect()
        except UnreachableError:
            self._discard()
            raise

    def listen(self, filters: Iterable[str]) -> None:
        """Subscribe, now and after every loss. Raises UnreachableError if the broker says no."""
        new = [one for one in filters if one not in self._filters]
        self._filters.extend(new)
        if self._client is not None:
            self._subscribe(new)

    def say(self, letter: Letter) -> None:
        """Send it as soon as possible; its answer comes as `Taken`."""
        self._unsent.append(letter)
        self._hand_over()

    def wait(self, timeout_s: float) -> list[Event]:
        """Return what has happened; wait for the first of it up to `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while True:
            if self._client is None:
                self._again(deadline)
            else:
                self._step(max(0.0, min(_STEP_S, deadline - time.monotonic())))
            found = self._take_events()
            if found or time.monotonic() >= deadline:
                return found

    def confirmed(self, timeout_s: float) -> bool:
        """Wait until the broker has answered all that was said; events stay for `wait`."""
        deadline = time.monotonic() + timeout_s
        while (self._unconfirmed or self._unsent) and time.monotonic() < deadline:
            if self._client is None:
                self._again(deadline)
            else:
                self._step(_STEP_S)
        return not self._unconfirmed and not self._unsent

    def close(self) -> None:
        """Say goodbye."""
        if self._client is not None:
            self._client.disconnect()
            deadline = time.monotonic() + 1.0
            while self._turn(0.1) and time.monotonic() < deadline:
                pass
        self._discard()

    # ------------------------------------------------------------ the connection

    def _connect(self) -> None:
        self._heard = _Heard()
        client = self._client = self._new_client()
        place = self._broker.place
        properties: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # because paho left it so
        properties.SessionExpiryInterval = 0
        more: dict[str, Any] = {"clean_start": True, "properties": properties}
        if self._broker.protocol == "3.1.1":
            more = {}
        try:
            if self._broker.tls_files is not None:
                client.tls_set_context(tls.context(self._broker.tls_files))
            self._authenticate(client)
            client.connect(self._broker.host, self._broker.port, self._broker.keepalive_s, **more)
        except (OSError, ValueError) as error:
            raise UnreachableError(self._why(error)) from error
        deadline = time.monotonic() + self._broker.connect_timeout_s
        while self._heard.connack is None:
            if time.monotonic() >= deadline:
                raise UnreachableError(f"the broker {place} did not answer our greeting")
            if not self._turn(_STEP_S):
                raise UnreachableError(self._why_closed())
        if self._heard.connack.is_failure:
            raise UnreachableError(
                f'the broker {place} refused us (client id "{self._broker.client_id}"): '
                f"{self._heard.connack}; look at mqtt.username_file, mqtt.password_file and "
                "mqtt.tls.cert_file"
            )

    def _new_client(self) -> paho.Client:
        old = self._broker.protocol == "3.1.1"
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=self._broker.client_id,
            clean_session=True if old else None,
            protocol=MQTTProtocolVersion.MQTTv311 if old else MQTTProtocolVersion.MQTTv5,
            transport=self._broker.transport,
            reconnect_on_failure=False,
        )
        client.connect_timeout = self._broker.connect_timeout_s
        if self._broker.transport == "websockets":
            client.ws_set_options(path=self._broker.path)
        heard = self._heard
        client.on_connect = lambda _c, _u, _f, reason, _p: setattr(heard, "connack", reason)
        client.on_disconnect = lambda _c, _u, _f, reason, _p: setattr(heard, "goodbye", str(reason))
        client.on_subscribe = _noting_subacks(heard)
        client.on_publish = _noting_answers(heard)
        client.on_message = _noting_messages(heard)
        return client

    def _authenticate(self, client: paho.Client) -> None:
        if self._broker.username is None:
            return
        password = None
        if self._broker.password_file is not None:
            secret = tls.read_secret(self._broker.password_file, "mqtt.password_file")
            password = secret.reveal().decode()
        client.username_pw_set(self._broker.username, password)

    def _subscribe(self, filters: Sequence[str]) -> None:
        for start in range(0, len(filters), _FILTERS_AT_ONCE):
            some = filters[start : start + _FILTERS_AT_ONCE]
            if self._client is None:
                return  # because it is done again with the next connection
            code, mid = self._client.subscribe([(one, 1) for one in some])
            if code == MQTTErrorCode.MQTT_ERR_SUCCESS and mid is not None:
                self._until_suback(mid, some)

    def _until_suback(self, mid: int, filters: Sequence[str]) -> None:
        deadline = time.monotonic() + _ANSWER_S
        while self._client is not None and mid not in self._heard.subacks:
            if time.monotonic() >= deadline:
                self._lose(f"the broker {self._broker.place} did not answer our subscription")
                return
            self._step(_STEP_S)
        codes = self._heard.subacks.pop(mid, [])
        for name, code in zip(filters, codes, strict=False):
            if code.is_failure:
                raise UnreachableError(
                    f"the broker {self._broker.place} refused our subscription to {name}: {code}; "
                    "let this user read it"
                )

    def _hand_over(self) -> None:
        while (
            self._client is not None
            and self._unsent
            and len(self._unconfirmed) < _UNCONFIRMED_AT_ONCE
        ):
            letter = self._unsent.pop(0)
            self._unconfirmed[letter.token] = letter
            self._publish(self._client, letter)

    def _publish(self, client: paho.Client, letter: Letter) -> None:
        properties: Any = None
        if self._broker.protocol != "3.1.1" and letter.expiry_s is not None:
            properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]  # because paho left it so
            properties.MessageExpiryInterval = letter.expiry_s
        info = client.publish(
            letter.topic, letter.payload, 1, letter.keep == "retained", properties
        )
        self._heard.tokens[info.mid] = letter.token

    def _take_events(self) -> list[Event]:
        self._sort_out_answers()
        found, self._events = self._events, []
        return found

    def _sort_out_answers(self) -> None:
        new, self._heard.events[:] = list(self._heard.events), []
        for event in new:
            if isinstance(event, Taken):
                self._unconfirmed.pop(event.token, None)
        self._events.extend(new)
        if new:
            self._hand_over()

    # ------------------------------------------------------------ the socket

    def _step(self, timeout_s: float) -> None:
        """Do the connection's work for a moment; a loss becomes an event."""
        alive = self._turn(timeout_s)
        self._sort_out_answers()
        if not alive and self._client is not None:
            self._lose(self._why_closed())

    def _turn(self, timeout_s: float) -> bool:
        client = self._client
        sock = client.socket() if client is not None else None
        if client is None or sock is None:
            return False
        pending = hasattr(sock, "pending") and sock.pending() > 0
        poll = select.poll()
        wanted = select.POLLIN | (select.POLLOUT if client.want_write() else 0)
        poll.register(sock.fileno(), wanted)
        seen = dict(poll.poll(0 if pending else timeout_s * 1000))
        try:
            if pending or seen.get(sock.fileno(), 0) & ~select.POLLOUT:
                client.loop_read()
            if client.want_write() and client.socket() is not None:
                client.loop_write()
            client.loop_misc()
        except (OSError, ValueError, IndexError) as error:
            self._heard.goodbye = f"what it sent is no MQTT ({error})"
            return False
        return client.socket() is not None

    # ------------------------------------------------------------ lost and found

    def _lose(self, text: str) -> None:
        self._discard()
        self._lost_at = time.monotonic()
        self._attempts = 0
        self._try_at = self._lost_at + 0.2
        self._events.append(Lost(text))

    def _again(self, deadline: float) -> None:
        now = time.monotonic()
        if self._try_at > now:
            time.sleep(max(0.0, min(self._try_at, deadline, now + _STEP_S) - now))
            return
        lost_at = now if self._lost_at is None else self._lost_at
        try:
            self._connect()
        except UnreachableError:
            self._discard()
            self._attempts += 1
            self._try_at = time.monotonic() + min(_WAIT_AT_MOST_S, 0.5 * 2**self._attempts)
            return
        self._lost_at = None
        self._subscribe(self._filters)
        if self._client is not None:
            for letter in self._unconfirmed.values():
                self._publish(self._client, letter)
            self._hand_over()
            self._events.append(Back(time.monotonic() - lost_at))

    def _discard(self) -> None:
        client, self._client = self._client, None
        sock = client.socket() if client is not None else None
        if sock is not None:
            with suppress(OSError, ValueError):
                sock.close()

    def _why(self, error: OSError | ValueError) -> str:
        files, place = self._broker.tls_files, self._broker.place
        if isinstance(error, OSError) and files is not None and _is_tls(error):
            return tls.explain(error, tls.Peer(self._broker.host, self._broker.port, files), _now())
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return f"the broker {place} cannot be reached: {said or type(error).__name__}"

    def _why_closed(self) -> str:
        files, place = self._broker.tls_files, self._broker.place
        if files is not None and self._heard.connack is None:
            peer = tls.Peer(self._broker.host, self._broker.port, files)
            return tls.explain_text(tls.alert(peer) or tls.HUNG_UP, peer, _now())
        said = f": {self._heard.goodbye}" if self._heard.goodbye else ""
        return f"the broker {place} closed the connection{said}"


def _is_tls(error: OSError) -> bool:
    import ssl

    return isinstance(error, ssl.SSLError | ConnectionResetError)


def _now() -> datetime:
    return datetime.now(timezone.utc)


def _noting_subacks(heard: _Heard) -> Callable[..., None]:
    def noted(_c: Any, _u: Any, mid: int, codes: list[ReasonCode], _p: Any) -> None:
        heard.subacks[mid] = codes

    return noted


def _noting_answers(heard: _Heard) -> Callable[..., None]:
    def noted(_c: Any, _u: Any, mid: int, reason: ReasonCode, _p: Any) -> None:
        token = heard.tokens.pop(mid, None)
        if token is not None:
            heard.events.append(Taken(token, int(reason.value)))

    return noted


def _noting_messages(heard: _Heard) -> Callable[..., None]:
    def noted(_c: Any, _u: Any, message: paho.MQTTMessage) -> None:
        with suppress(UnicodeDecodeError):  # because a topic that is no text is nobody's
            kind: Literal["passing", "retained"] = "retained" if message.retain else "passing"
            heard.events.append(Arrived(message.topic, bytes(message.payload), kind))

    return noted
