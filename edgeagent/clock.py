"""What time is it, and how long until then?

Everything is timed on the monotonic clock: NTP steps the wall clock, on edge boxes by hours when
the network first comes up. `SystemClock` is that clock; `ManualClock` has hands that tests move.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
import time

NS_PER_S = 1_000_000_000


class SystemClock:
    """The machine's monotonic clock."""

    def now_ns(self) -> int:
        """Nanoseconds since an arbitrary moment; never steps."""
        return time.monotonic_ns()

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`; at once, but not before other tasks had a turn, for 0 or less."""
        await asyncio.sleep(max(0.0, seconds))


class ManualClock:
    """A clock whose hands are moved by `advance`; whoever sleeps wakes when they pass.

    Safe to read from any thread; sleepers belong to event loops and are woken in their own.
    """

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns
        self._lock = threading.Lock()
        self._sleepers: list[tuple[int, int, asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._order = 0

    def now_ns(self) -> int:
        """Where the hands stand."""
        with self._lock:
            return self._now_ns

    @property
    def sleepers(self) -> int:
        """How many sleeps the hands have not passed yet."""
        with self._lock:
            return len(self._sleepers)

    async def sleep(self, seconds: float) -> None:
        """Return once the hands stand `seconds` later than now; at once for 0 or less."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken = asyncio.Event()
        with self._lock:
            due_ns = self._now_ns + round(seconds * NS_PER_S)
            self._order += 1
            sleeper = (due_ns, self._order, asyncio.get_running_loop(), woken)
            heapq.heappush(self._sleepers, sleeper)
        try:
            await woken.wait()
        finally:
            self._forget(sleeper)

    def advance(self, seconds: float) -> None:
        """Move the hands forward and wake every sleeper they reach, earliest first."""
        if seconds < 0:
            raise ValueError("a monotonic clock never goes back")
        with self._lock:
            self._now_ns += round(seconds * NS_PER_S)
            due = []
            while self._sleepers and self._sleepers[0][0] <= self._now_ns:
                due.append(heapq.heappop(self._sleepers))
        for _, _, loop, woken in due:
            loop.call_soon_threadsafe(woken.set)

    def _forget(self, sleeper: tuple[int, int, asyncio.AbstractEventLoop, asyncio.Event]) -> None:
        """Drop a cancelled sleeper; one that was woken is gone already."""
        with self._lock:
            if sleeper in self._sleepers:
                self._sleepers.remove(sleeper)
                heapq.heapify(self._sleepers)
