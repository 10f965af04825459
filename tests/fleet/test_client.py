"""One connection to a real broker, over every way in; and how it says what went wrong."""

import gc
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
from broker_places import Authority, Variant, authority, free_port, mosquitto, observer, until
from stub_broker import Script, StubBroker, disconnect

from edgeagent.core.backoff import Cause
from edgeagent.errors import ConfigError
from edgeagent.fleet.client import (
    NOBODY_LISTENS,
    Arrived,
    Connection,
    Letter,
    Manner,
    NotHeldError,
)
from edgeagent.publish.broker import Broker
from edgeagent.publish.tls import TlsFiles

Way = Literal["tcp", "3.1.1", "unix", "websockets", "tls", "tls websockets"]
WAYS: tuple[Way, ...] = ("tcp", "3.1.1", "unix", "websockets", "tls", "tls websockets")
LARGE = 200_000


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = authority(tmp_path_factory.mktemp("pki"))
    made.issue("broker", san="DNS:localhost,IP:127.0.0.1")
    return made


@contextmanager
def reached(way: Way, folder: Path, ca: Authority) -> Iterator[Broker]:
    """A broker, and how to get there."""
    lines = ["allow_anonymous true"]
    more: dict[str, Any] = {"client_id": "plant"}
    if way.startswith("tls"):
        lines += [f"certfile {ca.folder}/broker.crt", f"keyfile {ca.folder}/broker.key"]
        more["tls_files"] = TlsFiles(ca_file=ca.cert)
    if way.endswith("websockets"):
        lines.append("protocol websockets")
        more["transport"] = "websockets"
    if way == "3.1.1":
        more["protocol"] = "3.1.1"
    socket_path = folder / "mosquitto.sock" if way == "unix" else None
    # because 2.0.11 ends when websockets are all that it listens to
    head = (f"listener {free_port()} 127.0.0.1",)
    with mosquitto(folder, Variant(tuple(lines), unix_socket=socket_path, head=head)) as broker:
        if socket_path is not None:
            yield Broker(str(socket_path), transport="unix", client_id="plant")
        else:
            yield Broker("localhost", broker.port, **more)


def stepping(connection: Connection, done: Callable[[], object], what: str) -> None:
    def reached_() -> object:
        connection.step(0.05)
        return done()

    until(reached_, what)


@pytest.mark.parametrize("way", WAYS)
def test_what_is_sent_comes_back_whole_over_every_way(
    way: Way, tmp_path: Path, ca: Authority
) -> None:
    got: list[Arrived] = []
    letters = [
        Letter(f"a/{n}", bytes([n % 250]) * (LARGE if n == 7 else n), "retained")
        for n in range(300)
    ]
    with reached(way, tmp_path, ca) as broker:
        connection = Connection(broker, Manner(), got.append)
        connection.open()
        connection.subscribe(["a/+"])
        answers = dict.fromkeys(map(connection.publish, letters), -1)
        stepping(connection, lambda: len(got) >= 300, "all come back")
        while min(answers.values()) < 0:
            connection.step(0.05)
            answers.update(connection.answers())
        assert set(answers.values()) == {0}
        assert [(one.topic, one.payload, one.qos) for one in got] == [
            (one.topic, one.payload, 1) for one in letters
        ]
        assert {one.retained for one in got} == {False}
        connection.close()
        got.clear()
        again = Connection(broker, Manner(), got.append)
        again.open()
        again.subscribe(["a/7"])
        stepping(again, lambda: got, "what was retained")
        assert (got[0].retained, len(got[0].payload)) == (True, LARGE)
        again.close()


def test_a_letter_that_nobody_hears_is_answered_so(tmp_path: Path, ca: Authority) -> None:
    with reached("tcp", tmp_path, ca) as broker:
        connection = Connection(broker, Manner(), print)
        connection.open()
        number = connection.publish(Letter("nobody/here", b"x", expiry_s=5))
        found: list[tuple[int, int]] = []
        while not found:
            connection.step(0.05)
            found += connection.answers()
        assert found == [(number, NOBODY_LISTENS)]
        connection.close()


def test_what_nobody_acknowledged_comes_again_and_what_somebody_did_does_not(
    tmp_path: Path, ca: Authority
) -> None:
    got: list[Arrived] = []
    manner = Manner(session_s=600, acks="asked")
    with reached("tcp", tmp_path, ca) as broker:

        def opened() -> Connection:
            made = Connection(broker, manner, got.append)
            made.open()
            made.subscribe(["a/+"])
            return made

        connection = opened()
        with observer(broker.port, ()) as somebody:
            for n in range(3):
                somebody.publish(f"a/{n}", b"x")
        stepping(connection, lambda: len(got) == 3, "three")
        connection.ack(got[1].mid)
        connection.close()
        got.clear()
        connection = opened()
        stepping(connection, lambda: len(got) == 2, "the two others")
        assert [one.topic for one in got] == ["a/0", "a/2"]
        connection.close()


