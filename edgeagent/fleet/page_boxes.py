"""Which tables does the page have about single boxes?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from edgeagent.core.peers import MIN_PEERS, Standing
from edgeagent.fleet.page_cells import (
    Ago,
    Badge,
    Name,
    Said,
    Tokens,
    Wide,
    columns,
    figure,
    joined,
    named,
    said,
    stands,
    without_constant,
)
from edgeagent.fleet.page_fleet import KIND_COLUMNS, MOST_ROWS, kind_cells
from edgeagent.fleet.status import Line, Trouble, age, short_version, worst_first
from edgeagent.fleet.summary import SHOWN_LEVELS, Fitness
from edgeagent.report.sheet_values import Absent, Html, Row, Table, Words, formatted

_STATES = {"online": "complete", "offline": "failed", "unknown": "partial"}
_FEW_PEERS = f"fewer than {MIN_PEERS} peers"
_FEW_RUNS = f"fewer than {MIN_PEERS} earlier runs"
_SHOWN_TROUBLES = 4


def attention(lines: Sequence[Line], tokens: Tokens) -> Table | None:
    """Boxes with troubles, the worst first; None when all are well."""
    troubled = sorted((line for line in lines if line.weight is not None), key=worst_first)
    if not troubled:
        return None
    shown = troubled[:MOST_ROWS]
    left = len(troubled) - len(shown)
    return Table(
        "Boxes with a trouble, the worst first",
        columns("Box", "What to look at", "State", "Heard", "Class", "Site"),
        tuple(
            Row(
                (
                    Name(line.box.node),
                    troubles(line),
                    Badge(line.state, _STATES[line.state]),
                    _ago(line.age_s),
                    named(line.box.box_class, "class not told"),
                    named(line.box.site),
                ),
                mark=tokens.mark(line.box.box_class, line.box.site),
            )
            for line in shown
        ),
        (Words(f"{left:,} more boxes have a trouble: see all boxes below."),) if left else (),
    )


def troubles(line: Line) -> Html:
    """The troubles of a box, the worst first."""
    ordered = sorted(line.troubles, key=lambda one: one.weight)
    shown: list[Html] = [_trouble(one) for one in ordered[:_SHOWN_TROUBLES]]
    left = len(ordered) - len(shown)
    return Wide((*shown, Words(f"and {left:,} more")) if left else tuple(shown))


def _trouble(one: Trouble) -> Html:
    return joined(
        (
            Badge("now", "failed") if one.weight == "bad" else Badge("soon", "warning"),
            Said(one.text),
        ),
        " ",
    )


def _ago(seconds: float | None) -> Html:
    return Absent("never") if seconds is None else Ago(f"{age(seconds)} ago")


# ------------------------------------------------------------------------------------- all boxes


def box_rows(
    lines: Sequence[Line],
    fits: Sequence[Fitness],
    peak_bytes: Mapping[str, float],
    tokens: Tokens,
) -> Table:
    """A row a box: how it is, by class, then site, then name."""
    by_node: defaultdict[str, list[Fitness]] = defaultdict(list)
    for one in fits:
        by_node[one.node].append(one)
    ordered = sorted(lines, key=lambda one: (one.box.box_class or "", one.box.site, one.box.node))
    return Table(
        "All boxes, by class, site and name",
        columns(
            "Box",
            "Site",
            "Class",
            "State",
            "Heard",
            "Measured",
            "Last result",
            ("Against peers", "output tokens/s"),
            *([("Memory in use", "most in a day")] if peak_bytes else []),
            ("Backlog", "messages"),
            ("Certificate", "days left"),
            "Clock",
            "Agent",
        ),
        tuple(
            Row(
                _box_cells(line, by_node[line.box.node], peak_bytes),
                mark=_mark(line, tokens),
            )
            for line in ordered
        ),
    )


def _mark(line: Line, tokens: Tokens) -> str:
    own = tokens.mark(line.box.box_class, line.box.site)
    return f"{own} {'is-troubled' if line.weight else 'is-well'}".strip()


def _box_cells(
    line: Line, fits: Sequence[Fitness], peak_bytes: Mapping[str, float]
) -> tuple[Html, ...]:
    box = line.box
    peak = (figure(peak_bytes.get(box.node), "size"),) if peak_bytes else ()
    return (
        Name(box.node),
        named(box.site),
        named(box.box_class, "class not told"),
        Badge(line.state, _STATES[line.state]),
        _ago(line.age_s),
        _engines(line),
        _last(line),
        stands(_strangest(fits), _FEW_PEERS),
        *peak,
        figure(box.spool.rows, "count", "not told"),
        _certificate(line.cert_days),
        _clock(box.clk),
        named(box.version),
    )


def _engines(line: Line) -> Html:
    if not line.engines:
        return Absent("nothing yet")
    names = dict.fromkeys(name.partition(" ")[0] for name in line.engines)
    return Name(", ".join(names))


def _last(line: Line) -> Html:
    last = line.box.last
    if last is None:
        return Absent("none yet")
    ago = _ago(line.result_age_s)
    if last.status == "complete":
        return ago
    return joined(
        (
            Badge(last.status, "warning")
            if last.status in {"partial", "failed"}
            else said(last.status),
            ago,
        ),
        " ",
    )


def _strangest(fits: Sequence[Fitness]) -> Standing | None:
    """Of all that a box runs, the throughput that is furthest from its peers'."""
    found = [one.peers["output_tokens_per_s"] for one in fits if "output_tokens_per_s" in one.peers]
    judged = [one for one in found if one.score is not None]
    return max(judged, key=lambda one: abs(one.score or 0.0), default=found[0] if found else None)


