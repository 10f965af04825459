"""What do the further questions give as tables: memory, crossing, operator, capacity, effects?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from edgeagent.core.answers import METRIC_WORDS
from edgeagent.report.sheet_tables import CellIndex, without_plain_speculation
from edgeagent.report.sheet_values import (
    Absent,
    At,
    Column,
    Fixed,
    Html,
    Line,
    Row,
    Shown,
    Table,
    Under,
    Unit,
    Words,
    without_empty,
)


@dataclass(frozen=True)
class Part:
    """A question's sentences and its table; `missing` says why there is neither."""

    key: str
    title: str
    sentences: tuple[Html, ...] = ()
    tables: tuple[Table, ...] = ()
    missing: str | None = None
    behind: tuple[Html, ...] = ()
    """The cells that it rests on, where they do not stand in the table of cells."""


def parts(run: At, cells: CellIndex) -> tuple[Part, ...]:
    """Every further question, asked or not."""
    builders: tuple[tuple[str, str, str, Callable[[At, CellIndex], Part]], ...] = (
        ("comparison", "Where the engines cross", "name two engines in one sweep", _comparison),
        (
            "memory",
            "Memory of each further request",
            "it takes starts of an engine of our own at several slot counts "
            "(--memory-repeats above zero)",
            _memory,
        ),
        ("interference", "The second operator", "run with --second-operator", _operator),
        ("capacity", "Requests at once within the limits", "run with --capacity", _capacity),
        ("knee", "Where throughput stops growing", "it takes two levels and three repeats", _knee),
        (
            "effects",
            "Prefix reuse and speculation together",
            "run with --prefix-cache both --speculation off --speculation ngram",
            _effects,
        ),
    )
    return tuple(
        build(run, cells) if any((run / key).each()) else Part(key, title, missing=reason)
        for key, title, reason, build in builders
    )


def metric_words(metric: At) -> Html:
    """A metric's name as people say it."""
    words = METRIC_WORDS.get(metric.word)
    if words is None:
        return metric.text()
    return Fixed(words[:1].upper() + words[1:])


def setting(place: At) -> Html:
    """The setting that a statement holds for: cache, and speculation where it was on."""
    known = [Line((Words("prefix cache"), (place / "prefix_cache").text("not said")))]
    if (place / "speculation").word not in {"", "off"}:
        known.append(Line((Words("speculation"), (place / "speculation").text())))
    return Line(tuple(known), ", ")


def _said(run: At, key: str) -> tuple[Html, ...]:
    return tuple((one / "text").text() for one in (run / key).each() if (one / "text").known)


def _spread(place: At, unit: Unit) -> Html:
    """A value with its interval beneath, in the shape {value, ci95}."""
    main = (place / "value").figure(unit)
    beneath = (place / "ci95").span(unit)
    return main if beneath is None else Under(main, beneath)


# ---------------------------------------------------------------------------------- comparison


def _comparison(run: At, _cells: CellIndex) -> Part:
    found = list((run / "comparison").each())
    sentences = tuple(
        Line(
            (Line((metric_words(one / "metric"), setting(one)), ", "), (one / "text").text()), ": "
        )
        for one in found
    )
    rows = tuple(row for one in found for row in _differences(one))
    columns = (
        Column("Metric", "", "key"),
        Column("Setting", "", "key"),
        Column("At once", "", "key"),
        Column("Compared", "a / b", "text"),
        Column("Factor a / b", "95 %"),
        Column("Better", "", "text"),
        Column("Repeats"),
        Column("Needed further"),
    )
    notes = tuple(dict.fromkeys(note.word for one in found for note in (one / "notes").each()))
    firsts = [
        next(note.text() for one in found for note in (one / "notes").each() if note.word == words)
        for words in notes
    ]
    table = without_empty(Table("Side against side, level by level", columns, rows, tuple(firsts)))
    return Part("comparison", "Where the engines cross", sentences, (table,))


