"""With what is written inside a transaction, whichever the database?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from edgeagent.fleet.store import Dialect


class Hands(Protocol):
    """What writes inside a transaction."""

    @property
    def dialect(self) -> Dialect:
        """Which SQL it speaks."""
        ...

    def many(self, sql: str, rows: Iterable[Sequence[object]]) -> int:
        """Run a statement for each row; return how many rows changed."""
        ...

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> int:
        """Insert the rows whose keys are not there; return how many that were."""
        ...

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Read."""
        ...
