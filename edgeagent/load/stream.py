"""What became of one request?

`LoadClient.send` writes a request and follows its answer to the end. Whatever the server does,
the outcome is a `RequestTrace`: ok only with status 2xx, no error in the stream, a finish reason,
the stream's proper end and the tokens that were asked for. Everything else is a failure with a
kind, and keeps the stamps of what did arrive.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from array import array
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx

from edgeagent.core.model import ErrorKind, Limits, RequestTrace
from edgeagent.errors import UsageError
from edgeagent.load.events import StreamMeter, one_line
from edgeagent.load.sse import SseOverflowError, SseParser
from edgeagent.load.transport import (
    Answer,
    ChunkError,
    KernelStampTransport,
    Read,
    Target,
)
from edgeagent.ports import Clock, HttpRequest

if TYPE_CHECKING:
    from edgeagent.load.drive import Halt
    from edgeagent.load.workload import Job

_SUCCESS = range(200, 300)
_CLIENT_ERRORS = range(400, 500)
_SERVER_ERRORS = range(500, 600)
_MAX_ERROR_BODY = 64 * 1024
_END_S = 1.0
"""How long the end of the HTTP answer may follow the end mark of the stream."""
_WATCH_S = 0.5
"""How often limits are looked at: far below any of them, and cheap."""


class _FailedError(Exception):
    """The request failed, in this way."""

    def __init__(self, kind: ErrorKind, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = one_line(detail)


@dataclass
class _Recording:
    """What has been seen of an answer so far."""

    meter: StreamMeter = field(default_factory=StreamMeter)
    event_ns: array[int] = field(default_factory=lambda: array("q"))
    event_tokens: array[int] = field(default_factory=lambda: array("i"))
    shared: list[int] = field(default_factory=list)
    first_event_ns: int | None = None
    first_answer: int | None = None
    finished_ns: int | None = None
    request: MutableMapping[str, Any] = field(default_factory=dict)
    """Where the transport notes `sent_ns` and `retried`, whatever becomes of the answer."""
    headers_ns: int | None = None
    status: int | None = None
    late_stamps: int = 0
    kernel_stamps: int = 0
    done: bool = False
    last_progress_ns: int = 0

    @property
    def sent_ns(self) -> int | None:
        """When the request's last byte was written."""
        sent_ns: int | None = self.request.get("sent_ns")
        return sent_ns

    @property
    def only_late_stamps(self) -> bool:
        """Whether the kernel stamped nothing: then it does not, here."""
        return self.late_stamps > 0 and self.kernel_stamps == 0

    def add(self, payload: bytes, read: Read, *, first_of_read: bool) -> int:
        """Take one event; how many tokens it carried. Raises _FailedError."""
        seen = self.meter.read(payload)
        if seen.error is not None:
            raise _FailedError("in_band", seen.error)
        if seen.malformed is not None:
            raise _FailedError("protocol", seen.malformed)
        if self.first_event_ns is None:
            self.first_event_ns = read.at_ns
        if seen.done:
            self.done = True
            self.finished_ns = read.at_ns
        elif self.meter.finish_reason is not None and self.finished_ns is None:
            self.finished_ns = read.at_ns
        if seen.tokens:
            if not first_of_read:
                self.shared.append(len(self.event_ns))
            if seen.channel != "reasoning" and self.first_answer is None:
                self.first_answer = len(self.event_ns)
            self.event_ns.append(read.at_ns)
            self.event_tokens.append(seen.tokens)
            self.last_progress_ns = read.at_ns
            if read.kernel:
                self.kernel_stamps += 1
            else:
                self.late_stamps += 1
        return seen.tokens


