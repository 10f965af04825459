"""How does a value of a result document stand in the sheet, so that anybody can look it up again?

Everything shown is a `Shown`: the text, and the place in the document from which it was taken, as a
JSON pointer (RFC 6901) behind the number of the run. A test reads the finished page, follows every
pointer and checks the rounding. Rounding never changes a verdict: a value that is not zero is not
shown as zero, and one below a limit is not shown at or above it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal, Protocol

from edgeagent.report.reading import mapping, number, sequence

DASH = "–"  # noqa: RUF001  # because the dash of a missing value is not a minus

Unit = Literal[
    "count", "ordinal", "plain", "ms", "s", "percent", "mib", "size", "factor", "joule", "per_s"
]
"""How a number is scaled and rounded; `scale_of` says by what it was multiplied."""

_MIB = 1 << 20
_GIB = 1 << 30
_MOST_DIGITS = 12
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d):\d\d(?:\.\d+)?Z")
_SPACE = "\N{NARROW NO-BREAK SPACE}"


_LONG_WORD = re.compile(r"\S{21}")
"""A word that may be broken anywhere, because a column cannot be as wide as it is."""

_DECEIVING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufffe\uffff\ud800-\udfff]"
)
"""Controls, marks that turn the direction of what follows, and what is no character at all."""


def visible(text: str) -> str:
    """Return the text with every character written out that would hide or turn others."""
    return _DECEIVING.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


class Html(Protocol):
    """What a template prints without escaping it once more."""

    def __html__(self) -> str: ...


@dataclass(frozen=True)
class Shown:
    """A value of the document as people read it."""

    text: str
    pointer: str
    unit: Unit | Literal["text", "time"] = "text"

    def __html__(self) -> str:
        """Text stands by itself in its own direction; a number keeps its place and its unit."""
        place = f'data-from="{escape(visible(self.pointer))}"'
        if self.unit == "text":
            text = visible(self.text)
            long = ' class="long"' if _LONG_WORD.search(text) else ""
            return f"<bdi {place}{long}>{escape(text)}</bdi>"
        if self.unit == "time":
            return f'<bdi {place} data-as="time">{escape(self.text)}</bdi>'
        return f'<span {place} data-as="{self.unit}">{escape(self.text)}</span>'


@dataclass(frozen=True)
class Absent:
    """What the document does not have, and why."""

    reason: str = "not measured"
    pointer: str = ""
    words: bool = False
    """Whether the reason is written out instead of standing behind a dash."""

    def __html__(self) -> str:
        """A dash for the eye, and the reason for whoever asks."""
        reason = escape(visible(self.reason))
        if self.words:
            return f'<span class="none">not established: <bdi>{reason}</bdi></span>'
        return (
            f'<span class="none" title="{reason}">{DASH}<span class="vh"> ({reason})</span></span>'
        )


@dataclass(frozen=True)
class Code:
    """A value that is copied rather than read: a hash, a path, a command."""

    inner: Html

    def __html__(self) -> str:
        return f"<code>{self.inner.__html__()}</code>"


@dataclass(frozen=True)
class Words:
    """Words of ours, without a number."""

    text: str

    def __html__(self) -> str:
        return escape(self.text)


@dataclass(frozen=True)
class Fixed:
    """Words of ours with a number that belongs to the method and to no run."""

    text: str

    def __html__(self) -> str:
        return f"<span data-fixed>{escape(self.text)}</span>"


@dataclass(frozen=True)
class Link:
    """A reference to another place of the page."""

    target: str
    inner: Html

    def __html__(self) -> str:
        return f'<a href="#{escape(self.target)}">{self.inner.__html__()}</a>'


@dataclass(frozen=True)
class Line:
    """Several values in one line."""

    parts: tuple[Html, ...]
    between: str = " "

    def __html__(self) -> str:
        return escape(self.between).join(part.__html__() for part in self.parts)


@dataclass(frozen=True)
class Under:
    """A value and, smaller beneath it, what belongs to it."""

    main: Html
    beneath: Html

    def __html__(self) -> str:
        return f'{self.main.__html__()}<span class="ci">{self.beneath.__html__()}</span>'


@dataclass(frozen=True)
class At:
    """A place in a document: what is there, and the pointer to it."""

    value: object
    pointer: str

    def __truediv__(self, key: str | int) -> At:
        """The place one step further in; an empty one where there is nothing."""
        pointer = f"{self.pointer}/{_escaped(str(key))}"
        if isinstance(key, int):
            items = sequence(self.value)
            return At(items[key] if 0 <= key < len(items) else None, pointer)
        return At(mapping(self.value).get(key), pointer)

    def go(self, *keys: str | int) -> At:
        """The place several steps further in."""
        place = self
        for key in keys:
            place = place / key
        return place

    def each(self) -> Iterator[At]:
        """The places of a list."""
        for index, item in enumerate(sequence(self.value)):
            yield At(item, f"{self.pointer}/{index}")

    def items(self) -> Iterator[tuple[str, At]]:
        """The places of an object, in the document's order."""
        for key, item in mapping(self.value).items():
            yield str(key), At(item, f"{self.pointer}/{_escaped(str(key))}")

    @property
    def known(self) -> bool:
        """Whether anything is there."""
        return self.value is not None

    @property
    def word(self) -> str:
        """What is there, for comparing; an empty text for nothing."""
        return "" if self.value is None else str(self.value)

    def text(self, reason: str = "not in the result") -> Html:
        """What is there as text, or why it is not."""
        if self.value is None or self.value == "":
            return Absent(reason, self.pointer)
        if isinstance(self.value, bool):
            return Shown("yes" if self.value else "no", self.pointer)
        return Shown(str(self.value), self.pointer)

    def time(self, reason: str) -> Html:
        """A moment to the minute; as it stands there when it is written in another way."""
        found = _MOMENT.fullmatch(self.word)
        if found is None:
            return self.text(reason)
        return Shown(f"{found.group(1)} {found.group(2)} UTC", self.pointer, "time")

    def fact(self, reason: str) -> Html:
        """The same for a table of facts, where the reason is written out."""
        if self.value is None or self.value == "":
            return Absent(reason, self.pointer, words=True)
        return self.text()

    def figure(
        self, unit: Unit, reason: str = "not measured", limits: Sequence[float] = ()
    ) -> Html:
        """The number there in its unit, or why there is none; rounded on its side of `limits`."""
        value = number(self.value)
        if value is None:
            return Absent(reason, self.pointer)
        return Shown(formatted(value, unit, limits), self.pointer, unit)

    def span(self, unit: Unit, limits: Sequence[float] = ()) -> Html | None:
        """An interval's two ends; None where there is none, or no width."""
        low, high = self / 0, self / 1
        ends = number(low.value), number(high.value)
        if None in ends or ends[0] == ends[1]:
            return None  # because from 1 to 1 says no more than 1
        return Line((low.figure(unit, limits=limits), high.figure(unit, limits=limits)), " to ")


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def with_interval(place: At, unit: Unit, reason: str, limits: Sequence[float] = ()) -> Html:
    """A level's mean with its 95 % interval beneath, where it has one."""
    main = (place / "mean").figure(unit, reason, limits)
    beneath = (place / "ci95").span(unit, limits)
    return main if beneath is None else Under(main, beneath)


