"""A stall moves everything that is still to come by its length, and a long prompt makes one."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.engines.scripted import Script, ScriptedServer, script_of
from edgeagent.engines.scripted_slots import Stalls
from edgeagent.engines.scripted_stream import Tempo

pytestmark = pytest.mark.anyio


def test_a_stall_moves_what_is_still_due() -> None:
    stalls = Stalls()
    begun = stalls.begin(10.0)
    assert begun.due(2.0) == 12.0
    stalls.add(11.0, 0.8)
    assert begun.due(2.0) == pytest.approx(12.8)


def test_what_begins_in_a_stall_begins_at_its_end() -> None:
    stalls = Stalls()
    stalls.add(11.0, 0.8)
    assert stalls.begin(11.5).due(1.0) == pytest.approx(12.8)
    assert stalls.begin(13.0).due(1.0) == 14.0


@given(st.lists(st.floats(0, 2), max_size=5))
def test_stalls_add_up_however_they_fall(lengths: list[float]) -> None:
    stalls = Stalls()
    begun = stalls.begin(0.0)
    for length in lengths:
        stalls.add(1.0, length)
    assert begun.due(5.0) == pytest.approx(5.0 + sum(lengths))
    assert stalls.begin(1.0).due(0.0) == pytest.approx(1.0 + sum(lengths))


def test_its_arguments_say_how_long_and_from_which_length() -> None:
    assert script_of([]).stall_s == 0
    script = script_of(["--stall-ms", "800", "--stall-tokens", "100"])
    assert (script.stall_s, script.stall_tokens) == (0.8, 100)


async def test_a_long_prompt_stops_every_stream_and_a_short_one_none(tmp_path: Path) -> None:
    stamps = tmp_path / "stamps.jsonl"
    script = Script(
        slots=3, stamps=stamps, stall_s=0.4, stall_tokens=50, tempo=Tempo(ttft_s=0.02, itl_s=0.02)
    )

    async def ask(tag: str, prompt: list[int], tokens: int) -> None:
        body = {"prompt": prompt, "max_tokens": tokens, "stream": True, "x_tag": tag}
        async with httpx.AsyncClient(base_url=server.url) as client:
            (await client.post("/v1/completions", json=body)).raise_for_status()

    async with ScriptedServer(script) as server:
        running = asyncio.ensure_future(ask("victim", [1, 2, 3], 30))
        await asyncio.sleep(0.1)
        await ask("short", [4] * 49, 2)
        await ask("long", [5] * 50, 2)
        await running
    told = {entry["tag"]: entry for entry in map(json.loads, stamps.read_text().splitlines())}
    gaps = [(b - a) / 1e9 for a, b in pairwise(told["victim"]["written_ns"])]
    # One interval of 20 ms became 420 ms, less what its first token was late; the short prompt
    # before it left all as they were.
    assert sum(gap >= 0.35 for gap in gaps) == 1
    waited = (told["long"]["written_ns"][0] - told["long"]["arrived_ns"]) / 1e9
    assert waited >= 0.4
