"""Where does a daemon run in a test: a process of its own, a real broker, the scripted engine?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from agent import edgeagent
from broker_places import Observer, mosquitto, observer, until

from edgeagent.service.control import ask

CHILD = Path(__file__).with_name("daemon_child.py")
OVER = {"succeeded", "failed", "cancelled", "interrupted", "rejected"}
PREFIX = "edgeagent/v1/plant7/edge-0001"

_CONFIG = """\
[agent]
site = "plant7"
node = "edge-0001"
state_dir = "{folder}/state"
[mqtt]
enabled = {enabled}
host = "127.0.0.1"
port = {port}
live_interval_s = 1
aggregate_s = 5
[mqtt.commands]
enabled = true
policy_file = "{folder}/commands.toml"
[daemon]
socket = "{folder}/control.sock"
socket_group = ""
[telemetry]
sample_interval_s = 0.2
[schedule]
idle_for_s = 0.5
max_foreign_cpu = 1.0
max_foreign_gpu = 1.0
[sweep]
concurrency = [1]
prefix_cache = "off"
requests = 4
repeats = 1
warmup = 1
cooldown = 0
prefix_tokens = 48
prompt_tokens = 16
output_tokens = 4
memory_repeats = 0
canary = 0
settle = 0.3
[sweep.profiles.quick]
[sweep.profiles.long]
seconds = 600
[engines.fake]
kind = "fake"
args = ["--ttft-ms", "60", "--itl-ms", "20"]
"""
POLICY = """\
operations = ["sweep", "cancel", "resync", "ping", "meta"]
profiles = ["quick", "long", "gone"]
issuers = ["plant-operator"]
max_runs_per_day = 1000
cooldown_s = 0
[bounds.concurrency]
min = 1
max = 4
count = 2
[[windows]]
from = "00:00"
to = "24:00"
"""


def write_config(folder: Path, port: int | None, *changes: tuple[str, str]) -> Path:
    """The configuration of a box at this broker; each change replaces one text by another."""
    text = _CONFIG.format(
        folder=folder, port=port or 1, enabled="true" if port is not None else "false"
    )
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    path = folder / "edgeagent.toml"
    path.write_text(text)
    if not (folder / "commands.toml").exists():
        write_policy(folder)
    return path


def write_policy(folder: Path, *changes: tuple[str, str]) -> None:
    text = POLICY
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    draft = folder / "commands.toml.new"
    draft.write_text(text)
    draft.chmod(0o644)
    draft.replace(folder / "commands.toml")


@dataclass
class Service:
    """One box: its folder, and the daemon on it while there is one."""

    folder: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    systemctl: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    ahead_s: float = 0.0
    patience_s: float = 90.0
    _log: IO[bytes] | None = None

    @property
    def config(self) -> Path:
        return self.folder / "edgeagent.toml"

    @property
    def socket(self) -> Path:
        return self.folder / "control.sock"

    @property
    def runs(self) -> Path:
        return self.folder / "state/runs"

    def start(self, *, kill_at: str = "") -> None:
        """Start the daemon, and wait until it answers, unless it is to kill itself."""
        self.hands_exist()
        self._log = (self.folder / "daemon.log").open("ab")
        paths = os.pathsep.join(sys.path)
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD), str(self.config), str(self.folder / "hands"),
             *self.systemctl],
            env={**os.environ, "PYTHONPATH": paths, "EDGEAGENT_TEST_KILL": kill_at, **self.environ},
            stderr=self._log,
        )  # fmt: skip
        until(self._is_up, "the daemon answers")

    def _is_up(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"the daemon ended: {self.log()}")
        return self.socket.exists() and bool(self.asked())

    def asked(self, request: Mapping[str, object] | None = None) -> list[dict[str, Any]]:
        try:
            return [dict(one) for one in ask(self.socket, request or {"op": "status"}, 60)]
        except Exception:  # noqa: BLE001  # because it may be just coming up
            return []

    def status(self) -> dict[str, Any]:
        return self.asked()[-1]

    def watched(self) -> None:
        """Wait until it has watched the box for as long as it has to."""
        self.wait(lambda: self.status()["unwatched"] is None, "the box has been watched")

    def measures(self, run: str) -> None:
        """Wait until the engine of this run has answered something."""
        records = self.runs / run / "requests.jsonl"
        self.wait(lambda: records.exists() and records.stat().st_size, "it measures")

    def wait(self, reached: Callable[[], object], what: str) -> None:
        """Wait for something to be true; what the daemon has logged belongs to the failure."""
        try:
            until(reached, what, self.patience_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()[-4000:]}") from error

    def log(self) -> str:
        return (self.folder / "daemon.log").read_text(errors="replace")

    def hands_exist(self) -> None:
        if not (self.folder / "hands").exists():
            self.hands()

    def hands(self, *, synchronised: bool = True, ahead_s: float = 0.0) -> None:
        """Move the clock on, and say whether it is synchronised."""
        self.ahead_s += ahead_s
        draft = self.folder / "hands.new"
        draft.write_text(json.dumps({"synchronised": synchronised, "ahead_s": self.ahead_s}))
        draft.replace(self.folder / "hands")

    def now_ms(self) -> int:
        return int((time.time() + self.ahead_s) * 1000)

    def signal(self, which: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(which)

    def ended(self) -> int:
        """Wait for its end; return the exit status."""
        assert self.process is not None
        status = self.process.wait(60)
        self.process = None
        if self._log is not None:
            self._log.close()
        return status

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.ended()

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.ended()

    def cli(self, *words: object, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """The command line, on this box."""
        return edgeagent(*words, "--config", self.config, timeout_s=timeout_s)


@contextmanager
def service(folder: Path, **more: Any) -> Iterator[Service]:
    """A box; whatever runs on it is ended at the end."""
    made = Service(folder, **more)
    try:
        yield made
    finally:
        made.end()


@dataclass
class Plant:
    """The plant's side of a broker."""

    box: Service
    port: int
    sees: Observer

    def documents(self, below: str) -> list[dict[str, Any]]:
        """What came at a topic, in order; a filter may end in #."""
        topic = f"{PREFIX}/{below}"
        if topic.endswith("#"):
            return [json.loads(one.payload) for one in list(self.sees.seen)
                    if one.topic.startswith(topic[:-1]) and one.payload]  # fmt: skip
        return [
            json.loads(one.payload)
            for one in list(self.sees.seen)
            if one.topic == topic and one.payload
        ]

    def online(self) -> None:
        """Wait until the box is online, and knows whether it is idle."""
        self.box.wait(lambda: self.states()[-1:] == ["online"], "the box is online")
        self.box.watched()

    def states(self) -> list[str]:
        return [one["state"] for one in self.documents("status")]

    def request(self, operation: str, command_id: str | None = None, **more: Any) -> dict[str, Any]:
        now_ms = self.box.now_ms()
        return {
            "schema": f"edgeagent.cmd.{operation}/1",
            "id": command_id or str(uuid.uuid4()),
            "issued_at": now_ms,
            "expires_at": now_ms + 600_000,
            "issuer": "plant-operator",
            **more,
        }

    def ask(self, operation: str, command_id: str | None = None, **more: Any) -> str:
        """Ask for something; return the id."""
        document = self.request(operation, command_id, **more)
        self.send(operation, document["id"], json.dumps(document).encode())
        return str(document["id"])

    def send(self, operation: str, command_id: str, payload: bytes, **more: Any) -> None:
        self.sees.publish(f"{PREFIX}/cmd/{operation}/{command_id}", payload, **more)

    def acks(self, operation: str, command_id: str) -> list[dict[str, Any]]:
        return self.documents(f"ack/{operation}/{command_id}")

    def answered(self, operation: str, command_id: str, *states: str) -> dict[str, Any]:
        """Wait for one of these states; return its ack."""

        def found() -> dict[str, Any] | None:
            acks = self.acks(operation, command_id)
            wanted = (one for one in acks if one["state"] in states)
            return next(wanted, acks[-1] if acks and acks[-1]["state"] in OVER else None)

        self.box.wait(found, f"{operation} is {' or '.join(states)}")
        ack = found()
        assert ack is not None
        assert ack["state"] in states, ack
        return ack

    def rejected(self, operation: str, command_id: str) -> str:
        """Wait for the refusal; return its code. Moves the clock on, past the limit of messages."""
        ack = self.answered(operation, command_id, "rejected", "succeeded", "accepted")
        self.box.hands(ahead_s=3)
        assert ack["state"] == "rejected", ack
        return str(ack["code"])


@contextmanager
def plant(folder: Path, *changes: tuple[str, str], **more: Any) -> Iterator[Plant]:
    """A broker, a box that is not started yet, and somebody who sees everything."""
    with mosquitto(folder / "broker") as broker, service(folder, **more) as box:
        write_config(folder, broker.port, *changes)
        with observer(broker.port, (f"{PREFIX}/#",)) as sees:
            yield Plant(box, broker.port, sees)
