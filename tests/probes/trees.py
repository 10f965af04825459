"""How does a recorded tree of /proc, /sys and /etc become a folder that a probe can read?

A tree is a text file `trees/NAME.tree`. A line `@ /path` begins a file whose content follows up to
the next such line; `@ /path -> target` is a symbolic link, `@ /path/` an empty folder. Lines that
begin with `#` before the first `@` are a description. `\\0` stands for a NUL byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

TREES = Path(__file__).parent / "trees"

_ENTRY = re.compile(r"^@ (/\S.*?)(?: -> (\S.*))?$")


def names() -> list[str]:
    """Every recorded tree."""
    return sorted(path.stem for path in TREES.glob("*.tree"))


def unpack(name: str, folder: Path) -> Path:
    """Write the tree below `folder` and return its root."""
    root = folder / name
    root.mkdir(parents=True, exist_ok=True)
    for path, target, content in _entries((TREES / f"{name}.tree").read_text("utf-8")):
        place = root / path.lstrip("/")
        if path.endswith("/"):
            place.mkdir(parents=True, exist_ok=True)
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        if target is not None:
            place.symlink_to(target)
        else:
            place.write_bytes(content.replace("\\0", "\0").encode())
    return root


def _entries(text: str) -> Iterator[tuple[str, str | None, str]]:
    path: str | None = None
    target: str | None = None
    lines: list[str] = []
    for line in text.splitlines():
        found = _ENTRY.match(line)
        if found is None:
            lines.append(line)
            continue
        if path is not None:
            yield path, target, _content(lines)
        path, target, lines = found.group(1), found.group(2), []
    if path is not None:
        yield path, target, _content(lines)


def _content(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
