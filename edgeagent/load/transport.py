"""When did these bytes arrive, on a box whose cores the engine has taken?

An `httpx.AsyncBaseTransport` of our own: HTTP/1.1 over non-blocking sockets, where the kernel
stamps what arrives (`SO_TIMESTAMPNS`) and `recvmsg` hands the stamp over with the bytes. Python may
be scheduled late; the stamp is not. `sent_ns` is taken at the write of the request's last byte.

The kernel's stamp is wall-clock time. It is moved onto the monotonic clock by the offset between
the two, read beside it; a jump of that offset is a step of the wall clock, which is remembered so
that the cell can say so. A stamp that is missing, or that lies outside the possible, is replaced by
the monotonic clock's own reading and counted. TLS runs over the same reads (`ssl.MemoryBIO`), so a
record's stamp is still the kernel's.

One stamp covers one read. Two events in one read share it: the caller sees reads, so it can tell.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import NamedTuple

import h11
import httpx

SO_TIMESTAMPNS = 35
"""Linux's value; Python's socket module does not name it."""

_ANCILLARY = socket.CMSG_SPACE(16)
_READ_BYTES = 65536
_MAX_HEAD_BYTES = 65536
_PLAUSIBLE_NS = 60 * 1_000_000_000
"""A kernel stamp further than this from now was made by a clock that has been set meanwhile."""


_QUICK_NS = 20_000
"""Reading two clocks takes a fraction of a microsecond unless somebody interrupts it."""


class Read(NamedTuple):
    """Body bytes of one socket read, and when they arrived (monotonic nanoseconds)."""

    data: bytes
    at_ns: int
    kernel: bool


class WallOffset:
    """Wall clock minus monotonic clock, and the largest jump it has made."""

    def __init__(self) -> None:
        self._last_ns = _offset()[0]
        self._largest_step_ns = 0

    def now(self) -> int:
        """The offset now, in nanoseconds; a jump since the last call is remembered.

        The two clocks are read one after the other. When we were interrupted between them the
        reading is worthless, and the last good one is a far better answer.
        """
        offset, width = _offset()
        if width > _QUICK_NS:
            offset, width = _offset()
            if width > _QUICK_NS:
                return self._last_ns
        step = abs(offset - self._last_ns)
        self._largest_step_ns = max(self._largest_step_ns, step)
        self._last_ns = offset
        return offset

    @property
    def step_s(self) -> float:
        """The largest change between two readings, in seconds."""
        return self._largest_step_ns / 1e9

    def forget(self) -> None:
        """Start looking for the largest change anew."""
        self._last_ns = _offset()[0]
        self._largest_step_ns = 0


def _offset() -> tuple[int, int]:
    """Wall minus monotonic clock, and how long reading both took."""
    before = time.monotonic_ns()
    wall = time.time_ns()
    after = time.monotonic_ns()
    return wall - (before + after) // 2, after - before


@dataclass(frozen=True)
class Target:
    """Where connections go."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None


class ClosedBeforeAnswerError(Exception):
    """A kept connection turned out to be closed before any byte of the answer had come."""


