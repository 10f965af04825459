"""How is a vLLM started, asked and believed?

Its pool, lengths and caching are pinned (vllm_flags.py) and read back when it is ready
(vllm_facts.py): what it does counts, not what it was asked. A start takes from half a minute to
several; nothing listens until its end, so the log tells how far it has come (vllm_log.py). It is
three processes that outlive one another, and all of them are ended (docs/engines.md).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgeagent.core.model import EngineConfig, EngineIdentity, EngineSpec, ServerFacts
from edgeagent.engines import container, vllm_facts, vllm_log, vllm_program, vllm_shm, vllm_wire
from edgeagent.engines.container import Process
from edgeagent.engines.process import ended, free_port, scrubbed
from edgeagent.engines.rest import Rest
from edgeagent.engines.started import Started
from edgeagent.engines.vllm_flags import (
    FlagChoice,
    Place,
    VllmModel,
    choose_flags,
    environment,
    without_steering,
)
from edgeagent.engines.vllm_log import Cause
from edgeagent.engines.vllm_program import HashFile, Program
from edgeagent.errors import EngineError, GuardError, UnreachableError
from edgeagent.ports import Ask, HttpRequest

_TRIES: Mapping[vllm_log.Kind, int] = {"port_busy": 3, "memory_race": 2}
"""How often a start is tried whose failure was somebody else's doing."""

_OK = 200
_POLL_S = 0.1
_ASK_S = 60.0
_PROC = Path("/proc")
_CORE = "VLLM::"
"""What its engine's processes call themselves; without one of them it is as good as dead."""


@dataclass(frozen=True)
class Member:
    """A process without which a vLLM cannot answer."""

    pid: int
    title: str


class VllmServer(Started):
    """A vLLM that is ready, started by us or by somebody else."""

    def __init__(
        self,
        rest: Rest,
        facts: ServerFacts,
        process: Process | None = None,
        argv: Sequence[str] = (),
        ready_s: float | None = None,
    ) -> None:
        super().__init__(rest, facts, process, argv, ready_s)
        self._members = () if process is None else members(process.pids())

    def death(self) -> str | None:
        """None while it lives (or when attached: then requests tell).

        It counts as dead as soon as one of its engine's processes is: its API server answers on
        for seconds, and then ends with exit status 0.
        """
        return _death(self._process, self._members) if self._process else None

    async def tokenize(self, text: str) -> tuple[int, ...] | None:
        """Token ids of `text` without special tokens."""
        return await vllm_facts.tokens_of(self._rest, self._facts.model or "", text)

    def request(self, ask: Ask) -> HttpRequest:
        """The wire form of `ask`."""
        return vllm_wire.request(ask, self._facts.model or "")

    async def reset_cache(self) -> bool:
        """Forget cached prefixes; False while a request runs or where it is not offered."""
        return await vllm_facts.reset_cache(self._rest)

    async def counters(self) -> Mapping[str, float]:
        """Counters and the pool's use from /metrics; empty without that endpoint."""
        return await vllm_facts.read_counters(self._rest)


