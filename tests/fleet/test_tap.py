"""paho and we share a socket: messages are ours, everything else is its own."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from edgeagent.fleet.tap import Tap

MESSAGE = b"\x30\x05\x00\x01a\x00x"
PINGRESP = b"\xd0\x00"


@pytest.fixture
def pair() -> Iterator[tuple[Tap, socket.socket]]:
    near, far = socket.socketpair()
    near.setblocking(False)
    with ExitStack() as stack:
        stack.callback(near.close)
        stack.callback(far.close)
        yield Tap(near, 5), far


def test_messages_are_handed_out_and_the_rest_is_kept_for_paho(
    pair: tuple[Tap, socket.socket],
) -> None:
    tap, far = pair
    assert tap.fill() == []
    far.sendall(MESSAGE + PINGRESP + MESSAGE[:4])
    assert [one.payload for one in tap.fill()] == [b"x"]
    assert tap.for_paho
    assert (tap.recv(1), tap.recv(9)) == (PINGRESP[:1], PINGRESP[1:])
    with pytest.raises(BlockingIOError):
        tap.recv(1)
    far.sendall(MESSAGE[4:])
    assert [one.topic for one in tap.fill()] == ["a"]
    assert not tap.for_paho


def test_the_end_comes_after_what_came_before_it(pair: tuple[Tap, socket.socket]) -> None:
    tap, far = pair
    far.sendall(PINGRESP)
    assert tap.fill() == []
    far.close()
    assert tap.fill() == []
    assert tap.recv(9) == PINGRESP
    assert tap.for_paho
    assert tap.recv(9) == b""


def test_what_is_written_waits_for_flush_and_what_the_network_does_not_take_stays(
    pair: tuple[Tap, socket.socket],
) -> None:
    tap, far = pair
    far.setblocking(False)
    assert tap.send(b"a") == 1
    with pytest.raises(BlockingIOError):
        far.recv(1)
    plenty = b"x" * 4_000_000
    tap.send(plenty)
    tap.flush()
    assert 0 < tap.unsent < len(plenty)
    got = 0
    while got < len(plenty) + 1:
        got += len(far.recv(1_000_000))
        tap.flush()
    assert (got, tap.unsent) == (len(plenty) + 1, 0)


def test_a_broken_connection_is_an_error_for_both(pair: tuple[Tap, socket.socket]) -> None:
    tap, far = pair
    far.close()
    tap.send(b"a")
    with pytest.raises(OSError, match="Broken pipe"):
        tap.flush()


def test_a_goodbye_leaves_with_the_close(pair: tuple[Tap, socket.socket]) -> None:
    tap, far = pair
    tap.send(b"goodbye")
    tap.close()
    assert far.recv(20) == b"goodbye"
    assert tap.fileno() == -1
