"""What does one cell's recording say, in numbers?

`summarise` is the only way from raw records to metrics: the sweep uses it when a cell ends, and
`edgeagent verify` uses it years later on the same files. Definitions: docs/metrics.md.

The steady window
    sustained: from the moment at which N measured requests are in flight (the last lead-in request
    has handed over its slot) to the last moment at which N are. What lies before is start-up, what
    lies after is draining.
    fanout: from the first request of the first wave to the last token of the last wave; filling and
    draining belong to what a wave is.
    Neither (too few requests, one died): first sent to last token, with a finding.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Literal

from edgeagent.core.energy import Energy, IdlePower, Work, energy_of, spent_in
from edgeagent.core.model import CellRecord, MemorySample, RequestTrace, Slo
from edgeagent.core.stats import Distribution, distribution, mean

_NS = 1e9


@dataclass(frozen=True)
class RequestCounts:
    """How the cell's measured requests ended."""

    planned: int | None
    ok: int
    failed: int
    errors: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class VllmEquivalent:
    """The same recording through the formulas of `vllm bench serve`, for comparison with it.

    Duration from the first send to the last token of ok requests; first token at the first event,
    whatever it carries; TPOT = (latency - TTFT) / (tokens - 1); ITL = gaps between events.
    """

    duration_s: float | None = None
    output_throughput_per_s: float | None = None
    request_throughput_per_s: float | None = None
    mean_ttft_s: float | None = None
    median_ttft_s: float | None = None
    p99_ttft_s: float | None = None
    mean_tpot_s: float | None = None
    mean_itl_s: float | None = None


@dataclass(frozen=True)
class ValueSummary:
    """A sampled value over a cell."""

    peak: float | None
    mean: float | None
    low: float | None = None
    reason: str | None = None
    """Why all are null."""
    first: float | None = None
    """At the start of the cell."""
    last: float | None = None
    """At its end."""


@dataclass(frozen=True)
class MemorySummary:
    """What the probes saw during a cell; `values` by the names of docs/metrics.md."""

    samples: int = 0
    late_p95_s: float | None = None
    values: Mapping[str, ValueSummary] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientSummary:
    """What measuring cost and how honest it could be."""

    cpu_fraction: float | None = None
    """Of one core, over the cell."""
    cpu_s_per_1000_events: float | None = None
    loop_lag_s: Distribution = field(default_factory=Distribution)
    rss_bytes: int | None = None
    clock_step_s: float = 0.0


@dataclass(frozen=True)
class CellMetrics:
    """Everything that is computed of one cell."""

    requests: RequestCounts
    duration_s: float | None = None
    steady_s: float | None = None
    """Length of the window that rates refer to; null when there was no steady window."""
    inflight_mean: float | None = None
    ttft_s: Distribution = field(default_factory=Distribution)
    ttfat_s: Distribution = field(default_factory=Distribution)
    itl_s: Distribution = field(default_factory=Distribution)
    tpot_s: Distribution = field(default_factory=Distribution)
    e2e_s: Distribution = field(default_factory=Distribution)
    gap_max_s: Distribution = field(default_factory=Distribution)
    headers_s: Distribution = field(default_factory=Distribution)
    output_tokens_per_s: float | None = None
    total_tokens_per_s: float | None = None
    request_throughput_per_s: float | None = None
    goodput_per_s: float | None = None
    good_fraction: float | None = None
    output_tokens: int = 0
    prompt_tokens: int | None = None
    cached_prompt_fraction: float | None = None
    token_count_source: str | None = None
    stamp_source: Literal["kernel", "monotonic", "mixed"] | None = None
    token_events: int = 0
    shared_reads: int = 0
    late_stamps: int = 0
    retried: int = 0
    count_mismatches: int = 0
    """Requests whose events' tokens do not add up to the engine's own count."""
    draft_acceptance: float | None = None
    accepted_per_draft: float | None = None
    vllm_equivalent: VllmEquivalent = field(default_factory=VllmEquivalent)
    memory: MemorySummary = field(default_factory=MemorySummary)
    energy: Energy = field(default_factory=Energy)
    client: ClientSummary = field(default_factory=ClientSummary)


