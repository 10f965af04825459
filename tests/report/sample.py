"""A result document as a sweep leaves it: one engine, two levels of load, cache off and on."""

from __future__ import annotations

from typing import Any


def metric(mean: float | None, half: float | None = None) -> dict[str, Any]:
    ci95 = None if mean is None or half is None else [mean - half, mean + half]
    return {"mean": mean, "ci95": ci95}


def level(concurrency: int, cache: str, **metrics: Any) -> dict[str, Any]:
    return {
        "engine": "llamacpp",
        "concurrency": concurrency,
        "prefix_cache": cache,
        "speculation": "off",
        "replicates": 3,
        "metrics": metrics,
    }


def cell(concurrency: int, cache: str, repeat: int, status: str = "ok") -> dict[str, Any]:
    return {
        "cell_id": f"{concurrency}-{cache}-{repeat}",
        "engine": "llamacpp",
        "model": "SmolLM2-135M-Instruct",
        "concurrency": concurrency,
        "prefix_cache": cache,
        "speculation": "off",
        "repeat": repeat,
        "status": status,
        "findings": [],
        "requests": {"planned": 64, "ok": 63, "failed": 1, "errors": {"idle": 1}},
        "cached_prompt_fraction": 0.8 if cache == "on" else 0.0,
        "memory": {
            "samples": 40,
            "values": {
                "engine.rss_bytes": {"peak": (400 + repeat) << 20, "mean": 400 << 20},
                "gpu.GPU-1.engine_bytes": {"peak": None, "mean": None, "reason": "no NVML"},
            },
        },
    }


def document() -> dict[str, Any]:
    return {
        "schema": "edgeagent.result/1",
        "run_id": "20260101T000000Z-abcdef",
        "status": "complete",
        "engines": [{"id": "llamacpp", "kind": "llamacpp", "version": "b10434"}],
        "models": [{"id": "SmolLM2-135M-Instruct", "quantization": "Q4_1"}],
        "levels": [
            level(
                concurrency,
                cache,
                **{
                    "output_tokens_per_s": metric(1131.4 if concurrency > 1 else 71.96, 10.26),
                    "ttft_s.p50": metric(0.1374 * concurrency),
                    "ttft_s.p95": metric(0.3301 * concurrency),
                    "itl_s.p50": metric(0.01321),
                    "itl_s.p99": metric(0.11),
                    "tpot_s.p50": metric(0.01412),
                    "e2e_s.p95": metric(12.3456),
                    "cached_prompt_fraction": metric(0.8 if cache == "on" else 0.0),
                },
            )
            for cache in ("off", "on")
            for concurrency in (1, 16)
        ],
        "cells": [
            cell(concurrency, cache, repeat)
            for cache in ("off", "on")
            for concurrency in (1, 16)
            for repeat in (1, 2, 3)
        ],
        "findings": [
            {
                "code": "power_saver",
                "severity": "info",
                "text": "the CPU governor is powersave: another box may differ for that alone",
                "cells": [],
            },
            {
                "code": "cache_contradicts_label",
                "severity": "suspect",
                "text": "1.4 % of the prompt tokens came from the cache although the cell is "
                "labelled cold (limit 1 %): look for another client, then measure again",
                "cells": ["16-off-1"],
            },
            {
                "code": "too_few_samples",
                "severity": "warning",
                "text": "p99 rests on 64 requests; plan at least 299 for a bound on it",
                "cells": ["16-on-1", "16-on-2"],
            },
        ],
    }