class Connection:
    """One connection: a request out, an answer in, again and again."""

    def __init__(self, sock: socket.socket, offset: WallOffset, tls: _Tls | None) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._offset = offset
        self._tls = tls
        self._pending: asyncio.Future[None] | None = None
        self._got_answer = False
        self.closed = False
        self.answers = 0

    @classmethod
    async def open(cls, target: Target, offset: WallOffset) -> Connection:
        """Connect; raises OSError or ssl.SSLError."""
        loop = asyncio.get_running_loop()
        infos = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        error: OSError | None = None
        for family, kind, protocol, _, address in infos:
            sock = socket.socket(family, kind, protocol)
            sock.setblocking(False)
            try:
                # Before connecting: the first stamps of a machine may be missing otherwise.
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await loop.sock_connect(sock, address)
            except OSError as failure:
                sock.close()
                error = failure
                continue
            except BaseException:
                sock.close()
                raise
            connection = cls(sock, offset, _Tls(target) if target.tls else None)
            try:
                await connection._handshake()
            except BaseException:
                connection.close()
                raise
            return connection
        raise error or OSError(f"{target.host} has no address")

    async def _handshake(self) -> None:
        if self._tls is None:
            return
        while not self._tls.shake():
            await self._flush()
            data, _, _ = await self._receive()
            self._tls.incoming(data)
        await self._flush()

    async def _flush(self) -> None:
        if self._tls is not None and (data := self._tls.outgoing()):
            await self._loop.sock_sendall(self._sock, data)

    async def send(self, data: bytes) -> int:
        """Write it all; the monotonic time just before the last byte went out."""
        if self._tls is not None:
            data = self._tls.encrypt(data)
        view = memoryview(data)
        try:
            while True:
                at_ns = time.monotonic_ns()
                try:
                    sent = self._sock.send(view)
                except BlockingIOError:
                    await self._writable()
                    continue
                if sent == len(view):
                    return at_ns
                view = view[sent:]
        except OSError as error:
            self.close()
            raise self._broken(error) from error

    async def _writable(self) -> None:
        ready = self._loop.create_future()
        self._loop.add_writer(self._sock, _resolve, ready)
        try:
            await ready
        finally:
            self._loop.remove_writer(self._sock)

    async def read(self) -> Read:
        """The next bytes with their stamp; empty bytes at the end of the connection."""
        while True:
            try:
                data, at_ns, kernel = await self._receive()
            except OSError as error:
                self.close()
                raise self._broken(error) from error
            if self._tls is not None and data:
                self._tls.incoming(data)
                data = self._tls.decrypt()
                if not data and not self._tls.ended:
                    continue
            if not data:
                self.close()
            else:
                self._got_answer = True
            return Read(data, at_ns, kernel)

    async def _receive(self) -> tuple[bytes, int, bool]:
        while True:
            try:
                data, ancillary, _, _ = self._sock.recvmsg(_READ_BYTES, _ANCILLARY)
            except BlockingIOError:
                await self._readable()
                continue
            now_ns = time.monotonic_ns()
            for level, kind, stamp in ancillary:
                if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(stamp) >= 16:  # noqa: PLR2004  # because a timespec has 16 bytes
                    seconds, nanoseconds = struct.unpack_from("qq", stamp)
                    at_ns = seconds * 1_000_000_000 + nanoseconds - self._offset.now()
                    if 0 <= now_ns - at_ns + 1_000_000 < _PLAUSIBLE_NS:
                        return data, at_ns, True
            return data, now_ns, False

    async def _readable(self) -> None:
        ready = self._loop.create_future()
        self._loop.add_reader(self._sock, _resolve, ready)
        try:
            await ready
        finally:
            self._loop.remove_reader(self._sock)

    def begin(self) -> None:
        """A new request starts: nothing of its answer has come yet."""
        self._got_answer = False

    def _broken(self, error: OSError) -> Exception:
        if self.answers and not self._got_answer:
            return ClosedBeforeAnswerError(str(error))
        return error

    @property
    def untouched(self) -> bool:
        """Whether nothing of the present answer has come, on a connection that was kept."""
        return self.answers > 0 and not self._got_answer

    def idle_alive(self) -> bool:
        """Whether a kept connection is still open: its peer has neither closed nor spoken."""
        if self.closed:
            return False
        try:
            self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        """Close the socket; safe to call twice."""
        if not self.closed:
            self.closed = True
            with contextlib.suppress(OSError, ValueError):
                self._loop.remove_reader(self._sock)
            self._sock.close()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _Tls:
    """TLS as a pure transformation between our reads and the bytes within them."""

    def __init__(self, target: Target) -> None:
        assert target.tls is not None  # noqa: S101  # because the caller has just looked
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._object = target.tls.wrap_bio(self._in, self._out, server_hostname=target.host)
        self.ended = False

    def shake(self) -> bool:
        """Go on with the handshake; whether it is done."""
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def incoming(self, data: bytes) -> None:
        """What the socket gave; nothing means that it ended."""
        if data:
            self._in.write(data)
        else:
            self._in.write_eof()

    def outgoing(self) -> bytes:
        """What must go to the socket."""
        return self._out.read()

    def encrypt(self, data: bytes) -> bytes:
        """`data` as records."""
        self._object.write(data)
        return self._out.read()

    def decrypt(self) -> bytes:
        """What the records so far held."""
        parts = []
        while True:
            try:
                part = self._object.read(_READ_BYTES)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLError:
                self.ended = True
                break
            if not part:
                self.ended = True
                break
            parts.append(part)
        return b"".join(parts)


