"""How far from the truth is the measuring client, and what does it cost?

    python tests/benchmarks/bench_client.py [--quick]

The scripted server, a process of its own, writes down when each request reached it and when it sent
each token. The client, another process, measures the same requests. Both clocks are the machine's
monotonic clock, so every difference is the client's error. Each load is run on the idle machine and
beside two processes that spin. What counts are the errors and ratios of one run; absolute CPU times
belong to the machine.

The parts are reusable: `scripted_server`, `spinning`, `truth_of` and `compare` judge any client
that yields `RequestTrace`s.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))


@dataclass(frozen=True)
class Load:
    """One load: so many requests, so many at a time."""

    streams: int
    requests: int
    output_tokens: int = 128
    ttft_ms: float = 100.0
    itl_ms: float = 20.0


FULL = (Load(1, 8), Load(16, 64), Load(64, 128))
QUICK = (Load(4, 8, output_tokens=16, itl_ms=5.0),)


@dataclass(frozen=True)
class Cost:
    """What the client process used while the load ran."""

    cpu_s: float
    rss_now_mb: float
    rss_peak_mb: float


@dataclass(frozen=True)
class Figures:
    """What a run says. Errors are in milliseconds, client minus truth."""

    streams: int
    beside: int
    """Spinning processes beside it."""
    requests_ok: int
    requests: int
    events: int
    ttft_error_p50_ms: float
    ttft_error_p99_ms: float
    sent_lag_p50_ms: float
    """From the client's `sent` to the arrival as the server's kernel stamped it."""
    token_error_p50_ms: float
    token_error_p99_ms: float
    token_error_max_ms: float
    shared_reads: int
    late_stamps: int
    cpu_s_per_1000_events: float
    rss_now_mb: float
    rss_peak_mb: float


@dataclass(frozen=True)
class Truth:
    """One request as the server saw it."""

    arrived_ns: int
    written_ns: tuple[int, ...]


# ------------------------------------------------------------------------------------ reusable


@contextlib.contextmanager
def scripted_server(*arguments: str, stamps: Path) -> Iterator[str]:
    """A scripted server in a process of its own; its URL."""
    command = [sys.executable, "-m", "edgeagent.engines.scripted", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--stamps", str(stamps), *arguments],
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if "listening on " in line:
                yield line.split("listening on ")[1].strip()
                break
    finally:
        process.terminate()
        process.wait(10)
        process.stderr.close()


@contextlib.contextmanager
def spinning(count: int) -> Iterator[None]:
    """`count` processes that take whatever processor time they get."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def truth_of(stamps: Path) -> dict[object, Truth]:
    """The server's records by the tag of the request."""
    entries = [json.loads(line) for line in stamps.read_text().splitlines()]
    return {
        entry["tag"]: Truth(entry["arrived_ns"], tuple(entry["written_ns"])) for entry in entries
    }


def quantile(values: Sequence[float], q: float) -> float:
    """The nearest-rank q-quantile; NaN of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)] if ordered else math.nan


def compare(
    load: Load,
    beside: int,
    traces: Sequence[Mapping[str, Any]],
    truth: Mapping[object, Truth],
    cost: Cost,
) -> Figures:
    """The client's records (as dictionaries of RequestTrace) against the server's."""
    ttft: list[float] = []
    lag: list[float] = []
    tokens: list[float] = []
    for trace in traces:
        true = truth.get(trace["index"])
        if true is None or trace["error"] is not None:
            continue
        stamps = trace["event_ns"]
        true_ttft = true.written_ns[0] - true.arrived_ns
        ttft.append(abs(stamps[0] - trace["sent_ns"] - true_ttft) / 1e6)
        lag.append((true.arrived_ns - trace["sent_ns"]) / 1e6)
        shared = set(trace["shared_events"])
        tokens += [
            abs(seen - written) / 1e6
            for index, (seen, written) in enumerate(zip(stamps, true.written_ns, strict=True))
            # A shared stamp is known to be wrong for the event before it, and counted as such.
            if index + 1 not in shared
        ]
    events = sum(len(trace["event_ns"]) for trace in traces)
    return Figures(
        streams=load.streams,
        beside=beside,
        requests_ok=sum(trace["error"] is None for trace in traces),
        requests=len(traces),
        events=events,
        ttft_error_p50_ms=quantile(ttft, 0.5),
        ttft_error_p99_ms=quantile(ttft, 0.99),
        sent_lag_p50_ms=quantile(lag, 0.5),
        token_error_p50_ms=quantile(tokens, 0.5),
        token_error_p99_ms=quantile(tokens, 0.99),
        token_error_max_ms=max(tokens, default=math.nan),
        shared_reads=sum(len(trace["shared_events"]) for trace in traces),
        late_stamps=sum(trace["late_stamps"] for trace in traces),
        cpu_s_per_1000_events=cost.cpu_s / events * 1000 if events else math.nan,
        rss_now_mb=cost.rss_now_mb,
        rss_peak_mb=cost.rss_peak_mb,
    )


def memory_mb() -> tuple[float, float]:
    """Resident memory of this process now and at its peak, in MB."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    now, peak = (int(fields[name].split()[0]) * 1024 / 1e6 for name in ("VmRSS", "VmHWM"))
    return now, peak


