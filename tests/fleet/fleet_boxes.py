"""Where do a plant's boxes and its collectors come from in a test: both ends ours, and real?

A box is a spool and a pump, as the agent has them. A collector is a process, so that it can be
killed. Between them stands a real mosquitto.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from broker_places import PATIENCE_S, until
from pump_places import SWIFT, entry, quick, stamp

from edgeagent.core.eviction import SpoolLimits
from edgeagent.errors import EdgeAgentError
from edgeagent.fleet.store import Store, open_store
from edgeagent.publish.link import Broker, PahoLink
from edgeagent.publish.pump import Around, Pump
from edgeagent.publish.spool import Spool
from edgeagent.publish.status import About
from edgeagent.publish.topics import DEFAULT_PREFIX, Identity, topics

CHILD = Path(__file__).with_name("collector_child.py")
QUEUE = ("max_queued_messages 10000",)
ANYBODY = ("allow_anonymous true",)


@dataclass
class Box:
    """One box: what it has committed, and what it still holds."""

    node: str
    spool: Spool
    pump: Pump
    results: int = 0
    minutes: int = 0

    def commit(self, results: int, minutes: int = 0) -> None:
        """Put results and minutes of telemetry into the spool."""
        made = [entry("R", f"r/point/run-{self.results + n}", n=n) for n in range(results)]
        if made:
            self.spool.commit_all(made)
        for n in range(minutes):
            self.spool.add(entry("M", "m/mem_1m", samples=12, span_s=60, ram_used_bytes_mean=n))
        if minutes:
            assert self.spool.flush() is None
        self.results += results
        self.minutes += minutes
        self.pump.wake()

    def waiting(self) -> int:
        """How many rows still wait for the broker or a receipt."""
        return self.spool.stats().rows


@contextmanager
def box(folder: Path, node: str, port: int, site: str = "plant7") -> Iterator[Box]:
    """A box at work, which sends again what is not receipted within a second."""
    identity = Identity(site, node)
    own = topics(DEFAULT_PREFIX, identity)
    folder.mkdir(parents=True, exist_ok=True)
    spool = Spool.open(folder / f"{node}.db", SpoolLimits(), "box", stamp)
    around = Around(
        now_s=time.monotonic,
        stamp=stamp,
        about=lambda: About("0.1"),
        command=lambda _command: None,
        note=lambda _name, _fields: None,
        random=Random(7),
    )
    manner = quick(setting="receipt", no_progress_s=1.0, hold_s=0.2, most_hold_s=0.5)
    link = PahoLink(Broker("127.0.0.1", port, client_id=node), own, Random(3), SWIFT)
    pump = Pump(spool, link, own, identity, manner, around)
    made = Box(node, spool, pump)
    pump.start()
    try:
        yield made
    finally:
        assert pump.stop("shutdown", 20.0) == "stopped"
        spool.close()


# ---------------------------------------------------------------- collectors


@dataclass
class Collecting:
    """A collector's process."""

    command: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)

    def end(self, by: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(by)
        status = self.process.wait(PATIENCE_S)
        self.process = None
        return status

    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def connected(self, times: int = 1) -> None:
        """Wait until it has said so often that it is connected."""
        until(lambda: self.text().count("fleet_up") >= times, f"a collector\n{self.text()}")


@contextmanager
def collecting(
    folder: Path, port: int, store: str, *words: str, name: str = "plant-collector"
) -> Iterator[Collecting]:
    """A collector at work, ended at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / f"{name}.toml"
    config.write_text(
        f'[mqtt]\nenabled = true\nhost = "127.0.0.1"\nport = {port}\nclient_id = "{name}"\n'
    )
    command = [sys.executable, str(CHILD), "--config", str(config), "--store", store, *words]
    made = Collecting(command, folder / f"{name}.log")
    made.start()
    try:
        yield made
    finally:
        if made.process is not None:
            made.end(signal.SIGKILL)


# ---------------------------------------------------------------- what arrived


def rows(store: Store, node: str, stream: str) -> list[int]:
    """The numbers of a box's stream that are stored, in order."""
    found: list[int] = []
    for table in ("message", "telemetry"):
        found += [
            int(seq)
            for (seq,) in store.query(
                f"SELECT seq FROM {table} WHERE node = ? AND stream = ?",  # noqa: S608  # because the names are ours
                (node, stream),
            )
        ]
    return sorted(found)


def arrived(store: Store, boxes: list[Box]) -> bool:
    """Whether every row of every box is stored."""
    return all(
        len(rows(store, one.node, "R")) >= one.results
        and len(rows(store, one.node, "M")) >= one.minutes
        for one in boxes
    )


def nothing_is_lost(url: str, boxes: list[Box]) -> None:
    """Wait until every box has let go of everything, then count: each row once, none missing."""
    until(
        lambda: all(not one.waiting() for one in boxes),
        f"every box has its receipts: {[(one.node, one.waiting()) for one in boxes]}",
    )
    store = open_store(url, "read")
    try:
        for one in boxes:
            assert rows(store, one.node, "R") == list(range(1, one.results + 1)), one.node
            assert rows(store, one.node, "M") == list(range(1, one.minutes + 1)), one.node
        assert store.query("SELECT count(*) FROM gap") == [(0,)]
    finally:
        store.close()


def when_laid_out(url: str) -> Store:
    """The store, once a collector has laid it out."""
    opened: list[Store] = []

    def there() -> bool:
        with suppress(EdgeAgentError):
            opened.append(open_store(url, "read"))
        return bool(opened)

    until(there, f"a store at {url}")
    return opened[0]


def payload(box_name: str, number: int = 1, **changes: Any) -> bytes:
    """A sound event of a box, but for what is changed."""
    document: dict[str, Any] = {
        "schema": "edgeagent.oom/1",
        "site": "plant7",
        "node": box_name,
        "epoch": "aaaa",
        "stream": "R",
        "seq": number,
        "boot": "b1",
        "mono_ms": 5_000,
        "ts": 1_796_000_000_000,
        "clk": "sync",
        "replay": False,
        "v": {"victim": "llama-server", "source": "kernel"},
    }
    return json.dumps({**document, **changes}).encode()
