"""What do summing up, verifying and showing a large run take, and how do they grow?

    python tests/benchmarks/bench_report.py [--cells 100,300,1000] [--keep DIR]

A run folder is made of invented records through the writers that a sweep uses: 1,000 token events
and 40 samples a cell, 1,000,000 events at 1,000 cells. Then each step runs in a process of its own,
whose processor time and peak of resident memory are taken from the kernel. Bounds that the report
has to keep at 1,000 cells: 20 s and 300 MB.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from edgeagent import __version__, archive, sealing  # noqa: E402  # because the path comes first
from edgeagent.config import SweepRequest  # noqa: E402  # because the path comes first
from edgeagent.core.model import (  # noqa: E402  # because the path comes first
    Cell,
    CellRecord,
    ClientCost,
    EngineConfig,
    EngineIdentity,
    EngineSpec,
    Launch,
    MemorySample,
    ModelIdentity,
    Plan,
    RequestTrace,
    ServerFacts,
    Slo,
    SweepSpec,
    WorkloadSpec,
)
from edgeagent.core.plan import configurations, expand  # noqa: E402  # because the path comes first
from edgeagent.core.result import plain  # noqa: E402  # because the path comes first
from edgeagent.store.runfolder import RunFolder  # noqa: E402  # because the path comes first

RESULT = "result.json"
REPEATS = 5
SETTINGS = 4
"""Two engines, cold and warm."""
EVENTS = 1000
"""A cell."""
SAMPLES = 40
MS = 1_000_000
S = 1000 * MS


# ----------------------------------------------------------------------------------- the run


def spec_of(cells: int) -> SweepSpec:
    """A plan of so many cells, or a few less."""
    levels = max(1, cells // (SETTINGS * REPEATS))
    return SweepSpec(
        engines=(
            EngineSpec("llamacpp", "llamacpp", ("llama-server",), "m.gguf"),
            EngineSpec("vllm", "vllm", ("vllm",), "folder"),
        ),
        concurrency=tuple(range(1, levels + 1)),
        prefix_cache=("off", "on"),
        repeats=REPEATS,
        workload=WorkloadSpec(),
        slo=Slo(ttft_s=1.0, tpot_s=0.1),
        memory_repeats=0,
        canary=0,
    )


def make(path: Path, cells: int) -> Path:
    """A run folder with that many measured cells and its result."""
    spec = spec_of(cells)
    identities = {config: identity(config) for config in configurations(spec)}
    plan = expand(spec, identities)
    with RunFolder.create(path) as folder:
        archive.write_plan(folder, SweepRequest(spec), plan)
        archive.write_environment(folder, environment(path.name, plan))
        clock_ns = 1000 * S
        idle: deque[MemorySample] = deque(maxlen=archive.IDLE_SAMPLES)
        for number, cell in enumerate(plan.cells):
            clock_ns = write_cell(_Place(folder, spec, idle), cell, clock_ns, Random(number))
        run = archive.recall(folder)
        found = archive.result_of(run, "2026-01-01T10:00:00Z", archive.file_hashes(folder))
        sealing.keep_result(folder, plain(found))
    return path


def identity(config: EngineConfig) -> EngineIdentity:
    """An engine and a model that nobody looks for."""
    engine = config.engine
    model = ModelIdentity(
        "Invented 1B", engine.model or "", format="gguf", quantization="Q4_K_M", sha256="ab" * 32,
        parameters=10**9, size_bytes=6 * 10**8, weights_digest="w",
    )  # fmt: skip
    return EngineIdentity(
        engine.id, engine.kind, "1.0", "cd" * 32, ("engine",), (), attached=False, model=model
    )


def environment(run_id: str, plan: Plan) -> archive.Environment:
    """A box without a GPU, on which every engine was started as often as it has repeats."""
    launches = tuple(
        Launch(
            config.engine.id, repeat, ("engine", "--port", "1"), config.slots, config.prefix_cache,
            "off", 3.0, ServerFacts(config.slots, 512, "1.0", "m", 0, 24), None,
        )
        for config in configurations(plan.spec)
        for repeat in range(plan.spec.repeats)
    )  # fmt: skip
    return archive.Environment(
        archive.ENVIRONMENT_SCHEMA, run_id, "2026-01-01T00:00:00Z",
        {"version": __version__, "result_fields": sealing.result_fields()},
        {"hostname": "box", "class": "cpu", "cpu": "invented", "gpus": []},
        plan.identities, launches,
    )  # fmt: skip


@dataclass(frozen=True)
class _Place:
    """Where cells are kept, and what the box took at rest so far."""

    folder: RunFolder
    spec: SweepSpec
    idle: deque[MemorySample]


def write_cell(place: _Place, cell: Cell, begin_ns: int, chance: Random) -> int:
    """One cell's records, judged and kept as a sweep does; when the next one may begin."""
    folder, end_ns = place.folder, begin_ns
    for trace in traces(cell, begin_ns, chance):
        folder.append_request(trace)
        end_ns = max(end_ns, trace.finished_ns or 0)
    for number in range(SAMPLES):
        at_ns = begin_ns + number * (end_ns - begin_ns) // SAMPLES
        folder.append_sample(sample(cell, at_ns, chance))
    cost = ClientCost(0.1, (end_ns - begin_ns) / S, 50_000_000, (0.001, 0.002))
    record = CellRecord(cell, "a1", begin_ns, end_ns, slots=cell.config.slots, client=cost)
    line = archive.line_of(record, strict=False)
    found = archive.judge(folder, record, place.spec, line, list(place.idle))
    archive.write_cell(folder, line, found)
    at_rest = MemorySample(end_ns + S // 4, 1000, None, values(chance), phase="idle")
    folder.append_sample(at_rest)
    place.idle.append(at_rest)
    return end_ns + S


def traces(cell: Cell, begin_ns: int, chance: Random) -> Iterator[RequestTrace]:
    """Requests in as many lanes as the cell is wide, a thousand token events in all."""
    lanes = cell.concurrency
    requests = 4 * lanes if lanes <= EVENTS // 40 else 2 * lanes
    gap_ns = (10 + lanes) * MS
    ready = [begin_ns + lane * MS for lane in range(lanes)]
    for index in range(requests):
        events = EVENTS * (index + 1) // requests - EVENTS * index // requests
        sent_ns = ready[index % lanes]
        stamps = [sent_ns + 5 * gap_ns]
        for _ in range(events - 1):
            stamps.append(stamps[-1] + int(gap_ns * chance.uniform(0.8, 1.3)))
        ready[index % lanes] = stamps[-1] + MS
        yield RequestTrace(
            cell.cell_id, "a1", index, "measured", sent_ns, sent_ns, sent_ns + MS, stamps[0],
            tuple(stamps), (1,) * events, (), 0, stamps[-1], http_status=200,
            finish_reason="length", expected_tokens=events, prompt_tokens=320,
            cached_tokens=0 if cell.config.prefix_cache == "off" else 256, output_tokens=events,
            token_source="timings",  # noqa: S106  # because it names a source of counts
        )  # fmt: skip


def sample(cell: Cell, at_ns: int, chance: Random) -> MemorySample:
    """What a box without a GPU has to say."""
    return MemorySample(at_ns, 20_000, cell.cell_id, values(chance), phase="load")


def values(chance: Random) -> dict[str, float | int | None]:
    """Readings by the names that they have."""
    bytes_now = chance.randrange(10**9)
    names = ("host.total_bytes", "host.available_bytes", "host.free_bytes", "host.used_bytes",
             "engine.rss_bytes", "engine.anon_bytes", "engine.mapped_bytes", "agent.rss_bytes",
             "pressure.cpu_some_s", "pressure.memory_some_s", "vm.refault_file", "power.total_w",
             "hygiene.temperature_max_c", "hygiene.cpu_cores")  # fmt: skip
    return {name: bytes_now if name.endswith("bytes") else 1 for name in names}


# -------------------------------------------------------------------------------- the measuring


@dataclass(frozen=True)
class Cost:
    """What one process took; `failure` is its last word when it did not go well."""

    cpu_s: float
    wall_s: float
    peak_mb: float
    failure: str | None = None


def measured(command: Sequence[str]) -> Cost:
    """Run a command to its end; its own processor time and memory, not those of its children."""
    with tempfile.TemporaryFile() as words:
        begun = time.monotonic()
        pid = os.posix_spawn(
            command[0], list(command), {**os.environ, "PYTHONPATH": str(ROOT)},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, words.fileno(), 1), (os.POSIX_SPAWN_DUP2, words.fileno(), 2),
            ],
        )  # fmt: skip
        _, status, usage = os.wait4(pid, 0)
        wall_s = time.monotonic() - begun
        words.seek(0)
        said = words.read().decode(errors="replace").strip().splitlines()
    failed = os.waitstatus_to_exitcode(status) != 0
    return Cost(
        usage.ru_utime + usage.ru_stime, wall_s, usage.ru_maxrss * 1024 / 1e6,
        " ".join(said)[:200] if failed else None,
    )  # fmt: skip


