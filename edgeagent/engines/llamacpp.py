"""How is a llama-server started, asked and believed?

It is started with everything pinned that would change memory or caching silently (flags.py), and
when it is ready its *effective* slots, context and offload are read back: what it does counts, not
what it was asked. Facts about builds b10434 and b11434 are in docs/engines.md.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal, Protocol

from edgeagent.core.device import device_contradiction
from edgeagent.core.model import (
    EngineConfig,
    EngineIdentity,
    EngineSpec,
    ModelIdentity,
    ServerFacts,
)
from edgeagent.engines import container, program, wire
from edgeagent.engines.container import Process
from edgeagent.engines.flags import CONSERVATIVE, KnownFlags, choose_flags, parse_help
from edgeagent.engines.llama_log import with_log
from edgeagent.engines.process import free_port, scrubbed
from edgeagent.engines.rest import Rest
from edgeagent.engines.started import Started
from edgeagent.errors import (
    DeviceMismatchError,
    EngineError,
    GuardError,
    UnreachableError,
    UsageError,
)
from edgeagent.ports import Ask, HttpRequest

_ASK_BINARY_S = 20.0
_PORT_TRIES = 3
_POLL_S = 0.05
_CANNOT_BIND = "couldn't bind HTTP server socket"


class HashFile(Protocol):
    """SHA-256 of a file, as hex."""

    def __call__(self, path: Path) -> str:
        """Read it all, or remember."""
        ...


@dataclass(frozen=True)
class LlamaCppModel:
    """What the adapter must know of the weights; read from the file by models/gguf.py."""

    identity: ModelIdentity
    sliding_window: bool | None = None


def request(ask: Ask) -> HttpRequest:
    """llama-server's wire form: token ids or text to /v1/completions, messages to the chat route.

    `timings_per_token` makes every event say how many tokens have been generated, since one event
    is not one token; `seed` and temperature 0 make the work repeatable.
    """
    body: dict[str, object] = {
        "stream": True,
        "stream_options": {"include_usage": True},
        "timings_per_token": True,
        "max_tokens": ask.max_tokens,
        "temperature": 0.0,
        "seed": 1,
        "ignore_eos": ask.ignore_eos,
        "cache_prompt": ask.use_cache,
    }
    if ask.slot is not None:
        body["id_slot"] = ask.slot
    return wire.generate(ask, body)


class LlamaCppServer(Started):
    """A llama-server that is ready, started by us or by somebody else."""

    async def tokenize(self, text: str) -> tuple[int, ...] | None:
        """Token ids of `text` without special tokens."""
        answer = await self._rest.post("/tokenize", {"content": text, "add_special": False})
        tokens = answer.mapping().get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(t, int) for t in tokens):
            return None
        return tuple(tokens) or None

    def request(self, ask: Ask) -> HttpRequest:
        """The wire form of `ask`."""
        return request(ask)

    async def reset_cache(self) -> bool:
        """Erase every slot's cache; False when the server does not offer it."""
        try:
            answers = [
                await self._rest.post(f"/slots/{slot}?action=erase", {})
                for slot in range(self._facts.slots or 0)
            ]
        except UnreachableError:
            return False
        return bool(answers) and all(answer.status == 200 for answer in answers)  # noqa: PLR2004  # because HTTP's OK is its own name

    async def counters(self) -> Mapping[str, float]:
        """Prompt and draft counters from /metrics; empty without that endpoint."""
        try:
            answer = await self._rest.get("/metrics")
        except UnreachableError:
            return {}
        return counters(answer.text) if answer.status == 200 else {}  # noqa: PLR2004  # because see above


_COUNTERS = {
    "llamacpp:prompt_tokens_total": "prompt_tokens",
    "llamacpp:prompt_tokens_cached_total": "cached_prompt_tokens",
    "llamacpp:tokens_predicted_total": "output_tokens",
    "llamacpp:spec_decode_num_drafts_total": "drafts",
    "llamacpp:spec_decode_num_draft_tokens_total": "draft_tokens",
    "llamacpp:spec_decode_num_accepted_tokens_total": "draft_accepted",
}