class Answer(httpx.AsyncByteStream):
    """The body of one answer, read by read, and the stamps of its beginning."""

    def __init__(self, pool: _Pool, connection: Connection, reading: _Reading) -> None:
        self._pool = pool
        self._connection = connection
        self._reading = reading
        self.sent_ns = 0
        self.headers_ns = 0
        self.retried = False
        self._closed = False

    async def reads(self) -> AsyncIterator[Read]:
        """Body bytes of each socket read that held some. Raises httpx.ReadError, ProtocolError."""
        while (found := await self.next()) is not None:
            yield found

    async def next(self) -> Read | None:
        """The next read that holds body bytes; None at the end of the answer."""
        reading = self._reading
        while not reading.complete:
            if reading.body:
                data = b"".join(reading.body)
                reading.body.clear()
                return Read(data, reading.at_ns, reading.kernel)
            await reading.more(self._connection)
        if reading.body:
            data = b"".join(reading.body)
            reading.body.clear()
            return Read(data, reading.at_ns, reading.kernel)
        return None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for read in self.reads():
            yield read.data

    async def aclose(self) -> None:
        """Give the connection back if the answer was read to its end, else close it."""
        if self._closed:
            return
        self._closed = True
        if self._reading.reusable and not self._connection.closed:
            self._pool.keep(self._connection)
        else:
            self._connection.close()


class _Reading:
    """One answer being read: h11 for the head, a small decoder of our own for the body.

    Per token event h11 costs more than everything else together (measured: docs/benchmarks.md),
    and a body is either chunks, a length, or all there is until the end.
    """

    def __init__(self) -> None:
        self._head = h11.Connection(h11.CLIENT)
        self._chunks: Chunks | None = None
        self._left: int | None = None
        self._keep_alive = True
        self.response: h11.Response | None = None
        self.body: list[bytes] = []
        self.at_ns = 0
        self.kernel = False
        self.complete = False

    @property
    def reusable(self) -> bool:
        """Whether another request may follow on this connection."""
        return self.complete and self._keep_alive

    def request(self, request: httpx.Request, body: bytes) -> bytes:
        """The request's bytes."""
        event = h11.Request(
            method=request.method, target=request.url.raw_path, headers=request.headers.raw
        )
        head = self._head.send(event)
        data = self._head.send(h11.Data(body)) if body else b""
        end = self._head.send(h11.EndOfMessage())
        return b"".join((head or b"", data or b"", end or b""))

    async def more(self, connection: Connection) -> None:
        """One more read of the connection."""
        read = await connection.read()
        self.at_ns, self.kernel = read.at_ns, read.kernel
        if not read.data:
            self._end_of_connection()
        else:
            self._feed_body(read.data)

    async def head(self, connection: Connection) -> h11.Response:
        """Read until the answer's head is complete. Raises h11.RemoteProtocolError."""
        while self.response is None:
            read = await connection.read()
            self.at_ns, self.kernel = read.at_ns, read.kernel
            if not read.data and connection.untouched:
                raise ClosedBeforeAnswerError("closed by the server")
            self._head.receive_data(read.data)
            event = self._head.next_event()
            while isinstance(event, h11.InformationalResponse):
                event = self._head.next_event()
            if isinstance(event, h11.Response):
                self.response = event
            elif not read.data:
                raise h11.RemoteProtocolError("the connection ended before an answer's head")
        self._frame(self.response)
        trailing, _ = self._head.trailing_data
        if trailing:
            self._feed_body(trailing)
        return self.response

    def _frame(self, response: h11.Response) -> None:
        headers = {name.lower(): value.lower() for name, value in response.headers}
        self._keep_alive = (
            headers.get(b"connection", b"") != b"close" and response.http_version != b"1.0"
        )
        if b"chunked" in headers.get(b"transfer-encoding", b""):
            self._chunks = Chunks()
        elif b"content-length" in headers:
            self._left = int(headers[b"content-length"])
            self.complete = self._left == 0
        elif response.status_code in (204, 304):
            self.complete = True
        else:
            self._keep_alive = False

    def _feed_body(self, data: bytes) -> None:
        if self._chunks is not None:
            self.body.extend(self._chunks.feed(data))
            self.complete = self._chunks.complete
            if self._chunks.surplus:
                self._keep_alive = False
        elif self._left is not None:
            self._left -= len(data)
            self.body.append(data)
            self.complete = self._left <= 0
            if self._left < 0:
                self._keep_alive = False
        else:
            self.body.append(data)

    def _end_of_connection(self) -> None:
        self._keep_alive = False
        if self._chunks is None and self._left is None:
            self.complete = True
            return
        raise httpx.ReadError("the connection ended in the middle of the answer")


class ChunkError(ValueError):
    """Bytes that are not chunked transfer coding."""


