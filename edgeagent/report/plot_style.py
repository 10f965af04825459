"""What do the plots look like: how large, in which colours, and how does a page change them?

An SVG of ours is inlined into a page and takes its colours from the page's CSS variables. Each has
a fallback, so that a plot that stands alone looks as it does on white paper:

    --plot-ink      text and axes                  (currentColor: what the page writes with)
    --plot-quiet    words beside the data          (#4d4d4d)
    --plot-paper    what the plot stands on; hollow markers, the space around words   (#ffffff)
    --plot-grid     lines of the grid              (#d0d0d0)
    --plot-shade    shaded windows of time         (#7f8c99, drawn at 18 %)
    --plot-alarm    limits: a budget, the newcomer (#a3123a)
    --plot-1 … --plot-8   the engines and settings, in the order in which they first come
    --plot-font     font family                    (system-ui, …)

`CSS` sets them for light, dark and print; a page includes it once. Whoever switches by hand (a
`data-theme`) can take `variables("dark")`.

The colours keep apart for the colour-blind (blue against orange first), each has a contrast of at
least 3:1 to the paper, and neighbours differ in lightness, so that a grey printer tells them apart.
They never stand alone: each series has a marker and a dash pattern of its own as well.

A plot is `WIDTH` units wide. At 360 pixels, a phone's whole width, its smallest text is 11.2 pixels
high; from 400 to 560 pixels it looks best.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

WIDTH = 400.0
TEXT = 12.5
"""Height of letters in units of the plot; nothing is smaller."""

INK = "#1b1b1b"
QUIET = "#4d4d4d"
PAPER = "#ffffff"
GRID = "#d0d0d0"
SHADE = "#7f8c99"
ALARM = "#a3123a"
SERIES = (
    "#004f87", "#dd6b00", "#00835d", "#6b1f5c", "#c2569a", "#2a86c8", "#6e5200", "#7b7b7b",
)  # fmt: skip

DARK_PAPER = "#15181c"
_DARK = {
    "ink": "#ececec",
    "quiet": "#bdbdbd",
    "paper": DARK_PAPER,
    "grid": "#3d4249",
    "shade": "#9aa7b4",
    "alarm": "#ff8fa8",
    "1": "#86cbff",
    "2": "#ee8a2c",
    "3": "#3fd6a4",
    "4": "#b988e0",
    "5": "#f5a8d6",
    "6": "#4f9fdc",
    "7": "#d9c057",
    "8": "#9c9c9c",
}
_LIGHT = {
    "ink": INK,
    "quiet": QUIET,
    "paper": PAPER,
    "grid": GRID,
    "shade": SHADE,
    "alarm": ALARM,
    **{str(number): colour for number, colour in enumerate(SERIES, start=1)},
}

FONT = 'var(--plot-font, system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif)'

REFERENCES = {
    colour: f"var(--plot-{name}, {'currentColor' if name == 'ink' else colour})"
    for name, colour in _LIGHT.items()
}
"""What stands in the SVG for each colour that is drawn with."""

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_DASHES: tuple[tuple[float, ...], ...] = (
    (), (6, 2), (2, 1.5), (7, 2, 1.5, 2), (4, 1.5), (9, 3), (1, 1), (5, 1.5, 1.5, 1.5, 1.5, 1.5),
)  # fmt: skip


def variables(theme: Literal["light", "dark"]) -> str:
    """Return the declarations of a theme, to stand in a rule."""
    colours = _LIGHT if theme == "light" else _DARK
    return " ".join(f"--plot-{name}: {colour};" for name, colour in colours.items())


def colours(theme: Literal["light", "dark"]) -> dict[str, str]:
    """Return the colours of a theme by the names of their variables, without `--plot-`."""
    return dict(_LIGHT if theme == "light" else _DARK)


CSS = f"""\
:root {{ {variables("light")} }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ {variables("dark")} }} }}
"""
"""Paper is light whatever the screen is: the dark colours are for screens only."""


@dataclass(frozen=True)
class Style:
    """What tells one series from another, three times over."""

    colour: str
    marker: str
    dashes: tuple[float, ...]
    """Lengths drawn and left out, in widths of the line; none for a line without gaps."""


def style(number: int) -> Style:
    """Return the look of the series with this number, from 0; after eight they come again."""
    place = number % len(SERIES)
    return Style(SERIES[place], _MARKERS[place], _DASHES[place])


PER_PLOT = len(SERIES)
"""More series than these nobody can tell apart."""
