"""Boxes, a real broker and a collector that is killed, frozen, starved and lied to."""

import json
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from broker_places import Mosquitto, Variant, mosquitto, observer, retained_at, until
from fleet_boxes import (
    QUEUE,
    Collecting,
    box,
    collecting,
    nothing_is_lost,
    payload,
    rows,
    when_laid_out,
)

from edgeagent.errors import EdgeAgentError
from edgeagent.fleet.client import RECEIVE_MAXIMUM
from edgeagent.fleet.listener import Listener, Subscription
from edgeagent.fleet.store import open_store
from edgeagent.publish.broker import Broker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    with mosquitto(tmp_path / "broker", Variant(head=QUEUE)) as made:
        yield made


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/fleet.db"


def _query(url: str, sql: str) -> list[tuple[Any, ...]]:
    with closing(open_store(url, "read")) as store:
        return store.query(sql)


def test_everything_that_two_boxes_send_is_stored_and_receipted(
    tmp_path: Path, broker: Mosquitto, url: str
) -> None:
    with (
        collecting(tmp_path, broker.port, url, "--queue-limit", "10000") as collector,
        box(tmp_path, "edge-1", broker.port) as one,
        box(tmp_path, "edge-2", broker.port) as two,
    ):
        one.commit(120, 300)
        two.commit(5, 20)
        nothing_is_lost(url, [one, two])
        until(
            lambda: _query(url, "SELECT count(*) FROM node WHERE state = 'online'") == [(2,)],
            "both are known to be online",
        )
        assert collector.end() == 0
    receipt = retained_at(broker.port, "edgeagent/v1/plant7/edge-1/rx")
    assert receipt is not None
    assert json.loads(receipt)["wm"] == {"R": 120, "M": 300}
    assert json.loads(receipt)["u"] == 200


def test_a_collector_that_is_killed_again_and_again_loses_nothing(
    tmp_path: Path, broker: Mosquitto, url: str
) -> None:
    with (
        collecting(tmp_path, broker.port, url) as collector,
        box(tmp_path, "edge-1", broker.port) as one,
        box(tmp_path, "edge-2", broker.port) as two,
    ):
        for round_ in range(4):
            one.commit(100, 200)
            two.commit(50, 100)
            had = _count(url)
            until(lambda had=had: _count(url) > had, f"rows in round {round_}")  # type: ignore[misc]  # because mypy cannot type a default in a lambda
            collector.end(signal.SIGKILL)
            collector.start()
        nothing_is_lost(url, [one, two])


def _rows(url: str, node: str, stream: str) -> list[int]:
    with closing(open_store(url, "read")) as store:
        return rows(store, node, stream)


def _count(url: str) -> int:
    try:
        return int(_query(url, "SELECT coalesce(sum(wm), 0) FROM watermark")[0][0])
    except EdgeAgentError:
        return 0  # because nobody has laid it out yet


def test_a_broker_that_forgets_everything_loses_nothing(
    tmp_path: Path, broker: Mosquitto, url: str
) -> None:
    with (
        collecting(tmp_path, broker.port, url),
        box(tmp_path, "edge-1", broker.port) as one,
    ):
        for _ in range(3):
            one.commit(100, 200)
            had = _count(url)
            until(lambda had=had: _count(url) > had, "some rows")  # type: ignore[misc]  # because mypy cannot type a default in a lambda
            broker.restart(signal.SIGKILL)
        nothing_is_lost(url, [one])
        until(
            lambda: retained_at(broker.port, "edgeagent/v1/plant7/edge-1/rx") is not None,
            "the receipt is retained again",
        )


