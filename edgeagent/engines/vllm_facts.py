"""What does a running vLLM say of itself, and is it what was asked for?

Its settings come from /server_info where the development routes are on (ours are), else as far as
/v1/models and the labels of `cache_config_info` in /metrics go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from edgeagent.core.kv_model import CacheShape
from edgeagent.core.model import EngineConfig, ServerFacts
from edgeagent.engines import prometheus
from edgeagent.engines.prometheus import Metrics
from edgeagent.engines.rest import Rest
from edgeagent.engines.vllm_flags import PoolPlan, with_block
from edgeagent.errors import DeviceMismatchError, EngineError, UnreachableError

_OK = 200

_COUNTERS: Mapping[str, str] = {
    "prompt_tokens": "vllm:prompt_tokens_total",
    "cached_prompt_tokens": "vllm:prefix_cache_hits_total",
    "output_tokens": "vllm:generation_tokens_total",
    "draft_tokens": "vllm:spec_decode_num_draft_tokens_total",
    "draft_accepted": "vllm:spec_decode_num_accepted_tokens_total",
    "drafts": "vllm:spec_decode_num_drafts_total",
    "preemptions": "vllm:num_preemptions_total",
    "requests_running": "vllm:num_requests_running",
    "requests_waiting": "vllm:num_requests_waiting",
}
_CONFIG = "vllm:cache_config_info"
_USAGE = "vllm:kv_cache_usage_perc"


@dataclass(frozen=True)
class PoolSeen:
    """The pool that a vLLM has; None for what it does not say."""

    blocks: int | None = None
    """The null block, which holds nothing, included."""
    block_tokens: int | None = None
    cache_type: str | None = None
    prefix_cache: bool | None = None


def counters(text: str) -> dict[str, float]:
    """Our names for vLLM's counters, from the text of /metrics; without those it does not have.

    `kv_blocks` leaves the null block out. `kv_blocks_used` is exact: usage is told as a share of
    just these blocks. Blocks that only cache a finished prompt are not in use.
    """
    page = prometheus.parse(text)
    found = {ours: page.total(theirs) for ours, theirs in _COUNTERS.items()}
    usable, used = _blocks(page)
    found |= {"kv_blocks": usable, "kv_blocks_used": used}
    return {name: value for name, value in found.items() if value is not None}


def pool_seen(page: Metrics) -> PoolSeen:
    """The pool by the labels of /metrics, of the first engine where there are several."""
    series = page.of(_CONFIG)
    if not series:
        return PoolSeen()
    labels = series[0].labels
    return PoolSeen(
        blocks=_whole(labels.get("num_gpu_blocks")),
        block_tokens=_whole(labels.get("block_size")),
        cache_type=labels.get("cache_dtype"),
        prefix_cache={"True": True, "False": False}.get(labels.get("enable_prefix_caching", "")),
    )


def _blocks(page: Metrics) -> tuple[int | None, int | None]:
    """Usable blocks and those in use, over all engines behind the server."""
    usable = {
        sample.labels.get("engine"): blocks - 1
        for sample in page.of(_CONFIG)
        if (blocks := _whole(sample.labels.get("num_gpu_blocks")))
    }
    if not usable:
        return None, None
    used = 0
    for sample in page.of(_USAGE):
        share, of = sample.value, usable.get(sample.labels.get("engine"))
        if of is None or not 0 <= share <= 1:
            return sum(usable.values()), None
        used += round(share * of)
    return sum(usable.values()), used if page.of(_USAGE) else None


def _whole(text: object) -> int | None:
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() else None


# ---------------------------------------------------------------------------------- read back


async def facts_of(rest: Rest) -> ServerFacts:
    """What a running vLLM says. Raises UnreachableError."""
    model = await _model(rest)
    version = (await rest.get("/version")).mapping().get("version")
    answer = await rest.get("/metrics")
    seen = pool_seen(prometheus.parse(answer.text)) if answer.status == _OK else PoolSeen()
    settings = await _settings(rest)
    length, name = model.get("max_model_len"), model.get("id")
    speculative = _part(settings, "speculative_config")
    return ServerFacts(
        slots=_whole(_part(settings, "scheduler_config").get("max_num_seqs")),
        context_per_slot=length if isinstance(length, int) else None,
        version=version if isinstance(version, str) else None,
        model=name if isinstance(name, str) else None,
        speculative=bool(speculative) if settings else None,
        prefix_cache=seen.prefix_cache,
        details=_details(seen, settings),
    )


async def _model(rest: Rest) -> Mapping[str, object]:
    """The first model of /v1/models; empty when there is no such list."""
    listed = (await rest.get("/v1/models")).mapping().get("data")
    first = listed[0] if isinstance(listed, list) and listed else None
    return first if isinstance(first, dict) else {}


async def _settings(rest: Rest) -> Mapping[str, object]:
    """All settings of the engine; empty without development routes."""
    answer = await rest.get("/server_info?config_format=json")
    return _part(answer.mapping(), "vllm_config")


def _part(settings: Mapping[str, object], name: str) -> Mapping[str, object]:
    found = settings.get(name)
    return found if isinstance(found, dict) else {}


def _details(seen: PoolSeen, settings: Mapping[str, object]) -> dict[str, object]:
    scheduler, model = _part(settings, "scheduler_config"), _part(settings, "model_config")
    found = {
        "num_gpu_blocks": seen.blocks,
        "block_size": seen.block_tokens,
        "cache_dtype": seen.cache_type,
        "dtype": _text(model.get("dtype")),
        "enforce_eager": model.get("enforce_eager"),
        "quantization": model.get("quantization"),
        "max_num_batched_tokens": scheduler.get("max_num_batched_tokens"),
        "async_scheduling": scheduler.get("async_scheduling"),
        "device": _part(settings, "device_config").get("device"),
        "speculative_method": _part(settings, "speculative_config").get("method"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _text(value: object) -> str | None:
    return value.removeprefix("torch.") if isinstance(value, str) else None


# ----------------------------------------------------------------------------------- believed


def with_pool(facts: ServerFacts, plan: PoolPlan | None, shape: CacheShape | None) -> ServerFacts:
    """`facts` and what is known of the pool's bytes.

    Details: `kv_block_bytes` and `kv_pool_bytes` of the block size that it really has,
    `kv_blocks_needed` by all slots at full length, and as `pool_differences` what is not as
    planned.
    """
    blocks, size = facts.details.get("num_gpu_blocks"), facts.details.get("block_size")
    if plan is None or shape is None or not isinstance(blocks, int) or not isinstance(size, int):
        return facts
    differences = []
    if size != plan.pool.block_tokens:
        differences.append(f"its blocks hold {size} tokens, {plan.pool.block_tokens} were expected")
        plan = with_block(plan, shape, size)
    if blocks < plan.blocks:
        differences.append(
            f"its pool has {blocks} blocks and {plan.layout.sequences} slots at full length need "
            f"{plan.blocks}: requests may be set back"
        )
    elif plan.pinned and not differences and blocks > plan.blocks:
        differences.append(f"its pool has {blocks} blocks, {plan.blocks} were asked for")
    return replace(
        facts,
        details={
            **facts.details,
            "kv_block_bytes": plan.pool.bytes_per_block,
            "kv_pool_bytes": blocks * plan.pool.bytes_per_block,
            "kv_blocks_needed": plan.blocks,
            "pool_differences": differences,
        },
    )


def believed(config: EngineConfig, facts: ServerFacts) -> ServerFacts:
    """`facts` with what differs from what was asked; EngineError when that forbids measuring.

    Fewer slots or a smaller context would measure another question; so would a model on another
    device than the one that was asked for (DeviceMismatchError).
    """
    _refuse_other_device(config, facts)
    wrong: list[str] = []
    if facts.slots is not None and facts.slots != config.slots:
        wrong.append(f"asked for {config.slots} sequences at a time, it has {facts.slots}")
    context = facts.context_per_slot
    if context is not None and context < config.context_per_slot:
        wrong.append(f"asked for {config.context_per_slot} tokens per sequence, it has {context}")
    if wrong:
        raise EngineError(
            f"vLLM does not run as asked ({'; '.join(wrong)}): correct --slots, --context or the "
            "engine's own arguments"
        )
    details = dict(facts.details)
    pool = details.pop("pool_differences", [])
    differences = list(pool) if isinstance(pool, list) else []
    if facts.prefix_cache is not None and facts.prefix_cache != (config.prefix_cache == "on"):
        found = "on" if facts.prefix_cache else "off"
        differences.append(f"asked for prefix caching {config.prefix_cache}, it is {found}")
    if config.speculation != "off" and facts.speculative is False:
        differences.append(f"asked for speculation {config.speculation}, it does not speculate")
    return replace(facts, details={**details, "differences": differences})


def _refuse_other_device(config: EngineConfig, facts: ServerFacts) -> None:
    device = facts.details.get("device")
    if config.device == "auto" or device is None or (device == "cpu") == (config.device == "cpu"):
        return
    asked, has = ("GPU", "the CPU") if config.device == "gpu" else ("CPU", "a GPU")
    raise DeviceMismatchError(
        f"device_mismatch: vLLM is up, but the {asked} was asked for and it computes on {has}: "
        "which one is decided when vLLM is built, so give --binary of the other build, check the "
        "driver, or correct --device"
    )


async def read_counters(rest: Rest) -> Mapping[str, float]:
    """Counters from /metrics; empty without that endpoint."""
    try:
        answer = await rest.get("/metrics")
    except UnreachableError:
        return {}
    return counters(answer.text) if answer.status == _OK else {}


async def tokens_of(rest: Rest, model: str, text: str) -> tuple[int, ...] | None:
    """Token ids of `text` without special tokens; None when it does not say."""
    body = {"model": model, "prompt": text, "add_special_tokens": False}
    tokens = (await rest.post("/tokenize", body)).mapping().get("tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        return None
    return tuple(tokens) or None


async def reset_cache(rest: Rest) -> bool:
    """Forget cached prefixes; False while a request runs or where it is not offered."""
    try:
        answer = await rest.post("/reset_prefix_cache", {})
    except UnreachableError:
        return False
    # Status 200 comes either way.
    return answer.status == _OK and answer.mapping().get("success") is True