@dataclass(frozen=True)
class Window:
    """A stretch of time, in monotonic nanoseconds."""

    begin_ns: int
    end_ns: int
    steady: bool

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.end_ns - self.begin_ns) / _NS

    def holds(self, at_ns: int) -> bool:
        """Whether a moment lies in it; the first moment does not.

        The token that opens a window was made before it: n intervals have n tokens.
        """
        return self.begin_ns < at_ns <= self.end_ns


def summarise(
    record: CellRecord,
    traces: Sequence[RequestTrace],
    samples: Sequence[MemorySample],
    slo: Slo,
    *,
    idle: IdlePower | None = None,
) -> CellMetrics:
    """All metrics of a cell from its raw records; `idle` is the run's power at rest."""
    measured = [trace for trace in traces if trace.role == "measured"]
    loading = [trace for trace in traces if trace.role in ("measured", "lead_in")]
    ok = [trace for trace in measured if trace.ok]
    window = window_of(record, loading)
    good = [trace for trace in ok if meets(trace, slo)]
    rates = _rates(window, loading, measured, good)
    events = sum(len(trace.event_ns) for trace in loading)
    return CellMetrics(
        requests=_counts(record, measured),
        duration_s=_duration_s(loading),
        steady_s=window.seconds if window and window.steady else None,
        inflight_mean=inflight_mean(loading, window),
        ttft_s=_distribution(ttft_s(trace) for trace in ok),
        ttfat_s=_distribution(ttfat_s(trace) for trace in ok),
        itl_s=_itl_s(ok),
        tpot_s=_distribution(tpot_s(trace) for trace in ok),
        e2e_s=_distribution(e2e_s(trace) for trace in ok),
        gap_max_s=_distribution(gap_max_s(trace) for trace in ok),
        headers_s=_distribution(_since_sent(trace, trace.headers_ns) for trace in ok),
        good_fraction=len(good) / len(measured) if measured else None,
        output_tokens=sum(trace.tokens for trace in measured),
        prompt_tokens=_sum(trace.prompt_tokens for trace in measured),
        cached_prompt_fraction=_cached_fraction(ok),
        token_count_source=_words(trace.token_source for trace in ok),
        stamp_source=_stamp_source(measured),
        token_events=events,
        shared_reads=sum(len(trace.shared_events) for trace in measured),
        late_stamps=sum(trace.late_stamps for trace in measured),
        retried=sum(trace.retried for trace in measured),
        count_mismatches=sum(mismatched(trace) for trace in ok),
        draft_acceptance=_acceptance(ok, record),
        accepted_per_draft=_ratio(
            record.server_deltas.get("draft_accepted"), record.server_deltas.get("drafts")
        ),
        vllm_equivalent=_vllm_equivalent(ok),
        memory=_memory(samples),
        energy=_energy(window, loading, samples, idle),
        client=_client(record, events),
        output_tokens_per_s=rates.output_tokens_per_s,
        total_tokens_per_s=rates.total_tokens_per_s,
        request_throughput_per_s=rates.request_throughput_per_s,
        goodput_per_s=rates.goodput_per_s,
    )


# ------------------------------------------------------------------------------ one request


def _since_sent(trace: RequestTrace, at_ns: int | None) -> float | None:
    if trace.sent_ns is None or at_ns is None:
        return None
    return (at_ns - trace.sent_ns) / _NS


def ttft_s(trace: RequestTrace) -> float | None:
    """Time to first token: first event that carries one, since the request was sent."""
    return _since_sent(trace, trace.event_ns[0]) if trace.event_ns else None


def ttfat_s(trace: RequestTrace) -> float | None:
    """Time to first answer token: the first that is not reasoning."""
    index = trace.first_answer_event
    return None if index is None else _since_sent(trace, trace.event_ns[index])


def e2e_s(trace: RequestTrace) -> float | None:
    """From sent to the last token."""
    return _since_sent(trace, trace.last_token_ns)


def tpot_s(trace: RequestTrace) -> float | None:
    """Time per output token after the first event; null when nothing came after it.

    The first event's tokens, however many, came before the stretch that is divided.
    """
    after = trace.tokens - trace.event_tokens[0] if trace.event_ns else 0
    if after <= 0:
        return None
    return (trace.event_ns[-1] - trace.event_ns[0]) / after / _NS


