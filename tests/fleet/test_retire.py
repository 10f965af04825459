"""What a box that is gone left at the broker is cleared, by whoever may, after a second look."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_places import Mosquitto, mosquitto, observer, retained_at, until
from many_boxes import Kind, Station, boxes
from plant_places import PlantBroker, party, plant_broker

from edgeagent.fleet.store import Batch, NodeNews, open_store

GONE = "edgeagent/v1/plant7/edge-0001"
HERE = "edgeagent/v1/plant7/edge-0002"
LEFT = ("meta/cmd/sweep", "ack/sweep/0b2f", "rx", "cmd/sweep/0b2f", "m/older-version")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    with mosquitto(tmp_path / "broker") as made:
        yield made


def leave(port: int, state: str) -> None:
    kinds = {"edge-0001": Kind(state=state), "edge-0002": Kind()}
    with boxes(port, {}) as many:
        for node, kind in kinds.items():
            many.tell(node, kind)
        for prefix in (GONE, HERE):
            for below in LEFT:
                if not below.startswith("cmd"):
                    many.says.publish(f"{prefix}/{below}", b"{}", retain=True)
    with observer(port, ()) as somebody:
        somebody.publish(f"{GONE}/cmd/sweep/0b2f", b"{}", retain=True)


def retained(port: int, prefix: str) -> set[str]:
    marker = "marker/retire"
    with observer(port, (f"{prefix}/#", marker)) as looking:
        looking.publish(marker, b"1")
        until(lambda: marker in looking.topics(), "the marker comes back")
        return {seen.topic for seen in looking.seen if seen.payload} - {marker}


def test_everything_of_the_box_is_cleared_and_nothing_of_another(
    tmp_path: Path, broker: Mosquitto
) -> None:
    leave(broker.port, "offline")
    others = retained(broker.port, HERE)
    assert len(retained(broker.port, GONE)) == 7
    done = Station(tmp_path, broker.port).does("retire", "edge-0001", "--yes")
    assert done.returncode == 0, done.stderr
    assert "cleared 7 retained messages" in done.stdout
    assert retained(broker.port, GONE) == set()
    assert retained(broker.port, HERE) == others
    done = Station(tmp_path, broker.port).does("retire", "edge-0001", "--yes")
    assert "left nothing" in done.stdout


def test_a_box_that_is_online_is_not_retired_unless_forced(
    tmp_path: Path, broker: Mosquitto
) -> None:
    leave(broker.port, "online")
    station = Station(tmp_path, broker.port)
    done = station.does("retire", "edge-0001", "--yes")
    assert done.returncode == 2
    assert "edge-0001 is online" in done.stderr
    assert len(retained(broker.port, GONE)) == 7
    assert station.does("retire", "edge-0001", "--yes", "--force").returncode == 0
    assert retained(broker.port, GONE) == set()


def test_the_name_is_asked_for_again(tmp_path: Path, broker: Mosquitto) -> None:
    leave(broker.port, "offline")
    station = Station(tmp_path, broker.port)
    done = station.does("retire", "edge-0001")
    assert done.returncode == 2
    assert "say --yes" in done.stderr
    assert _typed(station, "edge-0002") == 2
    assert len(retained(broker.port, GONE)) == 7
    assert _typed(station, "edge-0001") == 0
    assert retained(broker.port, GONE) == set()


def _typed(station: Station, answer: str) -> int:
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            station.words("retire", "edge-0001"), stdin=theirs, stdout=subprocess.DEVNULL
        ) as asking:
            os.write(ours, f"{answer}\n".encode())
            return asking.wait(120)
    finally:
        os.close(ours)
        os.close(theirs)


def test_it_is_marked_in_the_store_and_no_longer_chosen(tmp_path: Path, broker: Mosquitto) -> None:
    url = f"sqlite://{tmp_path}/fleet.db"
    store = open_store(url, "collect")
    store.take(
        Batch(
            nodes=[NodeNews("edge-0001", "plant7", 5, {"state": "online", "session_n": 1})],
            now_ms=5,
        )
    )
    store.close()
    station = Station(tmp_path, broker.port)
    done = station.does("request", "--profile", "a", "--store", url, "--dry-run")
    assert "nobody listens" in done.stdout
    done = station.does("retire", "edge-0001", "--yes", "--store", url)
    assert done.returncode == 0, done.stderr
    assert "marked as retired" in done.stdout
    done = station.does("request", "--profile", "a", "--store", url)
    assert done.returncode == 2
    assert "knows 0 boxes" in done.stderr
    done = station.does("retire", "edge-0009", "--yes", "--store", url)
    assert "does not know edge-0009" in done.stdout


def test_a_name_at_two_sites_wants_the_site(tmp_path: Path, broker: Mosquitto) -> None:
    with boxes(broker.port, {}) as many:
        many.tell("edge-0001", Kind(state="offline"))
        many.tell("edge-0001", Kind(site="plant8", state="offline"))
    station = Station(tmp_path, broker.port)
    done = station.does("retire", "edge-0001", "--yes")
    assert done.returncode == 2
    assert "plant7, plant8" in done.stderr
    assert station.does("retire", "edge-0001", "--yes", "--site", "plant8").returncode == 0
    assert retained_at(broker.port, f"{GONE}/status") is not None


# ---------------------------------------------------------------- with the plant's own rules


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[PlantBroker]:
    with plant_broker(tmp_path / "plant") as made:
        yield made


def tls_lines(broker: PlantBroker, name: str) -> str:
    return (
        f'[mqtt.tls]\nca_file = "{broker.pki.ca}"\ncert_file = "{broker.pki.cert(name)}"\n'
        f'key_file = "{broker.pki.key(name)}"\n'
    )


def test_only_the_janitor_may_clear(tmp_path: Path, secured: PlantBroker) -> None:
    with party(secured, "edge-0001") as box:
        assert box.may_write(f"{GONE}/meta/node", b"{}", retain=True)
        status = b'{"state": "offline", "site": "plant7"}'
        assert box.may_write(f"{GONE}/status", status, retain=True)
    operator = Station(tmp_path / "o", secured.port, tls_lines(secured, "plant-operator"))
    done = operator.does("retire", "edge-0001", "--yes")
    assert done.returncode == 69
    assert "(denied): use the certificate of a user who may write there" in done.stderr
    janitor = Station(tmp_path / "j", secured.port, tls_lines(secured, "plant-janitor"))
    done = janitor.does("retire", "edge-0001", "--yes")
    assert "cleared 2 retained messages" in done.stdout, done.stderr


def test_a_viewer_cannot_ask_and_an_operator_can(tmp_path: Path, secured: PlantBroker) -> None:
    status = b'{"state": "online", "site": "plant7"}'
    with party(secured, "edge-0001") as box:
        assert box.may_write(f"{GONE}/status", status, retain=True)
        box.hears(f"{GONE}/cmd/#")
        viewer = Station(tmp_path / "v", secured.port, tls_lines(secured, "plant-viewer"))
        code, said = viewer.asks("--profile", "nightly")
        assert code == 1
        assert "the broker denies us" in said["boxes"][0]["reason"]
        assert not box.got
        operator = Station(tmp_path / "o", secured.port, tls_lines(secured, "plant-operator"))
        code, said = operator.asks("--profile", "nightly", "--answer-within", "1")
        assert said["boxes"][0]["stage"] == "silent"
        until(lambda: box.got, "the box hears the operator")


def test_a_certificate_of_nobody_is_told_what_is_wrong(
    tmp_path: Path, secured: PlantBroker
) -> None:
    lines = f'[mqtt.tls]\nca_file = "{secured.pki.ca}"\n'
    done = Station(tmp_path, secured.port, lines).does("request", "--profile", "nightly")
    assert done.returncode == 69
    assert "certificate" in done.stderr
