"""How does a value that a box sent stand on the fleet's page?

Whatever came from a box is text: escaped, isolated in its own writing direction, with characters
that would hide or turn others written out, and no longer than a cell has room for. Numbers are
rounded as on the buyer's sheet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from edgeagent.core.peers import Standing
from edgeagent.report.sheet_values import (
    Absent,
    Column,
    Html,
    Line,
    Row,
    Table,
    Under,
    Unit,
    Words,
    formatted,
    visible,
)

LONGEST = 300
"""Characters of a text that are shown; a box could send a book."""


@dataclass(frozen=True)
class Said:
    """A text that a box sent."""

    text: str

    def __html__(self) -> str:
        shown = visible(self.text[:LONGEST]) + ("…" if len(self.text) > LONGEST else "")
        long = ' class="long"' if any(len(word) > _LONG_WORD for word in shown.split()) else ""
        return f"<bdi{long}>{escape(shown)}</bdi>"


_LONG_WORD = 20
_LONGEST_NAME = 63


@dataclass(frozen=True)
class Name:
    """A short name that a box sent: a site, a class; it stays on one line if it can."""

    text: str

    def __html__(self) -> str:
        text = self.text if len(self.text) <= _LONGEST_NAME else f"{self.text[:_LONGEST_NAME]}…"
        inner = Said(text).__html__()
        if len(self.text) > _LONG_WORD:
            return inner
        return f'<span class="name">{inner}</span>'


@dataclass(frozen=True)
class Ago:
    """How long ago something was, on one line."""

    text: str

    def __html__(self) -> str:
        return f'<span class="name">{escape(self.text)}</span>'


@dataclass(frozen=True)
class Best:
    """The best of several."""

    inner: Html

    def __html__(self) -> str:
        return f"<strong>{self.inner.__html__()}</strong>"


@dataclass(frozen=True)
class Badge:
    """A word of ours in its colour."""

    text: str
    kind: str

    def __html__(self) -> str:
        return f'<span class="badge {escape(self.kind)}">{escape(self.text)}</span>'


@dataclass(frozen=True)
class Wide:
    """Several things, each on a line of its own."""

    parts: tuple[Html, ...]

    def __html__(self) -> str:
        return "".join(f'<span class="item">{part.__html__()}</span>' for part in self.parts)


def said(text: str | None, reason: str = "not told") -> Html:
    """A text, or a dash and the reason for it."""
    return Said(text) if text else Absent(reason)


def named(text: str | None, reason: str = "not told") -> Html:
    """A short name, or a dash and the reason for it."""
    return Name(text) if text else Absent(reason)


def figure(value: float | None, unit: Unit, reason: str = "not measured") -> Html:
    """A number in its unit, or a dash and the reason for it."""
    return Absent(reason) if value is None else Words(formatted(value, unit))


def stands(standing: Standing | None, reason: str) -> Html:
    """A box's value over the usual one; marked where it differs."""
    if standing is None:
        return Absent("not measured")
    if standing.factor is None:
        return Absent(reason)
    text = Words(times(standing.factor))
    return Badge(text.text, "partial") if standing.verdict in {"higher", "lower"} else text


def times(factor: float) -> str:
    """A value over the usual one, with the sign of a multiplication."""
    return f"{factor:.2f}×"  # noqa: RUF001  # because it is a multiplication


def between(low: float, high: float, unit: Unit) -> Html:
    """Two ends, smaller beneath what they belong to."""
    return Words(f"{formatted(low, unit)} to {formatted(high, unit)}")


def under(main: Html, beneath: Html | None) -> Html:
    """A value with something smaller beneath it."""
    return main if beneath is None else Under(main, beneath)


def joined(parts: Sequence[Html], between_them: str = ", ") -> Html:
    """Several values in one line."""
    return Line(tuple(parts), between_them)


# ------------------------------------------------------------------------------------ filtering


@dataclass(frozen=True)
class Choice:
    """One thing that the page can be narrowed down to; `token` is a class name of ours."""

    token: str
    name: Html
    count: int


@dataclass(frozen=True)
class Filter:
    """A group of choices, of which one is taken."""

    key: str
    title: str
    choices: tuple[Choice, ...]


@dataclass(frozen=True)
class Tokens:
    """The class names of classes and sites: numbered, because names are not ours."""

    classes: Mapping[str, str]
    sites: Mapping[str, str]

    @classmethod
    def of(cls, classes: Sequence[str], sites: Sequence[str]) -> Tokens:
        """Number the classes and sites in their order."""
        return cls(
            {name: f"c{n}" for n, name in enumerate(classes)},
            {name: f"s{n}" for n, name in enumerate(sites)},
        )

    def mark(self, box_class: str | None, site: str | None = None, more: str = "") -> str:
        """The class names of a row; a row without a site is shown for every site."""
        own_class = self.classes.get(box_class or "", "")
        own_site = "" if site is None else self.sites.get(site, "")
        kinds = ("of-class" if own_class else "", "of-site" if own_site else "")
        return " ".join(word for word in (*kinds, own_class, own_site, more) if word)


def without_constant(table: Table, keep: Sequence[str] = ()) -> Table:
    """Leave out text columns in which every row says the same, and say it once in a note."""
    if len(table.rows) < 2:  # noqa: PLR2004  # because one row has nothing in common with another
        return table
    cells = [[row.cells[n].__html__() for row in table.rows] for n in range(len(table.columns))]
    same = [
        n
        for n, column in enumerate(table.columns)
        if column.kind != "number" and column.heading not in keep and len(set(cells[n])) == 1
    ]
    kept = [n for n in range(len(table.columns)) if n not in same]
    notes = tuple(
        Line((Words(f"{table.columns[n].heading}:"), table.rows[0].cells[n])) for n in same
    )
    return Table(
        table.caption,
        tuple(table.columns[n] for n in kept),
        tuple(Row(tuple(row.cells[n] for n in kept), row.anchor, row.mark) for row in table.rows),
        (*table.notes, Line((Words("All rows –"), joined(notes, "; "))))  # noqa: RUF001  # because it is a dash
        if notes
        else table.notes,
    )


def columns(*headings: str | tuple[str, str] | Column) -> tuple[Column, ...]:
    """Columns of text, from their headings; others as they are given."""
    return tuple(
        one
        if isinstance(one, Column)
        else Column(one, "", "text")
        if isinstance(one, str)
        else Column(one[0], one[1], "number")
        for one in headings
    )
