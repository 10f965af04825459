"""Processor time of others, by hand and by a real process that keeps a core busy."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.probes.foreign import (
    BoxTicks,
    ForeignCpu,
    ProcessTicks,
    busiest_foreign,
    foreign_cores,
    look_at_all,
    own_tree,
    parse_process,
    parse_stat,
)

STAT = """\
cpu  333141 105462 70573 1764672 1803 10 1213 497 7 0
cpu0 153071 50821 32883 900763 222 0 516 240 0 0
cpu1 180069 54641 37689 863908 1581 0 697 256 0 0
intr 20658362 0 0
ctxt 60329908
"""


def test_guests_and_interrupts_are_not_counted_and_stolen_time_is() -> None:
    found = parse_stat(STAT)
    assert found is not None
    assert found.busy == 333141 + 105462 + 70573 + 497
    assert found.passed == 333141 + 105462 + 70573 + 1764672 + 1803 + 10 + 1213 + 497
    assert found.cores == 2


def test_a_process_name_may_hold_anything() -> None:
    text = (
        "812 (evil) S 1 (x) R 1 812 812 0 -1 4194304 100 0 0 0 70 20 6 4 20 0 1 0 5 1000 10 18446"
    )
    assert parse_process(text) == ProcessTicks("evil) S 1 (x", 100, 10)


def test_what_is_left_after_our_own_is_foreign() -> None:
    # Four cores, 100 ticks each: 250 busy, 130 of them ours, so 1.2 cores' worth are foreign.
    before = (BoxTicks(1000, 10_000, 4), 500)
    assert foreign_cores(before, (BoxTicks(1250, 10_400, 4), 630)) == (1.2, "")


def test_rounding_below_nothing_is_nothing() -> None:
    before = (BoxTicks(1000, 10_000, 4), 500)
    assert foreign_cores(before, (BoxTicks(1010, 10_400, 4), 512)) == (0.0, "")


@pytest.mark.parametrize(
    "now",
    [
        (BoxTicks(1000, 10_000, 4), 500),  # nothing moves, as in a recorded tree
        (BoxTicks(900, 10_400, 4), 500),  # counted anew
        (BoxTicks(1250, 10_400, 4), 400),  # one of ours went without a parent to inherit
    ],
)
def test_counters_that_do_not_move_on_tell_nothing(now: tuple[BoxTicks, int]) -> None:
    cores, why = foreign_cores((BoxTicks(1000, 10_000, 4), 500), now)
    assert cores is None
    assert why


def test_names_are_added_up_and_ours_left_out() -> None:
    hz = os.sysconf("SC_CLK_TCK")
    first = {
        pid: ProcessTicks(name, 0) for pid, name in enumerate(["ours", "cc1", "cc1", "Xorg", "sh"])
    }
    later = {
        0: ProcessTicks("ours", 9 * hz),
        1: ProcessTicks("cc1", hz),
        2: ProcessTicks("cc1", hz),
        3: ProcessTicks("Xorg", hz // 2),
        4: ProcessTicks("sh", 0),
        5: ProcessTicks("new", 5 * hz),  # since when is not known
    }
    # A shell that buries a child of many seconds has not used them in this moment.
    later[4] = ProcessTicks("sh", 500 * hz, 500 * hz)
    assert busiest_foreign(first, later, {0}, seconds=2.0) == (("cc1", 1.0), ("Xorg", 0.25))
    assert busiest_foreign(first, later, {0}, seconds=2.0, most=1) == (("cc1", 1.0),)


@contextmanager
def _children(*programs: str) -> Iterator[Sequence[int]]:
    started = [subprocess.Popen([sys.executable, "-c", text]) for text in programs]
    try:
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()


SPIN = "while True: pass"
SLEEP = "import time; time.sleep(600)"


def test_a_busy_stranger_is_seen_and_a_busy_engine_is_not() -> None:
    proc = Path("/proc")
    # Everything that a test starts is its child, so a sleeper stands for the agent here.
    with _children(SPIN, SLEEP) as (busy, sleeper):
        stranger = ForeignCpu(proc, proc, agent=sleeper)
        engine = ForeignCpu(proc, proc, agent=sleeper)
        child = ForeignCpu(proc, proc)
        looks: list[tuple[ForeignCpu, list[int]]] = [(stranger, []), (engine, [busy]), (child, [])]
        for probe, pids in looks:
            assert probe.look(pids)[1] is None
        before = look_at_all(proc)[busy].used
        deadline = time.monotonic() + 60
        while look_at_all(proc)[busy].used - before < 50 and time.monotonic() < deadline:
            time.sleep(0.05)
        seen = [probe.look(pids)[1] or 0.0 for probe, pids in looks]
        assert busy in own_tree("/proc", os.getpid(), [])

    # Others may be busy as well, so only what the spinning one adds can be asserted.
    assert seen[0] > seen[1]
    assert seen[0] > seen[2]


@given(st.text(), st.text())
def test_any_text_is_taken_apart(head: str, tail: str) -> None:
    assert parse_stat(head) is None or isinstance(parse_stat(head), BoxTicks)
    parse_stat(f"cpu {head}")
    parse_process(head)
    parse_process(f"1 ({head}) {tail}")


def test_a_tree_without_proc_tells_nothing(tmp_path: Path) -> None:
    box, cores, why = ForeignCpu(tmp_path, tmp_path).look([1])
    assert (box, cores) == (None, None)
    assert "/proc/stat" in why
