"""What becomes of a request: every way in which an answer can go well, and badly."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_server import CLOSE, END, HANG, HEAD, RESET, RawServer, chunk, job, open_files

from edgeagent.clock import ManualClock, SystemClock
from edgeagent.core.model import ErrorKind, Limits, RequestTrace
from edgeagent.engines.scripted import Script, ScriptedServer
from edgeagent.engines.scripted_stream import Tempo
from edgeagent.errors import UsageError
from edgeagent.load.drive import Halt
from edgeagent.load.stream import LoadClient
from edgeagent.load.workload import Job
from edgeagent.ports import HttpRequest

pytestmark = pytest.mark.anyio

FAST = Script(slots=4, tempo=Tempo(ttft_s=0.02, itl_s=0.005))
PATHS = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
    "native": "/completion",
}


def request(route: str = "completions", /, **more: object) -> HttpRequest:
    prompt: dict[str, object] = {"prompt": list(range(10))}
    if route == "chat":
        prompt = {"messages": [{"role": "user", "content": "hello"}]}
    body = {
        **prompt,
        "max_tokens": 8,
        "stream": True,
        "timings_per_token": True,
        "stream_options": {"include_usage": True},
        **more,
    }
    return HttpRequest(PATHS[route], json.dumps(body).encode())


async def send(
    url: str,
    sent: HttpRequest | None = None,
    a_job: Job | None = None,
    limits: Limits | None = None,
) -> RequestTrace:
    async with LoadClient(url, SystemClock(), limits or Limits()) as client:
        return await client.send(sent or request(), a_job or job(8), 0, Halt())


async def scripted(sent: HttpRequest, a_job: Job | None = None) -> RequestTrace:
    async with ScriptedServer(FAST) as server:
        return await send(server.url, sent, a_job)


async def raw(*pieces: bytes | str, a_job: Job | None = None) -> RequestTrace:
    async with RawServer(pieces) as server:
        return await send(server.url, a_job=a_job or job(3))


def text(content: str, reason: str | None = None, **more: object) -> bytes:
    event = {"choices": [{"index": 0, "text": content, "finish_reason": reason}], **more}
    return json.dumps(event).encode()


# --------------------------------------------------------------------------------- it goes well


@pytest.mark.parametrize("route", PATHS)
async def test_a_whole_answer_is_ok_and_its_stamps_are_in_order(route: str) -> None:
    before_ns = time.monotonic_ns()
    trace = await scripted(request(route))
    assert trace.error is None, trace.error_detail
    assert (trace.tokens, trace.output_tokens, trace.finish_reason) == (8, 8, "length")
    assert trace.event_tokens == (1,) * 8
    assert (trace.token_source, trace.stamp_source, trace.late_stamps) == ("timings", "kernel", 0)
    assert (trace.http_status, trace.expected_tokens, trace.first_answer_event) == (200, 8, 0)
    assert trace.sent_ns is not None
    assert trace.headers_ns is not None
    assert trace.first_event_ns is not None
    assert trace.finished_ns is not None
    stamps = [
        *(before_ns, trace.sent_ns, trace.headers_ns, trace.first_event_ns),
        *(*trace.event_ns, trace.finished_ns, time.monotonic_ns()),
    ]
    assert stamps == sorted(stamps)


async def test_the_trace_names_its_request() -> None:
    a_job = job(8)
    trace = await scripted(request(), a_job)
    assert (trace.cell_id, trace.attempt, trace.index, trace.role) == ("c", "a", 0, "measured")


@pytest.mark.parametrize("route", PATHS)
@pytest.mark.parametrize(
    "words",
    [
        "role_first",
        "split_utf8",
        "crlf",
        "pings",
        "usage_in_finish",
        "bare_end",
        "stall",
        "crlf,pings",
    ],
)
async def test_what_is_unusual_but_whole_is_ok(words: str, route: str) -> None:
    trace = await scripted(request(route, x_fault=words, x_stall_s=0.05))
    assert (trace.error, trace.tokens) == (None, 8), trace.error_detail


async def test_a_role_event_is_an_event_and_not_a_token() -> None:
    trace = await scripted(request("chat", x_fault="role_first"))
    assert trace.first_event_ns is not None
    assert trace.first_event_ns < trace.event_ns[0]


async def test_reasoning_is_a_token_and_not_an_answer() -> None:
    trace = await scripted(request("chat", x_fault="reasoning_first", x_after=3))
    assert (trace.tokens, trace.first_answer_event) == (8, 3)


async def test_tool_calls_are_tokens_and_an_answer() -> None:
    trace = await scripted(request("chat", x_fault="tool_call"))
    assert (trace.tokens, trace.first_answer_event) == (8, 0)


async def test_events_of_several_tokens_are_counted_by_token() -> None:
    trace = await scripted(request(x_tokens_per_event=3))
    assert trace.event_tokens == (3, 3, 2)


async def test_two_token_events_of_one_read_are_marked_as_sharing_their_stamp() -> None:
    trace = await raw(HEAD, chunk(text("a"), text("b")), chunk(text("c", "length"), b"[DONE]"), END)
    assert trace.error is None, trace.error_detail
    assert trace.shared_events == (1,)
    assert trace.event_ns[0] == trace.event_ns[1] < trace.event_ns[2]


async def test_a_finish_event_in_the_read_of_a_token_shares_nothing() -> None:
    last = chunk(text("c"), text("", "length"), b"[DONE]")
    trace = await raw(HEAD, chunk(text("a")), chunk(text("b")), last, END)
    assert (trace.error, trace.shared_events) == (None, ())


async def test_a_vllm_stream_is_counted_by_its_usage() -> None:
    def usage(tokens: int) -> dict[str, int]:
        return {"prompt_tokens": 9, "completion_tokens": tokens}

    final = {"choices": [], "usage": usage(3)}
    trace = await raw(
        HEAD,
        chunk(text("ab", usage=usage(2))),
        chunk(text("", "stop", usage=usage(3))),
        chunk(json.dumps(final).encode(), b"[DONE]"),
        END,
    )
    assert trace.error is None, trace.error_detail
    assert (trace.event_tokens, trace.token_source) == ((2, 1), "usage")
    assert (trace.prompt_tokens, trace.output_tokens) == (9, 3)


async def test_cached_prompt_tokens_are_the_engines_own() -> None:
    async with (
        ScriptedServer(FAST) as server,
        LoadClient(server.url, SystemClock(), Limits()) as client,
    ):
        cached = [
            (await client.send(request(id_slot=0), job(8), 0, Halt())).cached_tokens
            for _ in range(2)
        ]
    assert cached == [0, 9]  # of 10, the last one is always evaluated anew


async def test_drafts_are_recorded() -> None:
    async with ScriptedServer(Script(speculative=True, tempo=FAST.tempo)) as server:
        trace = await send(server.url)
    assert (trace.draft_tokens, trace.draft_accepted) == (8, 4)


async def test_tokens_are_told_as_they_come() -> None:
    told: list[int] = []
    async with (
        ScriptedServer(FAST) as server,
        LoadClient(server.url, SystemClock(), Limits(), on_tokens=told.append) as client,
    ):
        await client.send(request(x_tokens_per_event=4), job(8), 0, Halt())
    assert told == [4, 4]


async def test_an_answer_is_whole_at_its_end_mark_whatever_the_connection_does_then() -> None:
    events = chunk(text("abc", "length", usage={"completion_tokens": 3}), b"[DONE]")
    for ending in ((CLOSE,), (RESET,), (b"zzz\r\n",)):
        trace = await raw(HEAD, events, *ending)
        assert trace.error is None, trace.error_detail


async def test_an_api_key_goes_with_every_request() -> None:
    async with ScriptedServer(Script(api_key="k", tempo=FAST.tempo)) as server:
        refused = await send(server.url)
        async with LoadClient(server.url, SystemClock(), Limits(), access=("k", None)) as client:
            trace = await client.send(request(), job(8), 0, Halt())
    assert (refused.error, trace.error) == ("http_4xx", None)


async def test_an_address_of_ipv6_is_one() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    async with ScriptedServer(Script(host="::1", tempo=FAST.tempo)) as server:
        assert (await send(server.url)).error is None


# ---------------------------------------------------------------------------------- it goes badly

FAULTS: dict[str, ErrorKind] = {
    "in_band_error": "in_band",
    "no_end": "no_end",
    "short": "short_output",
    "stop": "short_output",
    "reset": "reset",
    "cut": "reset",
    "garbage_event": "protocol",
    "http_500": "http_5xx",
    "http_401": "http_4xx",
    "html": "protocol",
    "garbage": "protocol",
}


@pytest.mark.parametrize("route", PATHS)
@pytest.mark.parametrize("fault", FAULTS)
async def test_every_fault_has_its_kind_and_a_sentence(fault: str, route: str) -> None:
    trace = await scripted(request(route, x_fault=fault, x_after=3))
    assert trace.error == FAULTS[fault]
    assert trace.error_detail
    assert "\n" not in trace.error_detail
    assert trace.sent_ns is not None


@pytest.mark.parametrize("fault", ["in_band_error", "no_end", "short", "reset", "cut"])
async def test_a_failed_answer_keeps_the_stamps_of_what_came(fault: str) -> None:
    trace = await scripted(request(x_fault=fault, x_after=3))
    assert (trace.tokens, trace.http_status) == (3, 200)


async def test_a_stream_without_its_end_mark_is_failed_not_ok() -> None:
    trace = await raw(HEAD, chunk(text("abc", "length", usage={"completion_tokens": 3})), END)
    assert trace.error == "no_end"


async def test_an_end_mark_without_a_finish_reason_is_failed_not_ok() -> None:
    trace = await raw(HEAD, chunk(text("a"), text("b"), text("c"), b"[DONE]"), END)
    assert trace.error == "no_end"


async def test_an_error_event_before_the_end_mark_is_failed_as_vllm_means_it() -> None:
    error = b'{"error":{"message":"EngineCore encountered an issue.","code":500}}'
    trace = await raw(HEAD, chunk(text("a")), chunk(error), chunk(b"[DONE]"), END)
    assert trace.error == "in_band"
    assert trace.error_detail == "EngineCore encountered an issue."


async def test_the_servers_own_message_explains_a_refusal() -> None:
    trace = await scripted(HttpRequest("/v1/completions", b'{"prompt": 3, "stream": true}'))
    assert trace.error == "http_4xx"
    assert trace.error_detail is not None
    assert "prompt is missing" in trace.error_detail


async def test_a_prompt_that_does_not_fit_is_refused_in_the_servers_words() -> None:
    trace = await scripted(request(prompt=list(range(5000))))
    assert trace.error == "http_4xx"
    assert "exceeds the available context size" in (trace.error_detail or "")


async def test_a_redirect_is_not_followed() -> None:
    away = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    assert (await raw(away)).error == "protocol"


async def test_nobody_listening_is_a_failed_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    async with LoadClient(url, SystemClock(), Limits()) as client:
        await client.open(2)  # says nothing: the requests will tell
    trace = await send(url)
    assert (trace.error, trace.sent_ns, trace.event_ns) == ("connect", None, ())


async def test_own_traffic_may_stop_by_itself() -> None:
    stopping = request(x_fault="stop", x_after=3)
    assert (await scripted(stopping, job(8, own=True))).error is None
    assert (await scripted(stopping, job(8, kind="openai"))).error is None
    assert (await scripted(stopping, job(8))).error == "short_output"
    cut_off = request(x_fault="short", x_after=3)  # finish reason "length"
    assert (await scripted(cut_off, job(8, own=True))).error == "short_output"


async def test_a_kept_connection_that_was_closed_is_marked_as_retried() -> None:
    good = [HEAD, chunk(text("abc", "length", usage={"completion_tokens": 3}), b"[DONE]"), END]
    async with (
        RawServer(good, [CLOSE], good) as server,
        LoadClient(server.url, SystemClock(), Limits()) as client,
    ):
        traces = [await client.send(request(), job(3), 0, Halt()) for _ in range(2)]
    assert [trace.error for trace in traces] == [None, None]
    assert [trace.retried for trace in traces] == [False, True]


async def test_a_server_with_a_certificate_of_its_own_is_measured_like_any_other(
    certificate: Path, server_tls: ssl.SSLContext
) -> None:
    good = [HEAD, chunk(text("abc", "length", usage={"completion_tokens": 3}), b"[DONE]"), END]
    async with (
        RawServer(good, tls=server_tls) as server,
        LoadClient(server.url, SystemClock(), Limits(), access=(None, str(certificate))) as client,
    ):
        trace = await client.send(request(), job(3), 0, Halt())
    assert trace.error is None, trace.error_detail
    assert trace.stamp_source == "kernel"


async def test_an_unreadable_certificate_is_explained(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--cacert"):
        LoadClient("https://127.0.0.1:1", SystemClock(), Limits(), access=(None, f"{tmp_path}/x"))


# ------------------------------------------------------------------------------- it does not end


async def held(limits: Limits, *pieces: bytes | str, advance_s: float) -> RequestTrace:
    """The trace of a request that is stuck after `pieces`, once the clock has been moved on."""
    clock = ManualClock(time.monotonic_ns())
    stuck = asyncio.Event()
    async with (
        RawServer([*pieces, HANG]) as server,
        LoadClient(server.url, clock, limits, on_tokens=lambda _: stuck.set()) as client,
    ):
        sending = asyncio.ensure_future(client.send(request(), job(3), 0, Halt()))
        await (stuck if len(pieces) > 1 else server.asked).wait()
        clock.advance(advance_s)
        trace = await sending
        await asyncio.wait_for(server.gone.wait(), 5)  # its connection is not kept
    return trace


LIMITS = Limits(request_s=1000, idle_s=100)


async def test_silence_between_tokens_ends_at_the_idle_limit() -> None:
    trace = await held(LIMITS, HEAD, chunk(text("a")), advance_s=101)
    assert (trace.error, trace.tokens) == ("idle", 1)


async def test_the_idle_limit_does_not_count_before_the_first_token() -> None:
    trace = await held(LIMITS, HEAD, advance_s=1001)
    assert (trace.error, trace.tokens) == ("deadline", 0)


async def test_a_request_without_any_answer_ends_at_its_deadline_and_was_sent() -> None:
    trace = await held(LIMITS, advance_s=1001)
    assert (trace.error, trace.headers_ns) == ("deadline", None)
    assert trace.sent_ns is not None


async def test_a_halt_ends_a_request_at_once_with_what_it_has_seen() -> None:
    halt = Halt()
    async with (
        ScriptedServer(FAST) as server,
        LoadClient(
            server.url,
            SystemClock(),
            Limits(),
            on_tokens=lambda _: halt.now("engine_died", "it died"),
        ) as client,
    ):
        trace = await client.send(request(x_fault="never_end"), job(8), 0, halt)
    assert (trace.error, trace.error_detail) == ("engine_died", "it died")
    assert trace.tokens >= 1


async def test_a_halt_before_the_request_ends_it_too() -> None:
    halt = Halt()
    halt.now("interrupted", "stopped")
    async with (
        ScriptedServer(FAST) as server,
        LoadClient(server.url, SystemClock(), Limits()) as client,
    ):
        trace = await client.send(request(), job(8), 0, halt)
    assert trace.error == "interrupted"


async def test_cancelling_is_passed_on_and_leaves_nothing_behind() -> None:
    before = len(asyncio.all_tasks())
    async with (
        RawServer([HEAD, HANG]) as server,
        LoadClient(server.url, SystemClock(), Limits()) as client,
    ):
        sending = asyncio.ensure_future(client.send(request(), job(3), 0, Halt()))
        await server.asked.wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await asyncio.wait_for(server.gone.wait(), 5)
    assert len(asyncio.all_tasks()) <= before


async def test_many_requests_at_once_are_served_and_their_connections_kept() -> None:
    async with (
        ScriptedServer(Script(slots=16, tempo=FAST.tempo)) as server,
        LoadClient(server.url, SystemClock(), Limits()) as client,
    ):
        await client.open(16)
        open_before = open_files()
        for _ in range(3):
            traces = await asyncio.gather(
                *(client.send(request(), job(8), 0, Halt()) for _ in range(16))
            )
            assert all(trace.ok for trace in traces)
        assert open_files() == open_before


# ------------------------------------------------------------------------------------- any bytes

WORDS = [
    *(b"HTTP/1.1 200 OK\r\n", b"\r\n", b"data: ", b"[DONE]", b"{}", b"\n\n", b"0\r\n\r\n"),
    *(b"Content-Length: 5\r\n", b"Content-Type: text/event-stream\r\n", HEAD),
    *(b"5\r\n", chunk(text("a")), chunk(text("a", "length"), b"[DONE]"), b"\xff\x00"),
]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(WORDS) | st.binary(max_size=8), max_size=6))
def test_whatever_a_server_says_the_outcome_is_a_trace(words: Sequence[bytes]) -> None:
    trace = asyncio.run(raw(b"".join(words), CLOSE))
    assert trace.error is None or trace.error_detail
