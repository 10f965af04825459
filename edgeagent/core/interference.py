"""What does a second operator cost those who are being served?

Looked at are the windows of arrival cells (load/operator.py): pairs of a moment at which a newcomer
came and one at which nobody did, watched alike. `observe` looks at one cell's raw records,
`combine` puts cells together. Every effect is the difference of a pair, so that what happens anyway
(a handover between requests, a scheduler's hiccup, a slow drift) is in both and drops out.

A pair's `during` is as long as the newcomer's request took, from its moment to its last token, in
both windows; `before` is the quiet time before the moment, `after` what follows `during`.

Gaps. The longest silence with a newcomer less the longest without one is what the victims see. It
is the stall itself where tokens come evenly; where they do not, the longest silence without anybody
is already longer than usual, and a stall shows as that much less. `lost_tokens` has no such bias.

Recovery. Let K(t) be the victims' tokens since the moment and c their usual rate less 5 % (less
its noise, where that is more). The deepest point of K(t) - c t is the moment from which on their
rate, averaged from there to any later moment, is never below c: there they have recovered. A dip
no deeper than the deepest where nobody came is noise, and its recovery took no time. One that is
deepest in the last tenth of its window was not seen to end.

Queue. A request that is sent while every slot is taken waits: slots are handed on in order of
arrival, by the stamps at which requests were sent and ended. What an engine says of its own queue
is not needed.

Intervals are Student's over all pairs, whichever launch they come from: they speak of the launches
that were measured.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from edgeagent.core.metrics import ttft_s
from edgeagent.core.model import Arrival, ArrivalRecord, Cell, RequestTrace, Role, Switch
from edgeagent.core.stats import deviation, mean, mean_interval, supported_quantile

_NS = 1e9
RECOVERED = 0.05
"""A rate this close to the usual one is the usual one."""
_NOISE_DEVIATIONS = 2.0
_PROOF = 0.1
"""Share of a window for which the rate must have been back."""


# ------------------------------------------------------------------------------------ the results


@dataclass(frozen=True)
class Estimate:
    """A mean over `n` windows or pairs, and its 95 % interval; null below three."""

    value: float | None = None
    ci95: tuple[float, float] | None = None
    n: int = 0


@dataclass(frozen=True)
class Service:
    """How the victims were served over one part of the windows."""

    output_tokens_per_s: Estimate = field(default_factory=Estimate)
    itl_p99_s: Estimate = field(default_factory=Estimate)
    gap_max_s: Estimate = field(default_factory=Estimate)
    """The longest silence of any victim that touches the part."""


@dataclass(frozen=True)
class Victim:
    """Those in flight, around the moment."""

    before: Service = field(default_factory=Service)
    during: Service = field(default_factory=Service)
    after: Service = field(default_factory=Service)


@dataclass(frozen=True)
class Operator:
    """The newcomers."""

    ttft_s: float | None
    ttft_ci95: tuple[float, float] | None
    queue_s: float | None
    """Of that, waiting for a slot, on average; null where the number of slots is not known."""
    served_s: float | None
    """From its moment to its last token, on average."""
    prompt_tokens: int
    wanted_prompt_tokens: int
    """What the prompt would have had, did the context of a slot hold it."""
    output_tokens: int
    requests: int
    failed: int
    errors: tuple[str, ...] = ()
    """How those failed that did, each kind once."""


@dataclass(frozen=True)
class Effects:
    """What a newcomer changed: with it less without it, paired."""

    gap_max_s: Estimate = field(default_factory=Estimate)
    """Longest silence of the victim that was hit worst."""
    gap_typical_s: Estimate = field(default_factory=Estimate)
    """Longest silence that at least half of the fan-out had: a stall without single hiccups."""
    itl_p99_s: Estimate = field(default_factory=Estimate)
    """From the moment to the end of the window; null below 100 tokens."""
    lost_tokens: Estimate = field(default_factory=Estimate)
    """Output tokens that the victims would have had by the end of the window."""
    recovery_s: Estimate = field(default_factory=Estimate)
    prefix_tokens_evicted: Estimate = field(default_factory=Estimate)
    queued: Estimate = field(default_factory=Estimate)
    """Requests, the newcomer's too, that were sent while every slot was taken."""


