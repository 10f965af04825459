"""How are amounts of memory written by people?"""

from __future__ import annotations

import re

from edgeagent.errors import UsageError

_UNITS = {
    "": 1, "b": 1, "k": 1 << 10, "kib": 1 << 10, "kb": 10**3, "m": 1 << 20, "mib": 1 << 20,
    "mb": 10**6, "g": 1 << 30, "gib": 1 << 30, "gb": 10**9, "t": 1 << 40, "tib": 1 << 40,
    "tb": 10**12,
}  # fmt: skip
"""A bare letter is binary, as engines read it; `GB` is decimal, as its writer means it."""

_MOST = 1 << 60
_LEAST_BARE = 1 << 20
"""Nobody who writes a smaller number without a unit means bytes."""


def amount_bytes(text: str, what: str) -> int:
    """`8GiB`, `512M` or `1.5 g` as bytes; `what` names the option. Raises UsageError."""
    found = re.fullmatch(r"\s*([0-9]{1,20}(?:\.[0-9]{1,9})?)\s*([a-zA-Z]{0,3})\s*", text)
    unit = _UNITS.get(found.group(2).lower()) if found else None
    if found is None or unit is None:
        raise UsageError(f"{what} {text!r} is no amount of memory: write 8GiB, 512MiB or bytes")
    number = found.group(1)
    value = int(float(number) * unit) if "." in number else int(number) * unit
    if not found.group(2) and 0 < value < _LEAST_BARE:
        raise UsageError(f"{what} {text!r} would be {text.strip()} bytes: write {text.strip()}GiB")
    if value > _MOST:
        raise UsageError(f"{what} {text!r} is more than any machine has: write 8GiB, for example")
    return value
