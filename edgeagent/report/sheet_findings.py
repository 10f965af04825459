"""What should the reader doubt, worst first, and what can be done about it?"""

from __future__ import annotations

from dataclasses import dataclass

from edgeagent.report.sheet_advice import ADVICE, UNKNOWN
from edgeagent.report.sheet_tables import CellIndex
from edgeagent.report.sheet_values import At, Html, Words

_ORDER = ("suspect", "warning", "info")
_SHOWN = 3
"""Findings of a kind that stand in the open; the others are folded away."""


@dataclass(frozen=True)
class Doubt:
    """One finding: its sentence, and the cells it is about."""

    text: Html
    cells: tuple[Html, ...]


@dataclass(frozen=True)
class Kind:
    """All findings of one code."""

    severity: str
    code: Html
    advice: Html
    all: tuple[Doubt, ...]

    @property
    def first(self) -> tuple[Doubt, ...]:
        """Those that stand in the open."""
        return self.all[:_SHOWN]

    @property
    def more(self) -> bool:
        """Whether there are others."""
        return len(self.all) > _SHOWN

    @property
    def folded(self) -> bool:
        """Whether there is anything to fold away: others, or cells."""
        return self.more or any(doubt.cells for doubt in self.all)


def kinds(run: At, cells: CellIndex) -> tuple[Kind, ...]:
    """The findings of a run by code, worst first."""
    groups: dict[tuple[str, str], list[At]] = {}
    for finding in (run / "findings").each():
        key = ((finding / "severity").word, (finding / "code").word)
        groups.setdefault(key, []).append(finding)
    ordered = sorted(groups.items(), key=lambda item: _rank(item[0][0]))
    return tuple(_kind(severity, found, cells) for (severity, _), found in ordered)


def _rank(severity: str) -> int:
    return _ORDER.index(severity) if severity in _ORDER else len(_ORDER)


def _kind(severity: str, found: list[At], cells: CellIndex) -> Kind:
    doubts = tuple(
        Doubt((one / "text").text("it says nothing"), cells.behind(one / "cells")) for one in found
    )
    return Kind(
        severity=severity if severity in _ORDER else "other",
        code=(found[0] / "code").text("no code"),
        advice=Words(ADVICE.get((found[0] / "code").word, UNKNOWN)),
        all=doubts,
    )
