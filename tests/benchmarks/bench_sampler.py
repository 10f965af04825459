"""What does watching cost? Run by hand: `python tests/benchmarks/bench_sampler.py [seconds]`.

Prints the share of one core that the sampler takes, with every probe of this machine and an engine
tree of four processes, and what one record takes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from edgeagent.clock import SystemClock
from edgeagent.core.model import MemorySample, RequestTrace
from edgeagent.probes.catalogue import probes_for, sysroot
from edgeagent.probes.sampler import Sampler
from edgeagent.store.records import trace_line
from edgeagent.store.runfolder import RunFolder

WARM_UP_S = 2.0


def sampling(hz: float, seconds: float, folder: RunFolder, pids: tuple[int, ...]) -> str:
    """Return the cost of sampling into a run folder at `hz`."""
    kept: list[int] = []
    late_ms: list[float] = []

    def keep(sample: MemorySample) -> None:
        kept.append(sample.at_ns)
        late_ms.append(sample.late_ns / 1e6)
        folder.append_sample(sample)

    probes = probes_for(sysroot(os.environ), os.environ)
    sampler = Sampler(probes, SystemClock(), keep, lambda: pids, hz)
    sampler.start()
    threading.Event().wait(WARM_UP_S)  # the first look finds and imports what the box has
    kept.clear()
    late_ms.clear()
    before_s, begun_s = time.process_time(), time.monotonic()
    threading.Event().wait(seconds)
    sampler.stop()
    cpu_s, wall_s = time.process_time() - before_s, time.monotonic() - begun_s
    late_ms.sort()
    return (
        f"sampling at {hz:g} Hz: {100 * cpu_s / wall_s:.2f} % of a core, "
        f"{1e6 * cpu_s / len(kept):.0f} us a sample, {len(kept)} samples in {wall_s:.1f} s, "
        f"late p50 {late_ms[len(late_ms) // 2]:.2f} ms, max {late_ms[-1]:.2f} ms"
    )


def microseconds(work: Callable[[], object], times: int) -> float:
    """Return what one call of `work` takes."""
    begun_s = time.process_time()
    for _ in range(times):
        work()
    return 1e6 * (time.process_time() - begun_s) / times


def recording(folder: RunFolder) -> str:
    """Return the cost of encoding and of appending a request of 128 token events."""
    stamps = tuple(10**15 + 20_000_000 * event + event % 977 for event in range(128))
    trace = RequestTrace(
        "c" * 32, "a1", 0, "measured", 1, event_ns=stamps, event_tokens=(1,) * len(stamps)
    )
    encode_us = microseconds(lambda: trace_line(trace), 2000)
    append_us = microseconds(lambda: folder.append_request(trace), 2000)
    return f"a request of 128 events: encoded in {encode_us:.0f} us, appended in {append_us:.0f} us"


def main() -> None:
    """Measure and print."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    engine = [
        subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=-1)
        for _ in range(4)
    ]
    pids = tuple(process.pid for process in engine)
    try:
        with tempfile.TemporaryDirectory() as parent, RunFolder.create(Path(parent, "run")) as run:
            print(recording(run))
            for hz in (4.0, 10.0):
                print(sampling(hz, seconds, run, pids))
    finally:
        for process in engine:
            process.kill()
            process.wait()
    print(f"with {os.cpu_count()} cores, Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
