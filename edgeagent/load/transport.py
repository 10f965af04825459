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
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import h11
import httpx

SO_TIMESTAMPNS = 35
"""Linux's value; Python's socket module does not name it."""

_TIMESPEC = struct.Struct("qq")
_ANCILLARY = socket.CMSG_SPACE(_TIMESPEC.size)
_SOL_SOCKET = int(socket.SOL_SOCKET)  # a plain number compares faster than an enum
_READ_BYTES = 65536
_CONNECT_S = 10.0
_MAX_HEAD_BYTES = 65536
_HEX = b"0123456789abcdefABCDEF"
_SIZE_DIGITS = 16
"""Hexadecimal digits of 64 bits."""
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

    def __init__(self, read: Callable[[], tuple[int, int]] | None = None) -> None:
        """`read` gives the offset and how long reading it took, both in nanoseconds."""
        self._read = read or _offset
        self._last_ns = self._calm()
        self._largest_step_ns = 0

    def _calm(self) -> int:
        """The offset by the best of a few readings: what follows is compared with it."""
        return min((self._read() for _ in range(5)), key=lambda reading: reading[1])[0]

    def now(self) -> int:
        """The offset now, in nanoseconds; a jump since the last call is remembered.

        The two clocks are read one after the other. When we were interrupted between them the
        reading is worthless, and the last good one is a far better answer.
        """
        offset, width = self._read()
        if width > _QUICK_NS:
            offset, width = self._read()
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
        self._last_ns = self._calm()
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

    def __init__(self, sock: socket.socket, offset: WallOffset) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._offset = offset
        self._tls: _Tls | None = None
        self._step: Callable[[Read], bool] | None = None
        self._ended: asyncio.Future[None] | None = None
        self._watched = False
        self._got_answer = False
        self.closed = False
        self.kept = False
        """Whether it has waited for a request: then the server may have closed it meanwhile."""

    @classmethod
    async def open(cls, target: Target, offset: WallOffset) -> Connection:
        """Connect; raises OSError or ssl.SSLError."""
        error: OSError | None = None
        for family, address in await _addresses(target):
            sock = socket.socket(family, socket.SOCK_STREAM)
            sock.setblocking(False)
            connection = cls(sock, offset)
            try:
                # Before connecting: the first stamps of a machine may be missing otherwise.
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await connection._loop.sock_connect(sock, address)
            except OSError as failure:
                connection.close()
                error = failure
                continue
            except BaseException:
                connection.close()
                raise
            if target.tls is not None:
                await connection._handshake(_Tls(target.tls, target.host))
            return connection
        raise error or OSError(f"{target.host} has no address")

    async def _handshake(self, tls: _Tls) -> None:
        try:
            while not tls.shake():
                await self._loop.sock_sendall(self._sock, tls.outgoing())
                tls.incoming((await self.read()).data)
            await self._loop.sock_sendall(self._sock, tls.outgoing())
        except BaseException:
            self.close()
            raise
        self._tls = tls

    # ---------------------------------------------------------------------------- writing

    async def send(self, data: bytes) -> int:
        """Write it all; the monotonic time just before the last byte went out."""
        if self._tls is not None:
            data = self._tls.encrypt(data)
        view = memoryview(data)
        self._got_answer = False
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

    # ---------------------------------------------------------------------------- reading

    async def read(self) -> Read:
        """The next bytes with their stamp; empty bytes at the end of the connection."""
        found: list[Read] = []

        def one(read: Read) -> bool:
            found.append(read)
            return True

        await self.pump(one)
        return found[0]

    async def pump(self, step: Callable[[Read], bool]) -> None:
        """Call `step` with every read until it returns True; the last read is empty.

        Raises OSError, and whatever `step` raises. `step` runs in the loop's own callback: to wake
        a task for every token costs as much again as all the rest.
        """
        ended: asyncio.Future[None] = self._loop.create_future()
        self._step, self._ended = step, ended
        if not self._watched:
            self._watched = True
            self._loop.add_reader(self._sock, self._on_readable)
        try:
            await ended
        except OSError as error:
            self.close()
            raise self._broken(error) from error
        finally:
            self._step = None

    def _on_readable(self) -> None:
        """Read for whoever waits.

        The loop keeps watching between two answers and stops when it calls for nobody: to start and
        stop watching costs more than a read.
        """
        if self._step is None or self._ended is None or self._ended.done():
            self._unwatch()
            return
        try:
            enough = self._arrived(self._step)
        except BlockingIOError:
            return
        except Exception as error:  # noqa: BLE001  # because it is raised where the answer is awaited
            self._ended.set_exception(error)
            return
        if enough:
            self._ended.set_result(None)

    def _arrived(self, step: Callable[[Read], bool]) -> bool:
        read = self._recvmsg()
        if self._tls is not None and read.data:
            self._tls.incoming(read.data)
            read = read._replace(data=self._tls.decrypt())
            if not read.data and not self._tls.ended:
                return False
        if read.data:
            self._got_answer = True
            return step(read)
        self.close()
        step(read)
        return True

    def _unwatch(self) -> None:
        if self._watched:
            self._watched = False
            self._loop.remove_reader(self._sock)

    def _recvmsg(self) -> Read:
        data, ancillary, _, _ = self._sock.recvmsg(_READ_BYTES, _ANCILLARY)
        now_ns = time.monotonic_ns()
        for level, kind, stamp in ancillary:
            if level == _SOL_SOCKET and kind == SO_TIMESTAMPNS and len(stamp) >= _TIMESPEC.size:
                seconds, nanoseconds = _TIMESPEC.unpack_from(stamp)
                at_ns = seconds * 1_000_000_000 + nanoseconds - self._offset.now()
                if 0 <= now_ns - at_ns + 1_000_000 < _PLAUSIBLE_NS:
                    return Read(data, at_ns, kernel=True)
        return Read(data, now_ns, kernel=False)

    # ---------------------------------------------------------------------- between answers

    def _broken(self, error: OSError) -> Exception:
        return ClosedBeforeAnswerError(str(error)) if self.untouched else error

    @property
    def untouched(self) -> bool:
        """Whether nothing of the present answer has come, on a connection that was kept."""
        return self.kept and not self._got_answer

    def idle_alive(self) -> bool:
        """Whether a kept connection is still open: its peer has neither closed nor spoken."""
        try:
            while not self.closed:
                if self._tls is None:
                    self._sock.recv(1, socket.MSG_PEEK)
                    return False
                # Below TLS a peer may speak by itself: session tickets follow the handshake.
                self._tls.incoming(self._sock.recv(_READ_BYTES))
                if self._tls.decrypt() or self._tls.ended:
                    return False
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def close(self) -> None:
        """Close the socket; safe to call twice."""
        if not self.closed:
            self.closed = True
            self._unwatch()
            self._sock.close()


