"""Which side is better where, as sentences and a table of factors?

The input is the document of `edgeagent compare` as plain JSON values. For each pair: what is in the
way of comparing it, one sentence a metric and setting, then the factors a / b at each level.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from edgeagent.report.reading import mappings, number, sequence

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

NONE = "–"  # noqa: RUF001  # because the dash of a missing value is not a minus

ROOMY = 100
"""Columns from which intervals stand under their factors."""

_WITHOUT_TERMINAL = (120, 24)

_WORDS = {
    "output_tokens_per_s": "output tokens/s",
    "total_tokens_per_s": "total tokens/s",
    "request_throughput_per_s": "requests/s",
    "goodput_per_s": "goodput",
    "good_fraction": "share of good requests",
    "energy.per_output_token_j": "energy a token",
    "energy.per_request_j": "energy a request",
}
_NAMES = {"ttft_s": "TTFT", "ttfat_s": "TTFAT", "itl_s": "ITL", "tpot_s": "TPOT", "e2e_s": "e2e"}


def show(document: Mapping[str, object], stream: TextIO) -> None:
    """Print the document to `stream`; in colour on a terminal, unless NO_COLOR is set."""
    from rich.console import (
        Console,
    )  # here, because rich takes memory that measuring can do without

    with suppress(AttributeError):
        stream.reconfigure(errors="replace")  # type: ignore[attr-defined]  # because not every TextIO has it
    _print(
        Console(file=stream, width=shutil.get_terminal_size(_WITHOUT_TERMINAL).columns), document
    )


def render(document: Mapping[str, object], width: int) -> str:
    """Return what `show` prints, without colour."""
    from rich.console import Console

    text = io.StringIO()
    _print(Console(file=text, width=width, color_system=None), document)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def _print(console: Console, document: Mapping[str, object]) -> None:
    for part in _parts(document, console.width):
        console.print(part, highlight=False)


def _parts(document: Mapping[str, object], width: int) -> Iterable[RenderableType]:
    from rich.padding import Padding
    from rich.text import Text

    for pair in mappings(document.get("pairs")):
        comparisons = mappings(pair.get("comparison"))
        yield Text("")
        yield Text(f"{_text(pair.get('a'))} against {_text(pair.get('b'))}", style="bold")
        doubts = mappings(pair.get("doubts"))
        if doubts:
            yield Text("")
            yield Padding(_grid(_doubt_lines(doubts)), (0, 0, 0, 1), expand=False)
        if comparisons:
            yield Text("")
            yield Padding(_grid(sentences(comparisons)), (0, 0, 0, 1), expand=False)
            yield Text("")
            yield Padding(_factors(pair, width), (0, 0, 0, 1), expand=False)
    yield Text("")
    yield Text("? marks a level whose difference is not resolved (95 %, each level by itself).")


def sentences(comparisons: Sequence[Mapping[str, object]]) -> list[tuple[str, str]]:
    """Return each comparison as its subject and its outcome; remarks follow once."""
    lines = [(_subject(one, comparisons), _text(one.get("text"))) for one in comparisons]
    remarks = dict.fromkeys(str(note) for one in comparisons for note in sequence(one.get("notes")))
    return [*lines, *(("note", note) for note in remarks)]


def _doubt_lines(doubts: Sequence[Mapping[str, object]]) -> list[tuple[str, str]]:
    lines = []
    for doubt in doubts:
        refused = doubt.get("severity") == "refuse"
        about = [metric_words(str(name)) for name in sequence(doubt.get("metrics"))]
        what = f"{', '.join(about)}: " if about else ""
        lines.append(("not compared" if refused else "mind", f"{what}{_text(doubt.get('text'))}"))
    return lines


def metric_words(name: str) -> str:
    """Return a metric as people say it: `TTFT p95`."""
    if name in _WORDS:
        return _WORDS[name]
    base, _, part = name.partition(".")
    return f"{_NAMES[base]} {part}" if base in _NAMES else name


def _subject(one: Mapping[str, object], among: Sequence[Mapping[str, object]]) -> str:
    words = metric_words(_text(one.get("metric")))
    cache, speculation = one.get("prefix_cache"), one.get("speculation")
    if len({other.get("prefix_cache") for other in among}) > 1 or cache == "on":
        words += f", cache {_text(cache)}"
    return words if speculation in {None, "off"} else f"{words}, {speculation}"


def _grid(lines: Iterable[tuple[str, str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for left, right in lines:
        grid.add_row(Text(left, style="dim"), Text(right))
    return grid


# ---------------------------------------------------------------------------------------- factors


def _factors(pair: Mapping[str, object], width: int) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    comparisons = mappings(pair.get("comparison"))
    first = _text(pair.get("a"))
    levels = sorted(
        {
            int(level)
            for one in comparisons
            for row in mappings(one.get("levels"))
            for level in [number(row.get("concurrency"))]
            if level is not None
        }
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1))
    table.add_column(f"{first} / {_text(pair.get('b'))}", overflow="fold")
    for level in levels:
        table.add_column(f"x{level}", justify="right", no_wrap=True)
    for one in comparisons:
        by_level = {row.get("concurrency"): row for row in mappings(one.get("levels"))}
        factors = (
            _Factor(by_level.get(level, {}), _text(one.get("a")) != first) for level in levels
        )
        cells = (factor.shown(with_interval=width >= ROOMY) for factor in factors)
        table.add_row(_subject(one, comparisons), *map(Text, cells))
    return table


@dataclass(frozen=True)
class _Factor:
    """A level's factor; turned where the comparison names the sides the other way round."""

    level: Mapping[str, object]
    turned: bool

    def shown(self, *, with_interval: bool) -> str:
        factor = self._number(self.level.get("factor"))
        if factor is None:
            return NONE
        text = f"{_digits(factor)}{'' if self.level.get('better') else '?'}"
        known = [self._number(end) for end in sequence(self.level.get("ci95"))]
        ends = sorted(end for end in known if end is not None)
        if not with_interval or len(ends) != 2:  # noqa: PLR2004  # because an interval has two ends
            return text
        return f"{text}\n{_digits(ends[0])} to {_digits(ends[1])}"

    def _number(self, value: object) -> float | None:
        found = number(value)
        return found if not (self.turned and found) else 1 / found


def _digits(value: float) -> str:
    """Three digits that mean something."""
    if value >= 100:  # noqa: PLR2004  # because of three digits
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"  # noqa: PLR2004  # because of three digits


def _text(value: object) -> str:
    return NONE if value is None else str(value)
