"""Which tables does the page have about the fleet as a whole?

Class and engine, where engines cross, who stands out, what results doubt, and what did not arrive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from edgeagent.core.peers import Standing
from edgeagent.fleet.page_cells import (
    Badge,
    Best,
    Name,
    Said,
    Tokens,
    Wide,
    between,
    columns,
    figure,
    joined,
    named,
    said,
    times,
    without_constant,
)
from edgeagent.fleet.queries import Kind, Lost, Refused
from edgeagent.fleet.summary import (
    SHOWN_LEVELS,
    Against,
    DoubtSummary,
    KindSummary,
    Lead,
    Metric,
    Middle,
    Outlier,
    Verdicts,
    by_box,
)
from edgeagent.report.sheet_values import Absent, Html, Row, Table, Under, Unit, Words, formatted

MOST_ROWS = 60
"""Rows of a list of what wants attention; who has more has one cause to look for."""

_TTFT_LEVEL = 8
_MOST_NAMES = 12

METRIC_WORDS: Mapping[Metric, str] = {
    "output_tokens_per_s": "output tokens/s",
    "ttft_p50_s": "time to first token",
    "memory_bytes_per_slot": "memory a slot",
}


def kind_cells(kind: Kind) -> tuple[Html, ...]:
    """What tells a measurement from others, besides the class: see `KIND_COLUMNS`."""
    return (
        said(kind.model),
        said(kind.quant),
        figure(kind.ctx, "count", "not told"),
        said(kind.prefix_cache),
        said(kind.speculation),
    )


KIND_COLUMNS = ("Model", "Quantization", "Context a slot", "Prefix cache", "Speculation")


# ------------------------------------------------------------------------------ class and engine


def class_table(summed: Sequence[KindSummary], tokens: Tokens) -> Table | None:
    """A row for each class, model and engine: medians over boxes."""
    if not summed:
        return None
    table = Table(
        "Medians over the boxes of a class; beneath them the lowest and the highest box",
        columns(
            "Class",
            "Engine",
            *KIND_COLUMNS,
            ("Boxes", ""),
            *((f"{level} at once", "output tokens/s") for level in SHOWN_LEVELS),
            ("First token", f"{_TTFT_LEVEL} at once, ms"),
            ("Memory", "a slot"),
            ("Stand out", "boxes, worse"),
        ),
        tuple(_class_row(one, _rivals(one, summed), tokens) for one in summed),
        (Words("Bold: the faster engine of a class at that level, by the medians."),)
        if any(_rivals(one, summed) for one in summed)
        else (),
    )
    return without_constant(table, keep=("Class", "Engine"))


def _rivals(one: KindSummary, summed: Sequence[KindSummary]) -> list[KindSummary]:
    """Other engines of the same class with the same model, set the same way."""
    return [
        other
        for other in summed
        if other.kind.engine != one.kind.engine and _same(one.kind, other.kind)
    ]


def _same(a: Kind, b: Kind) -> bool:
    return (
        a.box_class, a.model, a.quant, a.ctx, a.prefix_cache, a.speculation
    ) == (b.box_class, b.model, b.quant, b.ctx, b.prefix_cache, b.speculation)  # fmt: skip


def _class_row(one: KindSummary, rivals: Sequence[KindSummary], tokens: Tokens) -> Row:
    return Row(
        (
            named(one.kind.box_class, "class not told"),
            said(one.kind.engine),
            *kind_cells(one.kind),
            Words(f"{one.boxes:,}"),
            *(_rate(one, rivals, level) for level in SHOWN_LEVELS),
            middle_cell(one.ttft.get(_TTFT_LEVEL), "ms"),
            middle_cell(one.slot, "size"),
            Badge(f"{one.outliers:,}", "partial") if one.outliers else Words("0"),
        ),
        mark=tokens.mark(one.kind.box_class),
    )


def _rate(one: KindSummary, rivals: Sequence[KindSummary], level: int) -> Html:
    own = one.rates.get(level)
    others = [found.median for other in rivals if (found := other.rates.get(level)) is not None]
    best = own is not None and bool(others) and own.median > max(others)
    return middle_cell(own, "per_s", "best" if best else "plain")


def middle_cell(found: Middle | None, unit: Unit, look: str = "plain") -> Html:
    """A median with its ends beneath."""
    if found is None:
        return Absent("not measured")
    main: Html = Words(formatted(found.median, unit))
    main = Best(main) if look == "best" else main
    return main if found.boxes == 1 else Under(main, between(found.low, found.high, unit))


def lead_sentences(found: Sequence[Lead], tokens: Tokens) -> tuple[tuple[str, Html], ...]:
    """For each class, which engine gives most and from where on; with the mark of the class."""
    several = len({replace(lead.kind, engine="", box_class="") for lead in found}) > 1
    return tuple(
        (tokens.mark(lead.kind.box_class), _lead_sentence(lead, told=several)) for lead in found
    )


def _lead_sentence(lead: Lead, *, told: bool) -> Html:
    kind = lead.kind
    with_what: tuple[Html, ...] = (
        (Words("with"), Said(kind.model or "a model without a name"), said(kind.quant))
        if told
        else ()
    )
    head = joined((Best(named(kind.box_class, "class not told")), *with_what), " ")
    parts = []
    for engine, run in groupby(lead.levels, key=lambda level: level[1]):
        own = list(run)
        at, _, most, second = own[-1]
        first = own[0][0]
        where = f"at {first}" if first == at else f"from {first} to {at}"
        rates = (
            f"({formatted(most, 'per_s')} against {formatted(second, 'per_s')} tokens/s at {at})"
        )
        parts.append(joined((Said(engine), Words(f"leads {where} {rates}")), " "))
    return joined((head, joined(parts, ", ")), ": ")


# ------------------------------------------------------------------------------------ crossovers

_ALWAYS = frozenset({"output_tokens_per_s", "ttft_s.p50"})
"""What is shown even if no box could resolve it."""

_METRICS = {
    "output_tokens_per_s": "output tokens/s",
    "ttft_s.p50": "first token, median",
    "ttft_s.p95": "first token, p95",
    "goodput_per_s": "requests/s in time",
    "energy.per_output_token_j": "energy a token",
}


def crossing_table(found: Sequence[Verdicts], tokens: Tokens) -> Table | None:
    """A row for each class, quantity and pair of engines: what the boxes found."""
    found = [one for one in found if one.metric in _ALWAYS or one.unresolved < one.boxes]
    if not found:
        return None
    table = Table(
        "Each box compares its engines itself, repeat by repeat; here is how many came to what",
        columns(
            "Class",
            "Quantity",
            "Prefix cache",
            "Speculation",
            ("Boxes", ""),
            "What they found",
            ("Cross between", "requests at once"),
        ),
        tuple(_crossing_row(one, tokens) for one in found),
        (
            Words(
                "A crossing is where one engine stops being the better one. Its bounds are medians "
                "over the boxes that found it, each box's at 95 %."
            ),
        ),
    )
    return without_constant(table, keep=("Class", "Quantity", "What they found"))


def _crossing_row(one: Verdicts, tokens: Tokens) -> Row:
    crosses = one.low is not None and one.high is not None
    return Row(
        (
            named(one.box_class, "class not told"),
            Words(_METRICS[one.metric]) if one.metric in _METRICS else Said(one.metric),
            said(one.prefix_cache),
            said(one.speculation),
            Words(f"{one.boxes:,}"),
            joined(tuple(_outcomes(one)), "; "),
            between(one.low or 0, one.high or 0, "plain") if crosses else Absent("no crossing"),
        ),
        mark=tokens.mark(one.box_class),
    )


def _outcomes(one: Verdicts) -> Iterator[Html]:
    a, b = Said(one.a), Said(one.b)
    each = (
        (one.a_always, (a, Words("better everywhere"))),
        (one.b_always, (b, Words("better everywhere"))),
        (one.a_first, (a, Words("better at few,"), b, Words("at many"))),
        (one.b_first, (b, Words("better at few,"), a, Words("at many"))),
        (one.unresolved, (Words("not resolved"),)),
    )
    ordered = sorted(each, key=lambda pair: -pair[0])
    for count, words in ordered:
        if count:
            yield joined((*words, Words(f"({count:,})")), " ")


# ------------------------------------------------------------------------------- who stands out


def outlier_table(
    strange: Sequence[Outlier], sites: Mapping[str, str], tokens: Tokens
) -> Table | None:
    """Boxes that differ from their peers or their past: worse ones first."""
    found = by_box(strange)
    if not found:
        return None
    shown = found[:MOST_ROWS]
    left = len(found) - len(shown)
    table = Table(
        "A box's value over the usual one; worse first, and the strangest of those first",
        columns(
            "Box",
            "Engine",
            "Against its peers",
            "Against its own past",
            "Class",
            "Site",
            *KIND_COLUMNS,
        ),
        tuple(_outlier_row(own, sites, tokens) for own in shown),
        (Words(f"{left:,} more differ: see what each can do, below."),) if left else (),
    )
    return without_constant(table, keep=("Box", "Site", "Class", "Engine", *_AGAINST.values()))


_AGAINST: Mapping[Against, str] = {
    "peers": "Against its peers",
    "past": "Against its own past",
}


def _outlier_row(own: Sequence[Outlier], sites: Mapping[str, str], tokens: Tokens) -> Row:
    fitness = own[0].fitness
    kind, site = fitness.kind, sites.get(fitness.node, "")
    return Row(
        (
            Name(fitness.node),
            said(kind.engine),
            *(_differences(own, against) for against in _AGAINST),
            named(kind.box_class, "class not told"),
            named(site),
            *kind_cells(kind),
        ),
        mark=tokens.mark(kind.box_class, site),
    )


def _differences(own: Sequence[Outlier], against: Against) -> Html:
    found = [one for one in own if one.against == against]
    if not found:
        standing = _standings(own[0], against).get("output_tokens_per_s")
        few = standing is None or standing.verdict == "too_few"
        return Absent("too few to compare with" if few else "as usual")
    others = found[0].standing.others
    who = "boxes" if against == "peers" else "runs"
    most = _score(max(abs(one.standing.score or 0.0) for one in found))
    beneath = Words(f"{most} deviations off, among {others:,} {who}")
    return Under(Wide(tuple(_difference(one) for one in found)), beneath)


def _standings(one: Outlier, against: Against) -> Mapping[Metric, Standing]:
    return one.fitness.peers if against == "peers" else one.fitness.before


def _difference(one: Outlier) -> Html:
    kind = "failed" if one.turn == "worse" else "complete"
    factor = Badge(times(one.standing.factor or 1.0), kind)
    return joined((factor, Words(METRIC_WORDS[one.metric])), " ")


def _score(size: float) -> str:
    return f"{size:.0f}" if size >= 10 else f"{size:.1f}"  # noqa: PLR2004  # because of two digits


# ------------------------------------------------------------------- doubts and what did not come


def doubt_table(found: Sequence[DoubtSummary]) -> Table | None:
    """Findings of the newest results, by kind."""
    if not found:
        return None
    return Table(
        "Of the newest result of each box, by kind; the gravest first",
        columns("Finding", "Weight", ("Boxes", ""), "For example", "Found on"),
        tuple(_doubt_row(one) for one in found[:MOST_ROWS]),
    )


_SEVERITY = {"suspect": "failed", "warning": "warning"}


def _doubt_row(one: DoubtSummary) -> Row:
    known = one.severity in {"suspect", "warning", "info"}
    weight = (
        Badge(one.severity, _SEVERITY.get(one.severity, "info")) if known else said(one.severity)
    )
    return Row(
        (
            Said(one.code.replace("_", " ")),
            weight,
            Words(f"{len(one.nodes):,}"),
            said(one.example),
            names(one.nodes),
        )
    )


def names(nodes: Sequence[str]) -> Html:
    """The first boxes of a list, and how many more there are."""
    shown: list[Html] = [Name(node) for node in nodes[:_MOST_NAMES]]
    left = len(nodes) - len(shown)
    return joined([*shown, Words(f"{left:,} more")] if left else shown)


def lost_table(
    lost: Sequence[Lost],
    classes: Mapping[str, str | None],
    sites: Mapping[str, str],
    tokens: Tokens,
) -> Table | None:
    """What boxes declared lost, most rows first."""
    if not lost:
        return None
    shown = lost[:MOST_ROWS]
    left = len(lost) - len(shown)
    return Table(
        "Rows that boxes declared lost; everything else that they numbered has arrived or will",
        columns("Box", "Site", "Of", "Reason", ("Rows", ""), ("In so many gaps", "")),
        tuple(
            Row(
                (
                    Name(one.node),
                    named(sites.get(one.node)),
                    Words({"R": "results", "M": "telemetry"}.get(one.stream, "other")),
                    said(one.reason),
                    Words(f"{one.rows:,}"),
                    Words(f"{one.gaps:,}"),
                ),
                mark=tokens.mark(classes.get(one.node), sites.get(one.node)),
            )
            for one in shown
        ),
        (Words(f"{left:,} further rows of this table are left out."),) if left else (),
    )


def refused_table(refused: Sequence[Refused]) -> Table | None:
    """What was put aside, by reason."""
    if not refused:
        return None
    return Table(
        "Messages that were put aside: not stored as a box's, kept for whoever looks into it",
        columns("Reason", ("Messages", ""), "One of their topics"),
        tuple(
            Row((said(one.reason), Words(f"{one.messages:,}"), said(one.topic))) for one in refused
        ),
    )
