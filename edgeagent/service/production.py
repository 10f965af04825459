"""How is the plant's own service stopped for a sweep, and surely started again?

What is to be started again stands in a file, on disk, before anything is stopped. Whoever comes by
later starts it: the daemon when the sweep has ended, the next daemon when this one was killed, and
systemd after either (`edgeagent daemon --restore`, as ExecStopPost).

`systemctl` may take minutes, so the daemon does neither itself: an `Errand` does.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgeagent.errors import EdgeAgentError

SYSTEMCTL = ("systemctl", "--no-ask-password")
_PATIENCE_S = 300.0
_BRIEF_S = 10.0
_RUNS = frozenset({b"active", b"activating", b"reloading"})


class ProductionError(EdgeAgentError):
    """The plant's service could not be stopped, or could not be started again."""


@dataclass(frozen=True)
class Production:
    """One systemd service that has to make room for a sweep."""

    unit: str
    state_file: Path
    systemctl: tuple[str, ...] = SYSTEMCTL

    def stop(self) -> bool:
        """Stop the service if it runs; return whether it did. Raises ProductionError.

        One that does not run is left alone, now and afterwards.
        """
        if not self._is_active():
            return False
        _keep(self.state_file, {"unit": self.unit})
        try:
            self._do("stop")
        except ProductionError:
            restore(self.state_file, self.systemctl)
            raise
        return True

    def _is_active(self) -> bool:
        done = _run((*self.systemctl, "is-active", self.unit))
        return done.returncode == 0 or done.stdout.strip() in _RUNS

    def _do(self, verb: str) -> None:
        _checked(self.systemctl, verb, self.unit)


def owed(state_file: Path) -> str | None:
    """Return the service that has to be started again; None when there is none."""
    try:
        value = json.loads(state_file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return None
    unit = value.get("unit") if isinstance(value, dict) else None
    return unit if isinstance(unit, str) else None


Wait = Literal["until_started", "no"]


def restore(
    state_file: Path, systemctl: tuple[str, ...] = SYSTEMCTL, wait: Wait = "until_started"
) -> str | None:
    """Start again what was stopped; return its name, None when nothing was. Raises ProductionError.

    The file goes only when the service has been started, so that it is tried again otherwise. Who
    cannot wait hands the start over to systemd.
    """
    unit = owed(state_file)
    if unit is None:
        return None
    if wait == "no":
        # Also because a start that waits would wait for itself where systemd is stopping us.
        _checked((*systemctl, "--no-block"), "start", unit, _BRIEF_S)
    else:
        _checked(systemctl, "start", unit)
    with suppress(FileNotFoundError):
        state_file.unlink()
    return unit


class Errand:
    """Something that may take long, done in a thread of its own."""

    def __init__(self, what: Callable[[], object]) -> None:
        """Begin."""
        self._what = what
        self._error: EdgeAgentError | None = None
        self._thread = threading.Thread(target=self._do, name="errand", daemon=True)
        self._thread.start()

    def _do(self) -> None:
        try:
            self._what()
        except EdgeAgentError as error:
            self._error = error

    @property
    def done(self) -> bool:
        """Whether it is over."""
        return not self._thread.is_alive()

    @property
    def error(self) -> EdgeAgentError | None:
        """Why it did not work; None when it did."""
        return self._error


def _checked(
    systemctl: tuple[str, ...], verb: str, unit: str, patience_s: float = _PATIENCE_S
) -> None:
    done = _run((*systemctl, verb, unit), patience_s)
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise ProductionError(
            f"systemctl {verb} {unit} failed ({said[-1] if said else done.returncode}): allow it "
            "by the polkit rule that the package brings (disabled), or take production_unit out"
        )


def _run(
    command: tuple[str, ...], patience_s: float = _BRIEF_S
) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=patience_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ProductionError(
            f"{' '.join(command)} did not end within {patience_s:.0f} s: see systemctl status of "
            "that service"
        ) from error
    except OSError as error:
        raise ProductionError(
            f"{' '.join(command)} could not be run ({error}): without systemd nothing can be "
            "stopped for a sweep, take production_unit out of the configuration"
        ) from error


def _keep(path: Path, value: dict[str, str]) -> None:
    """Write the file so that a power cut in the next moment cannot lose it."""
    draft = path.with_name(f".{path.name}.tmp")
    try:
        with draft.open("w") as file:
            json.dump(value, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise ProductionError(
            f"could not note in {path} what has to be started again ({error.strerror}): nothing "
            "was stopped"
        ) from error
