"""How do a run's gaps spread, and how did a cell go over time: what is there to look at?

Taken from raw records one cell at a time, kept as little as a picture needs: counts in fixed bins
and at most 120 steps. The same requests and gaps are used as for the cell's metrics, so a picture
and a number never disagree (docs/metrics.md, "Series").

Steps reach from one moment, included, to the next, excluded: the first begins with the first
request, the last holds the last end. All arithmetic is in whole nanoseconds until the end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from edgeagent.core.memory import Domain, Held, held_while_serving
from edgeagent.core.metrics import gaps_ns, left_ns, window_of
from edgeagent.core.model import Cell, CellRecord, MemorySample, RequestTrace, Switch

_NS = 1e9

# ------------------------------------------------------------------------------ distributions

_DECADES = (-4, 2)
_BINS_A_DECADE = 20
EDGES_NS = tuple(
    round(10 ** (9 + _DECADES[0] + index / _BINS_A_DECADE))
    for index in range((_DECADES[1] - _DECADES[0]) * _BINS_A_DECADE + 1)
)
"""From 0.1 ms to 100 s, each 12 % above the one before; the same in all runs, so that they compare.

Whole nanoseconds, as stamps are: which bin a gap falls into is no matter of rounding.
"""
EDGES_S = tuple(edge / _NS for edge in EDGES_NS)


@dataclass(frozen=True)
class GapCounts:
    """How many gaps of one cell lie in each bin, below the first and from the last edge on."""

    counts: tuple[int, ...]
    below: int
    above: int


@dataclass(frozen=True)
class GapDistribution:
    """A line of `distributions[]`: the gaps of all repeats of one level that did not fail."""

    engine: str
    concurrency: int
    prefix_cache: Switch
    speculation: str
    metric: Literal["itl_s"]
    edges: tuple[float, ...]
    """Of the bins, in seconds; a gap on an edge lies in the bin that begins there."""
    counts: tuple[int, ...]
    below: int
    above: int
    n: int
    """All together: the sum of `itl_s.n` over `cells`."""
    cells: tuple[str, ...]


def gap_counts(traces: Iterable[RequestTrace]) -> GapCounts:
    """The gaps that `itl_s` is made of, counted."""
    places: Counter[int] = Counter()
    for trace in traces:
        if trace.role == "measured" and trace.ok:
            places.update(bisect_right(EDGES_NS, gap) for gap in gaps_ns(trace))
    inner = tuple(places[index] for index in range(1, len(EDGES_NS)))
    return GapCounts(inner, below=places[0], above=places[len(EDGES_NS)])


def distributions(counted: Iterable[tuple[Cell, GapCounts]]) -> tuple[GapDistribution, ...]:
    """Cells put together by engine, setting and concurrency; a level without a gap is left out."""
    groups: dict[tuple[str, str, str, int], list[tuple[Cell, GapCounts]]] = {}
    for cell, counts in counted:
        groups.setdefault((*_setting(cell), cell.concurrency), []).append((cell, counts))
    pooled = (_pooled(sorted(groups[key], key=lambda one: one[0].repeat)) for key in sorted(groups))
    return tuple(found for found in pooled if found.n)


def _pooled(group: Sequence[tuple[Cell, GapCounts]]) -> GapDistribution:
    cell = group[0][0]
    counts = tuple(map(sum, zip(*(found.counts for _, found in group), strict=True)))
    below = sum(found.below for _, found in group)
    above = sum(found.above for _, found in group)
    return GapDistribution(
        engine=cell.config.engine.id,
        concurrency=cell.concurrency,
        prefix_cache=cell.config.prefix_cache,
        speculation=cell.config.speculation,
        metric="itl_s",
        edges=EDGES_S,
        counts=counts,
        below=below,
        above=above,
        n=below + sum(counts) + above,
        cells=tuple(one.cell_id for one, _ in group),
    )


def _setting(cell: Cell) -> tuple[str, str, str]:
    return cell.config.engine.id, cell.config.prefix_cache, cell.config.speculation


# ---------------------------------------------------------------------------------- timelines

MOST_STEPS = 120
GAPS_A_STEP = 2
"""A step no longer than a gap would hold a token or none, by chance, and show neither rate."""


@dataclass(frozen=True)
class Timeline:
    """A line of `timelines[]`: one cell from its first request to its last end."""

    cell_id: str
    engine: str
    concurrency: int
    prefix_cache: Switch
    speculation: str
    step_s: float
    inflight: tuple[float, ...]
    """Requests between sent and finished, averaged over each step's time."""
    output_tokens_per_s: tuple[float, ...]
    memory_bytes: tuple[int | None, ...]
    """The most that was sampled in each step; null where no sample was taken."""
    memory_domain: Domain | None
    memory_source: str | None
    memory_reason: str | None
    """Why there is no memory at all."""
    steady_from_s: float | None
    steady_to_s: float | None
    """The window that rates refer to; null when there was no steady one."""


