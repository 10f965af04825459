"""May two curves be compared, and what must be said beside it?

`refuse`: the numbers answer different questions (another workload, another model), no outcome is
given. `label`: the outcome stands, with a sentence beside it that says what else differed; then it
is about that difference as much as about the engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal

from edgeagent.core.model import EngineIdentity, ModelIdentity

_HASH = 64
"""Characters of a SHA-256, of which a few are enough for people."""

_SAME_SIZE = 0.05
"""Formats count tied or padded weights differently; another model differs by more."""

TAINTED = frozenset(
    {
        "throttled",
        "memory_pressure",
        "power_mode_changed",
        "foreign_cpu",
        "foreign_gpu",
        "hot_start",
        "host_tainted",
        "canary_drift",
        "killed_by_guard",
        "clock_stepped",
        "client_bound",
    }
)
"""Findings that say that the box, not the engine, may have made the numbers."""

_REQUEST = {
    "shape": "shape of the load",
    "prefix_tokens": "length of the shared opening",
    "prompt_tokens": "prompt length",
    "output_tokens": "output length",
}
"""What a request is: curves of different requests are never compared."""

_TRAFFIC = {
    "seed": "prompts, by their seed",
    "prompts_sha256": "prompts, by the SHA-256 of their file",
    "endpoint": "endpoint",
    "requests": "number of requests",
    "seconds": "time measured",
    "warmup": "number of warm-up requests",
}
"""How requests are made up and how many there are: worth a label."""

_LIMITED = frozenset({"goodput_per_s", "good_fraction"})
"""Metrics that mean nothing without the SLO they refer to."""


@dataclass(frozen=True)
class Setup:
    """What a curve was measured with; None is not known."""

    name: str
    """As sentences call it."""
    kind: str | None = None
    version: str | None = None
    attached: bool | None = None
    model: ModelIdentity | None = None
    context_per_slot: int | None = None
    workload: Mapping[str, object] = field(default_factory=dict)
    """As in result.json; `slo` apart."""
    slo: Mapping[str, object] = field(default_factory=dict)
    host: str | None = None
    host_class: str | None = None
    power_mode: str | None = None
    agent_version: str | None = None
    cache_proved: bool | None = None
    """Whether the engine reported how many prompt tokens came from its cache; None: not asked."""
    findings: frozenset[str] = frozenset()
    """Codes of what should be doubted about its cells or its run."""


@dataclass(frozen=True)
class Doubt:
    """One reason why two curves must not be compared, or only with a label."""

    severity: Literal["refuse", "label"]
    code: str
    text: str
    metrics: frozenset[str] | None = None
    """The metrics it is about; None for all."""


def comparable(a: Setup, b: Setup) -> tuple[Doubt, ...]:
    """Everything that differs or is not known, refusals first; empty when nothing is in the way."""
    found = [doubt for look in _LOOKS for doubt in look(a, b)]
    return tuple(sorted(found, key=lambda doubt: doubt.severity == "label"))


def doubts_between(setups: Sequence[Setup]) -> dict[tuple[str, str], tuple[Doubt, ...]]:
    """What is in the way of each pair, by their names in the order given."""
    return {(a.name, b.name): comparable(a, b) for a, b in combinations(setups, 2)}


def setup_of(
    identity: EngineIdentity,
    context_per_slot: int | None,
    cache_proved: bool | None = None,  # noqa: FBT001  # because it has three values
) -> Setup:
    """An engine of the running sweep: workload, box and agent are the same for all of them."""
    return Setup(
        name=identity.id,
        kind=identity.kind,
        version=identity.version,
        attached=identity.attached,
        model=identity.model,
        context_per_slot=context_per_slot,
        cache_proved=cache_proved,
    )


# ------------------------------------------------------------------------------------- weights


def _models(a: Setup, b: Setup) -> Iterator[Doubt]:
    left, right = a.model, b.model
    if left is None or right is None:
        unknown = " and ".join(s.name for s in (a, b) if s.model is None)
        yield Doubt("label", "weights_unknown", f"which weights {unknown} ran with is not known")
        return
    if equal_weights(left, right):
        return
    if _another_model(left, right):
        yield Doubt(
            "refuse",
            "different_models",
            f"different models: {_model(a.name, left)}, {_model(b.name, right)}",
        )
    elif _known(left) and _known(right):
        yield Doubt(
            "label",
            "unequal_weights",
            f"not on equal weights: {_model(a.name, left)}, {_model(b.name, right)}",
        )
    else:
        yield Doubt(
            "label",
            "weights_unproved",
            f"equal weights are not proved: {_model(a.name, left)}, {_model(b.name, right)}",
        )


def equal_weights(left: ModelIdentity, right: ModelIdentity) -> bool:
    """Whether two models are known to have the same values: the same file, or the same digest."""
    return any(
        one is not None and one == other
        for one, other in (
            (left.sha256, right.sha256),
            (left.weights_digest, right.weights_digest),
        )
    )


def _another_model(left: ModelIdentity, right: ModelIdentity) -> bool:
    if left.parameters and right.parameters:
        larger = max(left.parameters, right.parameters)
        return abs(left.parameters - right.parameters) > _SAME_SIZE * larger
    # Architectures are named by the format, so they say something within one format only.
    same_format = left.format is not None and left.format == right.format
    named = left.architecture is not None and right.architecture is not None
    return same_format and named and left.architecture != right.architecture


def _known(model: ModelIdentity) -> bool:
    return model.sha256 is not None or model.weights_digest is not None


def _model(name: str, model: ModelIdentity) -> str:
    words = [model.id, model.quantization, model.format]
    return f"{name} with {', '.join(word for word in words if word)}"


# ------------------------------------------------------------------------------------- the rest


def _requests(a: Setup, b: Setup) -> Iterator[Doubt]:
    for key, words in _REQUEST.items():
        left, right = a.workload.get(key), b.workload.get(key)
        if left != right:
            yield Doubt("refuse", "different_workloads", _differ(words, a, b, (left, right)))
    for key, words in _TRAFFIC.items():
        left, right = a.workload.get(key), b.workload.get(key)
        if left != right:
            yield Doubt("label", "different_traffic", _differ(words, a, b, (left, right)))


def _limits(a: Setup, b: Setup) -> Iterator[Doubt]:
    if dict(a.slo) != dict(b.slo):
        text = _differ("SLO", a, b, (_slo(a.slo), _slo(b.slo)))
        yield Doubt("refuse", "different_slo", text, metrics=_LIMITED)


def _slo(limits: Mapping[str, object]) -> str:
    parts = [f"{name} {value}" for name, value in sorted(limits.items()) if value is not None]
    return ", ".join(parts) or "none"


def _contexts(a: Setup, b: Setup) -> Iterator[Doubt]:
    left, right = a.context_per_slot, b.context_per_slot
    if left != right and left is not None and right is not None:
        yield Doubt("label", "different_contexts", _differ("context per slot", a, b, (left, right)))


def _boxes(a: Setup, b: Setup) -> Iterator[Doubt]:
    for code, words, left, right in (
        ("different_box_classes", "class of the box", a.host_class, b.host_class),
        ("different_boxes", "box", a.host, b.host),
        ("different_power_modes", "power mode", a.power_mode, b.power_mode),
        ("different_agents", "version of edgeagent", a.agent_version, b.agent_version),
    ):
        if left != right:
            yield Doubt("label", code, _differ(words, a, b, (left, right)))


def _engines(a: Setup, b: Setup) -> Iterator[Doubt]:
    attached = [setup.name for setup in (a, b) if setup.attached]
    if attached:
        yield Doubt(
            "label",
            "engine_attached",
            f"{' and '.join(attached)}: started by somebody else, not restarted between repeats, "
            "so its repeats are alike",
        )
    unproved = [setup.name for setup in (a, b) if setup.cache_proved is False]
    if unproved:
        yield Doubt(
            "label",
            "cache_unproved",
            f"{' and '.join(unproved)}: no proof of what came from the prefix cache",
        )


def _taints(a: Setup, b: Setup) -> Iterator[Doubt]:
    for setup in (a, b):
        codes = sorted(setup.findings & TAINTED)
        if codes:
            yield Doubt(
                "label", "tainted", f"{setup.name}: the box was not quiet ({', '.join(codes)})"
            )


_LOOKS: tuple[Callable[[Setup, Setup], Iterable[Doubt]], ...] = (
    _models,
    _requests,
    _limits,
    _contexts,
    _boxes,
    _engines,
    _taints,
)


def _differ(what: str, a: Setup, b: Setup, values: tuple[object, object]) -> str:
    left, right = map(_word, values)
    return f"different {what}: {a.name} {left}, {b.name} {right}"


def _word(value: object) -> str:
    text = "unknown" if value is None else str(value)
    return f"{text[:12]}…" if len(text) == _HASH else text
