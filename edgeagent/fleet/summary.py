"""What does the fleet say as a whole: by class and engine, and which box stands out?

Values in, values out. The newest run of a box in which something was measured is what it can do
now; its earlier runs are its past. Medians over boxes, because a fleet always has a strange one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from edgeagent.core.peers import Standing, against_past, among_peers, median
from edgeagent.fleet.queries import Crossing, Doubt, Kind, Measured

SHOWN_LEVELS = (1, 4, 8, 16)

Metric = Literal["output_tokens_per_s", "ttft_p50_s", "memory_bytes_per_slot"]
METRICS: Mapping[Metric, Literal["higher", "lower"]] = {
    "output_tokens_per_s": "higher",
    "ttft_p50_s": "lower",
    "memory_bytes_per_slot": "lower",
}
"""What boxes are compared by, and which of its values are the better ones."""

Against = Literal["peers", "past"]


@dataclass(frozen=True)
class Run:
    """What one run of a box gave for one kind: a value for each level, by metric."""

    run: str
    at_ms: int
    engine_ver: str | None
    values: Mapping[Metric, Mapping[int, float]]

    def at(self, metric: Metric, concurrency: int) -> float | None:
        """The value at a level; None where it was not measured."""
        return self.values.get(metric, {}).get(concurrency)

    @property
    def slot_bytes(self) -> float | None:
        """What a further simultaneous request costs in memory; one number for all levels."""
        return self.values.get("memory_bytes_per_slot", {}).get(0)


@dataclass(frozen=True)
class Fitness:
    """What a box can do with one engine and model, now and before."""

    node: str
    kind: Kind
    now: Run
    past: tuple[Run, ...]
    peers: Mapping[Metric, Standing] = field(default_factory=dict)
    before: Mapping[Metric, Standing] = field(default_factory=dict)


@dataclass(frozen=True)
class Outlier:
    """A box that differs from its peers or from its own past."""

    fitness: Fitness
    metric: Metric
    against: Against
    standing: Standing

    @property
    def turn(self) -> Literal["worse", "better"]:
        """Whether somebody has to look at it, or may be glad."""
        return "better" if self.standing.verdict == METRICS[self.metric] else "worse"


def fitnesses(measured: Iterable[Measured]) -> list[Fitness]:
    """What each box can do with each engine and model, judged; by kind, then by box."""
    own = [_fitness(kind, node, levels) for (kind, node), levels in _grouped(measured).items()]
    by_kind: defaultdict[Kind, list[Fitness]] = defaultdict(list)
    for one in own:
        by_kind[one.kind].append(one)
    return [judged for kind in sorted(by_kind, key=kind_order) for judged in _judged(by_kind[kind])]


def kind_order(kind: Kind) -> tuple[str, ...]:
    """Kinds in the order of a table."""
    return (
        kind.box_class, kind.model, kind.quant, kind.engine, kind.prefix_cache, kind.speculation,
        f"{kind.ctx or 0:012}",
    )  # fmt: skip


def _grouped(measured: Iterable[Measured]) -> dict[tuple[Kind, str], list[Measured]]:
    found: defaultdict[tuple[Kind, str], list[Measured]] = defaultdict(list)
    for one in measured:
        found[one.kind, one.node].append(one)
    return found


def _fitness(kind: Kind, node: str, levels: Sequence[Measured]) -> Fitness:
    by_run: defaultdict[str, list[Measured]] = defaultdict(list)
    for level in levels:
        by_run[level.run].append(level)
    runs = sorted((_run(name, own) for name, own in by_run.items()), key=lambda run: run.at_ms)
    return Fitness(node, kind, runs[-1], tuple(runs[:-1]))


def _run(name: str, levels: Sequence[Measured]) -> Run:
    last = levels[-1]
    slots = [one.memory_bytes_per_slot for one in levels if one.memory_bytes_per_slot is not None]
    return Run(
        name,
        max(one.at_ms for one in levels),
        last.engine_ver,
        {
            "output_tokens_per_s": _known(
                (one.concurrency, one.output_tokens_per_s) for one in levels
            ),
            "ttft_p50_s": _known((one.concurrency, one.ttft_p50_s) for one in levels),
            "memory_bytes_per_slot": _known((0, value) for value in slots[-1:]),
        },
    )


def _known(pairs: Iterable[tuple[int, float | None]]) -> dict[int, float]:
    return {level: value for level, value in pairs if value is not None}


def _judged(alike: Sequence[Fitness]) -> Iterator[Fitness]:
    """The boxes of one kind, each with its standing."""
    peers = {
        metric: among_peers({one.node: one.now.values[metric] for one in alike})
        for metric in METRICS
    }
    for one in sorted(alike, key=lambda fitness: fitness.node):
        yield Fitness(
            one.node,
            one.kind,
            one.now,
            one.past,
            {m: found[one.node] for m, found in peers.items() if one.node in found},
            {
                m: against_past(one.now.values[m], [run.values[m] for run in one.past])
                for m in METRICS
                if one.now.values[m]
            },
        )


def outliers(all_fit: Iterable[Fitness]) -> list[Outlier]:
    """Who differs: worse ones first, then by how strange it is."""
    found = [
        Outlier(one, metric, against, standing)
        for one in all_fit
        for against, standings in _sides(one)
        for metric, standing in standings.items()
        if standing.verdict in {"higher", "lower"}
    ]
    return sorted(found, key=_strangest)


def _sides(one: Fitness) -> tuple[tuple[Against, Mapping[Metric, Standing]], ...]:
    return ("peers", one.peers), ("past", one.before)


def by_box(strange: Iterable[Outlier]) -> list[list[Outlier]]:
    """Outliers of one box with one engine and model together; the order is that of their first."""
    found: defaultdict[tuple[str, Kind], list[Outlier]] = defaultdict(list)
    for one in strange:
        found[one.fitness.node, one.fitness.kind].append(one)
    return list(found.values())


def _strangest(one: Outlier) -> tuple[bool, float, str, str]:
    return one.turn == "better", -abs(one.standing.score or 0.0), one.fitness.node, one.metric


# ------------------------------------------------------------------------------ class and engine


@dataclass(frozen=True)
class Middle:
    """The median over boxes, and the two ends."""

    median: float
    low: float
    high: float
    boxes: int


@dataclass(frozen=True)
class KindSummary:
    """All boxes of a class with one engine and model."""

    kind: Kind
    boxes: int
    rates: Mapping[int, Middle]
    """Output tokens per second by concurrency, at every level that was measured."""
    ttft: Mapping[int, Middle]
    slot: Middle | None
    outliers: int
    """Boxes that do worse than their peers or than before."""
    versions: int


def summaries(all_fit: Sequence[Fitness], strange: Iterable[Outlier]) -> list[KindSummary]:
    """One for each kind, in the order of a table."""
    worse = {(one.fitness.kind, one.fitness.node) for one in strange if one.turn == "worse"}
    by_kind: defaultdict[Kind, list[Fitness]] = defaultdict(list)
    for one in all_fit:
        by_kind[one.kind].append(one)
    return [
        KindSummary(
            kind,
            len(alike),
            _by_level(alike, "output_tokens_per_s"),
            _by_level(alike, "ttft_p50_s"),
            middle(one.now.slot_bytes for one in alike),
            sum((kind, one.node) in worse for one in alike),
            len({one.now.engine_ver for one in alike}),
        )
        for kind, alike in by_kind.items()
    ]


def _by_level(alike: Sequence[Fitness], metric: Metric) -> dict[int, Middle]:
    levels = sorted({level for one in alike for level in one.now.values[metric]})
    found = {level: middle(one.now.at(metric, level) for one in alike) for level in levels}
    return {level: value for level, value in found.items() if value is not None}


def middle(values: Iterable[float | None]) -> Middle | None:
    """The median of what is known; None for nothing."""
    known = [value for value in values if value is not None]
    found = median(known)
    return None if found is None else Middle(found, min(known), max(known), len(known))


@dataclass(frozen=True)
class Lead:
    """Which engine gives most at each level, on one class with one model set one way."""

    kind: Kind
    """Of one of the engines; the others have the same besides the engine."""
    levels: tuple[tuple[int, str, float, float], ...]
    """Concurrency, the faster engine, its median, and that of the next."""


def leads(summed: Iterable[KindSummary]) -> list[Lead]:
    """For each class and setting with several engines, which of them leads where."""
    found: defaultdict[Kind, list[KindSummary]] = defaultdict(list)
    for one in summed:
        found[replace(one.kind, engine="")].append(one)
    made = (Lead(own[0].kind, tuple(_led(own))) for own in found.values() if len(own) > 1)
    return [lead for lead in made if lead.levels]


def _led(own: Sequence[KindSummary]) -> Iterator[tuple[int, str, float, float]]:
    for level in sorted({level for one in own for level in one.rates}):
        rates = sorted(
            ((one.rates[level].median, one.kind.engine) for one in own if level in one.rates),
            reverse=True,
        )
        if len(rates) > 1:
            (most, engine), (second, _), *_ = rates
            yield level, engine, most, second


# ------------------------------------------------------------------------------------ crossovers


@dataclass(frozen=True)
class Verdicts:
    """What the boxes of a class found out about two engines by one metric."""

    box_class: str
    metric: str
    a: str
    b: str
    prefix_cache: str
    speculation: str
    boxes: int
    a_always: int
    b_always: int
    a_first: int
    """a is better at few requests at once, b at many: the two cross."""
    b_first: int
    unresolved: int
    low: float | None
    """Medians of the bounds between which they cross, over the boxes on which most agree."""
    high: float | None


def verdicts(crossings: Iterable[Crossing]) -> list[Verdicts]:
    """One for each class, metric and pair of engines; a pair is named in alphabetical order."""
    found: defaultdict[tuple[str, ...], list[tuple[str, Crossing]]] = defaultdict(list)
    for one in crossings:
        outcome = {"a_always": one.a, "b_always": one.b, "crosses": f"{one.a} first"}.get(
            one.outcome, ""
        )
        a, b = sorted((one.a, one.b))
        key = (one.box_class, one.metric, a, b, one.prefix_cache, one.speculation)
        found[key].append((outcome, one))
    return [_verdict(key, found[key]) for key in sorted(found, key=_verdict_order)]


_METRIC_ORDER = ("output_tokens_per_s", "ttft_s.p50", "ttft_s.p95")


def _verdict_order(key: tuple[str, ...]) -> tuple[object, ...]:
    box_class, metric, *rest = key
    place = _METRIC_ORDER.index(metric) if metric in _METRIC_ORDER else len(_METRIC_ORDER)
    return box_class, place, metric, *rest


def _verdict(key: tuple[str, ...], own: Sequence[tuple[str, Crossing]]) -> Verdicts:
    box_class, metric, a, b, cache, speculation = key
    counted = Counter(outcome for outcome, _ in own)
    first = f"{a} first" if counted[f"{a} first"] >= counted[f"{b} first"] else f"{b} first"
    crossed = [one for outcome, one in own if outcome == first]
    return Verdicts(
        box_class, metric, a, b, cache, speculation, len(own),
        counted[a], counted[b], counted[f"{a} first"], counted[f"{b} first"], counted[""],
        median(one.low for one in crossed if one.low is not None),
        median(one.high for one in crossed if one.high is not None),
    )  # fmt: skip


# -------------------------------------------------------------------------------------- findings


@dataclass(frozen=True)
class DoubtSummary:
    """A kind of finding, and the boxes whose newest result has it."""

    code: str
    severity: str
    nodes: tuple[str, ...]
    example: str


_SEVERITY = ("suspect", "warning", "info")


def doubt_summaries(doubts: Iterable[Doubt]) -> list[DoubtSummary]:
    """Findings by code: the gravest first, then those of most boxes."""
    found: defaultdict[tuple[str, str], list[Doubt]] = defaultdict(list)
    for one in doubts:
        found[one.code, one.severity].append(one)
    summed = [
        DoubtSummary(code, severity, tuple(dict.fromkeys(one.node for one in own)), own[0].text)
        for (code, severity), own in found.items()
    ]
    return sorted(summed, key=_gravest)


def _gravest(one: DoubtSummary) -> tuple[int, int, str]:
    place = _SEVERITY.index(one.severity) if one.severity in _SEVERITY else len(_SEVERITY)
    return place, -len(one.nodes), one.code
