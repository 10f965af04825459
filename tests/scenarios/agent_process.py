"""An agent reduced to what is tried here: a producer, the spool, the pump and the real link.

    python agent_process.py FOLDER

FOLDER/spec.json says what it is (`Spec`); orders come as JSON lines on standard input (`feed`,
`link`, `stop`). It writes FOLDER/journal, a line for each row the moment it is committed, and
FOLDER/state.json, how it stands, several times a second.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from random import SystemRandom
from typing import Any, Literal

from edgeagent.core.backoff import Pace
from edgeagent.core.delivery import Entry, Stream
from edgeagent.core.eviction import SpoolLimits
from edgeagent.core.window import Limits, Setting
from edgeagent.errors import EdgeAgentError
from edgeagent.publish.link import Broker, PahoLink
from edgeagent.publish.pump import Around, Manner, Pump
from edgeagent.publish.spool import Spool
from edgeagent.publish.status import About
from edgeagent.publish.tls import TlsFiles
from edgeagent.publish.topics import DEFAULT_PREFIX, Identity, Topics, topics
from edgeagent.wallclock import BUILT_MS, Hands, WallClock

SITE = "plant7"
TICK_S = 0.01
FLUSH_S = 0.2
STATE_S = 0.1
LIVE_S = 0.05
_AT_ONCE = 200


@dataclass(frozen=True)
class Spec:
    """Which agent; the mappings are fields of Limits, SpoolLimits, Pace and Broker."""

    port: int
    node: str = "edge-0001"
    delivery: Setting = "receipt"
    limits: Mapping[str, Any] = field(default_factory=dict)
    spool: Mapping[str, Any] = field(default_factory=dict)
    spool_folder: str | None = None
    """None: the agent's own folder."""
    pace: Mapping[str, Any] = field(default_factory=dict)
    broker: Mapping[str, Any] = field(default_factory=dict)
    ca_file: str | None = None
    """With it, TLS."""
    link: Literal["at once", "later"] = "at once"
    """Later: with the order `link`."""
    clock: Mapping[str, float] = field(default_factory=dict)
    """`off_s`: how far the wall clock is off until it is set; `set_after_rows`: committed rows."""


SWIFT_PACE = {"first_s": 0.0, "return_s": 0.3, "most_s": 1.0, "refused_s": 0.5}
SWIFT_LIMITS = {"hold_s": 0.5, "most_hold_s": 1.0, "no_progress_s": 2.0}


@dataclass
class Feed:
    """What is still to be produced: so many of each, so many a second (0: as fast as it goes)."""

    results: int = 0
    telemetry: int = 0
    per_s: float = 0.0
    result_bytes: int = 100
    telemetry_bytes: int = 100


class Clock:
    """A wall clock that is wrong until somebody sets it."""

    def __init__(self, off_s: float) -> None:
        self.off_s = off_s
        self.wall = WallClock(
            BUILT_MS,
            Hands(wall_ns=self._wall_ns, synchronised=lambda: self.off_s == 0.0),
        )

    def _wall_ns(self) -> int:
        return time.time_ns() + int(self.off_s * 1e9)