async def _addresses(target: Target) -> list[tuple[int, Any]]:
    """Families and addresses of the host; one that is written as a number needs no resolver."""
    host, port, kind = target.host, target.port, socket.SOCK_STREAM
    try:
        # The resolver runs in a thread, which costs memory that a number need not.
        infos = socket.getaddrinfo(host, port, type=kind, flags=socket.AI_NUMERICHOST)
    except OSError:
        infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=kind)
    return [(int(family), address) for family, _, _, _, address in infos]


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _Tls:
    """TLS as a pure transformation between our reads and the bytes within them."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._in, self._out, server_hostname=host)
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
        self.headers_ns = 0
        self._closed = False

    @property
    def complete(self) -> bool:
        """Whether all of the answer has been read from the socket."""
        return self._reading.complete

    async def each(self, sink: Callable[[Read], bool]) -> None:
        """Hand the body bytes of every read to `sink`, to the answer's end or until it says True.

        Raises httpx.ReadError, ChunkError, OSError, and whatever `sink` raises.
        """
        reading = self._reading
        early = reading.early()
        if (early and sink(early)) or reading.complete:
            return

        def step(read: Read) -> bool:
            body = reading.take(read.data)
            enough = bool(body) and sink(Read(body, read.at_ns, read.kernel))
            return enough or reading.complete

        await self._connection.pump(step)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        parts: list[bytes] = []

        def one(read: Read) -> bool:
            parts.append(read.data)
            return True

        while not self._reading.complete:
            await self.each(one)
            yield b"".join(parts)
            parts.clear()

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

    h11 takes ten times as long per token event (docs/benchmarks.md), and a body is either chunks,
    a length, or all there is until the end.
    """

    def __init__(self) -> None:
        self._head = h11.Connection(h11.CLIENT)
        self._chunks: Chunks | None = None
        self._left: int | None = None
        self._keep_alive = True
        self._early: Read | None = None
        self.headers_ns = 0
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

    async def head(self, connection: Connection) -> h11.Response:
        """Read until the answer's head is complete. Raises h11.RemoteProtocolError."""
        while True:
            read = await connection.read()
            if not read.data:
                if connection.untouched:
                    raise ClosedBeforeAnswerError("closed by the server")
                raise httpx.ReadError("the connection ended before the answer's head")
            self._head.receive_data(read.data)
            event = self._head.next_event()
            while isinstance(event, h11.InformationalResponse):
                event = self._head.next_event()
            if isinstance(event, h11.Response):
                break
        self.headers_ns = read.at_ns
        self._frame(event)
        trailing, _ = self._head.trailing_data
        if trailing and (body := self.take(trailing)):
            self._early = Read(body, read.at_ns, read.kernel)
        return event

    def early(self) -> Read | None:
        """Body bytes that came in one read with the head; they are given once."""
        early, self._early = self._early, None
        return early

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

    def take(self, data: bytes) -> bytes:
        """Body bytes in what was read; nothing read means the end of the connection.

        Raises ChunkError, or httpx.ReadError when the connection ends too early.
        """
        if not data:
            return self._end_of_connection()
        if self._chunks is not None:
            data = self._chunks.feed(data)
            self.complete = self._chunks.complete
            self._keep_alive = self._keep_alive and not self._chunks.surplus
        elif self._left is not None:
            self._left -= len(data)
            self.complete = self._left <= 0
            self._keep_alive = self._keep_alive and self._left >= 0
        return data

    def _end_of_connection(self) -> bytes:
        self._keep_alive = False
        if self._chunks is not None or self._left is not None:
            raise httpx.ReadError("the connection ended in the middle of the answer")
        self.complete = True
        return b""


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

    def feed(self, data: bytes) -> bytes:
        """Body bytes in `data`. Raises ChunkError."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        elif not (self._left or self._after_data or self._trailer):
            # The usual read: one whole chunk.
            end = data.find(b"\r\n")
            digits = data[: max(0, end)]
            if 0 < end <= _SIZE_DIGITS and not digits.strip(_HEX) and data.endswith(b"\r\n"):
                size = int(digits, 16)
                if size and len(data) == end + size + 4:
                    return data[end + 2 : -2]
        return b"".join(self._parts(data))

    def _parts(self, data: bytes) -> Iterator[bytes]:
        at = 0
        while at < len(data):
            if self.complete:
                self.surplus = True
                return
            if self._left:
                part = data[at : at + self._left]
                yield part
                at += len(part)
                self._left -= len(part)
                self._after_data = self._left == 0
                continue
            end = data.find(b"\n", at)
            if end < 0:
                self._rest = data[at:]
                if len(self._rest) > _MAX_HEAD_BYTES:
                    raise ChunkError("a chunk's size line has no end")
                return
            self._line(data[at:end].rstrip(b"\r"))
            at = end + 1

    def _line(self, line: bytes) -> None:
        if self._after_data:
            if line:
                raise ChunkError("a chunk is longer than it said")
            self._after_data = False
        elif self._trailer:
            self.complete = not line
        else:
            self._left = _chunk_size(line.split(b";", 1)[0].strip())
            self._trailer = self._left == 0


def _chunk_size(digits: bytes) -> int:
    """A chunk's size. Raises ChunkError: `int` would take signs and underscores as well."""
    if not digits or digits.strip(_HEX) or len(digits) > _SIZE_DIGITS:
        raise ChunkError(f"{digits[:40]!r} is not a chunk's size")
    return int(digits, 16)


