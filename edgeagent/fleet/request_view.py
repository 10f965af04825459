"""What does the operator see while many boxes are asked, and at the end?

On a terminal a live table with who needs a look first; elsewhere one line a change. What boxes say
is cleaned before it reaches a terminal, and never read as rich's markup.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from edgeagent.core.rollout import Box, Rollout, Stage
from edgeagent.fleet.request import Watch
from edgeagent.report.plots_words import clean, shorten

if TYPE_CHECKING:  # because rich is only wanted on a terminal
    from rich.console import Console, Group

_ORDER: tuple[Stage, ...] = (
    "failed",
    "interrupted",
    "rejected",
    "undelivered",
    "silent",
    "overdue",
    "cancelled",
    "running",
    "accepted",
    "asked",
    "skipped",
    "waiting",
    "succeeded",
)
_STYLE: Mapping[Stage, str] = {
    **dict.fromkeys(("failed", "interrupted", "rejected", "undelivered"), "red"),
    "silent": "red",
    "overdue": "red",
    "cancelled": "yellow",
    "running": "cyan",
    "succeeded": "green",
}
_WITHOUT_TERMINAL = (120, 40)
_AROUND = 6
_WORDS_EM = 90.0
_EVERY_S = 0.25


@contextmanager
def watching(stream: TextIO) -> Iterator[Watch]:
    """Show a rollout as it moves."""
    if stream.isatty():
        with _live(stream) as watch:
            yield watch
    else:
        yield _lines(stream)


def table(state: Rollout, stream: TextIO) -> None:
    """Print every box, the worst first, and the sums."""
    from rich.console import Console

    width = shutil.get_terminal_size(_WITHOUT_TERMINAL).columns
    console = Console(file=stream, width=width)
    console.print(_parts(state, len(state.boxes)), highlight=False)


def summed(tally: Counter[Stage]) -> str:
    """How many boxes are at which stage, in words."""
    words = [f"{tally[stage]} {_word(stage)}" for stage in reversed(_ORDER) if tally[stage]]
    return ", ".join(words) or "no boxes"


def _word(stage: Stage) -> str:
    return {"undelivered": "not delivered", "skipped": "not asked"}.get(stage, stage)


def _said(box: Box) -> str:
    words = box.reason or ""
    if box.code is not None:
        words = f"{box.code}: {words}"
    if box.stage == "running" and box.answer is not None and box.answer.progress is not None:
        words = f"{box.answer.progress:.0%} {words}"
    if box.answer is not None and box.answer.run is not None and box.stage == "succeeded":
        words = words or f"run {box.answer.run}"
    return shorten(clean(words), _WORDS_EM) if words.strip() else ""


# ---------------------------------------------------------------- one line a change


def _lines(stream: TextIO) -> Watch:
    shown: dict[str, Stage] = {}

    def watch(state: Rollout) -> None:
        for name, box in state.boxes.items():
            if shown.get(name, "waiting") != box.stage:
                shown[name] = box.stage
                stream.write(f"{name}  {_word(box.stage)}  {_said(box)}".rstrip() + "\n")
        stream.flush()

    return watch


# ---------------------------------------------------------------- a live table


@contextmanager
def _live(stream: TextIO) -> Iterator[Watch]:
    from rich.console import Console
    from rich.live import Live

    console = Console(file=stream)
    last = [0.0]
    latest: list[Rollout] = []
    with Live(console=console, transient=True, auto_refresh=False) as live:

        def watch(state: Rollout) -> None:
            latest[:] = [state]
            now = time.monotonic()
            if now - last[0] >= _EVERY_S or state.over:
                last[0] = now
                live.update(_parts(state, _room(console)), refresh=True)

        yield watch


def _room(console: Console) -> int:
    return max(1, console.height - _AROUND)


def _parts(state: Rollout, room: int) -> Group:
    from rich import box as edges
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    rank = {stage: number for number, stage in enumerate(_ORDER)}
    ordered = sorted(state.boxes.items(), key=lambda item: (rank[item[1].stage], item[0]))
    made = Table(box=edges.SIMPLE_HEAD, pad_edge=False)
    made.add_column("box", no_wrap=True)
    made.add_column("", no_wrap=True)
    made.add_column("what it said", overflow="fold")
    for name, box in ordered[:room]:
        style = _STYLE.get(box.stage, "")
        made.add_row(Text(clean(name)), Text(_word(box.stage), style), Text(_said(box)))
    more = len(ordered) - room
    hidden = f"; {more} more do not fit here" if more > 0 else ""
    return Group(made, Text(summed(state.tally) + hidden))
