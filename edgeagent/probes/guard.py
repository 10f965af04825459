"""Who looks after the box's memory while an engine takes it?

A thread of its own, beside the sampler: samples may be late, this may not. It looks four times a
second while an engine starts or its load ramps up, and whenever memory is near the floor; once a
second otherwise. What it sees is judged by core/guard.py; on `kill` it calls what it was armed
with, once, and has done its work for this launch.

It allocates as little as it can, because it is needed most when there is nothing left:
/proc/meminfo stays open and is read into the same buffer each time, and a look that ends nothing
makes a few numbers and no text.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from edgeagent.core.guard import UNSEEN, Reading, Verdict, Watched, default_floor_bytes, judge
from edgeagent.ports import Clock

Pace = Literal["fast", "slow"]

FAST_S = 0.25
SLOW_S = 1.0
_TRACE_LOOKS = 64
"""A quarter of a minute at the fast pace."""
_AFTER_LOOKS = 12
"""Looks after a kill: enough to show whether the memory came back, few enough to keep the fall."""
_BUFFER_BYTES = 4096
_KIB = 1024
_NS_PER_S = 1_000_000_000


class MemInfo:
    """The three lines of /proc/meminfo that matter here, read without making anything new."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._path = str(root / "proc/meminfo")
        self._buffer = bytearray(_BUFFER_BYTES)
        self._buffers = [self._buffer]
        self._length = 0
        self._file: int | None = None

    def look(self) -> bool:
        """Read anew; whether there was anything."""
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            self._length = os.preadv(self._file, self._buffers, 0)
        except OSError:
            self.close()
            self._length = 0
        return self._length > 0

    def bytes_of(self, line: bytes) -> int | None:
        """The value of a line, named like `b"MemFree:"`, of the last look; None without it."""
        start = self._buffer.find(line, 0, self._length)
        end = self._buffer.find(b" kB", start, self._length)
        if start < 0 or end < 0:
            return None
        try:
            return int(self._buffer[start + len(line) : end]) * _KIB
        except ValueError:
            return None

    def close(self) -> None:
        """Let go of the file; the next look opens it again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def nobody_knows() -> int | None:
    """What is attributed to the engine where nothing can attribute memory."""
    return None


class Guard:
    """Ends an engine before the box collapses. Armed for a launch, disarmed after it."""

    def __init__(
        self, clock: Clock, root: Path = Path("/"), floor_bytes: int | None = None
    ) -> None:
        """`floor_bytes` None takes the default for this box's memory."""
        self._clock = clock
        self._memory = MemInfo(root)
        self._asked_floor_bytes = floor_bytes
        self._thread: threading.Thread | None = None
        self._begin(None, nobody_knows)

    def _begin(
        self, kill: Callable[[str], None] | None, attributed: Callable[[], int | None]
    ) -> None:
        self._kill = kill
        self._attributed = attributed
        self._trace: deque[Reading] = deque(maxlen=_TRACE_LOOKS)
        self._verdict = UNSEEN
        self._start_margin: int | None = None
        self._least_margin: int | None = None
        self._gaps = 0
        self._after = 0
        self._looked_ns = self._clock.now_ns()
        self._pace: Pace = "fast"
        self._ended = threading.Event()
        self._wake = threading.Event()
        self.floor_bytes = self._floor()

    def _floor(self) -> int:
        if self._asked_floor_bytes is not None:
            return self._asked_floor_bytes
        self._memory.look()
        # Without a total there is nothing to be read later either: every look will be a gap.
        return default_floor_bytes(self._memory.bytes_of(b"MemTotal:") or 0)

    # ------------------------------------------------------------------------- a launch

    def arm(
        self,
        kill: Callable[[str], None],
        attributed: Callable[[], int | None] = nobody_knows,
    ) -> Verdict:
        """Watch from now on, at the fast pace; return the verdict of the first look.

        `kill` gets the verdict's reason, from the guard's thread, once at most; it must not wait.
        `attributed` tells the bytes known to be the engine's; it must be quick as well.
        """
        self.disarm()
        self._begin(kill, attributed)
        self.look()
        self._thread = threading.Thread(target=self._run, name="guard", daemon=True)
        self._thread.start()
        return self._verdict

    def set_pace(self, pace: Pace) -> None:
        """Look four times a second (`fast`: something starts or ramps up) or once (`slow`)."""
        self._pace = pace
        self._wake.set()

    def disarm(self) -> Watched:
        """Stop watching and tell what was seen; safe to call twice or before `arm`."""
        self._ended.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._memory.close()
        return self.watched

    @property
    def verdict(self) -> Verdict:
        """The last verdict; one that has ended the engine stays."""
        return self._verdict

    @property
    def watched(self) -> Watched:
        """What this launch's guard has seen so far."""
        return Watched(
            verdict=self._verdict,
            floor_bytes=self.floor_bytes,
            start_margin_bytes=self._start_margin,
            least_margin_bytes=self._least_margin,
            gaps=self._gaps,
            trace=tuple(self._trace),
        )

    # --------------------------------------------------------------------------- a look

    def look(self) -> None:
        """Look once and act on it."""
        self._looked_ns = self._clock.now_ns()
        reading = self._read()
        if reading is None:
            self._gaps += 1
            return
        if self._verdict.action == "kill":
            if self._after < _AFTER_LOOKS:
                self._after += 1
                self._trace.append(reading)
            return
        self._trace.append(reading)
        verdict = judge(self._trace, self.floor_bytes)
        self._verdict = verdict
        margin = verdict.margin_bytes
        if margin is not None:
            if self._start_margin is None:
                self._start_margin = margin
            if self._least_margin is None or margin < self._least_margin:
                self._least_margin = margin
        if verdict.action == "kill" and self._kill is not None:
            self._kill(verdict.reason)

    def _read(self) -> Reading | None:
        memory = self._memory
        memory.look()
        available = memory.bytes_of(b"MemAvailable:")
        free = memory.bytes_of(b"MemFree:")
        if available is None or free is None:
            return None
        return Reading(self._clock.now_ns() / _NS_PER_S, available, free, self._engines_share())

    def _engines_share(self) -> int | None:
        try:
            return self._attributed()
        except Exception:  # noqa: BLE001  # because a source of readings that breaks must not end the guard
            return None

    def _run(self) -> None:
        while not self._ended.is_set() and self._after < _AFTER_LOOKS:
            wait_s = self._wait_s()
            if wait_s > 0:
                self._wake.wait(wait_s)
                self._wake.clear()  # disarmed, a new pace, or simply time: the loop finds out
            else:
                self.look()

    def _wait_s(self) -> float:
        """Until the next look is due. Never less than a period after the last: two looks count."""
        margin = self._verdict.margin_bytes
        near = margin is not None and margin < self.floor_bytes
        period_s = FAST_S if near or self._pace == "fast" else SLOW_S
        return period_s - (self._clock.now_ns() - self._looked_ns) / _NS_PER_S
