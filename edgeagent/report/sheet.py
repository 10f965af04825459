"""What does a buyer put on the table?

One HTML file that needs no network and no script: the seven answers first, then everything that
they rest on. Every number is taken from the result documents and carries the place from which it
was taken (sheet_values.py); nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from edgeagent.core.answers import QUESTIONS
from edgeagent.report.plot_style import CSS
from edgeagent.report.plots_values import Missing, Plot
from edgeagent.report.sheet_findings import Kind, kinds
from edgeagent.report.sheet_measured import Measured, files, measured, missing, starts
from edgeagent.report.sheet_more import Part, parts
from edgeagent.report.sheet_run import SheetRun
from edgeagent.report.sheet_runs import side_by_side
from edgeagent.report.sheet_tables import CellIndex, cells, index_of, levels
from edgeagent.report.sheet_values import At, Html, Table, plotted, visible

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATE = "sheet.html.j2"


@dataclass(frozen=True)
class RunHow:
    """What is known of a run besides its result."""

    command: str | None = None
    """The command that measures the same again, as a shell takes it."""
    signature: str | None = None
    """What is known of the signature, in a sentence."""
    finished: bool = True
    """False when the run was killed and its records were summed up for this sheet."""


@dataclass(frozen=True)
class How:
    """What is known of the runs besides their results: by place, as the runs are given."""

    runs: tuple[RunHow, ...] = ()
    agent: str | None = None
    """The version that made the sheet."""

    def of(self, place: int) -> RunHow:
        """What is known of a run; nothing where nothing was said."""
        return self.runs[place] if place < len(self.runs) else RunHow()


@dataclass(frozen=True)
class Answered:
    """A question and its answer."""

    number: str
    question: str
    text: Html
    missing: bool
    details: tuple[Html, ...]
    behind: tuple[Html, ...]


@dataclass(frozen=True)
class Section:
    """One run, ready to be printed."""

    place: int
    label: Html
    host: Html
    box: Html
    started: Html
    finished: Html
    run_id: Html
    version: Html
    status: str
    status_shown: Html
    missing: tuple[Html, ...]
    answers: tuple[Answered, ...]
    measured: Measured
    levels: Table
    cells: Table
    kinds: tuple[Kind, ...]
    parts: tuple[Part, ...]
    files: Table
    starts: tuple[Html, ...]
    how: RunHow
    command: Html | None
    signature: Html | None


@dataclass(frozen=True)
class Page:
    """The whole sheet, ready to be printed."""

    title: str
    sections: tuple[Section, ...]
    plots: Sequence[Plot | Missing]
    compared: tuple[Table, ...] = ()
    maker: Html | None = field(default=None)


def sheet_html(runs: Sequence[SheetRun], plots: Sequence[Plot | Missing], how: How) -> str:
    """Return the sheet of one run or several as one HTML document.

    Needs jinja2 (the extra `report`); raises ModuleNotFoundError without it.
    """
    page = _page(runs, plots, how)
    return _environment().get_template(_TEMPLATE).render(page=page, colours=CSS)


@cache
def _environment() -> Environment:
    # Imported here: jinja2 takes memory that measuring can do without.
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


def _page(runs: Sequence[SheetRun], plots: Sequence[Plot | Missing], how: How) -> Page:
    pairs = [
        (At(run.label, f"label/{place}"), At(run.document, str(place)))
        for place, run in enumerate(runs)
    ]
    return Page(
        title=visible(f"{', '.join(run.label for run in runs)}: local language models, measured"),
        sections=tuple(
            _section(place, label, run, how.of(place)) for place, (label, run) in enumerate(pairs)
        ),
        plots=plots,
        compared=side_by_side(pairs) if len(pairs) > 1 else (),
        maker=At(how.agent, "how/agent").text() if how.agent else None,
    )


def _section(place: int, label: At, run: At, how: RunHow) -> Section:
    index = index_of(run, place)
    status = (run / "status").word
    return Section(
        place=place,
        label=label.text(),
        host=run.go("host", "hostname").text("a box without a name"),
        box=_box(run / "host"),
        started=(run / "started_at").time("start not recorded"),
        finished=(run / "finished_at").time("not finished"),
        run_id=(run / "run_id").text("without a name"),
        version=run.go("agent", "version").text("version not recorded"),
        status=status if status in {"complete", "partial", "failed"} else "unknown",
        status_shown=(run / "status").text("status not recorded"),
        missing=missing(run),
        answers=_answers(run, index),
        measured=measured(run),
        levels=levels(run),
        cells=cells(run, place),
        kinds=kinds(run, index),
        parts=parts(run, index),
        files=files(run),
        starts=starts(run),
        how=how,
        command=_said(how.command, f"how/{place}/command"),
        signature=_said(how.signature, f"how/{place}/signature"),
    )


def _said(words: str | None, pointer: str) -> Html | None:
    return At(words, pointer).text() if words else None


def _box(host: At) -> Html:
    """What a box is called by people who would buy one: its board, else its processor."""
    board = host / "board"
    return board.text() if board.word else (host / "cpu").text("a processor without a name")


def _answers(run: At, index: CellIndex) -> tuple[Answered, ...]:
    found = run / "answers"
    return tuple(
        _answer(number, question, found / number, index) for number, question in _asked(found)
    )


def _asked(found: At) -> list[tuple[str, str]]:
    """The questions; a result of a newer version may have answers to more of them."""
    further: Mapping[str, Any] = dict(found.items())
    return [
        *QUESTIONS.items(),
        *((number, "A further question") for number in further if number not in QUESTIONS),
    ]


def _answer(number: str, question: str, answer: At, index: CellIndex) -> Answered:
    text = answer / "text"
    return Answered(
        number=number,
        question=question,
        text=text.text("the result has no answer to it"),
        missing=not text.known or text.word.startswith(("not measured", "not resolved")),
        details=tuple(one.text() for one in (answer / "details").each()),
        behind=index.behind(answer / "cells"),
    )