# ---------------------------------------------------------------------------- the client process


def client_main(url: str, load: Load) -> None:
    """Send the load and print traces and cost as JSON: what a run in its own process does."""
    from edgeagent.clock import SystemClock
    from edgeagent.core.model import (
        Cell,
        EngineConfig,
        EngineSpec,
        Limits,
        Phase,
        RequestTrace,
        WorkloadSpec,
    )
    from edgeagent.load.drive import Drive, Halt, Tools
    from edgeagent.load.stream import LoadClient
    from edgeagent.load.workload import Job
    from edgeagent.ports import HttpRequest

    spec = EngineSpec("scripted", "fake", url=url)
    work = WorkloadSpec(output_tokens=load.output_tokens, prompt_tokens=64, prefix_tokens=0)
    config = EngineConfig(spec, load.streams, 1024, "off", "off")
    cell = Cell("bench", config, load.streams, 0, work, load.requests)
    traces: list[RequestTrace] = []

    def build(job: Job) -> HttpRequest:
        body = {
            "prompt": [(job.index * 31 + place) % 5000 for place in range(64)],
            "max_tokens": job.output_tokens,
            "stream": True,
            "timings_per_token": True,
            "cache_prompt": False,
            "x_tag": job.index,
        }
        return HttpRequest("/v1/completions", json.dumps(body).encode())

    async def run() -> float:
        clock = SystemClock()
        async with LoadClient(url, clock, Limits()) as client:
            await client.open(load.streams)
            halt = Halt()
            tools = Tools(clock, build, client.send, traces.append)
            drive = Drive(cell, "1", (Phase("measured", load.requests),), tools, halt)
            before = _cpu_s()
            await drive.run()
            return _cpu_s() - before

    cpu_s = asyncio.run(run())
    now, peak = memory_mb()
    cost = Cost(cpu_s, now, peak)
    print(json.dumps({"cost": asdict(cost), "traces": [asdict(trace) for trace in traces]}))


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


# ---------------------------------------------------------------------------------- the benchmark


def measure(load: Load, beside: int) -> Figures:
    """One load, measured beside `beside` spinning processes."""
    with tempfile.TemporaryDirectory() as folder:
        stamps = Path(folder) / "stamps.jsonl"
        shape = ["--ttft-ms", str(load.ttft_ms), "--itl-ms", str(load.itl_ms)]
        slots = ["-np", str(load.streams), "-c", str(1024 * load.streams)]
        with scripted_server(*shape, *slots, stamps=stamps) as url, spinning(beside):
            answer = subprocess.run(
                [sys.executable, __file__, "--client", url, "--load", json.dumps(asdict(load))],
                stdout=subprocess.PIPE,
                check=True,
                text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            ).stdout
        seen = json.loads(answer)
        return compare(load, beside, seen["traces"], truth_of(stamps), Cost(**seen["cost"]))


_COLUMNS = (
    ("streams", "streams", "{:d}"),
    ("beside", "beside", "{:d}"),
    ("requests_ok", "ok", "{:d}"),
    ("events", "events", "{:d}"),
    ("ttft_error_p50_ms", "ttft err p50", "{:.3f}"),
    ("ttft_error_p99_ms", "p99 ms", "{:.3f}"),
    ("token_error_p50_ms", "token err p50", "{:.3f}"),
    ("token_error_p99_ms", "p99", "{:.3f}"),
    ("token_error_max_ms", "max ms", "{:.3f}"),
    ("sent_lag_p50_ms", "sent lag", "{:.3f}"),
    ("shared_reads", "shared", "{:d}"),
    ("late_stamps", "late", "{:d}"),
    ("cpu_s_per_1000_events", "CPU-s/1k", "{:.4f}"),
    ("rss_now_mb", "RSS MB", "{:.1f}"),
    ("rss_peak_mb", "peak", "{:.1f}"),
)


def table(figures: Sequence[Figures]) -> str:
    """The figures as text, a line a run."""
    head = "  ".join(f"{title:>{len(title)}}" for _, title, _ in _COLUMNS)
    rows = [
        "  ".join(
            f"{form.format(getattr(row, name)):>{len(title)}}" for name, title, form in _COLUMNS
        )
        for row in figures
    ]
    return "\n".join([head, *rows])


def main() -> None:
    """Run it and print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few seconds, for a look")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--streams", type=int, help="only the load with so many streams")
    parser.add_argument("--client", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--load", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.client:
        client_main(args.client, Load(**json.loads(args.load)))
        return
    loads = [
        load for load in (QUICK if args.quick else FULL) if args.streams in (None, load.streams)
    ]
    figures = [measure(load, beside) for load in loads for beside in (0, 2)]
    print(json.dumps([asdict(row) for row in figures], indent=1) if args.json else table(figures))


if __name__ == "__main__":
    main()
