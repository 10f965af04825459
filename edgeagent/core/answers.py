"""What are the buyer's seven questions, and what does a run answer to each?

`text` is one or two sentences that a buyer can read alone; `details` are the further sentences for
those who argue: every other setting, every level, every metric.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeagent.core.comparison import Comparison
from edgeagent.core.interference import Interference
from edgeagent.core.interference import sentence as interference_text
from edgeagent.core.knee import Knee
from edgeagent.core.memory import SlotCost
from edgeagent.core.model import EngineIdentity, Plan

if TYPE_CHECKING:
    from edgeagent.core.result import Interval, Level, Measured

QUESTIONS = {
    "1": "Which engine, version, model and quantization were measured?",
    "2": "Up to which concurrency does the throughput hold, and what does the first token do?",
    "3": "Do the requests share a long opening?",
    "4": "Was prefix reuse really on?",
    "5": "What does each further simultaneous request cost in memory?",
    "6": "What happens to a running fan-out when a second operator arrives?",
    "7": "Where do the engines cross?",
}

METRIC_WORDS = {
    "output_tokens_per_s": "output tokens/s",
    "ttft_s.p50": "time to first token (median)",
    "ttft_s.p95": "time to first token (p95)",
    "goodput_per_s": "requests/s within the SLO",
    "energy.per_output_token_j": "energy per output token",
}
"""How people call what curves are compared by."""

_MIB = 1 << 20
_WHERE = {"gpu": "GPU memory", "host": "host memory", "unified": "shared memory"}
_HEADLINES = ("output_tokens_per_s", "ttft_s.p95")
"""The comparisons that stand in the answer itself; the others are details."""


@dataclass(frozen=True)
class Answer:
    """The answer to one of the buyer's questions, and the cells behind it."""

    text: str
    cells: tuple[str, ...] = ()
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """All that the answers are taken from."""

    plan: Plan
    measured: Measured
    levels: Sequence[Level]
    knees: Sequence[Knee]
    comparisons: Sequence[Comparison]

    @property
    def ids(self) -> tuple[str, ...]:
        """The cells that gave something."""
        return tuple(one.cell.cell_id for one in self.measured.cells if one.status != "failed")


def answers(seen: Evidence) -> dict[str, Answer]:
    """The seven questions, answered as far as this run goes."""
    return {
        "1": _what(seen),
        "2": _where_it_holds(seen),
        "3": _shared_opening(seen),
        "4": _prefix_reuse(seen),
        "5": _memory(seen.plan, seen.measured.memory),
        "6": _second_operator(seen.measured.interference),
        "7": _crossover(seen),
    }


# -------------------------------------------------------------------------------------- 1: what


def _what(seen: Evidence) -> Answer:
    identities = list({found.id: found for found in seen.plan.identities}.values())
    weights = {_weights(found) for found in identities}
    engines = [f"{one.kind} ({one.version or 'version unknown'})" for one in identities]
    if len(weights) == 1 and len(identities) > 1:
        text = f"{' and '.join(engines)}, all with {weights.pop()}."
    else:
        pairs = zip(engines, identities, strict=True)
        text = "; ".join(f"{engine} with {_weights(one)}" for engine, one in pairs) + "."
    return Answer(text, seen.ids, tuple(_hash(one) for one in identities))


def _weights(identity: EngineIdentity) -> str:
    model = identity.model
    if model is None:
        return "unknown weights"
    return ", ".join(word for word in (model.id, model.quantization) if word)


def _hash(identity: EngineIdentity) -> str:
    model = identity.model
    program = identity.binary_sha256
    said = f"program SHA-256 {program[:12]}…" if program else "its program was not seen"
    if model is None or not model.sha256:
        return f"{identity.id}: {said}; the hash of its weights is not known."
    return f"{identity.id}: {said}; weights SHA-256 {model.sha256[:12]}…."


# --------------------------------------------------------------------------- 2: where it holds


def _where_it_holds(seen: Evidence) -> Answer:
    rows = [text for level in seen.levels if (text := _level(level)) is not None]
    if not rows:
        return Answer("not measured: no cell gave a rate, see the findings")
    known = [found for found in seen.knees if found.text and _has_levels(found, seen.levels)]
    first = _first_settings(seen.knees)
    capacities = [found.text for found in seen.measured.capacity if found.text]
    said = [
        text
        for found in first
        for text in (found.text if found in known else None, _range(found, seen.levels))
        if text
    ]
    others = [found.text for found in known if found not in first]
    text = _sentences([*capacities, *said]) if said or capacities else _sentences(rows[:1])
    return Answer(text, seen.ids, (*others, *rows))


