"""What does the operator want to see when a sweep has ended?

One row per level, then what should be doubted (worst first), then where everything lies and what
to do next. The input is a result document (docs: result.json) as plain JSON values; whatever is
missing in it is shown as a dash, never as zero.
"""

from __future__ import annotations

import io
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TextIO

from edgeagent.report import slots
from edgeagent.report.reading import average, mapping, mappings, mean, number, sequence

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

NONE = "–"  # noqa: RUF001  # because the dash of a missing value is not a minus

WIDE = 124
"""Columns from which one table holds everything; below there are two."""

_WITHOUT_TERMINAL = (140, 24)
_MIB = 1 << 20
_GIB = 1 << 30

_SEVERITY_ORDER = ("suspect", "warning", "info")
_STATUS_ORDER = ("failed", "suspect", "ok")
_STYLE = {"failed": "red", "suspect": "yellow", "warning": "yellow", "ok": "green"}


def show(document: Mapping[str, object], folder: Path, stream: TextIO) -> None:
    """Print the document to `stream`; in colour on a terminal, unless NO_COLOR is set."""
    from rich.console import (
        Console,
    )  # here, because rich takes memory that measuring can do without

    with suppress(AttributeError):
        stream.reconfigure(errors="replace")  # type: ignore[attr-defined]  # because not every TextIO has it
    width = shutil.get_terminal_size(_WITHOUT_TERMINAL).columns
    _print(Console(file=stream, width=width), document, folder)


def render(document: Mapping[str, object], folder: Path, width: int) -> str:
    """Return what `show` prints, without colour."""
    from rich.console import Console

    text = io.StringIO()
    _print(Console(file=text, width=width, color_system=None), document, folder)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def _print(console: Console, document: Mapping[str, object], folder: Path) -> None:
    from rich.text import Text

    for part in _parts(document, folder, console.width):
        # Bare lines are not wrapped: a path or a command broken in two cannot be copied.
        console.print(part, highlight=False, soft_wrap=isinstance(part, Text))


def _parts(document: Mapping[str, object], folder: Path, width: int) -> Iterable[RenderableType]:
    from rich.padding import Padding
    from rich.text import Text

    for series in all_series(document):
        yield Text("")
        yield Text(series.title, style="bold")
        for columns in _tables(width):
            yield Text("")
            yield Padding(_table(columns, series.rows), (0, 0, 0, 1))
    costs = slots.rows(document)
    if costs:
        yield Text("")
        yield Text("Memory of each further slot", style="bold")
        yield Text("")
        yield Padding(_slots_table(costs, width), (0, 0, 0, 1))
    for title, lines in said(document):
        yield Text("")
        yield Text(title, style="bold")
        yield Padding(_sentences(lines), (0, 0, 0, 1))
    doubts = findings(document)
    if doubts:
        yield Text("")
        yield Padding(_findings_table(doubts), (0, 0, 0, 1))
    yield Text("")
    for line in closing(document, folder):
        yield Text(line)


# ------------------------------------------------------------------------------------------- levels


@dataclass(frozen=True)
class Row:
    """A level, ready to be read by people; the fields are the cells of its row."""

    cache: str
    at_once: str
    tokens_per_s: str
    ttft: str
    itl: str
    tpot: str
    e2e: str
    cached: str
    requests: str
    peak: str
    status: str


@dataclass(frozen=True)
class Series:
    """The rows of one engine with one kind of speculation."""

    title: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Column:
    """A column: its heading, the field it shows, and in which of two narrow tables it stands."""

    heading: str
    field: str
    half: int
    align: Literal["left", "right"] = "right"


COLUMNS = (
    Column("cache", "cache", 0, "left"),
    Column("at once", "at_once", 0),
    Column("tokens/s", "tokens_per_s", 1),
    Column("TTFT ms\np50 / p95", "ttft", 1),
    Column("ITL ms\np50 / p99", "itl", 1),
    Column("TPOT ms\np50", "tpot", 1),
    Column("e2e s\np95", "e2e", 2),
    Column("prompt\ncached", "cached", 2),
    Column("ok /\nfailed", "requests", 2),
    Column("memory\npeak", "peak", 2),
    Column("status", "status", 2, "left"),
)


def all_series(document: Mapping[str, object]) -> tuple[Series, ...]:
    """Return the levels of a document, grouped by engine and speculation."""
    groups: dict[tuple[str, str], list[Mapping[str, object]]] = {}
    for level in mappings(document.get("levels")):
        group = (_text(level.get("engine")), _text(level.get("speculation")))
        groups.setdefault(group, []).append(level)
    return tuple(
        Series(
            _title(document, engine, speculation),
            tuple(_row(level, _cells_of(document, level)) for level in levels),
        )
        for (engine, speculation), levels in groups.items()
    )