# ---------------------------------------------------------------------------------- rounding


def formatted(value: float, unit: Unit, limits: Sequence[float] = ()) -> str:
    """Return the number as text, with its unit where the column does not say it."""
    if unit == "ordinal":  # because people count repeats from one, and findings do as well
        return f"{value + 1:.0f}"
    if unit == "size":
        if value == 0:
            return "0 MiB"
        scale, word = (_GIB, "GiB") if abs(value) >= _GIB else (_MIB, "MiB")
        return f"{rounded(value / scale, 2 if scale == _GIB else 1)} {word}"
    scaled = value * scale_of(unit)
    own = tuple(limit * scale_of(unit) for limit in (*limits, *_LIMITS.get(unit, ())))
    text = rounded(scaled, _digits(scaled, unit), own)
    return f"{text} %" if unit == "percent" else text


_LIMITS: Mapping[str, tuple[float, ...]] = {
    "percent": (0.95, 1.0),  # because a capacity holds at 95 % of the requests
    "factor": (1.0,),  # because one is where neither side is better
}


def scale_of(unit: Unit) -> float:
    """Return by what a value of the document is multiplied before it is shown."""
    return {"ms": 1000.0, "percent": 100.0, "mib": 1 / _MIB}.get(unit, 1.0)


def _digits(scaled: float, unit: Unit) -> int:
    """Return how many decimals mean something at this size."""
    if unit == "count":
        return 0 if scaled == int(scaled) else 2
    if unit == "percent":
        return 0 if abs(scaled) >= 10 or scaled == 0 else 1  # noqa: PLR2004  # because of two digits
    if unit in {"mib", "factor"}:
        return 2
    size = abs(scaled)
    steps = (100.0, 10.0, 1.0)  # three digits, and never more decimals than three
    if scaled == 0:
        return 0
    digits = next((place for place, step in enumerate(steps) if size >= step), 3)
    return max(digits, 1) if unit == "per_s" else digits


