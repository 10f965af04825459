"""Where does a real mosquitto come from, and a client that sees everything?

Started on a loopback port that is free, in a folder of its own, and ended by its process. It is the
one on the path, or the one that EDGEAGENT_TEST_MOSQUITTO names.
"""

from __future__ import annotations

import getpass
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

MOSQUITTO = os.environ.get("EDGEAGENT_TEST_MOSQUITTO") or shutil.which(
    "mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
)

PATIENCE_S = 60.0
"""How long a test waits for what has to happen; only a failure takes as long."""


def until(reached: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait for something to be true; AssertionError names what never was."""
    deadline = time.monotonic() + patience_s
    while not reached():
        assert time.monotonic() < deadline, f"not within {patience_s:g} s: {what}"
        time.sleep(0.01)


_PORTS = random.SystemRandom()


def free_port() -> int:
    """A loopback port that nobody has now, below those that the kernel gives to clients."""
    while True:
        port = _PORTS.randrange(12_000, 32_000)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


@dataclass(frozen=True)
class Variant:
    """How the broker is set up; `lines` go below the listener."""

    lines: tuple[str, ...] = ("allow_anonymous true",)
    address: str = "127.0.0.1"
    unix_socket: Path | None = None
    head: tuple[str, ...] = ()
    """Lines above the listener."""


@dataclass
class Mosquitto:
    """A broker that can be killed, stopped and started again on the same port."""

    folder: Path
    variant: Variant
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def program(self) -> str:
        assert MOSQUITTO is not None, "no mosquitto; apt-get install mosquitto"
        return MOSQUITTO

    def start(self) -> None:
        where = str(self.variant.unix_socket or self.variant.address)
        port = 0 if self.variant.unix_socket else self.port
        lines = [
            f"user {getpass.getuser()}",
            f"log_dest file {self.folder}/mosquitto.log",
            "log_type all",
            *self.variant.head,
            f"listener {port} {where}",
            *self.variant.lines,
        ]
        (self.folder / "mosquitto.conf").write_text("\n".join(lines) + "\n")
        self.process = subprocess.Popen(
            [self.program(), "-c", str(self.folder / "mosquitto.conf")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until(self._answers, "mosquitto listens")

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"mosquitto ended at once:\n{self.log()}"
        if self.variant.unix_socket is not None:
            return self.variant.unix_socket.exists()
        with suppress(OSError), socket.create_connection((self.variant.address, self.port), 1):
            return True
        return False

    def end(self, by: signal.Signals = signal.SIGTERM) -> None:
        """End it and wait until it has ended."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(by)
            self.process.wait(PATIENCE_S)
            self.process = None

    def send(self, which: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(which)

    def restart(self, by: signal.Signals = signal.SIGKILL) -> None:
        self.end(by)
        self.start()

    def log(self) -> str:
        path = self.folder / "mosquitto.log"
        return path.read_text(errors="replace") if path.exists() else ""


@contextmanager
def mosquitto(folder: Path, variant: Variant | None = None) -> Iterator[Mosquitto]:
    """A running broker, ended at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    broker = Mosquitto(folder, variant or Variant())
    broker.start()
    try:
        yield broker
    finally:
        broker.end(signal.SIGKILL)


# ---------------------------------------------------------------- somebody else's client


@dataclass(frozen=True)
class Seen:
    topic: str
    payload: bytes
    qos: int
    retain: bool


class Observer:
    """A client that writes down what it is sent, and publishes what a test wants published."""

    def __init__(
        self,
        port: int,
        filters: tuple[str, ...] = ("#",),
        *,
        client_id: str = "",
        context: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
        on_seen: Callable[[Seen], None] | None = None,
    ) -> None:
        self.seen: list[Seen] = []
        self._filters = filters
        self.on_seen = on_seen
        self._ready = threading.Event()
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id, protocol=MQTTProtocolVersion.MQTTv5
        )
        if context is not None:
            self._client.tls_set_context(context)
        self._client.reconnect_delay_set(1, 1)
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = lambda *_: self._ready.set()
        self._client.on_message = self._on_message
        self._client.connect(host, port, clean_start=True)
        self._client.loop_start()
        assert self._ready.wait(PATIENCE_S)

    def _on_connect(self, *_: Any) -> None:
        if not self._filters:
            self._ready.set()
            return
        options = SubscribeOptions(qos=1, retainAsPublished=False)
        self._client.subscribe([(name, options) for name in self._filters])

    def _on_message(self, _c: Any, _u: Any, message: paho.MQTTMessage) -> None:
        seen = Seen(message.topic, bytes(message.payload), message.qos, message.retain)
        self.seen.append(seen)
        if self.on_seen is not None:
            self.on_seen(seen)

    def publish(
        self, topic: str, payload: bytes, *, retain: bool = False, response_topic: str | None = None
    ) -> None:
        properties: Any = None
        if response_topic is not None:
            properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            properties.ResponseTopic = response_topic
        self._client.publish(topic, payload, 1, retain, properties).wait_for_publish(PATIENCE_S)

    def publish_soon(self, topic: str, payload: bytes) -> None:
        """Publish retained, without waiting for a broker that may be away."""
        self._client.publish(topic, payload, 1, retain=True)

    def topics(self) -> list[str]:
        return [seen.topic for seen in list(self.seen)]

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@contextmanager
def observer(port: int, filters: tuple[str, ...] = ("#",), **more: Any) -> Iterator[Observer]:
    made = Observer(port, filters, **more)
    try:
        yield made
    finally:
        made.close()


def retained_at(port: int, topic: str) -> bytes | None:
    """What a broker has retained at a topic now, None for nothing."""
    marker = f"marker/{time.monotonic_ns()}"
    with observer(port, (topic, marker)) as looking:
        looking.publish(marker, b"1")
        until(lambda: marker in looking.topics(), "the marker comes back")
        return next((seen.payload for seen in looking.seen if seen.topic == topic), None)


# ---------------------------------------------------------------- certificates


@dataclass(frozen=True)
class Authority:
    """A CA of ours, made with openssl."""

    folder: Path
    name: str

    @property
    def cert(self) -> Path:
        return self.folder / f"{self.name}.crt"

    @property
    def key(self) -> Path:
        return self.folder / f"{self.name}.key"

    def issue(self, name: str, *, dates: tuple[str, str] | None = None, san: str = "") -> Issued:
        """A certificate for `name`; `dates` are openssl's, such as 20200101000000Z."""
        issued = Issued(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        request = self.folder / f"{name}.csr"
        _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out",
                 str(issued.key))  # fmt: skip
        issued.key.chmod(0o400)
        _openssl("req", "-new", "-key", str(issued.key), "-subj", f"/CN={name}", "-out",
                 str(request))  # fmt: skip
        first, last = dates or ("20240101000000Z", "20440101000000Z")
        config = self.folder / f"{name}.cnf"
        (self.folder / f"{self.name}.index").touch()
        config.write_text(
            f"""[ca]
default_ca = own
[own]
database = {self.folder}/{self.name}.index
unique_subject = no
rand_serial = yes
new_certs_dir = {self.folder}
certificate = {self.cert}
private_key = {self.key}
default_md = sha256
policy = any
default_crl_days = 30
x509_extensions = ext
[any]
commonName = supplied
[ext]
{f"subjectAltName = {san}" if san else "basicConstraints = CA:FALSE"}
"""
        )
        _openssl("ca", "-batch", "-notext", "-config", str(config), "-startdate", first,
                 "-enddate", last, "-in", str(request), "-out", str(issued.cert))  # fmt: skip
        return issued

    def revoke(self, name: str) -> Path:
        """The list on which the certificate for `name` stands as revoked."""
        config = str(self.folder / f"{name}.cnf")
        crl = self.folder / f"{self.name}.crl"
        _openssl("ca", "-config", config, "-revoke", str(self.folder / f"{name}.crt"))
        _openssl("ca", "-config", config, "-gencrl", "-out", str(crl))
        return crl


@dataclass(frozen=True)
class Issued:
    cert: Path
    key: Path


def authority(folder: Path, name: str = "plant-ca") -> Authority:
    folder.mkdir(parents=True, exist_ok=True)
    made = Authority(folder, name)
    _openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
             "-subj", f"/CN={name}", "-days", "7300", "-keyout", str(made.key), "-out",
             str(made.cert))  # fmt: skip
    return made


def _openssl(*words: str) -> None:
    done = subprocess.run(["openssl", *words], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
