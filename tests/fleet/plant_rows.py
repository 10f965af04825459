"""Which rows does a plant have that has had some of everything?"""

from __future__ import annotations

import json
import time
from typing import Any

from fleet_made import boxes, stored

from edgeagent.fleet.store import Batch, GapRow, MessageRow, NodeNews, TelemetryRow, open_store


def _event(kind: str, seq: int, values: dict[str, Any], now_ms: int) -> MessageRow:
    payload = json.dumps({"schema": f"edgeagent.{kind}/1", "v": values})
    return MessageRow(
        "edge-0001", "ep", "R", seq, f"edgeagent.{kind}/1", kind, now_ms, now_ms, "b", 1, "sync",
        payload,
    )  # fmt: skip


def filled(url: str) -> None:
    """Put them into a database, through the collector's own store."""
    now_ms = time.time_ns() // 1_000_000
    audit = {"op": "sweep", "id": "1", "state": "accepted", "issuer": "plant-operator"}
    minute = {"samples": 12, "span_s": 60, "ram_used_bytes_max": 5e9, "ram_used_bytes_mean": 4e9,
              "ram_total_bytes_last": 8e9}  # fmt: skip
    late = {"state": "offline", "session_n": 900, "spool": {"rows": 5, "oldest_age_s": 7200}}
    store = open_store(url, "collect")
    try:
        stored(store, boxes(4))
        store.take(
            Batch(
                messages=[_event("audit", 9001, audit, now_ms),
                          _event("oom", 9002, {"victim": "vllm", "source": "kernel"}, now_ms)],
                telemetry=[TelemetryRow("edge-0001", "ep", "M", 1, "mem_1m", now_ms, now_ms, now_ms,
                                        "sync", json.dumps(minute))],
                gaps=[GapRow("edge-0001", "ep", "M", 1, 10, 5, "evicted", now_ms)],
                nodes=[NodeNews("edge-0009", "plant7-hall-a", now_ms - 10**9, late)],
                now_ms=now_ms,
            )
        )  # fmt: skip
    finally:
        store.close()
