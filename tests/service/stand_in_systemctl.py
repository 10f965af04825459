"""A service manager of the test's own: `systemctl` keeps what it was told."""

from __future__ import annotations

import stat
from pathlib import Path

from edgeagent.service.production import Production

SYSTEMCTL = """#!/bin/sh
# what is-active says lies in a file; every other verb is noted and changes it
here=$(dirname "$0")
for verb; do case $verb in is-active|stop|start) break;; esac; done
[ "$verb" = is-active ] && { [ "$(cat "$here/state")" = active ]; exit $?; }
echo "$*" >> "$here/told"
[ -e "$here/refuse-$verb" ] && { echo "Interactive authentication required." >&2; exit 4; }
case $verb in stop) echo inactive > "$here/state";; start) echo active > "$here/state";; esac
"""


class Manager:
    """A service manager with one service."""

    def __init__(self, folder: Path, state: str) -> None:
        self.folder = folder
        program = folder / "systemctl"
        program.write_text(SYSTEMCTL)
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        (folder / "state").write_text(state)
        self.command = (str(program), "--no-ask-password")
        self.state_file = folder / "production.json"

    @property
    def state(self) -> str:
        return (self.folder / "state").read_text().strip()

    @property
    def told(self) -> list[str]:
        try:
            return (self.folder / "told").read_text().splitlines()
        except FileNotFoundError:
            return []

    def refuses(self, verb: str) -> None:
        (self.folder / f"refuse-{verb}").touch()

    def allows(self, verb: str) -> None:
        (self.folder / f"refuse-{verb}").unlink()

    def production(self) -> Production:
        return Production("vllm.service", self.state_file, self.command)