class Refusal(NamedTuple):
    text: str
    cause: Cause


def refusal(broker: Broker, filters: tuple[str, ...] = ("a/+",)) -> Refusal:
    with warnings.catch_warnings():
        # because paho leaves the socket of a handshake that failed to the garbage collector
        warnings.simplefilter("ignore", ResourceWarning)
        said = _refusal(broker, filters)
        gc.collect()
        return said


def _refusal(broker: Broker, filters: tuple[str, ...]) -> Refusal:
    connection = Connection(broker, Manner(), print)
    try:
        connection.open()
        connection.subscribe(filters)
        stepping(connection, lambda: False, "the end of the connection")
    except NotHeldError as refused:
        return Refusal(str(refused), refused.cause)
    finally:
        connection.discard()
    raise AssertionError("unreachable")


def test_a_port_where_nobody_listens_is_named() -> None:
    port = free_port()
    said = refusal(Broker("127.0.0.1", port, client_id="plant"))
    assert f"127.0.0.1:{port} cannot be reached: Connection refused" in said.text
    assert said.cause == "ordinary"


def test_a_broker_that_lets_us_not_in_is_for_a_person_to_put_right(tmp_path: Path) -> None:
    with mosquitto(tmp_path, Variant(("allow_anonymous false",))) as broker:
        said = refusal(Broker("127.0.0.1", broker.port, client_id="plant"))
    assert "refused us" in said.text
    assert "mqtt.username_file" in said.text
    assert said.cause == "refused"


def test_a_certificate_that_is_not_trusted_is_named(tmp_path: Path, ca: Authority) -> None:
    other = authority(tmp_path / "other", "other-ca")
    with reached("tls", tmp_path, ca) as broker:
        said = refusal(
            Broker("localhost", broker.port, client_id="p", tls_files=TlsFiles(ca_file=other.cert))
        )
    assert f"was not issued by mqtt.tls.ca_file {other.cert}" in said.text


def test_a_certificate_of_ours_that_is_wanted_is_asked_for(tmp_path: Path, ca: Authority) -> None:
    lines = (
        f"cafile {ca.cert}", f"certfile {ca.folder}/broker.crt",
        f"keyfile {ca.folder}/broker.key", "require_certificate true", "allow_anonymous true",
    )  # fmt: skip
    with mosquitto(tmp_path, Variant(lines)) as broker:
        its = TlsFiles(ca_file=ca.cert)
        said = refusal(Broker("localhost", broker.port, client_id="p", tls_files=its))
    # Which of the two depends on whether its refusal or its closing is seen first.
    assert "wants a certificate of ours" in said.text or "accept our certificate" in said.text


def test_a_file_that_is_missing_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    its = TlsFiles(ca_file=tmp_path / "none.crt")
    connection = Connection(Broker("localhost", 1, client_id="p", tls_files=its), Manner(), print)
    with pytest.raises(ConfigError, match=r"none\.crt"):
        connection.open()


@pytest.mark.parametrize(
    ("rubbish", "said"),
    [
        (disconnect(0x8E), "took our connection to"),
        (disconnect(0x89), "ended the connection: Server busy"),
        (b"\xf0\xff\xff\xff\xff\xff", "127.0.0.1"),
        (b"\x00" * 50, "127.0.0.1"),
        (b"\x30\x03\x00\x09a", "127.0.0.1"),
    ],
)
def test_whatever_a_broker_sends_ends_one_connection_with_a_sentence(
    rubbish: bytes, said: str
) -> None:
    broker = StubBroker(Script(after_suback=rubbish))
    try:
        text = refusal(Broker("127.0.0.1", broker.port, client_id="p", keepalive_s=5)).text
    finally:
        broker.close()
    assert said in text


def test_a_broker_that_falls_silent_is_left() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def answer_nothing_but_the_greeting() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.recv(1_000)
                sock.sendall(b"\x20\x03\x00\x00\x00")
                while sock.recv(1_000):
                    pass

        silent = threading.Thread(target=answer_nothing_but_the_greeting)
        silent.start()
        said = refusal(Broker("127.0.0.1", port, client_id="p", keepalive_s=1), ())
        silent.join()
    assert f"127.0.0.1:{port}" in said.text


def test_nothing_is_said_in_the_clear_to_another_machine() -> None:
    with pytest.raises(ConfigError, match=r"\[mqtt\.tls\]"):
        Connection(Broker("192.0.2.1", client_id="p"), Manner(), print)