@dataclass(frozen=True)
class Interference:
    """What a second operator cost one engine's fan-out."""

    engine: str
    concurrency: int
    prefix_cache: Switch
    speculation: str
    slots: int
    victim: Victim
    undisturbed: Victim
    """The same around the moments at which nobody came."""
    operator: Operator
    slowdown: Estimate
    """Share of the victims' output tokens/s that is missing while the newcomer is there."""
    recovery_s: float | None
    unrecovered: int
    """Windows that ended before the rate was back; `recovery_s` counts them as they ended."""
    prefix_tokens_evicted: float | None
    effects: Effects
    pairs: int
    launches: int
    cells: tuple[str, ...]
    reason: str | None = None
    """Why something above is null."""


# -------------------------------------------------------------------------------------- one window


@dataclass(frozen=True)
class Span:
    """A stretch of time, in monotonic nanoseconds."""

    begin_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.end_ns - self.begin_ns) / _NS


@dataclass(frozen=True)
class Part:
    """The victims over one stretch of time."""

    tokens_per_s: float | None
    itl_p99_s: float | None
    gap_max_s: float | None
    gap_typical_s: float | None


@dataclass(frozen=True)
class Seen:
    """One window."""

    before: Part
    during: Part
    after: Part
    tokens: int
    """Of the victims, from the moment on, for as long as both windows of the pair were watched."""
    itl_p99_s: float | None
    """Over the same time: `during` is often too short for a percentile."""
    recovery_s: float
    recovered: bool
    missing_prefix: float | None
    """Cached prompt tokens that requests sent from the moment on lacked."""
    queued: int | None


@dataclass(frozen=True)
class Newcomer:
    """A second operator's request that was served."""

    ttft_s: float | None
    queue_s: float | None
    served_s: float


@dataclass(frozen=True)
class Pair:
    """Two windows that differ in one thing."""

    without: Seen
    joined: Seen
    newcomer: Newcomer


@dataclass(frozen=True)
class Observed:
    """What one arrival cell has shown."""

    cell: Cell
    slots: int | None
    pairs: tuple[Pair, ...]
    requests: int = 0
    """Newcomers that were to be counted, served or not."""
    errors: tuple[str, ...] = ()
    """Why each of those failed that did."""


def observe(record: ArrivalRecord, traces: Sequence[RequestTrace]) -> Observed:
    """All that one cell's records say; a pair whose newcomer failed is left out and counted."""
    crowd = _Crowd(record, traces)
    pairs: list[Pair] = []
    errors: list[str] = []
    requests = 0
    for empty, joined in pairs_of(record):
        requests += 1
        trace = crowd.newcomer(joined)
        if trace is None or not trace.ok or trace.last_token_ns is None:
            errors.append(str(trace.error) if trace and trace.error else "it had no token")
            continue
        pairs.append(crowd.pair(empty, joined, trace))
    return Observed(record.cell, record.slots, tuple(pairs), requests, tuple(errors))


def pairs_of(record: ArrivalRecord) -> Iterator[tuple[int, int]]:
    """Indices into `arrivals`: the window in which nobody came, and the one in which somebody did.

    One that was left without its partner is passed over.
    """
    counted = [index for index, a in enumerate(record.arrivals) if a.kind != "rehearsal"]
    for first, second in zip(counted[::2], counted[1::2], strict=False):
        yield (first, second) if record.arrivals[first].kind == "none" else (second, first)


def quiet_from_ns(record: ArrivalRecord, index: int) -> int:
    """Since when nobody has come before a window."""
    return record.arrivals[index - 1].until_ns if index else record.started_ns


