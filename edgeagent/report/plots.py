"""Which pictures go into the sheet, and what is missing for the others?

Everything that is drawn stands in `result.json`; here it is only put on axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgeagent.report.plots_itl import token_gaps
from edgeagent.report.plots_levels import ENERGY, THROUGHPUT, TTFT, over_concurrency
from edgeagent.report.plots_memory import memory_against_slots
from edgeagent.report.plots_ratio import ratios
from edgeagent.report.plots_time import second_operators, timelines
from edgeagent.report.plots_values import Cast, Missing, Plot, Table, Value
from edgeagent.report.sheet_run import SheetRun

__all__ = ["Missing", "Plot", "Table", "Value", "plots"]


def plots(runs: Sequence[SheetRun]) -> tuple[Plot | Missing, ...]:
    """Return the plots of these runs in the order of the sheet; keys are unique in it.

    Raises:
        UsageError: matplotlib is not installed; the message says how to install it.
    """
    return tuple(_each(Cast.of(runs)))


def _each(cast: Cast) -> Iterator[Plot | Missing]:
    yield from over_concurrency(THROUGHPUT, cast)
    yield from over_concurrency(TTFT, cast)
    yield from token_gaps(cast)
    yield from ratios(cast)
    yield from memory_against_slots(cast)
    yield from timelines(cast)
    yield from second_operators(cast)
    yield from over_concurrency(ENERGY, cast)