def test_a_store_that_is_locked_is_waited_for_and_nothing_is_acknowledged(
    tmp_path: Path, broker: Mosquitto, url: str
) -> None:
    with (
        collecting(tmp_path, broker.port, url) as collector,
        box(tmp_path, "edge-1", broker.port) as one,
    ):
        one.commit(10)
        nothing_is_lost(url, [one])
        with closing(sqlite3.connect(tmp_path / "fleet.db", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            one.commit(50, 50)
            until(lambda: "fleet_store_away" in collector.text(), "it says that the store is away")
            assert one.waiting() == 100
            other.execute("ROLLBACK")
        nothing_is_lost(url, [one])


def test_the_same_row_a_thousand_times_is_one_row(
    tmp_path: Path, broker: Mosquitto, url: str
) -> None:
    with (
        collecting(tmp_path, broker.port, url) as collector,
        observer(broker.port, ()) as somebody,
    ):
        collector.connected()
        for _ in range(300):
            for seq in (1, 2, 3):
                somebody.publish("edgeagent/v1/plant7/edge-1/e/oom", payload("edge-1", seq))
        somebody.publish("edgeagent/v1/plant7/edge-1/e/oom", payload("edge-1", 4))
        until(lambda: _count(url) == 4, "all four")
    assert _query(url, "SELECT seq FROM message ORDER BY seq") == [(1,), (2,), (3,), (4,)]


def test_forged_and_malformed_messages_are_set_aside_and_everything_else_goes_on(
    tmp_path: Path, broker: Mosquitto, url: str
) -> None:
    mine = "edgeagent/v1/plant7/edge-1/e/oom"
    with (
        collecting(tmp_path, broker.port, url) as collector,
        observer(broker.port, ()) as somebody,
    ):
        collector.connected()
        somebody.publish(mine, payload("edge-1", 1))
        somebody.publish(mine, payload("edge-2", 1))
        somebody.publish("edgeagent/v1/plant8/edge-1/e/oom", payload("edge-1", 2, site="plant8"))
        somebody.publish(mine, payload("edge-1", 40_000_000))
        somebody.publish(mine, b"\x00\xff nonsense")
        somebody.publish(mine, payload("edge-1", 3, v={"pad": "x" * 600_000}))
        somebody.publish("edgeagent/v1/plant7/UPPER/e/oom", payload("edge-1", 5))
        somebody.publish(mine, payload("edge-1", 2, schema="edgeagent.oom/9"))
        until(lambda: _count(url) == 3, "the sound rows, and past the one that was too large")
    assert _rows(url, "edge-1", "R") == [1, 2]
    assert {reason for (reason,) in _query(url, "SELECT reason FROM quarantine")} == {
        "forged: the node inside is not the topic's",
        "the node belongs to another site",
        "its number is far beyond the last one",
        "not UTF-8",
        "too large",
        "no box has such a topic",
    }
    assert _query(url, "SELECT reason FROM gap") == [("too_large",)]
    assert _query(url, "SELECT count(*) FROM node") == [(1,)]


def test_only_listed_boxes_are_stored_where_there_is_a_list(
    tmp_path: Path, broker: Mosquitto, url: str
) -> None:
    owners = tmp_path / "owners"
    owners.write_text("plant7 edge-1   # the press\n\n")
    with (
        collecting(tmp_path, broker.port, url, "--owners", str(owners)) as collector,
        observer(broker.port, ()) as somebody,
    ):
        collector.connected()
        somebody.publish("edgeagent/v1/plant7/edge-9/e/oom", payload("edge-9"))
        somebody.publish("edgeagent/v1/plant7/edge-1/e/oom", payload("edge-1"))
        until(lambda: _count(url) == 1, "the listed box")
        receipt = "edgeagent/v1/plant7/edge-1/rx"
        until(lambda: retained_at(broker.port, receipt) is not None, "its receipt")
    assert _query(url, "SELECT node FROM message") == [("edge-1",)]
    assert _query(url, "SELECT reason, n FROM quarantine") == [
        ("the node belongs to another site", 1)
    ]


def test_what_is_retained_is_known_again_after_the_store_was_lost(
    tmp_path: Path, broker: Mosquitto, url: str
) -> None:
    with box(tmp_path, "edge-1", broker.port):
        until(
            lambda: retained_at(broker.port, "edgeagent/v1/plant7/edge-1/status") is not None,
            "a birth",
        )
        with collecting(tmp_path, broker.port, url), closing(when_laid_out(url)) as store:
            until(
                lambda: store.query("SELECT state FROM node") == [("online",)],
                "the birth is known",
            )


def test_a_store_from_a_backup_gets_results_back_and_what_is_lost_declared(
    tmp_path: Path, broker: Mosquitto, url: str
) -> None:
    with (
        box(tmp_path, "edge-1", broker.port) as one,
        collecting(tmp_path, broker.port, url) as collector,
    ):
        one.commit(30, 30)
        nothing_is_lost(url, [one])
        _backup(tmp_path / "fleet.db", tmp_path / "backup.db")
        one.commit(20, 40)
        nothing_is_lost(url, [one])
        collector.end()
        shutil.copy(tmp_path / "backup.db", tmp_path / "fleet.db")
        for name in ("fleet.db-wal", "fleet.db-shm"):
            (tmp_path / name).unlink(missing_ok=True)
        collector.start()
        one.commit(10, 10)
        until(lambda: not one.waiting(), "the box has its receipts again")
        until(lambda: _wm(url) == {"R": 61, "M": 80}, "nothing is missing")
        assert "fleet_forgotten" in collector.text()
    # Number 61 of the results says that the telemetry is lost; the box keeps results for a month.
    assert _rows(url, "edge-1", "R") == list(range(1, 62))
    assert _rows(url, "edge-1", "M") == [*range(1, 31), *range(71, 81)]
    assert _query(url, "SELECT stream, first, last, reason FROM gap") == [("M", 31, 70, "not_kept")]


def _wm(url: str) -> dict[str, int]:
    return dict(_query(url, "SELECT stream, wm FROM watermark"))


def test_a_store_that_is_begun_anew_gets_what_boxes_still_have(
    tmp_path: Path, broker: Mosquitto, url: str
) -> None:
    """Even if the broker has forgotten as well what boxes were told."""
    with (
        box(tmp_path, "edge-1", broker.port) as one,
        collecting(tmp_path, broker.port, url) as collector,
    ):
        one.commit(20, 30)
        nothing_is_lost(url, [one])
        collector.end()
        for path in tmp_path.glob("fleet.db*"):
            path.unlink()
        broker.restart(signal.SIGKILL)
        one.commit(5)
        collector.start()
        when_laid_out(url).close()
        until(lambda: _wm(url) == {"R": 26, "M": 30}, "nothing is missing")
        until(lambda: not one.waiting(), "the box has its receipts again")
    assert _rows(url, "edge-1", "R") == list(range(1, 27))
    assert _query(url, "SELECT stream, first, last, reason FROM gap") == [("M", 1, 30, "not_kept")]


def _backup(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as live, closing(sqlite3.connect(target)) as copy:
        live.backup(copy)


def test_no_more_than_the_receive_maximum_waits_while_nothing_is_acknowledged(
    broker: Mosquitto,
) -> None:
    wanted = Subscription(("edgeagent/v1/+/+/e/#",))
    client = Listener(Broker("127.0.0.1", broker.port, client_id="starved"), wanted)
    client.start()
    try:
        until(lambda: client.link.connection == "up", "connected")
        with observer(broker.port, ()) as somebody:
            for seq in range(1, RECEIVE_MAXIMUM + 301):
                somebody.publish("edgeagent/v1/plant7/edge-1/e/oom", payload("edge-1", seq))
        until(lambda: client.arrived.qsize() >= RECEIVE_MAXIMUM, "as many as it takes")
        first = client.take(RECEIVE_MAXIMUM, 1.0)
        assert len(first) == RECEIVE_MAXIMUM
        assert client.take(1, 0.3) == []
        client.ack(first)
        until(lambda: client.arrived.qsize() >= 300, "the rest")
    finally:
        client.stop(10.0)


def test_what_was_not_acknowledged_comes_again_on_the_next_connection(broker: Mosquitto) -> None:
    wanted = Subscription(("edgeagent/v1/+/+/e/#",))

    def connected() -> Listener:
        client = Listener(Broker("127.0.0.1", broker.port, client_id="again"), wanted)
        client.start()
        until(lambda: client.link.connection == "up", "connected")
        return client

    first = connected()
    with observer(broker.port, ()) as somebody:
        for seq in (1, 2, 3):
            somebody.publish("edgeagent/v1/plant7/edge-1/e/oom", payload("edge-1", seq))
        until(lambda: first.arrived.qsize() == 3, "three")
        first.ack(first.take(1, 1.0))
        first.stop(10.0)
        somebody.publish("edgeagent/v1/plant7/edge-1/e/oom", payload("edge-1", 4))
    second = connected()
    until(lambda: second.arrived.qsize() == 3, "the two others, and what came meanwhile")
    assert [json.loads(one.payload)["seq"] for _, one in second.take(9, 1.0)] == [2, 3, 4]
    second.stop(10.0)


def test_a_collector_says_what_it_lacks(tmp_path: Path, broker: Mosquitto, url: str) -> None:
    with collecting(tmp_path, broker.port, url, "--share", "team") as collector:
        assert _status(collector) == 2
        assert "postgresql://" in collector.text()
    with collecting(tmp_path, broker.port, "mysql://x", name="other") as collector:
        assert _status(collector) == 2
    with (
        collecting(tmp_path, broker.port, url, name="first") as first,
        collecting(tmp_path, broker.port, url, name="second") as second,
    ):
        statuses = until_one_ended(first, second)
        assert 75 in statuses


def _status(collector: Collecting) -> int | None:
    assert collector.process is not None
    return collector.process.wait(60)


def until_one_ended(*collectors: Collecting) -> list[int | None]:
    def statuses() -> list[int | None]:
        return [one.process.poll() for one in collectors if one.process is not None]

    until(lambda: any(status is not None for status in statuses()), "one of them has ended")
    return statuses()
