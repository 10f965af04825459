"""What does a probe read whose readings are known beforehand?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from edgeagent.ports import Readings


class FakeProbe:
    """Gives one prepared reading after the other, and the last one for ever."""

    def __init__(
        self, readings: Iterable[Mapping[str, float | int | None]], name: str = "fake"
    ) -> None:
        self.name = name
        self.closed = False
        self.asked: list[tuple[int, ...]] = []
        """The process ids of every reading."""
        self._readings = list(readings)

    def read(self, pids: Sequence[int]) -> Readings:
        """Return the next reading; a None has the reason "not prepared"."""
        self.asked.append(tuple(pids))
        values = self._readings.pop(0) if len(self._readings) > 1 else self._readings[0]
        return values, {name: "not prepared" for name, value in values.items() if value is None}

    def facts(self) -> Mapping[str, object]:
        """Nothing: there is no device behind it."""
        return {}

    def close(self) -> None:
        """Remember that it was closed."""
        self.closed = True
