"""A few cycles of what a day brings leave nothing behind; tests/long/long_daemon.py does many."""

from __future__ import annotations

from pathlib import Path

from soaking import soak


def test_reconnects_reloads_and_sweeps_leave_no_thread_and_no_descriptor_behind(
    tmp_path: Path,
) -> None:
    seen = soak(tmp_path, cycles=8, sweeps_every=4, settled=2)
    assert min(one.threads for one in seen[-3:]) <= min(one.threads for one in seen[:3])
    assert min(one.descriptors for one in seen[-3:]) <= min(one.descriptors for one in seen[:3])
