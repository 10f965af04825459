"""How far does this box get with the plant's broker?

Step by step, as the service would: name, TCP, TLS, the greeting, a message out and back again. The
first step that fails says why, the later ones are not asked. The doctor has a client id of its own
and a session that the broker forgets, so that a running service keeps its connection and its queue.
"""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from queue import Empty, SimpleQueue
from random import Random

from edgeagent.core.backoff import Pace
from edgeagent.core.diagnosis import Check, State
from edgeagent.doctor.bounded import OverdueError, within
from edgeagent.errors import ConfigError
from edgeagent.publish import tls
from edgeagent.publish.broker import Broker, checked
from edgeagent.publish.link import PahoLink
from edgeagent.publish.topics import Topics
from edgeagent.publish.wire import Answer, Down, Event, Message, Rx, Session, Up
from edgeagent.publishing import broker_of
from edgeagent.settings import Settings

ECHO = "meta/doctor"
"""Below the box's prefix: what the doctor writes, and hears again where it may read it."""

STEP_S = 6.0
GREETING_S = 15.0
_ECHO_S = 2.0
LIMIT_S = 4 * STEP_S + 2 * GREETING_S
_MOST_TRIES = 3
"""Two for a broker that hangs up on MQTT 5 without a word, one in its own dialect."""
_PACE = Pace(first_s=0.0, return_s=0.1, most_s=0.2, refused_s=0.2, taken_over_s=0.2)
_SOON, _VERY_SOON = timedelta(days=30), timedelta(days=7)
_NOBODY = 0x10
_FAILURE = 0x80
_REFUSALS = {
    0x80: "Unspecified error",
    0x83: "Implementation specific error",
    0x87: "Not authorized",
    0x90: "Topic name invalid",
    0x91: "Packet identifier in use",
    0x97: "Quota exceeded",
    0x99: "Payload format invalid",
}
_STEPS = ("broker.name", "broker.tcp", "broker.tls", "broker.mqtt", "broker.round_trip")


@dataclass(frozen=True)
class Plant:
    """Whom the doctor speaks to, and below which topics."""

    broker: Broker
    topics: Topics

    @property
    def encrypted(self) -> bool:
        """Whether TLS is spoken."""
        return self.broker.tls_files is not None


@dataclass(frozen=True)
class _Echo(Topics):
    """The node's topics, but that the link hears the echo where it would hear receipts."""

    @property
    def receipts(self) -> str:
        """Where the doctor's own message comes back."""
        return self.full(ECHO)


def certificates(settings: Settings, now: datetime) -> Iterator[Check]:
    """Judge the dates of the certificates that the configuration names; nobody is asked."""
    files = settings.mqtt.tls
    for what, path in (("cert", files.cert_file), ("ca", files.ca_file)):
        if path is not None:
            yield dates(f"broker.{what}", f"mqtt.tls.{what}_file {path}", tls.validity(path), now)


def dates(name: str, what: str, held: tls.Validity | None, now: datetime) -> Check:
    """Judge how long a certificate still holds."""
    if held is None:
        hint = "make it a PEM file with a certificate that this user may read"
        return Check(name, "unasked", f"{what}: its dates cannot be read", hint)
    last = f"{held.not_after:%Y-%m-%d}"
    left = held.not_after - now
    if now < held.not_before:
        first, today = (f"{moment:%Y-%m-%d %H:%M}" for moment in (held.not_before, now))
        text = f"{what} holds only from {first} on, and it is {today}"
        return Check(name, "fault", text, "set the clock: it is behind the date of this file")
    if left < timedelta(0):
        return Check(name, "fault", f"{what} expired on {last}", "put a new one in its place")
    days = f"{left.days} day{'' if left.days == 1 else 's'}"
    state: State = "ok" if left > _SOON else "warning"
    renew = "renew it now" if left < _VERY_SOON else "renew it"
    text = f"{what} holds until {last}, {days} more"
    return Check(name, state, text, renew if state == "warning" else None)


def asked(settings: Settings, now: datetime, step_s: float = STEP_S) -> Iterator[Check]:
    """Go as far as it goes. Yields a line for each step; after one that fails none is asked.

    Each step has `step_s`.
    """
    try:
        made = broker_of(settings)
        own = f"{made.client_id or settings.agent.node}-doctor"
        broker = checked(
            replace(
                made,
                client_id=own,
                connect_timeout_s=step_s,
                session_expiry_s=0,
                will_delay_s=0,
                commands="ignored",
            )
        )
    except ConfigError as error:
        yield _of_config("broker", error)
        return
    plant = Plant(broker, Topics(settings.mqtt.topic_prefix))
    kind = "TLS" if plant.encrypted else "no TLS"
    yield Check("broker", "ok", f"{broker.place} by {broker.transport}, {kind}; as {own}")
    left = [*_STEPS]
    for check in _steps(plant, now):
        yield check
        if check.name in left:
            del left[: left.index(check.name) + 1]
        if check.name in _STEPS and check.state in ("fault", "unasked"):
            yield from (Check(step, "unasked", f"{check.name} stands before it") for step in left)
            return


