"""What the box says of the time."""

from __future__ import annotations

from dataclasses import dataclass

from edgeagent.wallclock import BUILT_MS, ClockStep, Hands, WallClock, boot_id

NOW_MS = BUILT_MS + 1_000_000_000


@dataclass
class Moved:
    """Clocks whose hands a test moves."""

    wall_ms: int = NOW_MS
    mono_ms: int = 5_000
    synchronised: bool = True

    def clock(self, floor_ms: int = 0) -> WallClock:
        hands = Hands(
            lambda: self.wall_ms * 1_000_000,
            lambda: self.mono_ms * 1_000_000,
            lambda: self.synchronised,
        )
        return WallClock(floor_ms, hands, "b00t")

    def passes(self, ms: int) -> None:
        self.wall_ms += ms
        self.mono_ms += ms


def test_a_disciplined_clock_is_believed() -> None:
    stamp = Moved().clock().stamp()
    assert (stamp.ts_ms, stamp.boot, stamp.mono_ms, stamp.clk) == (NOW_MS, "b00t", 5_000, "sync")


def test_a_clock_that_was_never_set_is_not() -> None:
    assert Moved(synchronised=False).clock().stamp().clk == "unsync"


def test_a_clock_that_has_lost_its_server_holds_over() -> None:
    hands = Moved()
    clock = hands.clock()
    clock.stamp()
    hands.synchronised = False
    assert clock.stamp().clk == "holdover"


def test_a_box_that_boots_in_1970_stamps_nothing_before_it_was_built() -> None:
    stamp = Moved(wall_ms=1_000).clock().stamp()
    assert (stamp.ts_ms, stamp.clk) == (BUILT_MS, "unsync")


def test_time_does_not_run_back_behind_an_earlier_life() -> None:
    stamp = Moved().clock(floor_ms=NOW_MS + 60_000).stamp()
    assert (stamp.ts_ms, stamp.clk) == (NOW_MS + 60_000, "unsync")


def test_a_jump_is_told_once_and_drift_is_not() -> None:
    hands = Moved()
    clock = hands.clock()
    assert clock.step() is None
    hands.passes(60_000)
    hands.wall_ms += 1_900
    assert clock.step() is None
    hands.passes(60_000)
    hands.wall_ms += 3_600_000
    expected = NOW_MS + 60_000 + 1_900 + 60_000
    assert clock.step() == ClockStep(125_000, expected, expected + 3_600_000)
    assert clock.step() is None


def test_a_clock_that_somebody_turned_back_is_no_longer_held_over() -> None:
    hands = Moved()
    clock = hands.clock()
    clock.stamp()
    clock.step()
    hands.synchronised = False
    hands.wall_ms -= 3_600_000
    assert clock.step() is not None
    assert clock.stamp().clk == "unsync"


def test_this_boot_has_a_name() -> None:
    assert len(boot_id()) == 8
    assert boot_id() == boot_id()