_SUM_UP = """
import sys
from pathlib import Path
from edgeagent import archive
from edgeagent.core.result import plain
from edgeagent.store.runfolder import RunReader
folder = RunReader(Path(sys.argv[1]))
plain(archive.result_of(archive.recall(folder), None, archive.file_hashes(folder)))
"""


def steps(run: Path, sheet: Path) -> dict[str, list[str]]:
    """What is measured, as command lines."""
    agent = [sys.executable, "-m", "edgeagent"]
    return {
        "recall and result": [sys.executable, "-c", _SUM_UP, str(run)],
        "verify": [*agent, "verify", str(run)],
        "report": [*agent, "report", str(run), "-o", str(sheet)],
    }


def measure(folder: Path, sizes: Sequence[int]) -> dict[str, dict[int, Cost]]:
    """Every step at every size."""
    found: dict[str, dict[int, Cost]] = {}
    for cells in sizes:
        begun = time.monotonic()
        run = folder / f"run-{cells}"
        # In a process of its own: what ours had resident would count as a child's peak.
        subprocess.run([sys.executable, __file__, "--make", run, "--cells", str(cells)], check=True)
        size_mb = sum(path.stat().st_size for path in run.iterdir()) / 1e6
        result_mb = (run / RESULT).stat().st_size / 1e6
        print(
            f"{cells} cells: made in {time.monotonic() - begun:.0f} s, {size_mb:.0f} MB, of which "
            f"{RESULT} {result_mb:.1f} MB",
            file=sys.stderr,
        )
        for name, command in steps(run, folder / f"sheet-{cells}.html").items():
            found.setdefault(name, {})[cells] = measured(command)
    return found


