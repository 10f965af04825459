"""How is something asked that may never answer?

A name server, a broker, a program or a network drive can hang. Each is asked in a thread of its
own that is left behind when its time is over: the rest of the check-up goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class OverdueError(Exception):
    """No answer came in time; the text says within how many seconds."""


class Errand(Generic[T]):
    """Something that is being done; `result` waits for it, but not for ever."""

    def __init__(self, work: Callable[[], T], limit_s: float) -> None:
        """Begin at once. The time counts from here, not from when somebody waits."""
        self._work = work
        self._limit_s = limit_s
        self._until_s = time.monotonic() + limit_s
        self._told: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="doctor", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._told.append(self._work())
        except BaseException as error:  # noqa: BLE001  # because it is raised where it is waited for
            self._error = error

    def result(self) -> T:
        """Return what came out, or raise what went wrong; OverdueError when time is over."""
        self._thread.join(max(0.0, self._until_s - time.monotonic()))
        if self._error is not None:
            raise self._error
        if not self._told:
            raise OverdueError(f"no answer within {self._limit_s:g} s")
        return self._told[0]


def within(limit_s: float, work: Callable[[], T]) -> T:
    """Return what `work` returns. Raises OverdueError after `limit_s`."""
    return Errand(work, limit_s).result()
