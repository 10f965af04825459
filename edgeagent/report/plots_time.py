"""What happens while requests run? The course of a cell, and a second operator's arrival in one.

Values are means over steps of time and hold from one edge of a step to the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from edgeagent.report.plot_style import Style
from edgeagent.report.plots_canvas import draw
from edgeagent.report.plots_picture import (
    Axis,
    Curve,
    Panel,
    Picture,
    Rule,
    Span,
    exact,
    linear,
    steps,
)
from edgeagent.report.plots_values import (
    TITLE_EM,
    Cast,
    Missing,
    Plot,
    Setting,
    Table,
    Value,
    concurrency_of,
    items,
    page_key,
    setting_of,
)
from edgeagent.report.plots_words import (
    as_bytes,
    clean,
    finite,
    finites,
    plural,
    seconds,
    shorten,
    shown,
    size,
    word,
)
from edgeagent.report.reading import mapping

MOST_PLOTS = 6

TIMELINE = "timeline"
TIMELINE_TITLE = "Course of a cell"
ARRIVAL = "arrival"
ARRIVAL_TITLE = "A second operator arrives"

_FLAT = 0.2
"""Memory that moves by less than this share of itself gets an axis that does not begin at zero."""


# ------------------------------------------------------------------------------- course of a cell


@dataclass(frozen=True)
class _Timeline:
    setting: Setting
    concurrency: int
    cell: str
    step_s: float
    inflight: tuple[float | None, ...]
    tokens: tuple[float | None, ...]
    memory: tuple[float | None, ...]
    memory_of: str
    memory_reason: str | None
    """Why there is none."""
    steady: tuple[float, float] | None

    @property
    def edges(self) -> tuple[float, ...]:
        most = max(len(self.inflight), len(self.tokens), len(self.memory))
        return tuple(n * self.step_s for n in range(most + 1))


def timelines(cast: Cast) -> Iterator[Plot | Missing]:
    """Yield a plot for each cell whose course the documents have, at most `MOST_PLOTS`."""
    read = (_timeline(run, item) for run, item in items(cast.runs, "timelines"))
    found = [timeline for timeline in read if timeline is not None]
    if not found:
        yield Missing(
            TIMELINE,
            TIMELINE_TITLE,
            "The result has no course of a cell: either no cell was measured to its end, or it was "
            "written by an older version. Run `edgeagent sweep`.",
        )
        return
    for number, timeline in enumerate(found[:MOST_PLOTS]):
        left_out = len(found) - MOST_PLOTS if number == MOST_PLOTS - 1 else 0
        yield _course(cast, timeline, number, left_out)


def _timeline(run: int, item: Mapping[str, object]) -> _Timeline | None:
    step, concurrency = finite(item.get("step_s")), concurrency_of(item)
    inflight = finites(item.get("inflight"))
    tokens = finites(item.get("output_tokens_per_s"))
    memory = finites(item.get("memory_bytes"))
    if step is None or step <= 0 or concurrency is None or not _some(inflight + tokens + memory):
        return None
    begin, end = finite(item.get("steady_from_s")), finite(item.get("steady_to_s"))
    domain = {"gpu": "GPU memory", "host": "host memory"}.get(word(item, "memory_domain"), "memory")
    return _Timeline(
        setting_of(run, item),
        concurrency,
        word(item, "cell_id"),
        step,
        inflight,
        tokens,
        memory,
        domain,
        clean(item["memory_reason"]) if item.get("memory_reason") else None,
        None if begin is None or end is None or end <= begin else (begin, end),
    )


def _some(column: Sequence[float | None]) -> bool:
    return any(value is not None for value in column)


def _course(cast: Cast, timeline: _Timeline, number: int, left_out: int) -> Plot:
    x = exact(0.0, timeline.edges[-1], "seconds since the cell began")
    bare = Axis(x.low, x.high, x.ticks)
    panels = _course_panels(timeline, cast.style(timeline.setting), bare)
    panels[-1] = _under(panels[-1], x)
    key = page_key(TIMELINE, number)
    name = shorten(cast.name(timeline.setting), TITLE_EM)
    title = f"{TIMELINE_TITLE}: {name} with {plural(timeline.concurrency, 'request')} at once"
    alternative = _course_told(timeline)
    more = f" {plural(left_out, 'further course')} in the result." if left_out else ""
    return Plot(
        key=key,
        title=title,
        svg=draw(Picture(tuple(panels)), key, f"{title}. {alternative}"),
        alternative=alternative,
        caption=f"{_course_caption(timeline)} {cast.shared()}{more}".strip(),
        table=_course_table(timeline),
    )


def _under(panel: Panel, x: Axis) -> Panel:
    return Panel(panel.heading, x, panel.y, panel.curves, panel.spans, height=panel.height)


def _course_panels(timeline: _Timeline, look: Style, x: Axis) -> list[Panel]:
    panels: list[Panel] = []
    most = max((value for value in timeline.memory if value is not None), default=0.0)
    per, unit = as_bytes(most)
    memory = tuple(None if value is None else value / per for value in timeline.memory)
    for heading, column, axis, height in (
        ("requests in flight", timeline.inflight, _with_room(timeline.inflight), 66.0),
        ("output tokens/s", timeline.tokens, _from_zero(timeline.tokens), 96.0),
        (f"{timeline.memory_of}, {unit}", memory, _around(memory), 74.0),
    ):
        if not _some(column):
            continue
        outline_x, outline_y = steps(timeline.edges, column)
        curve = Curve(
            Style(look.colour, "", ()), outline_x, outline_y, marker="none", base=axis.low
        )
        words = "" if panels else "steady"
        spans = (Span(*timeline.steady, words),) if timeline.steady else ()
        panels.append(Panel(heading, x, axis, (curve,), spans, height=height))
    return panels


def _with_room(column: Sequence[float | None]) -> Axis:
    """Return an axis with room for a word above the data."""
    most = max((value for value in column if value is not None), default=1.0)
    return exact(0.0, 1.45 * most, most_ticks=3)


def _from_zero(column: Sequence[float | None]) -> Axis:
    return linear(0.0, 1.12 * max((v for v in column if v is not None), default=1.0), most_ticks=3)


def _around(column: Sequence[float | None]) -> Axis:
    known = [value for value in column if value is not None] or [0.0]
    low, high = min(known), max(known)
    if high - low > _FLAT * high:
        return linear(0.0, high, most_ticks=3)
    margin = max((high - low) * 0.25, abs(high) * 0.005)
    return linear(low - margin, high + margin, most_ticks=3)


def _starts_above_zero(column: Sequence[float | None]) -> bool:
    return _some(column) and _around(column).low > 0


def _course_told(timeline: _Timeline) -> str:
    parts = [
        f"Cell {timeline.cell}, {seconds(timeline.edges[-1])} in steps of "
        f"{seconds(timeline.step_s)}."
    ]
    for name, column, text in (
        ("Requests in flight", timeline.inflight, shown),
        ("Output tokens/s", timeline.tokens, shown),
        (timeline.memory_of[:1].upper() + timeline.memory_of[1:], timeline.memory, size),
    ):
        known = [value for value in column if value is not None]
        if known:
            parts.append(
                f"{name}: {text(known[0])} at first, between {text(min(known))} and "
                f"{text(max(known))}, {text(known[-1])} at last."
            )
        else:
            parts.append(f"{name}: not measured.")
    if timeline.steady:
        begin, end = timeline.steady
        parts.append(f"Steady from {seconds(begin)} to {seconds(end)}.")
    return " ".join(parts)


def _course_caption(timeline: _Timeline) -> str:
    words = []
    if timeline.steady:
        words.append("Shaded: the steady window, from which the cell's rates were taken.")
    if not _some(timeline.memory):
        why = f": {timeline.memory_reason.rstrip('.')}" if timeline.memory_reason else ""
        words.append(f"No memory was sampled in this cell{why}.")
    elif any(value is None for value in timeline.memory):
        words.append("Gaps: no sample.")
    if _starts_above_zero(timeline.memory):
        words.append("The axis of memory does not begin at zero.")
    return " ".join(words)


def _course_table(timeline: _Timeline) -> Table:
    columns = (timeline.inflight, timeline.tokens, timeline.memory)
    rows = tuple(
        (start, *(column[n] if n < len(column) else None for column in columns))
        for n, start in enumerate(timeline.edges[:-1])
    )
    return Table(
        ("from (s)", "requests in flight", "output tokens/s", f"{timeline.memory_of} (bytes)"), rows
    )


# ------------------------------------------------------------------------- a second operator


@dataclass(frozen=True)
class _Arrival:
    setting: Setting
    concurrency: int
    prompt_tokens: float | None
    arrivals: float | None
    step_s: float
    from_s: float
    tokens: tuple[float | None, ...]
    first_s: float | None
    end_s: float | None
    usual: float | None
    """The victims' rate while nobody came, from `interference[]`."""

    @property
    def edges(self) -> tuple[float, ...]:
        return tuple(self.from_s + n * self.step_s for n in range(len(self.tokens) + 1))


