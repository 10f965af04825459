"""Which document have the tests of the plots to draw? A whole one, made up, with round numbers."""

from __future__ import annotations

import math
from typing import Any

from edgeagent.report.sheet_run import SheetRun

LEVELS = (1, 2, 4, 8, 16)
MIB = 1 << 20


def whole(engines: tuple[str, ...] = ("llamacpp", "vllm")) -> dict[str, Any]:
    """A document with something for every plot."""
    first, second = engines[0], engines[-1]
    return {
        "levels": [
            level(engine, n, 20.0 * n ** (0.4 + 0.2 * place))
            for place, engine in enumerate(engines)
            for n in LEVELS
        ],
        "cells": [{"energy": {"reason": None}}],
        "distributions": [
            distribution(engine, n, 0.02 * (1 + place) * n**0.3)
            for place, engine in enumerate(engines)
            for n in LEVELS
        ],
        "timelines": [timeline(engine) for engine in engines],
        "arrivals": [arrival(first)],
        "interference": [
            {
                **setting(first),
                "concurrency": 4,
                "undisturbed": {"during": {"output_tokens_per_s": {"value": 93.5}}},
            }
        ],
        "memory": [memory(first)],
        "comparison": [
            comparison(first, second, "output_tokens_per_s"),
            comparison(first, second, "ttft_s.p50"),
        ],
    }


def run(document: dict[str, Any], label: str = "box") -> SheetRun:
    return SheetRun(label, document)


def setting(engine: str, cache: str = "off", speculation: str = "off") -> dict[str, Any]:
    return {"engine": engine, "prefix_cache": cache, "speculation": speculation}


def mean(value: float | None, spread: float | None = 0.1) -> dict[str, Any]:
    ends = None if value is None or spread is None else [value * (1 - spread), value * (1 + spread)]
    return {"mean": value, "ci95": ends}


def level(engine: str, n: int, rate: float, cache: str = "off") -> dict[str, Any]:
    return {
        **setting(engine, cache),
        "concurrency": n,
        "replicates": 3,
        "suspect": 0,
        "metrics": {
            "output_tokens_per_s": mean(rate),
            "ttft_s.p50": mean(0.1 * n**0.5),
            "ttft_s.p95": mean(0.15 * n**0.6),
            "energy.per_output_token_j": mean(5.0 / n**0.5),
            "energy.net_per_output_token_j": mean(3.0 / n**0.5),
        },
    }


def distribution(engine: str, n: int, typical_s: float) -> dict[str, Any]:
    edges = [0.001 * 10 ** (place / 10) for place in range(31)]
    counts = [
        round(1000 * math.exp(-(((math.log(edge) - math.log(typical_s)) / 0.25) ** 2)))
        for edge in edges[:-1]
    ]
    return {
        **setting(engine),
        "concurrency": n,
        "metric": "itl_s",
        "edges": edges,
        "counts": counts,
        "below": 0,
        "above": 2,
        "n": sum(counts) + 2,
        "cells": ["c"],
    }


def timeline(engine: str) -> dict[str, Any]:
    return {
        **setting(engine),
        "cell_id": "c0ffee",
        "concurrency": 16,
        "step_s": 0.5,
        "inflight": [min(16, 2 * n, 2 * (59 - n)) for n in range(60)],
        "output_tokens_per_s": [
            90.0 * min(1, n / 8, (59 - n) / 8) + 3 * math.sin(n * 1.7) + 4 for n in range(60)
        ],
        "memory_bytes": [None if n in {20, 21} else (300 + min(n, 30)) * MIB for n in range(60)],
        "memory_domain": "host",
        "memory_source": "pss_anon",
        "steady_from_s": 4.5,
        "steady_to_s": 25.0,
    }


def arrival(engine: str) -> dict[str, Any]:
    return {
        **setting(engine),
        "concurrency": 4,
        "prompt_tokens": 2048,
        "arrivals": 8,
        "step_s": 0.05,
        "from_s": -1.0,
        "victims_tokens_per_s": [
            93.75 if n < 20 else 5.0 if n < 32 else 80.0 if n < 40 else 93.25 for n in range(70)
        ],
        "operator_first_token_s": 0.625,
        "operator_end_s": 1.0,
    }


def memory(engine: str) -> dict[str, Any]:
    slots = [1, 1, 4, 4, 8, 8, 16, 16]
    return {
        "engine": engine,
        "domain": "gpu",
        "speculation": "off",
        "context_per_slot": 4096,
        "method": "relaunch",
        "slots": slots,
        "bytes": [(4000 + 130 * n + 5 * (place % 2)) * MIB for place, n in enumerate(slots)],
        "ready_bytes": [(3900 + 128 * n) * MIB for n in slots],
        "base_bytes": 4000.0 * MIB,
        "measured_bytes_per_slot": 130.0 * MIB,
        "ci95": [129.0 * MIB, 131.0 * MIB],
        "predicted_bytes_per_slot": 128.0 * MIB,
        "budget_bytes": 12288 * MIB,
        "reserve_bytes": 614 * MIB,
        "max_slots": 59,
        "reason": None,
    }


def comparison(a: str, b: str, metric: str) -> dict[str, Any]:
    factors = (1.5, 1.2, 1.0, 0.7, 0.5)
    return {
        "metric": metric,
        "a": a,
        "b": b,
        "outcome": "crosses",
        "prefix_cache": "off",
        "speculation": "off",
        "low": 3.0,
        "high": 6.5,
        "text": f"{a} is better up to 2, {b} from 8 on",
        "levels": [
            {
                "concurrency": n,
                "replicates": 3,
                "factor": factor,
                "ci95": [factor / 1.15, factor * 1.15],
                "better": None if n == 4 else "a" if n < 4 else "b",
            }
            for n, factor in zip(LEVELS, factors, strict=True)
        ],
    }
