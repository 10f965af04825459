"""What should the reader of a result doubt, and what can be done about it?

Doubts are values. A finding of severity `suspect` makes its cells suspect; `warning` says that a
number may not mean what it seems; `info` says what a reader should know. docs/findings.md lists
every code, and a test keeps the two in step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from edgeagent.core.metrics import CellMetrics
from edgeagent.core.model import Cell, CellRecord, Finding, Launch, MemorySample, Severity
from edgeagent.core.plan import label
from edgeagent.core.stats import deviation, mean, trend_p_value
from edgeagent.core.taint import taints

CellStatus = Literal["ok", "suspect", "failed"]

COLD_CACHED_LIMIT = 0.01
"""A cold cell may reuse a begin-of-text token, not a prefix."""

BLOCK_TOKENS: Mapping[str, int] = {"llamacpp": 1, "fake": 1, "vllm": 128, "openai": 128}
"""Prefixes are reused in blocks of this many tokens (vLLM on a CPU has the largest, 128)."""

APPROXIMATE = 0.9
"""Prompts sized by length of text have about the tokens that were asked for."""

MIN_REQUESTS = 20
"""p95 needs 20 requests; fewer leave a cell with a median only."""

CLIENT_CPU_LIMIT = 0.5
"""Half a core spent on measuring is a core that the engine did not have."""

LAG_LIMIT = 0.5
"""A timer later than half the usual gap between tokens: sends may have been late, too."""

INFLIGHT_LIMIT = 0.95
"""Of the concurrency that was asked for, on average over the steady window."""

CLOCK_STEP_LIMIT_S = 0.002
"""Slewing moves the wall clock by half a millisecond a second; between two reads it is far less."""

LATE_SAMPLE_LIMIT_S = 0.25
"""Later than this, a sample belongs to another moment than it says."""

SHARED_READ_LIMIT = 0.05
"""Above this share of events, gaps between tokens are too few to stand for all."""

UNSTABLE_LIMIT = 0.10
"""Standard deviation over mean of the repeats."""

STAND_OUT = 3.0
"""First repeat this many spreads of the others away from them, and more than 10 %."""

TREND_P_LIMIT = 0.05

_SPREAD_FLOOR = 0.02
"""Repeats that agree to 2 % agree; a smaller spread of two or three is chance."""

CODES: Mapping[str, Severity] = {
    "failed_requests": "suspect",
    "engine_died": "suspect",
    "cell_deadline": "suspect",
    "cache_contradicts_label": "suspect",
    "cache_unproven": "warning",
    "token_count_mismatch": "suspect",
    "chunk_counted": "warning",
    "prompt_size_approximate": "info",
    "client_bound": "suspect",
    "inflight_below_concurrency": "suspect",
    "no_steady_window": "warning",
    "too_few_samples": "info",
    "queueing_beyond_slots": "warning",
    "stamps_fallback": "warning",
    "shared_reads": "warning",
    "clock_stepped": "suspect",
    "late_samples": "warning",
    "engine_differs_from_request": "warning",
    "speculation_never_drafted": "suspect",
    "preempted": "warning",
    "killed_by_guard": "suspect",
    "device_mismatch": "suspect",
    "engine_memory_grows": "warning",
    "memory_not_resolved": "info",
    "memory_unexplained": "warning",
    "co_tenant": "warning",
    "throttled": "suspect",
    "memory_pressure": "suspect",
    "power_mode_changed": "suspect",
    "power_saver": "warning",
    "power_mode_limited": "info",
    "foreign_cpu": "warning",
    "foreign_gpu": "warning",
    "hot_start": "warning",
    "host_tainted": "warning",
    "canary_drift": "warning",
    "unstable_over_repeats": "warning",
    "trend_over_repeats": "warning",
    "first_repeat_stands_out": "warning",
}
"""Every code and its severity."""


@dataclass(frozen=True)
class CellEvidence:
    """What is known of a cell when it is judged."""

    record: CellRecord
    metrics: CellMetrics
    prompts_exact: bool = True
    samples: Sequence[MemorySample] = ()
    """What the probes saw in the cell, in order of time."""

    @property
    def cell(self) -> Cell:
        """The cell itself."""
        return self.record.cell


def examine_cell(evidence: CellEvidence) -> tuple[Finding, ...]:
    """Every doubt about one cell."""
    cell_id = evidence.cell.cell_id
    found = [*_failures(evidence), *_counting(evidence), *_engine(evidence)]
    if evidence.cell.purpose != "arrival":
        # What a newcomer does to cache and load is what an arrival cell is about.
        found += [*_cache(evidence), *_client(evidence), *_data(evidence)]
    return tuple(Finding(code, CODES[code], text, (cell_id,)) for code, text in found)


_Found = Iterator[tuple[str, str]]


def _failures(evidence: CellEvidence) -> _Found:
    record, requests = evidence.record, evidence.metrics.requests
    name = label(record.cell)
    if record.failure is not None:
        died = ("engine_died", "killed_by_guard")
        code = record.failure_kind if record.failure_kind in died else "cell_deadline"
        yield code, f"{name}: {record.failure}"
    if requests.failed:
        kinds = ", ".join(f"{count} {kind}" for kind, count in requests.errors.items())
        yield (
            "failed_requests",
            f"{name}: {requests.failed} of {requests.ok + requests.failed} requests failed "
            f"({kinds}); latencies are of the others only: see error_detail in requests.jsonl",
        )


def _cache(evidence: CellEvidence) -> _Found:
    cell, cached = evidence.cell, evidence.metrics.cached_prompt_fraction
    if not evidence.metrics.requests.ok:
        return
    if cached is None:
        yield (
            "cache_unproven",
            f"{label(cell)}: the engine does not report cached tokens, so whether prefixes were "
            "reused is an assumption",
        )
    elif cell.config.prefix_cache == "off" and cached >= COLD_CACHED_LIMIT:
        yield (
            "cache_contradicts_label",
            f"{label(cell)}: {cached:.0%} of prompt tokens came from the cache although it should "
            "be cold: look for another client on this server, or a cache that cannot be reset",
        )
    elif cell.config.prefix_cache == "on" and cached < _least_cached(evidence):
        yield (
            "cache_contradicts_label",
            f"{label(cell)}: only {cached:.0%} of prompt tokens came from the cache, "
            f"{expected_cached(cell):.0%} were expected: prefix reuse is not really on, or slots "
            "forget between requests",
        )


def _least_cached(evidence: CellEvidence) -> float:
    """`expected_cached`, with slack where prompts were sized by length of text."""
    slack = 1.0 if evidence.prompts_exact else APPROXIMATE
    return expected_cached(evidence.cell) * slack


def expected_cached(cell: Cell) -> float:
    """The least share of prompt tokens that a warm cell must find in the cache.

    The shared opening less one block. Own traffic promises nothing.
    """
    work = cell.workload
    total = work.prefix_tokens + work.prompt_tokens
    if work.prompts or not total:
        return 0.0
    block = BLOCK_TOKENS[cell.config.engine.kind]
    # A token of slack where blocks are single tokens: rounding of the engine's own counts.
    return max(0.0, (work.prefix_tokens - max(block, 2)) / total)


def _counting(evidence: CellEvidence) -> _Found:
    metrics, name = evidence.metrics, label(evidence.cell)
    if metrics.count_mismatches:
        yield (
            "token_count_mismatch",
            f"{name}: in {metrics.count_mismatches} requests the stream's tokens do not add up to "
            "the engine's own count, so tokens per second are uncertain",
        )
    if metrics.token_count_source and "chunks" in metrics.token_count_source:
        yield (
            "chunk_counted",
            f"{name}: the engine counts no tokens while streaming, so each event was taken for one",
        )
    if not evidence.prompts_exact and not evidence.cell.workload.prompts:
        yield (
            "prompt_size_approximate",
            f"{name}: prompts were sized by length of text, not by the engine's tokenizer; "
            "prompt_tokens has the engine's count",
        )
    if metrics.stamp_source not in (None, "kernel"):
        yield (
            "stamps_fallback",
            f"{name}: {metrics.late_stamps or 'all'} token stamps are our own clock's, not the "
            "kernel's; on a busy box they are late by milliseconds",
        )
    if metrics.shared_reads > SHARED_READ_LIMIT * max(metrics.token_events, 1):
        yield (
            "shared_reads",
            f"{name}: {metrics.shared_reads} token events came together with others in one read; "
            "gaps around them are left out of itl_s",
        )


def _client(evidence: CellEvidence) -> _Found:
    metrics, cell = evidence.metrics, evidence.cell
    client, name = metrics.client, label(cell)
    if client.cpu_fraction is not None and client.cpu_fraction > CLIENT_CPU_LIMIT:
        yield (
            "client_bound",
            f"{name}: measuring took {client.cpu_fraction:.0%} of a core, so the engine had less "
            "than the box has: use fewer simultaneous requests or a faster box",
        )
    lag, usual = client.loop_lag_s.p95, metrics.itl_s.p50
    if lag is not None and usual and lag > LAG_LIMIT * usual and metrics.stamp_source != "kernel":
        yield (
            "client_bound",
            f"{name}: our own timers were {lag * 1000:.1f} ms late (p95), too much against "
            f"{usual * 1000:.1f} ms between tokens without kernel stamps",
        )
    inflight = metrics.inflight_mean
    sustained = cell.workload.shape == "sustained" and metrics.steady_s is not None
    if sustained and inflight is not None and inflight < INFLIGHT_LIMIT * cell.concurrency:
        yield (
            "inflight_below_concurrency",
            f"{name}: on average only {inflight:.2f} of {cell.concurrency} requests were in "
            "flight, so this is not the load it says",
        )
    if client.clock_step_s > CLOCK_STEP_LIMIT_S:
        yield (
            "clock_stepped",
            f"{name}: the wall clock jumped by {client.clock_step_s * 1000:.1f} ms while stamps "
            "were taken with it: measure again once time is synchronised",
        )
    late = metrics.memory.late_p95_s
    if late is not None and late > LATE_SAMPLE_LIMIT_S:
        yield (
            "late_samples",
            f"{name}: memory samples were {late * 1000:.0f} ms late (p95): peaks may be missed",
        )


def _engine(evidence: CellEvidence) -> _Found:
    cell, metrics, record = evidence.cell, evidence.metrics, evidence.record
    name = label(cell)
    if record.slots is not None and record.slots < cell.concurrency:
        yield (
            "queueing_beyond_slots",
            f"{name}: the engine has {record.slots} slots for {cell.concurrency} requests, so "
            "time to first token includes a wait for a slot (headers_s)",
        )
    if cell.config.speculation != "off" and metrics.requests.ok and not metrics.draft_acceptance:
        yield (
            "speculation_never_drafted",
            f"{name}: speculation is on and not one draft was accepted, so this cell measures "
            "its cost only, or nothing of it",
        )
    preempted = record.server_deltas.get("preemptions")
    if preempted:
        yield (
            "preempted",
            f"{name}: the engine ran out of cache {preempted} times and computed requests anew "
            "that had been running: give it a larger pool, or fewer simultaneous requests",
        )
    for code, text in taints(evidence.samples):
        yield code, f"{name}: {text}"


def _data(evidence: CellEvidence) -> _Found:
    cell, metrics = evidence.cell, evidence.metrics
    if metrics.requests.ok and metrics.steady_s is None:
        yield (
            "no_steady_window",
            f"{label(cell)}: {cell.concurrency} measured requests were never in flight together, "
            "so rates include filling and draining: use more --requests",
        )
    if 0 < metrics.requests.ok < MIN_REQUESTS:
        yield (
            "too_few_samples",
            f"{label(cell)}: {metrics.requests.ok} requests give a median but no p95: use at "
            f"least {MIN_REQUESTS} (--requests)",
        )


def examine_launch(launch: Launch, cells: Sequence[str]) -> tuple[Finding, ...]:
    """Doubts about a start: what the engine does differently from what was asked."""
    differences = launch.effective.details.get("differences")
    if not isinstance(differences, (list, tuple)):
        return ()
    return tuple(
        Finding(
            "engine_differs_from_request",
            CODES["engine_differs_from_request"],
            f"{launch.engine_id}: {text}",
            tuple(cells),
        )
        for text in differences
    )


def examine_level(name: str, values: Sequence[float], cells: Sequence[str]) -> tuple[Finding, ...]:
    """Doubts about the repeats of one level, by their output tokens/s in order of repeat."""
    findings: list[tuple[str, str]] = []
    middle, spread = mean(values), deviation(values)
    if middle and spread is not None and spread / middle > UNSTABLE_LIMIT:
        findings.append(
            (
                "unstable_over_repeats",
                f"{name}: output tokens/s of the repeats differ by {spread / middle:.0%} of their "
                "mean: look for other work on this box, or repeat more often",
            )
        )
    p_value = trend_p_value(values)
    if p_value is not None and p_value <= TREND_P_LIMIT:
        findings.append(
            (
                "trend_over_repeats",
                f"{name}: output tokens/s keep moving one way over the repeats (p = "
                f"{p_value:.3f}): the box warms up, fills up, or another load grows",
            )
        )
    if _first_stands_out(values):
        findings.append(
            (
                "first_repeat_stands_out",
                f"{name}: the first repeat differs from all others: warm up longer (--warmup) or "
                "leave it out",
            )
        )
    return tuple(Finding(code, CODES[code], text, tuple(cells)) for code, text in findings)


def _first_stands_out(values: Sequence[float]) -> bool:
    others = values[1:]
    middle, spread = mean(others), deviation(others)
    if middle is None or spread is None or not middle:
        return False
    distance = abs(values[0] - middle)
    return distance > UNSTABLE_LIMIT * middle and distance > STAND_OUT * max(
        spread, _SPREAD_FLOOR * middle
    )


def status_of(evidence: CellEvidence, findings: Sequence[Finding]) -> CellStatus:
    """`failed` when nothing was served or it broke off, `suspect` when in doubt, else `ok`."""
    if evidence.record.failure is not None or not evidence.metrics.requests.ok:
        return "failed"
    cell_id = evidence.cell.cell_id
    doubted = any(f.severity == "suspect" and cell_id in f.cells for f in findings)
    return "suspect" if doubted else "ok"
