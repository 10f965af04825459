"""How much better is which engine at which concurrency? The ratio of the two, metric by metric.

Up is always better for the engine named first: axes of metrics of which less is better stand on
their heads. Where the engines cross, the band of concurrencies in which they do is shaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from edgeagent.report.plot_style import style
from edgeagent.report.plots_canvas import draw
from edgeagent.report.plots_picture import (
    Axis,
    Curve,
    Ends,
    Note,
    Panel,
    Picture,
    Rule,
    Span,
    factor_axis,
    levels_axis,
)
from edgeagent.report.plots_values import (
    Cast,
    Missing,
    Plot,
    Table,
    concurrency_of,
    items,
    page_key,
    page_title,
)
from edgeagent.report.plots_words import between, clean, finite, interval, shorten, shown, word
from edgeagent.report.reading import mappings

KEY = "ratio"
TITLE = "One engine against the other"
MOST_PLOTS = 6
MOST_PANELS = 4
_NAME_EM = 9.0
_WORDS = {
    "output_tokens_per_s": "output tokens/s",
    "total_tokens_per_s": "total tokens/s",
    "request_throughput_per_s": "requests/s",
    "goodput_per_s": "good requests/s",
    "good_fraction": "share of good requests",
    "ttft_s.p50": "time to first token, median",
    "ttft_s.p95": "time to first token, p95",
    "itl_s.p50": "time between tokens, median",
    "itl_s.p95": "time between tokens, p95",
    "energy.per_output_token_j": "energy per output token",
    "energy.net_per_output_token_j": "energy per output token above idle",
}
_HIGHER = ("_per_s", "_fraction")
"""Of metrics whose names end so, more is better; of all others (times, energies) less."""


@dataclass(frozen=True)
class _Level:
    concurrency: int
    replicates: float | None
    factor: float | None
    ci95: Ends | None
    better: str | None


@dataclass(frozen=True)
class _Ratio:
    metric: str
    a: str
    b: str
    band: Ends | None
    text: str
    levels: tuple[_Level, ...]

    @property
    def name(self) -> str:
        return _WORDS.get(self.metric, self.metric)

    @property
    def best(self) -> Literal["higher", "lower"]:
        return "higher" if self.metric.endswith(_HIGHER) else "lower"


def ratios(cast: Cast) -> Iterator[Plot | Missing]:
    """Yield a plot for each pair of engines and each setting that was compared."""
    found: dict[str, list[_Ratio]] = {}
    for run, item in items(cast.runs, "comparison"):
        ratio = _read(item)
        if any(level.factor and level.factor > 0 for level in ratio.levels):
            pair = " and ".join(sorted((ratio.a, ratio.b)))
            where = f"prefix cache {word(item, 'prefix_cache')}"
            where += f", speculation {word(item, 'speculation')}"
            found.setdefault(cast.from_run(run, f"{pair}, {where}"), []).append(ratio)
    if not found:
        yield Missing(KEY, TITLE, _reason(cast))
        return
    shown_here = list(found.items())[:MOST_PLOTS]
    for number, (where, group) in enumerate(shown_here):
        yield _plot(where, group, number, len(shown_here))


def _reason(cast: Cast) -> str:
    if next(items(cast.runs, "comparison"), None) is not None:
        return (
            "The engines were compared, but at no concurrency have both a number: the findings "
            "say why. Run `edgeagent sweep` again once that is put right."
        )
    return (
        "Only one engine was measured. Run `edgeagent sweep --engine llamacpp --engine vllm` to "
        "compare two on this box."
    )


def _read(item: Mapping[str, object]) -> _Ratio:
    low, high = finite(item.get("low")), finite(item.get("high"))
    levels = (
        _Level(
            concurrency,
            finite(level.get("replicates")),
            finite(level.get("factor")),
            interval(level.get("ci95")),
            str(level.get("better")) if level.get("better") in {"a", "b"} else None,
        )
        for level in mappings(item.get("levels"))
        if (concurrency := concurrency_of(level)) is not None
    )
    return _Ratio(
        word(item, "metric"),
        word(item, "a"),
        word(item, "b"),
        None if low is None or high is None or low <= 0 or high < low else (low, high),
        clean(item.get("text") or "no verdict"),
        tuple(sorted(levels, key=lambda level: level.concurrency)),
    )


def _plot(where: str, group: Sequence[_Ratio], number: int, of: int) -> Plot:
    drawn = [ratio for ratio in group if any(_drawable(level) for level in ratio.levels)]
    panels = drawn[:MOST_PANELS]
    x = levels_axis(level.concurrency for ratio in panels for level in ratio.levels)
    inner = Axis(x.low, x.high, x.ticks, "", x.scale)
    picture = Picture(
        tuple(_panel(r, x if r is panels[-1] else inner, n) for n, r in enumerate(panels))
    )
    key, title = page_key(KEY, number), page_title(TITLE, number, of)
    alternative = " ".join(_told(ratio) for ratio in group)
    return Plot(
        key=key,
        title=title,
        svg=draw(picture, key, f"{title}. {alternative}"),
        alternative=alternative,
        caption=_caption(where, panels),
        table=_table(group),
    )


def _drawable(level: _Level) -> bool:
    return level.factor is not None and level.factor > 0


def _panel(ratio: _Ratio, x: Axis, number: int) -> Panel:
    levels = [level for level in ratio.levels if _drawable(level)]
    factors = [level.factor or 1.0 for level in levels]
    middle = (min(factors) / 4, max(factors) * 4)
    ends = [min(max(end, middle[0]), middle[1]) for lv in levels for end in lv.ci95 or ()]
    best = ratio.best
    a, b = (shorten(name, _NAME_EM) for name in (ratio.a, ratio.b))
    return Panel(
        f"{ratio.name}: {a} over {b}",
        x,
        factor_axis([*factors, *ends], best),
        (
            Curve(
                style(number),
                tuple(float(level.concurrency) for level in ratio.levels),
                tuple(lv.factor if _drawable(lv) else None for lv in ratio.levels),
                tuple(level.ci95 for level in ratio.levels),
                hollow=tuple(
                    place
                    for place, level in enumerate(ratio.levels)
                    if level.better is None and _drawable(level)
                ),
            ),
        ),
        (Span(*ratio.band, "cross here", row=1),) if ratio.band else (),
        (Rule(1.0, "y", kind="quiet"),),
        (Note(f"↑ {a} better"), Note(f"↓ {b} better", "bottom")),
        height=104.0,
    )


def _told(ratio: _Ratio) -> str:
    numbers = ", ".join(
        f"{'no ratio' if lv.factor is None else shown(lv.factor)}{between(lv.ci95)} "
        f"at {lv.concurrency:,}"
        for lv in ratio.levels
    )
    return f"{ratio.name}, {ratio.a} over {ratio.b}: {numbers}. Verdict: {ratio.text.rstrip('.')}."


def _caption(where: str, panels: Sequence[_Ratio]) -> str:
    words = [
        f"{where}. Points are ratios, strokes their 95 % intervals. A filled point: the "
        "difference is resolved at this level; a hollow one: it is not."
    ]
    if any(ratio.best == "lower" for ratio in panels):
        words.append("Axes of times stand on their heads, so that up is always better.")
    words += [f"{ratio.name[:1].upper()}{ratio.name[1:]}: {ratio.text}." for ratio in panels]
    return " ".join(words)


def _table(group: Sequence[_Ratio]) -> Table:
    header = (
        "metric", "ratio", "concurrency", "repeats", "factor", "95 % from", "95 % to", "better",
    )  # fmt: skip
    rows = tuple(
        (
            ratio.name,
            f"{ratio.a} / {ratio.b}",
            level.concurrency,
            level.replicates,
            level.factor,
            *((None, None) if level.ci95 is None else level.ci95),
            {"a": ratio.a, "b": ratio.b}.get(level.better or "", "not resolved"),
        )
        for ratio in group
        for level in ratio.levels
    )
    return Table(header, rows)