def _differences(one: At) -> Iterator[Row]:
    a, b = one / "a", one / "b"
    for level in (one / "levels").each():
        better = (level / "better").word
        winner: Html = {"a": a.text(), "b": b.text()}.get(
            better, Absent("not resolved at this level", (level / "better").pointer)
        )
        factor = (level / "factor").figure("factor", (level / "note").word or "no factor")
        interval = (level / "ci95").span("factor")
        yield Row(
            (
                metric_words(one / "metric"),
                setting(one),
                (level / "concurrency").figure("count"),
                Line((a.text(), b.text()), " / "),
                factor if interval is None else Under(factor, interval),
                winner,
                (level / "replicates").figure("count"),
                (one / "replicates_needed").figure("count", "none, or not known"),
            )
        )


# -------------------------------------------------------------------------------------- memory


def _memory(run: At, cells: CellIndex) -> Part:
    columns = (
        Column("Engine", "", "key"),
        Column("Memory", "", "key"),
        Column("Speculation", "", "key"),
        Column("Tokens a slot"),
        Column("Each further slot", "MiB, 95 %"),
        Column("At rest", "MiB, 95 %"),
        Column("By arithmetic", "MiB"),
        Column("Engine says", "MiB"),
        Column("Cross-check", "MiB"),
        Column("Without slots"),
        Column("Mapped weights"),
        Column("Budget"),
        Column("Reserve"),
        Column("Slots that fit"),
        Column("Read from", "", "text"),
    )
    rows = tuple(_cost(one) for one in (run / "memory").each())
    points = tuple(row for one in (run / "memory").each() for row in _points(one))
    reasons = tuple(
        Line(((one / "engine").text(), (one / "reason").text()), ": ")
        for one in (run / "memory").each()
        if (one / "reason").known
    )
    measured = Table(
        "What was measured at each number of slots",
        (
            Column("Engine", "", "key"),
            Column("Slots", "", "key"),
            Column("Memory of the engine"),
            Column("Ready, before any request"),
            Column("Largest while loading"),
        ),
        points,
    )
    tables = (
        without_plain_speculation(
            without_empty(Table("Memory of each further slot", columns, rows, reasons))
        ),
        without_empty(measured),
    )
    return Part(
        "memory",
        "Memory of each further request",
        tables=tables,
        behind=cells.behind(run.go("answers", "5", "cells")),
    )


_DOMAINS = {"gpu": "GPU", "host": "host", "unified": "shared by CPU and GPU"}


def _cost(one: At) -> Row:
    domain = _DOMAINS.get((one / "domain").word)
    measured = (one / "measured_bytes_per_slot").figure("mib", (one / "reason").word or "unknown")
    source = (one / "source").text("no source")
    return Row(
        (
            (one / "engine").text(),
            (one / "domain").text() if domain is None else Words(domain),
            (one / "speculation").text("off"),
            (one / "context_per_slot").figure("count"),
            _mib(measured, one / "ci95"),
            _mib((one / "ready_bytes_per_slot").figure("mib"), one / "ready_ci95"),
            (one / "predicted_bytes_per_slot").figure("mib", "no arithmetic for this model"),
            (one / "engine_reported_bytes_per_slot").figure("mib", "the engine does not say"),
            (one / "cross_check_bytes_per_slot").figure("mib", "no second source"),
            (one / "base_bytes").figure("size"),
            (one / "mapped_bytes").figure("size"),
            (one / "budget_bytes").figure("size", "not in the result"),
            (one / "reserve_bytes").figure("size", "not in the result"),
            (one / "max_slots").figure("count", "not known"),
            Line((source, Line((Words("("), (one / "quality").text(), Words(")")), ""))),
        )
    )


def _mib(main: Html, interval: At) -> Html:
    beneath = interval.span("mib")
    return main if beneath is None else Under(main, beneath)


