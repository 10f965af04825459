"""What can a broker do that Debian's mosquitto never does? Here by script, packet by packet.

It listens on a loopback port and answers each connection as its `Script` says: refuse MQTT 5, hang
up without a word, say that somebody else took the session over, answer with a quota, send rubbish.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

CONNECT, CONNACK, PUBLISH, PUBACK = 1, 2, 3, 4
SUBSCRIBE, SUBACK, PINGREQ, PINGRESP, DISCONNECT = 8, 9, 12, 13, 14


@dataclass(frozen=True)
class Published:
    topic: str
    payload: bytes
    qos: int
    mid: int


@dataclass
class Script:
    """How connections are answered. Each part may be changed while it runs."""

    versions: tuple[int, ...] = (4, 5)
    """Protocol levels that are let in; others are refused in the words of 3.1.1."""
    hangs_up_on: tuple[int, ...] = ()
    """Protocol levels at which the connection is closed without a word."""
    receive_maximum: int | None = None
    max_packet_bytes: int | None = None
    connack_code: int = 0
    code: Callable[[Published], int | None] = lambda _: 0
    """With what a message of QoS 1 is answered; None for silence."""
    after_suback: bytes = b""
    """Bytes sent after the subscription, such as rubbish or a DISCONNECT."""


@dataclass
class StubBroker:
    script: Script = field(default_factory=Script)
    published: list[Published] = field(default_factory=list)
    connects: list[int] = field(default_factory=list)
    """Protocol level of each CONNECT."""
    in_flight: int = 0
    most_in_flight: int = 0

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()
        self._thread.join(10)

    def hang_up(self) -> None:
        """Close every connection."""
        for sock in list(self._sockets):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def say(self, packet: bytes) -> None:
        """Send something to every connection."""
        for sock in list(self._sockets):
            with suppress(OSError):
                sock.sendall(packet)

    def answer(self, mid: int, code: int = 0) -> None:
        """Answer a message that was met with silence."""
        self.in_flight -= 1
        self.say(puback(mid, code))

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self._sockets.append(sock)
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        reader = sock.makefile("rb")
        level = 5
        with suppress(OSError, EOFError, struct.error, IndexError), sock:
            while True:
                kind, flags, body = _packet(reader.read)
                if kind == CONNECT:
                    level = body[6]
                    self.connects.append(level)
                    if level in self.script.hangs_up_on:
                        break
                    sock.sendall(self._connack(level))
                    if level not in self.script.versions or self.script.connack_code:
                        break
                elif kind == SUBSCRIBE:
                    sock.sendall(_suback(body, level))
                    if self.script.after_suback:
                        sock.sendall(self.script.after_suback)
                elif kind == PUBLISH:
                    self._take(sock, _publish(flags, body, level))
                elif kind == PINGREQ:
                    sock.sendall(bytes([PINGRESP << 4, 0]))
                elif kind == DISCONNECT:
                    break
        reader.close()
        self._sockets.remove(sock)
        self.in_flight = 0

    def _connack(self, level: int) -> bytes:
        if level not in self.script.versions:
            return bytes([CONNACK << 4, 2, 0, 1])
        if level == 4:
            return bytes([CONNACK << 4, 2, 0, self.script.connack_code])
        properties = b""
        if self.script.receive_maximum is not None:
            properties += b"\x21" + struct.pack("!H", self.script.receive_maximum)
        if self.script.max_packet_bytes is not None:
            properties += b"\x27" + struct.pack("!I", self.script.max_packet_bytes)
        body = bytes([0, self.script.connack_code, len(properties)]) + properties
        return bytes([CONNACK << 4, len(body)]) + body

    def _take(self, sock: socket.socket, message: Published) -> None:
        self.published.append(message)
        if message.qos == 0:
            return
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        code = self.script.code(message)
        if code is not None:
            self.in_flight -= 1
            sock.sendall(puback(message.mid, code))


def puback(mid: int, code: int) -> bytes:
    if code == 0:
        return struct.pack("!BBH", PUBACK << 4, 2, mid)
    return struct.pack("!BBHBB", PUBACK << 4, 4, mid, code, 0)


def disconnect(code: int) -> bytes:
    return bytes([DISCONNECT << 4, 2, code, 0])


def publish(topic: str, payload: bytes) -> bytes:
    """A PUBLISH of QoS 0, MQTT 5, below 128 bytes."""
    body = _text(topic) + b"\0" + payload
    return bytes([PUBLISH << 4, len(body)]) + body


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("!H", len(data)) + data


def _packet(read: Callable[[int], bytes]) -> tuple[int, int, bytes]:
    head = read(1)
    if not head:
        raise EOFError
    length, shift = 0, 0
    while True:
        digit = read(1)[0]
        length |= (digit & 0x7F) << shift
        shift += 7
        if not digit & 0x80:
            break
    return head[0] >> 4, head[0] & 0x0F, read(length)


def _suback(body: bytes, level: int) -> bytes:
    mid, at, count = body[:2], 2, 0
    if level == 5:
        at += 1 + body[2]
    while at < len(body):
        at += 2 + struct.unpack("!H", body[at : at + 2])[0] + 1
        count += 1
    answer = mid + (b"\0" if level == 5 else b"") + b"\1" * count
    return bytes([SUBACK << 4, len(answer)]) + answer


def _publish(flags: int, body: bytes, level: int) -> Published:
    size = struct.unpack("!H", body[:2])[0]
    topic, at, mid = body[2 : 2 + size].decode(), 2 + size, 0
    qos = (flags >> 1) & 3
    if qos:
        mid = struct.unpack("!H", body[at : at + 2])[0]
        at += 2
    if level == 5:
        at += 1 + body[at]
    return Published(topic, body[at:], qos, mid)
