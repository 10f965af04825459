"""What does plant IT put on the wall: which box, which engine, and who needs somebody?

One HTML page that needs no network and no script. What wants attention comes first: boxes that
differ from their peers or from their own past, then boxes in trouble; then what the fleet says as a
whole, and every box. Narrowing down to a class or a site is done by the page's style.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cache
from typing import TYPE_CHECKING

from edgeagent.core.peers import MIN_PEERS
from edgeagent.fleet.page_boxes import attention, box_rows, fit_tables
from edgeagent.fleet.page_cells import Badge, Choice, Filter, Tokens, said
from edgeagent.fleet.page_fleet import (
    class_table,
    crossing_table,
    doubt_table,
    lead_sentences,
    lost_table,
    outlier_table,
    refused_table,
)
from edgeagent.fleet.page_plots import pictures
from edgeagent.fleet.queries import Lost, Measured, Refused, Said
from edgeagent.fleet.status import Line, counts
from edgeagent.fleet.summary import (
    Fitness,
    doubt_summaries,
    fitnesses,
    leads,
    outliers,
    summaries,
    verdicts,
)
from edgeagent.report.plot_style import CSS
from edgeagent.report.plots_values import Missing, Plot
from edgeagent.report.sheet_values import Html, Table, plotted

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATE = "fleet.html.j2"


_NOTHING = Said()


@dataclass(frozen=True)
class Fleet:
    """All that the page is made of."""

    at_ms: int
    lines: Sequence[Line]
    measured: Sequence[Measured]
    said: Said = _NOTHING
    lost: Sequence[Lost] = ()
    refused: Sequence[Refused] = ()
    peak_bytes: Mapping[str, float] = field(default_factory=dict)
    """The most memory of each box that was in use in the last day."""
    agent: str | None = None
    """The version that made the page."""
    chosen: str | None = None
    """What was chosen, when it was not everything."""


@dataclass(frozen=True)
class Page:
    """The whole page, ready to be printed."""

    title: str
    at: str
    chosen: str | None
    badges: tuple[Html, ...]
    filters: tuple[Filter, ...]
    outliers: Table | None
    compared: str
    attention: Table | None
    leads: tuple[tuple[str, Html], ...]
    classes: Table | None
    crossings: Table | None
    plots: Sequence[Plot | Missing]
    boxes: Table
    fits: tuple[tuple[Html, str, Table], ...]
    doubts: Table | None
    lost: Table | None
    refused: Table | None
    agent: str | None


def fleet_html(fleet: Fleet) -> str:
    """Return the page. Needs jinja2; raises ModuleNotFoundError without it.

    Raises UsageError when there is something to draw and matplotlib is missing.
    """
    return _environment().get_template(_TEMPLATE).render(page=_page(fleet), colours=CSS)


@cache
def _environment() -> Environment:
    # Imported here: jinja2 is an extra.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("edgeagent.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests["plot"] = lambda one: isinstance(one, Plot)
    environment.filters["plotted"] = plotted
    return environment


def _page(fleet: Fleet) -> Page:
    fits = fitnesses(fleet.measured)
    strange = outliers(fits)
    classes = sorted({line.box.box_class or "" for line in fleet.lines})
    sites = sorted({line.box.site for line in fleet.lines})
    tokens = Tokens.of(classes, sites)
    summed = summaries(fits, strange)
    return Page(
        title=_title(len(fleet.lines), len(sites)),
        at=moment(fleet.at_ms),
        chosen=fleet.chosen,
        badges=_badges(fleet.lines),
        filters=_filters(fleet.lines, tokens),
        outliers=outlier_table(strange, _sites(fleet.lines), tokens),
        compared=_compared(fits),
        attention=attention(fleet.lines, tokens),
        leads=lead_sentences(leads(summed), tokens),
        classes=class_table(summed, tokens),
        crossings=crossing_table(verdicts(fleet.said.crossings), tokens),
        plots=pictures(summed),
        boxes=box_rows(fleet.lines, fits, fleet.peak_bytes, tokens),
        fits=fit_tables(fits, _sites(fleet.lines), tokens),
        doubts=doubt_table(doubt_summaries(fleet.said.doubts)),
        lost=lost_table(fleet.lost, _classes(fleet.lines), _sites(fleet.lines), tokens),
        refused=refused_table(fleet.refused),
        agent=fleet.agent,
    )


def _title(boxes: int, sites: int) -> str:
    return (
        f"{boxes:,} {'box' if boxes == 1 else 'boxes'} at "
        f"{sites:,} {'site' if sites == 1 else 'sites'}"
    )


def moment(at_ms: int) -> str:
    """A moment of the collector's clock, to the minute."""
    return datetime.fromtimestamp(at_ms / 1000, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def _badges(lines: Sequence[Line]) -> tuple[Html, ...]:
    sums = counts(lines)
    kinds = {"online": "complete", "offline": "failed", "unknown": "partial"}
    states = [
        Badge(f"{sums[state]:,} {state}", kind) for state, kind in kinds.items() if sums[state]
    ]
    if sums["troubled"]:
        return (*states, Badge(f"{sums['troubled']:,} with a trouble", "warning"))
    return tuple(states)


def _filters(lines: Sequence[Line], tokens: Tokens) -> tuple[Filter, ...]:
    """Groups of choices; a group of one is no choice."""
    classes = Counter(line.box.box_class or "" for line in lines)
    sites = Counter(line.box.site for line in lines)
    weights = Counter("troubled" for line in lines if line.weight is not None)
    groups = (
        Filter("class", "Class", _choices(classes, tokens.classes)),
        Filter("site", "Site", _choices(sites, tokens.sites)),
    )
    kept = tuple(group for group in groups if 1 < len(group.choices) <= _MOST_CHOICES)
    if weights and weights["troubled"] < len(lines):
        choice = Choice("troubled", said("with a trouble"), weights["troubled"])
        kept = (*kept, Filter("state", "Boxes", (choice,)))
    return kept


_MOST_CHOICES = 40
"""More of them are no choice; the page is made for one site by `--site`."""


def _choices(found: Counter[str], tokens: Mapping[str, str]) -> tuple[Choice, ...]:
    return tuple(
        Choice(token, said(name, "class not told"), found[name]) for name, token in tokens.items()
    )


def _sites(lines: Sequence[Line]) -> dict[str, str]:
    return {line.box.node: line.box.site for line in lines}


def _classes(lines: Sequence[Line]) -> dict[str, str | None]:
    return {line.box.node: line.box.box_class for line in lines}


def _compared(fits: Sequence[Fitness]) -> str:
    """How many could be judged at all, in a sentence."""
    peers, before = (
        [one for one in found if one is not None]
        for found in (
            [fit.peers.get("output_tokens_per_s") for fit in fits],
            [fit.before.get("output_tokens_per_s") for fit in fits],
        )
    )
    if not peers:
        return "Nothing has been measured that could be compared."
    judged = sum(standing.verdict != "too_few" for standing in peers)
    past = sum(standing.verdict != "too_few" for standing in before)
    return (
        f"A box with an engine and a model counts once: {len(peers):,} in all. {judged:,} of them "
        f"have the {MIN_PEERS} peers that a comparison takes, {past:,} as many earlier runs."
    )