@dataclass(frozen=True)
class Steps:
    """Equal stretches of time, in monotonic nanoseconds."""

    begin_ns: int
    step_ns: int
    count: int

    @property
    def seconds(self) -> float:
        """The length of one."""
        return self.step_ns / _NS

    def index(self, at_ns: int) -> int:
        """Which one a moment lies in; the nearest one for moments beyond either end."""
        return min(max((at_ns - self.begin_ns) // self.step_ns, 0), self.count - 1)

    def holds(self, at_ns: int) -> bool:
        """Whether a moment lies in any of them."""
        return 0 <= at_ns - self.begin_ns < self.count * self.step_ns


def steps_over(begin_ns: int, end_ns: int, least_ns: int = 1) -> Steps:
    """At most 120 steps that reach over a stretch, each 1, 2 or 5 times a power of 10 long.

    None is shorter than `least_ns`.
    """
    length = max(1, end_ns - begin_ns)
    least_ns = max(least_ns, -(-length // MOST_STEPS))
    step = next(step for step in _round_steps() if step >= least_ns)
    return Steps(begin_ns, step, -(-length // step))


def usual_gap_ns(traces: Iterable[RequestTrace]) -> int:
    """The mean gap between token events of one request; 0 where there is none."""
    length = gaps = 0
    for trace in traces:
        if trace.event_ns:
            length += trace.event_ns[-1] - trace.event_ns[0]
            gaps += len(trace.event_ns) - 1
    return length // gaps if gaps else 0


def _round_steps() -> Iterator[int]:
    power = 1
    while True:
        yield from (power, 2 * power, 5 * power)
        power *= 10


def timeline(
    record: CellRecord,
    traces: Sequence[RequestTrace],
    samples: Sequence[MemorySample],
    box_class: str,
) -> Timeline | None:
    """How a cell went; None when nothing was sent."""
    loading = [
        trace
        for trace in traces
        if trace.role in ("measured", "lead_in") and trace.sent_ns is not None
    ]
    if not loading:
        return None
    spans = [(trace.sent_ns or 0, left_ns(trace)) for trace in loading]
    steps = steps_over(
        min(begin for begin, _ in spans),
        max(end for _, end in spans),
        GAPS_A_STEP * usual_gap_ns(loading),
    )
    held = held_while_serving(box_class, samples)
    window = window_of(record, loading)
    steady = window if window is not None and window.steady else None
    cell = record.cell
    return Timeline(
        cell_id=cell.cell_id,
        engine=cell.config.engine.id,
        concurrency=cell.concurrency,
        prefix_cache=cell.config.prefix_cache,
        speculation=cell.config.speculation,
        step_s=steps.seconds,
        inflight=inflight(spans, steps),
        output_tokens_per_s=tuple(n / steps.seconds for n in _tokens(loading, steps)),
        memory_bytes=_most_held(held, steps),
        memory_domain=held.domain,
        memory_source=held.source,
        memory_reason=held.reason,
        steady_from_s=None if steady is None else (steady.begin_ns - steps.begin_ns) / _NS,
        steady_to_s=None if steady is None else (steady.end_ns - steps.begin_ns) / _NS,
    )


def inflight(spans: Iterable[tuple[int, int]], steps: Steps) -> tuple[float, ...]:
    """How many of the spans cover a step, averaged over its time."""
    edges_ns = [0] * steps.count
    """Time of spans in the steps that they cover in part."""
    change = [0] * (steps.count + 1)
    """How many more spans cover a step whole than the one before it."""
    for begin_ns, end_ns in spans:
        first, last = steps.index(begin_ns), steps.index(end_ns)
        if first == last:
            edges_ns[first] += end_ns - begin_ns
        else:
            edges_ns[first] += steps.begin_ns + (first + 1) * steps.step_ns - begin_ns
            edges_ns[last] += end_ns - (steps.begin_ns + last * steps.step_ns)
            change[first + 1] += 1
            change[last] -= 1
    whole = accumulate(change)
    return tuple(
        spans_whole + part_ns / steps.step_ns
        for spans_whole, part_ns in zip(whole, edges_ns, strict=False)
    )


def _tokens(loading: Iterable[RequestTrace], steps: Steps) -> list[int]:
    """Output tokens that arrived in each step."""
    tokens = [0] * steps.count
    for trace in loading:
        for at_ns, count in zip(trace.event_ns, trace.event_tokens, strict=True):
            tokens[steps.index(at_ns)] += count
    return tokens


def _most_held(held: Held, steps: Steps) -> tuple[int | None, ...]:
    most: list[int | None] = [None] * steps.count
    for at_ns, amount in held.at:
        if steps.holds(at_ns):
            index = steps.index(at_ns)
            most[index] = max(most[index] or 0, amount)
    return tuple(most)


# ------------------------------------------------------------------------------- cell by cell


class Series:
    """Pictures of a run whose cells are shown to it one after the other, in any order."""

    def __init__(self, box_class: str) -> None:
        self._box_class = box_class
        self._counted: list[tuple[Cell, GapCounts]] = []
        self._shown: dict[tuple[str, str, str], tuple[Cell, Timeline]] = {}

    def add(
        self,
        record: CellRecord,
        traces: Sequence[RequestTrace],
        samples: Sequence[MemorySample],
    ) -> None:
        """Take what is wanted of a cell that did not fail; nothing of its records is kept."""
        cell = record.cell
        self._counted.append((cell, gap_counts(traces)))
        key = _setting(cell)
        if key in self._shown and not _shows_more(cell, self._shown[key][0]):
            return
        found = timeline(record, traces, samples, self._box_class)
        if found is not None:
            self._shown[key] = (cell, found)

    @property
    def distributions(self) -> tuple[GapDistribution, ...]:
        """Of every level."""
        return distributions(self._counted)

    @property
    def timelines(self) -> tuple[Timeline, ...]:
        """Of each engine and setting: the first repeat of the highest concurrency."""
        return tuple(self._shown[key][1] for key in sorted(self._shown))


def _shows_more(cell: Cell, shown: Cell) -> bool:
    return (cell.concurrency, -cell.repeat) > (shown.concurrency, -shown.repeat)
