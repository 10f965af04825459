"""Does a whole fleet come back without a stampede when its broker restarts?

Each agent has a spool, a pump and a link of its own; they share a few processes, because 200 times
the interpreter would try the test's machine and not the broker.

    python herds.py PORT FOLDER FIRST COUNT
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom

from agent_process import SITE
from broker_places import PATIENCE_S, Mosquitto, mosquitto, until
from collector import Lane, Store
from ledger import Account, missing
from outages import FORGETS
from scenario_places import HERE, collecting, environment

from edgeagent.core.backoff import Pace
from edgeagent.core.delivery import Entry
from edgeagent.core.eviction import SpoolLimits
from edgeagent.core.window import Limits
from edgeagent.publish.link import Broker, PahoLink
from edgeagent.publish.pump import Around, Manner, Pump
from edgeagent.publish.spool import Spool
from edgeagent.publish.status import About
from edgeagent.publish.topics import DEFAULT_PREFIX, Identity, topics
from edgeagent.wallclock import WallClock


@dataclass
class _Member:
    """One agent of the herd."""

    node: str
    spool: Spool
    pump: Pump
    clock: WallClock

    def commit(self) -> None:
        value: dict[str, object] = {"concurrency": 1}
        topic, schema = "r/point/run-1", "edgeagent.point/1"
        self.spool.commit(Entry("R", topic, schema, self.clock.stamp(), value))
        self.pump.wake()

    def leave(self) -> None:
        self.pump.stop("shutdown", 20.0)
        self.spool.close()


def _member(port: int, folder: Path, node: str) -> _Member:
    clock = WallClock()
    identity = Identity(SITE, node)
    place = topics(DEFAULT_PREFIX, identity)
    limits = SpoolLimits(share_of_disk=1.0, min_free_bytes=0)
    spool = Spool.open(folder / node / "spool.db", limits, "box", clock.stamp)
    random = SystemRandom()
    link = PahoLink(Broker("127.0.0.1", port, node, plaintext="allowed"), place, random, Pace())
    around = Around(
        time.monotonic, clock.stamp, lambda: About("0.1"), lambda _: None, lambda *_: None, random
    )
    manner = Manner("receipt", Limits(hold_s=0.5, most_hold_s=1.0, no_progress_s=2.0))
    return _Member(node, spool, Pump(spool, link, place, identity, manner, around), clock)


def main() -> None:
    """Run a part of the herd: produce until "end" comes, tell what was given, end at the next."""
    port, folder, first, count = sys.argv[1:]
    members = [
        _member(int(port), Path(folder), f"edge-{n:04}")
        for n in range(int(first), int(first) + int(count))
    ]
    for member in members:
        member.pump.start()
    print("ready", flush=True)
    ending = threading.Event()
    threading.Thread(target=_set_when_told, args=(ending,), daemon=True).start()
    while not ending.wait(2.0):
        for member in members:
            member.commit()
    for member in members:
        stats = member.spool.stats()
        print(member.node, stats.epoch, stats.streams["R"].last_seq, flush=True)
    print("told", flush=True)
    sys.stdin.readline()
    for stopping in [
        threading.Thread(target=m.pump.stop, args=("shutdown", 20.0)) for m in members
    ]:
        stopping.start()
    for member in members:
        until(lambda member=member: not member.pump.alive(), "it has stopped")  # type: ignore[misc]  # because mypy cannot type a default in a lambda
        member.spool.close()


def _set_when_told(ending: threading.Event) -> None:
    sys.stdin.readline()
    ending.set()


class Herd:
    """The processes of a herd, as the test holds them."""

    def __init__(self, port: int, folder: Path, count: int, processes: int) -> None:
        self.count = count
        each = count // processes
        self._processes = [
            subprocess.Popen(
                [sys.executable, str(HERE / "herds.py"), str(port), str(folder), str(n * each),
                 str(each)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment(),
            )
            for n in range(processes)
        ]  # fmt: skip
        for process in self._processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"

    def _say(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("end\n")
            process.stdin.flush()

    def told(self) -> dict[Lane, int]:
        """End the production; return the last number of each agent."""
        self._say()
        last = {}
        for process in self._processes:
            assert process.stdout is not None
            while (line := process.stdout.readline()) != "told\n":
                node, epoch, seq = line.split()
                last[Lane(f"{SITE}/{node}", epoch, "R")] = int(seq)
        return last

    def end(self) -> None:
        self._say()
        for process in self._processes:
            try:
                process.wait(PATIENCE_S)
            finally:
                process.kill()
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.close()
                process.stdout.close()


@dataclass(frozen=True)
class Return:
    """How a herd came back."""

    account: Account
    all_back_s: float
    most_per_s: int
    spread_s: int


def broker_restarts(folder: Path, count: int, processes: int) -> Return:
    """T17: the agents' own jitter, as in the field; the broker is killed and starts again."""
    database = folder / "plant.db"
    with mosquitto(folder / "broker", FORGETS) as broker, collecting(broker.port, database):
        herd = Herd(broker.port, folder / "herd", count, processes)
        try:
            until(lambda: len(connected(broker, 0)) == count, "the herd is there")
            before = len(broker.log().splitlines())
            begun_s = time.monotonic()
            broker.restart()
            until(lambda: len(connected(broker, before)) == count, "all are back", 150.0)
            all_back_s = time.monotonic() - begun_s
            last = herd.told()
            with closing(Store(database)) as store:
                until(lambda: not missing(store, last), "all is collected", 150.0)
                made = of_herd(f"herd of {count}, broker restarts", store, last)
        finally:
            herd.end()
        seconds = Counter(connects(broker, before))
        return Return(made, all_back_s, max(seconds.values()), max(seconds) - min(seconds))


def connects(broker: Mosquitto, after_line: int) -> list[int]:
    """The second of each connection of an agent in the broker's log."""
    lines = broker.log().splitlines()[after_line:]
    return [
        int(line.split(":", 1)[0]) for line in lines if "New client" in line and " as edge-" in line
    ]


def connected(broker: Mosquitto, after_line: int) -> set[str]:
    lines = broker.log().splitlines()[after_line:]
    return {
        line.split(" as ", 1)[1].split()[0]
        for line in lines
        if "New client" in line and " as edge-" in line
    }


def of_herd(name: str, store: Store, last: Mapping[Lane, int]) -> Account:
    came = sum(len(store.numbers(lane) & set(range(1, upto + 1))) for lane, upto in last.items())
    lost = sum(len(seqs) for seqs in missing(store, last).values())
    everything = sum(last.values())
    made = Account(
        name, everything, came, store.counted("duplicates"), everything - came - lost, lost,
        store.counted("reused"),
    )  # fmt: skip
    print(made.line())
    return made


if __name__ == "__main__":
    main()