def _has_levels(found: Knee, levels: Sequence[Level]) -> bool:
    """Whether there is a curve at all: of one level nobody asks where it stops growing."""
    return len(_levels_of(found, levels)) > 1


def _levels_of(found: Knee, levels: Sequence[Level]) -> list[Level]:
    return sorted(
        (
            level
            for level in levels
            if (level.engine, level.prefix_cache, level.speculation)
            == (found.engine, found.prefix_cache, found.speculation)
            and level.metrics["output_tokens_per_s"].mean is not None
        ),
        key=lambda level: level.concurrency,
    )


def _range(found: Knee, levels: Sequence[Level]) -> str | None:
    """What throughput and first token were at the least and at the most at once."""
    own = _levels_of(found, levels)
    if not own:
        return None
    low, high = own[0], own[-1]
    if low is high:
        return f"{found.engine}, {low.concurrency} at once: {_rate(low)}{_first_token(low)}"
    first, last = (level.metrics["output_tokens_per_s"].mean for level in (low, high))
    text = (
        f"{found.engine}, {low.concurrency} to {high.concurrency} at once: {first:.1f} to "
        f"{last:.1f} output tokens/s"
    )
    waits = [level.metrics["ttft_s.p50"].mean for level in (low, high)]
    if None in waits:
        return text
    return f"{text}, first token after {waits[0]:.2f} to {waits[1]:.2f} s (median)"


def _rate(level: Level) -> str:
    return _interval(level.metrics["output_tokens_per_s"], 1, " output tokens/s")


def _first_token(level: Level) -> str:
    to_first = level.metrics["ttft_s.p50"]
    if to_first.mean is None:
        return ""
    return f", median first token after {_interval(to_first, 2, ' s')}"


def _first_settings(knees: Sequence[Knee]) -> list[Knee]:
    """Each engine's setting as it is bought: prefix reuse on where measured, no speculation."""
    chosen: dict[str, Knee] = {}
    for found in knees:
        held = chosen.get(found.engine)
        if held is None or _plainness(found) > _plainness(held):
            chosen[found.engine] = found
    return list(chosen.values())


def _plainness(found: Knee | Comparison) -> tuple[bool, bool]:
    return (found.speculation in ("off", None), found.prefix_cache == "on")


def _level(level: Level) -> str | None:
    if level.metrics["output_tokens_per_s"].mean is None:
        return None
    extra = "" if level.speculation == "off" else f", speculation {level.speculation}"
    return (
        f"{level.engine} with {level.concurrency} at once, prefix cache {level.prefix_cache}"
        f"{extra}: {_rate(level)}{_first_token(level)}"
    )


def _interval(value: Interval, digits: int, unit: str) -> str:
    """A mean with its 95 % interval where there is one."""
    text = f"{value.mean:.{digits}f}{unit}"
    if value.ci95 is None:
        return text
    low, high = value.ci95
    return f"{text} ({low:.{digits}f} to {high:.{digits}f}, 95 %)"


# ------------------------------------------------------------------- 3 and 4: openings and reuse


def _shared_opening(seen: Evidence) -> Answer:
    work, ids = seen.plan.spec.workload, seen.ids
    if work.prompts:
        return Answer(
            "the requests are the operator's own traffic; what they share is not known", ids
        )
    if not work.prefix_tokens:
        return Answer("no: every request was different from its first token on.", ids)
    total = work.prefix_tokens + work.prompt_tokens
    if "on" not in seen.plan.spec.prefix_cache:
        return Answer(
            f"no: openings of {work.prefix_tokens} tokens were made different on purpose, since "
            "the prefix cache was to be off.",
            ids,
        )
    return Answer(
        f"yes, where the prefix cache is on: {work.prefix_tokens} of {total} prompt tokens are the "
        "same in all requests of a cell; where it is off, every opening is different.",
        ids,
    )


def _prefix_reuse(seen: Evidence) -> Answer:
    texts, behind = [], []
    for setting in ("off", "on"):
        known = [
            (result.cell.cell_id, result.metrics.cached_prompt_fraction)
            for result in seen.measured.cells
            if result.cell.config.prefix_cache == setting
            and result.metrics.cached_prompt_fraction is not None
        ]
        if known:
            shares = [share for _, share in known]
            texts.append(f"with the cache {setting}, {_shares(min(shares), max(shares))}")
            behind += [cell_id for cell_id, _ in known]
    if not texts:
        return Answer("not proved: the engine does not report cached tokens")
    return Answer(
        "proved by the engine's own counts of prompt tokens that came from its cache: "
        f"{'; '.join(texts)}.",
        tuple(behind),
    )


