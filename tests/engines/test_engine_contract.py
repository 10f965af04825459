"""What every engine behind the port keeps to, the scripted one and the real one alike."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
from engine_places import (
    MODEL,
    SERVER,
    eventually,
    exists,
    living,
    llama,
    place,
    real_config,
    scripted_vllm,
)

from edgeagent.core.model import EngineConfig, EngineSpec
from edgeagent.engines.fake import FakeEngine
from edgeagent.errors import GuardError
from edgeagent.ports import Ask, Engine, Prompt, Server

pytestmark = pytest.mark.anyio

PROMPT = "Pump P-101 discharge pressure 4.2 bar, temperature 61 C, status running. " * 6


@dataclass
class Bench:
    engine: Engine
    config: EngineConfig
    log: Path
    calls_itself: str = "llama-server"
    reused: int = 99
    """Of a prompt of 100 tokens that comes again: all but the last one, which has to be evaluated
    to predict the next."""


# The real vLLM takes half a minute for each start: test_real_vllm.py looks at it in one.
@pytest.fixture(params=["fake", "vllm", pytest.param("real", marks=pytest.mark.real_engine)])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    log = tmp_path / "engine.log"
    if request.param == "fake":
        spec = EngineSpec("fake", "fake", args=("--ttft-ms", "5", "--itl-ms", "1"))
        made = Bench(FakeEngine(spec), EngineConfig(spec, 2, 256, "on", "off", "cpu"), log)
    elif request.param == "vllm":
        # Whole blocks only, and not the one that holds the last token: 6 of 16 tokens.
        config = EngineConfig(scripted_vllm().spec, 2, 256, "on", "off", "cpu")
        made = Bench(scripted_vllm().engine, config, log, "vLLM", reused=96)
    else:
        command = (place(SERVER),)
        made = Bench(llama(command, place(MODEL)), real_config(command), log)
    try:
        yield made
    finally:
        await made.engine.stop()


async def started(bench: Bench, config: EngineConfig | None = None) -> Server:
    return await bench.engine.start(config or bench.config, bench.log, 60)


@dataclass(frozen=True)
class Streamed:
    """What a stream said at its end."""

    done: bool
    finish: str | None
    usage: Mapping[str, object]
    timings: Mapping[str, object]

    @property
    def cached(self) -> object:
        """Prompt tokens that were there, by llama-server's own timings or by vLLM's usage."""
        if self.timings:
            return self.timings.get("cache_n")
        return _object(self.usage.get("prompt_tokens_details")).get("cached_tokens")


async def stream(server: Server, ask: Ask) -> Streamed:
    wanted = server.request(ask)
    headers = {"content-type": "application/json", **dict(wanted.headers)}
    events: list[dict[str, object]] = []
    done = False
    async with (
        httpx.AsyncClient(base_url=server.url, timeout=60, trust_env=False) as client,
        client.stream("POST", wanted.path, content=wanted.body, headers=headers) as answer,
    ):
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            data = line.removeprefix("data: ")
            if data == "[DONE]":
                done = True
            elif line.startswith("data: "):
                events.append(json.loads(data))
    usage: dict[str, object] = {}
    timings: dict[str, object] = {}
    finish: str | None = None
    for event in events:
        assert "error" not in event
        usage = _object(event.get("usage")) or usage
        timings = _object(event.get("timings")) or timings
        choices = event.get("choices")
        if isinstance(choices, list) and choices:
            finish = choices[0].get("finish_reason") or finish
    return Streamed(done, finish, usage, timings)


def _object(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


async def ask_for(server: Server, tokens: int = 5, slot: int | None = None) -> Ask:
    ids = await server.tokenize(PROMPT)
    assert ids is not None
    return Ask(Prompt(token_ids=ids[:100]), max_tokens=tokens, use_cache=True, slot=slot)


def port_of(server: Server) -> int:
    return int(server.url.rpartition(":")[2])


async def test_a_started_engine_is_ready_and_is_what_was_asked_for(bench: Bench) -> None:
    server = await started(bench)
    async with httpx.AsyncClient(base_url=server.url, trust_env=False) as client:
        assert (await client.get("/health")).status_code == 200
    assert server.url.startswith("http://127.0.0.1:")
    assert server.facts.slots == 2
    assert server.facts.context_per_slot == 256
    assert server.facts.prefix_cache is True
    assert server.facts.version
    assert not server.facts.speculative
    assert not server.facts.details["differences"]
    assert not server.facts.details["flag_notes"]
    assert server.ready_s is not None
    assert server.ready_s > 0
    assert "--port" in server.argv
    assert server.death() is None


async def test_the_cache_setting_of_the_launch_is_told(bench: Bench) -> None:
    server = await started(bench, replace(bench.config, prefix_cache="off"))
    assert server.facts.prefix_cache is False
    # llama-server lets a request's own `cache_prompt` overrule the launch, so both have to say it.
    ask = replace(await ask_for(server, slot=0), use_cache=False)
    await stream(server, ask)
    assert (await stream(server, ask)).cached == 0


async def test_text_becomes_the_same_token_ids_each_time(bench: Bench) -> None:
    server = await started(bench)
    ids = await server.tokenize(PROMPT)
    assert ids
    assert ids == await server.tokenize(PROMPT)
    assert all(isinstance(token, int) for token in ids)


async def test_a_stream_ends_properly_with_the_tokens_asked_for(bench: Bench) -> None:
    server = await started(bench)
    seen = await stream(server, await ask_for(server, tokens=7))
    assert seen.done
    assert seen.finish == "length"
    assert seen.usage["completion_tokens"] == 7
    assert seen.usage["prompt_tokens"] == 100
    assert seen.timings.get("predicted_n", 7) == 7


async def test_messages_are_answered_too(bench: Bench) -> None:
    server = await started(bench)
    prompt = Prompt(messages=({"role": "user", "content": "Is P-101 running?"},))
    seen = await stream(server, Ask(prompt, max_tokens=3, use_cache=True))
    assert (seen.done, seen.finish, seen.usage["completion_tokens"]) == (True, "length", 3)


async def test_a_prompt_is_cold_then_cached_and_cold_again_after_a_reset(bench: Bench) -> None:
    server = await started(bench)
    ask = await ask_for(server, slot=0)
    assert (await stream(server, ask)).cached == 0
    assert (await stream(server, ask)).cached == bench.reused
    assert await server.reset_cache() is True
    assert (await stream(server, ask)).cached == 0


async def test_a_request_that_may_not_use_the_cache_does_not(bench: Bench) -> None:
    server = await started(bench)
    ask = await ask_for(server, slot=0)
    await stream(server, ask)
    assert (await stream(server, replace(ask, use_cache=False))).cached == 0


async def test_counters_move_by_what_was_asked(bench: Bench) -> None:
    server = await started(bench)
    before = await server.counters()
    await stream(server, await ask_for(server, tokens=4))
    after = await server.counters()
    assert after["prompt_tokens"] - before["prompt_tokens"] == 100
    # llama-server counts a request's tokens when its slot is released, the last one perhaps later.
    assert 3 <= after["output_tokens"] - before["output_tokens"] <= 4


async def test_processes_live_until_stop_and_none_is_left_after_it(bench: Bench) -> None:
    server = await started(bench)
    pids = server.pids()
    assert pids
    assert all(living(pid) for pid in pids)
    await bench.engine.stop()
    assert not any(exists(pid) for pid in pids)
    assert server.pids() == ()
    await bench.engine.stop()  # twice is once


async def test_stop_before_any_start_does_nothing(bench: Bench) -> None:
    await bench.engine.stop()


async def test_a_killed_engine_tells_of_its_death(bench: Bench) -> None:
    server = await started(bench)
    for pid in server.pids():
        os.kill(pid, signal.SIGKILL)
    assert await eventually(lambda: server.death() is not None)
    death = server.death() or ""
    # vLLM's API server outlives its engine for a while, and is as good as dead.
    assert "was ended by SIGKILL" in death or "lost its process VLLM::" in death
    assert "\n" not in death
    assert await eventually(lambda: server.pids() == ())


async def test_an_engine_that_does_not_run_has_no_processes_and_cannot_be_killed(
    bench: Bench,
) -> None:
    assert bench.engine.pids() == ()
    bench.engine.kill("nothing is there")
    server = await started(bench)
    assert server.death() is None
    assert bench.engine.pids() == server.pids() != ()
    await bench.engine.stop()
    assert bench.engine.pids() == ()
    bench.engine.kill("nothing is there any more")


async def test_an_engine_killed_by_the_guard_says_so(bench: Bench) -> None:
    server = await started(bench)
    pids = server.pids()
    await asyncio.to_thread(bench.engine.kill, "1.40 GiB of memory was available")
    assert server.death() == (
        f"{bench.calls_itself} was ended by the memory guard: 1.40 GiB of memory was available"
    )
    assert await eventually(lambda: not any(living(pid) for pid in pids))
    await bench.engine.stop()
    again = await started(bench)
    assert again.death() is None


async def test_a_start_that_the_guard_ends_fails_at_once(bench: Bench) -> None:
    starting = asyncio.ensure_future(started(bench))
    assert await eventually(bench.engine.pids)
    pids = bench.engine.pids()
    bench.engine.kill("1.40 GiB of memory was available")
    with pytest.raises(GuardError, match=r"ended by the memory guard: 1\.40 GiB") as caught:
        await starting
    assert caught.value.exit_status == 3
    assert "\n" not in str(caught.value)
    assert await eventually(lambda: not any(living(pid) for pid in pids))
    assert bench.engine.pids() == ()


async def test_a_kill_before_the_first_process_of_a_start_is_not_lost(bench: Bench) -> None:
    starting = asyncio.ensure_future(started(bench))
    await asyncio.sleep(0)  # it has begun, and waits for its keeper
    bench.engine.kill("no room")
    with pytest.raises(GuardError, match="no room"):
        await starting
    assert bench.engine.pids() == ()


async def test_it_starts_again_after_its_death(bench: Bench) -> None:
    server = await started(bench)
    for pid in server.pids():
        os.kill(pid, signal.SIGKILL)
    assert await eventually(lambda: server.death() is not None)
    await bench.engine.stop()
    again = await started(bench)
    assert again.death() is None
    assert (await stream(again, await ask_for(again))).done


async def test_after_stop_its_port_is_free(bench: Bench) -> None:
    server = await started(bench)
    port = port_of(server)
    with pytest.raises(OSError, match="in use"), socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
    await bench.engine.stop()
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))


async def test_the_log_of_every_start_is_kept(bench: Bench) -> None:
    await started(bench)
    await bench.engine.stop()
    first = bench.log.read_bytes()
    assert first
    await started(bench)
    await bench.engine.stop()
    both = bench.log.read_bytes()
    assert both.startswith(first)
    assert len(both) > len(first)


async def test_nothing_but_the_log_is_left_in_its_folder(bench: Bench) -> None:
    await started(bench)
    await bench.engine.stop()
    assert [path.name for path in bench.log.parent.iterdir()] == ["engine.log"]


async def test_identity_is_stable_and_free_of_what_changes_between_launches(bench: Bench) -> None:
    before = bench.engine.identify(bench.config)
    server = await started(bench)
    assert bench.engine.identify(bench.config) == before
    assert before.version
    assert before.binary_sha256
    assert not before.attached
    assert "--port" not in before.argv
    assert not any(str(port_of(server)) == word for word in before.argv)
    # What was identified is what was launched, in the same order.
    rest = iter(server.argv)
    assert all(word in rest for word in before.argv)


async def test_another_configuration_is_another_launch_line(bench: Bench) -> None:
    one = bench.engine.identify(bench.config)
    for other in (
        replace(bench.config, slots=3),
        replace(bench.config, context_per_slot=512),
        replace(bench.config, prefix_cache="off"),
    ):
        assert bench.engine.identify(other).argv != one.argv
