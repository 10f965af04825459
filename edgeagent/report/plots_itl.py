"""How evenly do tokens come? The distribution of the silences between them (ITL), a row a level.

Each row is one concurrency, each outline one engine and setting; the height is the share of that
series' gaps that a bin of `distributions[]` holds, so series of different length compare.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from edgeagent.report.plots_canvas import draw
from edgeagent.report.plots_picture import Axis, Curve, Entry, Panel, Picture, logarithmic, steps
from edgeagent.report.plots_values import (
    Cast,
    Missing,
    Plot,
    Setting,
    Table,
    concurrency_of,
    items,
    page_key,
    page_title,
    pages,
    setting_of,
)
from edgeagent.report.plots_words import as_seconds, finite, finites, plural, seconds, shown

KEY = "itl"
TITLE = "Time between tokens (ITL)"
OVER_EACH_OTHER = 4
"""More outlines than these in one row hide each other."""
MOST_PAGES = 3
MOST_ROWS = 7
_ROW_HEIGHT = 46.0
_OVERLAP = 0.92


@dataclass(frozen=True)
class _Gaps:
    setting: Setting
    concurrency: int
    edges: tuple[float, ...]
    counts: tuple[float, ...]
    below: float | None
    above: float | None
    n: float

    @property
    def fullest(self) -> int:
        return max(range(len(self.counts)), key=lambda place: self.counts[place])


def token_gaps(cast: Cast) -> Iterator[Plot | Missing]:
    """Yield the plots of the distributions: one, or several where there are many series."""
    found = _read(cast)
    if not found:
        yield Missing(
            KEY,
            TITLE,
            "The result has no distribution of the gaps between tokens: either no cell counted "
            "tokens one by one, or it was written by an older version. Run `edgeagent sweep`.",
        )
        return
    settings = cast.among(gaps.setting for gaps in found)
    cut = pages(settings, OVER_EACH_OTHER, MOST_PAGES)
    rest = settings[MOST_PAGES * OVER_EACH_OTHER :]
    for number, here in enumerate(cut):
        listed = (*here, *rest) if number == len(cut) - 1 else here
        yield _plot(cast, found, here, _Place(number, len(cut), listed))


@dataclass(frozen=True)
class _Place:
    number: int
    of: int
    listed: tuple[Setting, ...]
    """In the table."""


def _read(cast: Cast) -> tuple[_Gaps, ...]:
    return tuple(
        gaps
        for run, item in items(cast.runs, "distributions")
        if item.get("metric") == "itl_s" and (gaps := _gaps(run, item)) is not None
    )


def _gaps(run: int, item: Mapping[str, object]) -> _Gaps | None:
    """Return a distribution that can be drawn: rising edges, a count for each bin, any gap."""
    edges = tuple(edge for edge in finites(item.get("edges")) if edge is not None and edge > 0)
    counts = tuple(count or 0.0 for count in finites(item.get("counts")))
    concurrency, n = concurrency_of(item), finite(item.get("n"))
    if concurrency is None or not n or len(edges) != len(counts) + 1 or not any(counts):
        return None
    if any(low >= high for low, high in pairwise(edges)):
        return None
    below, above = finite(item.get("below")), finite(item.get("above"))
    return _Gaps(setting_of(run, item), concurrency, edges, counts, below, above, n)


def _plot(cast: Cast, found: Sequence[_Gaps], here: Sequence[Setting], place: _Place) -> Plot:
    own = [gaps for gaps in found if gaps.setting in set(here)]
    levels = sorted({gaps.concurrency for gaps in own})
    rows = _spread(levels, MOST_ROWS)
    drawn = [gaps for gaps in own if gaps.concurrency in set(rows)]
    key, title = page_key(KEY, place.number), page_title(TITLE, place.number, place.of)
    alternative = " ".join(_told(cast, setting, own) for setting in here)
    legend = tuple(Entry(cast.name(one), cast.style(one), marker="none") for one in here)
    picture = Picture((_panel(cast, drawn, rows),), legend)
    return Plot(
        key=key,
        title=title,
        svg=draw(picture, key, f"{title}. {alternative}"),
        alternative=alternative,
        caption=_caption(cast, drawn, len(levels) - len(rows)),
        table=_table(cast, [gaps for gaps in found if gaps.setting in set(place.listed)]),
    )


def _spread(levels: Sequence[int], most: int) -> tuple[int, ...]:
    """Return at most so many levels, with the first and the last."""
    if len(levels) <= most:
        return tuple(levels)
    return tuple(levels[round(n * (len(levels) - 1) / (most - 1))] for n in range(most))


def _panel(cast: Cast, drawn: Sequence[_Gaps], rows: Sequence[int]) -> Panel:
    low = min(_known(gaps)[0] for gaps in drawn)
    high = max(_known(gaps)[1] for gaps in drawn)
    per, unit = as_seconds(high)
    tallest = max(max(gaps.counts) / gaps.n for gaps in drawn)
    curves = []
    for gaps in sorted(drawn, key=lambda gaps: gaps.concurrency):
        base = float(rows.index(gaps.concurrency))
        x, y = steps(
            [edge / per for edge in gaps.edges],
            _heights(gaps, base, tallest),
        )
        curves.append(Curve(cast.style(gaps.setting), x, y, marker="none", base=base))
    ticks = tuple((float(row), f"{level:,}") for row, level in enumerate(rows))
    return Panel(
        "simultaneous requests (concurrency)",
        logarithmic(low / per, high / per, f"time between two tokens, {unit} (logarithmic)"),
        Axis(0.0, float(len(rows)), ticks),
        tuple(curves),
        height=max(2.0, len(rows)) * _ROW_HEIGHT,
    )


def _heights(gaps: _Gaps, base: float, tallest: float) -> tuple[float | None, ...]:
    """Return the outline above its row; nothing where there is no gap further out."""
    full = [place for place, count in enumerate(gaps.counts) if count]
    return tuple(
        base + _OVERLAP * count / gaps.n / tallest if full[0] <= place <= full[-1] else None
        for place, count in enumerate(gaps.counts)
    )


def _known(gaps: _Gaps) -> tuple[float, float]:
    """Return from where to where there is any gap."""
    full = [place for place, count in enumerate(gaps.counts) if count]
    return gaps.edges[full[0]], gaps.edges[full[-1] + 1]


def _told(cast: Cast, setting: Setting, found: Sequence[_Gaps]) -> str:
    parts = []
    for gaps in sorted(found, key=lambda gaps: gaps.concurrency):
        if gaps.setting == setting:
            at = gaps.fullest
            first, last = _known(gaps)
            parts.append(
                f"at {gaps.concurrency:,}, {shown(gaps.n)} gaps from {seconds(first)} to "
                f"{seconds(last)}, most often {seconds(gaps.edges[at])} to "
                f"{seconds(gaps.edges[at + 1])}"
            )
    return f"{cast.name(setting)}: {'; '.join(parts) or 'not measured'}."


def _caption(cast: Cast, drawn: Sequence[_Gaps], left_out: int) -> str:
    words = [
        "The higher the outline, the larger the share of gaps of that length; narrow and far left "
        "is better."
    ]
    outside = sum((gaps.below or 0) + (gaps.above or 0) for gaps in drawn)
    if outside:
        words.append(f"{shown(outside)} gaps were shorter or longer than any bin.")
    if left_out:
        words.append(f"{plural(left_out, 'further level')} stand in the numbers only.")
    words.append(cast.shared())
    return " ".join(filter(None, words))


def _table(cast: Cast, found: Sequence[_Gaps]) -> Table:
    header = (
        "series", "concurrency", "gaps", "shorter than all bins", "longer than all bins",
        "fullest bin from (s)", "fullest bin to (s)", "gaps in it",
    )  # fmt: skip
    rows = tuple(
        (
            cast.name(gaps.setting),
            gaps.concurrency,
            gaps.n,
            gaps.below,
            gaps.above,
            gaps.edges[gaps.fullest],
            gaps.edges[gaps.fullest + 1],
            gaps.counts[gaps.fullest],
        )
        for gaps in found
    )
    return Table(header, rows)
