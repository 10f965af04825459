"""What is pinned when a vLLM is started, and how large is its pool?

The flags are those of vLLM 0.32; a vLLM that lacks one says so when it starts, with its name
(docs/decisions/0010-vllm-launch.md). The pool holds what slots x context need and no more
(core/kv_vllm.py), so that memory follows slots and not a share of the device.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from edgeagent.core.kv_model import CacheShape
from edgeagent.core.kv_types import VLLM_BYTES
from edgeagent.core.kv_vllm import CPU_BLOCK, GPU_BLOCK, Pool, PoolLayout, pool
from edgeagent.core.model import EngineConfig, ModelIdentity
from edgeagent.errors import UsageError

SHUTDOWN_S = 5
"""How long it finishes requests when told to end; with 0 an open stream keeps it up for ever."""

DRAFTED_TOKENS = 4
"""Per step, by n-grams or by a second model."""

_SIXTEEN_BITS = ("f16", "bf16", "auto")
_POOL_ARGS = frozenset(
    {
        "--kv-cache-memory-bytes",
        "--num-gpu-blocks-override",
        "--gpu-memory-utilization",
        "--device-memory-utilization",
    }
)
_SPLIT_ARGS = frozenset(
    {"--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp", "--data-parallel-size"}
)

_PINNED_ENVIRONMENT: Mapping[str, str] = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # Its cache can be forgotten and its settings read back only with development routes.
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_LOGGING_COLOR": "0",
}
_STEERING = "VLLM_"


@dataclass(frozen=True)
class VllmModel:
    """What the adapter must know of the weights; read from the folder by models/hf.py."""

    identity: ModelIdentity
    shape: CacheShape | None = None
    reason: str | None = None
    """Why the shape is not known."""
    element_type: str | None = None
    """Type of its elements, as its configuration names it."""
    draft: Callable[[str], CacheShape | None] = lambda path: None  # noqa: ARG005  # because nobody drafts unless told
    """The shape of a model that drafts, by its path."""


@dataclass(frozen=True)
class Place:
    """Where the engine will run, as far as its flags depend on it."""

    gpu: bool
    cores: int

    @classmethod
    def here(cls) -> Place:
        """This box: whether the device files of a GPU are there, and the cores we may use."""
        gpu = any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/kfd").exists()
        return cls(gpu, len(os.sched_getaffinity(0)))

    def on_gpu(self, config: EngineConfig) -> bool:
        """Whether the engine will use a GPU, as far as that can be told before."""
        return config.device == "gpu" or (config.device == "auto" and self.gpu)


@dataclass(frozen=True)
class PoolPlan:
    """The pool that a launch asks for."""

    layout: PoolLayout
    pool: Pool
    pinned: bool = True

    @property
    def blocks(self) -> int:
        """The null block included."""
        return self.pool.blocks(self.layout.sequences)

    @property
    def bytes(self) -> int:
        """Of the whole pool."""
        return self.blocks * self.pool.bytes_per_block


@dataclass(frozen=True)
class FlagChoice:
    """Arguments (without model, address and port), what could not be pinned, and the pool."""

    argv: tuple[str, ...]
    notes: tuple[str, ...] = ()
    pool: PoolPlan | None = None


def choose_flags(config: EngineConfig, model: VllmModel, place: Place) -> FlagChoice:
    """The launch's arguments, the operator's last. Raises UsageError."""
    given = _names(config.engine.args)
    plan, why = plan_pool(config, model, place)
    pinned = [
        *("--max-model-len", str(config.context_per_slot)),
        *("--max-num-seqs", str(config.slots)),
        *("--kv-cache-dtype", cache_type(config.engine.kv_type)),
        "--enable-prefix-caching" if config.prefix_cache == "on" else "--no-enable-prefix-caching",
        "--enable-prompt-tokens-details",
        # Else the model's own file may set a temperature.
        *("--generation-config", "vllm"),
        "--disable-uvicorn-access-log",
        *("--shutdown-timeout", str(SHUTDOWN_S)),
    ]
    notes = [] if why is None else [f"the pool's size is left to vLLM: {why}"]
    if plan is not None and plan.pinned:
        pinned += ["--kv-cache-memory-bytes", str(plan.bytes)]
    if "--disable-log-stats" in given:
        notes.append("--disable-log-stats leaves it without counters: caching cannot be proved")
    else:
        pinned.append("--enable-per-request-metrics")
    pinned += _speculation(config.speculation)
    notes += [
        f"{name} was pinned and is overridden by the operator's argument"
        for name in sorted(_named_alike(pinned) & given)
    ]
    return FlagChoice((*pinned, *config.engine.args), tuple(notes), plan)


def plan_pool(
    config: EngineConfig, model: VllmModel, place: Place
) -> tuple[PoolPlan | None, str | None]:
    """The pool for all slots at full length, and why it is not pinned. Raises UsageError."""
    shape = _with_draft(model, config.speculation)
    if shape is None:
        return None, model.reason or "the draft model's memory is not known"
    given = _names(config.engine.args)
    layout = PoolLayout(
        sequences=config.slots,
        length=config.context_per_slot,
        kv_type=cache_type(config.engine.kv_type),
        element_type=model.element_type,
        block_tokens=_block(config, place),
    )
    found = pool(shape, layout)
    if found.pool is None:
        return None, found.reason
    if given & _SPLIT_ARGS:
        return None, "the operator's arguments divide the model"
    if given & _POOL_ARGS:
        return PoolPlan(layout, found.pool, pinned=False), "the operator's arguments set it"
    return PoolPlan(layout, found.pool), None


def with_block(plan: PoolPlan, shape: CacheShape, block_tokens: int) -> PoolPlan:
    """The same sequences in blocks of another size."""
    layout = replace(plan.layout, block_tokens=block_tokens)
    found = pool(shape, layout).pool
    return plan if found is None else replace(plan, layout=layout, pool=found)


def cache_type(kv_type: str) -> str:
    """`--kv-cache-dtype` for our word. Raises UsageError for a type that vLLM does not have."""
    if kv_type in _SIXTEEN_BITS:
        return "auto"
    if kv_type in VLLM_BYTES:
        return kv_type
    raise UsageError(
        f"--kv-type {kv_type} was asked for and vLLM's cache has no such type: use f16 (the "
        f"model's own 16 bits) or one of {', '.join(VLLM_BYTES)}"
    )


def environment(inherited: Mapping[str, str], config: EngineConfig, place: Place) -> dict[str, str]:
    """What is set for the engine: part of its identity, the operator's own words last.

    On a CPU its threads collapse when they lose a core to the API server or to us
    (docs/engines.md), so one is left free unless the operator chose otherwise.
    """
    chosen = dict(_PINNED_ENVIRONMENT)
    if not place.on_gpu(config):
        chosen["OMP_NUM_THREADS"] = inherited.get("OMP_NUM_THREADS") or str(max(1, place.cores - 1))
    return {**chosen, **dict(config.engine.env)}


def without_steering(inherited: Mapping[str, str]) -> dict[str, str]:
    """Our environment without what would steer a vLLM behind our back."""
    return {k: v for k, v in inherited.items() if not k.startswith(_STEERING)}


def _with_draft(model: VllmModel, speculation: str) -> CacheShape | None:
    kind, _, path = speculation.partition(":")
    if model.shape is None or kind != "draft":
        return model.shape
    draft = model.draft(path)
    if draft is None or draft.state is not None:
        return None
    return replace(model.shape, layers=(*model.shape.layers, *draft.layers))


def _block(config: EngineConfig, place: Place) -> int:
    words = [word for arg in config.engine.args for word in arg.split("=", 1)]
    for name, value in pairwise(words):
        if _plain(name) == "--block-size" and value.isdigit() and int(value):
            return int(value)
    return GPU_BLOCK if place.on_gpu(config) else CPU_BLOCK


def _speculation(setting: str) -> list[str]:
    if setting == "off":
        return []
    asked: dict[str, object] = {"method": "ngram", "num_speculative_tokens": DRAFTED_TOKENS}
    if setting == "ngram":
        asked |= {"prompt_lookup_max": DRAFTED_TOKENS, "prompt_lookup_min": 2}
    else:
        asked |= {"method": "draft_model", "model": setting.removeprefix("draft:")}
    return [
        *("--speculative-config", json.dumps(asked, separators=(",", ":"))),
        *("--per-request-spec-decode-metrics", "summary"),
    ]


def _names(args: Sequence[str]) -> frozenset[str]:
    """Every flag's name among arguments."""
    return frozenset(_plain(arg.split("=", 1)[0]) for arg in args if arg.startswith("-"))


def _plain(name: str) -> str:
    """A flag as we write it: vLLM takes underscores too."""
    return name.replace("_", "-") if name.startswith("--") else name


def _named_alike(pinned: Sequence[str]) -> frozenset[str]:
    """Names of pinned flags, and of those that take the same setting back."""
    names = _names(pinned)
    opposites = {name.replace("--no-", "--", 1) for name in names}
    return names | opposites | {name.replace("--", "--no-", 1) for name in opposites}
