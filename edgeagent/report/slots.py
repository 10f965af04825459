"""What does each further slot cost in memory, as rows that people read?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from edgeagent.report.reading import mappings, number, sequence

NONE = "–"  # noqa: RUF001  # because the dash of a missing value is not a minus

_MIB = 1 << 20
_GIB = 1 << 30
_WHERE = {"gpu": "GPU", "host": "host", "unified": "shared"}


@dataclass(frozen=True)
class Row:
    """One engine in one domain of memory."""

    engine: str
    where: str
    context: str
    measured: str
    ready: str
    predicted: str
    reported: str
    base: str
    mapped: str
    fits: str
    source: str


@dataclass(frozen=True)
class Column:
    """A column: its heading and the field it shows."""

    heading: str
    field: str
    align: Literal["left", "right"] = "right"

    @property
    def words(self) -> str:
        """The heading on one line."""
        return self.heading.replace("-\n", "").replace("\n", " ")


COLUMNS = (
    Column("engine", "engine", "left"),
    Column("memory", "where", "left"),
    Column("tokens\na slot", "context"),
    Column("MiB a slot\n(95 %)", "measured"),
    Column("at\nrest", "ready"),
    Column("by arith-\nmetic", "predicted"),
    Column("engine\nsays", "reported"),
    Column("without\nslots", "base"),
    Column("mapped\nweights", "mapped"),
    Column("slots\nthat fit", "fits"),
    Column("read from", "source", "left"),
)


def rows(document: Mapping[str, object]) -> tuple[Row, ...]:
    """Return the rows of a document's `memory`; what is missing is a dash."""
    return tuple(_row(cost) for cost in mappings(document.get("memory")))


def _row(cost: Mapping[str, object]) -> Row:
    speculation = str(cost.get("speculation", "off"))
    engine = str(cost.get("engine"))
    quality = str(cost.get("quality"))
    source = cost.get("source")
    return Row(
        engine=engine if speculation == "off" else f"{engine}, {speculation}",
        where=_WHERE.get(str(cost.get("domain")), NONE),
        context=_whole(number(cost.get("context_per_slot"))),
        measured=_interval(cost),
        ready=_mib(number(cost.get("ready_bytes_per_slot"))),
        predicted=_mib(number(cost.get("predicted_bytes_per_slot"))),
        reported=_mib(number(cost.get("engine_reported_bytes_per_slot"))),
        base=_size(number(cost.get("base_bytes"))),
        mapped=_size(number(cost.get("mapped_bytes"))),
        fits=_whole(number(cost.get("max_slots"))),
        source=f"{source} ({quality})" if source else quality,
    )


def _interval(cost: Mapping[str, object]) -> str:
    value = number(cost.get("measured_bytes_per_slot"))
    if value is None:
        return NONE
    ends = [number(end) for end in sequence(cost.get("ci95"))]
    low, high = ends if len(ends) == 2 else (None, None)  # noqa: PLR2004  # because an interval has two ends
    if low is None or high is None:
        return _mib(value)
    return f"{_mib(value)} ({low / _MIB:.2f} to {high / _MIB:.2f})"


def _mib(amount_bytes: float | None) -> str:
    return NONE if amount_bytes is None else f"{amount_bytes / _MIB:.2f}"


def _size(amount_bytes: float | None) -> str:
    if amount_bytes is None:
        return NONE
    if amount_bytes >= _GIB:
        return f"{amount_bytes / _GIB:.2f} GiB"
    return f"{amount_bytes / _MIB:.0f} MiB"


def _whole(value: float | None) -> str:
    return NONE if value is None else f"{value:.0f}"
