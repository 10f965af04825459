"""What does the spool cost? By hand: `python tests/benchmarks/bench_spool.py [--quick] [FOLDER]`.

Prints commits a second, the start with a backlog, the file of a week's backlog and what it takes in
memory. Name a FOLDER on the disk that matters: the figures are the disk's more than ours.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from edgeagent.core.delivery import Entry, Stamp, Stream
from edgeagent.core.eviction import SpoolLimits
from edgeagent.publish.spool import Spool

BATCH = 500
WEEK_TELEMETRY, WEEK_RESULTS = 10_080, 1_008
LIMITS = SpoolLimits(share_of_disk=1.0, min_free_bytes=0)
STAMP = Stamp(1_796_000_000_000, "77ca4c85", 8_123_456, "sync")


def entry(stream: Stream, i: int) -> Entry:
    """About 1.2 kB of telemetry, or 22 kB of results (a run's document now and then)."""
    names = 30 if stream == "M" else 600
    value: dict[str, object] = {f"some_engine_figure_{n}_bytes": i * 1000 + n for n in range(names)}
    topic = "m/mem_1m" if stream == "M" else "r/run/night"
    return Entry(stream, topic, "edgeagent.any/1", STAMP, value)


def opened(path: Path) -> Spool:
    return Spool.open(path, LIMITS, "box-a", lambda: STAMP)


def fill(spool: Spool, telemetry: int, results: int) -> None:
    for i in range(telemetry):
        spool.add(entry("M", i))
        if not i % BATCH:
            spool.flush()
    spool.flush()
    for first in range(0, results, 100):
        spool.commit_all([entry("R", i) for i in range(first, min(first + 100, results))])


def taking(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def commits(folder: Path, n: int) -> None:
    spool = opened(folder / "commits.db")
    one = taking(lambda: [spool.commit(entry("R", i)) for i in range(n)])
    small = taking(lambda: [spool.count_up("session_n") for _ in range(n)])
    many = taking(lambda: fill(spool, n * 20, 0))
    print(f"R, one by one:     {n / one:8.0f} a second, {one / n * 1e3:.2f} ms each")
    print(f"a counter kept:    {n / small:8.0f} a second, {small / n * 1e3:.2f} ms each")
    print(f"M, {BATCH} a flush:   {n * 20 / many:8.0f} a second, {many / n / 20 * 1e3:.3f} ms each")
    spool.close()


def starts(folder: Path, backlogs: list[int]) -> None:
    for rows in backlogs:
        path = folder / f"start-{rows}.db"
        spool = opened(path)
        fill(spool, rows, 0)
        spool.close()
        before = rss_mb()

        def start(path: Path = path) -> None:
            again = opened(path)
            again.stats()
            again.due("M", 0, 20)
            again.close()

        best = min(taking(start) for _ in range(5))
        size = path.stat().st_size / 1e6
        print(
            f"start with {rows:7,} rows ({size:6.1f} MB): {best * 1e3:6.1f} ms to stats, the first"
            f" 20 rows and a clean end; {rss_mb() - before:+.1f} MB RSS"
        )


def week(folder: Path, share: int) -> None:
    path = folder / "week.db"
    before = rss_mb()
    spool = opened(path)
    fill(spool, WEEK_TELEMETRY // share, WEEK_RESULTS // share)
    stats = spool.stats()
    grown = rss_mb() - before
    print(
        f"a week's {stats.rows:,} rows: {stats.bytes / 1e6:.1f} MB of entries,"
        f" {stats.used_bytes / 1e6:.1f} MB in use, {grown:+.1f} MB RSS while filling"
    )

    def drain() -> None:
        for stream in ("R", "M"):
            at = 0
            while rows := spool.due(stream, 0, 20):
                at = rows[-1].seq
                spool.sent(stream, [row.seq for row in rows])
                spool.receipt({stream: at})

    seconds = taking(drain)
    print(
        f"drained by 20: {stats.rows / seconds:.0f} rows a second, {rss_mb() - before:+.1f} MB RSS"
    )
    spool.close()


def main(arguments: list[str]) -> None:
    quick = "--quick" in arguments
    places = [argument for argument in arguments if not argument.startswith("--")]
    with tempfile.TemporaryDirectory(dir=places[0] if places else None) as name:
        folder = Path(name)
        commits(folder, 20 if quick else 300)
        starts(folder, [0, 500] if quick else [0, 11_088, 100_000])
        week(folder, 100 if quick else 1)


if __name__ == "__main__":
    main(sys.argv[1:])