class Chunks:
    """Chunked transfer coding (RFC 9112, 7.1), decoded incrementally. Trailers are skipped."""

    def __init__(self) -> None:
        self._rest = b""
        self._left = 0
        self._after_data = False
        self._trailer = False
        self.complete = False
        self.surplus = False

    def feed(self, data: bytes) -> list[bytes]:
        """Body bytes in `data`. Raises ChunkError."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        parts: list[bytes] = []
        at = 0
        while at < len(data):
            if self.complete:
                self.surplus = True
                break
            if self._left:
                part = data[at : at + self._left]
                parts.append(part)
                at += len(part)
                self._left -= len(part)
                self._after_data = self._left == 0
                continue
            end = data.find(b"\n", at)
            if end < 0:
                self._rest = data[at:]
                if len(self._rest) > _MAX_HEAD_BYTES:
                    raise ChunkError("a chunk's size line has no end")
                break
            self._line(data[at:end].rstrip(b"\r"))
            at = end + 1
        return parts

    def _line(self, line: bytes) -> None:
        if self._after_data:
            if line:
                raise ChunkError("a chunk is longer than it said")
            self._after_data = False
        elif self._trailer:
            self.complete = not line
        else:
            size = line.split(b";", 1)[0].strip()
            if not size or size.strip(b"0123456789abcdefABCDEF") or len(size) > 16:  # noqa: PLR2004  # because 16 hex digits are 64 bits
                raise ChunkError(f"{line[:40]!r} is not a chunk's size")
            self._left = int(size, 16)
            self._trailer = self._left == 0


class _Pool:
    """Connections that wait for a request."""

    def __init__(self) -> None:
        self._idle: list[Connection] = []

    def keep(self, connection: Connection) -> None:
        connection.answers += 1
        self._idle.append(connection)

    def add(self, connection: Connection) -> None:
        self._idle.append(connection)

    def take(self) -> Connection | None:
        """The connection used last that is still open."""
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_alive():
                return connection
            connection.close()
        return None

    def prune(self) -> int:
        """Forget what has been closed meanwhile; how many are left."""
        alive = [connection for connection in self._idle if connection.idle_alive()]
        for connection in self._idle:
            if connection not in alive:
                connection.close()
        self._idle = alive
        return len(alive)

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle = []


class KernelStampTransport(httpx.AsyncBaseTransport):
    """HTTP/1.1 to one server, with kernel stamps; `response.extensions["answer"]` is an Answer."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._pool = _Pool()
        self.offset = WallOffset()

    async def open(self, connections: int) -> None:
        """Have this many connections open and waiting. Raises httpx.ConnectError."""
        missing = connections - self._pool.prune()
        for _ in range(missing):
            self._pool.add(await self._connect())

    async def _connect(self) -> Connection:
        try:
            return await Connection.open(self._target, self.offset)
        except (OSError, ssl.SSLError) as error:
            raise httpx.ConnectError(str(error) or type(error).__name__) from error

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send, and return once the answer's head is there."""
        body = await request.aread()
        connection = self._pool.take()
        kept = connection is not None
        if connection is None:
            connection = await self._connect()
        try:
            return await self._exchange(connection, request, body, retried=False)
        except ClosedBeforeAnswerError as closed:
            if not kept:
                raise httpx.ReadError(str(closed)) from closed
        # Nothing of the answer had come: the server had closed the kept connection (llama-server
        # does after 5 s or 100 requests), so asking once more cannot ask twice.
        fresh = await self._connect()
        return await self._exchange(fresh, request, body, retried=True)

    async def _exchange(
        self, connection: Connection, request: httpx.Request, body: bytes, *, retried: bool
    ) -> httpx.Response:
        reading = _Reading()
        answer = Answer(self._pool, connection, reading)
        answer.retried = retried
        connection.begin()
        try:
            answer.sent_ns = await connection.send(reading.request(request, body))
            request.extensions["sent_ns"] = answer.sent_ns
            head = await reading.head(connection)
        except (h11.RemoteProtocolError, ChunkError) as error:
            connection.close()
            raise httpx.RemoteProtocolError(str(error)) from error
        except OSError as error:
            connection.close()
            raise httpx.ReadError(str(error) or type(error).__name__) from error
        except BaseException:
            connection.close()
            raise
        answer.headers_ns = reading.at_ns
        return httpx.Response(
            head.status_code,
            headers=list(head.headers),
            stream=answer,
            extensions={"answer": answer},
        )

    async def aclose(self) -> None:
        """Close what waits."""
        self._pool.close()
