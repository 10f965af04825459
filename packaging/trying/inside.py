"""What do the scenarios stand on, inside of the system that is tried?

Runs as root under the tried system's own Python, with nothing but the standard library. Results go
to a file, a line each, as soon as they are known: whatever happens afterwards, they are told.
"""

from __future__ import annotations

import json
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PLACE = Path("/try")
"""What the host has laid down: packages, this program, an engine; and where results go."""
RESULTS = PLACE / "results.jsonl"
SERVICE = "edgeagent.service"
CONFIG = Path("/etc/edgeagent/edgeagent.toml")
OURS = Path("/etc/edgeagent/conf.d/90-try.toml")
STATE = Path("/var/lib/edgeagent")


class Failed(Exception):  # noqa: N818  # because a scenario fails, and no program does
    """A sentence: what was expected, what was seen."""


class Left(Exception):  # noqa: N818  # because it is an outcome
    """Why a scenario cannot be tried here."""


@dataclass(frozen=True)
class Scenario:
    """One line of the table."""

    name: str
    kind: str
    """quick (always), full, or image and arm64 (systems of their own)."""
    run: Callable[[], str]


SCENARIOS: list[Scenario] = []


def scenario(name: str, kind: str = "quick") -> Callable[[Callable[[], str]], Callable[[], str]]:
    """Put a function into the table; it returns a few words or raises Failed or Left."""

    def put(run: Callable[[], str]) -> Callable[[], str]:
        SCENARIOS.append(Scenario(name, kind, run))
        return run

    return put


def chosen(kinds: tuple[str, ...]) -> list[Scenario]:
    """The scenarios of these kinds, in their order."""
    return [one for one in SCENARIOS if one.kind in kinds]


def run_all(kinds: tuple[str, ...]) -> None:
    """Run them one after the other; a failure does not keep the next from being tried."""
    with RESULTS.open("a", encoding="utf-8") as results:
        for one in chosen(kinds):
            begun = time.monotonic()
            outcome, detail = _outcome(one)
            record = {
                "scenario": one.name, "outcome": outcome, "detail": detail,
                "seconds": round(time.monotonic() - begun, 1),
            }  # fmt: skip
            results.write(json.dumps(record) + "\n")
            results.flush()
            print(f"{outcome}: {one.name}: {detail}", flush=True)


def _outcome(one: Scenario) -> tuple[str, str]:
    try:
        return "ok", one.run()
    except Left as left:
        return "skipped", str(left)
    except Failed as failed:
        return "failed", str(failed)
    except Exception:  # noqa: BLE001  # because the next scenario is to be tried all the same
        return "failed", traceback.format_exc(limit=-3).strip().replace("\n", " | ")


# ------------------------------------------------------------------------------------ what they use


def check(holds: object, sentence: str) -> None:
    """Raise Failed with the sentence unless it holds."""
    if not holds:
        raise Failed(sentence)


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    status: int
    text: str


def run(*words: str | Path, user: str | None = None, timeout_s: float = 600) -> Done:
    """Run a command to its end, as root or as another user; both outputs together."""
    as_user = ["runuser", "-u", user, "--"] if user else []
    done = subprocess.run(
        [*as_user, *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        text=True, errors="replace", timeout=timeout_s, check=False,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/root",
             "DEBIAN_FRONTEND": "noninteractive"},
    )  # fmt: skip
    return Done(done.returncode, done.stdout)


def must(*words: str | Path, user: str | None = None, timeout_s: float = 600) -> str:
    """As `run`; raises Failed unless it ended with 0."""
    done = run(*words, user=user, timeout_s=timeout_s)
    check(
        done.status == 0, f"{' '.join(map(str, words))}: status {done.status}: {done.text[-700:]}"
    )
    return done.text


def until(holds: Callable[[], object], what: str, patience_s: float = 90) -> None:
    """Wait until it holds; raises Failed, with the service's last words, when it is late."""
    end_s = time.monotonic() + patience_s
    while not holds():
        if time.monotonic() >= end_s:
            raise Failed(f"not within {patience_s:g} s: {what}; the log: {journal(6)}")
        time.sleep(0.2)


def show(unit: str = SERVICE) -> dict[str, str]:
    """Properties of a unit."""
    names = (
        "ActiveState,SubState,Result,MainPID,NRestarts,ExecMainStatus,StatusText,UnitFileState,"
        "ControlGroup,ExecMainCode,LoadState"
    )
    lines = must("systemctl", "show", "-p", names, unit).splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def restart(patience_s: float = 120) -> str:
    """Start the service anew; its main process."""
    done = run("systemctl", "restart", SERVICE, timeout_s=patience_s)
    check(done.status == 0, f"it did not start: {done.text} {show()} {journal()}")
    return show()["MainPID"]


def journal(lines: int = 12) -> str:
    """The service's last words."""
    told = run("journalctl", "-u", SERVICE, "-n", str(lines), "--no-pager", "-o", "cat")
    return told.text[-1500:]


def processes_of(user: str) -> dict[int, str]:
    """Every living process of a user, with its command line."""
    import pwd

    try:
        uid = pwd.getpwnam(user).pw_uid
    except KeyError:
        return {}
    return {pid: text for pid, owner, text in _processes() if owner == uid}


def _processes() -> Iterator[tuple[int, int, str]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                owner = folder.stat().st_uid
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
            except OSError:
                continue
            if state != "Z":
                yield int(folder.name), owner, words.decode("utf-8", "replace")


def engines() -> list[int]:
    """The processes of engines that live."""
    marks = ("edgeagent.engines.scripted", "llama-server", "prober")
    return [
        pid for pid, text in processes_of("edgeagent").items()
        if any(mark in text for mark in marks) and " --port " in text and "keeper.py" not in text
    ]  # fmt: skip


def configure(text: str) -> None:
    """Put text into the drop-in of the configuration that is ours."""
    OURS.parent.mkdir(parents=True, exist_ok=True)
    OURS.write_text(text, encoding="utf-8")
    OURS.chmod(0o644)


def drop_in(name: str, text: str, unit: str = SERVICE) -> None:
    """Add to the unit, as an OEM would."""
    folder = Path(f"/etc/systemd/system/{unit}.d")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    must("systemctl", "daemon-reload")


def runs() -> list[Path]:
    """The run folders of the service, the oldest first."""
    return sorted(STATE.glob("runs/*"), key=lambda path: path.stat().st_mtime_ns)


def result_of(folder: Path) -> dict[str, Any]:
    """A run's result."""
    found: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return found
