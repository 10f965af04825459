"""What did every level give, and every cell?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from edgeagent.report.reading import mapping, number
from edgeagent.report.sheet_values import (
    At,
    Code,
    Column,
    Fixed,
    Html,
    Line,
    Link,
    Row,
    Table,
    Unit,
    Words,
    with_interval,
    without_empty,
)

_P95 = "p95 takes 20 requests"
_P99 = "p99 takes 100 values"


@dataclass(frozen=True)
class Quantity:
    """A column of numbers: what it is called and where a level and a cell keep it."""

    heading: str
    unit_words: str
    name: str
    unit: Unit
    reason: str = "not measured"
    slo: str | None = None

    def limits(self, run: At) -> tuple[float, ...]:
        """The limit that the operator set for it, so that rounding cannot cross it."""
        limit = number((run / "workload" / "slo" / self.slo).value) if self.slo else None
        return () if limit is None else (limit,)


RATE = Quantity("Output tokens/s", "", "output_tokens_per_s", "per_s", "no rate: see the findings")
TTFT_P50 = Quantity("First token", "p50, ms", "ttft_s.p50", "ms", slo="ttft_s")
TTFT_P95 = Quantity("First token", "p95, ms", "ttft_s.p95", "ms", _P95, "ttft_s")
ITL_P99 = Quantity("Gap between tokens", "p99, ms", "itl_s.p99", "ms", _P99)
E2E_P95 = Quantity("Whole answer", "p95, s", "e2e_s.p95", "s", _P95, "e2e_s")
CACHED = Quantity("Prompt from cache", "", "cached_prompt_fraction", "percent", "not reported")
ENERGY = Quantity("Energy", "J a token", "energy.per_output_token_j", "joule", "no instrument")

LEVEL_QUANTITIES = (
    RATE,
    TTFT_P50,
    TTFT_P95,
    Quantity("Gap between tokens", "p50, ms", "itl_s.p50", "ms"),
    ITL_P99,
    Quantity("Time a token", "p50, ms", "tpot_s.p50", "ms", slo="tpot_s"),
    E2E_P95,
    CACHED,
    Quantity("Within limits", "of requests", "good_fraction", "percent"),
    ENERGY,
)
CELL_QUANTITIES = (RATE, TTFT_P50, TTFT_P95, ITL_P99, E2E_P95, CACHED, ENERGY)


def at_metric(cell: At, name: str) -> At:
    """Where a cell keeps a metric that a level calls `name`."""
    return cell.go(*name.split("."))


def levels(run: At) -> Table:
    """A row a level: the mean over its repeats, with its interval."""
    columns = (
        Column("Engine", "", "key"),
        Column("Prefix cache", "", "key"),
        Column("Speculation", "", "key"),
        Column("At once", "", "key"),
        *(Column(one.heading, one.unit_words) for one in LEVEL_QUANTITIES),
        Column("Repeats"),
        Column("of them suspect"),
    )
    rows = tuple(_level(run, level) for level in (run / "levels").each())
    notes: tuple[Html, ...] = (
        Fixed(
            "Means over repeats, each its own start of the engine; beneath them the 95 % interval, "
            "where there are three repeats or more."
        ),
    )
    table = without_plain_speculation(Table("Every level", columns, rows, notes))
    return _saying_what_is_empty(run, table)


def _level(run: At, level: At) -> Row:
    return Row(
        (
            (level / "engine").text(),
            (level / "prefix_cache").text(),
            (level / "speculation").text(),
            (level / "concurrency").figure("count"),
            *(
                with_interval(level.go("metrics", one.name), one.unit, one.reason, one.limits(run))
                for one in LEVEL_QUANTITIES
            ),
            (level / "replicates").figure("count"),
            (level / "suspect").figure("count", "not in the result"),
        ),
        anchor=None,
    )


def without_plain_speculation(table: Table) -> Table:
    """Leave the column out when speculation was off everywhere: it would say nothing."""
    place = [column.heading for column in table.columns].index("Speculation")
    words = {getattr(row.cells[place], "text", "") for row in table.rows}
    if words - {"off"}:
        return table
    return Table(
        table.caption,
        table.columns[:place] + table.columns[place + 1 :],
        tuple(
            Row(row.cells[:place] + row.cells[place + 1 :], row.anchor, row.mark)
            for row in table.rows
        ),
        table.notes,
    )


def _saying_what_is_empty(run: At, table: Table) -> Table:
    """Drop columns without a single value, and say in a note which and why."""
    kept = without_empty(table)
    headings = {(column.heading, column.unit) for column in kept.columns}
    gone = [c for c in table.columns if (c.heading, c.unit) not in headings]
    reasons = {one.heading: one.reason for one in LEVEL_QUANTITIES}
    notes = [
        Line(
            (
                Words(f"{column.heading} is left out:"),
                _reason(run, column.heading) or Fixed(reasons.get(column.heading, "not measured")),
            )
        )
        for column in gone
    ]
    return Table(kept.caption, kept.columns, kept.rows, (*kept.notes, *notes))


def _reason(run: At, heading: str) -> Html | None:
    if heading != ENERGY.heading:
        return None
    for cell in (run / "cells").each():
        reason = cell.go("energy", "reason")
        if reason.known:
            return reason.text()
    return None


# -------------------------------------------------------------------------------------- cells


def cells(run: At, number_of_run: int) -> Table:
    """A row a cell, each with an anchor."""
    columns = (
        Column("Engine", "", "key"),
        Column("Prefix cache", "", "key"),
        Column("Speculation", "", "key"),
        Column("At once", "", "key"),
        Column("Repeat", "", "key"),
        Column("Status", "", "text"),
        Column("Requests ok"),
        Column("Failed"),
        *(Column(one.heading, one.unit_words) for one in CELL_QUANTITIES),
        Column("In flight", "mean"),
        Column("Memory", "peak"),
        Column("Findings", "", "text"),
        Column("Cell", "", "text"),
    )
    rows = tuple(
        _cell(run, cell, anchor(number_of_run, index))
        for index, cell in enumerate((run / "cells").each())
    )
    return without_empty(without_plain_speculation(Table("Every cell", columns, rows)))


def anchor(number_of_run: int, index: int) -> str:
    """The id of a cell's row; it does not hold the cell's own id, which may be anything."""
    return f"r{number_of_run}-cell-{index}"


def _cell(run: At, cell: At, own: str) -> Row:
    codes = tuple(code.text() for code in (cell / "findings").each())
    return Row(
        (
            (cell / "engine").text(),
            (cell / "prefix_cache").text(),
            (cell / "speculation").text(),
            (cell / "concurrency").figure("count"),
            (cell / "repeat").figure("ordinal"),
            (cell / "status").text(),
            cell.go("requests", "ok").figure("count"),
            cell.go("requests", "failed").figure("count"),
            *(
                at_metric(cell, one.name).figure(one.unit, one.reason, one.limits(run))
                for one in CELL_QUANTITIES
            ),
            (cell / "inflight_mean").figure("plain"),
            _peak(cell),
            Line(codes, ", ") if codes else Words("none"),
            Code((cell / "cell_id").text()),
        ),
        anchor=own,
        mark=(cell / "status").word if (cell / "status").word in {"failed", "suspect"} else "",
    )


def _peak(cell: At) -> Html:
    """The largest memory of the engine: on its GPU where known, else on the host."""
    values = cell.go("memory", "values")
    on_gpu = [
        place / "peak"
        for name, place in values.items()
        if name.startswith("gpu.") and name.endswith(".engine_bytes")
    ]
    seen = [place for place in on_gpu if number(place.value) is not None]
    if seen:
        return max(seen, key=lambda place: number(place.value) or 0.0).figure("size")
    host = values / "engine.rss_bytes"
    return (host / "peak").figure("size", (host / "reason").word or "not seen")


# ------------------------------------------------------------------------- references to cells


@dataclass(frozen=True)
class CellIndex:
    """Where each cell of a run stands in the page."""

    run: At
    number: int
    places: Mapping[str, int]

    def behind(self, ids: At) -> tuple[Html, ...]:
        """The cells that `ids` names, a line a level, each repeat a link to its row."""
        named = [str(one.value) for one in ids.each()]
        if len(named) > 1 and set(named) == self._all():
            return (Link(f"r{self.number}-cells", Words("every measured cell that did not fail")),)
        known = [self.places[one] for one in named if one in self.places]
        lines = [self._level(group) for group in self._grouped(known)]
        others = [one for one in ids.each() if str(one.value) not in self.places]
        if others:
            lines.append(
                Line((Words("starts of their own:"), Line(tuple(Code(o.text()) for o in others))))
            )
        return tuple(lines)

    def _all(self) -> set[str]:
        return {
            (cell / "cell_id").word
            for cell in (self.run / "cells").each()
            if (cell / "status").word != "failed"
        }

    def _grouped(self, known: Sequence[int]) -> Iterator[list[int]]:
        groups: dict[tuple[str, ...], list[int]] = {}
        for index in known:
            cell = self.run / "cells" / index
            keys = ("engine", "prefix_cache", "speculation", "concurrency")
            groups.setdefault(tuple((cell / key).word for key in keys), []).append(index)
        yield from groups.values()

    def _level(self, indexes: Sequence[int]) -> Html:
        first = self.run / "cells" / indexes[0]
        links = tuple(
            Link(
                anchor(self.number, index),
                (self.run / "cells" / index / "repeat").figure("ordinal"),
            )
            for index in indexes
        )
        parts: list[Html] = [
            (first / "engine").text(),
            Line((Words("prefix cache"), (first / "prefix_cache").text())),
        ]
        if (first / "speculation").word not in {"", "off"}:
            parts.append(Line((Words("speculation"), (first / "speculation").text())))
        parts.append(Line(((first / "concurrency").figure("count"), Words("at once"))))
        parts.append(Line((Words("repeat"), Line(links, ", "))))
        return Line(tuple(parts), ", ")


def index_of(run: At, number_of_run: int) -> CellIndex:
    """Where each cell of a run stands."""
    places = {
        str(mapping(cell.value).get("cell_id")): index
        for index, cell in enumerate((run / "cells").each())
    }
    return CellIndex(run, number_of_run, places)