def _row(level: Mapping[str, object], cells: Sequence[Mapping[str, object]]) -> Row:
    metrics = mapping(level.get("metrics"))
    cached = mean(metrics, "cached_prompt_fraction")
    if cached is None:
        cached = average(number(cell.get("cached_prompt_fraction")) for cell in cells)
    return Row(
        cache=_text(level.get("prefix_cache")),
        at_once=_text(level.get("concurrency")),
        tokens_per_s=_with_interval(metrics, "output_tokens_per_s"),
        ttft=_pair(metrics, "ttft_s.p50", "ttft_s.p95"),
        itl=_pair(metrics, "itl_s.p50", "itl_s.p99"),
        tpot=_milliseconds(mean(metrics, "tpot_s.p50")),
        e2e=_decimal(mean(metrics, "e2e_s.p95"), 2),
        cached=NONE if cached is None else f"{cached * 100:.0f} %",
        requests=_served(cells),
        peak=_peak(cells),
        status=_worst(_text(cell.get("status")) for cell in cells),
    )


def _cells_of(
    document: Mapping[str, object], level: Mapping[str, object]
) -> tuple[Mapping[str, object], ...]:
    keys = ("engine", "concurrency", "prefix_cache", "speculation")
    return tuple(
        cell
        for cell in mappings(document.get("cells"))
        if all(cell.get(key) == level.get(key) for key in keys)
    )


def _title(document: Mapping[str, object], engine_id: str, speculation: str) -> str:
    """Return what was measured: engine, version, model, and speculation where it was on."""
    engines = mappings(document.get("engines"))
    engine = next((one for one in engines if one.get("id") == engine_id), {})
    cells = mappings(document.get("cells"))
    model_of = {_text(cell.get("engine")): cell.get("model") for cell in cells}
    models = mappings(document.get("models"))
    model = next((one for one in models if one.get("id") == model_of.get(engine_id)), {})
    version = engine.get("version")
    words = [f"{engine_id} ({version})" if version else engine_id]
    words += [str(model[key]) for key in ("id", "quantization") if model.get(key)]
    if speculation not in {"off", NONE}:
        words.append(f"speculation {speculation}")
    return ", ".join(words)


def _served(cells: Sequence[Mapping[str, object]]) -> str:
    counts = [mapping(cell.get("requests")) for cell in cells]
    ok = [number(count.get("ok")) for count in counts]
    failed = [number(count.get("failed")) for count in counts]
    return f"{_sum(ok)} / {_sum(failed)}"


def _sum(counts: Sequence[float | None]) -> str:
    known = [count for count in counts if count is not None]
    return f"{sum(known):.0f}" if known else NONE


def _peak(cells: Sequence[Mapping[str, object]]) -> str:
    """Return the largest memory of the engine seen in any repeat: GPU where known, else host."""
    on_gpu: list[float] = []
    on_host: list[float] = []
    for cell in cells:
        values = mapping(mapping(cell.get("memory")).get("values"))
        for name, summary in values.items():
            peak = number(mapping(summary).get("peak"))
            if peak is None:
                continue
            if name.startswith("gpu.") and name.endswith(".engine_bytes"):
                on_gpu.append(peak)
            elif name == "engine.rss_bytes":
                on_host.append(peak)
    if on_gpu:
        return f"{_size(max(on_gpu))} GPU"
    return _size(max(on_host)) if on_host else NONE


def _worst(words: Iterable[str]) -> str:
    seen = set(words)
    return next((word for word in _STATUS_ORDER if word in seen), NONE)


def _tables(width: int) -> tuple[Sequence[Column], ...]:
    """Return the columns of each table: one where everything fits, else two with the same keys."""
    if width >= WIDE:
        return (COLUMNS,)
    return tuple([c for c in COLUMNS if c.half in {0, half}] for half in (1, 2))


def _table(columns: Sequence[Column], rows: Iterable[Row]) -> Table:
    return _ruled(
        [(column.heading, column.align) for column in columns],
        [[str(getattr(row, column.field)) for column in columns] for row in rows],
    )


def _slots_table(costs: Sequence[slots.Row], width: int) -> Table:
    if width >= WIDE:
        return _ruled(
            [(column.heading, column.align) for column in slots.COLUMNS],
            [[str(getattr(row, column.field)) for column in slots.COLUMNS] for row in costs],
        )
    # Too narrow for all columns: a line each, the engines beside each other.
    first, *others = slots.COLUMNS
    return _ruled(
        [(first.heading, "left"), *((str(getattr(row, first.field)), "left") for row in costs)],
        [[column.words, *(str(getattr(row, column.field)) for row in costs)] for column in others],
    )


def _ruled(
    headings: Sequence[tuple[str, Literal["left", "right"]]], rows: Iterable[Sequence[str]]
) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1))
    for heading, align in headings:
        table.add_column(heading, justify=align, no_wrap=True)
    for words in rows:
        table.add_row(*(Text(word, style=_STYLE.get(word, "")) for word in words))
    return table


# -------------------------------------------------------------------------------- what it all says


