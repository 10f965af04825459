"""How does a metric grow with concurrency? Throughput, time to first token, energy a token.

Each point is the mean over the repeats of one level, as `levels[]` has it, with its 95 % interval.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from edgeagent.report.plot_style import PER_PLOT
from edgeagent.report.plots_canvas import draw, fits_at_ends
from edgeagent.report.plots_picture import (
    Curve,
    Ends,
    Entry,
    Panel,
    Picture,
    growing,
    levels_axis,
)
from edgeagent.report.plots_values import (
    Cast,
    Missing,
    Plot,
    Setting,
    Table,
    Value,
    concurrency_of,
    items,
    page_key,
    page_title,
    pages,
    setting_of,
)
from edgeagent.report.plots_words import (
    NONE,
    as_seconds,
    between,
    clean,
    finite,
    interval,
    plural,
    shown,
)
from edgeagent.report.reading import mapping, mappings

MOST_PAGES = 3
_MUCH = 2.0
"""Intervals may take this many times the height of the points; wider ones are cut."""


@dataclass(frozen=True)
class Metric:
    """A metric of `levels[].metrics`."""

    name: str
    heading: str
    column: str
    """What the table calls it."""
    unit: str
    """As in the document."""


@dataclass(frozen=True)
class Kind:
    """A plot over concurrency: a panel for each metric that was measured."""

    key: str
    title: str
    metrics: tuple[Metric, ...]
    caption: str
    height: float


THROUGHPUT = Kind(
    "throughput",
    "Output tokens per second against concurrency",
    (
        Metric(
            "output_tokens_per_s",
            "output tokens/s, all requests together",
            "output tokens/s",
            "tokens/s",
        ),
    ),
    "Higher is better.",
    200.0,
)
TTFT = Kind(
    "ttft",
    "Time to first token against concurrency",
    (
        Metric("ttft_s.p50", "median (p50)", "TTFT p50", "s"),
        Metric("ttft_s.p95", "95th percentile (p95)", "TTFT p95", "s"),
    ),
    "Lower is better. Half of the requests waited no longer than the median, 19 of 20 no longer "
    "than the 95th percentile.",
    140.0,
)
ENERGY = Kind(
    "energy",
    "Energy per output token against concurrency",
    (
        Metric(
            "energy.per_output_token_j", "whole box, J per output token", "per output token", "J"
        ),
        Metric(
            "energy.net_per_output_token_j", "above idle, J per output token", "above idle", "J"
        ),
    ),
    "Lower is better.",
    140.0,
)


def over_concurrency(kind: Kind, cast: Cast) -> Iterator[Plot | Missing]:
    """Yield the plots of one kind: one, or several where there are many series."""
    data = _Data(
        kind, cast, {metric: _measured(metric, cast) for metric in kind.metrics}, _levels(cast)
    )
    settings = cast.among(whose for points in data.series.values() for whose, _ in points)
    if not settings:
        yield Missing(kind.key, kind.title, _reason(kind, cast))
        return
    cut = pages(settings, PER_PLOT, MOST_PAGES)
    for number, here in enumerate(cut):
        last = number == len(cut) - 1
        rest = settings[len(cut) * PER_PLOT :] if last else ()
        yield _plot(data, _Page(number, len(cut), here, rest))


@dataclass(frozen=True)
class _Page:
    number: int
    of: int
    settings: tuple[Setting, ...]
    rest: tuple[Setting, ...]
    """Not drawn, but in the table."""


@dataclass(frozen=True)
class _Point:
    setting: Setting
    concurrency: int
    replicates: float | None
    mean: float
    ci95: Ends | None


@dataclass(frozen=True)
class _Data:
    """What the documents have for one kind of plot."""

    kind: Kind
    cast: Cast
    series: Mapping[Metric, Mapping[tuple[Setting, int], _Point]]
    levels: Mapping[Setting, tuple[int, ...]]
    """At which each series was run, measured or not."""

    def drawn(self, metric: Metric, page: _Page) -> list[_Point]:
        """Return the points of a page, in the order of its series and levels."""
        return [
            point
            for setting in page.settings
            for level in self.levels[setting]
            if (point := self.series[metric].get((setting, level))) is not None
        ]


def _measured(metric: Metric, cast: Cast) -> dict[tuple[Setting, int], _Point]:
    found: dict[tuple[Setting, int], _Point] = {}
    for run, level in items(cast.runs, "levels"):
        value = mapping(mapping(level.get("metrics")).get(metric.name))
        average, concurrency = finite(value.get("mean")), concurrency_of(level)
        if average is None or concurrency is None:
            continue
        setting = setting_of(run, level)
        found[setting, concurrency] = _Point(
            setting,
            concurrency,
            finite(level.get("replicates")),
            average,
            interval(value.get("ci95")),
        )
    return found


def _levels(cast: Cast) -> dict[Setting, tuple[int, ...]]:
    """Return the levels that each series was run at, measured or not."""
    found: dict[Setting, set[int]] = {}
    for run, level in items(cast.runs, "levels"):
        concurrency = concurrency_of(level)
        if concurrency is not None:
            found.setdefault(setting_of(run, level), set()).add(concurrency)
    return {setting: tuple(sorted(levels)) for setting, levels in found.items()}


def _plot(data: _Data, page: _Page) -> Plot:
    kind, cast = data.kind, data.cast
    metrics = [metric for metric in kind.metrics if data.drawn(metric, page)]
    longest = max(point.mean for metric in metrics for point in data.drawn(metric, page))
    unit = as_seconds(longest)
    panels = tuple(_panel(data, page, metric, unit, metric is metrics[-1]) for metric in metrics)
    alternative = " ".join(_told(data, page, metric) for metric in kind.metrics)
    key = page_key(kind.key, page.number)
    title = page_title(kind.title, page.number, page.of)
    return Plot(
        key=key,
        title=title,
        svg=draw(_labelled(panels, cast, page.settings), key, f"{title}. {alternative}"),
        alternative=alternative,
        caption=_caption(data, page),
        table=_table(data, page),
    )


def _panel(
    data: _Data, page: _Page, metric: Metric, of_times: tuple[float, str], lowest: object
) -> Panel:
    """Return the panel of a metric; times are in the same unit in all panels."""
    here = data.drawn(metric, page)
    per, unit = of_times if metric.unit == "s" else (1.0, "")
    highest = max(point.mean for point in here)
    reach = max((point.ci95[1] for point in here if point.ci95), default=0.0)
    scale = growing(
        [point.mean / per for point in here],
        min(max(reach, highest), _MUCH * highest) * 1.03 / per,
    )
    heading = f"{metric.heading}, {unit}" if unit else metric.heading
    if scale.scale == "log":
        heading += " (logarithmic)"
    axis = levels_axis(level for setting in page.settings for level in data.levels[setting])
    return Panel(
        heading,
        axis if lowest else replace(axis, label=""),
        scale,
        tuple(_series(data, page, metric, place, per) for place in range(len(page.settings))),
        height=data.kind.height,
    )


def _series(data: _Data, page: _Page, metric: Metric, place: int, per: float) -> Curve:
    setting = page.settings[place]
    levels = data.levels[setting]
    points = [data.series[metric].get((setting, level)) for level in levels]
    # Beside each other by a few units of the plot, so that no interval hides another.
    aside = 1.0 + 0.022 * (place - (len(page.settings) - 1) / 2)
    return Curve(
        data.cast.style(setting),
        tuple(level * aside for level in levels),
        tuple(None if point is None else point.mean / per for point in points),
        tuple(
            None if point is None or point.ci95 is None
            else (point.ci95[0] / per, point.ci95[1] / per)
            for point in points
        ),
        name=data.cast.name(setting),
    )  # fmt: skip


def _labelled(panels: Sequence[Panel], cast: Cast, settings: Sequence[Setting]) -> Picture:
    """Return the picture with names at the ends of lines where they fit, or else a legend."""
    if all(fits_at_ends(panel.curves) for panel in panels):
        return Picture(tuple(panels))
    return Picture(tuple(panels), tuple(Entry(cast.name(one), cast.style(one)) for one in settings))


# ------------------------------------------------------------------------------------- in words


def _told(data: _Data, page: _Page, metric: Metric) -> str:
    parts = []
    for setting in page.settings:
        points = [data.series[metric].get((setting, level)) for level in data.levels[setting]]
        numbers = ", ".join(
            f"{shown(point.mean)}{between(point.ci95)} at {point.concurrency:,}"
            for point in points
            if point is not None
        )
        parts.append(f"{data.cast.name(setting)}: {numbers or NONE}.")
    unit = ", in s" if metric.unit == "s" else ""
    return f"{metric.heading[:1].upper()}{metric.heading[1:]}{unit}. {' '.join(parts)}"


def _caption(data: _Data, page: _Page) -> str:
    drawn = [data.drawn(metric, page) for metric in data.kind.metrics]
    here = [point for points in drawn for point in points]
    words = [data.kind.caption]
    if any(point.ci95 for point in here):
        words.append("Points are means over the repeats, strokes their 95 % intervals.")
    else:
        words.append("Points are means over the repeats.")
    if any(point.ci95 is None for point in here):
        words.append("A point without a stroke has fewer than three repeats: no interval.")
    if any(_cut(points) for points in drawn):
        words.append("A stroke that reaches the upper edge goes on beyond it; see the numbers.")
    words.append(data.cast.shared())
    if page.rest:
        words.append(f"{len(page.rest):,} further series stand in the numbers only.")
    return " ".join(filter(None, words))


def _cut(points: Sequence[_Point]) -> bool:
    highest = max((point.mean for point in points), default=0.0)
    return any(point.ci95 is not None and point.ci95[1] > _MUCH * highest for point in points)


def _table(data: _Data, page: _Page) -> Table:
    header = ["series", "concurrency", "repeats"]
    for metric in data.kind.metrics:
        header += [f"{metric.column} ({metric.unit})", "95 % from", "95 % to"]
    rows = []
    for setting in (*page.settings, *page.rest):
        for level in data.levels[setting]:
            points = [series.get((setting, level)) for series in data.series.values()]
            replicates = next((point.replicates for point in points if point), None)
            row: list[Value] = [data.cast.name(setting), level, replicates]
            for point in points:
                ends = (None, None) if point is None or point.ci95 is None else point.ci95
                row += [None if point is None else point.mean, *ends]
            rows.append(tuple(row))
    return Table(tuple(header), tuple(rows))


# ---------------------------------------------------------------------------------- what is missing


def _reason(kind: Kind, cast: Cast) -> str:
    if kind is ENERGY:
        reasons = (
            mapping(cell.get("energy")).get("reason") for _, cell in items(cast.runs, "cells")
        )
        why = next((clean(reason) for reason in reasons if reason), "no cell says why")
        return (
            f"No energy was measured ({why}). Sweep on a box whose power can be read; "
            "`edgeagent doctor` says whether it can."
        )
    cells = sum(len(mappings(run.document.get("cells"))) for run in cast.runs)
    if not cells:
        return "No cell was measured. Run `edgeagent sweep` to its end."
    return (
        f"None of {plural(cells, 'cell')} gave this number: the findings say what went wrong. "
        "Run `edgeagent sweep` again once that is put right."
    )