def _certificate(days: float | None) -> Html:
    if days is None:
        return Absent("no certificate told")
    text = formatted(int(days), "count") if days >= 0 else "ended"
    return Words(text) if days > _SOON_DAYS else Badge(text, "failed" if days < 0 else "warning")


_SOON_DAYS = 30


def _clock(clk: str | None) -> Html:
    words = {"sync": "synchronised", "holdover": "held over"}
    if clk == "unsync":
        return Badge("not synchronised", "warning")
    return Words(words[clk]) if clk in words else said(clk)


# ------------------------------------------------------------------------- what each can do


def fit_tables(
    fits: Sequence[Fitness], sites: Mapping[str, str], tokens: Tokens
) -> tuple[tuple[Html, str, Table], ...]:
    """For each class its name, the mark of it, and what each of its boxes can do."""
    by_class: defaultdict[str, list[Fitness]] = defaultdict(list)
    for one in fits:
        by_class[one.kind.box_class].append(one)
    return tuple(
        (
            said(name, "class not told"),
            tokens.mark(name),
            _fit_table(own, sites, tokens),
        )
        for name, own in sorted(by_class.items())
    )


def _fit_table(fits: Sequence[Fitness], sites: Mapping[str, str], tokens: Tokens) -> Table:
    table = Table(
        "The newest run of each box; against its peers and its past, 1.00 is usual",
        columns(
            "Box",
            "Site",
            "Engine",
            *KIND_COLUMNS,
            "Version",
            *((f"{level} at once", "output tokens/s") for level in SHOWN_LEVELS),
            ("First token", "8 at once, ms"),
            ("Memory", "a slot"),
            ("Against peers", "output tokens/s"),
            ("Against its past", "output tokens/s"),
        ),
        tuple(_fit_row(one, sites, tokens) for one in sorted(fits, key=_by_distance)),
    )
    return without_constant(table, keep=("Box", "Engine"))


def _by_distance(one: Fitness) -> tuple[float, str]:
    """Those that differ most come first."""
    standings = [*one.peers.values(), *one.before.values()]
    scores = [abs(s.score or 0.0) for s in standings if s.verdict in {"higher", "lower"}]
    return -max(scores, default=0.0), one.node


def _fit_row(one: Fitness, sites: Mapping[str, str], tokens: Tokens) -> Row:
    site = sites.get(one.node, "")
    return Row(
        (
            Name(one.node),
            named(site),
            said(one.kind.engine),
            *kind_cells(one.kind),
            named(short_version(one.now.engine_ver or "")),
            *(figure(one.now.at("output_tokens_per_s", level), "per_s") for level in SHOWN_LEVELS),
            figure(one.now.at("ttft_p50_s", 8), "ms"),
            figure(one.now.slot_bytes, "size"),
            stands(one.peers.get("output_tokens_per_s"), _FEW_PEERS),
            stands(one.before.get("output_tokens_per_s"), _FEW_RUNS),
        ),
        mark=tokens.mark(one.kind.box_class, site),
    )
