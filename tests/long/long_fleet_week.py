"""A week of a thousand boxes at one collector, and the other scenarios of docs/fleet-scenarios.md.

    python tests/long/long_fleet_week.py week --scale 1        # 11 million rows: most of an hour
    python tests/long/long_fleet_week.py week --scale 0.01     # as in the test suite
    python tests/long/long_fleet_week.py killed locked broker storm --scale 0.02

With --page the results go into that page, between its marks, and into the JSON file beside it, from
which the others of the table come. A row that is neither stored nor declared ends the run and
changes nothing. `--folder` is where broker and store live meanwhile: a week takes about 10 GB. What
went wrong stays there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / name) for name in ("fleet", "publish", "scenarios")]

from ledger import Account, table  # noqa: E402
from week_run import STORIES, Size, Story, played  # noqa: E402

_BEGIN = "<!-- made by tests/long/long_fleet_week.py -->"
_END = "<!-- end of what was made -->"


def _played(story: Story, scale: float, below: Path | None) -> Account:
    folder = Path(tempfile.mkdtemp(prefix="fleet-week-", dir=below))
    account = played(folder, story, Size.scaled(scale))
    shutil.rmtree(folder)
    print(account.line(), flush=True)
    return account


def _circumstances() -> str:
    return (
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores ({platform.machine()}) shared with "
        f"other work, load {os.getloadavg()[2]:.0f}; mosquitto 2.0.11, "
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    )


def described(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The table, and the figures below it."""
    known = [(Account(**results[name]["account"]), results[name]["circumstances"])
             for name in STORIES if name in results]  # fmt: skip
    figures = [
        f"- **{account.scenario}** ({circumstances}): "
        + "; ".join(f"{name} {said}" for name, said in account.figures.items())
        for account, circumstances in known
    ]
    return "\n".join([table([account for account, _ in known]), "", *figures])


def _onto(page: Path, played_now: Mapping[str, Account]) -> None:
    kept = page.with_suffix(".json")
    results = json.loads(kept.read_text()) if kept.exists() else {}
    for name, account in played_now.items():
        results[name] = {"account": asdict(account), "circumstances": _circumstances()}
    text, found = re.subn(
        f"{re.escape(_BEGIN)}.*{re.escape(_END)}",
        lambda _: f"{_BEGIN}\n{described(results)}\n{_END}",
        page.read_text(),
        flags=re.DOTALL,
    )
    assert found == 1, f"{page} has no place for the table"
    page.write_text(text)
    kept.write_text(json.dumps(results, indent=1) + "\n")


def main() -> None:
    """Play, account, and put the result where it belongs."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("stories", nargs="+", choices=list(STORIES))
    options.add_argument("--scale", type=float, default=1.0)
    options.add_argument("--page", type=Path)
    options.add_argument("--folder", type=Path)
    chosen = options.parse_args()
    for name in chosen.stories:
        account = _played(STORIES[name], chosen.scale, chosen.folder)
        if chosen.page is not None:
            _onto(chosen.page, {name: account})


if __name__ == "__main__":
    main()