def said(document: Mapping[str, object]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return what the run answers in sentences, by question; what was not asked is left out."""
    answers = _texts(document.get("capacity")), _texts(document.get("effects"))
    crossings = tuple(
        f"{_text(found.get('metric'))}{_setting(found)}: {_text(found.get('text'))}"
        for found in mappings(document.get("comparison"))
    )
    operator = _text(mapping(mapping(document.get("answers")).get("6")).get("text"))
    newcomers = (operator,) if mappings(document.get("interference")) else ()
    sections = (
        ("Where the engines cross", crossings),
        ("How many requests at once keep the SLO", answers[0]),
        ("What speculation and prefix reuse give", answers[1]),
        ("When a second operator comes", newcomers),
    )
    return tuple((title, lines) for title, lines in sections if lines)


def _texts(found: object) -> tuple[str, ...]:
    return tuple(text for one in mappings(found) if isinstance(text := one.get("text"), str))


def _setting(found: Mapping[str, object]) -> str:
    speculation = found.get("speculation")
    more = "" if speculation in (None, "off") else f", speculation {speculation}"
    return f", prefix cache {_text(found.get('prefix_cache'))}{more}"


def _sentences(lines: Iterable[str]) -> Table:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1))
    grid.add_column(overflow="fold")
    for line in lines:
        grid.add_row(Text(line))
    return grid


# ----------------------------------------------------------------------------------------- findings


@dataclass(frozen=True)
class FindingLine:
    """A finding as people read it."""

    severity: str
    code: str
    text: str
    """The first finding of this kind."""
    alike: int
    """How many further ones say the same of other cells."""


def findings(document: Mapping[str, object]) -> tuple[FindingLine, ...]:
    """Return one line for each kind of finding, worst first; all of them stand in the document."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for finding in mappings(document.get("findings")):
        kind = (_text(finding.get("severity")), _text(finding.get("code")))
        kinds.setdefault(kind, []).append(_text(finding.get("text")))
    lines = [
        FindingLine(severity, code, texts[0], len(texts) - 1)
        for (severity, code), texts in kinds.items()
    ]
    return tuple(sorted(lines, key=_rank))


def _rank(line: FindingLine) -> int:
    known = line.severity in _SEVERITY_ORDER
    return _SEVERITY_ORDER.index(line.severity) if known else len(_SEVERITY_ORDER)


def _findings_table(lines: Iterable[FindingLine]) -> Table:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for line in lines:
        more = f" (and {line.alike} more like it)" if line.alike else ""
        severity = Text(line.severity, style=_STYLE.get(line.severity, "dim"))
        grid.add_row(severity, Text(f"{line.code}: {line.text}{more}"))
    return grid


def closing(document: Mapping[str, object], folder: Path) -> tuple[str, ...]:
    """Return the last lines: how the run ended, where it lies, what to do next."""
    cells = mappings(document.get("cells"))
    ok = sum(cell.get("status") == "ok" for cell in cells)
    status = _text(document.get("status"))
    return (
        f"Run {status}, {ok} of {len(cells)} measured cells ok, in",
        f"  {folder}",
        *_sheet(folder),
        *_next_step(status, len(cells) - ok, folder),
    )


def _sheet(folder: Path) -> tuple[str, ...]:
    sheet = folder / "report.html"
    return ("The sheet for whoever decides:", f"  {sheet}") if sheet.exists() else ()


def _next_step(status: str, doubtful: int, folder: Path) -> tuple[str, ...]:
    if status == "partial":
        return ("Measure what is missing:", f"  edgeagent sweep --resume {quoted(folder)}")
    if status == "failed" or doubtful:
        return ("Not every cell can be trusted: remove the causes named above, measure again.",)
    return ("Recompute every number from the records:", f"  edgeagent verify {quoted(folder)}")


def quoted(folder: Path) -> str:
    """Return a path as a shell takes it."""
    return shlex.quote(str(folder))


# ------------------------------------------------------------------------------------------ wording


def _with_interval(metrics: Mapping[str, object], name: str) -> str:
    """Return the mean and, where there is an interval, half its width."""
    value = mean(metrics, name)
    interval = [number(end) for end in sequence(mapping(metrics.get(name)).get("ci95"))]
    low, high = interval if len(interval) == 2 else (None, None)  # noqa: PLR2004  # because an interval has two ends
    if value is None or low is None or high is None:
        return _decimal(value, 1)
    return f"{value:.1f} ± {(high - low) / 2:.1f}"


def _pair(metrics: Mapping[str, object], first: str, second: str) -> str:
    return f"{_milliseconds(mean(metrics, first))} / {_milliseconds(mean(metrics, second))}"


def _milliseconds(seconds: float | None) -> str:
    """Return milliseconds with three digits that mean something, whole ones from 100 on."""
    if seconds is None:
        return NONE
    ms = seconds * 1000
    return f"{ms:.0f}" if ms >= 100 else f"{ms:.1f}"  # noqa: PLR2004  # because of three digits


def _decimal(value: float | None, digits: int) -> str:
    return NONE if value is None else f"{value:.{digits}f}"


def _size(amount_bytes: float) -> str:
    if amount_bytes >= _GIB:
        return f"{amount_bytes / _GIB:.2f} GiB"
    return f"{amount_bytes / _MIB:.0f} MiB"


def _text(value: object) -> str:
    return NONE if value is None else str(value)