def gaps_ns(trace: RequestTrace) -> Iterable[int]:
    """Gaps between consecutive token events whose both stamps can be trusted.

    Two events in one read share its stamp: the gap between them is not zero and the one before is
    too long, so gaps that touch a shared read are left out (and counted).
    """
    if not trace.shared_events:
        return _all_gaps_ns(trace)
    stamps = trace.event_ns
    shared = set(trace.shared_events)
    doubtful = shared | {index - 1 for index in shared}
    return (
        stamps[index] - stamps[index - 1]
        for index in range(1, len(stamps))
        if index not in doubtful and index - 1 not in doubtful
    )


def _all_gaps_ns(trace: RequestTrace) -> Iterable[int]:
    """Gaps between consecutive token events, whatever their stamps are worth."""
    return (right - left for left, right in pairwise(trace.event_ns))


def gap_max_s(trace: RequestTrace) -> float | None:
    """The longest silence between two token events, shared reads included: a stall is a stall."""
    longest = max(_all_gaps_ns(trace), default=None)
    return None if longest is None else longest / _NS


def meets(trace: RequestTrace, slo: Slo) -> bool:
    """Whether a request keeps every limit that is set; one without a value keeps none.

    A request of one token has no TPOT and cannot fail it.
    """
    limits = (
        (slo.ttft_s, ttft_s(trace)),
        (slo.tpot_s, tpot_s(trace) if trace.tokens > 1 else 0.0),
        (slo.e2e_s, e2e_s(trace)),
    )
    return all(limit is None or (value is not None and value <= limit) for limit, value in limits)


def mismatched(trace: RequestTrace) -> bool:
    """Whether the stream's tokens differ from the engine's final count."""
    return trace.output_tokens is not None and trace.tokens != trace.output_tokens


# ------------------------------------------------------------------------------- the window


def window_of(record: CellRecord, loading: Sequence[RequestTrace]) -> Window | None:
    """The window that rates refer to; None when no token was seen."""
    sent = [trace.sent_ns for trace in loading if trace.sent_ns is not None]
    last = [trace.event_ns[-1] for trace in loading if trace.event_ns]
    if not sent or not last:
        return None
    if record.cell.workload.shape == "fanout":
        waves = [trace for trace in loading if trace.sent_ns is not None]
        return Window(min(sent), max(last), steady=len(waves) >= record.cell.concurrency)
    steady = _steady(loading, record.cell.concurrency)
    return steady or Window(min(sent), max(last), steady=False)


def _steady(loading: Sequence[RequestTrace], concurrency: int) -> Window | None:
    """From the first to the last moment at which N measured requests are in flight."""
    edges: list[tuple[int, int]] = []
    for trace in loading:
        if trace.role == "measured" and trace.sent_ns is not None:
            end_ns = left_ns(trace)
            if end_ns > trace.sent_ns:
                edges += [(trace.sent_ns, 1), (end_ns, -1)]
    edges.sort()
    inflight = 0
    begin_ns: int | None = None
    end_ns = 0
    for at_ns, change in edges:
        if inflight >= concurrency and change < 0:
            end_ns = at_ns
        inflight += change
        if inflight >= concurrency and begin_ns is None:
            begin_ns = at_ns
    if begin_ns is None or end_ns <= begin_ns:
        return None
    return Window(begin_ns, end_ns, steady=True)


def left_ns(trace: RequestTrace) -> int:
    """When a request left the engine, as far as was seen."""
    return max(trace.finished_ns or 0, trace.last_token_ns or 0, trace.sent_ns or 0)


def _served_ns(trace: RequestTrace) -> int:
    """When a request had all its tokens.

    Not when its end was said: that comes after the last token, which closes some windows.
    """
    return trace.last_token_ns or left_ns(trace)


def inflight_mean(loading: Sequence[RequestTrace], window: Window | None) -> float | None:
    """Requests in flight, averaged over the window's time."""
    if window is None or window.end_ns <= window.begin_ns:
        return None
    busy_ns = 0
    for trace in loading:
        if trace.sent_ns is not None:
            begin = max(trace.sent_ns, window.begin_ns)
            end = min(left_ns(trace), window.end_ns)
            busy_ns += max(0, end - begin)
    return busy_ns / (window.end_ns - window.begin_ns)


