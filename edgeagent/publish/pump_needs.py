"""What does the pump ask of the spool and of its surroundings?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from edgeagent.core.delivery import Entry, Row, Stamp, Stream
from edgeagent.core.window import Limits, Setting
from edgeagent.publish.status import About
from edgeagent.publish.wire import Command


class Figures(Protocol):
    """What the pump reads of the spool's figures."""

    @property
    def rows(self) -> int: ...  # noqa: D102  # because Backlog says what these are
    @property
    def bytes(self) -> int: ...  # noqa: D102  # because Backlog says what these are
    @property
    def oldest_ts_ms(self) -> int | None: ...  # noqa: D102  # because Backlog says what these are
    @property
    def parked(self) -> int: ...  # noqa: D102  # because Backlog says what these are
    @property
    def evicted(self) -> int: ...  # noqa: D102  # because Backlog says what these are


class Right(Protocol):
    """The right to send what a spool holds."""

    def release(self) -> None:
        """Give it back."""
        ...


class Store(Protocol):
    """What the pump needs of the spool; every call may raise EdgeAgentError."""

    @property
    def epoch(self) -> str:
        """The spool's life: a new one starts numbering afresh."""
        ...

    def commit(self, entry: Entry) -> Row:
        """Store a result or event safely."""
        ...

    def due(self, stream: Stream, after_seq: int, limit: int) -> Sequence[Row]:
        """Return rows that are new, in the order of their numbers."""
        ...

    def tried(self, stream: Stream, seqs: Sequence[int], epoch: str) -> None:
        """Count an attempt to send."""
        ...

    def sent(self, stream: Stream, seqs: Sequence[int], epoch: str) -> None:
        """The broker has them; the collector's receipt is awaited."""
        ...

    def acknowledged(self, stream: Stream, seqs: Sequence[int], epoch: str) -> int:
        """The broker has them, and that is all we will hear."""
        ...

    def park(self, stream: Stream, seq: int, reason: str, epoch: str) -> None:
        """Put a row aside and declare it."""
        ...

    def unpark(self, stream: Stream) -> int:
        """Make parked rows new again."""
        ...

    def receipt(self, wm: Mapping[Stream, int], epoch: str) -> int:
        """Let go of everything up to the watermark."""
        ...

    def confirmed(self) -> Mapping[Stream, int]:
        """Return how far a collector has confirmed each stream."""
        ...

    def step_back(self, stream: Stream, wm: int, epoch: str) -> int:
        """Make what is there above a watermark new again, declare the rest."""
        ...

    def rewind(self, stream: Stream) -> int:
        """Make sent rows new again."""
        ...

    def stats(self) -> Figures:
        """Return how much waits."""
        ...

    def get(self, name: str) -> str | None:
        """Return a stored word."""
        ...

    def put(self, name: str, value: str) -> None:
        """Store a word."""
        ...

    def count_up(self, name: str) -> int:
        """Return the next number of a counter, never the same twice."""
        ...

    def pump_lock(self) -> Right | None:
        """Return the right to send, None while another process has it."""
        ...


@dataclass(frozen=True)
class Manner:
    """How to deliver, as the operator set it."""

    setting: Setting = "auto"
    limits: Limits = field(default_factory=Limits)
    status_every_s: float = 300.0
    figures_every_s: float = 2.0
    backfill_jitter_s: float = 120.0
    telemetry_expiry_s: int = 30 * 86_400
    live_expiry_s: int = 10


@dataclass(frozen=True)
class Around:
    """What the pump asks of its surroundings. All are called in the pump's thread."""

    now_s: Callable[[], float]
    """Monotonic seconds."""
    stamp: Callable[[], Stamp]
    about: Callable[[], About]
    command: Callable[[Command], None]
    """Takes a command over; has to be quick, and to call `Pump.stored` once it is safe."""
    note: Callable[[str, Mapping[str, object]], None]
    """Writes to the log: an event's name and its fields."""
    random: Random
