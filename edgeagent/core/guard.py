"""Must the engine be ended before the box collapses?

On a box whose GPU shares the host's memory, no limit of the kernel's stops an engine that takes too
much: the box goes down with it, from 29 GiB to none in ten seconds. So somebody has to look, and
this is the decision; the looking is in probes/guard.py. Two rules end an engine:

- *floor*: less than the floor was available at two looks in a row;
- *slope*: less than twice the floor is available, and at the present pace nothing would be left
  within two seconds, while what is attributed to the engine still rises.

Why the slope counts only below twice the floor: an engine that reads its weights at 4 GiB/s with
6 GiB available is on its way to collapse in 1.5 seconds as far as a slope can tell, and done after
one. Only near the floor is there no time left to find out. At four looks a second that suffices:
an engine that takes up to three floors a second (2.2 GiB/s on an 8 GB module, 11 GiB/s on a 128 GB
box) is ended while there is memory for another quarter of a second.

Why the floor is what it is: 3 % of the memory, at least 1.5 GiB, is what the kernel, a desktop
and drivers that cannot wait need; but never more than a tenth, because 1.5 GiB would be a fifth of
an 8 GB module (7.4 GiB seen by Linux: floor 0.74 GiB) and nearly half of a 4 GB one (3.4 GiB:
0.34 GiB, still several times the kernel's own reserve), and no engine that fits could run there.

Available is the kernel's MemAvailable. MemFree is kept in the trace and never ends an engine: it
is low on every healthy box, because the kernel fills it with the page cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

GIB = 1 << 30

HORIZON_S = 2.0
"""Nothing left within this time is too late to wait for another look."""
WINDOW_S = 1.0
"""A slope is taken over this time, and over the last step alone: the gentler one counts."""
NEAR = 2
"""The slope counts below this many floors."""
_SHARE_OF_FALL = 0.1
"""The engine has a part in it when it took at least this share of what went."""
_SLACK_S = 0.5
"""How much longer than the window two looks may lie apart, being late."""


@dataclass(frozen=True)
class Reading:
    """One look at the box's memory."""

    at_s: float
    available_bytes: int
    """The kernel's MemAvailable: what can be had without swapping."""
    free_bytes: int
    """The kernel's MemFree: for the record only."""
    attributed_bytes: int | None = None
    """What is known to be the engine's; None when nobody can say."""


Cause = Literal["floor", "slope"]


@dataclass(frozen=True)
class Verdict:
    """What is to be done about the engine, and why."""

    action: Literal["keep", "kill"]
    reason: str
    """One sentence without its subject's name and full stop."""
    margin_bytes: int | None
    """What is available above the floor; negative below it, None before the first look."""
    cause: Cause | None = None
    """Which rule ended it."""


@dataclass(frozen=True)
class Watched:
    """What the guard saw during one launch, for the record."""

    verdict: Verdict
    floor_bytes: int
    start_margin_bytes: int | None
    """Margin at the first look."""
    least_margin_bytes: int | None
    gaps: int
    """Looks at which nothing could be read."""
    trace: tuple[Reading, ...]
    """The last looks, oldest first."""


def default_floor_bytes(total_bytes: int) -> int:
    """What must stay available on a box with this much memory: see above."""
    wanted = max(3 * GIB // 2, total_bytes * 3 // 100)
    return min(wanted, total_bytes // 10)


UNSEEN = Verdict("keep", "the memory of the box was not seen yet", None)
_ENOUGH = "enough memory is available"
_ONCE = "less memory than the floor is available, seen once so far"


def judge(history: Sequence[Reading], floor_bytes: int) -> Verdict:
    """The verdict on `history`, oldest first; only its last looks count."""
    if not history:
        return UNSEEN
    last = history[-1]
    margin = last.available_bytes - floor_bytes
    if margin < 0:
        if len(history) > 1 and history[-2].available_bytes < floor_bytes:
            return Verdict("kill", _below(last, floor_bytes), margin, "floor")
        return _sloping(history, margin) or Verdict("keep", _ONCE, margin)
    if margin < (NEAR - 1) * floor_bytes and (sloping := _sloping(history, margin)):
        return sloping
    return Verdict("keep", _ENOUGH, margin)


def _below(last: Reading, floor_bytes: int) -> str:
    return (
        f"{_gib(last.available_bytes)} of memory was available at two looks in a row, less than "
        f"the floor of {_gib(floor_bytes)}"
    )


def _sloping(history: Sequence[Reading], margin: int) -> Verdict | None:
    """The verdict of the slope rule when it ends the engine."""
    last = history[-1]
    first = _window_start(history)
    if first is None or not _engine_rises(first, last):
        return None
    slope = max(_slope(first, last), _slope(history[-2], last))
    if last.available_bytes + HORIZON_S * slope >= 0:
        return None
    reason = (
        f"{_gib(last.available_bytes)} of memory was available and {_gib(-slope)} a second went "
        f"while the engine still grew: nothing would have been left in "
        f"{last.available_bytes / -slope:.1f} s"
    )
    return Verdict("kill", reason, margin, "slope")


def _window_start(history: Sequence[Reading]) -> Reading | None:
    """The oldest look of the window; None when the last one stands alone."""
    begin_s = history[-1].at_s - WINDOW_S - _SLACK_S
    found = None
    for index in range(len(history) - 2, -1, -1):
        reading = history[index]
        if reading.at_s < begin_s:
            break
        found = reading
        if history[-1].at_s - reading.at_s >= WINDOW_S:
            break
    return found


def _slope(first: Reading, last: Reading) -> float:
    """Bytes a second that become available; negative when they go. 0 for looks at one moment."""
    elapsed_s = last.at_s - first.at_s
    return (last.available_bytes - first.available_bytes) / elapsed_s if elapsed_s > 0 else 0.0


def _engine_rises(first: Reading, last: Reading) -> bool:
    """Whether the engine has a part in the fall.

    Where nobody can say, it is taken to have one: this close to the floor the doubt goes to the
    box.
    """
    if first.attributed_bytes is None or last.attributed_bytes is None:
        return True
    fall = first.available_bytes - last.available_bytes
    return last.attributed_bytes - first.attributed_bytes >= _SHARE_OF_FALL * fall


def _gib(count: float) -> str:
    return f"{count / GIB:.2f} GiB"
