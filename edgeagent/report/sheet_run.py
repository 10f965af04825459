"""What is one run, as the sheet looks at it?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SheetRun:
    """A result document and what the sheet calls it."""

    label: str
    """Which box or version: what tells this run from the others of the sheet."""
    document: Mapping[str, Any]
    """`result.json`, as it was read; nothing in it is taken for granted."""
