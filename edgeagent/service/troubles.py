"""What does not work at the moment, in sentences for whoever looks after the box?

One sentence a matter; it stands until the matter is settled. Read by other threads, so the whole is
replaced and never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from edgeagent.errors import EdgeAgentError


class Troubles:
    """Kept by one thread, read by any."""

    def __init__(self, tell: Callable[[str, Mapping[str, object]], None]) -> None:
        """`tell` hears of each new sentence: the event "trouble" and its fields."""
        self._tell = tell
        self._known: Mapping[str, str] = {}

    def sentences(self) -> tuple[str, ...]:
        """Return all that stand."""
        return tuple(dict.fromkeys(self._known.values()))

    def stands(self, matter: str, sentence: str) -> None:
        """This is wrong with the matter now."""
        if self._known.get(matter) != sentence:
            self._known = {**self._known, matter: sentence}
            self._tell("trouble", {"matter": matter, "text": sentence})

    def settled(self, matter: str) -> None:
        """Nothing is wrong with the matter."""
        if matter in self._known:
            self._known = {name: said for name, said in self._known.items() if name != matter}

    def heeded(self, matter: str, step: Callable[[], object]) -> bool:
        """Take a step; what we can explain is a trouble of the matter, and no end. Whether it went.

        Anything else is a bug of ours and goes through.
        """
        try:
            step()
        except EdgeAgentError as error:
            self.stands(matter, str(error))
            return False
        self.settled(matter)
        return True
