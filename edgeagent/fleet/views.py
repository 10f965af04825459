"""How does one look at the fleet: open the store, ask, and hand on what it says?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from edgeagent import __version__
from edgeagent.errors import UsageError
from edgeagent.fleet import queries, status
from edgeagent.fleet.queries import Chosen
from edgeagent.fleet.store import Store, StoreAwayError, open_store

INSTALL = "pip install 'edgeagent[fleet,report]'"

_DAY_MS = 86_400_000


@contextmanager
def opened(url: str) -> Iterator[Store]:
    """Open for reading; closed with the block. Raises as `open_store`."""
    store = open_store(url, "read")
    try:
        yield store
    finally:
        store.close()


def now_ms() -> int:
    """Return the wall clock: ages are told by the clock of whoever asks."""
    return time.time_ns() // 1_000_000


def lines(store: Store, chosen: Chosen, at_ms: int) -> list[status.Line]:
    """Every box as a line."""
    return status.lines(queries.boxes(store, chosen), at_ms)


class Looking:
    """Looks again and again; a store that was away is opened anew the next time."""

    def __init__(self, url: str, chosen: Chosen) -> None:
        self._url, self._chosen = url, chosen
        self._store: Store | None = open_store(url, "read")

    def __call__(self) -> list[status.Line] | str:
        """Every box as a line, or why nobody can tell just now."""
        try:
            if self._store is None:
                self._store = open_store(self._url, "read")
            return lines(self._store, self._chosen, now_ms())
        except StoreAwayError as error:
            self.close()
            return str(error)

    def close(self) -> None:
        """Let go of the store."""
        if self._store is not None:
            self._store.close()
            self._store = None


def page(store: Store, chosen: Chosen, at_ms: int) -> str:
    """Return the fleet's page. Raises UsageError when a library that it needs is missing."""
    if find_spec("jinja2") is None:
        raise UsageError(f"the page needs jinja2, and it is not installed here: {INSTALL}")
    # Here, not above: it brings jinja2 and matplotlib.
    from edgeagent.fleet.page import Fleet, fleet_html

    return fleet_html(
        Fleet(
            at_ms=at_ms,
            lines=lines(store, chosen, at_ms),
            measured=queries.measured(store, chosen),
            said=queries.said(store, chosen),
            lost=queries.lost(store, chosen),
            refused=queries.refused(store),
            peak_bytes=queries.peaks(store, "ram_used_bytes", at_ms - _DAY_MS),
            agent=__version__,
            chosen=_chosen_words(chosen),
        )
    )


def _chosen_words(chosen: Chosen) -> str | None:
    parts = [("site", chosen.site), ("class", chosen.box_class)]
    words = [f"{name} {value}" for name, value in parts if value is not None]
    return f"only {' and '.join(words)}" if words else None
