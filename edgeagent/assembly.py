"""Which parts does this sweep need, and what can be known before anything is started?"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from edgeagent.config import Access, SweepRequest, with_kind
from edgeagent.core import kv, kv_config, kv_gguf, kv_vllm
from edgeagent.core.kv_model import CacheShape
from edgeagent.core.memory import ExpectedSlot
from edgeagent.core.model import EngineConfig, EngineIdentity, EngineSpec, Plan, SweepSpec
from edgeagent.core.plan import configurations, expand
from edgeagent.engines import attached, fake, llamacpp, vllm, vllm_flags
from edgeagent.errors import UsageError
from edgeagent.models import gguf, hashing, hf
from edgeagent.ports import Engine


@dataclass(frozen=True)
class Parts:
    """A sweep that is ready to run."""

    request: SweepRequest
    """With the kind of attached servers found out."""
    plan: Plan
    engines: Mapping[str, Engine]
    memory: Mapping[EngineConfig, kv.MemoryPrediction]
    """What arithmetic expects of each configuration; without those it cannot tell."""


def _unknown(config: EngineConfig) -> kv.MemoryPrediction | None:  # noqa: ARG001  # because it stands in for arithmetic
    return None


@dataclass(frozen=True)
class _Part:
    engine: Engine
    spec: EngineSpec
    predict: Callable[[EngineConfig], kv.MemoryPrediction | None] = _unknown
    """Arithmetic's expectation of a launch; None where it cannot tell."""


async def assemble(request: SweepRequest) -> Parts:
    """Look at binaries, models and servers; start nothing. Raises EdgeAgentError."""
    parts = {
        spec.id: await _part(spec, request.access.get(spec.id, Access()))
        for spec in request.spec.engines
    }
    spec = request.spec
    for engine_id, part in parts.items():
        spec = with_kind(spec, engine_id, part.spec.kind)
    _fits_model(spec, parts)
    identities = {
        config: parts[config.engine.id].engine.identify(config) for config in configurations(spec)
    }
    return Parts(
        request=replace(request, spec=spec),
        plan=expand(spec, identities),
        engines={engine_id: part.engine for engine_id, part in parts.items()},
        memory=_memory(identities, parts),
    )


async def _part(spec: EngineSpec, access: Access) -> _Part:
    if spec.attached:
        return await _attached(spec, access)
    if spec.kind == "fake":
        return _Part(fake.FakeEngine(spec), spec)
    if spec.kind == "vllm":
        return _vllm(spec)
    if spec.kind != "llamacpp":
        raise UsageError(
            f"engine {spec.id} of kind {spec.kind} cannot be started by this version: start it "
            "yourself and attach with --url"
        )
    return _llamacpp(spec)


def _llamacpp(spec: EngineSpec) -> _Part:
    path = Path(spec.model or "")
    facts = gguf.read_model(path)
    shape = kv_gguf.from_gguf(facts.metadata).shape
    per_token = kv.token_bytes(shape, spec.kv_type) if shape else None
    identity = gguf.identify(path, per_token, _hash)
    copies = None if shape is None else shape.rewinds_by_copies
    engine = llamacpp.LlamaCppEngine(spec, llamacpp.LlamaCppModel(identity, copies), _hash)
    if shape is None:
        return _Part(engine, spec)
    model = kv.ModelMemory(shape, identity.size_bytes, facts.vocabulary)

    def predict(config: EngineConfig) -> kv.MemoryPrediction | None:
        memory = _with_draft(model, config.speculation)
        if memory is None:
            return None
        layout = kv.CacheLayout(config.slots, config.context_per_slot, config.engine.kv_type)
        return kv.predict_llamacpp(memory, layout)

    return _Part(engine, spec, predict)