def rounded(value: float, digits: int, limits: Sequence[float] = ()) -> str:
    """Return the value with `digits` decimals, or as many more as its side of a limit takes.

    Zero is always a limit: what is not zero is not shown as zero.
    """
    while digits < _MOST_DIGITS and not _same_side(value, digits, (0.0, *limits)):
        digits += 1
    text = f"{value:,.{digits}f}".replace(",", _SPACE)
    return text.replace("-", "\N{MINUS SIGN}")


def _same_side(value: float, digits: int, limits: Sequence[float]) -> bool:
    shown = float(f"{value:.{digits}f}")
    return all(
        (shown > limit) == (value > limit) and (shown < limit) == (value < limit)
        for limit in limits
    )


def plotted(value: object) -> Html:
    """A value of a plot's table: five digits, which is more than a plot can show."""
    found = number(value)
    if found is None:
        return Absent() if value is None else Words(str(value))
    if isinstance(value, int):
        return Words(str(value))
    return Words(f"{found:.0f}" if abs(found) >= _WHOLE else f"{found:.5g}")


_WHOLE = 1e5

# ------------------------------------------------------------------------------------ tables


@dataclass(frozen=True)
class Column:
    """A column: heading, unit or part beneath it, and whether it holds numbers."""

    heading: str
    unit: str = ""
    kind: Literal["number", "text", "key"] = "number"


@dataclass(frozen=True)
class Row:
    """A row; `anchor` is where links to it go."""

    cells: tuple[Html, ...]
    anchor: str | None = None
    mark: str = ""


@dataclass(frozen=True)
class Table:
    """A table as the page prints it; the cells of `key` columns name the row."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[Html, ...] = ()


@dataclass(frozen=True)
class Facts:
    """Names and values, one beneath the other."""

    title: Html
    rows: tuple[tuple[str, Html], ...]


def without_empty(table: Table) -> Table:
    """Return the table without the columns in which no row has anything."""
    kept = [
        index
        for index, column in enumerate(table.columns)
        if column.kind == "key" or any(not _empty(row.cells[index]) for row in table.rows)
    ]
    return Table(
        table.caption,
        tuple(table.columns[index] for index in kept),
        tuple(
            Row(tuple(row.cells[index] for index in kept), row.anchor, row.mark)
            for row in table.rows
        ),
        table.notes,
    )


def _empty(cell: Html) -> bool:
    return isinstance(cell, Absent)
