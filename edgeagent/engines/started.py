"""What do all servers have in common that are ready, whoever started them?"""

from __future__ import annotations

from collections.abc import Sequence

from edgeagent.core.model import ServerFacts
from edgeagent.engines.container import Process
from edgeagent.engines.rest import Rest


class Started:
    """The part of `Server` that does not depend on the engine; without a process: attached."""

    def __init__(
        self,
        rest: Rest,
        facts: ServerFacts,
        process: Process | None = None,
        argv: Sequence[str] = (),
        ready_s: float | None = None,
    ) -> None:
        self._rest = rest
        self._facts = facts
        self._process = process
        self._argv = tuple(argv)
        self._ready_s = ready_s

    @property
    def url(self) -> str:
        """Base URL."""
        return self._rest.url

    @property
    def facts(self) -> ServerFacts:
        """What it says of itself."""
        return self._facts

    @property
    def argv(self) -> tuple[str, ...]:
        """The launch line; empty when attached."""
        return self._argv

    @property
    def ready_s(self) -> float | None:
        """Seconds from start to ready; None when attached."""
        return self._ready_s

    def pids(self) -> tuple[int, ...]:
        """Every living process of the engine."""
        return self._process.pids() if self._process else ()

    def death(self) -> str | None:
        """None while it lives (or when attached: then requests tell)."""
        return self._process.death() if self._process else None
