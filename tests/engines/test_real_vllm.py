"""The real vLLM, in as few starts as will do: each takes half a minute."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
from engine_places import VLLM_MODEL, VLLM_PYTHON, eventually, living, place

from edgeagent.core.kv_config import from_config
from edgeagent.core.model import EngineConfig, EngineSpec, ModelIdentity
from edgeagent.engines import vllm_shm
from edgeagent.engines.vllm import VllmEngine, VllmServer, members
from edgeagent.engines.vllm_flags import VllmModel
from edgeagent.models import hashing, hf
from edgeagent.ports import Ask, Prompt

pytestmark = [pytest.mark.anyio, pytest.mark.real_engine]

START_S = 180
BLOCK = 128
TEXT = "Pump P-101 discharge pressure 4.2 bar, temperature 61 C, status running. " * 40


@dataclass(frozen=True)
class Real:
    engine: VllmEngine
    config: EngineConfig


def real(slots: int = 4, *more: str) -> Real:
    folder = Path(place(VLLM_MODEL))
    facts = hf.read(folder)
    found = from_config(facts.config)
    assert found.shape is not None, found.reason
    model = VllmModel(ModelIdentity("m", str(folder)), found.shape, element_type=facts.element_type)
    env = (("OMP_NUM_THREADS", "1"),)  # the box has other work
    spec = EngineSpec(
        "v", "vllm", (place(VLLM_PYTHON),), str(folder), args=("--enforce-eager", *more), env=env
    )
    engine = VllmEngine(spec, model, hashing.sha256)
    return Real(engine, EngineConfig(spec, slots, 512, "on", "off", "cpu"))


@contextlib.asynccontextmanager
async def running(of: Real, log: Path) -> AsyncIterator[VllmServer]:
    try:
        yield await of.engine.start(of.config, log, START_S)
    finally:
        await of.engine.stop()


async def answer(
    server: VllmServer, ids: Sequence[int], tokens: int, use_cache: str = "yes"
) -> Mapping[str, object]:
    """The last event that counts: usage, and what it says of itself."""
    ask = Ask(Prompt(token_ids=tuple(ids)), tokens, use_cache == "yes")
    wanted = server.request(ask)
    headers = {"content-type": "application/json"}
    async with httpx.AsyncClient(base_url=server.url, timeout=120, trust_env=False) as client:
        said = await client.post(wanted.path, content=wanted.body, headers=headers)
    events = [line.removeprefix("data: ") for line in said.text.splitlines() if line]
    assert events[-1] == "[DONE]"
    last: dict[str, object] = json.loads(events[-2])
    assert last["choices"] == []
    return last


def cached(event: Mapping[str, object]) -> object:
    usage = event["usage"]
    assert isinstance(usage, dict)
    return usage["prompt_tokens_details"]["cached_tokens"]


async def most_blocks(server: VllmServer, prompts: Sequence[Sequence[int]], tokens: int) -> float:
    """Blocks in use while all of the requests decode."""
    asking = asyncio.gather(*(answer(server, prompt, tokens, "no") for prompt in prompts))
    most = 0.0
    while not asking.done():
        counted = await server.counters()
        assert counted["kv_blocks_used"] == int(counted["kv_blocks_used"])
        most = max(most, counted["kv_blocks_used"])
        await asyncio.sleep(0.02)
    await asking
    return most


async def test_one_start_tells_proves_and_counts(tmp_path: Path) -> None:
    made = real()
    identity = made.engine.identify(made.config)
    assert identity.version == "0.32.0"
    async with running(made, tmp_path / "log") as server:
        facts, details = server.facts, server.facts.details
        assert (facts.slots, facts.context_per_slot) == (4, 512)
        assert (facts.version, facts.prefix_cache, facts.speculative) == ("0.32.0", True, False)
        assert (details["block_size"], details["device"]) == (BLOCK, "cpu")
        assert details["num_gpu_blocks"] == details["kv_blocks_needed"] == 4 * 4 + 1
        assert (details["differences"], details["flag_notes"]) == ([], [])

        ids = await server.tokenize(TEXT)
        assert ids is not None
        assert ids == await server.tokenize(TEXT)

        # Cold, warm in whole blocks, cold by its own salt, and cold again after a reset.
        before = await server.counters()
        assert cached(await answer(server, ids[:300], 2)) == 0
        assert cached(await answer(server, ids[:300], 2)) == 2 * BLOCK
        assert cached(await answer(server, ids[:300], 2, "no")) == 0
        assert await server.reset_cache() is True
        assert cached(await answer(server, ids[:300], 2)) == 0
        after = await server.counters()
        assert after["prompt_tokens"] - before["prompt_tokens"] == 4 * 300
        assert after["cached_prompt_tokens"] - before["cached_prompt_tokens"] == 2 * BLOCK
        assert after["output_tokens"] - before["output_tokens"] == 4 * 2

        # 250 tokens and all but the newest of 100 more: 3 blocks each, whoever else there is, and
        # for 94 steps together, so that a busy box looks at them while all hold their third.
        for requests in (1, 2, 4):
            prompts = [ids[start : start + 250] for start in range(requests)]
            assert await most_blocks(server, prompts, 100) == 3 * requests
        assert (await server.counters())["kv_blocks"] == 16

        # A stream that nobody ends does not keep it.
        pids = server.pids()
        assert len(pids) >= 3
        stream = asyncio.ensure_future(answer(server, ids[:200], 300))
        assert await eventually(lambda: not stream.done())
        while (await server.counters())["requests_running"] < 1:  # noqa: ASYNC110  # because the server cannot tell us
            await asyncio.sleep(0.02)
        assert await server.reset_cache() is False
        await made.engine.stop()
        assert not any(living(pid) for pid in pids)
        await asyncio.gather(stream, return_exceptions=True)


async def test_drafts_are_counted_and_a_lost_engine_is_a_death(tmp_path: Path) -> None:
    shm = vllm_shm.seen()
    made = real()
    made = Real(made.engine, replace(made.config, speculation="ngram"))
    async with running(made, tmp_path / "log") as server:
        assert server.facts.speculative is True
        ids = await server.tokenize(TEXT)
        assert ids is not None
        last = await answer(server, ids[:200], 40)
        counted = await server.counters()
        assert counted["drafts"] > 0
        assert 0 < counted["draft_accepted"] <= counted["draft_tokens"] <= 4 * counted["drafts"]
        metrics = last["metrics"]
        assert isinstance(metrics, dict)
        assert metrics["speculative_decoding"]["num_draft_tokens"] == counted["draft_tokens"]

        pids = server.pids()
        core = next(m.pid for m in members(pids) if m.title == "VLLM::EngineCore")
        os.kill(core, signal.SIGKILL)
        assert await eventually(lambda: server.death() is not None)
        assert "lost its process VLLM::EngineCore" in (server.death() or "")
        await made.engine.stop()
        assert not any(living(pid) for pid in pids)
        assert vllm_shm.seen() <= shm


def worker_bytes(server: VllmServer) -> int:
    """Memory of the process that holds the pool, without files."""
    worker = next(m.pid for m in members(server.pids()) if m.title.startswith("VLLM::Worker"))
    text = Path(f"/proc/{worker}/smaps_rollup").read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.startswith("Pss_Anon:"))
    return int(line.split()[1]) * 1024


async def test_a_larger_pool_costs_what_arithmetic_says(tmp_path: Path) -> None:
    held, pools = [], []
    for slots in (2, 18):
        made = real(slots)
        async with running(made, tmp_path / f"log-{slots}") as server:
            held.append(worker_bytes(server))
            pool = server.facts.details["kv_pool_bytes"]
            assert isinstance(pool, int)
            pools.append(pool)
    predicted = pools[1] - pools[0]
    assert predicted == 16 * 4 * 2_949_120
    assert abs((held[1] - held[0]) - predicted) < 0.02 * predicted
