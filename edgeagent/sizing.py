"""How much memory would a model take here, and what fits? Nothing is started for the answer.

The model's description is read, core/kv.py and core/kv_vllm.py do the arithmetic, core/fit.py
looks for what fits into the budget: what was given, else what this class of box has left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from edgeagent.core import fit, kv, kv_config, kv_gguf, kv_vllm, preflight
from edgeagent.core.kv_model import CacheShape
from edgeagent.errors import UsageError
from edgeagent.models import gguf, hf
from edgeagent.probes.box import box_class
from edgeagent.probes.cgroup import CgroupProbe
from edgeagent.probes.host import HostProbe

EngineName = Literal["llamacpp", "vllm"]

_VLLM_MOST_SEQUENCES = 1024
_SMALLER_TYPES = {"llamacpp": ("q8_0", "q4_0"), "vllm": ("fp8",)}
_CPU_CLASSES = ("cpu", "amd", "intel")


@dataclass(frozen=True)
class SizingRequest:
    """What somebody wants to know."""

    model: Path
    context_per_slot: int
    slots: tuple[int, ...]
    engine: EngineName | None = None
    """None takes the engine that reads this kind of model."""
    kv_type: str | None = None
    """None is f16 for llama.cpp and the model's own type for vLLM."""
    sharing: kv.Sharing = "split"
    budget_bytes: int | None = None
    reserve_bytes: int | None = None
    compute_bytes: int | None = None
    """As measured, or as the engine projects it."""
    draft: Path | None = None
    block_tokens: int | None = None
    """vLLM's `--block-size`; None is its default on this class of box."""


@dataclass(frozen=True)
class _Model:
    """A model file or folder, read."""

    memory: kv.ModelMemory
    architecture: str | None
    quantization: str | None
    context_length: int | None
    element_type: str | None = None
    reason: str | None = None
    """Why the memory of a request cannot be computed."""


class _Case:
    """One model, engine and box; every other question is a prediction."""

    def __init__(self, request: SizingRequest, host_class: str) -> None:
        self.request = request
        self.engine = _engine(request)
        self.model = _model(request, self.engine)
        self.kv_type = request.kv_type or ("f16" if self.engine == "llamacpp" else "auto")
        on_cpu = host_class in _CPU_CLASSES
        default_block = kv_vllm.CPU_BLOCK if on_cpu else kv_vllm.GPU_BLOCK
        self.block_tokens = request.block_tokens or default_block
        self.limits = fit.Limits(
            kv.MAX_SLOTS if self.engine == "llamacpp" else _VLLM_MOST_SEQUENCES,
            self.model.context_length or fit.LONGEST_CONTEXT,
        )

    def ask(self, slots: int) -> fit.Ask:
        return fit.Ask(slots, self.request.context_per_slot, self.kv_type)

    def pool(self, ask: fit.Ask) -> kv_vllm.PoolFound:
        return kv_vllm.pool(self.model.memory.shape, self._pool_layout(ask))

    def predict(self, ask: fit.Ask) -> kv.MemoryPrediction:
        """Raises UsageError when the engine would refuse the cache type."""
        if self.engine == "llamacpp":
            layout = kv.CacheLayout(
                ask.slots, ask.context_per_slot, ask.kv_type, self.request.sharing
            )
            return kv.predict_llamacpp(self.model.memory, layout)
        found = self.pool(ask).pool
        assert found is not None, "asked only where the rules tell"  # noqa: S101  # because `reason` is looked at first
        return kv_vllm.predict_vllm(self.model.memory, found, self._pool_layout(ask))

    def need(self, ask: fit.Ask) -> int:
        return self.predict(ask).total_bytes

    def reason(self) -> str | None:
        """Why nothing can be computed, None when it can."""
        if self.model.reason is not None or self.engine == "llamacpp":
            return self.model.reason
        why = self.pool(self.ask(1)).reason
        return None if why is None else f"the memory of a request cannot be computed: {why}"

    def _pool_layout(self, ask: fit.Ask) -> kv_vllm.PoolLayout:
        return kv_vllm.PoolLayout(
            sequences=ask.slots,
            length=ask.context_per_slot,
            kv_type=ask.kv_type,
            element_type=self.model.element_type,
            block_tokens=self.block_tokens,
        )


