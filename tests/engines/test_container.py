"""An engine that a container launcher starts is no child of ours, and is ended by its name."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from engine_places import eventually, exists, living, scripted_vllm

from edgeagent.core.model import EngineConfig
from edgeagent.engines.container import container_of, launches, start_process, tree_of
from edgeagent.engines.leftover import LABEL, end_left, has_gone, myself
from edgeagent.engines.vllm import VllmEngine, VllmServer, members
from edgeagent.errors import UsageError

pytestmark = pytest.mark.anyio

STAND_IN = Path(__file__).with_name("stand_in_docker.py")

# ----------------------------------------------------------------------------- the launch line


@pytest.mark.parametrize(
    ("command", "line", "stop"),
    [
        ("docker run --rm image", "docker run --name N -e A=1 --rm image", "docker"),
        ("podman run image", "podman run --name N -e A=1 image", "podman"),
        ("/usr/bin/nerdctl run i", "/usr/bin/nerdctl run --name N -e A=1 i", "/usr/bin/nerdctl"),
        (
            "sudo -n docker --context x run image",
            "sudo -n docker --context x run --name N -e A=1 image",
            "sudo -n docker --context x",
        ),
        ("docker container run image", "docker run --name N -e A=1 image", "docker"),
    ],
)
def test_a_container_gets_a_name_and_its_environment(command: str, line: str, stop: str) -> None:
    found = container_of(command.split(), {"A": "1"})
    assert found is not None
    assert found.name.startswith("edgeagent-")
    label = f" --label {LABEL}={myself()}"
    assert label in " ".join(found.argv)
    assert " ".join(found.argv).replace(found.name, "N").replace(label, "") == line
    assert " ".join(found.launcher) == stop


@pytest.mark.parametrize("form", [("--name", "mine"), ("--name=mine",)])
def test_the_operators_own_name_is_kept(form: tuple[str, ...]) -> None:
    found = container_of(("docker", "run", *form, "image"), {})
    assert found is not None
    assert found.name == "mine"
    assert found.argv == ("docker", "run", "--label", f"{LABEL}={myself()}", *form, "image")


def test_no_two_containers_have_one_name() -> None:
    one, other = (container_of(("docker", "run", "i"), {}) for _ in range(2))
    assert one is not None
    assert other is not None
    assert one.name != other.name


@pytest.mark.parametrize("command", ["llama-server", "my-run run", "python -m docker", "docker ps"])
def test_any_other_command_makes_no_container(command: str) -> None:
    assert container_of(command.split(), {}) is None
    assert not launches(command.split())


def test_a_detached_container_is_refused() -> None:
    with pytest.raises(UsageError, match=r"docker run has --detach: leave it out"):
        container_of(("docker", "run", "-d", "image"), {})


# --------------------------------------------------------------------------------- its process


@dataclass
class Docker:
    """The stand-in and what was asked of it."""

    command: tuple[str, ...]
    environment: dict[str, str]
    calls: Path

    def asked(self) -> list[str]:
        """Its commands, without the name that we made up."""
        lines = self.calls.read_text(encoding="utf-8").splitlines()
        return [" ".join(w for w in line.split() if "edgeagent-" not in w) for line in lines]


@pytest.fixture
async def docker(tmp_path: Path) -> AsyncIterator[Docker]:
    program = tmp_path / "docker"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {STAND_IN} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    path = tmp_path / "socket"
    daemon = subprocess.Popen([sys.executable, str(STAND_IN), "daemon", str(path)])  # noqa: ASYNC220  # because nothing else waits for the loop yet
    try:
        assert await eventually(path.exists)
        command = (str(program), "run", "--network", "host")
        environment = {**os.environ, "STAND_IN_SOCKET": str(path)}
        yield Docker(command, environment, Path(f"{path}.calls"))
    finally:
        for pid in tree_of(daemon.pid)[1:]:
            os.kill(pid, signal.SIGKILL)
        daemon.kill()
        daemon.wait()


def engine_in(docker: Docker) -> tuple[VllmEngine, EngineConfig]:
    command = (*docker.command, "edgeagent.engines.scripted_vllm")
    scripted = scripted_vllm(command=command, environment=docker.environment)
    return scripted.engine, EngineConfig(scripted.spec, 2, 256, "on", "off", "cpu")


async def started(engine: VllmEngine, config: EngineConfig, log: Path) -> VllmServer:
    server = await engine.start(config, log, 60)
    # What runs inside is found a moment after it runs.
    assert await eventually(lambda: len(members(server.pids())) == 2)
    return server


async def test_an_engine_in_a_container_is_seen_and_stopped_by_name(
    docker: Docker, tmp_path: Path
) -> None:
    engine, config = engine_in(docker)
    identity = engine.identify(config)
    assert (identity.version, identity.binary_sha256) == (None, None)
    assert identity.reason == "it runs in a container; its program was not seen"
    server = await started(engine, config, tmp_path / "log")
    # Its development routes were switched on by the environment inside.
    assert server.facts.slots == 2
    pids = server.pids()
    await engine.stop()
    assert not any(living(pid) for pid in pids)
    asked = [line for line in docker.asked() if not line.startswith(("run", "inspect", "ps"))]
    assert asked == ["stop -t 5", "rm -f"]
    await engine.stop()  # twice is once
    assert docker.asked()[-1] == "rm -f"


async def test_a_container_that_cannot_be_stopped_is_removed(
    docker: Docker, tmp_path: Path
) -> None:
    docker.environment["STAND_IN_BROKEN"] = "stop"
    engine, config = engine_in(docker)
    server = await started(engine, config, tmp_path / "log")
    pids = server.pids()
    await engine.stop()
    assert not any(living(pid) for pid in pids)
    assert docker.asked()[-1] == "rm -f"


async def test_the_guard_ends_what_runs_inside(docker: Docker, tmp_path: Path) -> None:
    engine, config = engine_in(docker)
    server = await started(engine, config, tmp_path / "log")
    pids = server.pids()
    await asyncio.to_thread(engine.kill, "no room")
    assert server.death() == "vLLM was ended by the memory guard: no room"
    assert await eventually(lambda: not any(living(pid) for pid in pids))
    await engine.stop()
    assert any(line.startswith("kill") for line in docker.asked())


async def test_a_launcher_that_dies_does_not_leave_its_container(
    docker: Docker, tmp_path: Path
) -> None:
    engine, config = engine_in(docker)
    server = await started(engine, config, tmp_path / "log")
    pids = server.pids()
    inside = {member.pid for member in members(pids)}
    client = next(pid for pid in pids if b"run" in _line(pid) and pid not in inside)
    os.kill(client, signal.SIGKILL)
    assert await eventually(lambda: server.death() is not None)
    await engine.stop()
    assert not any(living(pid) for pid in pids)


def _line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


AGENT = """
import asyncio, os, sys
from pathlib import Path
from edgeagent.engines.container import start_process

