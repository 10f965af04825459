"""Idle for a while, and not only now."""

from __future__ import annotations

from edgeagent.core.commands import Box
from edgeagent.core.idle import Lookback


def test_the_worst_of_the_while_counts() -> None:
    seen = Lookback(30)
    seen.add(0, Box(foreign_cpu=0.0, available_bytes=100, production_requests=0))
    seen.add(15, Box(foreign_cpu=0.9, available_bytes=40, production_requests=2))
    seen.add(29, Box(foreign_cpu=0.1, available_bytes=90, production_requests=0))
    assert seen.worst() == Box(foreign_cpu=0.9, available_bytes=40, production_requests=2)
    assert not seen.covered()


def test_what_lies_longer_ago_is_forgotten() -> None:
    seen = Lookback(30)
    for at_s, share in ((0, 0.9), (10, 0.0), (40, 0.1), (45, 0.2)):
        seen.add(at_s, Box(foreign_cpu=share))
    assert seen.worst().foreign_cpu == 0.2
    assert seen.covered()


def test_what_was_never_known_stays_unknown() -> None:
    seen = Lookback(30)
    assert seen.worst() == Box()
    assert not seen.covered()
    seen.add(0, Box(temperature_c=None, foreign_gpu=0.0))
    assert seen.worst() == Box(foreign_gpu=0.0)
