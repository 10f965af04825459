"""What is in a JSON document, when nothing may be taken for granted?

Each function returns what it was asked for, or something empty of that kind: a document of a newer
version, or one that was edited, must not end a report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def mean(metrics: Mapping[str, object], name: str) -> float | None:
    """Return the mean of a level's metric."""
    return number(mapping(metrics.get(name)).get("mean"))


def average(values: Iterable[float | None]) -> float | None:
    """Return the average of what is known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def number(value: object) -> float | None:
    """Return a number; None for anything else."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def mapping(value: object) -> Mapping[str, object]:
    """Return an object; an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def sequence(value: object) -> Sequence[object]:
    """Return a list; an empty one for anything else."""
    return value if isinstance(value, (list, tuple)) else ()


def mappings(value: object) -> tuple[Mapping[str, object], ...]:
    """Return the objects of a list."""
    return tuple(item for item in sequence(value) if isinstance(item, Mapping))
