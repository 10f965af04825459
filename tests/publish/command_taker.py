"""Takes one command through the spool, as the daemon does, up to a place: FOLDER PLACE.

Each run that it begins is a line in FOLDER/runs. At PLACE it says so and waits to be killed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from spool_places import opened

from edgeagent.core.commands import (
    Accepted,
    CommandState,
    Step,
    advance,
    begin,
    recovered,
    repeated,
)
from edgeagent.publish import command_rows
from edgeagent.publish.command_rows import Said
from edgeagent.publish.commands import Arrived, Request, received
from edgeagent.publish.spool import Spool

ID = "0b2f6a5e-1111-4222-8333-444455556666"
DOCUMENT = {
    "schema": "edgeagent.cmd.sweep/1",
    "id": ID,
    "issued_at": 1,
    "expires_at": 2,
    "issuer": "plant-operator",
    "profile": "nightly",
}


def _reached(place: str) -> None:
    if sys.argv[2] == place:
        print("here", flush=True)
        time.sleep(600)


def _take(spool: Spool, request: Request) -> None:
    if repeated(command_rows.seen(spool.seen(ID)), request.fingerprint) is None:
        _reached("before accepted")
        row = command_rows.stored(
            begin(request.command, Accepted("start"), 1),
            Said(request.fingerprint, request.document, 1),
        )
        spool.remember(row.id, row.op, row.state, row.detail)
        _reached("accepted")
    for row in spool.unfinished():
        known = command_rows.said(row)
        running = _written(spool, command_rows.state(row), "start", known)
        if running is None:
            continue
        _reached("running")
        _run()
        _reached("begun")
        _written(spool, running, "succeed", known)
        _reached("succeeded")


def _written(spool: Spool, state: CommandState, step: Step, said: Said) -> CommandState | None:
    """The next state, once it is on disk; None for a step that must not be taken."""
    after = advance(state, step, 2)
    if after is not None:
        row = command_rows.stored(after, said)
        spool.state(row.id, row.state, row.detail)
    return after


def _run() -> None:
    with (Path(sys.argv[1]) / "runs").open("a") as runs:
        runs.write("one\n")
        runs.flush()
        os.fsync(runs.fileno())


def main() -> None:
    """Come up, take the command once more, as a broker delivers it, and end."""
    spool = opened(Path(sys.argv[1]) / "spool.db")
    for row in spool.unfinished():
        for changed in recovered([command_rows.state(row)], 3):
            again = command_rows.stored(changed, command_rows.said(row))
            spool.state(again.id, again.state, again.detail)
    message = Arrived(f"cmd/sweep/{ID}", json.dumps(DOCUMENT).encode(), "live")
    request = received(message, None)
    assert isinstance(request, Request)
    _take(spool, request)
    spool.close()


if __name__ == "__main__":
    main()
