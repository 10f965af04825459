"""Recordings written by hand: cells, requests and samples with round numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from edgeagent.core.model import (
    Cell,
    CellRecord,
    ClientCost,
    EngineConfig,
    EngineSpec,
    RequestTrace,
    Switch,
    WorkloadSpec,
)

MS = 1_000_000
S = 1_000_000_000
ENGINE = EngineSpec("llamacpp", "llamacpp", ("llama-server",), "m.gguf")
COST = ClientCost(cpu_s=0.1, wall_s=10.0, rss_bytes=30_000_000)


def cell(concurrency: int = 1, cache: Switch = "off", repeat: int = 0, **workload: Any) -> Cell:
    """A cell of the engine `llamacpp`, 256 + 64 prompt tokens and 64 output tokens."""
    config = EngineConfig(ENGINE, concurrency, 512, cache, "off")
    work = WorkloadSpec(**workload)
    cell_id = f"x{concurrency}-{cache}-{repeat}"
    return Cell(cell_id, config, concurrency, repeat, work, requests=20)


def record(of: Cell | None = None, **changes: Any) -> CellRecord:
    """A cell's record: ten seconds, nothing wrong."""
    of = of or cell()
    made = CellRecord(of, "a1", 0, 10 * S, slots=of.concurrency, client=COST)
    return replace(made, **changes)


def request(sent_ms: int, events_ms: Sequence[int], **changes: Any) -> RequestTrace:
    """A measured request: sent then, one token at each of these moments, then over."""
    stamps = tuple(at * MS for at in events_ms)
    made = RequestTrace(
        cell_id="x",
        attempt="a1",
        index=0,
        role="measured",
        scheduled_ns=sent_ms * MS,
        sent_ns=sent_ms * MS,
        headers_ns=(sent_ms + 1) * MS,
        first_event_ns=stamps[0] if stamps else None,
        event_ns=stamps,
        event_tokens=(1,) * len(stamps),
        first_answer_event=0 if stamps else None,
        finished_ns=stamps[-1] if stamps else (sent_ms + 1) * MS,
        http_status=200,
        finish_reason="length",
        prompt_tokens=320,
        cached_tokens=0,
        output_tokens=len(stamps),
        token_source="timings",  # noqa: S106  # because it names a source of counts
    )
    return replace(made, **changes)
