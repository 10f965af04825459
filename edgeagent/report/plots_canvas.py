"""How does a picture become an SVG? matplotlib draws the lines; words are set in afterwards.

The one module that knows matplotlib, and it imports it only when it draws. Nothing of pyplot is
used, and nothing of the user's own settings: the same picture gives the same bytes.

matplotlib never sees a word: it places `t0`, `t1`, …, and plots_svg.py puts the words there. So a
`$` begins no formula, and a name that its fonts lack neither warns nor fails.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from edgeagent.errors import UsageError
from edgeagent.report.plot_style import ALARM, GRID, INK, PAPER, QUIET, SHADE, TEXT, WIDTH, Style
from edgeagent.report.plots_picture import Curve, Entry, Panel, Picture, Rule
from edgeagent.report.plots_svg import Words, inlined
from edgeagent.report.plots_words import distinct, em, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INSTALL = "pip install 'edgeagent[report]', or apt install python3-matplotlib"

_DPI = 72.0
"""So that a unit of the plot is a point of matplotlib."""
_ROW = 17.0
_HEADING = 25.0
"""Above a panel: its heading, free of the uppermost tick's words."""
_RIGHT = 14.0
_LABEL_EM = 8.5
"""Longest name that is written at the end of a line; longer ones make a legend."""
_MOST_LABELS = 4
_NEAR = 1.3
"""Lines whose last levels are within this factor end together."""
_LEGEND_LINE = 30.0
_MANY = 30
"""From so many points on not each has a marker."""
_SALT = "edgeagent"


def draw(picture: Picture, key: str, label: str) -> str:
    """Return the picture as SVG to inline; `label` is its text alternative, in full.

    Raises:
        UsageError: matplotlib is not installed.
    """
    with _matplotlib():
        board = _Board.sized(picture)
        board.paint(picture)
        return inlined(board.svg(), f"plot-{key}", tuple(board.words), label)


@contextmanager
def _matplotlib() -> Iterator[None]:
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise UsageError(
            f"plots need matplotlib, and it cannot be imported here ({error}): {INSTALL}"
        ) from error
    with mpl.rc_context():
        mpl.rcdefaults()  # because a user's matplotlibrc is about other plots
        mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": _SALT, "path.snap": False})
        yield


