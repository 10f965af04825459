"""Where does a scenario play: agents and collectors as processes, ended by their pid?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agent_process import Feed, Spec
from broker_places import PATIENCE_S, until
from collector import Collector, Manner

HERE = Path(__file__).parent
_PATHS = (HERE, HERE.parent / "publish", HERE.parent.parent)


def environment() -> dict[str, str]:
    """Of the processes: they find the same modules as the test."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, _PATHS))}


@dataclass
class AgentProcess:
    """An agent that can be killed and started again in the same folder."""

    folder: Path
    spec: Spec
    process: subprocess.Popen[str] | None = None
    most_rss_bytes: int = 0
    first_rss_bytes: int = 0
    orders: int = 0
    """Given since the start."""

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "spec.json").write_text(json.dumps(asdict(self.spec)))
        (self.folder / "state.json").unlink(missing_ok=True)
        self.orders = 0
        with (self.folder / "errors").open("a") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "agent_process.py"), str(self.folder)],
                stdin=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment(),
            )
        until(self._speaks, "the agent says how it stands")
        self.first_rss_bytes = self.most_rss_bytes = self.rss_bytes()

    def _speaks(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "errors").read_text()
        return bool(self.state())

    def state(self) -> dict[str, Any]:
        try:
            document: dict[str, Any] = json.loads((self.folder / "state.json").read_text())
        except FileNotFoundError:
            return {}
        return document

    @property
    def link(self) -> dict[str, Any]:
        found: dict[str, Any] = self.state().get("link", {})
        return found

    def order(self, **what: Any) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        self.orders += 1

    def feed(self, feed: Feed) -> None:
        self.order(feed=asdict(feed))

    def fed(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until everything of the last feed is in the spool."""
        until(self._is_fed, "the feed is in the spool", patience_s)

    def _is_fed(self) -> bool:
        state = self.state()
        return state["orders"] == self.orders and not state["left"] and state.get("waiting") == 0

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self._ended()

    def stop(self) -> None:
        """Let it leave; it must not need to be killed."""
        if self.process is not None:
            self.order(stop=True)
            self._ended()

    def _ended(self) -> None:
        assert self.process is not None
        try:
            self.process.wait(PATIENCE_S)
        finally:
            assert self.process.stdin is not None
            self.process.stdin.close()
        self.process = None

    def rss_bytes(self) -> int:
        """What it holds now; remembered if it is the most so far."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        now = int(line.split()[1]) * 1024
        self.most_rss_bytes = max(self.most_rss_bytes, now)
        return now

    def journal(self) -> list[tuple[str, str, int]]:
        """What was committed: epoch, stream, number; for M the last number of a flush."""
        lines = (line.split() for line in (self.folder / "journal").read_text().splitlines())
        return [(epoch, stream, int(seq)) for epoch, stream, seq in lines]


@contextmanager
def agent(folder: Path, spec: Spec) -> Iterator[AgentProcess]:
    made = AgentProcess(folder, spec)
    made.start()
    try:
        yield made
    finally:
        if made.process is not None:
            made.kill()


@contextmanager
def collecting(port: int, database: Path, manner: Manner | None = None) -> Iterator[Collector]:
    made = Collector(port, database, manner)
    made.start()
    try:
        yield made
    finally:
        made.stop()


@dataclass
class Member:
    """A collector in a process of its own."""

    port: int
    database: Path
    words: Sequence[str] = field(default_factory=tuple)
    process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "collector.py"), str(self.port), str(self.database),
             *self.words],
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )  # fmt: skip
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def end(self, by: signal.Signals = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(by)
            self.process.wait(PATIENCE_S)
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None


@contextmanager
def member(made: Member) -> Iterator[Member]:
    made.start()
    try:
        yield made
    finally:
        made.end()
