"""How is an engine ended that a container launcher starts?

`docker run ... IMAGE` is only a client: the engine is a child of the container's runtime, so ending
the client ends nothing for sure. The container therefore gets a name (unless the operator named
it), is stopped by that name, and removed when it does not go; one that a killed agent has left is
ended before the next starts (leftover.py). Docker, Podman and nerdctl share the words used here.

The engine listens on the host's loopback at a port of our choice, so the operator's command needs
`--network host`; the model's folder must be mounted at its own path.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from edgeagent.engines import leftover
from edgeagent.engines.leftover import LABEL
from edgeagent.engines.process import GRACE_S, EngineProcess
from edgeagent.errors import UsageError

_LAUNCHERS = frozenset({"docker", "podman", "nerdctl"})
_PROC = Path("/proc")
_ASK_S = 20.0
"""How long the launcher may take for one small answer, the grace of a stop not counted."""
_FIND_EVERY_S = 1.0


class Process(Protocol):
    """An engine that was started, by us or in a container; as process.EngineProcess has it."""

    @property
    def status(self) -> int | None:
        """Exit status; negative for a signal; None while it runs."""
        ...

    @property
    def guarded(self) -> bool:
        """Whether the memory guard ended it."""
        ...

    def pids(self) -> tuple[int, ...]:
        """Every process of the engine."""
        ...

    def death(self) -> str | None:
        """None while it lives; else one sentence."""
        ...

    def kill(self, why: str) -> None:
        """SIGKILL all of it, from any thread, without waiting."""
        ...

    def isolation(self) -> Mapping[str, object]:
        """Its cgroup, or why it has none of its own."""
        ...

    def log_text(self) -> str:
        """The last part of what it has written."""
        ...

    def log_head(self, limit: int = ...) -> str:
        """The first part of it."""
        ...

    async def stop(self) -> None:
        """End every process and wait until none is left."""
        ...


@dataclass(frozen=True)
class Container:
    """A container that a launch line makes: how to launch it and how to speak of it."""

    launcher: tuple[str, ...]
    """Program and global options, up to the word `run`: `stop NAME` is appended to them."""
    arguments: tuple[str, ...]
    """What stood behind `run`."""
    name: str
    named_by_us: bool
    passed: Mapping[str, str] = field(default_factory=dict)
    """Environment that has to reach the engine inside."""
    agent: str | None = None
    """Whose it is, for its label."""

    @property
    def argv(self) -> tuple[str, ...]:
        """The launch line with our name and environment in it."""
        added: tuple[str, ...] = ("--name", self.name) if self.named_by_us else ()
        if self.agent is not None:
            added = (*added, "--label", f"{LABEL}={self.agent}")
        environment = tuple(
            word for name, value in self.passed.items() for word in ("-e", f"{name}={value}")
        )
        return (*self.launcher, "run", *added, *environment, *self.arguments)


def launches(command: Sequence[str]) -> bool:
    """Whether `command` starts a container."""
    return _run_word(command) is not None


def container_of(command: Sequence[str], passed: Mapping[str, str]) -> Container | None:
    """The container that a launch line makes; None for any other command. Raises UsageError."""
    at = _run_word(command)
    if at is None:
        return None
    arguments = tuple(command[at + 1 :])
    if any(word in ("-d", "--detach") for word in arguments):
        raise UsageError(
            f"the command {' '.join(command[: at + 1])} has --detach: leave it out, since an "
            "engine is watched while its launcher runs"
        )
    name = _option(arguments, "--name")
    launcher = tuple(command[:at])
    if launcher[-1] == "container":
        launcher = launcher[:-1]
    return Container(
        launcher=launcher,
        arguments=arguments,
        name=name or f"edgeagent-{uuid.uuid4().hex[:12]}",
        named_by_us=name is None,
        passed=passed,
        agent=leftover.myself(),
    )


async def start_process(
    name: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    passed: Mapping[str, str] | None = None,
) -> Process:
    """Start `command` as EngineProcess.start does; a container is ended by its name.

    `passed` is what a container has to be given of the environment. Raises EngineError, UsageError.
    """
    container = container_of(command, passed or {})
    if container is None:
        return await EngineProcess.start(name, command, environment, log)
    await leftover.end_left(container.launcher, environment)
    client = await EngineProcess.start(name, container.argv, environment, log)
    return Contained(client, container, environment)


class Contained:
    """An engine in a container: its launcher is a process of ours, the rest is not."""

    def __init__(
        self, client: EngineProcess, container: Container, environment: Mapping[str, str]
    ) -> None:
        self._client = client
        self._container = container
        self._environment = dict(environment)
        self._root: int | None = None
        """The container's first process, as this box numbers it."""
        self._killer: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self._finder = asyncio.ensure_future(self._find())

    @property
    def status(self) -> int | None:
        """Of the launcher, which passes on the container's."""
        return self._client.status

    @property
    def guarded(self) -> bool:
        """Whether the memory guard ended it."""
        return self._client.guarded

    def pids(self) -> tuple[int, ...]:
        """The launcher's processes and the container's, as far as this box shows them."""
        root = self._root
        inside = () if root is None else tree_of(root)
        return (*self._client.pids(), *inside)

    def death(self) -> str | None:
        """As the launcher's."""
        return self._client.death()

    def kill(self, why: str) -> None:
        """SIGKILL the container's processes and have the runtime do it too."""
        self._client.kill(why)
        root = self._root
        for pid in () if root is None else tree_of(root):
            # Another user's, as a runtime's often are: then the launcher has to do it.
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            self._killer = subprocess.Popen(
                (*self._container.launcher, "kill", self._container.name),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=self._environment,
            )

    def isolation(self) -> Mapping[str, object]:
        """The launcher's cgroup and the container's name."""
        return {**self._client.isolation(), "container": self._container.name}

    def log_text(self) -> str:
        """The last part of what it has written."""
        return self._client.log_text()

    def log_head(self, limit: int = 1 << 20) -> str:
        """The first part of it."""
        return self._client.log_head(limit)

    async def stop(self) -> None:
        """Stop the container by its name, end its launcher, and remove what is left."""
        if self._stopped:
            await self._client.stop()
            return
        self._stopped = True
        self._finder.cancel()
        await asyncio.gather(self._finder, return_exceptions=True)
        if not self._client.guarded:
            await self._tell("stop", "-t", str(round(GRACE_S)))
        await self._client.stop()
        # With --rm it has gone by now, and the launcher says so; a name must be free again.
        await self._tell("rm", "-f")
        if self._killer is not None:
            await asyncio.to_thread(_reap, self._killer)
        await self._gone()

    async def _find(self) -> None:
        """Ask for the container's first process until there is one."""
        while self._root is None and self._client.status is None:
            said = await self._tell("inspect", "-f", "{{.State.Pid}}")
            if said is not None and said.isdigit() and int(said) > 1:
                self._root = int(said)
                return
            await asyncio.sleep(_FIND_EVERY_S)

    async def _tell(self, *words: str) -> str | None:
        """What the launcher answers about our container; None when it fails or does not answer."""
        command = (*self._container.launcher, *words, self._container.name)
        return await leftover.told(command, self._environment, _ASK_S + GRACE_S)

    async def _gone(self) -> None:
        """Wait for the end of the container's first process; insist where that is allowed."""
        deadline = asyncio.get_running_loop().time() + GRACE_S
        root = self._root
        while root is not None and (left := tree_of(root)):
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            if asyncio.get_running_loop().time() > deadline:
                return
            await asyncio.sleep(0.02)


def tree_of(root: int) -> tuple[int, ...]:
    """A living process and its descendants; empty when it has ended."""
    children: dict[int, list[int]] = {}
    states: dict[int, str] = {}
    for folder in _PROC.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            stat = (folder / "stat").read_text(encoding="latin-1")
        except OSError:
            continue
        state, parent = stat.rpartition(")")[2].split()[:2]
        states[int(folder.name)] = state
        children.setdefault(int(parent), []).append(int(folder.name))
    if states.get(root, "X") in "ZX":
        return ()
    found: list[int] = []
    below = [root]
    while below:
        found += below
        below = [child for pid in below for child in children.get(pid, ())]
    return tuple(found)


def _reap(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_ASK_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _run_word(command: Sequence[str]) -> int | None:
    """Where the word `run` of a container launcher stands."""
    for at, word in enumerate(command):
        if word == "run":
            return at if any(Path(w).name in _LAUNCHERS for w in command[:at]) else None
    return None


def _option(arguments: Sequence[str], name: str) -> str | None:
    for at, word in enumerate(arguments):
        if word == name and at + 1 < len(arguments):
            return arguments[at + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None