class _Crowd:
    """The requests of one cell, and its windows."""

    def __init__(self, record: ArrivalRecord, traces: Sequence[RequestTrace]) -> None:
        self._record = record
        self._arrivals = record.arrivals
        self._victims = [t for t in traces if t.role in ("lead_in", "measured") and t.event_ns]
        self._newcomers = {t.scheduled_ns: t for t in traces if t.role == "operator"}
        self._waits = _waits(traces, record.slots)
        self._usual_prefix = self._cached_without_newcomer(traces)
        rates = [
            rate
            for index, arrival in enumerate(self._arrivals)
            if arrival.kind != "rehearsal"
            and (rate := self._rate(Span(self._quiet_from(index), arrival.at_ns))) is not None
        ]
        self._usual_rate = mean(rates)
        noise = (deviation(rates) or 0.0) / self._usual_rate if self._usual_rate else 0.0
        self._tolerance = min(1.0, max(RECOVERED, _NOISE_DEVIATIONS * noise))
        self._noise_tokens = max(
            (self._dip(self._whole(a))[0] for a in self._arrivals if a.kind == "none"), default=0.0
        )

    def newcomer(self, index: int) -> RequestTrace | None:
        """Whoever came in this window."""
        return self._newcomers.get(self._arrivals[index].at_ns)

    def pair(self, empty: int, joined: int, trace: RequestTrace) -> Pair:
        """Both windows, watched for as long as each other."""
        a, b = self._arrivals[empty], self._arrivals[joined]
        length_ns = min(a.until_ns - a.at_ns, b.until_ns - b.at_ns)
        during_ns = min((trace.last_token_ns or b.at_ns) - b.at_ns, length_ns)
        return Pair(
            without=self._seen(empty, during_ns, length_ns),
            joined=self._seen(joined, during_ns, length_ns),
            newcomer=Newcomer(
                ttft_s=ttft_s(trace),
                queue_s=None if self._waits is None else self._waits.get(_name(trace), 0) / _NS,
                served_s=((trace.last_token_ns or b.at_ns) - b.at_ns) / _NS,
            ),
        )

    def _seen(self, index: int, during_ns: int, length_ns: int) -> Seen:
        arrival = self._arrivals[index]
        at_ns, end_ns = arrival.at_ns, arrival.at_ns + during_ns
        watched = Span(at_ns, at_ns + length_ns)
        depth, recovery_s, recovered = self._dip(self._whole(arrival))
        dipped = depth > self._noise_tokens
        return Seen(
            before=self._part(Span(self._quiet_from(index), at_ns)),
            during=self._part(Span(at_ns, end_ns)),
            after=self._part(Span(end_ns, arrival.until_ns)),
            tokens=self._tokens(watched),
            itl_p99_s=self._itl_p99_s(watched),
            recovery_s=recovery_s if dipped else 0.0,
            recovered=recovered or not dipped,
            missing_prefix=self._missing_prefix(Span(at_ns, self._next_ns(index))),
            queued=self._queued(Span(at_ns, arrival.until_ns)),
        )

    def _whole(self, arrival: Arrival) -> Span:
        return Span(arrival.at_ns, arrival.until_ns)

    def _quiet_from(self, index: int) -> int:
        return quiet_from_ns(self._record, index)

    def _next_ns(self, index: int) -> int:
        """The next moment, or the end of the cell."""
        later = self._arrivals[index + 1 :]
        return later[0].at_ns if later else self._record.finished_ns

    # ------------------------------------------------------------------------------ tokens

    def _part(self, span: Span) -> Part:
        longest = sorted(gap for trace in self._victims if (gap := _longest_gap_s(trace, span)))
        # Not the median of all requests: the more of them end in the span, the more never met it.
        half = -(-self._record.cell.concurrency // 2)
        return Part(
            tokens_per_s=self._rate(span),
            itl_p99_s=self._itl_p99_s(span),
            gap_max_s=longest[-1] if longest else None,
            gap_typical_s=longest[-half] if len(longest) >= half else None,
        )

    def _rate(self, span: Span) -> float | None:
        return self._tokens(span) / span.seconds if span.end_ns > span.begin_ns else None

    def _tokens(self, span: Span) -> int:
        return sum(
            sum(trace.event_tokens[begin:end])
            for trace in self._victims
            for begin, end in [_inside(trace, span)]
        )

    def _itl_p99_s(self, span: Span) -> float | None:
        return supported_quantile(sorted(array("d", self._between_tokens(span))), 0.99)

    def _between_tokens(self, span: Span) -> Iterator[float]:
        """Gaps in seconds that end in the span, where both stamps can be trusted."""
        for trace in self._victims:
            begin, end = _inside(trace, span)
            shared = set(trace.shared_events)
            doubtful = shared | {index - 1 for index in shared}
            for index in range(max(1, begin), end):
                if index not in doubtful and index - 1 not in doubtful:
                    yield (trace.event_ns[index] - trace.event_ns[index - 1]) / _NS

    def _dip(self, span: Span) -> tuple[float, float, bool]:
        """How many tokens the victims fell behind, until when, and whether that was seen to end."""
        if not self._usual_rate:
            return 0.0, 0.0, True
        expected_per_s = self._usual_rate * (1 - self._tolerance)
        events = sorted(
            (trace.event_ns[index], trace.event_tokens[index])
            for trace in self._victims
            for index in range(*_inside(trace, span))
        )
        deepest, at_s, had = 0.0, 0.0, 0
        for at_ns, tokens in events:
            since_s = (at_ns - span.begin_ns) / _NS
            if expected_per_s * since_s - had > deepest:
                deepest, at_s = expected_per_s * since_s - had, since_s
            had += tokens
        at_end = expected_per_s * span.seconds - had
        if at_end > deepest or at_s > (1 - _PROOF) * span.seconds:
            return max(at_end, deepest), span.seconds, False
        return deepest, at_s, True

    # ------------------------------------------------------------------------------ prefixes

    def _cached_without_newcomer(self, traces: Sequence[RequestTrace]) -> float | None:
        """Cached prompt tokens of a usual request; None where nothing is meant to be cached."""
        if self._record.cell.config.prefix_cache == "off":
            return None
        disturbed = [
            Span(arrival.at_ns, self._next_ns(index))
            for index, arrival in enumerate(self._arrivals)
            if arrival.kind != "none"
        ]
        cached = [
            trace.cached_tokens
            for trace in traces
            if trace.role == "measured" and trace.cached_tokens is not None
            if trace.sent_ns is not None and not any(_holds(s, trace.sent_ns) for s in disturbed)
        ]
        return median(cached) if cached else None

    def _missing_prefix(self, span: Span) -> float | None:
        """What requests sent in the span lacked; None when there was none, or nobody says."""
        usual = self._usual_prefix
        cached = [
            trace.cached_tokens
            for trace in self._victims
            if trace.sent_ns is not None and _holds(span, trace.sent_ns)
            if trace.cached_tokens is not None
        ]
        return None if usual is None or not cached else sum(usual - each for each in cached)

    def _queued(self, span: Span) -> int | None:
        if self._waits is None:
            return None
        sent = (*self._victims, *self._newcomers.values())
        return sum(
            1
            for trace in sent
            if trace.sent_ns is not None and _holds(span, trace.sent_ns)
            if self._waits.get(_name(trace), 0) > 0
        )


def _holds(span: Span, at_ns: int) -> bool:
    """Whether something that began at this moment began in the span."""
    return span.begin_ns <= at_ns < span.end_ns


def _inside(trace: RequestTrace, span: Span) -> tuple[int, int]:
    """Which of a request's token events came in the span; one that opens it came before."""
    return (
        bisect_right(trace.event_ns, span.begin_ns),
        bisect_right(trace.event_ns, span.end_ns),
    )


def _longest_gap_s(trace: RequestTrace, span: Span) -> float | None:
    """The longest silence between two tokens that touches the span, wherever it begins and ends."""
    stamps = trace.event_ns
    first = max(1, bisect_right(stamps, span.begin_ns))
    last = min(len(stamps) - 1, bisect_left(stamps, span.end_ns))
    gaps = [stamps[index] - stamps[index - 1] for index in range(first, last + 1)]
    return max(gaps) / _NS if gaps else None


def _name(trace: RequestTrace) -> tuple[Role, int]:
    """Which request of its cell it is."""
    return trace.role, trace.index


def _waits(traces: Iterable[RequestTrace], slots: int | None) -> dict[tuple[Role, int], int] | None:
    """Nanoseconds that requests waited for a slot; those that did not are left out.

    None when the number of slots is not known.
    """
    if slots is None:
        return None
    edges: list[tuple[int, int, RequestTrace]] = []
    for trace in traces:
        if trace.sent_ns is not None:
            end_ns = max(trace.finished_ns or 0, trace.last_token_ns or 0, trace.sent_ns)
            # At the same moment a slot is given back before it is asked for.
            edges += [(trace.sent_ns, 1, trace), (end_ns, 0, trace)]
    edges.sort(key=lambda edge: edge[:2])
    waits: dict[tuple[Role, int], int] = {}
    served: set[tuple[Role, int]] = set()
    queue: deque[RequestTrace] = deque()
    for at_ns, sent, trace in edges:
        if sent:
            queue.append(trace)
            waits[_name(trace)] = 0
        elif _name(trace) in served:
            served.remove(_name(trace))
        elif trace in queue:  # it gave up, or its stamps say that it was never served
            queue.remove(trace)
            waits[_name(trace)] = at_ns - (trace.sent_ns or at_ns)
        while queue and len(served) < slots:
            next_one = queue.popleft()
            served.add(_name(next_one))
            waits[_name(next_one)] = at_ns - (next_one.sent_ns or at_ns)
    return {key: wait for key, wait in waits.items() if wait > 0}


# -------------------------------------------------------------------------------- several cells


def combine(observed: Iterable[Observed]) -> tuple[Interference, ...]:
    """Cells put together by engine, fan-out, prefix cache and speculation, in their order."""
    groups: dict[tuple[object, ...], list[Observed]] = {}
    for one in observed:
        config = one.cell.config
        key = (config.engine.id, one.cell.concurrency, config.prefix_cache, config.speculation)
        groups.setdefault(key, []).append(one)
    return tuple(_together(group) for group in groups.values())


def _together(group: Sequence[Observed]) -> Interference:
    cell = group[0].cell
    pairs = [pair for one in group for pair in one.pairs]
    effects = Effects(
        gap_max_s=_change(pairs, lambda seen: seen.during.gap_max_s),
        gap_typical_s=_change(pairs, lambda seen: seen.during.gap_typical_s),
        itl_p99_s=_change(pairs, lambda seen: seen.itl_p99_s),
        lost_tokens=_change(pairs, lambda seen: -seen.tokens),
        recovery_s=_change(pairs, lambda seen: seen.recovery_s),
        prefix_tokens_evicted=_change(pairs, lambda seen: seen.missing_prefix),
        queued=_change(pairs, lambda seen: seen.queued),
    )
    return Interference(
        engine=cell.config.engine.id,
        concurrency=cell.concurrency,
        prefix_cache=cell.config.prefix_cache,
        speculation=cell.config.speculation,
        slots=group[0].slots or cell.config.slots,
        victim=_victim([pair.joined for pair in pairs]),
        undisturbed=_victim([pair.without for pair in pairs]),
        operator=_operator(group),
        slowdown=_estimate(_missing_share(pair) for pair in pairs),
        recovery_s=mean([pair.joined.recovery_s for pair in pairs]),
        unrecovered=sum(not pair.joined.recovered for pair in pairs),
        prefix_tokens_evicted=effects.prefix_tokens_evicted.value,
        effects=effects,
        pairs=len(pairs),
        launches=sum(1 for one in group if one.pairs),
        cells=tuple(one.cell.cell_id for one in group),
        reason=_reason(group, pairs),
    )


def _estimate(values: Iterable[float | None]) -> Estimate:
    known = [value for value in values if value is not None]
    return Estimate(mean(known), mean_interval(known), len(known))


def _change(pairs: Sequence[Pair], of: Callable[[Seen], float | None]) -> Estimate:
    return _estimate(
        None if (new := of(pair.joined)) is None or (old := of(pair.without)) is None else new - old
        for pair in pairs
    )


def _missing_share(pair: Pair) -> float | None:
    new, old = pair.joined.during.tokens_per_s, pair.without.during.tokens_per_s
    return 1 - new / old if new is not None and old else None


def _victim(windows: Sequence[Seen]) -> Victim:
    def service(parts: Sequence[Part]) -> Service:
        return Service(
            output_tokens_per_s=_estimate(part.tokens_per_s for part in parts),
            itl_p99_s=_estimate(part.itl_p99_s for part in parts),
            gap_max_s=_estimate(part.gap_max_s for part in parts),
        )

    return Victim(
        before=service([seen.before for seen in windows]),
        during=service([seen.during for seen in windows]),
        after=service([seen.after for seen in windows]),
    )


def _operator(group: Sequence[Observed]) -> Operator:
    spec = group[0].cell.arrival
    came = [pair.newcomer for one in group for pair in one.pairs]
    first = _estimate(newcomer.ttft_s for newcomer in came)
    errors = [error for one in group for error in one.errors]
    return Operator(
        ttft_s=first.value,
        ttft_ci95=first.ci95,
        queue_s=_estimate(newcomer.queue_s for newcomer in came).value,
        served_s=_estimate(newcomer.served_s for newcomer in came).value,
        prompt_tokens=spec.prompt_tokens if spec else 0,
        wanted_prompt_tokens=spec.wanted_prompt_tokens if spec else 0,
        output_tokens=spec.output_tokens if spec else 0,
        requests=sum(one.requests for one in group),
        failed=len(errors),
        errors=tuple(dict.fromkeys(errors)),
    )


_ENOUGH = 3
"""Pairs for an interval."""


def _reason(group: Sequence[Observed], pairs: Sequence[Pair]) -> str | None:
    errors = sorted({error for one in group for error in one.errors})
    if not pairs:
        why = f"every newcomer failed ({', '.join(errors)})" if errors else "no window was finished"
        return f"nothing can be said: {why}"
    if len(pairs) < _ENOUGH:
        return f"no intervals: {len(pairs)} pairs of windows, and it takes {_ENOUGH}"
    if all(one.slots is None for one in group):
        return "no queue: the engine does not say how many slots it has"
    return None


# ----------------------------------------------------------------------------------- in words


def sentence(found: Interference) -> str:
    """What a second operator costs, in one sentence; says so when the data does not carry it."""
    who = f"{found.engine} at {found.concurrency}, prefix cache {found.prefix_cache}"
    if not found.pairs:
        return f"{who}: what a second operator costs is not known ({found.reason})."
    newcomer = found.operator
    parts = [
        f"{who}: a second operator with a prompt of {newcomer.prompt_tokens} tokens "
        f"{_stall(found.effects.gap_typical_s)}, {_slowdown(found.slowdown)}"
    ]
    parts.append(_recovery(found))
    if newcomer.ttft_s is not None:
        queue = newcomer.queue_s or 0.0
        waiting = f", {_s(queue)} of it for a slot" if queue >= 0.1 * newcomer.ttft_s else ""
        parts.append(f"the newcomer has its first token after {_s(newcomer.ttft_s)}{waiting}")
    evicted = found.effects.prefix_tokens_evicted
    if evicted.value is not None and evicted.value >= 1 and not _covers_none(evicted):
        parts.append(f"{evicted.value:.0f} cached prompt tokens are lost")
    return "; ".join(parts) + "."


def _covers_none(estimate: Estimate) -> bool:
    """Whether no effect at all would do as well."""
    return estimate.ci95 is not None and estimate.ci95[0] <= 0 <= estimate.ci95[1]


def _s(seconds: float) -> str:
    if abs(seconds) < 0.1:  # noqa: PLR2004  # because three digits are enough
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds:.2f} s" if abs(seconds) < 10 else f"{seconds:.0f} s"  # noqa: PLR2004  # because three digits are enough


