"""Every scenario of delivery at full size, and the table in docs/delivery.md that they make.

    PYTHONPATH=tests/publish:tests/scenarios python tests/long/long_scenarios.py docs/delivery.md

Takes some minutes. A scenario that does not keep its promise ends the run and changes nothing.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from backlogs import member_killed, week_drained
from clocks import clock_an_hour_ahead, clock_ten_years_back
from disks import cap_reached, disk_full, disk_read_only, head_damaged
from herds import broker_restarts
from ledger import Account, table
from outages import (
    AS_DEBIAN,
    ON_CHANGE,
    agent_killed,
    broker_killed,
    broker_stands_still,
    broker_with_memory_killed,
    nobody_subscribes,
    slow_consumer,
)

_BEGIN = "<!-- made by tests/long/long_scenarios.py -->"
_END = "<!-- end of what was made -->"


def herd(folder: Path) -> Account:
    """Two hundred agents with their own jitter."""
    back = broker_restarts(folder, 200, 4)
    assert back.most_per_s <= 30
    assert back.all_back_s <= 150
    back.account.figures.update(
        {
            "all back after": f"{back.all_back_s:.1f} s",
            "most connects in a second": f"{back.most_per_s}",
        }
    )
    return back.account


SCENARIOS: Sequence[Callable[[Path], Account]] = (
    broker_killed,
    agent_killed,
    lambda folder: broker_with_memory_killed(folder, ON_CHANGE),
    lambda folder: broker_with_memory_killed(folder, AS_DEBIAN),
    week_drained,
    lambda folder: broker_stands_still(folder, still_s=60.0, keepalive_s=10),
    lambda folder: slow_consumer(folder, 50, 5000),
    lambda folder: slow_consumer(folder, 200, 5000),
    lambda folder: slow_consumer(folder, 500, 5000),
    nobody_subscribes,
    cap_reached,
    disk_full,
    head_damaged,
    disk_read_only,
    clock_ten_years_back,
    clock_an_hour_ahead,
    herd,
    member_killed,
)


def played(scenario: Callable[[Path], Account]) -> Account:
    folder = Path(tempfile.mkdtemp(prefix="scenario-"))
    try:
        account = scenario(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert not account.reused
    assert not account.lost or "default autosave" in account.scenario, account
    return account


def described(accounts: Sequence[Account]) -> str:
    """The table, and the figures below it."""
    where = (
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores ({platform.machine()}), mosquitto "
        f"2.0.11, paho-mqtt {version('paho-mqtt')}, Python {platform.python_version()}, "
        f"SQLite {sqlite3.sqlite_version}"
    )
    figures = [
        f"- {each.scenario}: "
        + ", ".join(f"{name} {value}" for name, value in each.figures.items())
        for each in accounts
        if each.figures
    ]
    return "\n".join([f"{where}.", "", table(accounts), "", *figures])


def main() -> None:
    """Play them all, and put the table where it belongs."""
    page = Path(sys.argv[1])
    made = described([played(scenario) for scenario in SCENARIOS])
    text, found = re.subn(
        f"{_BEGIN}.*{_END}",
        lambda _: f"{_BEGIN}\n{made}\n{_END}",
        page.read_text(),
        flags=re.DOTALL,
    )
    assert found == 1, f"{page} has no place for the table"
    page.write_text(text)


if __name__ == "__main__":
    main()