class VllmEngine:
    """Starts vLLM for one engine of the sweep."""

    def __init__(
        self,
        spec: EngineSpec,
        model: VllmModel,
        hash_file: HashFile,
        inherited: Mapping[str, str] | None = None,
        place: Place | None = None,
    ) -> None:
        self._spec = spec
        self._model = model
        self._hash_file = hash_file
        self._inherited = os.environ if inherited is None else inherited
        self._place = place or Place.here()
        self._process: Process | None = None
        self._rest: Rest | None = None
        self._shm: frozenset[str] | None = None
        self._killed: str | None = None
        """Why the guard has ended the present start or launch."""

    # ------------------------------------------------------------------ before any start

    def identify(self, config: EngineConfig) -> EngineIdentity:
        """Version, hash and launch line. Raises UsageError when there is no such program."""
        program = self._program(config)
        line = vllm_program.launch_line(self._spec.command)
        return EngineIdentity(
            id=self._spec.id,
            kind="vllm",
            version=program.version,
            binary_sha256=program.sha256,
            argv=(*line, *self._flags(config).argv),
            env=tuple(sorted(self._set(config).items())),
            attached=False,
            model=self._model.identity,
            reason=program.reason,
        )

    def _program(self, config: EngineConfig) -> Program:
        if container.launches(self._spec.command):
            vllm_program.find(self._spec.command[0])
            return Program(None, None, "it runs in a container; its program was not seen")
        return vllm_program.look_at(self._spec.command, self._environment(config), self._hash_file)

    def _flags(self, config: EngineConfig) -> FlagChoice:
        return choose_flags(config, self._model, self._place)

    def _set(self, config: EngineConfig) -> dict[str, str]:
        """What is set for the engine, by us and by the operator."""
        return environment(self._inherited, config, self._place)

    def _environment(self, config: EngineConfig) -> dict[str, str]:
        kept = without_steering(scrubbed(self._inherited, ()))
        return {**kept, **self._set(config)}

    # -------------------------------------------------------------------------- start

    async def start(self, config: EngineConfig, log: Path, timeout_s: float) -> VllmServer:
        """Start and wait until ready. Raises EngineError in the engine's own words."""
        self._killed = None
        tries = 0
        while True:
            tries += 1
            try:
                return await self._start_once(config, log, timeout_s)
            except EngineError as error:
                await self.stop()
                kind = error.cause.kind if isinstance(error, _StartError) else "other"
                if tries >= _TRIES.get(kind, 1):
                    raise

    async def _start_once(self, config: EngineConfig, log: Path, timeout_s: float) -> VllmServer:
        choice = self._flags(config)
        port = free_port()
        folder = Path(self._model.identity.path).absolute()  # the same inside a container
        line = vllm_program.launch_line(self._spec.command, str(folder))
        argv = [*line, "--host", "127.0.0.1", "--port", str(port), *choice.argv]
        begun = time.monotonic()
        self._shm = vllm_shm.seen()
        self._process = await container.start_process(
            "vLLM", argv, self._environment(config), log, self._set(config)
        )
        if self._killed is not None:  # while it was being made
            self._process.kill(self._killed)
        self._rest = Rest(f"http://127.0.0.1:{port}", timeout_s=_ASK_S)
        await self._ready(self._process, self._rest, timeout_s)
        ready_s = time.monotonic() - begun
        facts = await self._facts(choice, self._process, self._rest)
        believed = vllm_facts.believed(config, facts)
        return VllmServer(self._rest, believed, self._process, argv, ready_s)

    async def _ready(self, process: Process, rest: Rest, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            _raise_death(process)
            try:
                if (await rest.get("/health")).status == _OK:
                    return
            except UnreachableError:
                pass  # refused until it listens
            await asyncio.sleep(_POLL_S)
        stage = vllm_log.stage(process.log_head()) or "its first word"
        raise EngineError(
            f"vLLM was not ready after {timeout_s:.0f} s (it had come to: {stage}); see its log, "
            "or give it more time with --start-timeout"
        )

    async def _facts(self, choice: FlagChoice, process: Process, rest: Rest) -> ServerFacts:
        try:
            facts = await vllm_facts.facts_of(rest)
        except UnreachableError:
            _raise_death(process)
            raise
        device = vllm_log.device(process.log_head()) or facts.details.get("device")
        details = {
            **facts.details,
            "flag_notes": list(choice.notes),
            "cgroup": process.isolation(),
            **({} if device is None else {"device": device}),
        }
        # With everything on the CPU no layer is on a GPU; how many are else it does not say.
        layers = 0 if device == "cpu" else None
        facts = replace(facts, offloaded_layers=layers, details=details)
        return vllm_facts.with_pool(facts, choice.pool, self._model.shape)

    def starting(self) -> str | None:
        """How far a start has come, in words; None when nothing starts or it has said nothing."""
        process = self._process
        return None if process is None else vllm_log.stage(process.log_head())

    async def stop(self) -> None:
        """End every process of the engine and remove what it left in shared memory."""
        if self._rest is not None:
            await self._rest.aclose()
            self._rest = None
        if self._process is not None:
            await self._process.stop()
            self._process = None
        if self._shm is not None:
            vllm_shm.remove_leftovers(self._shm)
            self._shm = None

    def pids(self) -> tuple[int, ...]:
        """Every living process of the engine that is starting or runs."""
        process = self._process
        return process.pids() if process else ()

    def kill(self, why: str) -> None:
        """SIGKILL all of it from any thread; a start under way ends with GuardError."""
        self._killed = why
        process = self._process
        if process is not None:
            process.kill(why)


class _StartError(EngineError):
    """A start that failed, and why."""

    def __init__(self, text: str, cause: Cause) -> None:
        super().__init__(text)
        self.cause = cause


def members(pids: Sequence[int]) -> tuple[Member, ...]:
    """Those processes that a vLLM cannot do without, by what they call themselves."""
    found = []
    for pid in pids:
        try:
            line = (_PROC / str(pid) / "cmdline").read_bytes()
        except OSError:
            continue
        title = line.split(b"\0", 1)[0].decode("utf-8", "replace")
        if title.startswith(_CORE):
            found.append(Member(pid, title))
    return tuple(found)


def _living(pid: int) -> bool:
    try:
        stat = (_PROC / str(pid) / "stat").read_text(encoding="latin-1")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def _raise_death(process: Process) -> None:
    """Raises _StartError when it has died, GuardError when the guard did it."""
    death = _death(process, ())
    if death is None:
        return
    if process.guarded:
        raise GuardError(f"{death}: give it less context, fewer slots or a smaller model")
    cause = vllm_log.cause(process.log_head()) or Cause("other", "")
    raise _StartError(f"{death}: {cause.forward}", cause)


def _death(process: Process, needed: Sequence[Member]) -> str | None:
    if process.guarded:
        return process.death()
    if process.status is not None:
        how = ended(process.status)
    else:
        gone = next((member for member in needed if not _living(member.pid)), None)
        if gone is None:
            return None
        how = f"lost its process {gone.title}"
    cause = vllm_log.cause(process.log_text())
    said = f'; the cause in its log is "{cause.words}"' if cause else "; its log is empty"
    return f"vLLM {how}{said}"
