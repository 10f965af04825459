"""What is drawn in a plot? Plain values: panels with axes, curves, shaded spans, limits and words.

Who looks at a document makes a `Picture` of it; who draws (plots_canvas.py) needs no document.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from edgeagent.report.plot_style import Style
from edgeagent.report.plots_words import em, shown

Scale = Literal["linear", "log"]
Ends = tuple[float, float]

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_WIDE = 25.0
"""A quantity that grows by more than this factor is drawn on a logarithmic axis."""


@dataclass(frozen=True)
class Axis:
    """From where to where an axis goes, and what is written at it."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...] = ()
    label: str = ""
    scale: Scale = "linear"

    def fraction(self, value: float) -> float:
        """Return where a value stands: 0 at the low end, 1 at the high one; not cut off."""
        if self.scale == "log":
            floor = min(self.low, self.high) * 1e-3
            low, high, here = (math.log(max(v, floor)) for v in (self.low, self.high, value))
            return (here - low) / (high - low)
        return (value - self.low) / (self.high - self.low)

    def written(self, length: float, height: float) -> tuple[tuple[float, str], ...]:
        """Return the ticks whose words have room on an axis of this length; the ends go first."""
        kept: list[tuple[float, float]] = []
        chosen = []
        for tick in (*self.ticks[:1], *self.ticks[-1:], *self.ticks[1:-1]):
            middle = self.fraction(tick[0]) * length
            half = em(tick[1]) * height / 2 + height * 0.25
            if all(abs(middle - other) >= half + reach for other, reach in kept):
                kept.append((middle, half))
                chosen.append(tick)
        return tuple(chosen)


@dataclass(frozen=True)
class Curve:
    """Points of one series; None is a gap."""

    style: Style
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    intervals: tuple[Ends | None, ...] = ()
    line: Literal["drawn", "dashed", "none"] = "drawn"
    """Drawn in the series' own dashes, or dashed as what is only calculated is."""
    marker: Literal["filled", "hollow", "none"] = "filled"
    hollow: tuple[int, ...] = ()
    """Places of points whose marker is hollow although the others are filled."""
    base: float | None = None
    """Filled down to here."""
    name: str | None = None
    """Written at the end of the line, where there is room."""


@dataclass(frozen=True)
class Span:
    """A part of the x axis that is shaded."""

    low: float
    high: float
    words: str = ""
    row: int = 0
    """Where the words stand: rows below the upper edge."""


@dataclass(frozen=True)
class Rule:
    """A line through the whole panel, with words at it."""

    at: float
    across: Literal["x", "y"]
    """Which axis it stands on."""
    words: str = ""
    kind: Literal["limit", "quiet"] = "limit"
    row: int = 0
    """Where the words stand: rows below the upper edge, or above (0) or below (1) the line."""


@dataclass(frozen=True)
class Note:
    """Words in a corner of a panel."""

    words: str
    corner: Literal["top", "bottom"] = "top"


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    heading: str
    """What goes up: the quantity and its unit."""
    x: Axis
    y: Axis
    curves: tuple[Curve, ...] = ()
    spans: tuple[Span, ...] = ()
    rules: tuple[Rule, ...] = ()
    notes: tuple[Note, ...] = ()
    height: float = 150.0


@dataclass(frozen=True)
class Entry:
    """A line of the legend."""

    words: str
    style: Style
    line: Literal["drawn", "dashed", "none"] = "drawn"
    marker: Literal["filled", "hollow", "none"] = "filled"


@dataclass(frozen=True)
class Picture:
    """Panels one below the other."""

    panels: tuple[Panel, ...]
    legend: tuple[Entry, ...] = ()


# ----------------------------------------------------------------------------------------- axes


def linear(low: float, high: float, label: str = "", most_ticks: int = 5) -> Axis:
    """Return an axis from `low` to `high`, rounded outwards to its ticks where it is close."""
    if high <= low:
        high = low + (abs(low) or 1.0)
    step = _step((high - low) / most_ticks)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple((n * step, _tick(n * step, step)) for n in range(first, last + 1))
    return Axis(first * step, last * step, ticks, label)


def exact(low: float, high: float, label: str = "", most_ticks: int = 5) -> Axis:
    """Return an axis that begins and ends where it is told to, ticks or not."""
    around = linear(low, high, label, most_ticks)
    if high <= low:
        return around
    ticks = tuple(tick for tick in around.ticks if low <= tick[0] <= high)
    return Axis(low, high, ticks, label)


def _step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * step for step in _STEPS if power * step >= least * (1 - 1e-9))


def _tick(value: float, step: float) -> str:
    if abs(value) >= 1e7:  # noqa: PLR2004  # because longer numbers take the plot's room
        return f"{value:.3g}"
    decimals = max(0, math.ceil(-math.log10(step) - 1e-9))
    text = f"{round(value, decimals + 1):,.{decimals + 1}f}".rstrip("0").rstrip(".")
    return "0" if text in {"-0", ""} else text


def logarithmic(low: float, high: float, label: str = "") -> Axis:
    """Return a logarithmic axis of a quantity above zero."""
    low, high = low / 1.08, high * 1.08
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = (1, 2, 5) if len(powers) <= 4 else (1,)  # noqa: PLR2004  # because more would crowd
    values = (digit * 10.0**power for power in powers for digit in digits)
    ticks = tuple((value, shown(value)) for value in values if low <= value <= high)
    return Axis(low, high, ticks, label, "log")


def growing(values: Iterable[float], most: float) -> Axis:
    """Return an axis for values from zero: linear, or logarithmic where they differ widely."""
    known = list(values)
    above = [value for value in known if value > 0]
    if above and len(above) == len(known) and max(above) > _WIDE * min(above):
        return logarithmic(min(above), max(*above, most))
    return linear(0.0, max([*known, most, 0.0]) or 1.0)


def levels_axis(levels: Iterable[int]) -> Axis:
    """Return the axis of concurrency: doublings are as far apart as each other."""
    known = sorted(set(levels)) or [1]
    margin = 1.16 if len(known) > 1 else 2.0
    ticks = tuple((float(level), f"{level:,}") for level in known)
    return Axis(
        known[0] / margin, known[-1] * margin, ticks, "simultaneous requests (concurrency)", "log"
    )


def factor_axis(values: Sequence[float], best: Literal["higher", "lower"]) -> Axis:
    """Return the axis of a ratio around 1, upside down where lower is better; room at its ends."""
    least, most = (math.log2(end) for end in (min([*values, 1.0]), max([*values, 1.0])))
    room = max(0.35, (most - least) * 0.3)
    low, high = least - room, most + room
    every = max(1, math.ceil((high - low) / 4))
    powers = [p for p in range(math.ceil(low), math.floor(high) + 1) if p % every == 0]
    ticks = tuple((2.0**power, _times(power)) for power in powers)
    ends = (2.0**low, 2.0**high) if best == "higher" else (2.0**high, 2.0**low)
    return Axis(*ends, ticks, "", "log")


def _times(power: int) -> str:
    value = f"{2**power:,}" if power >= 0 else f"1/{2**-power:,}"
    return f"{value}×"  # noqa: RUF001  # because it is a multiplication


def steps(
    edges: Sequence[float], values: Sequence[float | None]
) -> tuple[tuple[float, ...], tuple[float | None, ...]]:
    """Return the outline of values that hold from one edge to the next."""
    x = [edge for low, high in pairwise(edges) for edge in (low, high)]
    y = [value for value in values for _ in range(2)]
    return tuple(x[: len(y)]), tuple(y[: len(x)])
