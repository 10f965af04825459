"""Which pictures does the fleet's page have? Throughput and memory a slot, class by class."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from edgeagent.fleet.queries import Kind
from edgeagent.fleet.summary import KindSummary, Middle
from edgeagent.report.plot_style import PER_PLOT, style
from edgeagent.report.plots_canvas import draw, fits_at_ends
from edgeagent.report.plots_picture import (
    Axis,
    Curve,
    Entry,
    Panel,
    Picture,
    growing,
    levels_axis,
)
from edgeagent.report.plots_values import Missing, Plot, Table
from edgeagent.report.plots_words import as_bytes, clean, shorten, shown, size

MOST_CLASSES = 8
"""Pictures of more classes nobody compares; the table has all of them."""

_TITLE_EM = 24.0
_CLASS_EM = 9.0


def pictures(summed: Sequence[KindSummary]) -> tuple[Plot | Missing, ...]:
    """Return the plots, those of the classes with the most boxes first."""
    if not summed:
        return ()
    return tuple(_each(summed))


def _each(summed: Sequence[KindSummary]) -> Iterator[Plot | Missing]:
    by_class: defaultdict[str, list[KindSummary]] = defaultdict(list)
    for one in summed:
        by_class[one.kind.box_class].append(one)
    ordered = sorted(by_class.values(), key=lambda own: -max(one.boxes for one in own))
    looks = _looks(summed)
    for place, own in enumerate(ordered[:MOST_CLASSES]):
        yield _throughput(place, own, looks)
    yield _memory([own for own in ordered if any(one.slot for one in own)][:MOST_CLASSES], looks)


def _looks(summed: Sequence[KindSummary]) -> dict[str, int]:
    """An engine has the same look in every picture."""
    return {name: n for n, name in enumerate(sorted({one.kind.engine for one in summed}))}


# ------------------------------------------------------------------------------------ throughput


def _throughput(place: int, own: Sequence[KindSummary], looks: dict[str, int]) -> Plot | Missing:
    name = _class(own[0].kind)
    title = f"{shorten(name, _TITLE_EM)}: output tokens per second"
    key = f"class-{place}"
    measured = [one for one in own if one.rates][:PER_PLOT]
    if not measured:
        return Missing(key, title, "no level has a throughput: run a sweep on a box of the class")
    names = _names([one.kind for one in measured])
    one_each = len({one.kind.engine for one in measured}) == len(measured)
    curves = [
        Curve(
            style(looks[one.kind.engine] if one_each else number),
            tuple(float(level) for level in one.rates),
            tuple(found.median for found in one.rates.values()),
            tuple(_ends(found) for found in one.rates.values()),
            name=label,
        )
        for number, (one, label) in enumerate(zip(measured, names, strict=True))
    ]
    labelled = fits_at_ends(curves)
    levels = {level for one in measured for level in one.rates}
    most = max(found.high for one in measured for found in one.rates.values())
    values = [found.median for one in measured for found in one.rates.values()]
    panel = Panel(
        "output tokens/s, all requests together",
        levels_axis(levels),
        growing(values, most),
        tuple(curves),
        height=190.0,
    )
    legend = (
        ()
        if labelled
        else tuple(Entry(label, c.style) for label, c in zip(names, curves, strict=True))
    )
    words = _throughput_words(name, measured, names)
    most_boxes = max(one.boxes for one in measured)
    return Plot(
        key,
        title,
        draw(Picture((panel,), legend), key, words),
        words,
        f"Median over the boxes of the class, at most {most_boxes:,}; the strokes reach "
        "from the lowest box to the highest. Higher is better.",
        Table(
            ("engine", "concurrency", "median", "lowest", "highest", "boxes"),
            tuple(
                (label, level, found.median, found.low, found.high, found.boxes)
                for one, label in zip(measured, names, strict=True)
                for level, found in one.rates.items()
            ),
        ),
    )


def _ends(found: Middle) -> tuple[float, float] | None:
    return None if found.low == found.high else (found.low, found.high)


def _throughput_words(name: str, measured: Sequence[KindSummary], names: Sequence[str]) -> str:
    parts = []
    for one, label in zip(measured, names, strict=True):
        levels = list(one.rates)
        first, last = one.rates[levels[0]], one.rates[levels[-1]]
        parts.append(
            f"{label}: {shown(first.median)} tokens/s at {levels[0]}, "
            f"{shown(last.median)} at {levels[-1]}"
        )
    return f"Output tokens per second against concurrency on {name}. {'; '.join(parts)}."


def _names(kinds: Sequence[Kind]) -> list[str]:
    """What tells these series apart, and no more."""
    parts = [
        (
            clean(kind.engine), clean(kind.model), clean(kind.quant), f"context {kind.ctx}",
            f"cache {clean(kind.prefix_cache)}", f"speculation {clean(kind.speculation)}",
        )
        for kind in kinds
    ]  # fmt: skip
    differ = [n for n in range(len(parts[0])) if n == 0 or len({one[n] for one in parts}) > 1]
    return [", ".join(one[n] for n in differ) for one in parts]


def _class(kind: Kind) -> str:
    return clean(kind.box_class) if kind.box_class else "class not told"


# ---------------------------------------------------------------------------------------- memory


def _memory(classes: Sequence[Sequence[KindSummary]], looks: dict[str, int]) -> Plot | Missing:
    key, title = "slots", "Memory a slot, by class"
    if not classes:
        return Missing(key, title, "no box measured it: run a sweep with [memory]")
    per, unit = as_bytes(max(one.slot.high for own in classes for one in own if one.slot))
    engines = sorted({one.kind.engine for own in classes for one in own if one.slot})[:PER_PLOT]
    rows = [
        (_class(one.kind), clean(one.kind.engine), place + 1, _widest(own, engine))
        for place, own in enumerate(classes)
        for engine in engines
        for one in [next((one for one in own if one.kind.engine == engine), None)]
        if one is not None
    ]
    curves = tuple(
        _dots(
            looks[engine],
            [(place, found) for _, name, place, found in rows if name == clean(engine)],
            per,
        )
        for engine in engines
    )
    ticks = tuple(
        (float(place + 1), shorten(_class(own[0].kind), _CLASS_EM))
        for place, own in enumerate(classes)
    )
    values = [value / per for _, _, _, found in rows if found for value in (found.low, found.high)]
    axis = Axis(0.5, len(classes) + 0.5, ticks, "class of box")
    panel = Panel(f"{unit} a slot", axis, growing(values, max(values)), curves, height=190.0)
    legend = tuple(Entry(clean(engine), style(looks[engine]), line="none") for engine in engines)
    words = "Memory a slot. " + "; ".join(
        f"{name}, {engine}: {size(found.median)}" for name, engine, _, found in rows if found
    )
    return Plot(
        key,
        title,
        draw(Picture((panel,), legend), key, words + "."),
        words + ".",
        "What each further simultaneous request costs: the median over the boxes of a class, and "
        "strokes from the lowest to the highest. Lower is better.",
        Table(
            ("class", "engine", "median, bytes", "lowest", "highest", "boxes"),
            tuple(
                (name, engine, found.median, found.low, found.high, found.boxes)
                for name, engine, _, found in rows
                if found
            ),
        ),
    )


def _widest(own: Sequence[KindSummary], engine: str) -> Middle | None:
    """The memory of an engine on a class: of the setting that most boxes were measured with."""
    found = [one for one in own if one.kind.engine == engine and one.slot]
    return max(found, key=lambda one: one.boxes).slot if found else None


def _dots(look: int, points: Sequence[tuple[int, Middle | None]], per: float) -> Curve:
    """The points of one engine, a little beside those of the others."""
    aside = (look % PER_PLOT) * 0.14 - 0.07
    known = [(place + aside, found) for place, found in points if found]
    return Curve(
        style(look),
        tuple(x for x, _ in known),
        tuple(found.median / per for _, found in known),
        tuple(
            None if (ends := _ends(found)) is None else (ends[0] / per, ends[1] / per)
            for _, found in known
        ),
        line="none",
    )
