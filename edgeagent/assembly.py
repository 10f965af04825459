"""Which parts does this sweep need, and what can be known before anything is started?"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from edgeagent.config import Access, SweepRequest, with_kind
from edgeagent.core import kv
from edgeagent.core.model import EngineConfig, EngineIdentity, EngineSpec, Plan, SweepSpec
from edgeagent.core.plan import configurations, expand
from edgeagent.engines import attached, fake, llamacpp
from edgeagent.errors import UsageError
from edgeagent.models import gguf, hashing
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


@dataclass(frozen=True)
class _Part:
    engine: Engine
    spec: EngineSpec
    attention: kv.Attention | None = None
    vocabulary: int | None = None


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
    if spec.kind != "llamacpp":
        raise UsageError(
            f"engine {spec.id} of kind {spec.kind} cannot be started by this version: start it "
            "yourself and attach with --url"
        )
    path = Path(spec.model or "")
    facts = gguf.read(path)
    found = kv.from_gguf(facts.metadata)
    attention = found.attention
    per_token = kv.token_bytes(attention, spec.kv_type) if attention else None
    identity = gguf.identify(path, per_token, _hash)
    window = attention.window is not None if attention else None
    engine = llamacpp.LlamaCppEngine(spec, llamacpp.LlamaCppModel(identity, window), _hash)
    return _Part(engine, spec, attention, facts.vocabulary)


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
            raise UsageError(
                f"a request needs {config.context_per_slot} tokens and {config.engine.model} was "
                f"trained for {limit}: shorten --prefix-tokens, --prompt-tokens or --output-tokens"
            )


def _memory(
    identities: Mapping[EngineConfig, EngineIdentity], parts: Mapping[str, _Part]
) -> dict[EngineConfig, kv.MemoryPrediction]:
    predictions = {}
    for config, identity in identities.items():
        part, model = parts[config.engine.id], identity.model
        if part.attention is not None and model is not None:
            layout = kv.CacheLayout(
                slots=config.slots,
                context_per_slot=config.context_per_slot,
                kv_type=config.engine.kv_type,
            )
            predictions[config] = kv.predict_llamacpp(
                part.attention, layout, model.size_bytes, part.vocabulary
            )
    return predictions
