"""What does the operator see in the terminal: a line a box, once or live?

Names and troubles come from boxes. Before they reach a terminal they lose every character that it
would obey (plots_words.clean), and they are never read as rich's markup.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, TextIO

from edgeagent.fleet.status import Line, age, counts, short_version, worst_first
from edgeagent.report.plots_words import clean, shorten

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

NONE = "–"  # noqa: RUF001  # because the dash of a missing value is not a minus

_STYLE = {"online": "green", "offline": "red", "unknown": "yellow", "bad": "red", "care": "yellow"}
_WITHOUT_TERMINAL = (160, 24)
_NAME_EM = 22.0
_WORDS_EM = 60.0
_AROUND = 6
"""Lines that a live view needs besides its boxes."""


def show(lines: Sequence[Line], stream: TextIO) -> None:
    """Print every box; in colour on a terminal, unless NO_COLOR is set."""
    from rich.console import Console

    with suppress(AttributeError):
        stream.reconfigure(errors="replace")  # type: ignore[attr-defined]  # because not every TextIO has it
    width = shutil.get_terminal_size(_WITHOUT_TERMINAL).columns
    console = Console(file=stream, width=width)
    for part in _parts(lines, len(lines), width):
        console.print(part, highlight=False)


def render(lines: Sequence[Line], width: int) -> str:
    """Return what `show` prints, without colour."""
    import io

    from rich.console import Console

    text = io.StringIO()
    console = Console(file=text, width=width, color_system=None)
    for part in _parts(lines, len(lines), width):
        console.print(part, highlight=False)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def watch(look: Callable[[], Sequence[Line] | str], every_s: float, stream: TextIO) -> None:
    """Show the table until interrupted; `look` returns lines, or why there are none just now.

    A database that is away for a while does not end the view: what was seen last stays, with the
    reason beneath it.
    """
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console = Console(file=stream)
    last: Sequence[Line] = ()
    with suppress(KeyboardInterrupt), Live(console=console, screen=console.is_terminal) as live:
        while True:
            found = look()
            why = found if isinstance(found, str) else ""
            last = last if isinstance(found, str) else found
            room = max(1, console.height - _AROUND)
            parts: list[RenderableType] = [*_parts(last, room, console.width)]
            if why:
                parts.append(Text(clean(why), style="red"))
            live.update(Group(*parts), refresh=True)
            time.sleep(every_s)


def _parts(lines: Sequence[Line], room: int, width: int) -> list[RenderableType]:
    """The table, as many boxes as there is room for, and what it comes to."""
    from rich.text import Text

    ordered = sorted(lines, key=worst_first)
    table = _table(width)
    for line in ordered[:room]:
        table.add_row(*_cells(line, width))
    sums = counts(lines)
    words = [f"{sums[name]:,} {name}" for name in ("online", "offline", "unknown")]
    total = f"{_boxes(len(lines))}: {', '.join(words)}; {sums['troubled']:,} with a trouble"
    left = len(lines) - room
    more = f"; {left:,} more do not fit here" if left > 0 else ""
    return [table, Text(total + more)]


def _boxes(count: int) -> str:
    return f"{count:,} box" if count == 1 else f"{count:,} boxes"


def _table(width: int) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading, side, wide, least in _COLUMNS:
        if width >= wide:
            table.add_column(
                heading, justify=side, min_width=least, no_wrap=True, overflow="ellipsis"
            )
    return table


_Side = Literal["left", "right"]
_COLUMNS: tuple[tuple[str, _Side, int, int], ...] = (
    ("box", "left", 0, 9),
    ("site", "left", 100, 13),
    ("class", "left", 150, 10),
    ("state", "left", 0, 7),
    ("heard", "right", 0, 7),
    ("engine", "left", 150, 14),
    ("backlog", "right", 0, 7),
    ("result", "right", 0, 8),
    ("cert", "right", 0, 5),
    ("clock", "left", 150, 6),
    ("what to look at", "left", 0, 8),
)
"""Heading, where it stands, from how many columns of the terminal on it is shown, and the width
that no neighbour may take from it."""


def _cells(line: Line, width: int) -> list[Text]:
    from rich.text import Text

    box = line.box
    words = (
        (_name(box.node), ""),
        (_name(box.site), ""),
        (_name(box.box_class), ""),
        (line.state, _STYLE[line.state]),
        (_age(line.age_s), ""),
        (_name(", ".join(map(short_version, line.engines)) or None), ""),
        (NONE if box.spool.rows is None else f"{box.spool.rows:,}", ""),
        (_result(line), ""),
        (NONE if line.cert_days is None else f"{line.cert_days:,.0f} d", ""),
        (_name(box.clk), ""),
        (_look_at(line), _STYLE.get(line.weight or "", "")),
    )
    return [
        Text(text, style=style)
        for (text, style), (_, _, wide, _) in zip(words, _COLUMNS, strict=True)
        if width >= wide
    ]


def _name(name: str | None) -> str:
    return NONE if not name else shorten(clean(name), _NAME_EM)


def _age(seconds: float | None) -> str:
    return NONE if seconds is None else age(seconds)


def _result(line: Line) -> str:
    last = line.box.last
    if last is None:
        return NONE
    ago = _age(line.result_age_s)
    return ago if last.status == "complete" else f"{shorten(clean(last.status), 6)}, {ago}"


def _look_at(line: Line) -> str:
    """The first trouble; how many more there are."""
    ordered = sorted(line.troubles, key=lambda trouble: trouble.weight)
    if not ordered:
        return ""
    first = shorten(clean(ordered[0].text), _WORDS_EM)
    return first if len(ordered) == 1 else f"{first} (and {len(ordered) - 1} more)"
