"""How does the scripted server speak HTTP, and when did a request reach it?

One connection on a bare socket. The arrival of a request is the kernel's stamp of its last bytes
(`SO_TIMESTAMPNS`), moved onto the monotonic clock: a server that is scheduled late must not look
like a client that was early.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import time

_SO_TIMESTAMPNS = 35  # Linux's value; Python's socket module does not name it
_TIMESPEC = struct.Struct("qq")
_ANCILLARY = socket.CMSG_SPACE(_TIMESPEC.size)
_READ_BYTES = 65_536
_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found"}


class Line:
    """One connection. Writing never waits: what does not fit now goes with the next write."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):  # emulated, as by qemu-user, a kernel stamps nothing
            sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._in = b""
        self._out = b""
        self.arrived_ns = 0
        """Monotonic moment at which the last bytes of the request reached the socket."""
        self.last = False
        """Whether the connection ends with this answer."""

    # ------------------------------------------------------------------------------ reading

    async def request(self) -> tuple[bytes, bytes]:
        """Head and body of the next request. Raises EOFError when there is none."""
        while (end := self._in.find(b"\r\n\r\n")) < 0:
            await self._more()
        end += 4
        head = self._in[:end]
        whole = end + _content_length(head)
        while len(self._in) < whole:
            await self._more()
        body, self._in = self._in[end:whole], self._in[whole:]
        return head, body

    async def _more(self) -> None:
        while True:
            try:
                data, ancillary, _, _ = self._sock.recvmsg(_READ_BYTES, _ANCILLARY)
            except BlockingIOError:
                await self._readable()
                continue
            if not data:
                raise EOFError
            self._in += data
            self.arrived_ns = time.monotonic_ns()
            for level, kind, stamp in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
                    seconds, nanoseconds = _TIMESPEC.unpack(stamp)
                    since = time.time_ns() - (seconds * 1_000_000_000 + nanoseconds)
                    self.arrived_ns = time.monotonic_ns() - since
            return

    async def _readable(self) -> None:
        ready = self._loop.create_future()
        self._loop.add_reader(self._sock, _resolve, ready)
        try:
            await ready
        finally:
            self._loop.remove_reader(self._sock)

    def alive(self) -> bool:
        """Whether somebody still listens."""
        try:
            return bool(self._sock.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except OSError:
            return False

    async def gone(self) -> None:
        """Return once nobody listens any more."""
        while self.alive():
            await self._readable()

    # ------------------------------------------------------------------------------ writing

    def raw(self, data: bytes) -> None:
        """Bytes as they are. Raises OSError when nobody listens."""
        self._out += data
        with contextlib.suppress(BlockingIOError):
            self._out = self._out[self._sock.send(self._out) :]

    def _head(self, status: int, kind: str, more: str) -> bytes:
        keep = "Connection: close" if self.last else "Keep-Alive: timeout=5"
        return (
            f"HTTP/1.1 {status} {_REASONS.get(status, 'Error')}\r\n{keep}\r\n"
            f"Server: scripted\r\nContent-Type: {kind}\r\n{more}\r\n\r\n"
        ).encode()

    def send(self, status: int, kind: str, body: bytes) -> None:
        """A whole answer."""
        self.raw(self._head(status, kind, f"Content-Length: {len(body)}") + body)

    def json(self, status: int, value: object) -> None:
        """A whole answer in JSON."""
        self.send(status, "application/json; charset=utf-8", json.dumps(value).encode())

    def error(self, status: int, message: str, kind: str) -> None:
        """An error in llama-server's form."""
        self.json(status, {"error": {"code": status, "message": message, "type": kind}})

    def too_long(self, tokens: int, context: int) -> None:
        """A prompt that does not fit into a slot."""
        text = (
            f"request ({tokens} tokens) exceeds the available context size ({context} tokens), "
            "try increasing it"
        )
        error = {"code": 400, "message": text, "type": "exceed_context_size_error"}
        self.json(400, {"error": {**error, "n_prompt_tokens": tokens, "n_ctx": context}})

    def begin_stream(self) -> None:
        """The head of an event stream."""
        self.raw(self._head(200, "text/event-stream", "Transfer-Encoding: chunked"))

    def chunk(self, data: bytes) -> None:
        """One chunk of it."""
        self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    def end_stream(self) -> None:
        """Its proper end."""
        self.raw(b"0\r\n\r\n")

    # ------------------------------------------------------------------------------ the end

    def reset(self) -> None:
        """Break the connection off, so that the peer sees a reset."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        """Close the connection; safe to call twice."""
        self._sock.close()


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