def _stall(change: Estimate) -> str:
    if change.value is None:
        return "stalls answers for a time that is not known (too few tokens around its arrival)"
    if change.ci95 is None:
        return f"stalls running answers by {_s(change.value)} (no interval)"
    low, high = change.ci95
    if _covers_none(change):
        return f"does not measurably stall running answers ({_s(low)} to {_s(high)}, 95 %)"
    return f"stalls running answers by {_s(change.value)} ({_s(low)} to {_s(high)}, 95 %)"


def _slowdown(change: Estimate) -> str:
    if change.value is None:
        return "and what it takes of their output is not known"
    if _covers_none(change):
        return "takes no measurable share of their output"
    doubt = "" if change.ci95 else " (no interval)"
    if change.value < 0:
        return f"and they are {-change.value:.0%} faster while it is served{doubt}"
    return f"takes {change.value:.0%} of their output while it is served{doubt}"


def _recovery(found: Interference) -> str:
    if found.recovery_s is None:
        return "when they are back to normal is not known"
    if found.unrecovered:
        return (
            f"they were not back to normal in {found.unrecovered} of {found.pairs} windows "
            f"(after {_s(found.recovery_s)} or later)"
        )
    if found.recovery_s == 0:
        return "there is nothing to recover from"
    return f"they are back to normal after {_s(found.recovery_s)}"
