"""Bytes on real sockets: framing, stamps, kept connections, and nothing left behind."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import h11
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from raw_server import CLOSE, END, HANG, HEAD, RESET, RawServer, chunk, open_files, pieces

from edgeagent.load.transport import (
    Answer,
    ChunkError,
    Chunks,
    Connection,
    KernelStampTransport,
    Read,
    Target,
    WallOffset,
)

# ------------------------------------------------------------------------------------ chunks

BODY = st.lists(st.binary(min_size=1, max_size=40), max_size=6)
CUTS = st.lists(st.integers(0, 10_000), max_size=10)


def by_h11(coded: bytes) -> bytes:
    """The body as the reference implementation decodes it."""
    peer = h11.Connection(h11.CLIENT)
    peer.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
    peer.send(h11.EndOfMessage())
    peer.receive_data(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + coded)
    body = b""
    while not isinstance(event := peer.next_event(), h11.EndOfMessage):
        assert event is not h11.NEED_DATA
        if isinstance(event, h11.Data):
            body += event.data
    return body


@given(BODY, CUTS, st.sampled_from([b"", b";name=value"]), st.sampled_from([b"", b"X-Sum: 1\r\n"]))
def test_a_chunked_body_cut_anywhere_is_what_h11_makes_of_it(
    parts: list[bytes], cuts: list[int], extension: bytes, trailer: bytes
) -> None:
    coded = b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts)
    coded += b"0\r\n" + trailer + b"\r\n"
    chunks = Chunks()
    body = b"".join(chunks.feed(piece) for piece in pieces(coded, cuts))
    assert body == b"".join(parts) == by_h11(coded)
    assert chunks.complete
    assert not chunks.surplus


def test_bytes_after_the_last_chunk_are_surplus() -> None:
    chunks = Chunks()
    assert chunks.feed(b"1\r\nx\r\n0\r\n\r\nHTTP/1.1 200") == b"x"
    assert chunks.surplus


@pytest.mark.parametrize(
    "coded",
    [b"x\r\n", b"-1\r\n", b"1_0\r\n", b"\r\n", b"1\r\nab\r\n", b"f" * 17 + b"\r\n", b"+1\r\n"],
)
def test_what_is_no_chunk_is_refused(coded: bytes) -> None:
    with pytest.raises(ChunkError):
        Chunks().feed(coded)


def decoded(data: bytes, cuts: Sequence[int]) -> tuple[bytes, bool] | None:
    chunks = Chunks()
    try:
        return b"".join(chunks.feed(piece) for piece in pieces(data, cuts)), chunks.complete
    except ChunkError:
        return None


@given(st.binary(max_size=80) | st.text("0123a\r\n; ", max_size=40).map(str.encode), CUTS)
def test_arbitrary_bytes_are_decoded_or_refused_however_they_are_cut(
    data: bytes, cuts: list[int]
) -> None:
    assert decoded(data, cuts) == decoded(data, ())


# ------------------------------------------------------------------------------------ clocks


def offsets(*readings: tuple[int, int]) -> WallOffset:
    """An offset that reads these, after five calm readings of 1,000 ns for the start."""
    return WallOffset(iter([*[(1_000, 100)] * 5, *readings]).__next__)


def test_a_step_of_the_wall_clock_is_remembered_until_forgotten() -> None:
    offset = offsets((1_000, 100), (3_000_001_000, 100), (1_000, 100), *[(1_000, 100)] * 5)
    assert [offset.now() for _ in range(3)] == [1_000, 3_000_001_000, 1_000]
    assert offset.step_s == 3.0
    offset.forget()
    assert offset.step_s == 0.0


def test_an_interrupted_reading_of_the_clocks_is_no_step() -> None:
    offset = offsets((5_000_000, 4_000_000), (6_000_000, 5_000_000))
    assert offset.now() == 1_000
    assert offset.step_s == 0.0


def test_the_start_is_taken_from_the_calmest_reading() -> None:
    readings = [(9_000_000, 8_000_000), *[(1_000, 90)] * 4, (1_000, 100)]
    offset = WallOffset(iter(readings).__next__)
    offset.now()
    assert offset.step_s == 0.0


pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def nothing_left_open() -> Iterator[None]:
    before = open_files()
    yield
    assert open_files() <= before


async def post(
    transport: KernelStampTransport, body: bytes = b"{}"
) -> tuple[httpx.Response, list[Read]]:
    """Send a request, read the answer to its end."""
    request = httpx.Request("POST", "http://local/x", content=body)
    response = await transport.handle_async_request(request)
    answer: Answer = response.extensions["answer"]
    reads: list[Read] = []

    def more(read: Read) -> bool:
        reads.append(read)
        return False

    try:
        await answer.each(more)
    finally:
        await response.aclose()
    response.extensions["request"] = request
    return response, reads


def target(server: RawServer, tls: ssl.SSLContext | None = None) -> Target:
    return Target("127.0.0.1", int(server.url.rsplit(":", 1)[1]), tls)


@pytest.fixture
async def transports() -> AsyncIterator[list[KernelStampTransport]]:
    """Whatever a test puts here is closed after it."""
    made: list[KernelStampTransport] = []
    yield made
    for transport in made:
        await transport.aclose()


Made = list[KernelStampTransport]


def client(made: Made, to: Target) -> KernelStampTransport:
    made.append(KernelStampTransport(to))
    return made[-1]


async def test_stamps_are_the_kernels_and_lie_between_sending_and_now(transports: Made) -> None:
    async with RawServer([HEAD, chunk(b"1"), chunk(b"2"), END]) as server:
        begun_ns = time.monotonic_ns()
        response, reads = await post(client(transports, target(server)))
    assert [read.data for read in reads] == [b"data: 1\n\n", b"data: 2\n\n"]
    assert all(read.kernel for read in reads)
    stamps = [
        begun_ns,
        response.extensions["request"].extensions["sent_ns"],
        response.extensions["answer"].headers_ns,
        *(read.at_ns for read in reads),
        time.monotonic_ns(),
    ]
    assert stamps == sorted(stamps)


async def test_a_late_reader_still_learns_when_the_bytes_came() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = await Connection.open(Target(*listener.getsockname()), WallOffset())
        theirs, _ = listener.accept()
    with theirs:
        deadline_ns = time.monotonic_ns() + 20_000_000_000
        while await _late_ns(connection, theirs, 0.01) < 5_000_000:
            # A kernel that was stamping nothing begins to a moment after the first socket asks.
            assert time.monotonic_ns() < deadline_ns
        late_ns = await _late_ns(connection, theirs, 0.1)
    connection.close()
    assert late_ns > 50_000_000


async def _late_ns(connection: Connection, theirs: socket.socket, pause_s: float) -> int:
    """For how long a byte had been there when it was read after a pause, by its stamp."""
    theirs.sendall(b"x")
    time.sleep(pause_s)  # noqa: ASYNC251  # because the loop must be kept from reading
    woke_ns = time.monotonic_ns()
    return woke_ns - (await connection.read()).at_ns


async def test_a_socket_without_kernel_stamps_falls_back_to_the_monotonic_clock() -> None:
    ours, theirs = socket.socketpair()  # the kernel stamps no UNIX stream sockets
    ours.setblocking(False)
    with theirs:
        connection = Connection(ours, WallOffset())
        before_ns = time.monotonic_ns()
        theirs.sendall(b"x")
        read = await connection.read()
        connection.close()
    assert not read.kernel
    assert before_ns <= read.at_ns <= time.monotonic_ns()


async def test_head_and_first_event_in_one_read_are_both_seen(transports: Made) -> None:
    async with RawServer([HEAD + chunk(b"1") + END]) as server:
        response, reads = await post(client(transports, target(server)))
    assert [read.data for read in reads] == [b"data: 1\n\n"]
    assert reads[0].at_ns == response.extensions["answer"].headers_ns


@pytest.mark.parametrize(
    "answer",
    [
        [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab", b"cd"],
        [b"HTTP/1.1 200 OK\r\n\r\nab", b"cd", CLOSE],
        [b"HTTP/1.0 200 OK\r\n\r\nab", b"cd", CLOSE],
        [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabcd"],
        [b"HTTP/1.1 200 OK\r\nTransfer-", b"Encoding: chunked\r\n\r\n4", b"\r\nabcd\r\n0\r\n\r\n"],
    ],
    ids=["length", "until closed", "HTTP/1.0", "informational", "head cut"],
)
async def test_every_framing_of_a_body_is_read(answer: list[bytes | str], transports: Made) -> None:
    async with RawServer(answer) as server:
        _, reads = await post(client(transports, target(server)))
    assert b"".join(read.data for read in reads) == b"abcd"


async def test_httpx_reads_an_answer_like_any_other(transports: Made) -> None:
    async with RawServer([HEAD, chunk(b"1"), chunk(b"2"), END]) as server:
        transport = client(transports, target(server))
        async with httpx.AsyncClient(transport=transport, trust_env=False) as web:
            response = await web.post("http://local/x", json={})
    assert response.text == "data: 1\n\ndata: 2\n\n"


async def test_a_long_request_arrives_whole(transports: Made) -> None:
    body = b"x" * 8_000_000
    async with RawServer([HEAD, END]) as server:
        await post(client(transports, target(server)), body)
    assert server.requests[0].endswith(body)


# ------------------------------------------------------------------------------ connections


async def test_connections_are_opened_beforehand_and_used_again(transports: Made) -> None:
    async with RawServer([HEAD, END], [HEAD, END], [HEAD, END]) as server:
        transport = client(transports, target(server))
        await transport.open(1)
        for _ in range(3):
            await post(transport)
        assert server.connections == 1


@pytest.mark.parametrize("how", [CLOSE, RESET])
async def test_a_kept_connection_that_is_closed_under_the_request_is_tried_once_more(
    how: str, transports: Made
) -> None:
    async with RawServer([HEAD, END], [how], [HEAD, chunk(b"1"), END]) as server:
        transport = client(transports, target(server))
        await post(transport)
        response, reads = await post(transport)
        assert server.connections == 2
    assert [read.data for read in reads] == [b"data: 1\n\n"]
    assert response.extensions["request"].extensions["retried"] is True


async def test_a_fresh_connection_that_closes_is_not_tried_again(transports: Made) -> None:
    async with RawServer([CLOSE]) as server:
        with pytest.raises(httpx.ReadError):
            await post(client(transports, target(server)))


async def test_an_answer_that_has_begun_is_never_asked_for_again(transports: Made) -> None:
    async with RawServer([HEAD, END], [HEAD, chunk(b"1"), RESET]) as server:
        transport = client(transports, target(server))
        await post(transport)
        with pytest.raises((httpx.ReadError, OSError)):
            await post(transport)
        assert len(server.requests) == 2


async def test_a_connection_that_the_server_wants_closed_is_not_used_again(
    transports: Made,
) -> None:
    bye = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    async with RawServer([bye, CLOSE], [HEAD, END]) as server:
        transport = client(transports, target(server))
        await post(transport)
        response, _ = await post(transport)
        assert server.connections == 2
    assert "retried" not in response.extensions["request"].extensions


async def test_nobody_there_is_a_connect_error(transports: Made) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(httpx.ConnectError):
        await client(transports, Target("127.0.0.1", port)).open(1)


@pytest.mark.parametrize("garbage", [b"SSH-2.0-x\r\n\r\n", b"\x16\x03\x01\x00\x00", b"\x00" * 99])
async def test_what_is_not_http_is_a_protocol_error(garbage: bytes, transports: Made) -> None:
    async with RawServer([garbage, CLOSE]) as server:
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            await post(client(transports, target(server)))


async def test_a_cancelled_request_lets_go_of_its_connection(transports: Made) -> None:
    async with RawServer([HEAD, chunk(b"1"), HANG]) as server:
        posting = asyncio.ensure_future(post(client(transports, target(server))))
        await server.asked.wait()
        posting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await posting
        await asyncio.wait_for(server.gone.wait(), 5)


# -------------------------------------------------------------------------------------- TLS


async def test_tls_keeps_the_kernels_stamps_and_its_connections(
    certificate: Path, server_tls: ssl.SSLContext, transports: Made
) -> None:
    trusting = ssl.create_default_context(cafile=certificate)
    answers = [[HEAD, chunk(b"1"), chunk(b"2"), END]] * 2
    async with RawServer(*answers, tls=server_tls) as server:
        transport = client(transports, target(server, trusting))
        await transport.open(1)
        await asyncio.sleep(0.02)  # the server's session tickets come after the handshake
        for _ in range(2):
            _, reads = await post(transport)
            assert [read.data for read in reads] == [b"data: 1\n\n", b"data: 2\n\n"]
            assert all(read.kernel for read in reads)
        assert server.connections == 1


async def test_a_certificate_that_is_not_trusted_is_a_connect_error(
    server_tls: ssl.SSLContext, transports: Made
) -> None:
    async with RawServer([HEAD, END], tls=server_tls) as server:
        transport = client(transports, target(server, ssl.create_default_context()))
        with pytest.raises(httpx.ConnectError, match="certificate"):
            await transport.open(1)


async def test_tls_to_a_server_that_answers_in_plain_http_is_a_connect_error(
    transports: Made,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        to = Target("127.0.0.1", port, ssl.create_default_context())
        opening = asyncio.ensure_future(client(transports, to).open(1))
        await asyncio.sleep(0.02)  # until it has connected and greeted
        theirs, _ = listener.accept()
        with theirs:
            theirs.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            with pytest.raises(httpx.ConnectError):
                await opening