def _points(one: At) -> Iterator[Row]:
    for index, slots in enumerate((one / "slots").each()):
        yield Row(
            (
                (one / "engine").text(),
                slots.figure("count"),
                (one / "bytes" / index).figure("size"),
                (one / "ready_bytes" / index).figure("size"),
                (one / "load_peak_bytes" / index).figure("size"),
            )
        )


# ---------------------------------------------------------------------------- second operator


def _operator(run: At, cells: CellIndex) -> Part:
    found = list((run / "interference").each())
    rows = tuple(_arrival(one) for one in found)
    columns = (
        Column("Engine", "", "key"),
        Column("Setting", "", "key"),
        Column("At once", "", "key"),
        Column("Slots"),
        Column("Output lost", "while served, 95 %"),
        Column("Longest silence grows", "s, 95 %"),
        Column("Typical silence grows", "s, 95 %"),
        Column("Tokens lost", "95 %"),
        Column("Recovery", "s, 95 %"),
        Column("Cached tokens lost", "95 %"),
        Column("Newcomer's prompt", "tokens"),
        Column("Newcomer's first token", "s, 95 %"),
        Column("of it for a slot", "s"),
        Column("Pairs"),
    )
    phases = tuple(row for one in found for row in _phases(one))
    phase_columns = (
        Column("Engine", "", "key"),
        Column("At once", "", "key"),
        Column("Windows", "", "key"),
        Column("Phase", "", "key"),
        Column("Output tokens/s", "95 %"),
        Column("Gap between tokens", "p99, ms, 95 %"),
        Column("Longest silence", "ms, 95 %"),
        Column("Values"),
    )
    return Part(
        "interference",
        "The second operator",
        (),
        (
            without_empty(Table("What a newcomer changes", columns, rows)),
            without_empty(
                Table("The running answers before, during and after", phase_columns, phases)
            ),
        ),
        behind=cells.behind(run.go("answers", "6", "cells")),
    )


def _arrival(one: At) -> Row:
    effects = one / "effects"
    reason = (one / "reason").word or "not measured"
    first = one.go("operator", "ttft_s").figure("s", reason)
    interval = one.go("operator", "ttft_ci95").span("s")
    return Row(
        (
            (one / "engine").text(),
            setting(one),
            (one / "concurrency").figure("count"),
            (one / "slots").figure("count"),
            _spread(one / "slowdown", "percent"),
            _spread(effects / "gap_max_s", "s"),
            _spread(effects / "gap_typical_s", "s"),
            _spread(effects / "lost_tokens", "plain"),
            _spread(effects / "recovery_s", "s"),
            _spread(effects / "prefix_tokens_evicted", "plain"),
            one.go("operator", "prompt_tokens").figure("count"),
            first if interval is None else Under(first, interval),
            one.go("operator", "queue_s").figure("s"),
            (one / "pairs").figure("count"),
        )
    )


def _phases(one: At) -> Iterator[Row]:
    windows = (("victim", "with a newcomer"), ("undisturbed", "without"))
    for kind, words in windows:
        for phase, seen in (one / kind).items():
            rate = seen / "output_tokens_per_s"
            yield Row(
                (
                    (one / "engine").text(),
                    (one / "concurrency").figure("count"),
                    Words(words),
                    Words(phase) if phase in {"before", "during", "after"} else Shown(phase, ""),
                    _spread(rate, "per_s"),
                    _spread(seen / "itl_p99_s", "ms"),
                    _spread(seen / "gap_max_s", "ms"),
                    (rate / "n").figure("count"),
                )
            )


# -------------------------------------------------------------------------- capacity and knee