def _shares(low: float, high: float) -> str:
    least, most = f"{low:.0%}", f"{high:.0%}"
    return least if least == most else f"{least} to {most}"


# ------------------------------------------------------------------------------------ 5: memory


def _memory(plan: Plan, costs: Sequence[SlotCost]) -> Answer:
    known = [cost for cost in costs if cost.measured_bytes_per_slot is not None]
    if known:
        return Answer(
            _sentences(_slot(cost) for cost in known),
            tuple(cell.cell_id for cell in plan.memory),
            tuple(text for cost in known if (text := _beside(cost)) is not None),
        )
    reasons = {cost.reason for cost in costs if cost.reason}
    if reasons:
        return Answer(f"not resolved: {'; '.join(sorted(reasons))}.")
    if not plan.memory:
        return Answer(
            "not measured: it needs starts of an engine of our own at several slot counts "
            "(--engine llamacpp --model FILE, and --memory-repeats above 0)"
        )
    return Answer("not measured: no start for it was completed, see the findings")


def _slot(cost: SlotCost) -> str:
    """What one more costs, and how many fit."""
    measured = (cost.measured_bytes_per_slot or 0) / _MIB
    between = ""
    if cost.ci95 is not None:
        low, high = (bound / _MIB for bound in cost.ci95)
        between = f" ({low:.2f} to {high:.2f}, 95 %)"
    what = f"{cost.engine}: {measured:.2f} MiB of {_WHERE[cost.domain]}{between} for each further"
    if cost.method == "blocks_in_use":
        fits = f"; {cost.max_slots} such requests fit into the pool" if cost.max_slots else ""
        return f"{what} request of this sweep's length{fits}"
    fits = f"; {cost.max_slots} slots fit on this box" if cost.max_slots is not None else ""
    return f"{what} slot of {cost.context_per_slot} tokens{fits}"


def _beside(cost: SlotCost) -> str | None:
    """What else is known of a slot: at rest, by arithmetic, by the engine itself."""
    at_rest = "at rest"
    if cost.method == "blocks_in_use":
        at_rest = (
            f"a whole slot of {cost.context_per_slot} tokens, by starts with pools of two sizes,"
        )
    others = [
        f"{word} {value / _MIB:.2f}"
        for word, value in (
            (at_rest, cost.ready_bytes_per_slot),
            ("arithmetic says", cost.predicted_bytes_per_slot),
            ("the engine reports", cost.engine_reported_bytes_per_slot),
        )
        if value is not None
    ]
    if not others:
        return None
    by = cost.source if cost.method != "blocks_in_use" else "blocks in use"
    return f"{cost.engine}: {', '.join(others)} MiB; measured by {by} ({cost.quality})."


# ---------------------------------------------------------------- 6 and 7: operators, crossover


def _second_operator(found: Sequence[Interference]) -> Answer:
    if not found:
        return Answer("not measured: run with --second-operator")
    cells = tuple(cell for one in found for cell in one.cells)
    texts = [interference_text(one) for one in found]
    known = [text for text, one in zip(texts, found, strict=True) if one.pairs] or texts
    return Answer(known[0], cells, tuple(text for text in texts if text != known[0]))


def _crossover(seen: Evidence) -> Answer:
    if len(seen.plan.spec.engines) < 2:  # noqa: PLR2004  # because one curve crosses nothing
        return Answer("not measured: name two engines in one sweep")
    if not seen.comparisons:
        return Answer("not measured: no two engines have a metric in common, see the findings")
    best = max(_plainness(found) for found in seen.comparisons)
    first = [
        found
        for found in seen.comparisons
        if found.metric in _HEADLINES and _plainness(found) == best
    ] or list(seen.comparisons[:1])
    others = [_compared(found) for found in seen.comparisons if found not in first]
    notes = dict.fromkeys(note for found in seen.comparisons for note in found.notes)
    return Answer(_sentences(map(_compared, first)), seen.ids, (*others, *notes))


def _compared(found: Comparison) -> str:
    spoken = "" if found.speculation in ("off", None) else f", speculation {found.speculation}"
    name = METRIC_WORDS.get(found.metric, found.metric)
    return f"{name}, prefix cache {found.prefix_cache}{spoken}: {found.text}"


def _sentences(texts: Iterable[str]) -> str:
    return " ".join(text if text.endswith(".") else f"{text}." for text in texts)
