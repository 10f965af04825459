"""Servers that somebody else started: recognised, asked in their own form, left alone."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from edgeagent.core.model import EngineConfig, EngineKind, EngineSpec, ServerFacts
from edgeagent.engines.attached import AttachedEngine, AttachedServer, detect
from edgeagent.engines.process import free_port
from edgeagent.engines.rest import Rest
from edgeagent.engines.scripted import ScriptedServer, script_of
from edgeagent.errors import EngineError, UnreachableError, UsageError
from edgeagent.ports import Ask, HttpRequest, Prompt

pytestmark = pytest.mark.anyio

Answers = Mapping[str, tuple[int, str, str]]
"""Status, content type and body by path."""

KINDS: tuple[EngineKind, ...] = ("llamacpp", "vllm", "openai")
NOWHERE = Path("/nonexistent/log")
JSON = "application/json"
MODELS = json.dumps({"data": [{"id": "plant-model", "max_model_len": 4096}]})
VLLM: Answers = {
    "/version": (200, JSON, '{"version": "0.32.0"}'),
    "/v1/models": (200, JSON, MODELS),
    "/tokenize": (200, JSON, '{"tokens": [5, 6]}'),
}
OTHER: Answers = {"/v1/models": (200, JSON, '{"data": [{"id": "some"}]}')}
HTML: Answers = {"*": (200, "text/html; charset=utf-8", "<html>hello</html>")}


@asynccontextmanager
async def served(answers: Answers) -> AsyncIterator[str]:
    """A server with fixed answers, its URL; 404 for what it does not know."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split(b" ", 2)[1].decode()
                length = next(
                    (
                        int(line.split(b":")[1])
                        for line in head.split(b"\r\n")
                        if line.lower().startswith(b"content-length:")
                    ),
                    0,
                )
                await reader.readexactly(length)
                found = answers.get(path) or answers.get("*") or (404, "text/plain", "no")
                status, kind, text = found
                body = text.encode()
                writer.write(
                    f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\n"
                    f"content-length: {len(body)}\r\n\r\n".encode()
                    + body
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


@asynccontextmanager
async def scripted(*arguments: str) -> AsyncIterator[str]:
    async with ScriptedServer(script_of(["--port", "0", *arguments])) as server:
        yield server.url


def spec_of(url: str, kind: EngineKind = "openai") -> EngineSpec:
    return EngineSpec("there", kind, url=url)


def config_of(spec: EngineSpec, slots: int = 2, context: int = 256) -> EngineConfig:
    return EngineConfig(spec, slots, context, "on", "off")


async def found(url: str, key: str | None = None) -> tuple[EngineKind, ServerFacts]:
    return await detect(spec_of(url), key, None, asked=None)


# ------------------------------------------------------------------------- recognised


async def test_a_llama_server_is_recognised_and_its_slots_are_read() -> None:
    async with scripted("-np", "3", "-c", "3072") as url:
        kind, facts = await found(url)
    assert kind == "llamacpp"
    assert (facts.slots, facts.context_per_slot) == (3, 1024)
    assert facts.version


async def test_vllm_is_recognised_by_its_version() -> None:
    async with served(VLLM) as url:
        kind, facts = await found(url)
    assert kind == "vllm"
    assert facts == ServerFacts(context_per_slot=4096, version="0.32.0", model="plant-model")


async def test_anything_with_a_list_of_models_is_some_openai_compatible_server() -> None:
    async with served(OTHER) as url:
        kind, facts = await found(url)
    assert kind == "openai"
    assert facts == ServerFacts(model="some")


async def test_a_kind_that_was_named_is_not_guessed() -> None:
    async with served(VLLM) as url:
        kind, facts = await detect(spec_of(url), None, None, asked="openai")
    assert kind == "openai"
    assert facts.version is None


# ------------------------------------------------------------------------- refused


async def test_html_is_not_a_server_of_ours() -> None:
    async with served(HTML) as url:
        with pytest.raises(UnreachableError, match="answered 200 with text/html, not a list"):
            await found(url)


async def test_an_empty_server_is_not_one_of_ours() -> None:
    async with served({}) as url:
        with pytest.raises(UnreachableError, match="answered 404"):
            await found(url)


@pytest.mark.parametrize("body", ["[]", '{"data": []}', '{"data": [1]}', "null", "7", "{"])
async def test_a_list_of_models_without_a_model_is_refused(body: str) -> None:
    async with served({"/v1/models": (200, JSON, body)}) as url:
        with pytest.raises(UnreachableError, match="not a list of models"):
            await found(url)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_server_that_wants_a_key_names_the_option(status: int) -> None:
    async with served({"*": (status, JSON, "{}")}) as url:
        with pytest.raises(UnreachableError, match=f"answered {status}.*--api-key-file"):
            await found(url)


async def test_a_wrong_key_is_refused_and_the_right_one_is_not() -> None:
    async with scripted("--api-key", "secret") as url:
        with pytest.raises(UnreachableError, match="--api-key-file"):
            await found(url, "wrong")
        kind, _ = await found(url, "secret")
    assert kind == "llamacpp"


async def test_nobody_at_the_address_is_told() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(UnreachableError, match=f"{url} was asked .* did not answer"):
        await found(url)


async def test_a_server_that_hangs_up_is_told() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        with pytest.raises(UnreachableError, match="did not answer"):
            await found(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")


async def test_a_server_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with Rest(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.1) as rest:
            with pytest.raises(UnreachableError, match="did not answer"):
                await rest.get("/props")


@pytest.mark.parametrize("url", ["http://", "http://[::1", "nonsense", "http://a b/", "ftp://x"])
async def test_an_address_that_is_none_is_told(url: str) -> None:
    with pytest.raises((UnreachableError, UsageError)):
        await found(url)


async def test_a_missing_certificate_file_is_told() -> None:
    with pytest.raises(UsageError, match="--cacert /none"):
        await detect(spec_of("https://127.0.0.1:1"), None, "/none", asked=None)


# ------------------------------------------------------------------------- attached


async def test_attaching_leaves_the_server_alone() -> None:
    async with scripted("-np", "2", "-c", "512") as url:
        spec = spec_of(url, "llamacpp")
        _, facts = await found(url)
        engine = AttachedEngine(spec, facts)
        server = await engine.start(config_of(spec), NOWHERE, 1)
        assert (server.argv, server.pids(), server.ready_s, server.death()) == ((), (), None, None)
        assert server.facts.details["differences"] == []
        assert await server.tokenize("pump running")
        engine.kill("no room")
        assert (engine.pids(), server.death()) == ((), None)
        await engine.stop()
        await engine.stop()
        assert (await found(url))[0] == "llamacpp"


async def test_too_small_a_context_is_refused() -> None:
    async with served(VLLM) as url:
        spec = spec_of(url, "vllm")
        engine = AttachedEngine(spec, ServerFacts())
        with pytest.raises(EngineError, match="offers 4096 tokens per request, this sweep needs"):
            await engine.start(config_of(spec, context=5000), NOWHERE, 1)
        await engine.stop()


async def test_fewer_slots_than_the_sweep_uses_are_a_difference() -> None:
    async with scripted("-np", "2", "-c", "2048") as url:
        spec = spec_of(url, "llamacpp")
        engine = AttachedEngine(spec, ServerFacts())
        server = await engine.start(config_of(spec, slots=4), NOWHERE, 1)
        await engine.stop()
    assert server.facts.details["differences"] == ["it has 2 slots, the sweep goes up to 4"]


def test_an_attached_server_has_no_program() -> None:
    spec = spec_of("http://127.0.0.1:1", "vllm")
    identity = AttachedEngine(spec, ServerFacts(version="1", model="m")).identify(config_of(spec))
    assert identity.attached
    assert (identity.binary_sha256, identity.argv, identity.version) == (None, (), "1")
    assert identity.model is not None
    assert identity.model.reason
    assert identity.reason


@pytest.mark.parametrize(
    ("kind", "expected"), [("vllm", (5, 6)), ("openai", None), ("llamacpp", (5, 6))]
)
async def test_tokens_are_counted_where_the_kind_can(
    kind: EngineKind, expected: tuple[int, ...] | None
) -> None:
    async with served(VLLM) as url, Rest(url) as rest:
        server = AttachedServer(kind, rest, ServerFacts(model="plant-model"))
        assert await server.tokenize("x") == expected


async def test_a_server_without_the_small_endpoints_has_none() -> None:
    for kind in KINDS:
        async with served({}) as url, Rest(url) as rest:
            server = AttachedServer(kind, rest, ServerFacts(slots=2))
            assert await server.tokenize("x") is None
            assert await server.reset_cache() is False
            assert await server.counters() == {}


# ------------------------------------------------------------------------- on the wire


def wire(kind: EngineKind, ask: Ask) -> tuple[str, dict[str, object]]:
    server = AttachedServer(kind, Rest("http://127.0.0.1:1"), ServerFacts(model="m"))
    wanted: HttpRequest = server.request(ask)
    return wanted.path, json.loads(wanted.body)


async def test_vllm_counts_on_every_event_and_takes_token_ids() -> None:
    path, sent = wire("vllm", Ask(Prompt(token_ids=(1, 2)), 5, use_cache=True))
    assert path == "/v1/completions"
    assert sent == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "max_tokens": 5,
        "temperature": 0.0,
        "seed": 1,
        "ignore_eos": True,
        "prompt": [1, 2],
    }


async def test_vllm_gets_a_cache_of_its_own_for_each_cold_request() -> None:
    ask = Ask(Prompt(text="x"), 5, use_cache=False)
    salts = {wire("vllm", ask)[1]["cache_salt"] for _ in range(3)}
    assert len(salts) == 3


async def test_some_other_server_gets_only_what_the_interface_defines() -> None:
    path, sent = wire("openai", Ask(Prompt(text="hello"), 5, use_cache=False, slot=3))
    assert path == "/v1/chat/completions"
    assert sent == {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 5,
        "temperature": 0.0,
    }


@pytest.mark.parametrize("kind", KINDS)
async def test_messages_go_to_the_chat_route(kind: EngineKind) -> None:
    messages = ({"role": "user", "content": "x"},)
    path, sent = wire(kind, Ask(Prompt(messages=messages), 5, use_cache=True))
    assert path == "/v1/chat/completions"
    assert sent["messages"] == list(messages)