def second_operators(cast: Cast) -> Iterator[Plot | Missing]:
    """Yield a plot for each level at which a newcomer was sent in, at most `MOST_PLOTS`."""
    usual = _usual(cast)
    read = (_arrival(run, item, usual) for run, item in items(cast.runs, "arrivals"))
    found = [arrival for arrival in read if arrival is not None]
    if not found:
        yield Missing(
            ARRIVAL,
            ARRIVAL_TITLE,
            "No second operator was sent in. Run `edgeagent sweep --second-operator`.",
        )
        return
    for number, arrival in enumerate(found[:MOST_PLOTS]):
        yield _arrived(cast, arrival, number)


def _usual(cast: Cast) -> dict[tuple[Setting, int | None], float]:
    found = {}
    for run, item in items(cast.runs, "interference"):
        during = mapping(mapping(item.get("undisturbed")).get("during"))
        rate = finite(mapping(during.get("output_tokens_per_s")).get("value"))
        if rate is not None:
            found[setting_of(run, item), concurrency_of(item)] = rate
    return found


def _arrival(
    run: int, item: Mapping[str, object], usual: Mapping[tuple[Setting, int | None], float]
) -> _Arrival | None:
    step, start, concurrency = (
        finite(item.get("step_s")),
        finite(item.get("from_s")),
        concurrency_of(item),
    )
    tokens = finites(item.get("victims_tokens_per_s"))
    if step is None or step <= 0 or start is None or concurrency is None or not _some(tokens):
        return None
    setting = setting_of(run, item)
    return _Arrival(
        setting,
        concurrency,
        finite(item.get("prompt_tokens")),
        finite(item.get("arrivals")),
        step,
        start,
        tokens,
        finite(item.get("operator_first_token_s")),
        finite(item.get("operator_end_s")),
        usual.get((setting, concurrency)),
    )