@dataclass(frozen=True)
class _Rates:
    output_tokens_per_s: float | None = None
    total_tokens_per_s: float | None = None
    request_throughput_per_s: float | None = None
    goodput_per_s: float | None = None


def _rates(
    window: Window | None,
    loading: Sequence[RequestTrace],
    measured: Sequence[RequestTrace],
    good: Sequence[RequestTrace],
) -> _Rates:
    """Everything per second; all None when there is no window to divide by."""
    if window is None or window.seconds <= 0:
        return _Rates()
    output = _tokens_in(window, loading)
    ended = _ended_in(window, loading)
    prompts = sum(trace.prompt_tokens or 0 for trace in ended)
    good_ended = sum(1 for trace in good if window.holds(_served_ns(trace)))
    return _Rates(
        output_tokens_per_s=output / window.seconds,
        total_tokens_per_s=(output + prompts) / window.seconds,
        request_throughput_per_s=len(ended) / window.seconds,
        goodput_per_s=good_ended / window.seconds if measured else None,
    )


def _tokens_in(window: Window, loading: Sequence[RequestTrace]) -> int:
    """Tokens that arrived in the window, whoever asked for them."""
    return sum(
        tokens
        for trace in loading
        for at_ns, tokens in zip(trace.event_ns, trace.event_tokens, strict=True)
        if window.holds(at_ns)
    )


def _ended_in(window: Window, loading: Sequence[RequestTrace]) -> Sequence[RequestTrace]:
    """Requests that were served by the end of the window.

    One of the lead-in that ends in the window took part in it like any other.
    """
    return [trace for trace in loading if trace.ok and window.holds(_served_ns(trace))]


def _energy(
    window: Window | None,
    loading: Sequence[RequestTrace],
    samples: Sequence[MemorySample],
    idle: IdlePower | None,
) -> Energy:
    """Energy of the window, and for the tokens and requests of the part that samples cover."""
    if window is None:
        return Energy(reason="no token was seen, so there is no window to sum energy over")
    spent = spent_in(samples, window.begin_ns, window.end_ns)
    covered = Window(spent.begin_ns, spent.end_ns, window.steady)
    work = Work(_tokens_in(covered, loading), len(_ended_in(covered, loading)))
    return energy_of(spent, work, idle)


# --------------------------------------------------------------------------------- the parts


def _counts(record: CellRecord, measured: Sequence[RequestTrace]) -> RequestCounts:
    errors = Counter(trace.error for trace in measured if trace.error is not None)
    failed = sum(errors.values())
    return RequestCounts(
        planned=record.cell.requests,
        ok=len(measured) - failed,
        failed=failed,
        errors={str(kind): count for kind, count in sorted(errors.items())},
    )


def _duration_s(loading: Sequence[RequestTrace]) -> float | None:
    sent = [trace.sent_ns for trace in loading if trace.sent_ns is not None]
    return (max(left_ns(trace) for trace in loading) - min(sent)) / _NS if sent else None


def _distribution(values: Iterable[float | None]) -> Distribution:
    return distribution(array("d", (value for value in values if value is not None)))


def _itl_s(ok: Sequence[RequestTrace]) -> Distribution:
    gaps = chain.from_iterable(gaps_ns(trace) for trace in ok)
    return distribution(array("d", (gap / _NS for gap in gaps)))


