"""What does the core ask of the world?

Adapters implement these protocols and know nothing of each other. A fake counts as an
implementation and passes the same contract suite as the real thing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from edgeagent.core.model import (
    EngineConfig,
    EngineIdentity,
    MemorySample,
    RequestTrace,
    ServerFacts,
)


class Clock(Protocol):
    """Monotonic time, and waiting for it."""

    def now_ns(self) -> int:
        """Nanoseconds on a clock that never steps."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds` of this clock."""
        ...


@dataclass(frozen=True)
class Prompt:
    """A prompt in the form that the engine takes: exactly one field is set."""

    token_ids: tuple[int, ...] | None = None
    text: str | None = None
    messages: tuple[Mapping[str, str], ...] | None = None


@dataclass(frozen=True)
class Ask:
    """One request for tokens, in engine-neutral words."""

    prompt: Prompt
    max_tokens: int
    use_cache: bool
    """Whether the engine may reuse and keep this prompt's prefix."""
    slot: int | None = None
    """Pin to a slot where the engine can; used to prime caches."""
    ignore_eos: bool = True


@dataclass(frozen=True)
class HttpRequest:
    """A request ready for the wire: POST `path` with a JSON `body`."""

    path: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class Server(Protocol):
    """An engine that is ready."""

    @property
    def url(self) -> str:
        """Base URL, without a path: `http://127.0.0.1:43121`."""
        ...

    @property
    def facts(self) -> ServerFacts:
        """What the engine says of itself."""
        ...

    @property
    def argv(self) -> tuple[str, ...]:
        """The launch line as executed; empty when attached."""
        ...

    @property
    def ready_s(self) -> float | None:
        """Seconds from start to ready; None when attached."""
        ...

    def pids(self) -> tuple[int, ...]:
        """Every process of the engine that lives now; empty when attached."""
        ...

    def death(self) -> str | None:
        """None while the engine lives; else one sentence with its last words."""
        ...

    async def tokenize(self, text: str) -> tuple[int, ...] | None:
        """Token ids without special tokens; None when the engine has no tokenizer endpoint."""
        ...

    def request(self, ask: Ask) -> HttpRequest:
        """The engine's own wire form of `ask`, streaming, with exact token counts switched on."""
        ...

    async def reset_cache(self) -> bool:
        """Forget cached prefixes; whether the engine could."""
        ...

    async def counters(self) -> Mapping[str, float]:
        """Engine counters that prove things (cached tokens, drafts); empty when it has none."""
        ...


class Engine(Protocol):
    """One configured engine: it can be identified, started and stopped."""

    def identify(self, config: EngineConfig) -> EngineIdentity:
        """Version, hashes and launch line, without starting it. Raises UsageError."""
        ...

    async def start(self, config: EngineConfig, log: Path, timeout_s: float) -> Server:
        """Start and wait until ready; EngineError explains a failure by the engine's own words."""
        ...

    async def stop(self) -> None:
        """End every process of the engine; safe to call twice or before any start."""
        ...

    def pids(self) -> tuple[int, ...]:
        """Every process of the engine that is starting or runs; empty otherwise and when attached.

        May be called from any thread.
        """
        ...

    def starting(self) -> str | None:
        """What a start under way is doing, in a few words; None when nobody can say."""
        ...

    def kill(self, why: str) -> None:
        """SIGKILL every process of the engine at once, from any thread, without waiting.

        From then on the server's `death` and a start under way (GuardError) say that the memory
        guard did it, and `why`. `stop` is still needed. Does nothing when none runs or when
        attached.
        """
        ...


Readings: TypeAlias = tuple[Mapping[str, float | int | None], Mapping[str, str]]
"""Values by name, and why each None among them is one."""


class Probe(Protocol):
    """One source of readings. Reading never raises: what cannot be read is None, with a reason."""

    @property
    def name(self) -> str:
        """Short name, the first part of its values' names."""
        ...

    def read(
        self, pids: Sequence[int]
    ) -> tuple[Mapping[str, float | int | None], Mapping[str, str]]:
        """Values by name, and for each None the reason; `pids` is the engine's process tree."""
        ...

    def facts(self) -> Mapping[str, object]:
        """What does not change while it reads: settings in words, names of devices, versions."""
        ...

    def close(self) -> None:
        """Let go of what the probe holds."""
        ...


class TraceSink(Protocol):
    """Where raw records go the moment they exist."""

    def append_request(self, trace: RequestTrace) -> None:
        """Keep one request."""
        ...

    def append_sample(self, sample: MemorySample) -> None:
        """Keep one sample."""
        ...
