"""What time is it, and how do we wait? The system's clock, and one whose hands a test moves."""

from __future__ import annotations

import asyncio
import heapq
import time


class SystemClock:
    """The monotonic clock of this machine."""

    def now_ns(self) -> int:
        """Nanoseconds since some fixed moment."""
        return time.monotonic_ns()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


class ManualClock:
    """A clock that stands still until `advance` moves it; sleepers wake as it passes them."""

    def __init__(self, start_ns: int = 1_000_000_000) -> None:
        self._now_ns = start_ns
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._count = 0

    def now_ns(self) -> int:
        """Where the hands stand."""
        return self._now_ns

    async def sleep(self, seconds: float) -> None:
        """Wait until the hands have passed `seconds` from now."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleepers, (self._now_ns + round(seconds * 1e9), self._count, waiter))
        await waiter

    def advance(self, seconds: float) -> None:
        """Move the hands; whoever slept until then wakes, in order."""
        self._now_ns += round(seconds * 1e9)
        while self._sleepers and self._sleepers[0][0] <= self._now_ns:
            _, _, waiter = heapq.heappop(self._sleepers)
            if not waiter.done():
                waiter.set_result(None)
