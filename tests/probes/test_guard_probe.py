"""The thread that looks after the box, on a meminfo that the test rewrites."""

from __future__ import annotations

import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgeagent.clock import ManualClock, SystemClock
from edgeagent.core.guard import GIB
from edgeagent.probes.guard import Guard, MemInfo


def nobody(why: str) -> None:
    """Kills nothing."""


class Box:
    """A folder with a /proc/meminfo of our own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "proc").mkdir()
        self.has(29)

    def has(self, available_gib: float, free_gib: float = 0.1, total_gib: int = 64) -> None:
        """Rewritten in one write and in place, as the kernel's file is one file."""
        lines = (
            f"MemTotal:       {total_gib * GIB >> 10} kB\n"
            f"MemFree:        {round(free_gib * GIB) >> 10} kB\n"
            f"MemAvailable:   {round(available_gib * GIB) >> 10} kB\n"
            "Buffers:           10184 kB\n"
        )
        path = self.root / "proc/meminfo"
        if not path.exists():
            path.write_text(lines, encoding="ascii")
        with path.open("r+", encoding="ascii") as file:
            file.write(f"{lines:<400}")


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def guard(box: Box, clock: ManualClock) -> Iterator[Guard]:
    """Its clock stands still, so that its thread never looks by itself."""
    made = Guard(clock, box.root)
    yield made
    made.disarm()


def eventually(true: Callable[[], object], deadline_s: float = 20.0) -> bool:
    until = time.monotonic() + deadline_s
    while not true() and time.monotonic() < until:
        time.sleep(0.01)
    return bool(true())


def test_the_margin_at_the_start_is_told(guard: Guard) -> None:
    verdict = guard.arm(nobody)
    assert guard.floor_bytes == 64 * GIB * 3 // 100
    assert verdict.action == "keep"
    assert verdict.margin_bytes == 29 * GIB - guard.floor_bytes


def test_a_collapse_is_ended_once_and_its_trace_is_kept(
    guard: Guard, box: Box, clock: ManualClock
) -> None:
    killed: list[str] = []
    taken = [0]
    guard.arm(killed.append, lambda: taken[0])
    rate = (29 - 2.5) / 9
    for k in range(1, 41):
        clock.advance(0.25)
        box.has(29 - rate * k / 4)
        taken[0] = round(rate * k / 4 * GIB)
        guard.look()
    seen = guard.disarm()
    assert len(killed) == 1
    assert killed == [seen.verdict.reason]
    assert seen.verdict.action == "kill"
    # Ended above the floor, within a second of crossing it in any case; the trace goes on.
    assert seen.verdict.margin_bytes is not None
    assert seen.verdict.margin_bytes > -rate * GIB
    assert len(seen.trace) == 41
    assert seen.trace[0].available_bytes == 29 * GIB
    assert seen.trace[0].attributed_bytes == 0
    assert seen.start_margin_bytes == 29 * GIB - seen.floor_bytes
    assert seen.least_margin_bytes == seen.verdict.margin_bytes
    assert seen.gaps == 0


def test_low_free_memory_ends_nothing(guard: Guard, box: Box, clock: ManualClock) -> None:
    killed: list[str] = []
    guard.arm(killed.append, lambda: 0)
    for k in range(200):
        clock.advance(1)
        box.has(29 - k / 1000, free_gib=max(0.02, 20 - k))
        guard.look()
    seen = guard.disarm()
    assert killed == []
    assert len(seen.trace) == 64  # a long run keeps its last looks only


def test_a_meminfo_that_cannot_be_read_is_a_gap(tmp_path: Path, clock: ManualClock) -> None:
    guard = Guard(clock, tmp_path)
    verdict = guard.arm(nobody)
    assert (verdict.action, verdict.margin_bytes) == ("keep", None)
    Box(tmp_path)
    guard.look()
    seen = guard.disarm()
    assert (seen.gaps, len(seen.trace)) == (1, 1)


@pytest.mark.parametrize("text", ["", "MemTotal: x kB\n", "MemAvailable:   12", "MemFree: a kB\n"])
def test_a_damaged_meminfo_is_a_gap(tmp_path: Path, clock: ManualClock, text: str) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(text, encoding="ascii")
    guard = Guard(clock, tmp_path)
    guard.arm(nobody)
    assert guard.disarm().gaps == 1


