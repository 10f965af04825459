"""What did a second operator's arrival look like to those who were being served?

The victims' tokens around every newcomer that was served, laid over each other: moment 0 is when
the newcomer's request was sent, and each step is averaged over all of them. The windows are those
of core/interference.py; the picture reaches as far as the shortest one does.

A cell is boiled down to tokens per step when its records are at hand (`overlay`), in steps of a
power of two of milliseconds, which divide each other: so cells are put together later without them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edgeagent.core.interference import pairs_of, quiet_from_ns
from edgeagent.core.model import ArrivalRecord, Cell, RequestTrace, Switch
from edgeagent.core.series import GAPS_A_STEP, MOST_STEPS, usual_gap_ns

_NS = 1e9
_FINEST_NS = 1_000_000
_KEPT_STEPS = 4 * MOST_STEPS


@dataclass(frozen=True)
class ArrivalSeries:
    """A line of `arrivals[]`: the victims around the moment at which a newcomer's request left."""

    engine: str
    concurrency: int
    prefix_cache: Switch
    speculation: str
    prompt_tokens: int
    """Of the newcomer's prompt."""
    arrivals: int
    """How many were laid over each other."""
    step_s: float
    from_s: float
    """Where the first step begins: before the newcomer's request, so negative or zero."""
    victims_tokens_per_s: tuple[float, ...]
    operator_first_token_s: float
    operator_end_s: float
    """The newcomer's first and last token, on average."""


@dataclass(frozen=True)
class Overlay:
    """The arrivals of one cell: tokens of its victims in each step, over all of its windows."""

    cell: Cell
    step_ns: int
    before: tuple[int, ...]
    """Going back from the moment."""
    after: tuple[int, ...]
    first_token_ns: tuple[int, ...]
    last_token_ns: tuple[int, ...]
    """Of each newcomer, since its request was sent."""
    gap_ns: int
    """The usual one between tokens of a victim."""


@dataclass(frozen=True)
class _Window:
    """One newcomer that was served; stamps are monotonic nanoseconds."""

    sent_ns: int
    from_ns: int
    until_ns: int
    first_token_ns: int
    last_token_ns: int


def overlay(record: ArrivalRecord, traces: Sequence[RequestTrace]) -> Overlay | None:
    """The cell's arrivals over each other; None when no newcomer was served."""
    windows = _windows(record, traces)
    if not windows:
        return None
    before_ns = max(0, min(window.sent_ns - window.from_ns for window in windows))
    after_ns = max(0, min(window.until_ns - window.sent_ns for window in windows))
    step_ns = _FINEST_NS
    while before_ns + after_ns > _KEPT_STEPS * step_ns:
        step_ns *= 2
    earlier, later = before_ns // step_ns, after_ns // step_ns
    victims = [trace for trace in traces if trace.role in ("lead_in", "measured")]
    tokens = [0] * (earlier + later)
    for window in windows:
        _add(tokens, victims, window.sent_ns - earlier * step_ns, step_ns)
    return Overlay(
        cell=record.cell,
        step_ns=step_ns,
        before=tuple(reversed(tokens[:earlier])),
        after=tuple(tokens[earlier:]),
        first_token_ns=tuple(window.first_token_ns - window.sent_ns for window in windows),
        last_token_ns=tuple(window.last_token_ns - window.sent_ns for window in windows),
        gap_ns=usual_gap_ns(victims),
    )


def _windows(record: ArrivalRecord, traces: Sequence[RequestTrace]) -> list[_Window]:
    newcomers = {trace.scheduled_ns: trace for trace in traces if trace.role == "operator"}
    found = []
    for _, joined in pairs_of(record):
        arrival = record.arrivals[joined]
        trace = newcomers.get(arrival.at_ns)
        if trace is not None and trace.ok and trace.sent_ns is not None and trace.event_ns:
            found.append(
                _Window(
                    sent_ns=trace.sent_ns,
                    from_ns=quiet_from_ns(record, joined),
                    until_ns=arrival.until_ns,
                    first_token_ns=trace.event_ns[0],
                    last_token_ns=trace.event_ns[-1],
                )
            )
    return found


def _add(tokens: list[int], victims: Iterable[RequestTrace], begin_ns: int, step_ns: int) -> None:
    """Add the victims' tokens from a moment on, each to its step."""
    end_ns = begin_ns + len(tokens) * step_ns
    for trace in victims:
        stamps = trace.event_ns
        for index in range(bisect_left(stamps, begin_ns), bisect_left(stamps, end_ns)):
            tokens[(stamps[index] - begin_ns) // step_ns] += trace.event_tokens[index]


def arrivals(overlays: Iterable[Overlay]) -> tuple[ArrivalSeries, ...]:
    """Cells put together by engine, fan-out and setting, in their order."""
    groups: dict[tuple[object, ...], list[Overlay]] = {}
    for one in overlays:
        config = one.cell.config
        key = (config.engine.id, one.cell.concurrency, config.prefix_cache, config.speculation)
        groups.setdefault(key, []).append(one)
    series = (_together(group) for group in groups.values())
    return tuple(found for found in series if found.victims_tokens_per_s)


def _together(group: Sequence[Overlay]) -> ArrivalSeries:
    cell = group[0].cell
    before_ns = min(len(one.before) * one.step_ns for one in group)
    after_ns = min(len(one.after) * one.step_ns for one in group)
    step_ns = max(one.step_ns for one in group)
    least_ns = GAPS_A_STEP * max(one.gap_ns for one in group)
    while before_ns + after_ns > MOST_STEPS * step_ns or step_ns < least_ns:
        step_ns *= 2
    earlier, later = before_ns // step_ns, after_ns // step_ns
    tokens = [0] * (earlier + later)
    for one in group:
        merged = step_ns // one.step_ns
        for index in range(earlier):
            tokens[earlier - 1 - index] += sum(one.before[index * merged : (index + 1) * merged])
        for index in range(later):
            tokens[earlier + index] += sum(one.after[index * merged : (index + 1) * merged])
    firsts = [at for one in group for at in one.first_token_ns]
    ends = [at for one in group for at in one.last_token_ns]
    step_s = step_ns / _NS
    return ArrivalSeries(
        engine=cell.config.engine.id,
        concurrency=cell.concurrency,
        prefix_cache=cell.config.prefix_cache,
        speculation=cell.config.speculation,
        prompt_tokens=cell.arrival.prompt_tokens if cell.arrival else 0,
        arrivals=len(firsts),
        step_s=step_s,
        from_s=-earlier * step_s,
        victims_tokens_per_s=tuple(count / (len(firsts) * step_s) for count in tokens),
        operator_first_token_s=sum(firsts) / len(firsts) / _NS,
        operator_end_s=sum(ends) / len(ends) / _NS,
    )
