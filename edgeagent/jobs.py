"""How does a sweep run for somebody who is not at a terminal?

In a process of its own: its memory goes when it ends, and a crash is a failed job and no dead
daemon. The question is put into the run folder and the sweep goes on from there, as after an
interruption; so nothing of it stands on a command line.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from edgeagent.config import SweepRequest
from edgeagent.core.outgoing import Finished
from edgeagent.itself import program
from edgeagent.lifeline import VARIABLE
from edgeagent.probes import processes
from edgeagent.question import PLAN, RESULT, write_question
from edgeagent.store.runfolder import CELLS, LOCK, RunFolder

_TOLD_BYTES = 4096
_OURS = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "JOURNAL_STREAM"})
"""What systemd has told the daemon alone; engines take some of it for their own."""


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
            write_question(made, request)
        told = tempfile.TemporaryFile()  # noqa: SIM115  # because it lives as long as the sweep
        command = [*program(), "sweep", "--resume", str(folder)]
        try:
            process = subprocess.Popen(
                [*command, "--quiet", *more],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=told,
                start_new_session=True,
                env=_environment(environ),
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
            plan = json.loads((self.folder / PLAN).read_bytes())
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


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in environ.items() if name not in _OURS}
    return {**kept, VARIABLE: str(os.getpid())}


def at_work(folder: Path) -> bool:
    """Whether a sweep has the folder now, of whichever daemon."""
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def family(pid: int, proc: Path = Path("/proc")) -> tuple[int, ...]:
    """Return the process and all that descend from it."""
    return processes.tree(processes.scan(proc), pid)


def gone(pids: Iterable[int], seconds: float) -> bool:
    """Wait until none of these processes lives any more; return whether that came true."""
    deadline = time.monotonic() + seconds
    left = [pid for pid in pids if pid != os.getpid()]
    while left := [pid for pid in left if _lives(pid)]:
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True


def _lives(pid: int) -> bool:
    """A zombie has ended: somebody has only not noticed yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def finished(folder: Path) -> Finished | None:
    """Return a run's result as it lies on disk; None when it has none."""
    path = folder / RESULT
    try:
        raw = path.read_bytes()
        document = json.loads(raw)
    except (OSError, ValueError):
        return None
    if not isinstance(document, dict):
        return None
    return Finished(document, hashlib.sha256(raw).hexdigest(), str(path))
