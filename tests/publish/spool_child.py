"""A process that works on a spool until it is killed: `spool_child.py PATH WHAT`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from spool_places import ROOMY, entry, limits, opened


def say(number: int) -> None:
    print(number, flush=True)


def main(path: Path, what: str) -> None:
    spool = opened(path, limits(0.5) if what == "evict" else ROOMY)
    if what == "commit":
        for i in range(100_000):
            say(spool.commit(entry("R", i)).seq)
    elif what == "evict":
        for i in range(1, 1_000_000):
            spool.add(entry("M", i, 1_000))
            if not i % 50:
                spool.flush()
                say(i)
    elif what == "command":
        spool.remember("id-1", "sweep", "accepted", {})
        spool.state("id-1", "running", {})
        say(1)
        time.sleep(600)
    elif what == "pump":
        lock = spool.pump_lock()
        say(0 if lock is None else 1)
        time.sleep(600)


main(Path(sys.argv[1]), sys.argv[2])