class Agent:
    """See the module."""

    def __init__(self, folder: Path, spec: Spec) -> None:
        self._folder, self._spec = folder, spec
        self._clock = Clock(spec.clock.get("off_s", 0.0))
        home = Path(spec.spool_folder) if spec.spool_folder else folder
        limits = SpoolLimits(**{"share_of_disk": 1.0, "min_free_bytes": 0, **spec.spool})
        self._spool = Spool.open(home / "spool.db", limits, "box", self._clock.wall.stamp)
        self._journal = os.open(folder / "journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._orders: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._feed = Feed()
        self._earned_s = 0.0
        self._taken = 0
        self._counts = {"R": 0, "M": 0, "samples": 0, "refused": 0, "live": 0}
        self._trouble = ""
        self._longest_s = {"tick": 0.0, "commit": 0.0, "hand": 0.0}
        self._due_s = {"flush": 0.0, "state": 0.0, "live": 0.0}
        self._notes: dict[str, int] = {}
        self._pump = self._new_pump()
        self._pumping = False

    def _new_pump(self) -> Pump:
        spec = self._spec
        identity = Identity(SITE, spec.node)
        place: Topics = topics(DEFAULT_PREFIX, identity)
        files = TlsFiles(ca_file=Path(spec.ca_file)) if spec.ca_file else None
        broker = Broker(
            "127.0.0.1", spec.port, spec.node, tls_files=files, plaintext="allowed", **spec.broker
        )
        link = PahoLink(broker, place, SystemRandom(), Pace(**{**SWIFT_PACE, **spec.pace}))
        manner = Manner(
            spec.delivery,
            Limits(**{**SWIFT_LIMITS, **spec.limits}),
            figures_every_s=0.2,
            backfill_jitter_s=0.0,
        )
        around = Around(
            now_s=time.monotonic,
            stamp=self._clock.wall.stamp,
            about=lambda: About("0.1"),
            command=lambda _: None,
            note=self._note,
            random=SystemRandom(),
        )
        return Pump(self._spool, link, place, identity, manner, around)

    def _note(self, name: str, _: Mapping[str, object]) -> None:
        self._notes[name] = self._notes.get(name, 0) + 1

    def run(self) -> None:
        """Produce until told to stop, or until nobody is there to tell."""
        threading.Thread(target=self._listen, daemon=True).start()
        if self._spec.link == "at once":
            self._link()
        going = True
        while going:
            before_s = time.monotonic()
            going = self._turn()
            self._longest("tick", before_s)
            time.sleep(TICK_S)
        self._flush()
        if self._pumping:
            self._pump.stop("shutdown", 10.0)
        self._tell()
        self._spool.close()

    def _listen(self) -> None:
        for line in sys.stdin:
            self._orders.put(json.loads(line))
        self._orders.put({"stop": True})

    def _link(self) -> None:
        self._pumping = True
        self._pump.start()

    def _turn(self) -> bool:
        try:
            order = self._orders.get_nowait()
        except Empty:
            order = {}
        self._taken += bool(order)
        if "feed" in order:
            self._feed, self._earned_s = Feed(**order["feed"]), time.monotonic()
        if "link" in order:
            self._link()
        self._produce()
        self._look_at_the_clock()
        if self._is_due("flush", FLUSH_S):
            self._flush()
        if self._is_due("live", LIVE_S):
            self._live()
        if self._is_due("state", STATE_S):
            self._tell()
        return "stop" not in order

    def _is_due(self, what: str, every_s: float) -> bool:
        now_s = time.monotonic()
        if now_s < self._due_s[what]:
            return False
        self._due_s[what] = now_s + every_s
        return True

    def _longest(self, what: str, begun_s: float) -> None:
        self._longest_s[what] = max(self._longest_s[what], time.monotonic() - begun_s)

    # --- what is produced ---

    def _produce(self) -> None:
        feed = self._feed
        total = feed.results + feed.telemetry
        budget = min(total, self._budget())
        if not budget:
            return
        results = math.ceil(budget * feed.results / total)
        for _ in range(budget - results):
            self._spool.add(self._entry("M", feed.telemetry_bytes))
        feed.telemetry -= budget - results
        self._counts["samples"] += budget - results
        if results:
            feed.results -= self._commit(results, feed.result_bytes)
        if not feed.per_s:
            self._flush()

    def _budget(self) -> int:
        """How many rows this turn may make."""
        if not self._feed.per_s:
            return _AT_ONCE
        now_s = time.monotonic()
        earned = (now_s - self._earned_s) * self._feed.per_s
        budget = min(_AT_ONCE, int(earned))
        self._earned_s += budget / self._feed.per_s
        return budget

    def _entry(self, stream: Stream, size: int) -> Entry:
        topic = "r/point/run-1" if stream == "R" else "m/mem_1m"
        schema = "edgeagent.point/1" if stream == "R" else "edgeagent.mem_1m/1"
        value: dict[str, object] = {"concurrency": 1, "pad": "x" * size}
        return Entry(stream, topic, schema, self._clock.wall.stamp(), value)

    def _commit(self, how_many: int, size: int) -> int:
        begun_s = time.monotonic()
        try:
            rows = self._spool.commit_all([self._entry("R", size) for _ in range(how_many)])
        except EdgeAgentError as error:
            self._counts["refused"] += 1
            self._trouble = str(error)
            return 0
        self._longest("commit", begun_s)
        lines = "".join(f"{row.epoch} R {row.seq}\n" for row in rows)
        os.write(self._journal, lines.encode())
        self._counts["R"] += how_many
        self._pump.wake()
        return how_many

    def _flush(self) -> None:
        error = self._spool.flush()
        self._trouble = str(error) if error else ""
        if error is None:
            stats = self._spool.stats()
            os.write(self._journal, f"{stats.epoch} M {stats.streams['M'].last_seq}\n".encode())

    def _live(self) -> None:
        begun_s = time.monotonic()
        value = {"ram_used_bytes": self._counts["live"]}
        taken = self._pump.live("m/mem", "edgeagent.mem/1", value, self._clock.wall.stamp())
        self._counts["live"] += taken
        self._longest("hand", begun_s)

    def _look_at_the_clock(self) -> None:
        after = self._spec.clock.get("set_after_rows")
        if after is not None and self._clock.off_s and self._counts["R"] >= after:
            self._clock.off_s = 0.0
        step = self._clock.wall.step()
        if step is None:
            return
        stamp = self._clock.wall.stamp()
        value: dict[str, object] = {
            "boot": stamp.boot,
            "mono_ms": step.mono_ms,
            "old_ts": step.old_ms,
            "new_ts": step.new_ms,
        }
        row = self._spool.commit(Entry("R", "e/clock_step", "edgeagent.clock_step/1", stamp, value))
        os.write(self._journal, f"{row.epoch} R {row.seq}\n".encode())

    # --- what is told ---

    def _tell(self) -> None:
        state = self._pump.state()
        told: dict[str, object] = {
            "pid": os.getpid(),
            "orders": self._taken,
            "left": self._feed.results + self._feed.telemetry,
            "counts": dict(self._counts),
            "trouble": self._trouble,
            "longest_s": dict(self._longest_s),
            "notes": dict(self._notes),
            "link": {**asdict(state), "backlog": asdict(state.backlog)},
        }
        try:
            stats = self._spool.stats()
        except EdgeAgentError as error:
            told["trouble"] = str(error)
        else:
            told["epoch"] = stats.epoch
            told["rows"] = stats.rows
            told["waiting"] = stats.waiting
            told["evicted"] = stats.evicted
            told["last"] = {name: of.last_seq for name, of in stats.streams.items()}
            told["lost"] = {name: of.lost for name, of in stats.streams.items()}
        beside = self._folder / "state.new"
        beside.write_text(json.dumps(told))
        beside.replace(self._folder / "state.json")


def main() -> None:
    """Run the agent of a folder."""
    folder = Path(sys.argv[1])
    Agent(folder, Spec(**json.loads((folder / "spec.json").read_text()))).run()


if __name__ == "__main__":
    main()