def _sum(values: Iterable[int | None]) -> int | None:
    """The sum of what is known; None when nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _acceptance(ok: Sequence[RequestTrace], record: CellRecord) -> float | None:
    """Accepted over drafted tokens: by the requests, else by the engine's counters for the cell.

    The counters know the lead-in, too, and drafts that were cut off at the last token asked for.
    """
    by_request = _ratio(
        _sum(trace.draft_accepted for trace in ok), _sum(trace.draft_tokens for trace in ok)
    )
    if by_request is not None:
        return by_request
    grown = record.server_deltas
    return _ratio(grown.get("draft_accepted"), grown.get("draft_tokens"))


def _ratio(part: int | None, whole: int | None) -> float | None:
    return part / whole if part is not None and whole else None


def _cached_fraction(ok: Sequence[RequestTrace]) -> float | None:
    """Cached prompt tokens over prompt tokens, of requests that report both."""
    both = [
        (trace.cached_tokens, trace.prompt_tokens)
        for trace in ok
        if trace.cached_tokens is not None and trace.prompt_tokens
    ]
    prompts = sum(prompt for _, prompt in both)
    return sum(cached for cached, _ in both) / prompts if prompts else None


def _words(values: Iterable[str | None]) -> str | None:
    """The one word that all agree on, several joined by +, None for none."""
    words = sorted({value for value in values if value is not None})
    return "+".join(words) or None


def _stamp_source(
    measured: Sequence[RequestTrace],
) -> Literal["kernel", "monotonic", "mixed"] | None:
    with_tokens = [trace for trace in measured if trace.event_ns]
    sources = {trace.stamp_source for trace in with_tokens}
    if not sources:
        return None
    if sources == {"monotonic"}:
        return "monotonic"
    pure = sources == {"kernel"} and not any(trace.late_stamps for trace in with_tokens)
    return "kernel" if pure else "mixed"


def _vllm_equivalent(ok: Sequence[RequestTrace]) -> VllmEquivalent:
    seen = [t for t in ok if t.sent_ns is not None and t.first_event_ns is not None and t.event_ns]
    if not seen:
        return VllmEquivalent()
    begin_ns = min(trace.sent_ns or 0 for trace in seen)
    duration_s = (max(trace.event_ns[-1] for trace in seen) - begin_ns) / _NS
    ttft = distribution(array("d", ((t.first_event_ns or 0) - (t.sent_ns or 0) for t in seen)))
    tpots = [
        (trace.event_ns[-1] - (trace.first_event_ns or 0)) / (trace.tokens - 1) / _NS
        for trace in seen
        if trace.tokens > 1
    ]
    # Only the mean is wanted: sorting all gaps once more would cost memory at the cell's end.
    gaps = array("d", (gap for trace in seen for gap in _all_gaps_ns(trace)))
    return VllmEquivalent(
        duration_s=duration_s,
        output_throughput_per_s=_per(sum(trace.tokens for trace in seen), duration_s),
        request_throughput_per_s=_per(len(seen), duration_s),
        mean_ttft_s=_seconds(ttft.mean),
        median_ttft_s=_seconds(ttft.p50),
        p99_ttft_s=_seconds(ttft.p99),
        mean_tpot_s=mean(tpots),
        mean_itl_s=_seconds(mean(gaps)),
    )


def _per(amount: float, seconds: float) -> float | None:
    return amount / seconds if seconds > 0 else None


def _seconds(nanoseconds: float | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / _NS


def _memory(samples: Sequence[MemorySample]) -> MemorySummary:
    if not samples:
        return MemorySummary()
    names = sorted({name for sample in samples for name in sample.values})
    reasons: dict[str, str] = {}
    for sample in samples:
        reasons.update(sample.absent)
    late = distribution(array("d", (sample.late_ns / _NS for sample in samples)))
    return MemorySummary(
        samples=len(samples),
        late_p95_s=late.p95,
        values={name: _value_summary(name, samples, reasons) for name in names},
    )


def _value_summary(
    name: str, samples: Sequence[MemorySample], reasons: Mapping[str, str]
) -> ValueSummary:
    values = [value for s in samples if (value := s.values.get(name)) is not None]
    if not values:
        return ValueSummary(None, None, reason=reasons.get(name, "never read in this cell"))
    return ValueSummary(
        peak=max(values),
        mean=sum(values) / len(values),
        low=min(values),
        first=values[0],
        last=values[-1],
    )


def _client(record: CellRecord, events: int) -> ClientSummary:
    cost = record.client
    return ClientSummary(
        cpu_fraction=_per(cost.cpu_s, cost.wall_s) if cost.cpu_s is not None else None,
        cpu_s_per_1000_events=(
            cost.cpu_s / events * 1000 if cost.cpu_s is not None and events else None
        ),
        loop_lag_s=distribution(cost.loop_lag_s),
        rss_bytes=cost.rss_bytes,
        clock_step_s=cost.clock_step_s,
    )
