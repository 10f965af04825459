"""What did the check of a run folder find, in the words of somebody who has to rely on it?"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_MOST = 20
"""Differences beyond these say nothing new."""

_WIDTH = 100


def render(verdict: Mapping[str, Any]) -> str:
    """The verdict as lines; its document is what `verify --json` prints."""
    faults: Sequence[str] = verdict["faults"]
    lines = _damaged(verdict, faults) if faults else [f"ok: {_held(verdict)}"]
    notes = [_wrapped(f"note: {note}", "  ") for note in verdict["notes"]]
    return "\n".join([*lines, *notes]) + "\n"


def _damaged(verdict: Mapping[str, Any], faults: Sequence[str]) -> Iterator[str]:
    count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    yield f"{count}: the result in {verdict['run']} is not to be relied on"
    yield from (_wrapped(f"- {fault}", "  ") for fault in faults[:_MOST])
    if len(faults) > _MOST:
        yield f"- and {len(faults) - _MOST} more: see --json"
    if verdict["files"]:
        yield f"what holds: {_held(verdict)}"


def _held(verdict: Mapping[str, Any]) -> str:
    """What was looked at and is as it should be."""
    parts = [f"{verdict['files']} raw files are those that were measured"]
    if verdict["numbers"]:
        cells = "1 cell" if verdict["cells"] == 1 else f"{verdict['cells']} cells"
        parts.append(f"{verdict['numbers']} numbers of {cells} follow from them")
    seal: Mapping[str, Any] = verdict["signature"]
    if seal["state"] == "good":
        trust = {True: "trusted", False: "not a key that was given"}
        said = trust.get(seal["trusted"], "no key was given to trust")
        parts.append(f"signed at {seal['signed_at']} by {seal['key_id']} ({said})")
    elif seal["state"] == "unsigned":
        parts.append("unsigned")
    return ", ".join(parts)


def _wrapped(text: str, indent: str) -> str:
    """Over several lines where it is long; words (paths, hashes) stay whole."""
    return textwrap.fill(
        text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