def _capacity(run: At, _cells: CellIndex) -> Part:
    columns = (
        Column("Engine", "", "key"),
        Column("Holds up to"),
        Column("Between"),
        Column("First token", "limit, s"),
        Column("Time a token", "limit, s"),
        Column("Whole answer", "limit, s"),
        Column("Ended by", "", "text"),
        Column("Repeats"),
    )
    rows = tuple(
        Row(
            (
                (one / "engine").text(),
                (one / "concurrency").figure("count"),
                Line(((one / "low").figure("count"), (one / "high").figure("count")), " to "),
                one.go("slo", "ttft_s").figure("s", "no limit"),
                one.go("slo", "tpot_s").figure("s", "no limit"),
                one.go("slo", "e2e_s").figure("s", "no limit"),
                (one / "limited_by").text(),
                (one / "repeats").figure("count"),
            )
        )
        for one in (run / "capacity").each()
    )
    tries = tuple(
        Row(
            (
                (one / "engine").text(),
                (tried / "concurrency").figure("count"),
                Line(
                    tuple(
                        share.figure("percent", "this repeat failed")
                        for share in (tried / "good_fractions").each()
                    ),
                    ", ",
                ),
            )
        )
        for one in (run / "capacity").each()
        for tried in (one / "evaluations").each()
    )
    tried_columns = (
        Column("Engine", "", "key"),
        Column("At once", "", "key"),
        Column("Requests within the limits", "a repeat each", "text"),
    )
    return Part(
        "capacity",
        "Requests at once within the limits",
        _said(run, "capacity"),
        (
            without_empty(Table("How many requests at once keep the limits", columns, rows)),
            Table("What was tried", tried_columns, tries),
        ),
    )


def _knee(run: At, _cells: CellIndex) -> Part:
    columns = (
        Column("Engine", "", "key"),
        Column("Setting", "", "key"),
        Column("Grows up to", "at once"),
        Column("Between", "95 %"),
        Column("Output tokens/s", "there"),
        Column("First token", "p50, ms, there"),
        Column("Outcome", "", "text"),
        Column("Why", "", "text"),
    )
    rows = tuple(_bend(one) for one in (run / "knee").each())
    table = without_empty(Table("Up to which level throughput grows", columns, rows))
    return Part("knee", "Where throughput stops growing", tables=(table,))


def _bend(one: At) -> Row:
    reason = (one / "reason").word or "not resolved"
    low, high = one / "low", one / "high"
    between: Html = Absent(reason, low.pointer)
    if low.known and high.known:
        between = Line((low.figure("count"), high.figure("count")), " to ")
    return Row(
        (
            (one / "engine").text(),
            setting(one),
            (one / "concurrency").figure("count", reason),
            between,
            (one / "output_tokens_per_s").figure("per_s", reason),
            (one / "ttft_s").figure("ms", reason),
            (one / "outcome").text(),
            (one / "reason").text("resolved"),
        )
    )


# ------------------------------------------------------------------------------------- effects


def _effects(run: At, _cells: CellIndex) -> Part:
    columns = (
        Column("Engine", "", "key"),
        Column("Metric", "", "key"),
        Column("At once", "", "key"),
        Column("Prefix reuse alone", "times better, 95 %"),
        Column("Speculation alone", "times better, 95 %"),
        Column("Both", "times better, 95 %"),
        Column("Of the product", "95 %"),
        Column("Together they", "", "text"),
        Column("Drafts accepted"),
        Column("Repeats"),
        Column("Needed further"),
    )
    rows = tuple(
        Row(
            (
                (one / "engine").text(),
                metric_words(one / "metric"),
                (one / "concurrency").figure("count"),
                _times(one / "prefix_cache_alone"),
                _times(one / "speculation_alone"),
                _times(one / "both"),
                _times(one / "interaction"),
                (one / "interplay").text(),
                (one / "draft_acceptance").figure("percent", "not reported"),
                (one / "replicates").figure("count"),
                (one / "replicates_needed").figure("count", "none, or not known"),
            )
        )
        for one in (run / "effects").each()
    )
    table = without_empty(Table("How many times better", columns, rows))
    return Part("effects", "Prefix reuse and speculation together", _said(run, "effects"), (table,))


def _times(place: At) -> Html:
    main = (place / "factor").figure("factor", "not measured")
    beneath = (place / "ci95").span("factor")
    return main if beneath is None else Under(main, beneath)
