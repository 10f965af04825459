"""Fifteen hundred cycles of what a day brings: nothing that the daemon holds may grow.

Run by `PYTHONPATH=tests/app:tests/publish:tests/service pytest -s tests/long/long_daemon.py`; it
takes about a quarter of an hour.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest
from soaking import soak

CYCLES = 1500
SETTLED = 50


@pytest.mark.timeout(7200)
def test_nothing_grows(tmp_path: Path) -> None:
    seen = soak(tmp_path, CYCLES, sweeps_every=50, settled=SETTLED)
    for at in range(0, len(seen), 200):
        some = seen[at : at + 100]
        print(
            f"after {SETTLED + at}: {median(one.rss_mb for one in some):.1f} MB, "
            f"{median(one.threads for one in some):g} threads, "
            f"{median(one.descriptors for one in some):g} descriptors"
        )
    first, last = seen[:100], seen[-100:]
    assert median(one.threads for one in last) <= median(one.threads for one in first)
    assert median(one.descriptors for one in last) <= median(one.descriptors for one in first)
    grown_mb = median(one.rss_mb for one in last) - median(one.rss_mb for one in first)
    assert grown_mb < 3, grown_mb
