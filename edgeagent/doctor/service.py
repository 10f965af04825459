"""Is the service installed, enabled and running, and does it answer?"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgeagent.core.diagnosis import Check, State
from edgeagent.doctor.bounded import OverdueError, within
from edgeagent.doctor.unit import NAME, Unit
from edgeagent.errors import UnreachableError
from edgeagent.service.control import ask

ASK_S = 10.0
LIMIT_S = 3 * ASK_S
_RUNS_SYSTEMD = "run/systemd/system"
_KEYS = "LoadState,UnitFileState,ActiveState,SubState,Result,ExecMainStatus,NRestarts,StatusText"
_ENABLED = frozenset({"enabled", "enabled-runtime", "static", "linked", "alias"})
_CONFIG_STATUS = "78"
_GROUP_STATUS = "216"
_JOURNAL = "journalctl -u edgeagent -e tells why"
_START = "sudo systemctl enable --now edgeagent"


def systemd_runs(root: Path) -> bool:
    """Whether systemd manages this box."""
    return (root / _RUNS_SYSTEMD).is_dir()


def state(systemctl: str = "systemctl") -> Mapping[str, str] | str:
    """Return what systemd tells of the unit, or why it tells nothing."""
    try:
        done = subprocess.run(
            [systemctl, "show", NAME, "--property", _KEYS],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=ASK_S,
            check=False,
            text=True,
        )
    except subprocess.TimeoutExpired:
        return f"systemctl did not answer within {ASK_S:g} s"
    except OSError as error:
        return f"systemctl cannot be started: {error.strerror}"
    if done.returncode:
        return f"systemctl said: {done.stderr.strip()[:200]}"
    pairs = (line.partition("=") for line in done.stdout.splitlines())
    return {key: value for key, _, value in pairs}


def unit_check(root: Path, unit: Unit | None, wanted: bool) -> Check:  # noqa: FBT001  # because it is a finding, not a switch
    """Judge the unit; `wanted` is whether the configuration gives the service something to do."""
    if not systemd_runs(root):
        text = "systemd does not run here, so there is no service: sweeps by hand work without it"
        hint = "to publish all the time, let your own supervisor run edgeagent daemon"
        return Check("service", "missing", text, hint)
    if unit is None:
        text = f"{NAME} is not installed: sweeps by hand work without it"
        return Check("service", "missing", text, "install the .deb, or the units of systemd/")
    if root != Path("/"):
        return Check(
            "service", "unasked", "installed; whether it runs cannot be asked below a root"
        )
    told = state()
    if isinstance(told, str):
        return Check("service", "warning", f"installed; {told}", "is this a container?")
    return standing(told, wanted)


def standing(told: Mapping[str, str], wanted: bool) -> Check:  # noqa: FBT001  # because it is a finding, not a switch
    """Judge what systemd tells of the unit."""
    name = "service"
    active, file = told.get("ActiveState", ""), told.get("UnitFileState", "")
    enabled = file in _ENABLED
    if told.get("LoadState") == "masked" or file.startswith("masked"):
        hint = f"sudo systemctl unmask edgeagent, then {_START}"
        return Check(name, "warning", "installed and masked, so it never starts", hint)
    if active in ("failed", "activating") and told.get("Result", "success") != "success":
        return _failed(told)
    if active in ("active", "reloading"):
        return _running(told.get("StatusText") or "running", enabled)
    if active == "activating":
        return Check(name, "ok", f"starting ({told.get('SubState', '')})")
    whether = "enabled" if enabled else "not enabled"
    text = f"installed, {whether}, not running"
    if wanted:
        return Check(name, "warning", f"{text}, though the configuration has work for it", _START)
    hint = f"configure it (/etc/edgeagent/edgeagent.toml), then {_START}"
    return Check(name, "missing", text, hint)


def _running(status: str, enabled: bool) -> Check:  # noqa: FBT001  # because it is a finding, not a switch
    if enabled:
        return Check("service", "ok", f"enabled and running: {status}")
    hint = "sudo systemctl enable edgeagent"
    return Check("service", "warning", f"{status}; it does not start at boot", hint)


def _failed(told: Mapping[str, str]) -> Check:
    status, result = told.get("ExecMainStatus", ""), told.get("Result", "")
    restarts = told.get("NRestarts", "0")
    text = f"failed: {result}, exit status {status}, started again {restarts} times"
    hint = _JOURNAL
    if status == _CONFIG_STATUS:
        hint = "edgeagent config check --system names file, line and key"
    elif status == _GROUP_STATUS:
        hint = "a group of the unit does not exist: sudo systemd-sysusers, or groupadd -r render"
    return Check("service", "fault", text, hint)


@dataclass(frozen=True)
class Daemon:
    """What the daemon said of itself; `answer` is None when none did."""

    checks: tuple[Check, ...]
    answer: Mapping[str, object] | None = None
    facts: Mapping[str, object] = field(default_factory=dict)


def daemon(socket: Path, running: bool) -> Daemon:  # noqa: FBT001  # because it is a finding, not a switch
    """Ask the daemon at its socket; `running` is whether there has to be one."""
    name = "service.socket"
    if not running and not os.path.exists(socket):  # noqa: PTH110  # because Path raises where a folder is closed
        return Daemon((Check(name, "unasked", "no daemon runs here"),))
    try:
        answers = within(ASK_S, lambda: list(ask(socket, {"op": "status"}, ASK_S / 2)))
    except OverdueError as error:
        hint = "sudo systemctl restart edgeagent, and keep the log"
        return Daemon((Check(name, "fault", f"the daemon at {socket} gave {error}", hint),))
    except UnreachableError as error:
        text, _, hint = str(error).partition(": ")
        closed = isinstance(error.__cause__, PermissionError)
        serious: State = "warning" if closed or not running else "fault"
        return Daemon((Check(name, serious, text, hint or None),))
    return _answered(answers[-1])


def _answered(answer: Mapping[str, object]) -> Daemon:
    name = "service.socket"
    if "error" in answer:
        return Daemon((Check(name, "warning", f"the daemon says: {answer.get('text')}"),), answer)
    return Daemon(tuple(_told(name, answer)), answer)


def _told(name: str, answer: Mapping[str, object]) -> Iterator[Check]:
    link = answer.get("link")
    words = [f"the daemon answers as {answer.get('site')}/{answer.get('node')}"]
    if isinstance(link, Mapping):
        words += [f"broker {link.get('connection')}", f"{link.get('rows')} messages wait"]
    running = answer.get("running")
    words += [f"sweep {running} runs"] if running else []
    yield Check(name, "ok", "; ".join(words))
    troubles = answer.get("troubles")
    for trouble in troubles if isinstance(troubles, list) else []:
        text, _, hint = str(trouble).partition(": ")
        yield Check("service.trouble", "warning", text, hint or _JOURNAL)
