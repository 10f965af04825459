"""The Sparkplug mirror at a real mosquitto, seen by a host that decodes with tahu's classes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from broker_places import PATIENCE_S, Mosquitto, Observer, Seen, mosquitto, observer, until
from spark_node import client
from tahutils.tahu import (  # type: ignore[import-untyped]  # because it has no types
    sparkplug_b_pb2 as tahu,
)

from edgeagent.publish.sparkplug import Metric, Payload, encoded
from edgeagent.publish.sparkplug_client import SparkplugClient
from edgeagent.publish.sparkplug_mirror import REBIRTH, Names, node_metrics, run_metrics

Known = Sequence[tuple[list[Metric], str | None]]

NODE = Path(__file__).with_name("spark_node.py")
NAMES = Names("plant7", "edge-0001")
HOSTED = Names("plant7", "edge-0001", "scada")
STATE = "spBv1.0/STATE/scada"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    with mosquitto(tmp_path / "broker") as made:
        yield made


@pytest.fixture
def host(broker: Mosquitto) -> Iterator[Observer]:
    with observer(broker.port, ("spBv1.0/plant7/#",)) as made:
        yield made


@contextmanager
def running(
    port: int, folder: Path, names: Names = NAMES, known: Known = ()
) -> Iterator[SparkplugClient]:
    """A node that knows these readings when it is born."""
    node = client(port, names, folder)
    for metrics, device in known:
        node.readings(metrics, device)
    node.start()
    try:
        yield node
    finally:
        assert node.stop(PATIENCE_S) == "stopped"


@contextmanager
def process(port: int, folder: Path, primary_host: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """The node in a process of its own, killed at the end if it still lives."""
    with subprocess.Popen(
        [sys.executable, str(NODE), str(port), str(folder), primary_host]
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def of(host: Observer, kind: str) -> list[Seen]:
    return [seen for seen in list(host.seen) if seen.topic.split("/")[2] == kind]


def came(host: Observer, kind: str, count: int) -> Callable[[], bool]:
    return lambda: len(of(host, kind)) >= count


def payload(seen: Seen) -> Any:
    return tahu.Payload.FromString(seen.payload)


def metric(seen: Seen, name: str) -> Any:
    """The metric of that name; AssertionError unless there is just one."""
    (found,) = (metric for metric in payload(seen).metrics if metric.name == name)
    return found


def bdseq(seen: Seen) -> int:
    return int(metric(seen, "bdSeq").long_value)


def rebirth() -> bytes:
    return encoded(Payload(0, (Metric(REBIRTH, "boolean", value=True),), None))


def state(online: bool) -> bytes:  # noqa: FBT001  # because it is the message's value
    return json.dumps({"online": online, "timestamp": time.time_ns() // 1_000_000}).encode()


def test_a_host_sees_the_birth_the_data_and_the_death_of_a_node_that_stops(
    broker: Mosquitto, host: Observer, tmp_path: Path
) -> None:
    own = node_metrics("idle", {"ram_used_bytes": 5e9, "gpu_used_bytes": None})
    run = run_metrics({"run_id": "r1", "output_tokens_per_s": 41.5})
    with running(broker.port, tmp_path, known=[(own, None), (run, "llamacpp")]) as node:
        until(lambda: of(host, "DBIRTH"), "the device is born")
        until(lambda: _moving(node, host, 6e9), "a moved value comes")
    until(lambda: of(host, "NDEATH"), "the node dies")
    birth = of(host, "NBIRTH")[-1]
    rest = [seen.topic for seen in host.seen]
    assert rest.index(birth.topic) < rest.index("spBv1.0/plant7/NDATA/edge-0001")
    assert metric(birth, REBIRTH).boolean_value is False
    assert metric(birth, REBIRTH).datatype == tahu.Boolean
    assert metric(birth, "bdSeq").datatype == tahu.Int64
    assert payload(birth).seq == 0
    assert all(not found.HasField("alias") for found in payload(birth).metrics)
    assert metric(of(host, "DBIRTH")[-1], "last_run/output_tokens_per_s").double_value == 41.5
    assert metric(of(host, "NDATA")[-1], "ram_used_bytes").double_value == 6e9
    assert bdseq(of(host, "NDEATH")[-1]) == bdseq(birth)
    assert not payload(of(host, "NDEATH")[-1]).HasField("seq")
    assert {seen.retain for seen in host.seen} == {False}


def _moving(node: SparkplugClient, host: Observer, value: float) -> bool:
    """Hand a value over until its second has come."""
    node.readings(node_metrics("idle", {"ram_used_bytes": value}))
    return bool(of(host, "NDATA"))


def test_the_will_of_a_killed_node_has_qos_1_and_the_bdseq_of_its_birth_each_time(
    broker: Mosquitto, host: Observer, tmp_path: Path
) -> None:
    for life in (1, 2, 3):
        with process(broker.port, tmp_path) as node:
            until(came(host, "NBIRTH", life), "it is born")
            node.kill()
            until(came(host, "NDEATH", life), "its will is published")
    births = [bdseq(seen) for seen in of(host, "NBIRTH")]
    deaths = [bdseq(seen) for seen in of(host, "NDEATH")]
    assert births == deaths
    assert births == sorted(set(births))  # counted on over the kills, none twice
    assert births[0] == 0
    assert {seen.qos for seen in of(host, "NDEATH")} == {1}
    assert {seen.qos for seen in of(host, "NBIRTH")} == {0}
    assert {seen.retain for seen in host.seen} == {False}


def test_what_the_broker_was_told_at_connecting_is_as_specified(
    broker: Mosquitto, host: Observer, tmp_path: Path
) -> None:
    with running(broker.port, tmp_path):
        until(lambda: of(host, "NBIRTH"), "it is born")
        log = broker.log()
    (connected,) = (
        line for line in log.splitlines() if "connected" in line and "edge-0001-spb" in line
    )
    assert "(p5, c1," in connected  # MQTT 5, clean start
    assert "Will message specified" in log
    assert "(r0, q1)" in log.partition("Will message specified")[2].partition("\n")[0]
    assert "spBv1.0/plant7/NCMD/edge-0001 (QoS 1)" in log


def test_a_host_that_asks_gets_a_birth_with_the_same_bdseq(
    broker: Mosquitto, host: Observer, tmp_path: Path
) -> None:
    with running(broker.port, tmp_path) as node:
        until(lambda: of(host, "NBIRTH"), "it is born")
        host.publish(NAMES.commands, b"\xff\xff garbage")

        def asked_again() -> bool:
            host.publish(NAMES.commands, rebirth())
            node.readings(())
            return len(of(host, "NBIRTH")) > 1

        until(asked_again, "it is born again")
        assert node.alive()
    first, second = of(host, "NBIRTH")[:2]
    assert bdseq(first) == bdseq(second)
    assert payload(second).seq == 0
    assert payload(second).timestamp - payload(first).timestamp >= 5000


def test_a_node_waits_for_its_primary_host_and_goes_when_that_goes(
    broker: Mosquitto, host: Observer, tmp_path: Path
) -> None:
    with running(broker.port, tmp_path, HOSTED) as node:
        node.readings(node_metrics("idle", {}))
        until(lambda: STATE in broker.log(), "it has subscribed")
        host.publish(STATE, state(online=False), retain=True)
        until(node.alive, "it lives")
        assert of(host, "NBIRTH") == []
        host.publish(STATE, state(online=True), retain=True)
        until(lambda: of(host, "NBIRTH"), "it is born")
        host.publish(STATE, state(online=False), retain=True)
        until(lambda: of(host, "NDEATH"), "it dies")
        host.publish(STATE, state(online=True), retain=True)
        until(lambda: len(of(host, "NBIRTH")) == 2, "it is born again")
    births = [bdseq(seen) for seen in of(host, "NBIRTH")]
    assert births[1] > births[0]
    assert bdseq(of(host, "NDEATH")[0]) == births[0]


def test_a_broker_that_was_killed_gets_a_new_birth_with_the_next_bdseq(
    broker: Mosquitto, host: Observer, tmp_path: Path
) -> None:
    with running(broker.port, tmp_path):
        until(lambda: of(host, "NBIRTH"), "it is born")
        broker.restart()
        with observer(broker.port, ("spBv1.0/plant7/#",)) as later:

            def seen_again() -> bool:
                later.publish(NAMES.commands, rebirth())  # it may have missed the birth itself
                return bool(of(later, "NBIRTH"))

            until(seen_again, "it is born again")
            assert bdseq(of(later, "NBIRTH")[-1]) > bdseq(of(host, "NBIRTH")[0])
