"""Over which ways and in which protocols a broker is reached, and what is said when it is not."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Literal

import pytest
from broker_places import Variant, free_port, mosquitto, observer, until
from link_places import TOPICS, held
from stub_broker import Script, StubBroker, disconnect, publish

from edgeagent.core.backoff import Pace
from edgeagent.publish.link import Broker
from edgeagent.publish.wire import Answer, Bug, Command, Down, Message, Up


@contextmanager
def stub(script: Script) -> Iterator[StubBroker]:
    broker = StubBroker(script)
    try:
        yield broker
    finally:
        broker.close()


def stub_at(broker: StubBroker, **more: object) -> Broker:
    return Broker("127.0.0.1", broker.port, "edge-0001", keepalive_s=5, **more)  # type: ignore[arg-type]  # because each test names its own


def delivers(broker: Broker) -> Up:
    with held(broker) as link:
        up = link.next(Up)
        assert link.link.send(Message("a/b", b"1", token=7), up.generation) is None
        assert link.next(Answer).token == 7
        return up


def test_websockets(tmp_path: Path) -> None:
    lines = ("protocol websockets", "allow_anonymous true")
    # because 2.0.11 ends when websockets are all that it listens to
    also = (f"listener {free_port()} 127.0.0.1",)
    with mosquitto(tmp_path, Variant(lines, head=also)) as broker:
        delivers(Broker("127.0.0.1", broker.port, "edge-0001", "websockets"))


def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "mosquitto.sock"
    with mosquitto(tmp_path, Variant(unix_socket=path)):
        delivers(Broker(str(path), client_id="edge-0001", transport="unix"))


def test_ipv6(tmp_path: Path) -> None:
    with mosquitto(tmp_path, Variant(address="::1")) as broker:
        delivers(Broker("::1", broker.port, "edge-0001"))


def test_mqtt_3_1_1_when_it_is_asked_for(tmp_path: Path) -> None:
    with mosquitto(tmp_path) as broker:
        up = delivers(Broker("127.0.0.1", broker.port, "edge-0001", protocol="3.1.1"))
    assert (up.protocol, up.note) == ("3.1.1", None)


def test_a_broker_that_refuses_mqtt_5_is_spoken_to_in_3_1_1_at_once_and_from_then_on() -> None:
    with stub(Script(versions=(4,))) as broker, held(stub_at(broker)) as link:
        up = link.next(Up)
        assert up.protocol == "3.1.1"
        assert up.note is not None
        assert "MQTT 3.1.1 only" in up.note
        assert broker.connects == [5, 4]
        broker.hang_up()
        link.next(Down)
        assert link.next(Up).protocol == "3.1.1"
        assert broker.connects == [5, 4, 4]


def test_a_broker_that_hangs_up_on_mqtt_5_is_spoken_to_in_3_1_1_after_a_while() -> None:
    with stub(Script(versions=(4,), hangs_up_on=(5,))) as broker, held(stub_at(broker)) as link:
        assert link.next(Up).protocol == "3.1.1"
        assert broker.connects == [5, 5, 4]


def test_a_broker_that_refuses_mqtt_5_is_an_error_where_5_was_asked_for() -> None:
    with stub(Script(versions=(4,))) as broker, held(stub_at(broker, protocol="5")) as link:
        assert "Unsupported protocol version" in link.next(Down).text


def test_a_session_that_was_taken_over_is_left_to_the_other_for_five_minutes() -> None:
    field = Pace(first_s=0.0)
    with stub(Script()) as broker, held(stub_at(broker), field) as link:
        link.next(Up)
        broker.say(disconnect(0x8E))
        down = link.next(Down)
        assert down.cause == "taken_over"
        assert '"edge-0001"' in down.text
        assert "another client" in down.text
        assert link.events.empty()
        assert broker.connects == [5]


def test_a_wrong_password_is_told_with_the_names_that_were_used() -> None:
    with stub(Script(connack_code=0x86)) as broker, held(stub_at(broker, username="u")) as link:
        down = link.next(Down)
    assert down.cause == "refused"
    assert 'client id "edge-0001", user "u"' in down.text
    assert "Bad user name or password" in down.text


def test_what_is_no_mqtt_ends_the_connection_and_not_the_thread() -> None:
    rubbish = bytes(range(256)) * 4
    with stub(Script(after_suback=rubbish)) as broker, held(stub_at(broker)) as link:
        assert link.next(Down).text
        broker.script.after_suback = publish("a\x00b", b"") + b"\xff" * 9
        assert link.next(Down).text
        broker.script.after_suback = b""
        broker.hang_up()
        until(lambda: broker.in_flight == 0 and link.next(Up), "a connection stands")
        assert not [event for event in link.passed if isinstance(event, Bug)]
        assert link.link.alive()


def test_a_small_receive_maximum_is_kept_to() -> None:
    script = Script(receive_maximum=3, code=lambda _: None)
    with stub(script) as broker, held(stub_at(broker)) as link:
        up = link.next(Up)
        assert up.server.receive_maximum == 3
        for n in range(10):
            assert link.link.send(Message("a/b", b"", token=n), up.generation) is None
        for n in range(10):
            due = min(10, n + 3)
            until(lambda due=due: len(broker.published) == due, "as many as may")  # type: ignore[misc]  # because mypy cannot type a default in a lambda
            broker.answer(broker.published[n].mid)
            assert link.next(Answer).token == n
        assert broker.most_in_flight == 3


def test_answers_carry_the_brokers_reason() -> None:
    script = Script(code=lambda message: {"q": 0x97, "d": 0x87, "n": 0x10}.get(message.topic, 0))
    with stub(script) as broker, held(stub_at(broker)) as link:
        up = link.next(Up)
        for topic in "qdno":
            link.link.send(Message(topic, b"", token=topic), up.generation)
        got = {answer.token: answer.code for answer in (link.next(Answer) for _ in range(4))}
    assert got == {"q": 0x97, "d": 0x87, "n": 0x10, "o": 0}


def test_the_brokers_limit_on_packets_is_known() -> None:
    with stub(Script(max_packet_bytes=2000)) as broker, held(stub_at(broker)) as link:
        assert link.next(Up).server.max_packet_bytes == 2000


def test_where_nobody_listens_the_place_is_named() -> None:
    port = free_port()
    with held(Broker("127.0.0.1", port, "edge-0001")) as link:
        down = link.next(Down)
    assert down.text == f"the broker 127.0.0.1:{port} cannot be reached: Connection refused"
    assert down.cause == "ordinary"


def test_a_name_that_does_not_exist_is_told() -> None:
    with held(Broker("broker.invalid", 1883, "edge-0001", plaintext="allowed")) as link:
        assert "the name cannot be resolved" in link.next(Down).text


def test_somebody_who_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        here = Broker("127.0.0.1", port, "edge-0001", connect_timeout_s=0.3)
        with held(here) as link:
            assert "did not answer the greeting" in link.next(Down).text


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_thirty_thousand_bytes_of_anything_leave_the_thread_alive(
    tmp_path: Path, protocol: Literal["5", "3.1.1"]
) -> None:
    random = Random(5)
    with mosquitto(tmp_path) as broker:
        here = Broker(
            "127.0.0.1",
            broker.port,
            "edge-0001",
            protocol=protocol,
            commands="heard",
        )
        with held(here) as link, observer(broker.port, ()) as other:
            up = link.next(Up)
            for _ in range(300):
                other.publish(TOPICS.full(f"cmd/{any_level(random)}"), any_bytes(random))
                other.publish(TOPICS.receipts, any_bytes(random))
                while not link.events.empty():
                    event = link.events.get()
                    assert not isinstance(event, Down | Bug)
                    if isinstance(event, Command):
                        link.link.ack(event)
            assert link.link.send(Message("a/b", b"", token=1), up.generation) is None
            assert link.next(Answer).token == 1
            assert link.link.alive()


def any_level(random: Random) -> str:
    """One level of a topic, of whatever is allowed there."""
    length = random.randint(1, 30)
    codes = [random.choice([random.randint(33, 126), 0xE4, 0x1F4A9]) for _ in range(length)]
    return "".join(map(chr, codes)).translate({ord("+"): "p", ord("#"): "h"})


def any_bytes(random: Random) -> bytes:
    return random.randbytes(random.randint(0, 99))
