"""How does a sweep run for somebody who is not at a terminal?

In a process of its own: its memory goes when it ends, and a crash is a failed job and no dead
daemon. The question is put into the run folder and the sweep goes on from there, as after an
interruption; so nothing of it stands on a command line.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from edgeagent import archive
from edgeagent.config import SweepRequest
from edgeagent.core.outgoing import Finished
from edgeagent.lifeline import VARIABLE
from edgeagent.store.runfolder import CELLS, RunFolder

_TOLD_BYTES = 4096


@dataclass(frozen=True)
class Progress:
    """How far a sweep is, in cells."""

    done: int
    planned: int | None
    """None until the plan is known."""


class SweepJob:
    """One sweep in a process of its own."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes], told: IO[bytes]) -> None:
        self.folder = folder
        self._process = process
        self._told = told

    @classmethod
    def start(
        cls, folder: Path, request: SweepRequest, environ: Mapping[str, str], *more: str
    ) -> SweepJob:
        """Make the run folder and start. Call it from a thread that lives as long as the sweep.

        `more` are options of the agent's own making. Raises UsageError when the folder cannot be
        made, OSError when no process can.
        """
        with RunFolder.create(folder) as made:
            archive.write_question(made, request)
        told = tempfile.TemporaryFile()  # noqa: SIM115  # because it lives as long as the sweep
        command = [sys.executable, "-m", "edgeagent", "sweep", "--resume", str(folder)]
        try:
            process = subprocess.Popen(
                [*command, "--quiet", *more],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=told,
                start_new_session=True,
                env={**environ, VARIABLE: str(os.getpid())},
            )
        except OSError:
            told.close()
            raise
        return cls(folder, process, told)

    @property
    def pid(self) -> int:
        """The sweep's process."""
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit status (negative: the signal), or None while it runs."""
        return self._process.poll()

    def progress(self) -> Progress:
        """Return how far it is; reads two small files."""
        with suppress(OSError, ValueError):
            plan = json.loads((self.folder / archive.PLAN).read_bytes())
            cells = plan.get("cells")
            done = (self.folder / CELLS).read_bytes().count(b"\n")
            return Progress(done, len(cells) if cells else None)
        return Progress(0, None)

    def stop(self) -> None:
        """Ask it to end: its engines end, what was measured is kept."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once. Its engines' keepers notice, and end them."""
        with suppress(ProcessLookupError):
            self._process.kill()

    def wait(self, seconds: float) -> int | None:
        """Wait for its end; return as `poll`."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def last_words(self) -> str:
        """Return the last line that it wrote for people; empty when it wrote none."""
        self._told.seek(0, os.SEEK_END)
        self._told.seek(max(0, self._told.tell() - _TOLD_BYTES))
        lines = self._told.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1].removeprefix("edgeagent: ") if lines else ""

    def close(self) -> None:
        """Let go of what the job holds; it must have ended."""
        self._told.close()


def finished(folder: Path) -> Finished | None:
    """Return a run's result as it lies on disk; None when it has none."""
    path = folder / archive.RESULT
    try:
        raw = path.read_bytes()
        document = json.loads(raw)
    except (OSError, ValueError):
        return None
    if not isinstance(document, dict):
        return None
    return Finished(document, hashlib.sha256(raw).hexdigest(), str(path))
