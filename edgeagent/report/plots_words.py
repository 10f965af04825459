"""How do names and numbers stand in a plot? Names made harmless and short, numbers made readable.

Names come from other people's command lines: a plot takes no control characters, no characters that
turn the writing direction of what follows, and no more of a name than there is room for.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence

NONE = "not measured"

_UNKNOWN = "\N{REPLACEMENT CHARACTER}"
_ELLIPSIS = "…"
_LARGEST = 1e18
"""No measured quantity of a box is larger; a plot's arithmetic would be."""
_DIGITS = 4
_GROUPED = 10_000
_TINY = 1e-4

_BINARY = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


# -------------------------------------------------------------------------------------- reading


def finite(value: object) -> float | None:
    """Return a number that can be drawn; None for anything else, and for what is not finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if not abs(value) < _LARGEST:  # also false for what is not a number
        return None
    return float(value)


def finites(values: object) -> tuple[float | None, ...]:
    """Return the numbers of a list, None for each that is none; nothing for what is no list."""
    return tuple(finite(value) for value in values) if isinstance(values, (list, tuple)) else ()


def interval(value: object) -> tuple[float, float] | None:
    """Return both ends of an interval; None unless both are numbers."""
    ends = finites(value)
    if len(ends) != 2:  # noqa: PLR2004  # because an interval has two ends
        return None
    low, high = ends
    return None if low is None or high is None else (low, high)


# ---------------------------------------------------------------------------------------- names


def clean(name: object) -> str:
    """Return a name on one line, without what cannot be shown or would turn its surroundings."""
    spaced = "".join(" " if char.isspace() else char for char in str(name))
    shown = (_visible(char) for char in spaced)
    return " ".join("".join(shown).split()) or "(no name)"


def _visible(char: str) -> str:
    category = unicodedata.category(char)
    if category == "Cf":
        return ""  # because marks of direction would also turn what stands beside the name
    return _UNKNOWN if category in {"Cc", "Cs", "Cn", "Co"} else char


def em(text: str) -> float:
    """Return about how wide a text is, in heights of its letters; rather too much."""
    return sum(_em(char) for char in text)


def _em(char: str) -> float:
    if unicodedata.combining(char):
        return 0.0
    return 1.05 if unicodedata.east_asian_width(char) in "WF" else 0.6


def shorten(text: str, width: float) -> str:
    """Return a text of at most `width` heights of a letter: its beginning and its end."""
    if em(text) <= width:
        return text
    room = width - em(_ELLIPSIS)
    head = _fitting(text, room * 0.6)
    tail = _fitting(text[::-1], room - em(head))[::-1]
    return f"{head.rstrip()}{_ELLIPSIS}{tail.lstrip()}"


def _fitting(text: str, width: float) -> str:
    taken = 0.0
    for index, char in enumerate(text):
        taken += _em(char)
        if taken > width:
            return text[:index]
    return text


def distinct(names: Sequence[str], width: float) -> tuple[str, ...]:
    """Return short names in the same order; those that became alike are numbered."""
    short = [shorten(name, width) for name in names]
    alike = Counter(short)
    seen: Counter[str] = Counter()
    found = []
    for name, full in zip(short, names, strict=True):
        seen[name] += 1
        number = f" #{seen[name]}"
        found.append(name if alike[name] == 1 else shorten(full, width - em(number)) + number)
    return tuple(found)


# -------------------------------------------------------------------------------------- numbers


def shown(value: float | None) -> str:
    """Return a number as people read it, to four significant digits."""
    if value is None:
        return NONE
    if value == 0:
        return "0"
    size = abs(value)
    if size >= _GROUPED:
        return f"{round(value):,}"
    if size < _TINY:
        return f"{value:.{_DIGITS - 1}e}"
    decimals = max(0, _DIGITS - 1 - math.floor(math.log10(size)))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def between(ends: tuple[float, float] | None) -> str:
    """Return an interval in brackets, with a space before them; nothing where there is none."""
    return "" if ends is None else f" ({shown(ends[0])} to {shown(ends[1])})"


def listed(words: Sequence[str]) -> str:
    """Return `a, b and c`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else ""


def plural(count: int, noun: str) -> str:
    """Return `1 run`, `2 runs`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def as_bytes(most: float) -> tuple[float, str]:
    """Return by what bytes are divided so that `most` reads well, and the name of that unit."""
    return next(((float(size), unit) for size, unit in _BINARY if most >= 2 * size), (1.0, "bytes"))


def as_seconds(most: float) -> tuple[float, str]:
    """Return by what seconds are divided so that `most` reads well, and the name of that unit."""
    return (1.0, "s") if most >= 1 else (1e-3, "ms")


def size(value: float | None) -> str:
    """Return a number of bytes as people read it."""
    if value is None:
        return NONE
    per, unit = as_bytes(abs(value))
    return f"{shown(value / per)} {unit}"


def seconds(value: float | None) -> str:
    """Return a time as people read it."""
    if value is None:
        return NONE
    per, unit = as_seconds(abs(value))
    return f"{shown(value / per)} {unit}"


def word(document: Mapping[str, object], key: str) -> str:
    """Return a word of a document as it is shown."""
    value = document.get(key)
    return "not known" if value is None else clean(value)
