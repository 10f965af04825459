"""Which slot of the scripted server takes a prompt, what of it is there, who stands still?

The rules are llama-server's: a slot that was asked for, else the free slot whose tokens open like
the prompt (more than a tenth of it), else the one unused for longest; requests beyond the slots
wait in order. A slot keeps what it has read and written, and that is the prefix cache.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

SIMILAR = 0.1
"""Share of a prompt that must match for a slot to be preferred over the least recently used."""

_PIECE = re.compile(r" ?\w{1,4}|\s+|.", re.DOTALL)


def tokenize(text: str) -> list[int]:
    """One id for every piece of at most four letters; the same text always gives the same ids."""
    return [100 + zlib.crc32(piece.encode()) % 40_000 for piece in _PIECE.findall(text)]


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading ids the two have in common."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return min(len(one), len(other))


@dataclass
class Slot:
    """One sequence of the server and the tokens that it holds."""

    id: int
    tokens: list[int] = field(default_factory=list)
    busy: bool = False
    used: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True)
class _Waiting:
    future: asyncio.Future[Slot]
    prompt: Sequence[int]
    wanted: int | None
    alive: Callable[[], bool]


class Slots:
    """The slots and the queue before them."""

    def __init__(self, count: int) -> None:
        self.all = tuple(Slot(index) for index in range(count))
        self._waiting: deque[_Waiting] = deque()
        self._uses = 0

    @property
    def waiting(self) -> int:
        """Requests without a slot."""
        return len(self._waiting)

    async def acquire(
        self, prompt: Sequence[int], wanted: int | None, alive: Callable[[], bool]
    ) -> Slot:
        """A slot for `prompt`; waits in order, and is passed over once `alive` says no."""
        if not self._waiting and (slot := self._choose(prompt, wanted)) is not None:
            return self._take(slot)
        waiting = _Waiting(asyncio.get_running_loop().create_future(), prompt, wanted, alive)
        self._waiting.append(waiting)
        try:
            return await waiting.future
        except asyncio.CancelledError:
            if waiting.future.done() and not waiting.future.cancelled():
                self.release(waiting.future.result())
            raise

    def release(self, slot: Slot) -> None:
        """Give a slot back; the first waiting request that it suits takes it."""
        slot.busy = False
        for waiting in tuple(self._waiting):
            if waiting.future.done():
                self._waiting.remove(waiting)
            elif not waiting.alive():
                self._waiting.remove(waiting)
                waiting.future.cancel()
            elif (free := self._choose(waiting.prompt, waiting.wanted)) is not None:
                self._waiting.remove(waiting)
                waiting.future.set_result(self._take(free))

    def _take(self, slot: Slot) -> Slot:
        self._uses += 1
        slot.used = self._uses
        slot.busy = True
        return slot

    def _choose(self, prompt: Sequence[int], wanted: int | None) -> Slot | None:
        if wanted is not None and wanted >= 0:
            slot = self.all[wanted % len(self.all)]
            return None if slot.busy else slot
        free = [slot for slot in self.all if not slot.busy]
        if not free:
            return None
        best = max(free, key=lambda slot: common_prefix(slot.tokens, prompt))
        if common_prefix(best.tokens, prompt) > SIMILAR * len(prompt):
            return best
        return min(free, key=lambda slot: slot.used)


class Stalls:
    """Times at which every stream stands still, as while an engine reads a long prompt.

    A stall moves everything that is still to come by its length; stalls add up.
    """

    def __init__(self) -> None:
        self._total_s = 0.0
        self._until_s = 0.0

    def begin(self, now_s: float) -> Begun:
        """A stream begins: now, or at the end of the stall that is under way."""
        return Begun(self, max(now_s, self._until_s), self._total_s)

    def add(self, now_s: float, seconds: float) -> None:
        """Let everything stand still for so long, after whatever stands still already."""
        self._total_s += seconds
        self._until_s = max(now_s, self._until_s) + seconds

    @property
    def total_s(self) -> float:
        """All stalls so far."""
        return self._total_s


@dataclass(frozen=True)
class Begun:
    """A stream's beginning."""

    stalls: Stalls
    at_s: float
    stalled_s: float
    """All stalls before it."""

    def due(self, after_s: float) -> float:
        """When something is due that comes so long after the beginning, by what is known now."""
        return self.at_s + after_s + self.stalls.total_s - self.stalled_s
