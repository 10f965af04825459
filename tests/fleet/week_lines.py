"""How do many boxes speak over few connections? MQTT 5 by hand, one connection for each hall.

By hand, because of what it costs: a client library takes longer for a message than the broker does.
A connection is not a box: what this cannot show is a thousand handshakes and keepalives.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from week_boxes import Box

from edgeagent.core.window import Key

_CONNACK, _PUBLISH, _PUBACK, _SUBACK = 0x20, 0x30, 0x40, 0x90
_ROOM = 1 << 18
"""So many bytes wait for the socket at most; rows wait in their box."""
_PING_S = 15.0
_AGAIN_S = 1.0
State = Literal["down", "greeting", "up"]


def packet(head: int, body: bytes) -> bytes:
    """A whole packet."""
    length, made = len(body), bytearray([head])
    while True:
        made.append(length % 128 | (0x80 if length > 127 else 0))
        length //= 128
        if not length:
            return bytes(made) + body


def word(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("!H", len(raw)) + raw


@dataclass
class Line:
    """One connection, and the boxes that speak over it."""

    port: int
    hall: str
    boxes: dict[str, Box]
    state: State = "down"
    connects: int = 0
    forgotten: int = 0
    """Rows that receipts have covered."""
    _sock: socket.socket | None = None
    _out: bytearray = field(default_factory=bytearray)
    _in: bytearray = field(default_factory=bytearray)
    _who: dict[int, tuple[Box, Key] | None] = field(default_factory=dict)
    _mid: int = 0
    _again_s: float = 0.0
    _ping_s: float = 0.0

    # ------------------------------------------------------------ the connection

    def connect(self, selector: selectors.BaseSelector, now_s: float) -> None:
        """Try to connect, if it is time for it."""
        if self.state != "down" or now_s < self._again_s:
            return
        self._again_s = now_s + _AGAIN_S
        try:
            sock = socket.create_connection(("127.0.0.1", self.port), 5.0)
        except OSError:
            return
        sock.setblocking(False)
        self._sock, self.state = sock, "greeting"
        self._ping_s = now_s
        selector.register(sock, selectors.EVENT_READ, self)
        greeting = word("MQTT") + bytes([5, 0x02]) + struct.pack("!H", 60) + b"\x00"
        self._out += packet(0x10, greeting + word(f"simulated-{self.hall}"))
        receipts = word(f"edgeagent/v1/{self.hall}/+/rx") + b"\x01"
        self._out += packet(0x82, struct.pack("!H", 65_535) + b"\x00" + receipts)

    def drop(self, selector: selectors.BaseSelector) -> None:
        """The connection is gone."""
        if self._sock is None:
            return
        with suppress(KeyError):
            selector.unregister(self._sock)
        self._sock.close()
        was, self._sock, self.state = self.state, None, "down"
        self._out.clear()
        self._in.clear()
        in_flight: dict[str, list[Key]] = defaultdict(list)
        for flight in self._who.values():
            if flight is not None:
                in_flight[flight[0].identity.node].append(flight[1])
        self._who.clear()
        if was == "up":
            for box in self.boxes.values():
                box.down(in_flight[box.identity.node])

    def _stands(self, now_s: float) -> None:
        self.state = "up"
        self.connects += 1
        for box in self.boxes.values():
            box.up(now_s)
            self._publish(f"{box.prefix}/status", box.status(), None, 0x33)

    # ------------------------------------------------------------ sending

    def fill(self, now_s: float) -> None:
        """Let the boxes send what they may."""
        if self.state != "up":
            return
        for box in self.boxes.values():
            if len(self._out) > _ROOM:
                return
            if box.dirty:
                box.fill(self._row, now_s)
        if now_s - self._ping_s > _PING_S:
            self._ping_s = now_s
            self._out += b"\xc0\x00"

    def _row(self, topic: str, payload: bytes, box: Box, key: Key) -> None:
        self._publish(topic, payload, (box, key), 0x32)

    def _publish(self, topic: str, payload: bytes, who: tuple[Box, Key] | None, head: int) -> None:
        self._mid = self._mid % 65_000 + 1
        while self._mid in self._who:
            self._mid = self._mid % 65_000 + 1
        self._who[self._mid] = who
        self._out += packet(head, word(topic) + struct.pack("!HB", self._mid, 0) + payload)

    def write(self) -> bool:
        """Hand over what the socket takes; False if the connection is gone."""
        if self._sock is None or not self._out:
            return True
        try:
            done = self._sock.send(self._out)
        except BlockingIOError:
            return True
        except OSError:
            return False
        del self._out[:done]
        return True

    # ------------------------------------------------------------ hearing

    def read(self, now_s: float) -> bool:
        """Take what came; False if the connection is gone."""
        assert self._sock is not None
        try:
            raw = self._sock.recv(1 << 18)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not raw:
            return False
        self._in += raw
        at = 0
        while (found := self._next(at)) is not None:
            head, begin, end = found
            self._hear(head, memoryview(self._in)[begin:end].tobytes(), now_s)
            at = end
        del self._in[:at]
        return True

    def _next(self, at: int) -> tuple[int, int, int] | None:
        """Head, begin and end of the next whole packet."""
        length = shift = 0
        begin = at + 1
        while begin < len(self._in):
            byte = self._in[begin]
            begin += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                end = begin + length
                return (self._in[at], begin, end) if end <= len(self._in) else None
        return None

    def _hear(self, head: int, body: bytes, now_s: float) -> None:
        kind = head & 0xF0
        if kind == _PUBACK:
            who = self._who.pop(body[0] << 8 | body[1])
            if who is not None:
                who[0].answered(who[1], body[2] if len(body) > 2 else 0, now_s)
        elif kind == _PUBLISH:
            self._receipt(head, body, now_s)
        elif kind == _CONNACK:
            assert body[1] == 0, f"refused: {body[1]}"
        elif kind == _SUBACK:
            self._stands(now_s)

    def _receipt(self, head: int, body: bytes, now_s: float) -> None:
        at = 2 + (body[0] << 8 | body[1])
        node = body[2:at].decode().split("/")[3]
        if head & 0x06:
            self._out += packet(_PUBACK, body[at : at + 2])
            at += 2
        assert body[at] == 0, "no properties are set by a collector"
        self.forgotten += self.boxes[node].heard(body[at + 1 :], now_s)


@dataclass
class Lines:
    """All connections of the plant, served by one thread."""

    lines: list[Line]
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    cut: bool = False
    """Whether the network is away."""
    _looked_s: float = 0.0

    def turn(self) -> None:
        """Read, send, write; waits a moment if nothing happens."""
        now_s = time.monotonic()
        for line in self.lines:
            if self.cut:
                line.drop(self.selector)
            else:
                line.connect(self.selector, now_s)
        self._look(now_s)
        for line in self.lines:
            line.fill(now_s)
            if not line.write():
                line.drop(self.selector)
        began = time.monotonic()
        for key, _ in self.selector.select(0.02) if self.selector.get_map() else ():
            if not key.data.read(time.monotonic()):
                key.data.drop(self.selector)
        # Not for each answer by itself: some at once cost less.
        time.sleep(max(0.0, 0.004 - (time.monotonic() - began)))

    def _look(self, now_s: float) -> None:
        if now_s - self._looked_s < 1.0:
            return
        self._looked_s = now_s
        for line in self.lines:
            for box in line.boxes.values():
                box.look(now_s)

    def close(self) -> None:
        for line in self.lines:
            line.drop(self.selector)
        self.selector.close()
