"""The scripted server: its slots, its cache and its true times are what it says."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.engines.scripted import Script, ScriptedServer, script_of
from edgeagent.engines.scripted_slots import Slots, common_prefix, tokenize
from edgeagent.engines.scripted_stream import (
    BadRequestError,
    Served,
    Tempo,
    Wanted,
    beats,
    wanted,
)

pytestmark = pytest.mark.anyio

FAST = Tempo(ttft_s=0.02, itl_s=0.002)


# ------------------------------------------------------------------------------- slots and cache


@given(st.text(), st.text())
def test_the_same_text_has_the_same_tokens_wherever_it_stands(one: str, other: str) -> None:
    assert tokenize(one) == tokenize(one)
    assert (
        common_prefix(tokenize(f"{one}\n"), tokenize(f"{one}\n{other}")) >= len(tokenize(one)) - 1
    )


async def test_a_prompt_goes_to_the_slot_that_holds_its_opening() -> None:
    slots = Slots(3)
    slots.all[1].tokens = [1, 2, 3, 4]
    assert (await slots.acquire([1, 2, 3, 9], None, lambda: True)).id == 1


async def test_a_prompt_like_none_goes_to_the_slot_unused_for_longest() -> None:
    slots = Slots(2)
    for _ in range(2):
        slots.release(await slots.acquire([7], 0, lambda: True))
    assert (await slots.acquire([1, 2], None, lambda: True)).id == 1


async def test_requests_beyond_the_slots_wait_in_order() -> None:
    slots = Slots(1)
    first = await slots.acquire([1], None, lambda: True)
    served: list[str] = []

    async def wait(name: str, wanted_slot: int | None = None) -> None:
        slot = await slots.acquire([1], wanted_slot, lambda: True)
        served.append(name)
        slots.release(slot)

    waiting = [asyncio.ensure_future(wait(name)) for name in "abc"]
    await asyncio.sleep(0)
    assert slots.waiting == 3
    waiting[1].cancel()
    await asyncio.sleep(0)
    slots.release(first)
    await asyncio.gather(*waiting, return_exceptions=True)
    assert served == ["a", "c"]


async def test_who_has_gone_meanwhile_is_passed_over() -> None:
    slots = Slots(1)
    first = await slots.acquire([1], None, lambda: True)
    gone = asyncio.ensure_future(slots.acquire([1], None, lambda: False))
    there = asyncio.ensure_future(slots.acquire([1], None, lambda: True))
    await asyncio.sleep(0)
    slots.release(first)
    assert (await there).id == 0
    assert (await asyncio.gather(gone, return_exceptions=True))[0].__class__ is (
        asyncio.CancelledError
    )


# --------------------------------------------------------------------------------------- streams


def ask(**more: object) -> Wanted:
    return wanted("completions", {"prompt": [1, 2, 3, 4], "max_tokens": 4, **more})


def due(a_request: Wanted, cached: int = 0, tempo: Tempo = FAST) -> list[float]:
    stream = beats(a_request, Served(cached), tempo)
    return [round(beat.due_s, 6) for beat in stream if beat.tokens]


def test_tokens_are_due_at_fixed_moments_after_the_slot_began() -> None:
    assert due(ask()) == [0.02, 0.022, 0.024, 0.026]


def test_cached_prompt_tokens_shorten_the_time_to_the_first_token_if_scaled() -> None:
    scaled = Tempo(ttft_s=0.02, itl_s=0.002, prefill_scaled=True)
    assert due(ask(), cached=3, tempo=scaled)[0] == 0.005  # a quarter of 20 ms is fresh
    assert due(ask(), cached=3)[0] == 0.02


def test_several_tokens_of_an_event_take_their_time_together() -> None:
    assert due(ask(x_tokens_per_event=2)) == [0.02, 0.024]


def test_a_stall_moves_everything_after_it() -> None:
    assert due(ask(x_fault="stall", x_after=2, x_stall_s=1)) == [0.02, 0.022, 1.024, 1.026]


@pytest.mark.parametrize("body", [{}, {"prompt": 3}, {"prompt": "x", "max_tokens": "many"}])
def test_a_request_that_makes_no_sense_is_refused(body: dict[str, object]) -> None:
    with pytest.raises(BadRequestError):
        wanted("completions", body)


# ------------------------------------------------------------------------------------- over HTTP


async def post(server: ScriptedServer, path: str, **body: object) -> httpx.Response:
    async with httpx.AsyncClient(base_url=server.url, trust_env=False) as client:
        return await client.post(path, json=body)


async def get(server: ScriptedServer, path: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=server.url, trust_env=False) as client:
        return await client.get(path)


async def test_it_answers_what_llama_server_answers() -> None:
    async with ScriptedServer(Script(slots=2, context=512, tempo=FAST)) as server:
        props: dict[str, Any] = (await get(server, "/props")).json()
        assert props["total_slots"] == 2
        assert props["default_generation_settings"]["n_ctx"] == 256
        assert len((await get(server, "/slots")).json()) == 2
        assert (await get(server, "/health")).json() == {"status": "ok"}
        assert (await get(server, "/nothing")).status_code == 404
        tokens = (await post(server, "/tokenize", content="one two")).json()["tokens"]
        assert len(tokens) == 2
        answer = (await post(server, "/v1/completions", prompt=[1, 2], max_tokens=3)).json()
        assert answer["usage"]["completion_tokens"] == 3


async def test_the_cache_is_real_and_can_be_erased() -> None:
    async def cached(**more: object) -> int:
        answer = await post(server, "/v1/completions", prompt=[*range(9)], max_tokens=1, **more)
        found: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        return found

    async with ScriptedServer(Script(slots=1, tempo=FAST)) as server:
        assert [await cached(), await cached(), await cached(cache_prompt=False)] == [0, 8, 0]
        assert (await post(server, "/slots/0?action=erase")).status_code == 200
        assert await cached() == 0
        metrics = (await get(server, "/metrics")).text
    assert "llamacpp:prompt_tokens_cached_total 8\n" in metrics
    assert "llamacpp:prompt_tokens_total 28\n" in metrics  # 9 + 1 + 9 + 9 of four prompts


async def test_it_says_so_while_it_is_loading() -> None:
    async with ScriptedServer(Script(load_s=0.3)) as server:
        assert (await get(server, "/health")).status_code == 503
        await asyncio.sleep(0.3)
        assert (await get(server, "/health")).status_code == 200


async def test_every_nth_request_can_be_made_to_fail() -> None:
    script = Script(tempo=FAST, fault="http_500", fault_every=3)
    async with ScriptedServer(script) as server:
        codes = [
            (await post(server, "/completion", prompt="x", n_predict=1)).status_code
            for _ in range(6)
        ]
    assert codes == [200, 200, 500, 200, 200, 500]


async def test_it_writes_down_when_each_token_went_out(tmp_path: Path) -> None:
    stamps = tmp_path / "stamps.jsonl"
    async with ScriptedServer(Script(tempo=FAST, stamps=stamps)) as server:
        await post(server, "/completion", prompt="x", n_predict=3, stream=True, x_tag=7)
    (entry,) = [json.loads(line) for line in stamps.read_text().splitlines()]
    assert entry["tag"] == 7
    assert len(entry["written_ns"]) == 3
    times = [entry["arrived_ns"], *entry["written_ns"]]
    assert times == sorted(times)


# ------------------------------------------------------------------------------- as a program


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edgeagent.engines.scripted", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_it_explains_itself_like_a_llama_server() -> None:
    assert "-np,   --parallel N" in run("--help").stdout
    assert run("--version").stderr.startswith("version: 0.0.0-scripted")
    refused = run("--no-such-flag")
    assert (refused.returncode, refused.stderr.split(":")[0]) == (1, "error")


def test_its_arguments_become_a_script() -> None:
    line = (
        "-m x --port 0 -np 8 -c 4096 --ttft-ms 5 --no-cache-prompt -fit off --spec-type ngram-mod"
    )
    script = script_of(line.split())
    assert (script.slots, script.context, script.port) == (8, 4096, 0)
    assert script.tempo.ttft_s == 0.005
    assert (script.cache_prompt, script.speculative) == (False, True)
    assert script.absent == {"/metrics", "erase"}


def test_it_ends_on_sigterm_and_dies_on_request() -> None:
    for stop in ("sigterm", "die"):
        process = subprocess.Popen(
            [sys.executable, "-m", "edgeagent.engines.scripted", "--port", "0"],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        with process.stderr as log:
            url = next(line for line in log if "listening on" in line).split()[-1]
            if stop == "sigterm":
                process.send_signal(signal.SIGTERM)
            else:
                body = {"prompt": "x", "stream": True, "x_fault": "die", "x_after": 1}
                with pytest.raises(httpx.HTTPError):
                    httpx.post(f"{url}/completion", json=body, trust_env=False)
            assert process.wait(10) == (0 if stop == "sigterm" else 1)
            assert ("asked for the end" in log.read()) == (stop == "die")