def table(found: dict[str, dict[int, Cost]]) -> str:
    """The figures, and how much more the largest run took than the smallest."""
    lines = ["| step | cells | CPU s | seconds | peak RSS, MB |", "|---|---|---|---|---|"]
    notes = []
    for name, costs in found.items():
        for cells, cost in costs.items():
            if cost.failure is not None:
                notes.append(f"{name}, {cells} cells: skipped, it could not run: {cost.failure}")
                continue
            lines.append(
                f"| {name} | {cells} | {cost.cpu_s:.1f} | {cost.wall_s:.1f} | {cost.peak_mb:.0f} |"
            )
        good = {cells: cost for cells, cost in costs.items() if cost.failure is None}
        if len(good) > 1:
            least, most = min(good), max(good)
            more = good[most].cpu_s / good[least].cpu_s
            memory = good[most].peak_mb / good[least].peak_mb
            notes.append(
                f"{name}: {most / least:.0f} times the cells took {more:.1f} times the processor "
                f"time and {memory:.1f} times the memory"
            )
    return "\n".join([*lines, "", *notes])


def main() -> None:
    """Make the runs, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", default="100,300,1000", help="sizes of the runs")
    parser.add_argument("--make", type=Path, help="only make a run there, of the first size")
    parser.add_argument("--keep", type=Path, help="leave runs and sheets in this folder")
    args = parser.parse_args()
    sizes = [int(word) for word in args.cells.split(",")]
    if args.make is not None:
        make(args.make, sizes[0])
        return
    if args.keep is not None:
        args.keep.mkdir(parents=True, exist_ok=True)
        print(table(measure(args.keep, sizes)))
        return
    with tempfile.TemporaryDirectory() as folder:
        print(table(measure(Path(folder), sizes)))


if __name__ == "__main__":
    main()
