"""When memory counts as settled."""

from __future__ import annotations

from edgeagent.core.settling import Settling

MIB = 1 << 20


def test_memory_has_settled_once_it_has_held_still_for_long_enough() -> None:
    settling = Settling(3.0)
    still = {"engine.anon_bytes": 1000 * MIB}
    assert [settling.has_settled(at, still) for at in (0.0, 1.5, 2.9, 3.0)] == [
        False, False, False, True,
    ]  # fmt: skip


def test_a_growth_of_more_than_a_hundredth_begins_the_wait_anew() -> None:
    settling = Settling(3.0)
    settling.has_settled(0.0, {"engine.anon_bytes": 1000 * MIB})
    assert not settling.has_settled(2.0, {"engine.anon_bytes": 1011 * MIB})
    assert not settling.has_settled(4.0, {"engine.anon_bytes": 1011 * MIB})
    assert settling.has_settled(5.0, {"engine.anon_bytes": 1011 * MIB})


def test_a_slow_creep_does_not_pass_for_stillness() -> None:
    settling = Settling(3.0)
    taken = [{"engine.anon_bytes": (1000 + 6 * step) * MIB} for step in range(20)]
    assert not any(settling.has_settled(float(at), now) for at, now in enumerate(taken))


def test_little_memory_may_move_by_a_few_mebibytes() -> None:
    settling = Settling(1.0)
    settling.has_settled(0.0, {"engine.anon_bytes": 20 * MIB})
    assert settling.has_settled(1.0, {"engine.anon_bytes": 23 * MIB})


def test_the_box_around_is_not_watched_but_every_device_is() -> None:
    settling = Settling(1.0)
    settling.has_settled(0.0, {"host.used_bytes": 0, "gpu.A.used_bytes": 1000 * MIB})
    assert settling.has_settled(1.0, {"host.used_bytes": 9e9, "gpu.A.used_bytes": 1000 * MIB})
    assert not settling.has_settled(2.0, {"host.used_bytes": 9e9, "gpu.A.used_bytes": 500 * MIB})


def test_a_source_that_falls_silent_begins_the_wait_anew() -> None:
    settling = Settling(1.0)
    settling.has_settled(0.0, {"engine.anon_bytes": 5, "drm.engine_bytes": 5})
    assert not settling.has_settled(2.0, {"engine.anon_bytes": 5, "drm.engine_bytes": None})
