"""Memory of known size in real processes, seen by the cheap probe; and the guard that ends one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from engine_places import eventually, exists, living
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.clock import SystemClock
from edgeagent.core.model import EngineConfig, EngineSpec
from edgeagent.engines.fake import FakeEngine
from edgeagent.engines.scripted import script_of
from edgeagent.engines.scripted_memory import MOST_GROWTH_BYTES, Memory, MemoryScript
from edgeagent.errors import GuardError
from edgeagent.ports import Ask, Prompt, Server
from edgeagent.probes.guard import Guard
from edgeagent.probes.host import HostProbe

pytestmark = pytest.mark.anyio

MIB = 1 << 20
GIB = 1 << 30


@dataclass
class Bench:
    """Starts scripted engines one after another."""

    folder: Path
    engine: FakeEngine | None = None
    spec: EngineSpec = field(default_factory=lambda: EngineSpec("fake", "fake"))

    async def start(self, *args: str, slots: int = 1) -> Server:
        await self.stop()
        self.spec = EngineSpec("fake", "fake", args=("--ttft-ms", "1", "--itl-ms", "1", *args))
        self.engine = FakeEngine(self.spec)
        return await self.engine.start(self.config(slots), self.folder / "log", 60)

    def config(self, slots: int) -> EngineConfig:
        return EngineConfig(self.spec, slots, 256, "on", "off")

    async def stop(self) -> None:
        if self.engine is not None:
            await self.engine.stop()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    yield made
    await made.stop()


def memory_of(server: Server) -> dict[str, int]:
    values, _ = HostProbe().read(server.pids())
    names = ("engine.anon_bytes", "engine.mapped_bytes")
    return {name: int(values[name] or 0) for name in names}


async def ask(server: Server, slot: int) -> None:
    wanted = server.request(Ask(Prompt(token_ids=(1, 2, 3)), 2, use_cache=True, slot=slot))
    async with httpx.AsyncClient(base_url=server.url, trust_env=False) as client:
        assert (await client.post(wanted.path, content=wanted.body)).status_code == 200


def near(value: float, expected: float) -> bool:
    return abs(value - expected) <= 0.02 * expected


# ------------------------------------------------------------------------------- sizes are true


async def test_a_slot_costs_what_it_says_and_the_weights_are_mapped(bench: Bench) -> None:
    seen: dict[int, Mapping[str, int]] = {}
    for slots in (1, 2, 4):
        server = await bench.start(
            "--map-bytes", str(GIB), "--slot-bytes", str(64 * MIB), slots=slots
        )
        assert server.facts.slots == slots
        seen[slots] = memory_of(server)
    bare = memory_of(await bench.start())
    anon = {slots: values["engine.anon_bytes"] for slots, values in seen.items()}
    assert near(anon[2] - anon[1], 64 * MIB)
    assert near((anon[4] - anon[1]) / 3, 64 * MIB)
    for values in seen.values():
        assert near(values["engine.mapped_bytes"] - bare["engine.mapped_bytes"], GIB)


async def test_buffers_come_with_the_first_request_of_a_slot_and_stay(bench: Bench) -> None:
    server = await bench.start("--compute-bytes", str(32 * MIB), slots=2)
    before = memory_of(server)["engine.anon_bytes"]
    grown = []
    for slot in (0, 0, 1, 1):
        await ask(server, slot)
        grown.append(memory_of(server)["engine.anon_bytes"] - before)
    # What a first request takes besides (less than 2 MiB) counts with the buffers.
    assert 32 * MIB <= grown[0] < 34 * MIB
    assert abs(grown[1] - grown[0]) < MIB
    assert near(grown[2] - grown[1], 32 * MIB)
    assert abs(grown[3] - grown[2]) < MIB


async def test_it_reports_its_buffers_as_llama_server_does(bench: Bench) -> None:
    server = await bench.start(
        "--map-bytes", str(8 * MIB), "--slot-bytes", str(4 * MIB),
        "--compute-bytes", str(2 * MIB), "--log-device", "CPU", slots=3,
    )  # fmt: skip
    assert server.facts.details["buffers"] == [
        {"kind": "model", "device": "CPU_Mapped", "bytes": 8 * MIB},
        {"kind": "output", "device": "CPU", "bytes": 0},
        {"kind": "kv", "device": "CPU", "bytes": 12 * MIB},
        {"kind": "compute", "device": "CPU", "bytes": 6 * MIB},
    ]
    assert (server.facts.offloaded_layers, server.facts.total_layers) == (0, 30)


async def test_it_reports_nothing_unless_asked(bench: Bench) -> None:
    server = await bench.start("--slot-bytes", str(MIB))
    assert "buffers" not in server.facts.details


# ----------------------------------------------------------------------------------- all bounded


@pytest.mark.parametrize(
    "line",
    [
        "-np 8 --slot-bytes 536870912",
        "--map-bytes 3000000000",
        "--growth-limit-bytes 1073741825",
        "--children 65",
    ],
)
def test_more_than_a_test_may_take_is_refused(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        script_of(line.split())
    assert "error: invalid argument" in capsys.readouterr().err


@given(st.integers(1, 5 * MIB))
def test_growth_stops_at_its_limit(limit: int) -> None:
    memory = Memory(MemoryScript(growth_bytes_per_s=1 << 40, growth_limit_bytes=limit), 1)
    for _ in memory.grow():
        pass
    held = sum(len(each) for each in memory._held)
    assert limit - 4096 < held <= limit <= MOST_GROWTH_BYTES


# ------------------------------------------------------------------------------ nothing is left


async def test_children_and_a_deserter_end_with_the_engine(bench: Bench) -> None:
    server = await bench.start("--children", "12", "--deserter")
    pids = server.pids()
    assert len(pids) == 1 + 12 + 1
    await bench.stop()
    assert not any(exists(pid) for pid in pids)


# --------------------------------------------------------------------------- the guard, for real


@dataclass
class SmallBox:
    """A meminfo of 8 GiB, of which 1.5 are available, less what the engine really takes."""

    root: Path
    engine: FakeEngine
    probe: HostProbe = field(default_factory=HostProbe)

    def __post_init__(self) -> None:
        (self.root / "proc").mkdir()
        (self.root / "proc/meminfo").write_text(self.text(0), encoding="ascii")

    def text(self, taken: int) -> str:
        available = max(0, 3 * GIB // 2 - taken)
        return (
            f"MemTotal:     {8 * GIB >> 10:12} kB\nMemFree:      {100 * MIB >> 10:12} kB\n"
            f"MemAvailable: {available >> 10:12} kB\n"
        )

    def attributed(self) -> int | None:
        taken = self.probe.read(self.engine.pids())[0]["engine.anon_bytes"]
        if taken is None:
            return None
        with (self.root / "proc/meminfo").open("r+", encoding="ascii") as file:
            file.write(self.text(int(taken)))
        return int(taken)


async def test_the_guard_ends_an_engine_that_grows_before_the_box_is_full(bench: Bench) -> None:
    growth = ("--growth-bytes-per-s", str(384 * MIB), "--children", "3", "--deserter")
    bench.spec = EngineSpec("fake", "fake", args=growth)
    engine = bench.engine = FakeEngine(bench.spec)
    root = bench.folder / "root"
    root.mkdir()
    box = SmallBox(root, engine)
    guard = Guard(SystemClock(), root)
    margin = guard.arm(engine.kill, box.attributed).margin_bytes
    assert margin is not None
    assert margin > 0
    pids: set[int] = set()
    starting = asyncio.ensure_future(engine.start(bench.config(1), bench.folder / "log", 60))
    while not starting.done():
        pids |= set(engine.pids())
        await asyncio.sleep(0.05)
    with pytest.raises(GuardError, match="ended by the memory guard"):
        await starting
    seen = guard.disarm()
    assert seen.verdict.action == "kill"
    assert len(pids) == 1 + 3 + 1
    assert await eventually(lambda: not any(living(pid) for pid in pids))
    # Ended while the box still had memory: the engine grows by less than that between two looks.
    assert max(r.attributed_bytes or 0 for r in seen.trace) < MOST_GROWTH_BYTES
    assert min(r.available_bytes for r in seen.trace) > 0