@dataclass
class _Board:
    """A sheet of paper in units of the plot; (0, 0) is its lower left corner."""

    figure: Figure
    whole: Axes
    height: float
    left: float
    right: float
    words: list[Words] = field(default_factory=list)

    @classmethod
    def sized(cls, picture: Picture) -> _Board:
        """Return an empty sheet for this picture."""
        from matplotlib.figure import Figure

        height = _legend_height(picture) + sum(_panel_height(panel) for panel in picture.panels) + 4
        figure = Figure(figsize=(WIDTH / _DPI, height / _DPI), dpi=_DPI)
        figure.patch.set_visible(False)
        whole = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        whole.set_axis_off()
        whole.set_xlim(0, WIDTH)
        whole.set_ylim(0, height)
        whole.set_zorder(5)
        whole.patch.set_visible(False)
        widest = max(
            (em(words) for panel in picture.panels for _, words in panel.y.ticks), default=0
        )
        labels = () if picture.legend else _end_labels(picture)
        right = max([_RIGHT, *(em(name) * TEXT + 12 for name in labels)])
        return cls(figure, whole, height, widest * TEXT + 12, right)

    def svg(self) -> str:
        """Return what matplotlib makes of the sheet."""
        text = io.StringIO()
        self.figure.savefig(text, format="svg", dpi=_DPI, metadata={"Date": None, "Creator": None})
        return text.getvalue()

    def write(
        self,
        at: tuple[float, float],
        words: str,
        align: Literal["left", "center", "right"] = "left",
        kind: Literal["plain", "quiet", "strong", "alarm"] = "plain",
    ) -> None:
        """Put words on the sheet; `at` is where their line begins, is centred, or ends."""
        if not words:
            return
        colour = {"quiet": QUIET, "alarm": ALARM}.get(kind, INK)
        self.whole.text(
            *at,
            f"t{len(self.words)}",
            fontsize=TEXT,
            ha=align,
            va="baseline",
            color=colour,
            clip_on=False,
        )
        self.words.append(Words(words, "strong" if kind == "strong" else "plain"))

    def paint(self, picture: Picture) -> None:
        """Draw legend and panels from the top down."""
        top = self.height - 2
        self._legend(picture.legend, top)
        top -= _legend_height(picture)
        for panel in picture.panels:
            self._panel(panel, top, labelled=not picture.legend)
            top -= _panel_height(panel)

    # ------------------------------------------------------------------------------- the legend

    def _legend(self, entries: Sequence[Entry], top: float) -> None:
        columns, short = _legend_columns(entries)
        for place, (entry, words) in enumerate(zip(entries, short, strict=True)):
            x = 4 + (place % columns) * (WIDTH - 4) / columns
            y = top - (place // columns) * _ROW - 12
            look = _look(entry.style, entry.line, entry.marker)
            self.whole.plot(
                [x, x + _LEGEND_LINE / 2, x + _LEGEND_LINE],
                [y + 4.5] * 3,
                markevery=[1],
                solid_capstyle="butt",
                **look,
            )
            self.write((x + _LEGEND_LINE + 7, y), words)

    # -------------------------------------------------------------------------------- the panels

    def _panel(self, panel: Panel, top: float, *, labelled: bool) -> None:
        upper = top - _HEADING
        lower = upper - panel.height
        width = WIDTH - self.left - self.right
        box = (
            self.left / WIDTH,
            lower / self.height,
            width / WIDTH,
            panel.height / self.height,
        )
        axes = self.figure.add_axes(box)
        _prepare(axes, panel)
        frame = _Frame(panel, self.left, lower, width)
        heading = shorten(panel.heading, (WIDTH - 8) / TEXT)
        self.write((4, upper + 12), heading, kind="strong")
        self._ticks(frame)
        for span in panel.spans:
            axes.axvspan(span.low, span.high, color=SHADE, alpha=0.18, linewidth=0, zorder=0.5)
            if span.words:
                middle = frame.x((span.low + span.high) / 2)
                self.write((middle, upper - 13 - span.row * 15), span.words, "center", "quiet")
        for curve in panel.curves:
            _curve(axes, curve, panel)
        for rule in panel.rules:
            self._rule(axes, rule, frame)
        for note in panel.notes:
            y = upper - 13 if note.corner == "top" else lower + 6
            self.write((self.left + 6, y), note.words, kind="quiet")
        if labelled:
            self._names(frame)

    def _ticks(self, frame: _Frame) -> None:
        panel = frame.panel
        floor, right = frame.lower, frame.left + frame.width
        written = panel.x.written(frame.width, TEXT)
        # Of very many levels only those have a mark that have a number.
        marked = written if len(panel.x.ticks) > _MANY else panel.x.ticks
        marks = [((x, floor), (x, floor - 4)) for x in (frame.x(value) for value, _ in marked)]
        frame_look = {"color": INK, "linewidth": 1.0, "zorder": 0.9}
        _strokes(self.whole, [((frame.left, floor), (right, floor)), *marks], frame_look)
        for value, words in panel.y.written(panel.height, TEXT * 0.7):
            self.write((self.left - 6, frame.y(value) - 4.5), words, "right")
        for value, words in written:
            self.write((frame.x(value), frame.lower - 15), words, "center")
        if panel.x.label:
            middle = frame.left + frame.width / 2
            self.write((middle, frame.lower - 15 - _ROW), panel.x.label, "center")

    def _rule(self, axes: Axes, rule: Rule, frame: _Frame) -> None:
        colour = ALARM if rule.kind == "limit" else QUIET
        look: dict[str, Any] = {"color": colour, "linewidth": 1.4, "zorder": 2.5}
        look["dashes"] = (7, 2, 1.5, 2) if rule.kind == "limit" else (2, 2)
        kind: Literal["alarm", "quiet"] = "alarm" if rule.kind == "limit" else "quiet"
        if rule.across == "x":
            axes.axvline(rule.at, **look)
            x, y = frame.x(rule.at), frame.lower + frame.panel.height - 13 - rule.row * 15
            to_left = x + em(rule.words) * TEXT + 4 > frame.left + frame.width
            self.write((x - 4 if to_left else x + 4, y), rule.words, _side(to_left), kind)
        else:
            axes.axhline(rule.at, **look)
            y = frame.y(rule.at) + (5 if rule.row == 0 else -14)
            self.write((frame.left + 6, y), rule.words, "left", kind)

    def _names(self, frame: _Frame) -> None:
        """Write each name beside the end of its line, none over another."""
        ends = sorted(
            (frame.y(end[1]), curve.name, frame.x(end[0]))
            for curve in frame.panel.curves
            if curve.name is not None and (end := _end(curve)) is not None
        )
        floor = -math.inf
        for y, name, x in ends:
            floor = max(y - 4.5, floor + 14)
            self.write((x + 9, floor), name)


def _side(to_left: object) -> Literal["left", "right"]:
    return "right" if to_left else "left"


@dataclass(frozen=True)
class _Frame:
    """Where a panel stands on the sheet."""

    panel: Panel
    left: float
    lower: float
    width: float

    def x(self, value: float) -> float:
        return self.left + self.panel.x.fraction(value) * self.width

    def y(self, value: float) -> float:
        return self.lower + self.panel.y.fraction(value) * self.panel.height


def _panel_height(panel: Panel) -> float:
    return _HEADING + panel.height + 20 + (_ROW if panel.x.label else 0) + 4


def _legend_height(picture: Picture) -> float:
    columns, _ = _legend_columns(picture.legend)
    return math.ceil(len(picture.legend) / columns) * _ROW + (4 if picture.legend else 0)


def _legend_columns(entries: Sequence[Entry]) -> tuple[int, tuple[str, ...]]:
    """Return in how many columns a legend stands, and its words as they fit there."""
    widest = max((em(entry.words) for entry in entries), default=0)
    columns = 2 if widest * TEXT + _LEGEND_LINE + 20 <= WIDTH / 2 else 1
    room = (WIDTH / columns - _LEGEND_LINE - 20) / TEXT
    return columns, distinct([entry.words for entry in entries], room)


def fits_at_ends(curves: Sequence[Curve]) -> bool:
    """Tell whether the names of these curves can stand where their lines end."""
    named = [curve for curve in curves if curve.name is not None]
    ends = [end[0] for curve in named if (end := _end(curve)) is not None]
    return (
        len(named) <= _MOST_LABELS
        and max(ends, default=1) <= _NEAR * min(ends, default=1)
        and all(em(curve.name or "") <= _LABEL_EM for curve in named)
    )


def _end_labels(picture: Picture) -> tuple[str, ...]:
    return tuple(c.name for panel in picture.panels for c in panel.curves if c.name is not None)


def _end(curve: Curve) -> tuple[float, float] | None:
    known = [(x, y) for x, y in zip(curve.x, curve.y, strict=True) if y is not None]
    return known[-1] if known else None


# -------------------------------------------------------------------------------- lines and marks


def _prepare(axes: Axes, panel: Panel) -> None:
    """Scale a pair of axes; ticks, grid and frame are drawn as lines, much faster than as ticks."""
    axes.set_axis_off()
    axes.set_xscale(panel.x.scale)
    axes.set_yscale(panel.y.scale)
    axes.set_xlim(panel.x.low, panel.x.high)
    axes.set_ylim(panel.y.low, panel.y.high)
    _strokes(
        axes,
        [((panel.x.low, at), (panel.x.high, at)) for at, _ in panel.y.ticks],
        {"color": GRID, "linewidth": 0.8, "zorder": 0.8},
    )


def _strokes(
    axes: Axes,
    ends: Sequence[tuple[tuple[float, float], tuple[float, float]]],
    look: dict[str, Any],
) -> None:
    """Draw straight lines as one path."""
    x = [value for (x0, _), (x1, _) in ends for value in (x0, x1, math.nan)]
    y = [value for (_, y0), (_, y1) in ends for value in (y0, y1, math.nan)]
    if x:
        axes.plot(x, y, marker=None, linestyle="solid", clip_on=False, **look)


def _look(style: Style, line: str, marker: str) -> dict[str, Any]:
    look: dict[str, Any] = {
        "color": style.colour,
        "linewidth": 1.9,
        "marker": style.marker if marker != "none" else None,
        "markersize": 6.5 if style.marker not in "*X P" else 8,
        "markerfacecolor": PAPER if marker == "hollow" else style.colour,
        "markeredgecolor": style.colour,
        "markeredgewidth": 1.5,
    }
    dashes = (4.0, 2.5) if line == "dashed" else style.dashes
    if line == "none":
        look["linestyle"] = "none"
    elif dashes:
        look["dashes"] = dashes
    return look


def _curve(axes: Axes, curve: Curve, panel: Panel) -> None:
    x = list(curve.x)
    y = [math.nan if value is None else value for value in curve.y]
    if curve.base is not None:
        axes.fill_between(
            x, y, curve.base, color=curve.style.colour, alpha=0.16, linewidth=0, zorder=1.5
        )
    _intervals(axes, curve, panel)
    look = _look(curve.style, curve.line, curve.marker)
    every = max(1, len(x) // _MANY)
    axes.plot(x, y, zorder=3, markevery=every, clip_on=curve.base is not None, **look)
    if curve.hollow:
        again = _look(curve.style, "none", "hollow")
        axes.plot([x[n] for n in curve.hollow], [y[n] for n in curve.hollow], zorder=3.5, **again)


def _intervals(axes: Axes, curve: Curve, panel: Panel) -> None:
    """Draw intervals as strokes with an end; one that leaves the panel has no end there."""
    x: list[float] = []
    y: list[float] = []
    for at, ends in zip(curve.x, curve.intervals, strict=False):
        if ends is not None:
            x += [at, at, math.nan]
            y += [*(_held(end, panel) for end in ends), math.nan]
    if x:
        look: dict[str, Any] = {"marker": "_", "markersize": 9, "markeredgewidth": 1.4}
        axes.plot(x, y, color=curve.style.colour, linewidth=1.3, alpha=0.8, zorder=2.8, **look)


def _held(end: float, panel: Panel) -> float:
    """Return an end of an interval, at most a little outside the panel (a log axis has no zero)."""
    if panel.y.scale == "log":
        least, most = sorted((panel.y.low, panel.y.high))
        return min(max(end, least / 2), most * 2)
    return end
