"""What the runner does when engines die at awkward moments, and whether a prime primes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from test_runner import SPEC, Notebook, OurEngine, OurServer, a_plan, run

from edgeagent.core.model import EngineConfig, RequestTrace, Role, Step
from edgeagent.errors import UnreachableError
from edgeagent.load.drive import Halt
from edgeagent.load.workload import Job
from edgeagent.ports import HttpRequest, Server

pytestmark = pytest.mark.anyio


class SlowNewsServer(OurServer):
    """Its connections break at once; that its process has ended is known a moment later."""

    gone = False

    def die(self) -> None:
        self.gone = True
        asyncio.get_running_loop().call_later(0.3, self._known)

    def _known(self) -> None:
        self.dead = "it was ended by SIGKILL"


@dataclass
class SlowNewsEngine(OurEngine):
    async def start(self, config: EngineConfig, log: Path, timeout_s: float) -> Server:
        self.alive += 1
        self.servers.append(SlowNewsServer())
        return self.servers[-1]


@dataclass
class Troubles(Notebook):
    """Ends the engine at the first request of a role, so many times."""

    die_in: Role = "measured"
    times: int = 1
    jobs: list[Job] = field(default_factory=list)

    async def send(
        self, request: HttpRequest, job: Job, scheduled_ns: int, halt: Halt
    ) -> RequestTrace:
        self.jobs.append(job)
        await asyncio.sleep(0)
        trace = RequestTrace(job.cell.cell_id, job.attempt, job.index, job.role, scheduled_ns)
        server = self.engine.servers[-1]
        if isinstance(server, SlowNewsServer):
            if job.role == self.die_in and self.times and not server.gone:
                self.times -= 1
                server.die()
            if server.gone:
                return replace(trace, error="connect")
        return trace


async def test_a_death_that_is_known_only_after_the_last_answer_still_fails_its_cell() -> None:
    notebook = Troubles(SlowNewsEngine())
    await run(notebook)
    first, second = notebook.records
    assert first.failure_kind == "engine_died"
    assert second.failure is None
    assert len(notebook.launches) == 2


async def test_a_death_in_the_warm_up_after_a_death_is_the_launchs_trouble_not_the_sweeps() -> None:
    notebook = Troubles(SlowNewsEngine(), die_in="warmup", times=2)
    await run(notebook)
    assert len(notebook.launches) == 3
    assert [record.failure for record in notebook.records] == [None, None]
    assert notebook.stop is not None
    assert notebook.stop.reason is None


async def test_an_engine_that_dies_for_good_counts_as_one_that_did_not_start() -> None:
    notebook = Troubles(SlowNewsEngine(), die_in="warmup", times=99)
    await run(notebook)
    assert notebook.records == []
    assert [error.exit_status for error in notebook.failed] == [3]
    assert notebook.engine.alive == 0


async def test_the_prime_has_the_opening_of_the_measurement_after_it() -> None:
    plan = a_plan(replace(SPEC, prefix_cache=("on",)))
    notebook = Troubles(OurEngine())
    await run(notebook, plan)
    assert {job.role for job in notebook.jobs} >= {"prime", "measured"}
    for cell in plan.cells:
        openings = {
            job.rngs()[0].random()
            for job in notebook.jobs
            if job.cell == cell and job.role != "warmup"
        }
        assert len(openings) == 1


class MuteServer(OurServer):
    async def tokenize(self, text: str) -> tuple[int, ...] | None:
        raise UnreachableError("it was asked and did not answer")


@dataclass
class MuteEngine(OurEngine):
    async def start(self, config: EngineConfig, log: Path, timeout_s: float) -> Server:
        await super().start(config, log, timeout_s)
        return MuteServer()


async def test_an_engine_that_goes_before_its_first_request_takes_only_its_own_cells() -> None:
    notebook = Notebook(MuteEngine())
    await run(notebook, a_plan(replace(SPEC, repeats=2)))
    assert len(notebook.failed) == 2
    assert notebook.records == []
    assert notebook.engine.alive == 0


async def test_a_stop_while_the_engine_is_starting_leaves_nothing_running() -> None:
    class Slow(OurEngine):
        async def start(self, config: EngineConfig, log: Path, timeout_s: float) -> Server:
            self.alive += 1
            notebook.stop.now("interrupted", "SIGINT was received")  # type: ignore[union-attr]  # because run() has set it
            await asyncio.Event().wait()
            raise AssertionError

    notebook = Notebook(Slow())
    await run(notebook)
    assert notebook.steps == ["start"]
    assert notebook.engine.alive == 0


async def test_a_stop_while_pausing_does_not_wait_for_the_pause_to_end() -> None:
    class Impatient(Notebook):
        def step_begins(self, step: Step, number: int, of: int) -> None:
            super().step_begins(step, number, of)
            if step.kind == "cooldown" and self.stop is not None:
                loop = asyncio.get_running_loop()
                loop.call_later(0.05, self.stop.now, "interrupted", "Ctrl-C")

    notebook = Impatient(OurEngine())
    await asyncio.wait_for(run(notebook, a_plan(replace(SPEC, cooldown_s=600.0))), 60)
    assert notebook.steps[-1] == "cooldown"
    assert len(notebook.records) == 1
    assert notebook.engine.alive == 0
