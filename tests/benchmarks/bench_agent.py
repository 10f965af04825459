"""What does the whole agent cost, and how far from the truth is what it reports?

    python tests/benchmarks/bench_agent.py [--quick]

As bench_client.py, but `edgeagent sweep` itself is the client: sampling, recording to disk and
progress included. The figures are those of the run folder that a user gets.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench_client import (
    FULL,
    QUICK,
    ROOT,
    Cost,
    Figures,
    Load,
    Truth,
    compare,
    scripted_server,
    spinning,
    table,
)

from edgeagent.store.runfolder import RunReader


def measure(load: Load, beside: int) -> Figures:
    """One cell of a sweep against the scripted server."""
    with tempfile.TemporaryDirectory() as folder:
        stamps, run = Path(folder) / "stamps.jsonl", Path(folder) / "run"
        shape = ["--ttft-ms", str(load.ttft_ms), "--itl-ms", str(load.itl_ms)]
        slots = ["-np", str(load.streams), "-c", str(1024 * load.streams)]
        with scripted_server(*shape, *slots, stamps=stamps) as url, spinning(beside):
            _sweep(url, load, run)
        cell = json.loads((run / "result.json").read_text())["cells"][0]
        reader = RunReader(run)
        attempt = str(reader.cells()[0]["attempt"])
        traces = [asdict(trace) for trace in reader.traces(cell["cell_id"], attempt)]
        client = cell["client"]
        cpu_s = client["cpu_fraction"] * cell_seconds(reader)
        rss_mb = client["rss_bytes"] / 1e6
        truth = paired(traces, truths(stamps))
        return compare(load, beside, traces, truth, Cost(cpu_s, rss_mb, rss_mb))


def _sweep(url: str, load: Load, run: Path) -> None:
    command = [sys.executable, "-m", "edgeagent", "sweep", "--url", url, "--quiet", "--canary=0"]
    options: dict[str, object] = {
        "--out": run,
        "--concurrency": load.streams,
        "--requests": load.requests,
        "--output-tokens": load.output_tokens,
        "--prefix-tokens": 32,
        "--prompt-tokens": 32,
        "--prefix-cache": "off",
        "--repeats": 1,
        "--warmup": 0,
        "--cooldown": 0,
    }
    words = [str(word) for pair in options.items() for word in pair]
    subprocess.run([*command, *words], check=False, cwd=ROOT)


def cell_seconds(reader: RunReader) -> float:
    """How long the cell took, by its own record."""
    client = reader.cells()[0]["client"]
    assert isinstance(client, dict)
    return float(client["wall_s"])


def truths(stamps: Path) -> list[Truth]:
    """What the server wrote down, in order of arrival."""
    entries = [json.loads(line) for line in stamps.read_text().splitlines()]
    seen = [Truth(entry["arrived_ns"], tuple(entry["written_ns"])) for entry in entries]
    return sorted((truth for truth in seen if truth.written_ns), key=lambda t: t.arrived_ns)


def paired(traces: Iterable[dict[str, Any]], truth: list[Truth]) -> Mapping[object, Truth]:
    """Which of the server's requests each trace is: the one whose last token lies nearest.

    The agent's requests carry no tag, and indices of lead-in and measured requests repeat; the
    traces get new ones.
    """
    found: dict[object, Truth] = {}
    left = list(truth)
    for index, trace in enumerate(traces):
        trace["index"] = index
        if trace["event_ns"] and left:
            last = trace["event_ns"][-1]
            nearest = min(left, key=lambda t: abs(t.written_ns[-1] - last))
            if len(nearest.written_ns) == len(trace["event_ns"]):
                found[index] = nearest
                left.remove(nearest)
    return found


def main() -> None:
    """Run it and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few seconds, for a look")
    parser.add_argument("--streams", type=int, help="only the load with so many streams")
    args = parser.parse_args()
    loads = [
        load for load in (QUICK if args.quick else FULL) if args.streams in (None, load.streams)
    ]
    print(table([measure(load, beside) for load in loads for beside in (0, 2)]))


if __name__ == "__main__":
    main()