def left_alone(settings: Settings) -> Check:
    """Say that the broker was not to be asked."""
    where = settings.mqtt.unix_socket or f"{settings.mqtt.host}:{settings.mqtt.port}"
    return Check("broker", "unasked", f"{where}: left alone, as --offline says")


def _steps(plant: Plant, now: datetime) -> Iterator[Check]:
    broker = plant.broker
    if broker.transport != "unix":
        yield _resolve(broker)
    yield _reach(broker)
    if plant.encrypted:
        yield from _shake_hands(broker, now)
    yield from _greet(plant)


def _resolve(broker: Broker) -> Check:
    name = "broker.name"
    try:
        found = within(
            broker.connect_timeout_s,
            lambda: socket.getaddrinfo(broker.host, broker.port, type=socket.SOCK_STREAM),
        )
    except OverdueError as error:
        hint = "see /etc/resolv.conf: a name server in it hangs; or write an address"
        return Check(name, "fault", f"{broker.host} cannot be resolved: {error}", hint)
    except (OSError, UnicodeError) as error:
        said = getattr(error, "strerror", None) or str(error)
        hint = "correct mqtt.host, or the name servers in /etc/resolv.conf"
        return Check(name, "fault", f"{broker.host} cannot be resolved: {said}", hint)
    addresses = dict.fromkeys(str(one[4][0]) for one in found)
    return Check(name, "ok", f"{broker.host} is {', '.join(addresses)}")


def _reach(broker: Broker) -> Check:
    name = "broker.tcp"
    begun_s = time.monotonic()
    try:
        if broker.transport == "unix":
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
                one.settimeout(broker.connect_timeout_s)
                one.connect(broker.host)
        else:
            socket.create_connection((broker.host, broker.port), broker.connect_timeout_s).close()
    except TimeoutError:
        text = f"{broker.place} gave no answer within {broker.connect_timeout_s:g} s"
        return Check(name, "fault", text, "is a firewall between, or the wrong address?")
    except OSError as error:
        hint = "does the broker run, and is mqtt.port its port?"
        text = f"{broker.place} cannot be reached: {error.strerror or error}"
        return Check(name, "fault", text, hint)
    return Check(name, "ok", f"connected to {broker.place} in {_ms(begun_s)}")


def _shake_hands(broker: Broker, now: datetime) -> Iterator[Check]:
    name = "broker.tls"
    assert broker.tls_files is not None  # noqa: S101  # because the caller has looked
    peer = tls.Peer(broker.host, broker.port, broker.tls_files)
    begun_s = time.monotonic()
    try:
        context = tls.context(broker.tls_files)
        with (
            socket.create_connection((broker.host, broker.port), broker.connect_timeout_s) as plain,
            context.wrap_socket(plain, server_hostname=broker.host) as wrapped,
        ):
            took = _ms(begun_s)
            version, cipher = wrapped.version(), wrapped.cipher()
            certificate = wrapped.getpeercert(binary_form=True)
    except ConfigError as error:
        yield _of_config(name, error)
        return
    except TimeoutError:
        within_ = f"within {broker.connect_timeout_s:g} s"
        text = f"{broker.place} takes the connection and does not answer {within_}"
        yield Check(name, "fault", text, "is it a TLS port? is the broker overloaded?")
        return
    except (OSError, ValueError) as error:
        told = tls.explain(error, peer, now) if isinstance(error, OSError) else str(error)
        yield Check(name, "fault", *_parted(told))
        return
    words = f"{version}, {cipher[0]}" if cipher else str(version)
    yield Check(name, "ok", f"{words}; chain and name are right ({took})")
    held = None if certificate is None else tls.validity_of(certificate)
    yield dates("broker.their_cert", f"the certificate of {broker.place}", held, now)


def _of_config(name: str, error: ConfigError) -> Check:
    """Judge a file of ours that cannot be used: who may not read it has asked, not failed."""
    text, hint = _parted(str(error))
    if isinstance(error.__cause__, PermissionError):
        return Check(
            name, "unasked", text, "ask as the service's user or as root: sudo edgeagent doctor"
        )
    if "/run/credentials/" in text and isinstance(error.__cause__, FileNotFoundError):
        return Check(name, "unasked", text, "it is there only while the service runs: start it")
    return Check(name, "fault", text, hint)


# ------------------------------------------------------------------------------------- MQTT itself


