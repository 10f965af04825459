"""What does each further slot cost, and how many fit? A plot for each line of `memory[]`.

The upper panel shows the starts that were measured, the fitted line and the prediction; the lower
one how far the line goes before the budget ends. Both lines begin at the fitted base.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from edgeagent.report.plot_style import style
from edgeagent.report.plots_canvas import draw
from edgeagent.report.plots_picture import Curve, Entry, Panel, Picture, Rule, exact, linear
from edgeagent.report.plots_values import TITLE_EM, Cast, Missing, Plot, Table, items, page_key
from edgeagent.report.plots_words import (
    as_bytes,
    clean,
    finite,
    finites,
    interval,
    plural,
    shorten,
    size,
    word,
)

KEY = "memory"
TITLE = "Memory against slots"
MOST_PLOTS = 6
_FAR = 1.5
"""From so many times the slots measured on, the way to the budget needs a panel of its own."""
_SLOTS = "slots (simultaneous requests it can hold)"
_SHOWN_BUDGET = 3.0
"""A budget higher than so many times what is drawn is told, not drawn."""
_DOMAINS = {"gpu": "GPU memory", "host": "host memory", "unified": "shared memory"}
_MEASURED, _PREDICTED = style(0), style(1)


@dataclass(frozen=True)
class _Cost:
    name: str
    what: str
    slots: tuple[float | None, ...]
    taken: tuple[float | None, ...]
    ready: tuple[float | None, ...]
    base: float | None
    per_slot: float | None
    ci95: tuple[float, float] | None
    predicted: float | None
    budget: float | None
    reserve: float | None
    max_slots: float | None
    method: str
    reason: str | None

    @property
    def usable(self) -> float | None:
        """What slots may take: the budget less the reserve."""
        return None if self.budget is None else self.budget - (self.reserve or 0.0)

    def line(self, slots: float) -> float | None:
        if self.base is None or self.per_slot is None:
            return None
        return self.base + self.per_slot * slots

    def prediction(self, slots: float) -> float | None:
        if self.base is None or self.predicted is None:
            return None
        return self.base + self.predicted * slots


def memory_against_slots(cast: Cast) -> Iterator[Plot | Missing]:
    """Yield a plot for each engine and kind of memory."""
    costs = [_read(cast, run, item) for run, item in items(cast.runs, "memory")]
    found = [cost for cost in costs if _points(cost.slots, cost.taken, cost.ready)]
    if not found:
        yield Missing(KEY, TITLE, _reason(costs))
        return
    drawn = found[:MOST_PLOTS]
    for number, cost in enumerate(drawn):
        yield _plot(cost, number)


def _reason(costs: list[_Cost]) -> str:
    why = next((cost.reason for cost in costs if cost.reason), None)
    if why is not None:
        return f"What a slot costs could not be measured ({why}). Run `edgeagent sweep` again."
    return (
        "What a slot costs was not measured. Run `edgeagent sweep` without `--memory-repeats 0`, "
        "on an engine that it starts itself."
    )


def _points(slots: tuple[float | None, ...], *columns: tuple[float | None, ...]) -> bool:
    return any(
        n is not None and value is not None for column in columns for n, value in zip(slots, column)  # noqa: B905  # because a broken document's lists differ in length
    )  # fmt: skip


def _read(cast: Cast, run: int, item: Mapping[str, object]) -> _Cost:
    domain = word(item, "domain")
    called = _DOMAINS.get(domain, domain)
    speculation = word(item, "speculation")
    beside = "" if speculation == "off" else f", speculation {speculation}"
    name = cast.from_run(run, f"{word(item, 'engine')}{beside}")
    context = finite(item.get("context_per_slot"))
    each = "" if context is None else f", {context:,.0f} tokens a slot"
    slots = finites(item.get("slots"))
    taken, ready = (_column(item.get(key), len(slots)) for key in ("bytes", "ready_bytes"))
    return _Cost(
        name=name,
        what=f"{name}: {called}{each}",
        slots=slots,
        taken=taken,
        ready=ready,
        base=finite(item.get("base_bytes")),
        per_slot=finite(item.get("measured_bytes_per_slot")),
        ci95=interval(item.get("ci95")),
        predicted=finite(item.get("predicted_bytes_per_slot")),
        budget=finite(item.get("budget_bytes")),
        reserve=finite(item.get("reserve_bytes")),
        max_slots=finite(item.get("max_slots")),
        method=word(item, "method"),
        reason=clean(item["reason"]) if item.get("reason") else None,
    )


def _column(values: object, length: int) -> tuple[float | None, ...]:
    known = finites(values)[:length]
    return (*known, *([None] * (length - len(known))))


def _plot(cost: _Cost, number: int) -> Plot:
    most = max(n for n in cost.slots if n is not None)
    far = cost.max_slots is not None and cost.max_slots > _FAR * most
    panels = [_measured(cost, most, alone=not far)]
    if far:
        panels.append(_to_the_budget(cost))
    key, title = page_key(KEY, number), f"{TITLE}: {shorten(cost.name, TITLE_EM)}"
    alternative = _told(cost)
    return Plot(
        key=key,
        title=title,
        svg=draw(Picture(tuple(panels), _legend(cost)), key, f"{title}. {alternative}"),
        alternative=alternative,
        caption=_caption(cost),
        table=_table(cost),
    )


def _legend(cost: _Cost) -> tuple[Entry, ...]:
    entries = []
    if any(value is not None for value in cost.taken):
        entries.append(Entry("working", _MEASURED, "none"))
    if any(value is not None for value in cost.ready):
        entries.append(Entry("just started", _MEASURED, "none", "hollow"))
    if cost.per_slot is not None:
        entries.append(Entry("fitted line", _MEASURED, marker="none"))
    if cost.predicted is not None and cost.base is not None:
        entries.append(Entry("predicted", _PREDICTED, "dashed", "none"))
    return tuple(entries)


def _measured(cost: _Cost, most: float, *, alone: bool) -> Panel:
    """Return the panel of the starts; with the budget, where no other panel shows it."""
    x = linear(0.0, max(most, cost.max_slots or 0) if alone else most, _SLOTS)
    end = x.high
    reach = [
        value
        for value in (*cost.taken, *cost.ready, cost.line(end), cost.prediction(end))
        if value is not None
    ]
    per, unit = as_bytes(max(reach))
    with_budget = alone and cost.usable is not None and cost.usable <= _SHOWN_BUDGET * max(reach)
    if with_budget and cost.budget is not None:
        reach.append(cost.budget)
    points = (
        _dots(cost, cost.ready, per, "hollow"),
        _dots(cost, cost.taken, per, "filled"),
    )
    return Panel(
        f"{cost.what.rpartition(': ')[2]}, {unit}",
        x,
        linear(0.0, (1.12 if with_budget else 1.0) * max(reach) / per),
        (*_lines(cost, x.high, per), *points),
        rules=_limits(cost, per) if with_budget else (),
        height=150.0,
    )


def _to_the_budget(cost: _Cost) -> Panel:
    end = cost.max_slots or 1.0
    reach = [value for value in (cost.line(end), cost.prediction(end)) if value is not None]
    top = max(reach, default=1.0)
    near = cost.usable is not None and cost.usable <= _SHOWN_BUDGET * top
    if near and cost.budget is not None:
        top = max(top, cost.budget)
    per, unit = as_bytes(top)
    x = exact(0.0, end * 1.06, "slots")
    return Panel(
        f"as far as slots fit, {unit}",
        x,
        linear(0.0, 1.12 * top / per),
        (*_lines(cost, x.high, per), _dots(cost, cost.taken, per, "filled")),
        rules=(
            *(_limits(cost, per) if near else ()),
            Rule(end, "x", f"{end:,.0f} slots fit", row=6),
        ),
        height=130.0,
    )


def _dots(cost: _Cost, column: tuple[float | None, ...], per: float, marker: str) -> Curve:
    pairs = [(n, value) for n, value in zip(cost.slots, column, strict=True) if n is not None]
    return Curve(
        _MEASURED,
        tuple(n for n, _ in pairs),
        tuple(None if value is None else value / per for _, value in pairs),
        line="none",
        marker="hollow" if marker == "hollow" else "filled",
    )


def _lines(cost: _Cost, end: float, per: float) -> tuple[Curve, ...]:
    found = []
    for line, look, drawn in (
        (cost.prediction, _PREDICTED, "dashed"),
        (cost.line, _MEASURED, "drawn"),
    ):
        ends = [line(0.0), line(end)]
        if None not in ends:
            y = tuple(None if value is None else value / per for value in ends)
            found.append(
                Curve(
                    look,
                    (0.0, end),
                    y,
                    line="dashed" if drawn == "dashed" else "drawn",
                    marker="none",
                )
            )
    return tuple(found)


def _limits(cost: _Cost, per: float) -> tuple[Rule, ...]:
    if cost.budget is None or cost.usable is None:
        return ()
    if not cost.reserve:
        return (Rule(cost.budget / per, "y", f"budget {size(cost.budget)}", row=1),)
    return (
        Rule(cost.budget / per, "y", f"budget {size(cost.budget)}", row=0),
        Rule(cost.usable / per, "y", f"less the reserve: {size(cost.usable)}", "quiet", row=1),
    )


def _told(cost: _Cost) -> str:
    points = [
        f"{size(value)} with {plural(int(n), 'slot')}"
        for n, value in zip(cost.slots, cost.taken, strict=True)
        if n is not None and value is not None
    ]
    words = [f"{cost.what}. Measured while working: {', '.join(points) or 'nothing'}."]
    if cost.per_slot is not None:
        ends = f" ({size(cost.ci95[0])} to {size(cost.ci95[1])})" if cost.ci95 else ""
        words.append(
            f"Each further slot costs {size(cost.per_slot)}{ends}, from {size(cost.base)}."
        )
    if cost.predicted is not None:
        words.append(f"Predicted: {size(cost.predicted)} a slot.")
    words.append(_fit(cost))
    return " ".join(words)


def _fit(cost: _Cost) -> str:
    if cost.budget is None:
        return "The budget is not known, so neither is the number of slots that fit."
    kept = f" less a reserve of {size(cost.reserve)}" if cost.reserve else ""
    if cost.max_slots is None:
        return f"Budget: {size(cost.budget)}{kept}; how many slots fit is not known."
    return f"Budget: {size(cost.budget)}{kept}; {plural(int(cost.max_slots), 'slot')} fit."


def _caption(cost: _Cost) -> str:
    words = [f"{cost.what}. {_fit(cost)}"]
    drawn = cost.line(cost.max_slots) if cost.max_slots is not None else None
    if drawn is not None and cost.usable is not None and cost.usable > _SHOWN_BUDGET * drawn:
        words.append("The budget is far above what is drawn: slots are limited by something else.")
    if cost.method == "blocks_in_use":
        words.append(
            "Counted are the blocks of the engine's own pool that requests hold: the budget is "
            "that pool."
        )
    if cost.predicted is not None and cost.base is not None:
        words.append("The prediction is what arithmetic says of a slot, from the fitted base on.")
    if cost.ci95 is None and cost.reason:
        words.append(f"No interval: {cost.reason.rstrip('.')}.")
    return " ".join(words)


def _table(cost: _Cost) -> Table:
    return Table(
        ("series", "slots", "working (bytes)", "at rest (bytes)"),
        tuple(
            (cost.name, n, taken, ready)
            for n, taken, ready in zip(cost.slots, cost.taken, cost.ready, strict=True)
        ),
    )