def size(request: SizingRequest, root: Path = Path("/")) -> dict[str, Any]:
    """The answer as JSON values (the contract's `memory --json`). Raises EdgeAgentError."""
    host_class = box_class(root)
    case = _Case(request, host_class)
    budget, said = _budget(request, host_class, root)
    reason = case.reason()
    document: dict[str, Any] = {
        "model": str(request.model),
        "engine": case.engine,
        "architecture": case.model.architecture,
        "quantization": case.model.quantization,
        "context_length": case.model.context_length,
        "kv_type": case.kv_type,
        "sharing": request.sharing if case.engine == "llamacpp" else None,
        "context_per_slot": request.context_per_slot,
        "reason": reason,
        "weights_bytes": case.model.memory.weights_bytes,
        "budget": said,
        "most_slots": case.limits.slots,
    }
    if reason is not None:
        return document | _unknown(request)
    return document | _per_slot(case) | _rows(case, budget) | _what_fits(case, budget)


# ----------------------------------------------------------------------------------- the model


def _engine(request: SizingRequest) -> EngineName:
    """The engine that was named or is meant, if it reads this model. Raises UsageError."""
    folder = request.model.is_dir()
    engine = request.engine or ("vllm" if folder else "llamacpp")
    if engine == "vllm" and not folder:
        raise UsageError(
            f"model {request.model} is no folder and vLLM's cache follows from the config.json in "
            "one: give the model's Hugging Face folder, or --engine llamacpp"
        )
    if engine == "llamacpp" and folder:
        raise UsageError(
            f"model {request.model} is a folder and llama.cpp reads a GGUF file: give that file, "
            "or --engine vllm"
        )
    if engine == "vllm" and request.draft is not None:
        raise UsageError("--draft is computed for llama.cpp only: leave it out for vLLM")
    return engine


def _model(request: SizingRequest, engine: EngineName) -> _Model:
    if engine == "vllm":
        return _from_folder(request)
    model = _from_file(request.model)
    memory = replace(model.memory, **_compute(request))
    if request.draft is not None:
        draft = _from_file(request.draft)
        if draft.reason is not None:
            return replace(model, reason=f"of the draft model, {draft.reason}")
        memory = replace(memory, draft=draft.memory)
    return replace(model, memory=memory)


def _from_file(path: Path) -> _Model:
    facts = gguf.read_model(path)
    found = kv_gguf.from_gguf(facts.metadata)
    return _Model(
        memory=kv.ModelMemory(
            found.shape or CacheShape(()),
            weights_bytes=facts.size_bytes,
            vocabulary=facts.vocabulary,
        ),
        architecture=facts.architecture,
        quantization=facts.quantization,
        context_length=facts.context_length,
        reason=found.reason,
    )


def _from_folder(request: SizingRequest) -> _Model:
    facts = hf.read(request.model)
    found = kv_config.from_config(facts.config)
    return _Model(
        memory=kv.ModelMemory(
            found.shape or CacheShape(()),
            weights_bytes=facts.weights_bytes,
            vocabulary=facts.vocabulary,
            **_compute(request),
        ),
        architecture=facts.architecture,
        quantization=facts.quantization or facts.element_type,
        context_length=facts.context_length,
        element_type=facts.element_type,
        reason=found.reason,
    )


def _compute(request: SizingRequest) -> dict[str, Any]:
    if request.compute_bytes is None:
        return {}
    return {"compute_bytes": request.compute_bytes, "compute_source": "given"}


# ---------------------------------------------------------------------------------- the budget


def _budget(
    request: SizingRequest, host_class: str, root: Path
) -> tuple[fit.Budget | None, dict[str, Any]]:
    """What may be used, and how that is said; None where it cannot be known."""
    total, source = request.budget_bytes, "given"
    if total is None:
        values = {**HostProbe(root).read(())[0], **CgroupProbe(root).read(())[0]}
        there = preflight.room(host_class, "auto", values)
        total, source = there.available_bytes, there.where
        if total is None and there.where == "GPU":
            return _no_budget(
                host_class,
                "what is free on a graphics card is not known without asking it: give --budget",
            )
    if total is None:
        return _no_budget(host_class, "this box does not say what is available: give --budget")
    reserve = request.reserve_bytes
    budget = fit.Budget(total, fit.default_reserve_bytes(total) if reserve is None else reserve)
    said: dict[str, Any] = {
        "total_bytes": total,
        "reserve_bytes": budget.reserve_bytes,
        "usable_bytes": budget.usable_bytes,
        "source": source,
        "class": host_class,
        "reason": None,
    }
    return budget, said


def _no_budget(host_class: str, reason: str) -> tuple[None, dict[str, Any]]:
    said: dict[str, Any] = dict.fromkeys(("total_bytes", "reserve_bytes", "usable_bytes", "source"))
    return None, said | {"class": host_class, "reason": reason}