async def main():
    process = await start_process("engine", sys.argv[2:], dict(os.environ), Path(sys.argv[1]))
    while len(process.pids()) < 2:
        await asyncio.sleep(0.02)
    print(*process.pids(), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""
SLEEPS = "timeit", "-n1", "-r1", "__import__('time').sleep(600)"


async def test_what_a_killed_agent_left_is_ended_before_the_next_start(
    docker: Docker, tmp_path: Path
) -> None:
    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", AGENT, str(tmp_path / "left.log"), *docker.command, *SLEEPS,
        stdout=asyncio.subprocess.PIPE, env=docker.environment,
    )  # fmt: skip
    try:
        assert agent.stdout is not None
        line = await asyncio.wait_for(agent.stdout.readline(), 60)
    finally:
        agent.kill()
        await agent.wait()
    pids = [int(word) for word in line.split()]
    (inside,) = (pid for pid in pids if exists(pid) and b"stand_in" not in _line(pid))
    assert living(inside)  # its agent has gone, and the runtime does not know
    ours = await start_process(
        "engine", (*docker.command, *SLEEPS), docker.environment, tmp_path / "log"
    )
    try:
        assert not living(inside)
        # Ours has an agent: another start leaves it alone.
        assert await eventually(lambda: len(ours.pids()) >= 2)
        assert await end_left(docker.command[:1], docker.environment) == ()
        assert ours.death() is None
    finally:
        await ours.stop()


async def test_a_launcher_that_lists_nothing_is_no_trouble(docker: Docker) -> None:
    docker.environment["STAND_IN_BROKEN"] = "ps"
    assert await end_left(docker.command[:1], docker.environment) == ()
    assert await end_left(("/nowhere/docker",), docker.environment) == ()


def test_only_of_an_agent_of_this_boot_and_namespace_is_known_that_it_has_gone() -> None:
    we = myself()
    assert we is not None
    boot, namespace, pid, started = we.split("/")
    assert not has_gone(we, we)
    assert has_gone(f"{boot}/{namespace}/{pid}/{int(started) + 1}", we)  # its number was used again
    assert not has_gone(f"another-boot/{namespace}/{pid}/1", we)
    assert not has_gone(f"{boot}/1{namespace}/{pid}/1", we)
    assert not any(has_gone(text, we) for text in ("", "mine", f"{boot}/{namespace}/x/1"))


async def test_a_launcher_that_fails_is_quoted(docker: Docker, tmp_path: Path) -> None:
    docker.environment["STAND_IN_BROKEN"] = "run"
    process = await start_process(
        "engine", (*docker.command, "i"), docker.environment, tmp_path / "log"
    )
    try:
        assert await eventually(lambda: process.death() is not None)
        assert "ended with exit status 1" in (process.death() or "")
    finally:
        await process.stop()


async def test_any_other_engine_is_a_plain_process(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "import time; time.sleep(600)")
    process = await start_process("engine", command, dict(os.environ), tmp_path / "log")
    pids = process.pids()
    await process.stop()
    assert pids
    assert not any(exists(pid) for pid in pids)
