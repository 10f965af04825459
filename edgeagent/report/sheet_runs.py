"""How do several runs stand beside each other?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgeagent.report.reading import number
from edgeagent.report.sheet_measured import model_of
from edgeagent.report.sheet_tables import RATE, TTFT_P95
from edgeagent.report.sheet_values import (
    Absent,
    At,
    Column,
    Html,
    Line,
    Link,
    Row,
    Table,
    Under,
    Words,
    with_interval,
    without_empty,
)

_USUAL = (1, 4, 8, 16)
"""The levels that people compare by, where they were measured."""

_MOST_LEVELS = 4


def side_by_side(runs: Sequence[tuple[At, At]]) -> tuple[Table, ...]:
    """Two tables over all runs: throughput, and time to first token with memory.

    `runs` are pairs of a label and the run's document.
    """
    at_once = _levels_shown([run for _, run in runs])
    keys = (
        Column("Run", "", "key"),
        Column("Engine", "", "key"),
        Column("Version", "", "key"),
        Column("Setting", "", "key"),
    )
    headings = [f"{level} at once" for level in at_once]
    rates = Table(
        "Output tokens a second",
        (*keys, Column("Model", "", "text"), *(Column(one, "95 %") for one in headings)),
        tuple(_rows(runs, at_once, first_token=False)),
    )
    first = Table(
        "Time to first token and memory",
        (
            *keys,
            *(Column(one, "p95, ms, 95 %") for one in headings),
            Column("Each further slot", "MiB, 95 %"),
        ),
        tuple(_rows(runs, at_once, first_token=True)),
    )
    return without_empty(rates), without_empty(first)


def _levels_shown(runs: Sequence[At]) -> tuple[int, ...]:
    """The usual levels that any run has, else the first few that there are."""
    seen = {
        int(found)
        for run in runs
        for level in (run / "levels").each()
        if (found := number((level / "concurrency").value)) is not None
    }
    usual = tuple(level for level in _USUAL if level in seen)
    return usual or tuple(sorted(seen)[:_MOST_LEVELS])


def _rows(
    runs: Sequence[tuple[At, At]], at_once: Sequence[int], *, first_token: bool
) -> Iterator[Row]:
    for place, (label, run) in enumerate(runs):
        for engine, cache, speculation in _settings(run):
            levels = {
                number((level / "concurrency").value): level
                for level in (run / "levels").each()
                if _key(level) == (engine.word, cache.word, speculation.word)
            }
            quantity = TTFT_P95 if first_token else RATE
            figures = tuple(
                with_interval(
                    level.go("metrics", quantity.name),
                    quantity.unit,
                    quantity.reason,
                    quantity.limits(run),
                )
                if (level := levels.get(one)) is not None
                else Absent("this level was not measured in this run")
                for one in at_once
            )
            found = _engine(run, engine)
            keys: tuple[Html, ...] = (
                Link(f"run-{place}", label.text()),
                engine.text(),
                (found / "version").text("the engine did not say"),
                _setting(cache, speculation),
            )
            model = model_of(run, found)
            words = (
                Line(((model / "id").text("not seen"), (model / "quantization").text("not read"))),
            )
            more = (_memory(run, engine),) if first_token else ()
            yield Row((*keys, *(() if first_token else words), *figures, *more))


def _setting(cache: At, speculation: At) -> Html:
    words: Html = Line((Words("prefix cache"), cache.text()))
    if speculation.word in {"", "off"}:
        return words
    return Line((words, Line((Words("speculation"), speculation.text()))), ", ")


def _settings(run: At) -> Iterator[tuple[At, At, At]]:
    seen: set[tuple[str, ...]] = set()
    for level in (run / "levels").each():
        key = _key(level)
        if key not in seen:
            seen.add(key)
            yield level / "engine", level / "prefix_cache", level / "speculation"


def _key(level: At) -> tuple[str, ...]:
    return tuple((level / key).word for key in ("engine", "prefix_cache", "speculation"))


def _engine(run: At, engine: At) -> At:
    found = ((one) for one in (run / "engines").each() if (one / "id").word == engine.word)
    return next(found, At(None, ""))


def _memory(run: At, engine: At) -> Html:
    for cost in (run / "memory").each():
        if (cost / "engine").word == engine.word:
            main = (cost / "measured_bytes_per_slot").figure("mib", (cost / "reason").word)
            beneath = (cost / "ci95").span("mib")
            return main if beneath is None else Under(main, beneath)
    return Absent("not measured in this run")
