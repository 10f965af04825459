"""How is one small file of the kernel read, and what is said when it cannot be?

Every file is read by itself: a block that is switched off answers EAGAIN or EINVAL, and then only
its own value is missing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from edgeagent.ports import Readings
from edgeagent.probes.host import read_text


@dataclass(frozen=True)
class Absent:
    """Why there is no value: a sentence without its full stop."""

    why: str


Number: TypeAlias = "int | Absent"


class Files:
    """The files below a root, each named by its path from there: `sys/class/...`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._prefix = f"{str(root).rstrip('/')}/"

    def text(self, path: str) -> str | Absent:
        """Return what a file says, stripped of space and NULs at its end."""
        try:
            return read_text(self._prefix + path).rstrip("\0 \n")
        except PermissionError as error:
            return Absent(f"/{path} could not be read: {error.strerror}; root may")
        except OSError as error:
            return Absent(f"/{path} could not be read: {error.strerror}")

    def number(self, path: str) -> Number:
        """Return the whole number that a file holds; it may be negative."""
        text = self.text(path)
        return text if isinstance(text, Absent) else number(text, path)

    def word(self, path: str) -> str | None:
        """Return what a file says; None when it cannot be read or says nothing."""
        text = self.text(path)
        return None if isinstance(text, Absent) else text.strip() or None

    def find(self, pattern: str) -> tuple[str, ...]:
        """Return the paths that match, sorted; none where a folder cannot be listed."""
        try:
            found = sorted(self._root.glob(pattern))
        except OSError:
            return ()
        return tuple(str(path)[len(self._prefix) :] for path in found)

    def target(self, path: str) -> str | None:
        """Return the last name of where a symbolic link leads; None when it is no link."""
        try:
            return os.readlink(self._prefix + path).rpartition("/")[2]  # noqa: PTH115  # because the name matters, not a path
        except OSError:
            return None

    def has(self, path: str) -> bool:
        """Return whether the path exists, as far as this user may see."""
        try:
            return (self._root / path).exists()
        except OSError:
            return False


_NUMBER = re.compile(r"-?[0-9]{1,18}")


def number(text: str, path: str) -> Number:
    """Return the whole number that the text of `path` is."""
    text = text.strip()
    return (
        int(text) if _NUMBER.fullmatch(text) else Absent(f"/{path} holds no number: {text!r:.60}")
    )


def readings(found: Mapping[str, float | Absent]) -> Readings:
    """Part what was read from why the rest was not."""
    values = {name: None if isinstance(one, Absent) else one for name, one in found.items()}
    return values, {name: one.why for name, one in found.items() if isinstance(one, Absent)}
