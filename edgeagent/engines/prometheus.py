"""What do the counters of a /metrics page say?

The text form of Prometheus, as engines write it: `name{label="value"} number`. A line that cannot
be read adds nothing. Every counter also has a `_created` series, the moment it was made, which is
no count: it is left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|(?=\}))')
_HEAD = re.compile(_NAME)
_ESCAPED = re.compile(r"\\(.)")
_CREATED = "_created"


@dataclass(frozen=True)
class Sample:
    """One line: a number, and what it is of."""

    name: str
    labels: Mapping[str, str]
    value: float


class Metrics:
    """A page that was read."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._by_name: dict[str, list[Sample]] = {}
        for sample in samples:
            self._by_name.setdefault(sample.name, []).append(sample)

    def of(self, name: str) -> tuple[Sample, ...]:
        """Every series of a metric, in the order of the page."""
        return tuple(self._by_name.get(name, ()))

    def total(self, name: str) -> float | None:
        """The sum over all series of a metric; None when there is none, or one is not finite."""
        values = [sample.value for sample in self.of(name)]
        if not values or not all(map(math.isfinite, values)):
            return None
        return sum(values)


def parse(text: str) -> Metrics:
    """The samples of a page, without `_created` series."""
    found = (_sample(line) for line in text.split("\n"))
    return Metrics(s for s in found if s is not None and not s.name.endswith(_CREATED))


def _sample(line: str) -> Sample | None:
    line = line.strip()
    head = _HEAD.match(line)
    if head is None:  # a comment, an empty line or none of ours
        return None
    rest = line[head.end() :]
    labels: dict[str, str] | None = {}
    if rest.startswith("{"):
        labels, rest = _labels(rest[1:])
    elif not rest.startswith((" ", "\t")):
        return None
    words = rest.split()
    # What follows the value is a moment or an exemplar.
    value = _number(words[0]) if words else None
    return None if labels is None or value is None else Sample(head.group(0), labels, value)


def _labels(text: str) -> tuple[dict[str, str] | None, str]:
    """Labels up to the closing brace, and what follows it; None when they are malformed."""
    labels: dict[str, str] = {}
    while not text.lstrip().startswith("}"):
        found = _LABEL.match(text)
        if found is None:
            return None, ""
        labels[found.group(1)] = _ESCAPED.sub(_unescaped, found.group(2))
        text = text[found.end() :]
    return labels, text.lstrip()[1:]


def _unescaped(found: re.Match[str]) -> str:
    letter = found.group(1)
    return "\n" if letter == "n" else letter


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None
