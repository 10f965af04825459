"""What the pump does with a real spool and a broker in memory whose every answer a test decides."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from broker_places import until
from pump_places import (
    TOPICS,
    entry,
    fake_rig,
    is_kind,
    quick,
    rows_in,
    stamp,
    status_of,
)

from edgeagent.core.window import Server
from edgeagent.publish.fake import FakeBroker


def receipt(epoch: str, r: int = 0, m: int = 0, **more: object) -> bytes:
    return json.dumps({"epoch": epoch, "wm": {"R": r, "M": m}, **more}).encode()


def test_results_go_before_telemetry_and_each_in_its_order(tmp_path: Path) -> None:
    broker = FakeBroker(state="closed")
    with fake_rig(tmp_path, broker) as rig:
        rig.commit(5, "M")
        rig.commit(5, "R")
        broker.open()
        until(lambda: len(rows_in(broker, "M")) == 5, "telemetry arrives")
        assert rows_in(broker, "R") == [1, 2, 3, 4, 5]
        assert rows_in(broker, "M") == [1, 2, 3, 4, 5]
        kinds = [topic for topic in broker.topics() if "/r/" in topic or "/m/" in topic]
        assert [("/r/" in topic) for topic in kinds] == [True] * 5 + [False] * 5


def test_what_waited_for_the_connection_is_a_replay_and_what_follows_is_live(
    tmp_path: Path,
) -> None:
    broker = FakeBroker(state="closed")
    with fake_rig(tmp_path, broker) as rig:
        rig.commit(2)
        broker.open()
        until(lambda: rows_in(broker) == [1, 2], "the backlog arrives")
        rig.settled()
        rig.commit(1)
        until(lambda: rows_in(broker) == [1, 2, 3], "the new row arrives")
        replays = [
            json.loads(message.payload)["replay"]
            for message in broker.got
            if is_kind(message, "r/")
        ]
        assert replays == [True, True, False]


def test_without_receipts_a_row_is_gone_once_the_broker_has_it(tmp_path: Path) -> None:
    broker = FakeBroker()
    with fake_rig(tmp_path, broker) as rig:
        rig.commit(3)
        until(lambda: rows_in(broker) == [1, 2, 3], "rows arrive")
        until(lambda: rig.spool.stats().rows == 0, "the spool is empty")
        assert rig.pump.state().delivery == "puback"


def test_after_the_first_receipt_for_this_spool_rows_wait_for_receipts_for_good(
    tmp_path: Path,
) -> None:
    broker = FakeBroker()
    with fake_rig(tmp_path, broker) as rig:
        broker.deliver(TOPICS.receipts, receipt("somebody-else", r=9))
        rig.settled()
        assert rig.pump.state().delivery == "puback"
        broker.deliver(TOPICS.receipts, receipt(rig.spool.epoch))
        until(lambda: rig.pump.state().delivery == "receipt", "delivery settles")
        rig.commit(3)
        until(lambda: rig.pump.state().unreceipted == 3, "rows wait")
        assert rig.spool.stats().rows == 3
        broker.deliver(TOPICS.receipts, receipt(rig.spool.epoch, r=2))
        until(lambda: rig.spool.stats().rows == 1, "two rows are receipted")
    again = FakeBroker()
    with fake_rig(tmp_path, again) as rig:
        until(lambda: rows_in(again) == [3], "the unreceipted row is sent once more")
        assert rig.pump.state().delivery == "receipt"


def test_the_first_receipt_brings_back_the_results_that_the_collector_never_saw(
    tmp_path: Path,
) -> None:
    broker = FakeBroker()
    with fake_rig(tmp_path, broker) as rig:
        rig.commit(4)
        until(lambda: rig.spool.stats().rows == 0, "the broker has all of them")
        broker.deliver(TOPICS.receipts, receipt(rig.spool.epoch, r=2))
        until(lambda: rows_in(broker) == [1, 2, 3, 4, 3, 4], "two are sent once more")


def test_receipts_are_nothing_to_who_wants_the_brokers_word_alone(tmp_path: Path) -> None:
    broker = FakeBroker()
    with fake_rig(tmp_path, broker, quick(setting="puback")) as rig:
        rig.commit(4)
        until(lambda: rig.spool.stats().rows == 0, "the broker has all of them")
        broker.deliver(TOPICS.receipts, receipt(rig.spool.epoch, r=2))
        rig.commit(1)
        until(lambda: rows_in(broker) == [1, 2, 3, 4, 5], "nothing is sent twice")
        assert rig.pump.state().delivery == "puback"


def test_a_bad_receipt_changes_nothing(tmp_path: Path) -> None:
    broker = FakeBroker()
    with fake_rig(tmp_path, broker, quick(setting="receipt")) as rig:
        rig.commit(2)
        until(lambda: rig.pump.state().unreceipted == 2, "rows wait")
        epoch = rig.spool.epoch
        for bad in (
            b"",
            b"\xff\xfe",
            b"[]",
            b'{"epoch":1}',
            json.dumps({"epoch": epoch, "wm": {"R": -1}}).encode(),
            json.dumps({"epoch": epoch, "wm": {"R": True}}).encode(),
            json.dumps({"epoch": epoch, "wm": {"X": 5}}).encode(),
            b'{"epoch":"' + b"x" * 5000 + b'"}',
        ):
            broker.deliver(TOPICS.receipts, bad)
        rig.settled()
        assert rig.spool.stats().rows == 2
        assert rig.pump.alive()


def test_rows_that_nobody_confirms_are_sent_again_after_half_a_minute_then_more_rarely(
    tmp_path: Path,
) -> None:
    broker = FakeBroker()
    with fake_rig(tmp_path, broker, quick(setting="receipt")) as rig:
        rig.commit(2)
        until(lambda: rig.pump.state().unreceipted == 2, "rows wait")
        rig.advance(31)
        until(lambda: rows_in(broker) == [1, 2, 1, 2], "both are sent again")
        until(lambda: rig.pump.state().unreceipted == 2, "rows wait")
        rig.advance(31)
        rig.settled()
        assert rows_in(broker) == [1, 2, 1, 2]
        rig.advance(31)
        until(lambda: rows_in(broker) == [1, 2, 1, 2, 1, 2], "and again after a minute")


def test_results_that_a_restored_collector_lacks_are_sent_again_and_telemetry_is_declared(
    tmp_path: Path,
) -> None:
    broker = FakeBroker()
    with fake_rig(tmp_path, broker, quick(setting="receipt")) as rig:
        rig.commit(4)
        rig.commit(3, "M")
        until(lambda: rig.pump.state().unreceipted == 7, "all are sent")
        epoch = rig.spool.epoch
        broker.deliver(TOPICS.receipts, receipt(epoch, r=4, m=3, ts=1_000))
        until(lambda: rig.spool.stats().rows == 0, "all are receipted")
        broker.deliver(TOPICS.receipts, receipt(epoch, r=2, m=1, ts=2_000))
        rig.settled()
        assert rows_in(broker) == [1, 2, 3, 4]
        rig.advance(31)
        broker.deliver(TOPICS.receipts, receipt(epoch, r=2, m=1, ts=33_000))
        until(lambda: rows_in(broker) == [1, 2, 3, 4, 3, 4, 5], "two again, and what is lost")
        gap = json.loads(next(m.payload for m in broker.got if is_kind(m, "e/gap")))
        assert gap["v"] == {"stream": "M", "from": 2, "to": 3, "n": 2, "reason": "not_kept"}
        assert len(rig.noted("mqtt_step_back")) == 2
        until(lambda: rig.pump.state().unreceipted == 3, "they wait for their receipt")
        # They may get lost on the way, as any row.
        rig.advance(31)
        until(lambda: rows_in(broker)[7:] == [3, 4, 5], "they are sent once more")
        broker.deliver(TOPICS.receipts, receipt(epoch, r=5, m=3, ts=99_000))
        until(lambda: rig.spool.stats().rows == 0, "all are receipted")


def test_no_more_rows_are_under_way_than_the_collector_wants(tmp_path: Path) -> None:
    broker = FakeBroker()
    with fake_rig(tmp_path, broker, quick(setting="receipt", unreceipted=10)) as rig:
        rig.commit(40)
        until(lambda: rig.pump.state().unreceipted == 10, "ten are under way")
        rig.settled()
        assert rows_in(broker) == list(range(1, 11))
        broker.deliver(TOPICS.receipts, receipt(rig.spool.epoch, r=4, u=12))
        until(lambda: rows_in(broker) == list(range(1, 17)), "twelve above the watermark")
        rig.settled()
        assert len(rows_in(broker)) == 16


def test_where_nobody_subscribed_rows_are_held_and_other_kinds_flow(tmp_path: Path) -> None:
    broker = FakeBroker(judge=lambda message: 0x10 if is_kind(message, "r/run") else 0)
    with fake_rig(tmp_path, broker) as rig:
        rig.commit(2, topic="r/run/run-1")
        rig.commit(2, topic="r/point/run-1")
        until(lambda: rows_in(broker) == [3, 4], "points flow")
        rig.settled()
        assert rig.spool.stats().rows == 2
        broker.judge = lambda _: 0
        rig.settled()
        assert rows_in(broker) == [3, 4]
        rig.advance(31)
        until(lambda: rows_in(broker) == [3, 4, 1, 2], "the held rows follow")


def test_a_kind_that_the_broker_refuses_rests_and_comes_back_by_itself(tmp_path: Path) -> None:
    broker = FakeBroker(judge=lambda message: 0x87 if is_kind(message, "m/") else 0)
    with fake_rig(tmp_path, broker) as rig:
        rig.commit(30, "M")
        rig.commit(2, "R")
        until(lambda: status_of(broker).get("health") == "degraded", "the status says so")
        until(lambda: len(rows_in(broker)) == 3, "results flow, with the event")
        assert rows_in(broker, "M") == []
        assert rig.spool.stats().streams["M"].rows == 30
        assert len(rig.noted("mqtt_denied")) == 1
        broker.judge = lambda _: 0
        rig.advance(901)
        until(lambda: rows_in(broker, "M") == list(range(1, 31)), "telemetry flows again")
        until(lambda: status_of(broker).get("health") == "ok", "and all is well")


def test_a_row_that_is_too_large_is_set_aside_and_the_next_flows(tmp_path: Path) -> None:
    broker = FakeBroker(server=Server(max_packet_bytes=2000))
    with fake_rig(tmp_path, broker) as rig:
        rig.spool.commit(entry("R", size=5000))
        rig.commit(1)
        until(lambda: 2 in rows_in(broker), "the next flows")
        until(lambda: rig.spool.stats().parked == 1, "the large one is parked")
        assert len(rig.noted("mqtt_oversize")) == 1
        broker.close()
        broker.server = Server()
        broker.open()
        until(lambda: 1 in rows_in(broker), "it goes once the broker takes it")


def test_a_row_that_ends_the_connection_each_time_is_set_aside(tmp_path: Path) -> None:
    broker = FakeBroker(answers="withheld")
    with fake_rig(tmp_path, broker) as rig:
        rig.commit(3)
        for connection in range(1, 4):
            until(lambda: 1 in rows_in(broker), "the row goes out")
            until(lambda: rig.pump.state().in_flight > 0, "and is in flight")
            broker.got.clear()
            broker.close()
            until(lambda: rig.pump.state().connection == "down", "the connection is lost")
            broker.answers = "at_once" if connection == 3 else "withheld"
            broker.open()
        until(lambda: {2, 3} <= set(rows_in(broker)), "the others flow")
        assert 1 not in rows_in(broker)
        assert rig.spool.stats().parked == 1
        assert len(rig.noted("mqtt_poison")) == 1


def test_silence_is_no_fault_of_the_row_in_flight(tmp_path: Path) -> None:
    broker = FakeBroker(answers="withheld")
    with fake_rig(tmp_path, broker) as rig:
        rig.commit(1)
        for _ in range(5):
            until(lambda: rig.pump.state().in_flight > 0, "the row is in flight")
            broker.close("silent")
            until(lambda: rig.pump.state().connection == "down", "the connection is lost")
            broker.open()
        assert rig.spool.stats().parked == 0


def test_a_quota_slows_down_and_loses_nothing(tmp_path: Path) -> None:
    broker = FakeBroker()
    refusals = iter([0x97] * 3)
    broker.judge = lambda message: next(refusals, 0) if is_kind(message, "r/") else 0
    with fake_rig(tmp_path, broker) as rig:
        rig.commit(6)
        until(lambda: sorted(set(rows_in(broker))) == [1, 2, 3, 4, 5, 6], "all arrive")
        until(lambda: rig.spool.stats().rows == 0, "and the spool is empty")


def test_a_backlog_without_receipts_flows_at_the_set_pace(tmp_path: Path) -> None:
    broker = FakeBroker(state="closed")
    with fake_rig(tmp_path, broker, quick(backfill_per_s=0.001)) as rig:
        rig.commit(5)
        broker.open()
        rig.settled(5)
        first = rows_in(broker)
        assert len(first) <= 1
        rig.advance(1001)
        until(lambda: len(rows_in(broker)) > len(first), "one more after its time")


def test_the_status_is_retained_at_birth_on_change_and_at_the_end(tmp_path: Path) -> None:
    broker = FakeBroker()
    with fake_rig(tmp_path, broker) as rig:
        until(lambda: status_of(broker).get("state") == "online", "birth")
        birth = status_of(broker)
        assert birth["session_n"] == 1
        assert birth["health"] == "ok"
        broker.close()
        assert status_of(broker) == {
            **{name: birth[name] for name in ("schema", "site", "node", "session", "session_n")},
            "state": "offline",
            "reason": "lwt",
        }
        broker.open()
        until(lambda: status_of(broker).get("state") == "online", "born again")
        assert status_of(broker)["session_n"] == 2
        count = len(broker.got)
        rig.advance(301)
        until(lambda: len(broker.got) > count, "every five minutes")
    assert status_of(broker)["state"] == "offline"
    assert status_of(broker)["reason"] == "shutdown"


def test_retained_documents_are_published_on_every_connection_until_they_are_cleared(
    tmp_path: Path,
) -> None:
    broker = FakeBroker()
    topic = TOPICS.full("meta/node")
    with fake_rig(tmp_path, broker) as rig:
        rig.pump.announce("meta/node", b"{}")
        until(lambda: broker.retained.get(topic) == b"{}", "published")
        broker.close()
        broker.retained.clear()  # as a broker without persistence does
        broker.open()
        until(lambda: broker.retained.get(topic) == b"{}", "published again")
        rig.pump.announce("meta/node", b"")
        until(lambda: topic not in broker.retained, "cleared")
        broker.close()
        broker.open()
        rig.settled()
        assert topic not in broker.retained


def test_live_readings_pass_a_backlog_by_and_are_dropped_while_there_is_no_connection(
    tmp_path: Path,
) -> None:
    broker = FakeBroker(answers="withheld")
    with fake_rig(tmp_path, broker) as rig:
        rig.commit(100)
        until(lambda: rig.pump.state().in_flight == 20, "the window is full")
        assert rig.pump.live("m/mem", "edgeagent.mem/1", {"ram_used_bytes": 1}, stamp())
        assert TOPICS.full("m/mem") in broker.topics()
        broker.close()
        assert not rig.pump.live("m/mem", "edgeagent.mem/1", {"ram_used_bytes": 1}, stamp())
        until(lambda: rig.pump.state().live_dropped == 1, "the loss is counted")


def test_a_command_is_handed_over_and_acknowledged_only_once_it_is_stored(tmp_path: Path) -> None:
    broker = FakeBroker()
    with fake_rig(tmp_path, broker) as rig:
        until(lambda: rig.pump.state().connection == "up", "connected")
        broker.deliver(TOPICS.full("cmd/ping/1"), b"{}")
        until(lambda: len(rig.commands) == 1, "handed over")
        assert broker.acked == []
        rig.pump.stored(rig.commands[0])
        assert broker.acked == rig.commands


def test_taken_over_is_told_as_an_event(tmp_path: Path) -> None:
    broker = FakeBroker()
    with fake_rig(tmp_path, broker) as rig:
        until(lambda: rig.pump.state().connection == "up", "connected")
        broker.close("closed", "taken_over", "another client has our id")
        until(lambda: len(rig.noted("mqtt_taken_over")) == 1, "the event")
        assert rig.pump.state().last_error == "another client has our id"
        broker.open()
        until(lambda: rows_in(broker) == [1], "the event arrives")


def test_only_one_pump_delivers_from_a_spool(tmp_path: Path) -> None:
    first, second = FakeBroker(), FakeBroker()
    with fake_rig(tmp_path, first) as rig:
        until(lambda: rig.pump.state().connection == "up", "the first delivers")
        with fake_rig(tmp_path, second) as waiting:
            until(lambda: waiting.noted("spool_trouble"), "the second waits")
            waiting.commit(1)
            until(lambda: rows_in(first) == [1], "the first takes what the second stored")
            assert second.got == []


def test_nothing_is_lost_or_doubled_while_many_threads_store(tmp_path: Path) -> None:
    broker = FakeBroker()
    with fake_rig(tmp_path, broker) as rig:
        threads = [threading.Thread(target=rig.commit, args=(10,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        until(lambda: sorted(rows_in(broker)) == list(range(1, 41)), "all arrive once")
