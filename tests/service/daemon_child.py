"""The daemon as it is, in a world whose clock a test can move: CONFIG HANDS [SYSTEMCTL].

HANDS is a file with `{"synchronised": true, "ahead_s": 0}`, read whenever somebody asks the time.
The word in EDGEAGENT_TEST_KILL names a moment at which the process ends itself by SIGKILL.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from edgeagent.core.backoff import Pace
from edgeagent.core.commands import Accepted, Sweep
from edgeagent.errors import EdgeAgentError
from edgeagent.journal import journal
from edgeagent.service import daemon
from edgeagent.settings import load, surroundings
from edgeagent.systemd import notifier
from edgeagent.wallclock import Hands, WallClock

KILL_AT = os.environ.pop("EDGEAGENT_TEST_KILL", "nowhere")
SWIFT = Pace(first_s=0.0, return_s=0.2, most_s=0.5, refused_s=0.2, taken_over_s=300.0)


def reached(place: str) -> None:
    if place == KILL_AT:
        os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()


class Killed(daemon.Daemon):
    """Ends itself where it is told to."""

    def new_name(self) -> str:
        reached("accepted")
        return super().new_name()

    def begin_sweep(self, name: str, sweep: Sweep, outcome: Accepted) -> None:
        reached("running")
        super().begin_sweep(name, sweep, outcome)
        reached("begun")


def hands(file: Path) -> Hands:
    def moved() -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(file.read_text())
        except (OSError, ValueError):
            return {}
        return found

    def ahead_ns() -> int:
        return int(float(moved().get("ahead_s", 0)) * 1e9)

    return Hands(
        lambda: time.time_ns() + ahead_ns(),
        lambda: time.monotonic_ns() + ahead_ns(),
        lambda: bool(moved().get("synchronised", True)),
    )


def main() -> int:
    config, moved = Path(sys.argv[1]), Path(sys.argv[2])
    around = daemon.Around(
        load=lambda: load(surroundings("system"), config),
        environ=os.environ,
        notifier=notifier(os.environ),
        journal=journal(os.environ),
        link_pace=SWIFT,
        systemctl=tuple(sys.argv[3:]) or ("false",),
        policy_owners=frozenset({os.geteuid()}),
        clock=lambda: WallClock(hands=hands(moved)),
    )
    try:
        return daemon.run(around, Killed)
    except EdgeAgentError as error:
        print(f"edgeagent: {error}", file=sys.stderr)
        return error.exit_status


if __name__ == "__main__":
    sys.exit(main())
