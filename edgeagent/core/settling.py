"""Has memory stopped to move?

It has when everything that an engine holds, and what its devices say is used, has stayed within
1 % (or a few MiB, where there is little) for a while.
"""

from __future__ import annotations

from collections.abc import Mapping

WITHIN_SHARE = 0.01
WITHIN_BYTES = 4 << 20

_WATCHED = (
    "engine.anon_bytes",
    "engine.mapped_bytes",
    "gpu.engine_bytes",
    "nvmap.used_bytes",
    "drm.engine_bytes",
)
_OF_DEVICE = ("gpu.", ".used_bytes")


class Settling:
    """Takes readings in order of time and tells when they have held still for `hold_s` seconds."""

    def __init__(self, hold_s: float) -> None:
        self._hold_s = hold_s
        self._since_s: float | None = None
        self._anchor: dict[str, float] = {}

    def has_settled(self, at_s: float, values: Mapping[str, float | int | None]) -> bool:
        """Whether nothing has moved away from where it was `hold_s` ago."""
        now = _watched(values)
        if self._since_s is None or _moved(self._anchor, now):
            self._since_s, self._anchor = at_s, now
        return at_s - self._since_s >= self._hold_s


def _watched(values: Mapping[str, float | int | None]) -> dict[str, float]:
    start, end = _OF_DEVICE
    return {
        name: value
        for name, value in values.items()
        if value is not None
        and (name in _WATCHED or (name.startswith(start) and name.endswith(end)))
    }


def _moved(before: Mapping[str, float], now: Mapping[str, float]) -> bool:
    return before.keys() != now.keys() or any(
        abs(now[name] - value) > max(WITHIN_SHARE * abs(value), WITHIN_BYTES)
        for name, value in before.items()
    )
