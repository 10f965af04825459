"""Clocks: one that runs, and one whose hands a test moves."""

from __future__ import annotations

import anyio
import pytest

from edgeagent.clock import ManualClock, SystemClock

pytestmark = pytest.mark.anyio


async def test_the_system_clock_goes_on_and_sleeps_no_shorter_than_asked() -> None:
    clock = SystemClock()
    before_ns = clock.now_ns()

    await clock.sleep(0.001)
    await clock.sleep(-1)

    assert clock.now_ns() - before_ns >= 1_000_000


async def test_a_manual_clock_stands_still_and_wakes_sleepers_in_order_as_it_passes_them() -> None:
    clock = ManualClock(0)
    woken: list[str] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(name)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sleeper, "late", 2.0)
        tasks.start_soon(sleeper, "early", 1.0)
        await anyio.wait_all_tasks_blocked()
        assert (clock.now_ns(), woken) == (0, [])

        clock.advance(0.999)
        await anyio.wait_all_tasks_blocked()
        assert woken == []

        clock.advance(1.5)
        await anyio.wait_all_tasks_blocked()
        assert woken == ["early", "late"]
    assert clock.now_ns() == 2_499_000_000


async def test_a_sleeper_that_was_cancelled_is_no_trouble_when_its_time_comes() -> None:
    clock = ManualClock()
    with anyio.move_on_after(0):
        await clock.sleep(1.0)

    clock.advance(2.0)


async def test_sleeping_for_nothing_returns_at_once() -> None:
    await ManualClock().sleep(0)