class _Pool:
    """Connections that wait for a request."""

    def __init__(self) -> None:
        self._idle: list[Connection] = []

    def keep(self, connection: Connection) -> None:
        connection.kept = True
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
    """HTTP/1.1 to one server, with kernel stamps.

    `response.extensions["answer"]` is an `Answer`; `request.extensions` gets `sent_ns` once the
    request is out, and `retried` when it had to be sent again.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._pool = _Pool()
        self.offset = WallOffset()

    async def open(self, connections: int) -> None:
        """Have this many connections open and waiting. Raises httpx.ConnectError."""
        missing = connections - self._pool.prune()
        for _ in range(missing):
            self._pool.keep(await self._connect())

    async def _connect(self) -> Connection:
        try:
            return await asyncio.wait_for(Connection.open(self._target, self.offset), _CONNECT_S)
        except asyncio.TimeoutError as error:
            raise httpx.ConnectError(f"no answer within {_CONNECT_S:g} s") from error
        except OSError as error:
            raise httpx.ConnectError(str(error) or type(error).__name__) from error

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send, and return once the answer's head is there."""
        body = await request.aread()
        connection = self._pool.take() or await self._connect()
        with contextlib.suppress(ClosedBeforeAnswerError):
            return await self._exchange(connection, request, body)
        # Nothing of the answer had come: the server had closed the kept connection (llama-server
        # does after 5 s or 100 requests), so asking once more cannot ask twice.
        request.extensions["retried"] = True
        return await self._exchange(await self._connect(), request, body)

    async def _exchange(
        self, connection: Connection, request: httpx.Request, body: bytes
    ) -> httpx.Response:
        reading = _Reading()
        answer = Answer(self._pool, connection, reading)
        try:
            # With the request, so that it is known even when no answer comes.
            request.extensions["sent_ns"] = await connection.send(reading.request(request, body))
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
        answer.headers_ns = reading.headers_ns
        return httpx.Response(
            head.status_code,
            headers=list(head.headers),
            stream=answer,
            extensions={"answer": answer},
        )

    async def aclose(self) -> None:
        """Close what waits."""
        self._pool.close()
