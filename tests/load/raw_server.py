"""A server that says exactly what a test tells it to, on a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import ssl
import struct
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from edgeagent.core.model import Cell, EngineConfig, EngineKind, EngineSpec, WorkloadSpec
from edgeagent.load.workload import Job

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"

CLOSE, RESET, HANG = "close", "reset", "hang"
"""What may stand in place of bytes: end the connection, break it off, say nothing more."""


def chunk(*payloads: bytes) -> bytes:
    """The payloads as events in one chunk."""
    data = b"".join(b"data: " + payload + b"\n\n" for payload in payloads)
    return b"%x\r\n%b\r\n" % (len(data), data)


def pieces(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    """The data cut at these places, wherever they fall."""
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(places)]


def open_files() -> int:
    """How many files and sockets this process holds."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


class RawServer:
    """Gives its n-th request its n-th answer: pieces, each of which is a write of its own."""

    def __init__(self, *answers: Sequence[bytes | str], tls: ssl.SSLContext | None = None) -> None:
        self._answers = list(answers)
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.requests: list[bytes] = []
        self.connections = 0
        self.asked = asyncio.Event()
        """Set when a request has come."""
        self.gone = asyncio.Event()
        """Set when a client has closed a connection."""

    async def __aenter__(self) -> RawServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        assert self._server is not None
        scheme = "https" if self._tls else "http"
        return f"{scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.append(task)
        try:
            with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
                while await self._answer(reader, writer):
                    pass
        finally:
            self.gone.set()
            writer.transport.abort() if self._tls else writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        self.requests.append(head + await reader.readexactly(length))
        self.asked.set()
        for piece in self._answers.pop(0):
            if piece == HANG:
                await reader.read()
            if piece == RESET:
                sock = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
            if isinstance(piece, str):
                return False
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.005)  # so that the next piece is a read of its own
        return True


def job(output_tokens: int = 3, *, own: bool = False, kind: EngineKind = "fake") -> Job:
    """A request that wants so many tokens; `own` is the operator's own traffic."""
    prompts = ({"prompt": "hello"},) if own else ()
    work = WorkloadSpec(output_tokens=output_tokens, prompts=prompts)
    config = EngineConfig(EngineSpec("e", kind), 1, 1024, "off", "off")
    return Job(Cell("c", config, 1, 0, work, 1), "a", "measured", 0, output_tokens)
