"""What the page of troubleshooting quotes is what the program says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text("utf-8")

OF_OTHERS = {
    "Depends: python3 (<< 3.15)", "error while loading shared libraries",
    "error: invalid argument: --mlock", "couldn't bind HTTP server socket", "Watchdog timeout",
    "Free memory on device ... is less than desired GPU memory utilization",
    "No available memory for the cache blocks", "Error in memory profiling", "Exec format error",
    "To serve at least one request with the model's max seq len", "Loading model",
    "Not authorized", "Bad user name or password", "Client identifier not valid",
    "cannot be reached: Connection refused",
}  # fmt: skip
"""Words of engines, brokers and the system, which this program repeats or never sees."""
LEAST = 6
"""Letters of a piece that is looked for: shorter ones are in every text."""


def quoted() -> list[str]:
    """What stands in backquotes in the first column of a table and is a sentence, not a name."""
    rows = [line.split(" | ")[0] for line in PAGE.splitlines() if line.startswith("| ")]
    found = [word for row in rows for word in re.findall(r"`([^`]+)`", row)]
    return sorted({word for word in found if " " in word and word not in OF_OTHERS})


@cache
def said() -> str:
    """Every text of the program, with a gap for each value in it."""
    return "\n".join(
        text
        for path in sorted((ROOT / "edgeagent").rglob("*.py"))
        for text in _texts(ast.parse(path.read_text("utf-8")))
    )


def _texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.mark.parametrize("sentence", quoted())
def test_what_is_quoted_is_said(sentence: str) -> None:
    pieces = (
        piece.strip(" :,=();") for piece in re.split(r"\.\.\.|\b[A-Z]{3,}\b|\d+|[()/]", sentence)
    )
    looked_for = [piece for piece in pieces if len(piece) >= LEAST]

    assert looked_for, "nothing of it can be looked for"
    for piece in looked_for:
        assert piece in said(), piece


def test_every_code_that_is_named_is_a_finding_or_a_state() -> None:
    from edgeagent.core.findings import CODES

    rows = [line.split(" | ")[0] for line in PAGE.splitlines() if line.startswith("| ")]
    words = {word for row in rows for word in re.findall(r"`([a-z]+_[a-z_]+)`", row)}

    assert words
    for word in words:
        assert word in CODES or f'"{word}"' in _source(), word


@cache
def _source() -> str:
    return "\n".join(path.read_text("utf-8") for path in (ROOT / "edgeagent").rglob("*.py"))