class LoadClient:
    """Connections to one server, kept open; an async context manager."""

    def __init__(
        self,
        url: str,
        clock: Clock,
        limits: Limits,
        *,
        access: tuple[str | None, str | None] = (None, None),
        on_tokens: Callable[[int], None] | None = None,
    ) -> None:
        """`access` is the API key and the path of a certificate authority."""
        api_key, cacert = access
        self._clock = clock
        self._limits = limits
        self._on_tokens = on_tokens
        self._transport = KernelStampTransport(_target(url, cacert))
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        # A proxy that packs the stream would hold tokens back.
        headers["accept-encoding"] = "identity"
        if api_key:
            headers["authorization"] = f"Bearer {api_key}"
        self._client = httpx.AsyncClient(
            base_url=url,
            transport=self._transport,
            headers=headers,
            timeout=None,  # noqa: S113  # because `_until_done` keeps the limits
            trust_env=False,
        )

    async def __aenter__(self) -> LoadClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.aclose()

    async def open(self, connections: int) -> None:
        """Open connections before the clock runs; a server that is away shows with the requests."""
        with contextlib.suppress(httpx.ConnectError):
            await self._transport.open(connections)

    @property
    def clock_step_s(self) -> float:
        """Largest change of the wall clock against the monotonic clock between two reads."""
        return self._transport.offset.step_s

    def forget_clock_step(self) -> None:
        """Look for changes anew."""
        self._transport.offset.forget()

    async def send(
        self, request: HttpRequest, job: Job, scheduled_ns: int, halt: Halt
    ) -> RequestTrace:
        """Send one request and follow it to its end."""
        recording = _Recording()
        following = asyncio.ensure_future(self._follow(request, recording))
        try:
            failure = await self._until_done(following, recording, halt)
        finally:
            following.cancel()
            await asyncio.wait({following})
        if failure is None:
            # A _FailedError says how it failed; anything else is our bug and is raised.
            try:
                following.result()
            except _FailedError as error:
                failure = error
            else:
                failure = _verdict(recording, job)
        return _trace(recording, job, scheduled_ns, failure)

    async def _until_done(
        self, following: asyncio.Future[None], recording: _Recording, halt: Halt
    ) -> _FailedError | None:
        """Wait for the answer's end within the limits; which of them ended it, if one did."""
        begun_ns = self._clock.now_ns()
        both = {following, halt.future()}
        while True:
            await asyncio.wait(both, timeout=_WATCH_S, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                return None
            if (failure := self._overdue(begun_ns, recording, halt)) is not None:
                return failure

    def _overdue(self, begun_ns: int, recording: _Recording, halt: Halt) -> _FailedError | None:
        if halt.reason is not None:
            return _FailedError(halt.reason, halt.detail or halt.reason)
        limits = self._limits
        now_ns = self._clock.now_ns()
        begun_ns = recording.sent_ns or begun_ns
        if now_ns - begun_ns > limits.request_s * 1e9:
            return _FailedError("deadline", f"not done {limits.request_s:g} s after it was sent")
        silent_since_ns = recording.last_progress_ns
        if silent_since_ns and now_ns - silent_since_ns > limits.idle_s * 1e9:
            return _FailedError("idle", f"no token for {limits.idle_s:g} s")
        return None

    async def _follow(self, request: HttpRequest, recording: _Recording) -> None:
        """Send and read to the end. Raises _FailedError."""
        built = self._client.build_request(
            "POST", request.path, content=request.body, headers=list(request.headers)
        )
        recording.request = built.extensions
        try:
            response = await self._client.send(built, stream=True)
        except httpx.ConnectError as error:
            raise _FailedError("connect", f"no connection: {error}") from error
        except httpx.RemoteProtocolError as error:
            raise _FailedError("protocol", f"the answer is not HTTP: {error}") from error
        except httpx.HTTPError as error:
            raise _FailedError("reset", f"the connection broke: {error}") from error
        answer: Answer = response.extensions["answer"]
        recording.headers_ns = answer.headers_ns
        recording.status = response.status_code
        try:
            await self._body(response, answer, recording)
        except (httpx.ReadError, OSError) as error:
            raise _FailedError("reset", f"the connection broke: {error}") from error
        except (SseOverflowError, ChunkError) as error:
            raise _FailedError("protocol", str(error)) from error
        finally:
            await response.aclose()

    async def _body(self, response: httpx.Response, answer: Answer, recording: _Recording) -> None:
        if response.status_code not in _SUCCESS:
            raise await _refusal(response.status_code, answer)
        kind = response.headers.get("content-type", "")
        if "event-stream" not in kind:
            text = await _text(answer)
            raise _FailedError("protocol", f"answered {kind or 'nothing'}, not a stream: {text}")
        parser = SseParser()

        def arrived(read: Read) -> bool:
            self._events(parser.feed(read.data), read, recording)
            return recording.done

        await answer.each(arrived)
        if not recording.done:
            now = Read(b"", self._clock.now_ns(), kernel=False)
            self._events(parser.close(), now, recording)
        await _let_it_end(answer)

    def _events(self, payloads: list[bytes], read: Read, recording: _Recording) -> None:
        tokens = 0
        carried = False
        for payload in payloads:
            new = recording.add(payload, read, first_of_read=not carried)
            carried = carried or new > 0
            tokens += new
        if tokens and self._on_tokens is not None:
            self._on_tokens(tokens)


def _verdict(recording: _Recording, job: Job) -> _FailedError | None:
    """Whether an answer that ended by itself is the one that was asked for."""
    meter = recording.meter
    if meter.finish_reason is None:
        return _FailedError("no_end", "the stream ended without a finish reason")
    if not recording.done:
        return _FailedError("no_end", "the stream ended without its end mark")
    tokens = sum(recording.event_tokens)
    counted = tokens if meter.output_tokens is None else meter.output_tokens
    # Own traffic may stop by itself, and so may a server that has no word for "ignore the end":
    # elsewhere generated prompts ask for exactly so many tokens.
    stops = bool(job.cell.workload.prompts) or job.cell.config.engine.kind == "openai"
    may_stop = stops and meter.finish_reason == "stop"
    if counted < job.output_tokens and not may_stop:
        return _FailedError(
            "short_output",
            f"{counted} of {job.output_tokens} tokens, finish reason {meter.finish_reason}",
        )
    return None


def _trace(
    recording: _Recording, job: Job, scheduled_ns: int, failure: _FailedError | None
) -> RequestTrace:
    meter = recording.meter
    return RequestTrace(
        cell_id=job.cell.cell_id,
        attempt=job.attempt,
        index=job.index,
        role=job.role,
        scheduled_ns=scheduled_ns,
        sent_ns=recording.sent_ns,
        headers_ns=recording.headers_ns,
        first_event_ns=recording.first_event_ns,
        event_ns=tuple(recording.event_ns),
        event_tokens=tuple(recording.event_tokens),
        shared_events=tuple(recording.shared),
        first_answer_event=recording.first_answer,
        finished_ns=recording.finished_ns,
        error=failure.kind if failure else None,
        error_detail=failure.detail if failure else None,
        http_status=recording.status,
        finish_reason=meter.finish_reason,
        expected_tokens=job.output_tokens,
        prompt_tokens=meter.prompt_tokens,
        cached_tokens=meter.cached_tokens,
        output_tokens=meter.output_tokens,
        token_source=meter.source,
        stamp_source="monotonic" if recording.only_late_stamps else "kernel",
        late_stamps=0 if recording.only_late_stamps else recording.late_stamps,
        draft_tokens=meter.draft_tokens,
        draft_accepted=meter.draft_accepted,
        wave=job.wave,
        retried="retried" in recording.request,
    )


async def _refusal(status: int, answer: Answer) -> _FailedError:
    text = await _text(answer)
    with contextlib.suppress(ValueError, RecursionError):
        body = json.loads(text)
        error = body.get("error", body) if isinstance(body, dict) else body
        message = error.get("message") if isinstance(error, dict) else error
        if isinstance(message, str) and message:
            text = message
    kind: ErrorKind = "protocol"  # a redirect or worse: nothing that a server of ours would say
    if status in _CLIENT_ERRORS:
        kind = "http_4xx"
    elif status in _SERVER_ERRORS:
        kind = "http_5xx"
    return _FailedError(kind, f"answered {status}: {text}")


async def _text(answer: Answer) -> str:
    """The beginning of a body that is not a stream, as text."""
    data = bytearray()

    def more(read: Read) -> bool:
        data.extend(read.data)
        return len(data) >= _MAX_ERROR_BODY

    await answer.each(more)
    return data.decode("utf-8", "replace")


async def _let_it_end(answer: Answer) -> None:
    """Read what follows the stream's end mark, so that the connection can be used again.

    The answer is whole by now: a connection that breaks or stays open costs itself, nothing else.
    """
    if not answer.complete:
        with contextlib.suppress(httpx.ReadError, OSError, ChunkError, asyncio.TimeoutError):
            await asyncio.wait_for(answer.each(lambda _: False), _END_S)


def _target(url: str, cacert: str | None) -> Target:
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    if not secure:
        return Target(parts.hostname or "", port)
    import ssl  # because plain HTTP is the rule here

    try:
        context = ssl.create_default_context(cafile=cacert)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"--cacert {cacert} cannot be used ({error}): give a PEM file") from error
    return Target(parts.hostname or "", port, context)
