"""The agent as a user runs it: a process of its own, small loads, fast scripted engines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

SMALL = (
    "--concurrency=1,2", "--requests=4", "--warmup=1", "--repeats=1", "--cooldown=0",
    "--prefix-tokens=48", "--prompt-tokens=16", "--output-tokens=4",
    "--memory-repeats=0", "--canary=0", "--settle=0.3",
)  # fmt: skip
"""A plan of two levels, each with cold and warm cache, that takes a few seconds."""


def words(*arguments: object) -> list[str]:
    """The command; a sweep draws no sheet, which would take longer than what most tests measure."""
    drawn_later = ["--no-report"] if arguments[:1] == ("sweep",) else []
    return [sys.executable, "-m", "edgeagent", *map(str, arguments), *drawn_later]


def fake(*flags: str, ttft_ms: int = 60, itl_ms: int = 20) -> list[str]:
    """The scripted engine with these flags; its requests take long enough to be in flight."""
    all_flags = [f"--ttft-ms={ttft_ms}", f"--itl-ms={itl_ms}", *flags]
    split = [part for flag in all_flags for part in flag.split("=", 1)]
    return ["--engine=fake", *(f"--engine-arg=fake={part}" for part in split)]


def edgeagent(
    *arguments: object, timeout_s: float = 90, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run it to its end; `environ` comes on top of our own."""
    return subprocess.run(
        words(*arguments), capture_output=True, text=True, timeout=timeout_s, cwd=ROOT, check=False,
        env={**os.environ, **(environ or {})},
    )  # fmt: skip


def begun(*arguments: object) -> subprocess.Popen[str]:
    """Start it."""
    return subprocess.Popen(
        words(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )


def until(happened: Callable[[], object], what: str, within_s: float = 90) -> None:
    """Wait for something that must come; its absence fails the test."""
    deadline = time.monotonic() + within_s
    while not happened():
        assert time.monotonic() < deadline, f"{what} did not happen within {within_s} s"
        time.sleep(0.05)


def result(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return document


OF_THE_BOX = {
    "inflight_below_concurrency", "client_bound", "clock_stepped", "throttled", "memory_pressure",
    "power_mode_changed",
}  # fmt: skip
"""Doubts that a busy test machine may rightly raise; they are not what these tests are about."""


def measured_well(done: subprocess.CompletedProcess[str], folder: Path) -> dict[str, Any]:
    """The result of a sweep that must have gone well but for the state of this box."""
    document = result(folder)
    doubts = {f["code"] for f in document["findings"] if f["severity"] == "suspect"}
    assert doubts <= OF_THE_BOX, (doubts, done.stderr)
    assert done.returncode == (1 if doubts else 0), done.stderr
    assert document["status"] == "complete"
    return document


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def processes_of(folder: Path) -> list[str]:
    """Command lines of living processes that name the folder: its engines and their keepers."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(folder) in command:
            found.append(command)
    return found


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """The one line on stderr that refuses; anything else fails the test."""
    text = done.stderr.strip()
    assert "Traceback" not in text, text
    assert text.count("\n") == 0, text
    assert text.startswith("edgeagent: "), text
    return text


def sweep(
    folder: Path,
    engine: Sequence[str],
    *more: object,
    environ: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    return edgeagent("sweep", *engine, *SMALL, "--out", folder, "--quiet", *more, environ=environ)
