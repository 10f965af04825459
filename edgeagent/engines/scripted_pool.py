"""How does the scripted vLLM divide its pool?

The rules are vLLM's: blocks of so many tokens, one for each block that a sequence has begun; full
blocks of a prompt stay in the cache under everything that stands before them, sequences share
them, and the last token of a prompt is always read anew. Requests beyond the seats wait in order.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence


class Sequences:
    """Seats for sequences (`--max-num-seqs`) and the queue before them."""

    def __init__(self, seats: int) -> None:
        self._free = asyncio.Semaphore(seats)
        self.running = 0
        self.waiting = 0

    @contextlib.asynccontextmanager
    async def seat(self) -> AsyncIterator[None]:
        """A seat, when there is one."""
        self.waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._free.release()


class Held:
    """The blocks of one sequence."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._shared: list[object] = []
        self._own = 0

    @property
    def count(self) -> int:
        """Blocks that only this sequence holds."""
        return self._own

    @property
    def shared(self) -> Sequence[object]:
        """Blocks that others may hold as well, by what is in them."""
        return self._shared

    def admit(self, prompt: Sequence[int], salt: str) -> int:
        """Take the prompt's full blocks from the cache or put them there; tokens found there."""
        size = self._blocks.block_tokens
        keys = [
            (salt, tuple(prompt[: (number + 1) * size])) for number in range(len(prompt) // size)
        ]
        found = 0
        while found < len(keys) and keys[found] in self._blocks.cached:
            found += 1
        self._blocks.cached.update(keys)
        self._shared = list(keys)
        return min(found, (len(prompt) - 1) // size) * size

    def hold(self, tokens: int) -> None:
        """Hold what so many tokens need."""
        needed = -(-tokens // self._blocks.block_tokens)
        self._own = max(0, needed - len(self._shared))


class Blocks:
    """The pool."""

    def __init__(self, count: int, block_tokens: int) -> None:
        self.count = count
        self.block_tokens = block_tokens
        self.cached: set[object] = set()
        self._sequences: list[Held] = []

    @property
    def used(self) -> int:
        """Blocks that a running sequence holds, shared ones counted once."""
        shared = {key for held in self._sequences for key in held.shared}
        return len(shared) + sum(held.count for held in self._sequences)

    @contextlib.asynccontextmanager
    async def sequence(self) -> AsyncIterator[Held]:
        """A sequence while it runs."""
        held = Held(self)
        self._sequences.append(held)
        try:
            yield held
        finally:
            self._sequences.remove(held)

    def forget(self) -> bool:
        """Empty the cache; False while a sequence runs."""
        if self._sequences:
            return False
        self.cached.clear()
        return True