# ---------------------------------------------------------------------------------- the answer


def _per_slot(case: _Case) -> dict[str, Any]:
    """What a second slot adds, part by part."""
    one, two = case.predict(case.ask(1)), case.predict(case.ask(2))
    said: dict[str, Any] = {
        "kv_bytes_per_slot": two.kv_bytes - one.kv_bytes,
        "state_bytes_per_slot": two.state_bytes - one.state_bytes,
        "output_bytes_per_slot": None,
        "metadata_bytes_per_slot": two.metadata_bytes - one.metadata_bytes,
        "draft_bytes_per_slot": two.draft_bytes - one.draft_bytes,
        "bytes_per_slot": one.bytes_per_slot,
        "compute_bytes": one.compute_bytes,
        "compute_source": case.model.memory.compute_source,
    }
    if one.output_bytes is not None and two.output_bytes is not None:
        said["output_bytes_per_slot"] = two.output_bytes - one.output_bytes
    shape = case.model.memory.shape
    if case.engine == "llamacpp":
        return said | {
            "kv_bytes_per_token": kv.token_bytes(shape, case.kv_type),
            "lasting_kv_bytes_per_token": kv.lasting_token_bytes(shape, case.kv_type),
        }
    pool = case.pool(case.ask(1)).pool
    assert pool is not None  # noqa: S101  # because `reason` was looked at
    return said | {
        "kv_bytes_per_token": kv_vllm.token_bytes(shape, case.kv_type, case.model.element_type),
        "block_tokens": pool.block_tokens,
        "bytes_per_block": pool.bytes_per_block,
        "blocks_per_slot": pool.sequence_blocks,
    }


def _rows(case: _Case, budget: fit.Budget | None) -> dict[str, Any]:
    return {"rows": [_row(case, case.ask(slots), budget) for slots in case.request.slots]}


def _row(case: _Case, ask: fit.Ask, budget: fit.Budget | None) -> dict[str, Any]:
    found = case.predict(ask)
    headroom = None if budget is None else budget.usable_bytes - found.total_bytes
    fits = None if headroom is None else headroom >= 0
    if fits and found.weights_bytes is None:
        fits = None  # what is known fits, and the weights are not known
    context = None
    if budget is not None:
        context = fit.max_context(case.need, ask, budget.usable_bytes, case.limits)
    row = {
        "slots": ask.slots,
        "kv_bytes": found.kv_bytes,
        "state_bytes": found.state_bytes,
        "output_bytes": found.output_bytes,
        "metadata_bytes": found.metadata_bytes,
        "draft_bytes": found.draft_bytes,
        "weights_bytes": found.weights_bytes,
        "compute_bytes": found.compute_bytes,
        "total_bytes": found.total_bytes,
        "bytes_per_slot": found.bytes_per_slot,
        "fits": fits,
        "headroom_bytes": headroom,
        "max_context_per_slot": context,
    }
    pool = case.pool(ask).pool if case.engine == "vllm" else None
    return row if pool is None else row | {"blocks": pool.blocks(ask.slots)}


def _what_fits(case: _Case, budget: fit.Budget | None) -> dict[str, Any]:
    """The limits of the budget; the largest context is for the most slots that were asked for."""
    if budget is None:
        return {"max_slots": None, "max_context_per_slot": None, "advice": []}
    ask, usable = case.ask(max(case.request.slots)), budget.usable_bytes
    smaller = _smaller_types(case)
    return {
        "max_slots": fit.max_slots(case.need, ask, usable, case.limits),
        "max_context_per_slot": fit.max_context(case.need, ask, usable, case.limits),
        "advice": [
            {
                "change": found.change,
                "slots": found.ask.slots,
                "context_per_slot": found.ask.context_per_slot,
                "kv_type": found.ask.kv_type,
                "total_bytes": found.total_bytes,
            }
            for found in fit.advice(case.need, ask, usable, case.limits, smaller)
        ],
    }


def _smaller_types(case: _Case) -> Sequence[str]:
    known = _SMALLER_TYPES[case.engine]
    return known[known.index(case.kv_type) + 1 :] if case.kv_type in known else known


def _unknown(request: SizingRequest) -> dict[str, Any]:
    names = ("kv_bytes", "compute_bytes", "total_bytes", "fits", "headroom_bytes")
    return {
        "kv_bytes_per_slot": None,
        "state_bytes_per_slot": None,
        "bytes_per_slot": None,
        "rows": [{"slots": slots, **dict.fromkeys(names)} for slots in request.slots],
        "max_slots": None,
        "max_context_per_slot": None,
        "advice": [],
    }