def _vllm(spec: EngineSpec) -> _Part:
    path = Path(spec.model or "")
    facts = hf.read(path)
    found = kv_config.from_config(facts.config)
    cache = vllm_flags.cache_type(spec.kv_type)
    per_token = None
    if found.shape is not None:
        per_token = kv_vllm.token_bytes(found.shape, cache, facts.element_type)
    model = vllm_flags.VllmModel(
        identity=hf.identify(path, per_token, _hash),
        shape=found.shape,
        reason=found.reason,
        element_type=facts.element_type,
        draft=_draft_shape,
    )
    place = vllm_flags.Place.here()

    def predict(config: EngineConfig) -> kv.MemoryPrediction | None:
        plan, _ = vllm_flags.plan_pool(config, model, place)
        if plan is None or model.shape is None:
            return None
        memory = kv.ModelMemory(model.shape, facts.weights_bytes, facts.vocabulary)
        need = kv_vllm.predict_vllm(memory, plan.pool, plan.layout)
        draft = _draft_bytes(config.speculation)
        return replace(need, draft_bytes=draft, total_bytes=need.total_bytes + draft)

    return _Part(vllm.VllmEngine(spec, model, _hash, place=place), spec, predict)


def _draft_shape(path: str) -> CacheShape | None:
    return kv_config.from_config(hf.read(Path(path)).config).shape


def _draft_bytes(speculation: str) -> int:
    """Weights of the model that drafts; its cache is part of the pool."""
    kind, _, path = speculation.partition(":")
    return (hf.read(Path(path)).weights_bytes or 0) if kind == "draft" else 0


async def _attached(spec: EngineSpec, access: Access) -> _Part:
    key = access.api_key()
    # "openai" stands for "whatever answers" until somebody has looked.
    asked = None if spec.kind == "openai" else spec.kind
    kind, facts = await attached.detect(spec, key, access.cacert, asked=asked)
    found = replace(spec, kind=kind)
    return _Part(attached.AttachedEngine(found, facts, key, access.cacert), found)


def _hash(path: Path) -> str:
    return hashing.sha256(path, hashing.cache_file(dict(os.environ)))


def _fits_model(spec: SweepSpec, parts: Mapping[str, _Part]) -> None:
    """Raises UsageError when a slot would be longer than the model was trained for."""
    for config in configurations(spec):
        part = parts[config.engine.id]
        identity = part.engine.identify(config).model
        limit = identity.context_length if identity else None
        if limit is not None and config.context_per_slot > limit:
            shorten = "--context" if spec.context else "--prefix-tokens or --output-tokens"
            raise UsageError(
                f"a slot of {config.context_per_slot} tokens was asked for and "
                f"{config.engine.model} was trained for {limit}: give a smaller {shorten}"
            )


def _memory(
    identities: Mapping[EngineConfig, EngineIdentity], parts: Mapping[str, _Part]
) -> dict[EngineConfig, kv.MemoryPrediction]:
    predictions = {}
    for config, identity in identities.items():
        need = parts[config.engine.id].predict(config)
        if need is not None and identity.model is not None:
            predictions[config] = need
    return predictions


def _with_draft(memory: kv.ModelMemory, speculation: str) -> kv.ModelMemory | None:
    """The model with the one that drafts for it; None when that cannot be computed."""
    kind, _, path = speculation.partition(":")
    if kind != "draft":
        return memory
    facts = gguf.read_model(Path(path))
    shape = kv_gguf.from_gguf(facts.metadata).shape
    if shape is None:
        return None
    draft = kv.ModelMemory(shape, facts.size_bytes, facts.vocabulary)
    return replace(memory, draft=draft)


def extend(parts: Parts, levels: tuple[tuple[str, int], ...]) -> Parts:
    """The same sweep with more levels to measure in search of the capacity."""
    spec = replace(parts.request.spec, capacity_levels=levels)
    identities = {
        config: parts.engines[config.engine.id].identify(config) for config in configurations(spec)
    }
    request = replace(parts.request, spec=spec)
    return replace(parts, request=request, plan=expand(spec, identities))


def expected_slots(
    parts: Parts, most_slots: Callable[[EngineConfig, kv.MemoryPrediction], int | None]
) -> tuple[ExpectedSlot, ...]:
    """What arithmetic expects one more slot to cost, for every engine and kind of speculation.

    `most_slots` says how many would fit on this box.
    """
    found: dict[tuple[str, str], ExpectedSlot] = {}
    for config, need in parts.memory.items():
        host = (need.output_bytes or 0) + need.metadata_bytes
        on_host = host / config.slots
        key = (config.engine.id, config.speculation)
        found[key] = ExpectedSlot(
            *key, need.bytes_per_slot - on_host, on_host, most_slots(config, need)
        )
    return tuple(found.values())