def _greet(plant: Plant) -> Iterator[Check]:
    """Connect, and send a message that comes back."""
    topics = _Echo(plant.topics.prefix)
    link = PahoLink(plant.broker, topics, Random(0), _PACE)  # noqa: S311  # because it spreads waits
    events: SimpleQueue[Event] = SimpleQueue()
    # A will that says nothing, where nobody looks: that of the node is the service's alone.
    link.start(events, lambda: Session(1, "doctor", topics.full(ECHO), b"", "passing"))
    try:
        up = _came_up(events)
        if isinstance(up, Check):
            yield up
            return
        user = f", user {plant.broker.username}" if plant.broker.username else ""
        yield Check("broker.mqtt", "ok", f"let in by MQTT {up.protocol}{user}")
        if up.note and "refused our subscription" in up.note:
            hint = f"let this node read {topics.prefix}/rx, cmd/# and {ECHO}"
            text = f"the broker refused a subscription to {topics.full(ECHO)}"
            yield Check("broker.round_trip", "warning", text, hint)
            return
        yield _round_trip(plant, topics, link, events, up)
    finally:
        link.stop(plant.broker.connect_timeout_s)


def _came_up(events: SimpleQueue[Event]) -> Up | Check:
    """Return the connection, or the line that says why there is none."""
    until_s = time.monotonic() + GREETING_S
    told, tries = f"no answer to the greeting within {GREETING_S:g} s", 0
    with suppress(Empty):
        while tries < _MOST_TRIES:
            event = events.get(timeout=max(0.01, until_s - time.monotonic()))
            if isinstance(event, Up):
                return event
            if isinstance(event, Down):
                tries += 1
                told = event.text
                if event.cause != "ordinary" or event.ending == "silent":
                    break
    return Check("broker.mqtt", "fault", *_remedied(told))


def _remedied(told: str) -> tuple[str, str | None]:
    """Return a refusal with what to do about it."""
    if "refused us" in told:
        if "Client identifier" in told:
            hint = "the broker knows client ids: allow the doctor's too, or see the service's log"
        else:
            hint = (
                "correct mqtt.username_file and password_file, or the certificate; the broker's "
                "log has the reason"
            )
        return told, hint
    text, hint_ = _parted(told)
    return text, hint_ or "the broker's log has the reason"


def _round_trip(
    plant: Plant, topics: _Echo, link: PahoLink, events: SimpleQueue[Event], up: Up
) -> Check:
    name, topic = "broker.round_trip", topics.full(ECHO)
    word = uuid.uuid4().hex.encode()
    begun_s = time.monotonic()
    link.send(Message(topic, word, token="doctor"), up.generation)  # noqa: S106  # because it is a mark, no password
    until_s = begun_s + plant.broker.connect_timeout_s
    code: int | None = None
    while True:
        try:
            event = events.get(timeout=max(0.01, until_s - time.monotonic()))
        except Empty:
            break
        if isinstance(event, Rx) and event.payload == word:
            return Check(name, "ok", f"a message on {topic} came back in {_ms(begun_s)}")
        if isinstance(event, Answer):
            code = event.code
            if code >= _FAILURE:
                break
            # What the broker has taken it hands on at once, or not at all.
            until_s = min(until_s, time.monotonic() + _ECHO_S)
        if isinstance(event, Down):
            return Check(name, "fault", *_remedied(event.text))
    return _not_back(plant, topic, code, up)


def _not_back(plant: Plant, topic: str, code: int | None, up: Up) -> Check:
    name = "broker.round_trip"
    who = plant.broker.username or "this node"
    writes = f"let {who} write {plant.topics.prefix}/status, meta/#, m/#, e/#, r/# and ack/#"
    if code is None:
        text = f"the broker took no message on {topic} within {plant.broker.connect_timeout_s:g} s"
        return Check(name, "fault", text, "see the broker's log")
    if code >= _FAILURE:
        reason = _REFUSALS.get(code, f"reason 0x{code:02x}")
        return Check(name, "fault", f"the broker refused a message on {topic}: {reason}", writes)
    if up.protocol == "3.1.1":
        text = f"a message on {topic} did not come back: MQTT 3.1.1 drops without saying so"
        return Check(name, "warning", text, f"{writes}, and read {ECHO}")
    nobody = " (it has no subscriber for it)" if code == _NOBODY else ""
    text = f"the broker took a message on {topic} and did not hand it back{nobody}"
    hint = f"results need no more; to see the whole way, let {who} read {topic}"
    return Check(name, "warning", text, hint)


def _parted(sentence: str) -> tuple[str, str | None]:
    """Part a sentence into what was seen and what to do, where it says what to do."""
    text, semicolon, advice = sentence.rpartition("; ")
    return (text, advice) if semicolon else (sentence, None)


def _ms(begun_s: float) -> str:
    return f"{(time.monotonic() - begun_s) * 1000:.0f} ms"


def utc_now() -> datetime:
    """Return this moment."""
    return datetime.now(timezone.utc)
