"""Where do a plant's certificates and its broker come from, as configs/ sets them up?"""

from __future__ import annotations

import getpass
import os
import signal
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import paho.mqtt.client as paho
import pytest
from broker_places import PATIENCE_S, Mosquitto, Variant, until
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

CONFIGS = Path(__file__).parents[2] / "configs"
SCRIPT = CONFIGS / "pki/make-pki.sh"
ROLES = ("plant-collector", "plant-operator", "plant-janitor", "plant-viewer")
BOXES = ("edge-0001", "edge-0002")

Generation = Literal["2.0", "2.1", "2.0 on 2.1"]
"""Which of the two files in configs/ is loaded, by the mosquitto of that generation or the next."""


@dataclass(frozen=True)
class Pki:
    """What make-pki.sh makes."""

    folder: Path

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(SCRIPT), str(self.folder), *words], capture_output=True, text=True, check=False
        )

    def made(self, *words: str) -> None:
        done = self.run(*words)
        assert done.returncode == 0, done.stderr

    @property
    def ca(self) -> Path:
        return self.folder / "plant-ca.crt"

    def cert(self, name: str) -> Path:
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def context(self, name: str | None) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=str(self.ca))
        if name is not None:
            made.load_cert_chain(str(self.cert(name)), str(self.key(name)))
        return made


def pki(folder: Path) -> Pki:
    """An authority, a broker's certificate for loopback, one for each box and each role."""
    made = Pki(folder)
    made.made("ca")
    made.made("broker", "localhost", "127.0.0.1")
    made.made("client", *BOXES, *ROLES)
    return made


@dataclass
class PlantBroker(Mosquitto):
    """mosquitto with the files of configs/ as they are, but for paths and the port."""

    pki: Pki = field(default_factory=lambda: Pki(Path()))
    generation: Generation = "2.0"

    @property
    def acl(self) -> Path:
        return self.folder / "edgeagent.acl"

    def text(self) -> str:
        name = "edgeagent-2.1.conf" if self.generation == "2.1" else "edgeagent.conf"
        text = (CONFIGS / "mosquitto" / name).read_text()
        (self.folder / "store").mkdir(exist_ok=True)
        if not self.acl.exists():
            self.acl.write_text((CONFIGS / "mosquitto/edgeagent.acl").read_text())
        for old, new in (
            ("listener 8883", f"listener {self.port} 127.0.0.1"),
            ("/etc/mosquitto/pki/", f"{self.pki.folder}/"),
            ("/etc/mosquitto/edgeagent.acl", str(self.acl)),
            ("/var/lib/mosquitto/", f"{self.folder}/store/"),
            *([(PLUGINS, f"{plugins_21()}/")] if self.generation == "2.1" else []),
        ):
            assert old in text, old
            text = text.replace(old, new)
        return text

    def program(self) -> str:
        return super().program() if self.generation == "2.0" else mosquitto_21()

    def start(self) -> None:
        head = f"user {getpass.getuser()}\nlog_dest file {self.folder}/mosquitto.log\n"
        config = self.folder / "mosquitto.conf"
        config.write_text(head + self.text())
        self.process = subprocess.Popen(
            [self.program(), "-c", str(config)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until(self._answers, "mosquitto listens")


PLUGINS = "/usr/lib/x86_64-linux-gnu/mosquitto/"
"""Where Debian's package of 2.1 has them, and so configs/ says."""


def mosquitto_21() -> str:
    """The program named in EDGEAGENT_TEST_MOSQUITTO_21; skips the test if there is none."""
    program = os.environ.get("EDGEAGENT_TEST_MOSQUITTO_21")
    if program:
        return program
    if os.environ.get("EDGEAGENT_REQUIRE_MOSQUITTO_21") == "1":
        pytest.fail("EDGEAGENT_REQUIRE_MOSQUITTO_21=1, and EDGEAGENT_TEST_MOSQUITTO_21 names none")
    pytest.skip("no mosquitto 2.1; name one in EDGEAGENT_TEST_MOSQUITTO_21 to run this test")


def plugins_21() -> Path:
    """Where the plugins of that mosquitto are: EDGEAGENT_TEST_MOSQUITTO_21_PLUGINS."""
    return Path(os.environ.get("EDGEAGENT_TEST_MOSQUITTO_21_PLUGINS") or PLUGINS)


@contextmanager
def plant_broker(folder: Path, generation: Generation = "2.0") -> Iterator[PlantBroker]:
    """A plant: certificates, and a broker that lets nobody else in."""
    folder.mkdir(parents=True, exist_ok=True)
    made = PlantBroker(folder, Variant(), pki=pki(folder / "pki"), generation=generation)
    made.start()
    try:
        yield made
    finally:
        made.end(signal.SIGKILL)


class Party:
    """Somebody with a certificate at the broker, who writes down what he gets."""

    def __init__(self, port: int, context: ssl.SSLContext, name: str) -> None:
        self.got: list[tuple[str, bytes]] = []
        self.refused = ""
        self._up = threading.Event()
        self._answers: dict[int, int] = {}
        self._said: dict[int, list[int]] = {}
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2, f"{name}-test", protocol=MQTTProtocolVersion.MQTTv5
        )
        self._client.tls_set_context(context)
        self._client.on_connect = self._on_connect
        self._client.on_publish = self._on_publish
        self._client.on_subscribe = self._on_subscribe
        self._client.on_message = self._on_message
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        assert self._up.wait(PATIENCE_S)

    def _on_connect(self, _c: Any, _u: Any, _f: Any, reason: Any, _p: Any) -> None:
        self.refused = str(reason) if reason.is_failure else ""
        self._up.set()

    def _on_publish(self, _c: Any, _u: Any, mid: int, reason: Any, _p: Any) -> None:
        self._answers[mid] = int(reason.value)

    def _on_subscribe(self, _c: Any, _u: Any, mid: int, codes: Any, _p: Any) -> None:
        self._said[mid] = [int(code.value) for code in codes]

    def _on_message(self, _c: Any, _u: Any, message: paho.MQTTMessage) -> None:
        self.got.append((message.topic, bytes(message.payload)))

    def hears(self, topic: str) -> None:
        mid = self._client.subscribe(topic, 1)[1]
        assert mid is not None
        until(lambda: mid in self._said, "the broker answers a subscription")

    def may_write(self, topic: str, payload: bytes = b"1", *, retain: bool = False) -> bool:
        """What the broker says to a message: 0 and 16 (nobody listens) are yes, 135 is no."""
        mid = self._client.publish(topic, payload, 1, retain).mid
        until(lambda: mid in self._answers, "the broker answers a message")
        code = self._answers[mid]
        assert code in {0, 16, 135}, code
        return code != 135

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()
        # Nothing points in a circle any more, so that its sockets are closed now.
        self._client.on_connect = self._client.on_publish = None
        self._client.on_subscribe = self._client.on_message = None


@contextmanager
def party(broker: PlantBroker, name: str) -> Iterator[Party]:
    """Somebody of the plant, with the certificate of that name."""
    made = Party(broker.port, broker.pki.context(name), name)
    try:
        assert not made.refused, made.refused
        yield made
    finally:
        made.close()
