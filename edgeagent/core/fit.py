"""How many slots of which context fit into a budget, and what could be done if they do not?

Everything is asked of one function that says what a launch takes, so it holds for every engine.
More slots or more context never take less, so the limits are found by bisection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from edgeagent.errors import UsageError

CONTEXT_STEP = 256
"""Contexts are offered in whole steps of cells."""

LONGEST_CONTEXT = 1 << 20
"""Where the model does not say for how many tokens it was trained."""

_LEAST_RESERVE_BYTES = 512 << 20
_RESERVE_DIVISOR = 20


@dataclass(frozen=True)
class Ask:
    """A launch that somebody would like."""

    slots: int
    context_per_slot: int
    kv_type: str


Need = Callable[[Ask], int]
"""Bytes that a launch takes. Raises UsageError where the engine would refuse the cache type."""


@dataclass(frozen=True)
class Budget:
    """Memory that may be used, and how much of it stays free."""

    total_bytes: int
    reserve_bytes: int

    @property
    def usable_bytes(self) -> int:
        """What a launch may take; 0 when the reserve is all."""
        return max(0, self.total_bytes - self.reserve_bytes)


@dataclass(frozen=True)
class Limits:
    """Beyond these nothing is offered."""

    slots: int
    context_per_slot: int


@dataclass(frozen=True)
class Advice:
    """A change after which the launch fits; for `weights` nothing does."""

    change: Literal["slots", "kv_type", "context", "slots_and_context", "weights"]
    ask: Ask
    total_bytes: int
    """What it would take; for `weights`, what the smallest launch takes."""


def default_reserve_bytes(total_bytes: int) -> int:
    """5 % of a budget, at least 512 MiB.

    It stands for what has no formula: compute buffers (tens of MiB for a small model, some
    hundred for a large vocabulary or batch), a GPU's context, the allocator's slack, and the rest
    of a box that must go on running.
    """
    return max(total_bytes // _RESERVE_DIVISOR, _LEAST_RESERVE_BYTES)


def max_slots(need: Need, ask: Ask, usable_bytes: int, limits: Limits) -> int:
    """The largest number of slots of this context that fits; 0 when not even one does."""
    return _largest(lambda slots: need(replace(ask, slots=slots)) <= usable_bytes, limits.slots)


def max_context(need: Need, ask: Ask, usable_bytes: int, limits: Limits) -> int:
    """The largest context that so many slots can have, in whole steps; 0 when none fits."""

    def fits(context: int) -> bool:
        return need(replace(ask, context_per_slot=context)) <= usable_bytes

    if fits(limits.context_per_slot):
        return limits.context_per_slot
    steps = limits.context_per_slot // CONTEXT_STEP
    return _largest(lambda count: fits(count * CONTEXT_STEP), steps) * CONTEXT_STEP


def advice(
    need: Need, ask: Ask, usable_bytes: int, limits: Limits, smaller_types: Sequence[str]
) -> tuple[Advice, ...]:
    """What could be changed so that `ask` fits, each alone first; empty when it fits."""
    if need(ask) <= usable_bytes:
        return ()
    changes: list[tuple[Literal["slots", "kv_type", "context"], Ask]] = []
    slots = max_slots(need, ask, usable_bytes, limits)
    if slots:
        changes.append(("slots", replace(ask, slots=slots)))
    for kv_type in smaller_types:
        packed = replace(ask, kv_type=kv_type)
        if _needs_at_most(need, packed, usable_bytes):
            changes.append(("kv_type", packed))
            break
    context = max_context(need, ask, usable_bytes, limits)
    if context:
        changes.append(("context", replace(ask, context_per_slot=context)))
    found = tuple(Advice(change, other, need(other)) for change, other in changes)
    return found or (_both(need, ask, usable_bytes, limits),)


def _both(need: Need, ask: Ask, usable_bytes: int, limits: Limits) -> Advice:
    """One slot with the largest context that fits, or that nothing fits beside the weights."""
    one = replace(ask, slots=1)
    context = max_context(need, one, usable_bytes, limits)
    if context:
        other = replace(one, context_per_slot=context)
        return Advice("slots_and_context", other, need(other))
    smallest = replace(one, context_per_slot=CONTEXT_STEP)
    return Advice("weights", smallest, need(smallest))


def _needs_at_most(need: Need, ask: Ask, usable_bytes: int) -> bool:
    try:
        return need(ask) <= usable_bytes
    except UsageError:
        return False  # the engine refuses this type for this model's heads


def _largest(holds: Callable[[int], bool], most: int) -> int:
    """The largest number up to `most` for which it holds, given that it holds for all below."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low