def _arrived(cast: Cast, arrival: _Arrival, number: int) -> Plot:
    key = page_key(ARRIVAL, number)
    name = shorten(cast.name(arrival.setting), TITLE_EM)
    title = f"{ARRIVAL_TITLE}: {name}, {plural(arrival.concurrency, 'request')} under way"
    alternative = _arrived_told(arrival)
    picture = Picture((_arrived_panel(arrival, cast.style(arrival.setting)),))
    return Plot(
        key=key,
        title=title,
        svg=draw(picture, key, f"{title}. {alternative}"),
        alternative=alternative,
        caption=f"{_arrived_caption(arrival)} {cast.shared()}".strip(),
        table=Table(
            ("from (s)", "victims' output tokens/s"),
            tuple(_pairs(arrival)),
        ),
    )


def _pairs(arrival: _Arrival) -> Iterator[tuple[Value, ...]]:
    yield from zip(arrival.edges[:-1], arrival.tokens, strict=True)


def _arrived_panel(arrival: _Arrival, look: Style) -> Panel:
    x, y = steps(arrival.edges, arrival.tokens)
    known = [value for value in (*arrival.tokens, arrival.usual) if value is not None]
    # Room above the stream for three lines of words.
    axis = linear(0.0, 1.45 * max(known) or 1.0)
    rules = [Rule(0.0, "x", "second operator sends", row=0)]
    if arrival.first_s is not None:
        rules.append(Rule(arrival.first_s, "x", "its first token", row=1))
    if arrival.end_s is not None:
        rules.append(Rule(arrival.end_s, "x", "its last token", row=2))
    if arrival.usual is not None:
        rules.append(Rule(arrival.usual, "y", kind="quiet"))
    end = arrival.end_s if arrival.end_s is not None else arrival.first_s
    return Panel(
        "output tokens/s of those already served",
        exact(arrival.edges[0], arrival.edges[-1], "seconds since the second operator's request"),
        axis,
        (Curve(Style(look.colour, "", ()), x, y, marker="none", base=0.0),),
        (Span(0.0, end),) if end is not None and end > 0 else (),
        tuple(rules),
        height=190.0,
    )


def _arrived_told(arrival: _Arrival) -> str:
    before = [
        value
        for start, value in zip(arrival.edges, arrival.tokens)  # noqa: B905  # because edges are one more
        if value is not None and start + arrival.step_s <= 0
    ]
    after = [
        value
        for start, value in zip(arrival.edges, arrival.tokens)  # noqa: B905  # because edges are one more
        if value is not None and start >= 0
    ]
    parts = []
    if before:
        parts.append(
            f"Before the request those under way got {shown(min(before))} to {shown(max(before))} "
            "output tokens/s"
        )
    if after:
        parts.append(f"after it {shown(min(after))} to {shown(max(after))}")
    words = [f"{', '.join(parts)}." if parts else ""]
    if arrival.usual is not None:
        words.append(f"Without a newcomer: {shown(arrival.usual)} output tokens/s.")
    words.append(
        f"The second operator's first token came after {seconds(arrival.first_s)}, "
        f"its last after {seconds(arrival.end_s)}."
        if arrival.first_s is not None
        else "The second operator's first token was not seen."
    )
    return " ".join(filter(None, words))


def _arrived_caption(arrival: _Arrival) -> str:
    words = []
    if arrival.prompt_tokens is not None:
        words.append(f"The newcomer's prompt has {arrival.prompt_tokens:,.0f} tokens.")
    if arrival.arrivals is not None:
        words.append(f"Mean over {plural(int(arrival.arrivals), 'arrival')}.")
    words.append("Shaded: while the newcomer is waiting or served.")
    if arrival.usual is not None:
        words.append(f"Dotted: {shown(arrival.usual)} tokens/s, the rate when nobody comes.")
    return " ".join(words)
