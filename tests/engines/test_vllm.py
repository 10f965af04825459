"""vLLM: started with patience, quoted by its root cause, and ended to its last process.

Against the scripted vLLM, which has the real one's surface and process tree; the same things are
seen on the real one in test_real_vllm.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path

import httpx
import pytest
from engine_places import SCRIPTED_VLLM, Scripted, eventually, living, scripted_vllm

from edgeagent.core.model import EngineConfig
from edgeagent.engines import vllm_shm
from edgeagent.engines.vllm import VllmServer, members
from edgeagent.errors import DeviceMismatchError, EngineError
from edgeagent.ports import Ask, Prompt

pytestmark = pytest.mark.anyio


@contextlib.asynccontextmanager
async def made(*more: str, command: tuple[str, ...] = SCRIPTED_VLLM) -> AsyncIterator[Scripted]:
    scripted = scripted_vllm(*more, command=command)
    try:
        yield scripted
    finally:
        await scripted.engine.stop()


def config(scripted: Scripted, slots: int = 4, context: int = 512) -> EngineConfig:
    return EngineConfig(scripted.spec, slots, context, "on", "off", "cpu")


async def start(scripted: Scripted, log: Path, timeout_s: float = 60) -> VllmServer:
    return await scripted.engine.start(config(scripted), log, timeout_s)


def titles(pids: tuple[int, ...]) -> list[str]:
    return sorted(member.title for member in members(pids))


# ---------------------------------------------------------------------------------- its start


async def test_a_start_tells_how_far_it_has_come(tmp_path: Path) -> None:
    async with made("--start-s", "0.6") as scripted:
        assert scripted.engine.starting() is None
        starting = asyncio.ensure_future(start(scripted, tmp_path / "log"))
        said: list[str | None] = []
        while not starting.done():
            said.append(scripted.engine.starting())
            await asyncio.sleep(0.01)
        server = await starting
    seen = list(dict.fromkeys(word for word in said if word))
    assert "loading weights" in seen
    assert seen.index("starting its engine") < seen.index("loading weights")
    assert server.ready_s is not None


async def test_what_it_is_is_read_back(tmp_path: Path) -> None:
    async with made() as scripted:
        server = await start(scripted, tmp_path / "log")
        facts = server.facts
    assert (facts.slots, facts.context_per_slot, facts.version) == (4, 512, "0.32.0")
    assert (facts.speculative, facts.prefix_cache, facts.offloaded_layers) == (False, True, 0)
    details = facts.details
    assert details["differences"] == []
    # 4 slots x 512 tokens in blocks of 16, and one block that holds nothing; 256 bytes a token.
    assert details["num_gpu_blocks"] == details["kv_blocks_needed"] == 129
    assert details["kv_pool_bytes"] == 129 * 16 * 256
    assert (details["device"], details["dtype"]) == ("cpu", "bfloat16")


async def test_without_development_routes_it_is_still_believed(tmp_path: Path) -> None:
    scripted = scripted_vllm()
    spec = replace(scripted.spec, env=(("VLLM_SERVER_DEV_MODE", "0"),))
    asked = replace(config(scripted), engine=spec)
    try:
        server = await scripted.engine.start(asked, tmp_path / "log", 60)
        assert server.facts.slots is None
        assert server.facts.context_per_slot == 512
        assert server.facts.prefix_cache is True
        assert await server.reset_cache() is False
    finally:
        await scripted.engine.stop()


async def test_a_gpu_that_is_not_there_is_a_mismatch(tmp_path: Path) -> None:
    async with made() as scripted:
        asked = replace(config(scripted), device="gpu")
        with pytest.raises(DeviceMismatchError, match="it computes on the CPU"):
            await scripted.engine.start(asked, tmp_path / "log", 60)


@pytest.mark.parametrize(
    ("args", "tries", "words"),
    [
        # Somebody else's doing is tried again: a port that was taken, memory that came and went.
        (("--fail", "port"), 3, 'the cause in its log is "OSError: [Errno 98] Address already'),
        (("--fail", "race"), 2, 'is "Error in memory profiling. Initial free memory 21.0 GiB'),
        (("--fail", "memory"), 1, 'is "Available memory on node 0 (21.59/23.54 GiB) on kv'),
        (("--no-such-flag",), 1, 'is "error: unrecognized arguments: --no-such-flag"'),
    ],
)
async def test_a_failed_start_is_explained_and_repeated_only_where_that_helps(
    tmp_path: Path, args: tuple[str, ...], tries: int, words: str
) -> None:
    log = tmp_path / "log"
    async with made(*args) as scripted:
        with pytest.raises(EngineError) as caught:
            await start(scripted, log)
        assert scripted.engine.pids() == ()
    said = str(caught.value)
    assert said.startswith("vLLM ended with exit status ")
    assert words in said
    assert "\n" not in said
    assert caught.value.exit_status == 3
    sign = (
        args[-1]
        if args[0] != "--fail"
        else {"race": "memory prof", "port": "Errno 98"}.get(args[1], "Available memory")
    )
    assert log.read_text(encoding="utf-8").count(sign) == tries


async def test_a_python_without_vllm_says_so(tmp_path: Path) -> None:
    async with made(command=(sys.executable,)) as scripted:
        with pytest.raises(EngineError, match=r"No module named .*mend that environment"):
            await start(scripted, tmp_path / "log")


async def test_a_start_that_takes_too_long_tells_where_it_was(tmp_path: Path) -> None:
    async with made("--start-s", "600") as scripted:
        with pytest.raises(EngineError, match=r"not ready after 1 s \(it had come to: .*\)"):
            await start(scripted, tmp_path / "log", timeout_s=1)


# -------------------------------------------------------------------------------- its requests


async def test_blocks_in_use_follow_the_sequences(tmp_path: Path) -> None:
    # Prompts of 33 tokens and the first of the answer stand in 3 blocks of 16.
    async with made("--itl-ms", "60000") as scripted:
        server = await start(scripted, tmp_path / "log")
        async with httpx.AsyncClient(base_url=server.url, timeout=60, trust_env=False) as client:
            streams = [
                asyncio.ensure_future(_first_bytes(client, server, list(range(n, n + 33))))
                for n in (1000, 2000, 3000)
            ]
            await asyncio.gather(*streams)
            counted = await server.counters()
            assert counted["kv_blocks_used"] == 9
            assert counted["kv_blocks"] == 128
            assert counted["requests_running"] == 3
            # While requests run nothing is forgotten, and it says so with status 200.
            assert await server.reset_cache() is False


async def _first_bytes(client: httpx.AsyncClient, server: VllmServer, ids: list[int]) -> None:
    """Return with the first token; the stream stays open."""
    wanted = server.request(Ask(Prompt(token_ids=tuple(ids)), max_tokens=3, use_cache=True))
    request = client.build_request("POST", wanted.path, content=wanted.body)
    answer = await client.send(request, stream=True)
    async for line in answer.aiter_lines():
        if '"text"' in line:
            return


async def test_more_requests_than_sequences_wait(tmp_path: Path) -> None:
    async with made("--itl-ms", "60000") as scripted:
        server = await start(scripted, tmp_path / "log")
        async with httpx.AsyncClient(base_url=server.url, timeout=60, trust_env=False) as client:
            asking = [asyncio.ensure_future(_first_bytes(client, server, [n])) for n in range(6)]

            counted = await server.counters()
            while counted["requests_waiting"] < 2:  # because the server cannot tell us
                await asyncio.sleep(0.01)
                counted = await server.counters()
            assert counted["requests_running"] == 4
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)


async def test_speculation_is_counted(tmp_path: Path) -> None:
    async with made("--itl-ms", "1") as scripted:
        asked = replace(config(scripted), speculation="ngram")
        server = await scripted.engine.start(asked, tmp_path / "log", 60)
        assert server.facts.speculative is True
        wanted = server.request(Ask(Prompt(token_ids=(1, 2, 3)), 5, use_cache=False))
        async with httpx.AsyncClient(base_url=server.url, timeout=60, trust_env=False) as client:
            await client.post(wanted.path, content=wanted.body)
        counted = await server.counters()
    assert (counted["drafts"], counted["draft_tokens"], counted["draft_accepted"]) == (4, 16, 4)


# ------------------------------------------------------------------------------------ its end


async def test_it_is_dead_as_soon_as_its_engine_is(tmp_path: Path) -> None:
    async with made() as scripted:
        server = await start(scripted, tmp_path / "log")
        assert titles(server.pids()) == ["VLLM::EngineCore", "VLLM::Worker"]
        core = next(m.pid for m in members(server.pids()) if m.title == "VLLM::EngineCore")
        os.kill(core, signal.SIGKILL)
        assert await eventually(lambda: server.death() is not None)
        assert (server.death() or "").startswith("vLLM lost its process VLLM::")
        # Its API server ends with status 0, and that is no success.
        assert await eventually(lambda: "exit status 0" in (server.death() or ""))
        assert "EngineDeadError" in (server.death() or "")


async def test_an_engine_that_survives_its_api_server_is_ended_too(tmp_path: Path) -> None:
    async with made() as scripted:
        server = await start(scripted, tmp_path / "log")
        pids = server.pids()
        api = next(pid for pid in pids if pid not in {m.pid for m in members(pids)})
        os.kill(api, signal.SIGKILL)
        assert await eventually(lambda: "was ended by SIGKILL" in (server.death() or ""))
        await scripted.engine.stop()
        assert not any(living(pid) for pid in pids)


@pytest.mark.parametrize("patience", ["5", "0"])
async def test_an_open_stream_does_not_keep_it(tmp_path: Path, patience: str) -> None:
    # With 0 the API server waits for the stream for ever, as the real one does.
    async with made("--itl-ms", "60000", "--shutdown-timeout", patience) as scripted:
        server = await start(scripted, tmp_path / "log")
        pids = server.pids()
        async with httpx.AsyncClient(base_url=server.url, timeout=60, trust_env=False) as client:
            await _first_bytes(client, server, [1, 2, 3])
            await scripted.engine.stop()
        assert not any(living(pid) for pid in pids)


# ------------------------------------------------------------------------------ shared memory


def test_only_new_unused_segments_of_ours_are_removed(tmp_path: Path) -> None:
    names = ("psm_old", "psm_new", "sem.mp-new", "psm_held", "psm_mapped", "somebody-elses")
    for name in names:
        (tmp_path / name).write_bytes(b"x" * 4096)
    before = frozenset({"psm_old"})
    proc = tmp_path / "proc"
    (proc / "7" / "fd").mkdir(parents=True)
    (proc / "7" / "fd" / "3").symlink_to(tmp_path / "psm_held")
    inode = (tmp_path / "psm_mapped").stat().st_ino
    (proc / "7" / "maps").write_text(f"7f00-7f01 rw-s 0 00:1a {inode} {tmp_path}/other (deleted)\n")
    assert vllm_shm.seen(tmp_path) == frozenset(names) - {"somebody-elses"}
    assert vllm_shm.remove_leftovers(before, tmp_path, proc) == ("psm_new", "sem.mp-new")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"psm_old", "psm_held", "psm_mapped", "somebody-elses", "proc"}


def test_a_semaphore_in_use_is_kept_although_its_maker_maps_it_under_another_name() -> None:
    before = vllm_shm.seen()
    used = multiprocessing.get_context("spawn").Semaphore()
    made_by_us = vllm_shm.seen() - before
    assert made_by_us, "a semaphore of a spawn context has a name"
    vllm_shm.remove_leftovers(before)
    assert made_by_us <= vllm_shm.seen()
    used.acquire()


async def test_what_a_killed_engine_left_in_shared_memory_goes_with_it(tmp_path: Path) -> None:
    before = shared_memory.SharedMemory(create=True, size=64)
    try:
        async with made() as scripted:
            await start(scripted, tmp_path / "log")
            left = shared_memory.SharedMemory(create=True, size=64)
            # As if a process that was killed had made it.
            resource_tracker.unregister(left._name, "shared_memory")  # type: ignore[attr-defined]  # because there is no other name for it
            left.close()
            held = shared_memory.SharedMemory(create=True, size=64)
            try:
                await scripted.engine.stop()
                assert left.name not in vllm_shm.seen()
                assert {before.name, held.name} <= vllm_shm.seen()
            finally:
                held.close()
                held.unlink()
    finally:
        before.close()
        before.unlink()
