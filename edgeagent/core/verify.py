"""Where does a stored document differ from one that was computed again?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

RELATIVE_TOLERANCE = 1e-9
"""Sums of doubles may round differently on another machine; nothing else may differ."""

_SHOWN = 80


def differences(stored: object, recomputed: object, where: str = "") -> list[str]:
    """Every difference, as `path: stored …, recomputed …`."""
    return list(_differences(stored, recomputed, where))


def _differences(stored: object, recomputed: object, where: str) -> Iterator[str]:
    if isinstance(stored, Mapping) and isinstance(recomputed, Mapping):
        for key in sorted({*stored, *recomputed}, key=str):
            inner = f"{where}.{key}" if where else str(key)
            yield from _differences(stored.get(key), recomputed.get(key), inner)
    elif _is_list(stored) and _is_list(recomputed):
        yield from _of_lists(stored, recomputed, where)
    elif not _same(stored, recomputed):
        yield f"{where}: stored {_shown(stored)}, recomputed {_shown(recomputed)}"


def _of_lists(stored: object, recomputed: object, where: str) -> Iterator[str]:
    assert isinstance(stored, Sequence) and isinstance(recomputed, Sequence)  # noqa: S101, PT018  # because the caller has looked
    if len(stored) != len(recomputed):
        yield f"{where}: stored {len(stored)} entries, recomputed {len(recomputed)}"
    for index, (left, right) in enumerate(zip(stored, recomputed, strict=False)):
        yield from _differences(left, right, f"{where}[{index}]")


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _same(left: object, right: object) -> bool:
    numbers = (int, float)
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, int) and isinstance(right, int):
        return left == right  # counts and bytes do not round
    if isinstance(left, numbers) and isinstance(right, numbers):
        return math.isclose(left, right, rel_tol=RELATIVE_TOLERANCE, abs_tol=1e-12)
    return left == right


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
