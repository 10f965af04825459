"""What time is it, and does anybody here really know?

A box on a plant floor may boot in 1970, be put right an hour later, or drift for weeks. So each
stamp says how far its wall clock may be trusted, and carries boot and monotonic time, with which a
collector can put right what was stamped before the clock was set.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from edgeagent.core.delivery import ClockState, Stamp

STEP_S = 2.0
"""A jump of the wall clock beyond this is told."""

BUILT_MS = 1_790_000_000_000
"""No honest clock is before this (September 2026)."""

_STA_UNSYNC = 0x0040
_TIME_ERROR = 5


class _Timex(ctypes.Structure):
    """The head of `struct timex` (adjtimex(2)); the rest is room."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


@cache
def _adjtimex() -> Any:
    try:
        return ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None


def kernel_synchronised() -> bool:
    """Whether something disciplines the kernel's clock; False where nobody can say."""
    adjtimex = _adjtimex()
    if adjtimex is None:
        return False
    timex = _Timex()  # modes 0: read only
    state: int = adjtimex(ctypes.byref(timex))
    return state >= 0 and state != _TIME_ERROR and not timex.status & _STA_UNSYNC


def boot_id(root: Path = Path("/")) -> str:
    """Return this boot's name: the first 8 digits of the kernel's boot id."""
    try:
        return (root / "proc/sys/kernel/random/boot_id").read_text()[:8]
    except OSError:
        return "00000000"


@dataclass(frozen=True)
class Hands:
    """Where the two clocks stand, in nanoseconds; tests move them."""

    wall_ns: Callable[[], int] = time.time_ns
    monotonic_ns: Callable[[], int] = time.monotonic_ns
    synchronised: Callable[[], bool] = kernel_synchronised


@dataclass(frozen=True)
class ClockStep:
    """The wall clock jumped."""

    mono_ms: int
    old_ms: int
    """What it would have shown without the jump."""
    new_ms: int


class WallClock:
    """Gives stamps; remembers the latest, so that time never runs backwards over a start."""

    def __init__(
        self, floor_ms: int = 0, hands: Hands | None = None, boot: str | None = None
    ) -> None:
        """`floor_ms` is the latest stamp of an earlier life."""
        self._hands = hands or Hands()
        self._floor_ms = max(floor_ms, BUILT_MS)
        self._boot = boot if boot is not None else boot_id()
        self._was_synchronised = False
        self._offset_ns: int | None = None

    def not_before(self, floor_ms: int) -> None:
        """Learn of a stamp that an earlier life gave."""
        self._floor_ms = max(self._floor_ms, floor_ms)

    def stamp(self) -> Stamp:
        """Return this moment; the floor, "unsync", while the clock is before it and so is wrong."""
        wall_ms = self._hands.wall_ns() // 1_000_000
        mono_ms = self._hands.monotonic_ns() // 1_000_000
        state = self._state()
        if wall_ms < self._floor_ms:
            wall_ms, state = self._floor_ms, "unsync"
        elif state == "sync":
            self._floor_ms = wall_ms
        return Stamp(wall_ms, self._boot, mono_ms, state)

    def _state(self) -> ClockState:
        if self._hands.synchronised():
            self._was_synchronised = True
            return "sync"
        return "holdover" if self._was_synchronised else "unsync"

    def step(self) -> ClockStep | None:
        """Return the jump since the last call, if there was one of more than STEP_S."""
        mono_ns = self._hands.monotonic_ns()
        wall_ns = self._hands.wall_ns()
        before, self._offset_ns = self._offset_ns, wall_ns - mono_ns
        if before is None or abs(self._offset_ns - before) <= STEP_S * 1e9:
            return None
        if self._offset_ns < before and not self._hands.synchronised():
            self._was_synchronised = False  # somebody turned it back, and not a time server
        return ClockStep(
            mono_ms=mono_ns // 1_000_000,
            old_ms=(mono_ns + before) // 1_000_000,
            new_ms=wall_ns // 1_000_000,
        )
