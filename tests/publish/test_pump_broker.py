"""What arrives from a real spool through a real mosquitto when things go wrong between them."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from broker_places import Mosquitto, Seen, Variant, mosquitto, observer, retained_at, until
from link_places import held
from pump_places import (
    TOPICS,
    Receiver,
    entry,
    quick,
    real_rig,
    stamp,
)
from stub_broker import StubBroker

from edgeagent.core.backoff import Pace
from edgeagent.publish.link import Broker
from edgeagent.publish.wire import Up

EVERYTHING = "edgeagent/#"


def at(broker: Mosquitto, **more: object) -> Broker:
    return Broker("127.0.0.1", broker.port, "edge-0001", **more)  # type: ignore[arg-type]  # because each test names its own


def test_a_killed_broker_without_persistence_loses_nothing_with_receipts(tmp_path: Path) -> None:
    answers: Queue[bytes] = Queue()
    receiver = Receiver(answers.put)
    manner = quick(setting="receipt", no_progress_s=2.0, hold_s=0.5)
    with (
        mosquitto(tmp_path / "b") as broker,
        observer(broker.port, (EVERYTHING,), on_seen=receiver.see),
        receipts(broker, answers),
        real_rig(tmp_path, at(broker), manner) as rig,
    ):
        for _ in range(3):
            rig.commit(150)
            until(lambda: rig.pump.state().unreceipted > 0, "rows are under way")
            broker.restart()
        until(lambda: len(receiver.numbers("R")) == 450, "all arrive")
        until(lambda: rig.spool.stats().rows == 0, "and are receipted")


class receipts:  # noqa: N801  # because it reads as one in a with statement
    """Publishes what a receiver answers, retained, until it ends."""

    def __init__(self, broker: Mosquitto, answers: Queue[bytes]) -> None:
        self._broker, self._answers = broker, answers
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._answers.put(b"")
        self._thread.join()

    def _run(self) -> None:
        with observer(self._broker.port, ()) as speaker:
            while not self._ending.is_set():
                answer = self._answers.get()
                while not self._answers.empty():
                    answer = self._answers.get()
                if answer:
                    speaker.publish_soon(TOPICS.receipts, answer)


@pytest.mark.parametrize("most", [50, 200, 500])
def test_a_slow_consumer_with_a_short_queue_misses_nothing(tmp_path: Path, most: int) -> None:
    """The broker keeps 1000 messages for a consumer and drops the others without a word."""
    with mosquitto(tmp_path / "b") as broker:
        answers: Queue[bytes] = Queue()
        receiver = Receiver(answers.put)

        def slowly(seen: Seen) -> None:
            time.sleep(0.001)
            receiver.take(seen.topic, seen.payload)

        manner = quick(setting="receipt", unreceipted=most)
        with (
            observer(broker.port, (EVERYTHING,), on_seen=slowly),
            receipts(broker, answers),
            real_rig(tmp_path, at(broker), manner) as rig,
        ):
            rig.commit(2000)
            until(lambda: len(receiver.numbers("R")) == 2000, "all arrive", 120)
            until(lambda: rig.spool.stats().rows == 0, "and are receipted")


def test_a_kind_that_the_access_list_forbids_waits_and_the_others_flow(tmp_path: Path) -> None:
    everything = f"topic readwrite {EVERYTHING}\n"
    without = f"topic deny {TOPICS.full('m/#')}\n{everything}"
    access = tmp_path / "acl"
    access.write_text(without)
    lines = ("allow_anonymous true", f"acl_file {access}")
    with mosquitto(tmp_path / "b", Variant(lines)) as broker:
        receiver = Receiver(None)
        with (
            observer(broker.port, (EVERYTHING,), on_seen=receiver.see) as other,
            real_rig(tmp_path, at(broker)) as rig,
        ):
            until(lambda: rig.pump.state().connection == "up", "connected")
            rig.commit(30, "M")
            rig.commit(3, "R")
            until(lambda: status(other.seen).get("health") == "degraded", "the status says so")
            until(lambda: len(receiver.numbers("R")) == 4, "results flow, with one event")
            assert TOPICS.full("m/mem_1m") in status(other.seen)["troubles"][0]
            assert rig.spool.stats().streams["M"].rows == 30
            access.write_text(everything)
            broker.send(signal.SIGHUP)
            until(lambda: "Reloading config" in broker.log(), "the access list is read again")
            rig.advance(901)
            until(lambda: len(receiver.numbers("M")) == 30, "telemetry flows")
            until(lambda: status(other.seen).get("health") == "ok", "and all is well")
            assert receiver.numbers("M") == list(range(1, 31))


def status(seen: list[Seen]) -> dict[str, Any]:
    found = [each.payload for each in list(seen) if each.topic == TOPICS.status and each.payload]
    document: dict[str, Any] = json.loads(found[-1]) if found else {}
    return document


def test_rows_wait_while_nobody_subscribes_and_arrive_when_somebody_does(tmp_path: Path) -> None:
    with mosquitto(tmp_path / "b") as broker, real_rig(tmp_path, at(broker)) as rig:
        rig.commit(5)
        until(lambda: rig.pump.state().connection == "up", "connected")
        rig.settled(5)
        assert rig.spool.stats().rows == 5
        receiver = Receiver(None)
        with observer(broker.port, (EVERYTHING,), on_seen=receiver.see):
            rig.advance(31)
            until(lambda: receiver.numbers("R") == [1, 2, 3, 4, 5], "all arrive")
            until(lambda: rig.spool.stats().rows == 0, "the spool is empty")


def test_a_row_above_the_brokers_limit_costs_one_event_and_no_connection(tmp_path: Path) -> None:
    lines = ("allow_anonymous true",)
    head = ("max_packet_size 2000",)
    with mosquitto(tmp_path / "b", Variant(lines, head=head)) as broker:
        receiver = Receiver(None)
        with (
            observer(broker.port, (EVERYTHING,), on_seen=receiver.see),
            real_rig(tmp_path, at(broker)) as rig,
        ):
            rig.spool.commit(entry("R", size=5000))
            rig.commit(3)
            # 2, 3 and 4; the gap and the event about row 1
            until(lambda: receiver.numbers("R") == [2, 3, 4, 5, 6], "the others arrive")
            assert len(rig.noted("mqtt_oversize")) == 1
            assert rig.pump.state().reconnects == 0
            assert receiver.watermark(rig.spool.epoch, "R") == 6


def test_a_limit_that_3_1_1_does_not_tell_costs_three_connections_and_one_event(
    tmp_path: Path,
) -> None:
    lines = ("allow_anonymous true",)
    with mosquitto(tmp_path / "b", Variant(lines, head=("max_packet_size 2000",))) as broker:
        receiver = Receiver(None)
        with (
            observer(broker.port, (EVERYTHING,), on_seen=receiver.see),
            real_rig(tmp_path, at(broker, protocol="3.1.1")) as rig,
        ):
            rig.spool.commit(entry("R", size=5000))
            rig.commit(3)
            until(lambda: set(receiver.numbers("R")) >= {2, 3, 4, 5, 6}, "the others arrive")
            assert len(rig.noted("mqtt_poison")) == 1
            assert rig.pump.state().reconnects == 3


def test_a_broker_that_stands_still_is_left_and_found_again(tmp_path: Path) -> None:
    """Stopped with SIGSTOP: connections stay open and nothing is answered."""
    with (
        mosquitto(tmp_path / "b") as broker,
        real_rig(tmp_path, at(broker, keepalive_s=1, connect_timeout_s=1.0)) as rig,
    ):
        until(lambda: rig.pump.state().connection == "up", "connected")
        broker.send(signal.SIGSTOP)
        before, slowest_s = rss_bytes(), 0.0
        reading = {"pad": "x" * 50_000}
        while rig.pump.state().connection == "up":
            begin = time.thread_time()
            rig.pump.live("m/mem", "edgeagent.mem/1", reading, stamp())
            slowest_s = max(slowest_s, time.thread_time() - begin)
            time.sleep(0.001)
        until(lambda: rig.pump.state().live_dropped > 100, "readings are dropped, not heaped up")
        assert rss_bytes() - before < 10_000_000
        assert slowest_s < 0.05
        assert rig.pump.alive()
        rig.commit(3)
        broker.send(signal.SIGCONT)
        receiver = Receiver(None)
        with observer(broker.port, (EVERYTHING,), on_seen=receiver.see):
            until(lambda: rig.pump.state().connection == "up", "connected again")
            rig.advance(31)
            until(lambda: set(receiver.numbers("R")) >= {1, 2, 3}, "rows arrive")


def test_stopping_does_not_hang_while_the_broker_stands_still(tmp_path: Path) -> None:
    with (
        mosquitto(tmp_path / "b") as broker,
        real_rig(tmp_path, at(broker)) as rig,
    ):
        until(lambda: rig.pump.state().connection == "up", "connected")
        rig.commit(30)
        broker.send(signal.SIGSTOP)
        rig.commit(30)
        assert rig.pump.stop("shutdown", 30.0) == "stopped"


def test_the_retained_status_is_the_truth_after_each_kind_of_end(tmp_path: Path) -> None:
    with mosquitto(tmp_path / "b") as broker:
        with real_rig(tmp_path, at(broker, will_delay_s=1)) as rig:
            until(lambda: said(broker)["state"] == "online", "birth")
            first = said(broker)["session_n"]
            broker.restart()  # and with it goes what it had retained
            until(lambda: said(broker).get("state") == "online", "born again")
            assert said(broker)["session_n"] > first
            assert rig.pump.state().session_n == said(broker)["session_n"]
        assert said(broker)["state"] == "offline"
        assert said(broker)["reason"] == "shutdown"


def said(broker: Mosquitto) -> dict[str, Any]:
    payload = retained_at(broker.port, TOPICS.status)
    document: dict[str, Any] = json.loads(payload) if payload else {"state": None}
    return document


def test_two_boxes_with_one_name_do_not_throw_each_other_out_for_ever(tmp_path: Path) -> None:
    """2.0.11 hangs up on the older of both without a reason; waits grow until one holds."""
    pace = Pace(first_s=0.0, return_s=0.2, most_s=120.0)
    with (
        mosquitto(tmp_path / "b") as broker,
        real_rig(tmp_path / "one", at(broker), pace=pace) as one,
        real_rig(tmp_path / "two", at(broker), pace=pace) as two,
    ):
        until(
            lambda: one.pump.state().reconnects + two.pump.state().reconnects >= 3,
            "they throw each other out",
        )
        ups = one.noted("mqtt_connected") + two.noted("mqtt_connected")
        assert len(ups) < 12
        assert one.pump.alive()
        assert two.pump.alive()


def test_live_readings_are_not_kept_waiting_by_a_backlog(tmp_path: Path) -> None:
    with mosquitto(tmp_path / "b") as broker:
        live: dict[int, float] = {}

        def see(seen: Seen) -> None:
            if seen.topic == TOPICS.full("m/mem"):
                live[int(json.loads(seen.payload)["v"]["n"])] = time.monotonic()

        with (
            observer(broker.port, (EVERYTHING,), on_seen=see),
            real_rig(tmp_path, at(broker), quick(backfill_per_s=1e6)) as rig,
        ):
            until(lambda: rig.pump.state().connection == "up", "connected")
            rig.commit(2000)
            sent = {}
            for n in range(20):
                now = time.monotonic()
                if rig.pump.live("m/mem", "edgeagent.mem/1", {"n": n}, stamp()):
                    sent[n] = now
                time.sleep(0.01)
            until(lambda: live.keys() >= sent.keys(), "every live reading that was taken")
            assert sent


def test_threads_and_descriptors_stay_as_many_over_hundreds_of_connections(tmp_path: Path) -> None:
    stub = StubBroker()
    try:
        with held(Broker("127.0.0.1", stub.port, "edge-0001"), SWIFT_SOAK) as link:
            link.next(Up)
            threads = descriptors = 0
            for n in range(300):
                stub.hang_up()
                link.next(Up)
                if n == 20:
                    threads, descriptors = threading.active_count(), open_files()
            until(lambda: threading.active_count() <= threads + 1, "no thread is left over")
            until(lambda: open_files() <= descriptors + 3, "no descriptor is left open")
    finally:
        stub.close()


SWIFT_SOAK = Pace(first_s=0.0, return_s=0.001, most_s=0.001)


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
