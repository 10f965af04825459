"""What does a daemon at rest cost? `PYTHONPATH=tests/publish:tests/app:tests/service python
tests/benchmarks/bench_daemon.py [seconds]`.

The daemon as installed, at 1 Hz with a real mosquitto on loopback: share of a core over the time
(60 s if none is given), and after it resident memory, threads and descriptors. First without a
connection to anybody, then with live telemetry every 5 s as by default.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
from broker_places import mosquitto, observer
from daemon_places import PREFIX, Plant, Service, service, write_config

WARM_UP_S = 12.0
_DEFAULTS = (
    ("live_interval_s = 1\naggregate_s = 5\n", ""),
    ("sample_interval_s = 0.2", "sample_interval_s = 1"),
)


@dataclass(frozen=True)
class Cost:
    """Of one process, its children apart."""

    cpu_fraction: float
    rss_mb: float
    threads: int
    descriptors: int

    def __str__(self) -> str:
        return (
            f"{100 * self.cpu_fraction:.2f} % of a core, {self.rss_mb:.1f} MB resident, "
            f"{self.threads} threads, {self.descriptors} descriptors"
        )


def spent_ns(pid: int) -> int:
    """What all threads of a process have run, as the scheduler counts it: ticks are too coarse."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total


def cost(pid: int, seconds: float) -> Cost:
    """Watch a process for so long."""
    before_ns, begun_s = spent_ns(pid), time.monotonic()
    threading.Event().wait(seconds)
    share = (spent_ns(pid) - before_ns) / 1e9 / (time.monotonic() - begun_s)
    process = psutil.Process(pid)
    return Cost(share, process.memory_info().rss / 1e6, process.num_threads(), process.num_fds())


def at_rest(box: Service, seconds: float) -> Cost:
    """A daemon that has done its first turns."""
    threading.Event().wait(WARM_UP_S)
    assert box.process is not None
    return cost(box.process.pid, seconds)


def main() -> None:
    """Print both."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with service(folder) as box:
            write_config(folder, None, *_DEFAULTS)
            box.start()
            print("without a broker:", at_rest(box, seconds))
            box.stop()
        with mosquitto(folder / "broker") as broker, service(folder) as box:
            write_config(folder, broker.port, *_DEFAULTS)
            with observer(broker.port, (f"{PREFIX}/#",)) as sees:
                box.start()
                place = Plant(box, broker.port, sees)
                place.online()
                print("with a broker:   ", at_rest(box, seconds))
                place.answered("sweep", place.ask("sweep", profile="quick"), "succeeded")
                print("after a sweep:   ", at_rest(box, seconds / 2))
                box.stop()


if __name__ == "__main__":
    main()
