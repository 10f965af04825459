"""Stored runs with a result worked out by the agent's own code, without measuring."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edgeagent.core.metrics import CellMetrics, RequestCounts
from edgeagent.core.model import EngineConfig, EngineIdentity, EngineSpec, ModelIdentity, SweepSpec
from edgeagent.core.plan import configurations, expand
from edgeagent.core.result import CellResult, Measured, RunFacts, build, plain
from edgeagent.core.stats import Distribution

MODEL = ModelIdentity(
    "Small Model", "m.gguf", format="gguf", quantization="BF16", parameters=135_000_000,
    sha256="ab" * 32, weights_digest="w",
)  # fmt: skip
LLAMA = EngineSpec("llamacpp", "llamacpp", ("llama-server",), "m.gguf")
VLLM = EngineSpec("vllm", "vllm", ("vllm",), "folder")
NOISE = (0.98, 1.03, 1.0, 1.01, 0.99)
Rate = Callable[[int], float]


@dataclass(frozen=True)
class Made:
    """What a stored run is made of."""

    rates: Mapping[str, Rate]
    """Output tokens/s by engine id and concurrency."""
    spec: SweepSpec = field(
        default_factory=lambda: SweepSpec(
            engines=(LLAMA, VLLM), concurrency=(1, 4, 8, 16, 32), prefix_cache=("on",),
            memory_repeats=0, canary=0,
        )
    )  # fmt: skip
    model: ModelIdentity = MODEL
    host: Mapping[str, object] = field(
        default_factory=lambda: {"hostname": "box", "class": "cpu", "power_mode": None}
    )


def stored(folder: Path, made: Made, **changes: Any) -> Path:
    """A run folder with a plan and a result; `changes` replace parts of its document."""
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps({"made": folder.name}))
    document = {**_document(folder, made), **changes}
    (folder / "result.json").write_text(json.dumps(document))
    return folder


def _document(folder: Path, made: Made) -> dict[str, Any]:
    identities = {config: _identity(config, made.model) for config in configurations(made.spec)}
    plan = expand(made.spec, identities)
    digest = hashlib.sha256((folder / "plan.json").read_bytes()).hexdigest()
    facts = RunFacts(
        folder.name, "complete", "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z", {"version": "0"},
        made.host, {"plan.json": digest},
    )  # fmt: skip
    cells = [
        CellResult(
            cell,
            "ok",
            CellMetrics(
                RequestCounts(20, 20, 0),
                output_tokens_per_s=rate,
                request_throughput_per_s=rate / 64,
                goodput_per_s=rate / 64,
                ttft_s=_distribution(8 / rate),
                cached_prompt_fraction=0.8,
            ),
        )
        for cell in plan.cells
        for noise in [_noise(NOISE, cell.repeat, cell.concurrency, cell.config.engine.id)]
        for rate in [made.rates[cell.config.engine.id](cell.concurrency) * noise]
    ]
    document: dict[str, Any] = plain(build(facts, plan, [], Measured(tuple(cells))))
    return document


def _noise(of: Sequence[float], repeat: int, concurrency: int, engine: str) -> float:
    return of[(repeat * (2 if engine == "vllm" else 1) + concurrency) % len(of)]


def _distribution(seconds: float) -> Distribution:
    return Distribution(n=20, mean=seconds, p50=seconds, p95=2 * seconds, max=3 * seconds)


def _identity(config: EngineConfig, model: ModelIdentity) -> EngineIdentity:
    engine = config.engine
    if engine.kind == "vllm":
        model = replace(model, format="safetensors", sha256="cd" * 32, path="folder")
    return EngineIdentity(
        engine.id, engine.kind, "1", "ef" * 32, (), (), attached=False, model=model
    )
