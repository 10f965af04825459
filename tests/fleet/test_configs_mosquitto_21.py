"""What mosquitto 2.1 keeps, says and refuses with the files of configs/."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from broker_places import PATIENCE_S, Mosquitto, Variant, retained_at, until
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from plant_places import PlantBroker, mosquitto_21, party, plant_broker, plugins_21
from pump_places import Rig, real_rig
from spark_node import client as spark_client

from edgeagent.core.backoff import Pace
from edgeagent.publish.link import Broker
from edgeagent.publish.sparkplug_mirror import Names

BOX = "edgeagent/v1/plant7/edge-0001"
TAKEN_OVER = 0x8E


@pytest.fixture(autouse=True)
def _there() -> None:
    mosquitto_21()


class Keeper:
    """The collector, in a session that outlives it; messages are kept as they come."""

    def __init__(self, broker: PlantBroker) -> None:
        self.got: list[bytes] = []
        self.present = False
        self.ended_by = -1
        self._up = threading.Event()
        self._subscribed = threading.Event()
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2, "collector-1", protocol=MQTTProtocolVersion.MQTTv5
        )
        self._client.tls_set_context(broker.pki.context("plant-collector"))
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect
        self._client.on_message = lambda _c, _u, message: self.got.append(bytes(message.payload))
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        lasts = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        lasts.SessionExpiryInterval = 86_400
        self._client.connect("127.0.0.1", broker.port, clean_start=False, properties=lasts)
        self._client.loop_start()
        assert self._up.wait(PATIENCE_S)

    def _on_connect(self, _c: Any, _u: Any, flags: Any, _r: Any, _p: Any) -> None:
        self.present = flags.session_present
        self._up.set()

    def _on_disconnect(self, _c: Any, _u: Any, _f: Any, reason: Any, _p: Any) -> None:
        self.ended_by = int(reason.value)
        if self.ended_by == TAKEN_OVER:
            self._client.disconnect()  # because paho would come back and take it over in turn

    def hears(self, *topics: str) -> None:
        self._client.subscribe([(topic, 1) for topic in topics])
        assert self._subscribed.wait(PATIENCE_S)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()
        # Nothing points in a circle any more, so that its sockets are closed now.
        self._client.on_connect = self._client.on_disconnect = None
        self._client.on_message = self._client.on_subscribe = None


@contextmanager
def kept_for(broker: PlantBroker) -> Iterator[Keeper]:
    """The collector at the broker; its session stays when it has gone."""
    made = Keeper(broker)
    try:
        yield made
    finally:
        made.close()


def _on_disk(broker: PlantBroker) -> int:
    """How many messages the broker has in its database now, waiting or retained."""
    path = broker.folder / "store/mosquitto.sqlite3"
    with (
        closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as kept,
        suppress(sqlite3.Error),
    ):
        return int(kept.execute("SELECT count(*) FROM base_msgs").fetchone()[0])
    return 0


def test_what_waits_for_a_collector_that_is_away_survives_the_kill_of_the_broker(
    tmp_path: Path,
) -> None:
    sent = [f"point {number}".encode() for number in range(50)]
    with plant_broker(tmp_path / "plant", "2.1") as broker:
        with kept_for(broker) as keeper:
            assert not keeper.present
            keeper.hears("edgeagent/v1/+/+/r/#")
        with party(broker, "edge-0001") as box:
            assert all(box.may_write(f"{BOX}/r/point/run-1", payload) for payload in sent)
            assert box.may_write(f"{BOX}/status", b"online", retain=True)
        until(lambda: _on_disk(broker) > len(sent), "the broker has written it down")
        broker.restart(signal.SIGKILL)
        with kept_for(broker) as keeper:
            until(lambda: len(keeper.got) >= len(sent), "all that waited arrives")
            assert keeper.present
            assert keeper.got == sent
            keeper.hears("edgeagent/v1/+/+/status")
            until(lambda: keeper.got[-1] == b"online", "the last status is there still")


def test_a_second_client_with_the_same_name_is_said_to_be_the_reason(tmp_path: Path) -> None:
    with (
        plant_broker(tmp_path / "plant", "2.1") as broker,
        kept_for(broker) as first,
        kept_for(broker) as second,
    ):
        until(lambda: first.ended_by != -1, "the first one is thrown out")
        assert first.ended_by == TAKEN_OVER
        assert second.present


@dataclass
class NewBroker(Mosquitto):
    """mosquitto 2.1 with any settings."""

    def program(self) -> str:
        return mosquitto_21()


@contextmanager
def _new(folder: Path, *head: str) -> Iterator[NewBroker]:
    folder.mkdir()
    made = NewBroker(folder, Variant(head=head))
    made.start()
    try:
        yield made
    finally:
        made.end(signal.SIGKILL)


@contextmanager
def _box(folder: Path, broker: Mosquitto) -> Iterator[Rig]:
    pace = Pace(
        first_s=0.0, return_s=0.1, most_s=0.1
    )  # only who is told why he was thrown out waits
    where = Broker("127.0.0.1", broker.port, "edge-0001")
    with real_rig(folder, where, pace=pace) as made:
        yield made


def test_of_two_boxes_with_one_name_the_older_says_so_and_waits(tmp_path: Path) -> None:
    with _new(tmp_path / "b") as broker, _box(tmp_path / "one", broker) as one:
        until(lambda: one.pump.state().connection == "up", "the first one is connected")
        with _box(tmp_path / "two", broker) as two:
            until(lambda: one.noted("mqtt_taken_over"), "the first one says what happened")
            until(lambda: two.pump.state().connection == "up", "the second one is connected")
            assert one.pump.state().connection == "down"
            assert two.pump.state().reconnects == 0


def test_the_plugin_for_sparkplug_keeps_the_births_of_the_mirror(tmp_path: Path) -> None:
    plugin = f"global_plugin {plugins_21()}/mosquitto_sparkplug_aware.so"
    with _new(tmp_path / "b", plugin) as broker:
        node = spark_client(broker.port, Names("plant7", "edge-0001"), tmp_path)
        node.start()
        try:
            until(lambda: _certificate(broker.port), "the birth is kept as a certificate")
        finally:
            assert node.stop(PATIENCE_S) == "stopped"


def _certificate(port: int) -> bytes | None:
    return retained_at(port, "$sparkplug/certificates/spBv1.0/plant7/NBIRTH/edge-0001")


def test_the_old_persistence_beside_the_plugin_is_refused(tmp_path: Path) -> None:
    with plant_broker(tmp_path / "plant", "2.1") as broker:
        text = broker.text()
    both = tmp_path / "both.conf"
    both.write_text(text.replace("persistence false", "persistence true", 1))
    done = subprocess.run(
        [mosquitto_21(), "-c", str(both)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert "persist" in (done.stdout + done.stderr).lower()


def test_2_1_takes_the_file_for_2_0_as_well(tmp_path: Path) -> None:
    with (
        plant_broker(tmp_path / "plant", "2.0 on 2.1") as broker,
        party(broker, "edge-0001") as box,
    ):
        assert box.may_write(f"{BOX}/status", json.dumps({}).encode())
        assert not box.may_write(f"{BOX}/cmd/sweep/1")