def counters(text: str) -> dict[str, float]:
    """Our names for llama-server's counters, from the text of /metrics."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name in _COUNTERS:
            try:
                found[_COUNTERS[name]] = float(value)
            except ValueError:
                continue
    return found


async def facts_of(rest: Rest) -> ServerFacts:
    """What a running llama-server says at /props, /slots and /v1/models."""
    props = (await rest.get("/props")).mapping()
    slots = (await rest.get("/slots")).json()
    listed = slots if isinstance(slots, list) else []
    speculative = [slot.get("speculative") for slot in listed if isinstance(slot, dict)]
    settings = props.get("default_generation_settings")
    context = settings.get("n_ctx") if isinstance(settings, dict) else None
    total = props.get("total_slots")
    build = props.get("build_info")
    path = props.get("model_path")
    return ServerFacts(
        slots=total if isinstance(total, int) else len(listed) or None,
        context_per_slot=context if isinstance(context, int) else None,
        version=build if isinstance(build, str) else None,
        model=path if isinstance(path, str) else None,
        speculative=any(speculative) if speculative else None,
    )


class LlamaCppEngine:
    """Starts llama-server for one engine of the sweep."""

    def __init__(
        self,
        spec: EngineSpec,
        model: LlamaCppModel,
        hash_file: HashFile,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._spec = spec
        self._model = model
        self._hash_file = hash_file
        self._environment = scrubbed(os.environ if environment is None else environment, spec.env)
        self._process: Process | None = None
        self._rest: Rest | None = None
        self._slot_folder: Path | None = None
        self._killed: str | None = None
        """Why the guard has ended the present start or launch."""

    # ------------------------------------------------------------------ before any start

    def identify(self, config: EngineConfig) -> EngineIdentity:
        """Version, hash and launch line. Raises UsageError when there is no such program."""
        contained = container.launches(self._spec.command)
        binary = find_program(self._spec.command[0])
        flags = self._flags(config)
        version = _version(self._spec.command, self._environment_key())
        return EngineIdentity(
            id=self._spec.id,
            kind="llamacpp",
            version=version,
            # Of a container the launcher is here, and the program is not.
            binary_sha256=None if contained else hash_program(binary, self._hash_file),
            argv=(*self._spec.command, *flags),
            env=self._spec.env,
            attached=False,
            model=self._model.identity,
            reason=_unknown(version, "in a container" if contained else "here"),
        )

    def _environment_key(self) -> tuple[tuple[str, str], ...]:
        return tuple(sorted(self._environment.items()))

    def _known(self) -> KnownFlags:
        return _known_flags(self._spec.command, self._environment_key())

    def _flags(self, config: EngineConfig) -> tuple[str, ...]:
        return choose_flags(config, self._known(), self._model.sliding_window).argv

    # -------------------------------------------------------------------------- start

    async def start(self, config: EngineConfig, log: Path, timeout_s: float) -> LlamaCppServer:
        """Start and wait until ready. Raises EngineError in the engine's own words."""
        self._killed = None
        for attempt in range(_PORT_TRIES):
            try:
                return await self._start_once(config, log, timeout_s)
            except EngineError as error:
                await self.stop()
                # Somebody took the port between our choice and its use.
                if _CANNOT_BIND not in str(error) or attempt == _PORT_TRIES - 1:
                    raise
        raise AssertionError  # pragma: no cover  # because the loop returns or raises

    async def _start_once(
        self, config: EngineConfig, log: Path, timeout_s: float
    ) -> LlamaCppServer:
        known = self._known()
        choice = choose_flags(config, known, self._model.sliding_window)
        port = free_port()
        where = ["--host", "127.0.0.1", "--port", str(port)]
        argv = [*self._spec.command, "-m", self._model.identity.path, *where, *choice.argv]
        if "--slot-save-path" in known:
            # Without a folder the server refuses to erase a slot's cache; nothing is saved there.
            self._slot_folder = log.parent / "slots"
            self._slot_folder.mkdir(exist_ok=True)
            argv += ["--slot-save-path", f"{self._slot_folder}/"]
        begun = time.monotonic()
        self._process = await container.start_process(
            "llama-server", argv, self._environment, log, dict(self._spec.env)
        )
        if self._killed is not None:  # while it was being made
            self._process.kill(self._killed)
        self._rest = Rest(f"http://127.0.0.1:{port}", timeout_s=60)
        await self._ready(self._process, self._rest, timeout_s)
        ready_s = time.monotonic() - begun
        facts = await self._facts(config, self._process, self._rest, choice.notes)
        return LlamaCppServer(self._rest, believed(config, facts), self._process, argv, ready_s)

    async def _ready(self, process: Process, rest: Rest, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            _raise_death(process)
            try:
                if (await rest.get("/health")).status == 200:  # noqa: PLR2004  # because HTTP's OK
                    return
            except UnreachableError:
                pass  # refused until it listens
            await asyncio.sleep(_POLL_S)
        raise EngineError(
            f"llama-server was not ready after {timeout_s:.0f} s; see its log, or give it more "
            "time with --start-timeout"
        )

    async def _facts(
        self, config: EngineConfig, process: Process, rest: Rest, notes: Sequence[str]
    ) -> ServerFacts:
        try:
            facts = await facts_of(rest)
        except UnreachableError:
            _raise_death(process)
            raise
        facts = with_log(facts, process.log_head())
        details = {
            **facts.details,
            "flag_notes": list(notes),
            "cgroup": process.isolation(),
        }
        return replace(facts, prefix_cache=config.prefix_cache == "on", details=details)

    async def stop(self) -> None:
        """End every process of the engine."""
        if self._rest is not None:
            await self._rest.aclose()
            self._rest = None
        if self._process is not None:
            await self._process.stop()
            self._process = None
        if self._slot_folder is not None:
            shutil.rmtree(self._slot_folder, ignore_errors=True)
            self._slot_folder = None

    def pids(self) -> tuple[int, ...]:
        """Every living process of the engine that is starting or runs."""
        process = self._process
        return process.pids() if process else ()

    def starting(self) -> str | None:
        """Nothing to say: it takes seconds, or as long as reading the model does."""
        return None

    def kill(self, why: str) -> None:
        """SIGKILL all of it from any thread; a start under way ends with GuardError."""
        self._killed = why
        process = self._process
        if process is not None:
            process.kill(why)


def _raise_death(process: Process) -> None:
    """Raises EngineError when it has died, GuardError when the guard did it."""
    death = process.death()
    if death is None:
        return
    if process.guarded:
        raise GuardError(f"{death}: give it less context, fewer slots or a smaller model")
    raise EngineError(f"{death}: correct that and start again")


def believed(config: EngineConfig, facts: ServerFacts) -> ServerFacts:
    """`facts` with what differs from what was asked; EngineError when that forbids measuring.

    Fewer slots or a smaller context would measure another question; so would a model on another
    device than the one that was asked for (DeviceMismatchError).
    """
    _refuse_other_device(config, facts)
    differences: list[str] = []
    if facts.slots is not None and facts.slots != config.slots:
        differences.append(f"asked for {config.slots} slots, it has {facts.slots}")
    context = facts.context_per_slot
    if context is not None and context < config.context_per_slot:
        differences.append(f"asked for {config.context_per_slot} tokens per slot, it has {context}")
    if differences:
        raise EngineError(
            f"llama-server does not run as asked ({'; '.join(differences)}): "
            "correct --slots, --context or the engine's own arguments"
        )
    if config.speculation != "off" and facts.speculative is False:
        differences.append(f"asked for speculation {config.speculation}, it does not speculate")
    offloaded, total = facts.offloaded_layers, facts.total_layers
    if config.device == "auto" and offloaded and total and offloaded < total:
        differences.append(f"only {offloaded} of {total} layers are on the GPU")
    if facts.details.get("kv_unified") in ("true", "1"):
        differences.append("slots share one pool (unified cache), so a slot's cost is not its own")
    return replace(facts, details={**facts.details, "differences": differences})


def _refuse_other_device(config: EngineConfig, facts: ServerFacts) -> None:
    found = device_contradiction(config.device, None, facts.offloaded_layers)
    if config.device == "gpu" and (saying := facts.details.get("no_gpu")):
        found = f'the GPU was asked for and its log says "{saying}"'
    elif config.device == "gpu" and facts.offloaded_layers is None:
        found = "the GPU was asked for and its log does not say that any layer is on one"
    if found is not None:
        raise DeviceMismatchError(
            f"device_mismatch: llama-server is up, but {found}: check the driver, that this user "
            "may open the GPU's devices (groups video and render) and that the build has a GPU "
            "backend, or correct --device"
        )


# ------------------------------------------------------------------------------- the program


def find_program(name: str) -> Path:
    """The file behind a command's first word, links followed. Raises UsageError."""
    remedy = "install llama.cpp, or give --binary PATH"
    return program.find(name, "a llama-server", remedy).resolve()


def hash_program(program: Path, hash_file: HashFile) -> str:
    """SHA-256 over the program and the shared libraries beside it.

    Ready-built llama.cpp packages keep all their code in libraries next to a small launcher, which
    stays the same when the code changes.
    """
    beside = sorted({path.resolve() for path in program.parent.glob("lib*.so*") if path.is_file()})
    if not beside:
        return hash_file(program)
    whole = hashlib.sha256()
    for path in (program, *beside):
        whole.update(f"{path.name} {hash_file(path)}\n".encode())
    return whole.hexdigest()


@lru_cache(maxsize=32)
def _known_flags(command: tuple[str, ...], environment: tuple[tuple[str, str], ...]) -> KnownFlags:
    answer = _ask_program((*command, "--help"), environment)
    known = parse_help(answer)
    if "--port" in known:
        return known
    if len(command) == 1:
        raise UsageError(
            f"--binary {command[0]} was asked for --help and did not answer like a llama-server: "
            f"{_first_line(answer)}"
        )
    return CONSERVATIVE


def _unknown(version: str | None, runs: Literal["here", "in a container"]) -> str | None:
    """Why something about the program is null."""
    reasons = []
    if runs == "in a container":
        reasons.append("it runs in a container; its program was not seen")
    if version is None:
        reasons.append("it does not tell its version before it is started")
    return "; ".join(reasons) or None


@lru_cache(maxsize=32)
def _version(command: tuple[str, ...], environment: tuple[tuple[str, str], ...]) -> str | None:
    found = re.search(r"version: (.+)", _ask_program((*command, "--version"), environment))
    return found.group(1).strip() if found else None


def _ask_program(argv: tuple[str, ...], environment: tuple[tuple[str, str], ...]) -> str:
    """What a short run of the program prints; empty when it does not end by itself."""
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            timeout=_ASK_BINARY_S,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ""
    except OSError as error:
        raise UsageError(
            f"{argv[0]} was started and cannot run here ({error.strerror}): give a program for "
            "this machine"
        ) from error
    return (done.stdout + b"\n" + done.stderr).decode("utf-8", "replace")


def _first_line(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "it said nothing")
    return line[:200]