def test_a_shorter_answer_leaves_nothing_of_the_longer_one_before_it(tmp_path: Path) -> None:
    box = Box(tmp_path)
    memory = MemInfo(tmp_path)
    assert memory.look()
    assert memory.bytes_of(b"MemAvailable:") == 29 * GIB
    with (box.root / "proc/meminfo").open("r+b") as file:
        file.truncate(30)
    assert memory.look()
    assert memory.bytes_of(b"MemAvailable:") is None
    memory.close()


def test_a_source_that_breaks_does_not_end_the_guard(
    guard: Guard, box: Box, clock: ManualClock
) -> None:
    killed: list[str] = []

    def broken() -> int:
        raise ZeroDivisionError

    guard.arm(killed.append, broken)
    for _ in range(2):
        clock.advance(0.25)
        box.has(1)
        guard.look()
    assert len(killed) == 1
    assert guard.watched.trace[-1].attributed_bytes is None


def test_each_launch_begins_anew(guard: Guard, box: Box, clock: ManualClock) -> None:
    first: list[str] = []
    second: list[str] = []
    guard.arm(first.append)
    box.has(1)
    for _ in range(2):
        clock.advance(0.25)
        guard.look()
    assert guard.disarm().verdict.action == "kill"
    box.has(29)
    guard.arm(second.append)
    assert guard.verdict.action == "keep"
    clock.advance(0.25)
    guard.look()
    assert len(guard.disarm().trace) == 2
    assert (len(first), second) == (1, [])


def test_the_fall_stays_in_the_trace_however_long_the_engine_takes_to_go(
    guard: Guard, box: Box, clock: ManualClock
) -> None:
    guard.arm(nobody)
    box.has(1)
    for _ in range(200):
        clock.advance(0.25)
        guard.look()
    trace = guard.disarm().trace
    assert trace[0].available_bytes == 29 * GIB
    assert len(trace) == 1 + 1 + 12  # before, the look that ended it, and some after


def test_a_floor_of_ones_own_counts(box: Box, clock: ManualClock) -> None:
    guard = Guard(clock, box.root, floor_bytes=30 * GIB)
    assert guard.arm(nobody).margin_bytes == -GIB
    guard.disarm()


def test_its_thread_ends_an_engine_by_itself(box: Box) -> None:
    killed = threading.Event()
    guard = Guard(SystemClock(), box.root)
    guard.arm(lambda _: killed.set(), lambda: 0)
    box.has(1)
    assert killed.wait(20)
    seen = guard.disarm()
    assert seen.verdict.cause == "floor"
    # Two looks, a period apart: never two at once.
    last, before = seen.trace[-1], seen.trace[-2]
    assert last.at_s - before.at_s >= 0.2


def test_it_looks_more_often_while_something_ramps_up(box: Box) -> None:
    guard = Guard(SystemClock(), box.root)
    guard.arm(nobody)
    assert eventually(lambda: len(guard.watched.trace) >= 4)
    guard.set_pace("slow")
    count = len(guard.watched.trace)
    assert eventually(lambda: len(guard.watched.trace) >= count + 2)
    slow = guard.disarm().trace
    assert slow[-1].at_s - slow[-2].at_s >= 0.9


def test_near_the_floor_it_looks_often_whatever_its_pace(box: Box) -> None:
    guard = Guard(SystemClock(), box.root)
    box.has(2.2)  # the floor is 1.92
    guard.arm(nobody)
    guard.set_pace("slow")
    assert guard._wait_s() <= 0.25
    guard.disarm()


def test_disarming_twice_or_before_arming_is_no_trouble(guard: Guard) -> None:
    assert guard.disarm().trace == ()
    guard.arm(nobody)
    assert guard.disarm() == guard.disarm()


def test_the_real_meminfo_is_read(clock: ManualClock) -> None:
    guard = Guard(clock)
    verdict = guard.arm(nobody)
    assert verdict.margin_bytes is not None
    (look,) = guard.disarm().trace
    assert look.available_bytes > 0
    assert look.free_bytes > 0


def test_a_look_keeps_little_memory(guard: Guard, clock: ManualClock) -> None:
    guard.arm(nobody)
    for _ in range(100):  # the trace is full, what is made once is made
        guard.look()
    tracemalloc.start()
    try:
        guard.look()
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(200):
            guard.look()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 30_000  # the trace's own values, remade once
    assert peak - before < 40_000
