"""Under which name does this box speak, also when it is a copy of another?

Beside the state lies a small file: the marks of the machine that it belongs to, and a key. When the
marks are no longer those of this machine, the disk was copied: a new key makes the spool begin a
new epoch, and the node gets a name of its own unless the configuration gives it one.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from edgeagent import machine

FILE = "machine.json"


@dataclass(frozen=True)
class Belonging:
    """Which machine a state folder belongs to."""

    marks: str
    key: str
    """Stays while the machine stays; the spool knows its machine by it."""
    suffix: str = ""
    """What a copy adds to its node's name."""


def belonging(state_dir: Path, found: frozenset[str]) -> Belonging:
    """Return to which machine the folder belongs: this one; a copied one is made this one's.

    Writes the file when something has changed and it may be written; who may not, only reads it.
    """
    path = state_dir / FILE
    kept = _read(path)
    now = _adapted(kept, found)
    if now != kept:
        with suppress(OSError):
            _write(path, now)
    return now


def _adapted(kept: Belonging | None, found: frozenset[str]) -> Belonging:
    marks = machine.written(found)
    if kept is None:
        return Belonging(marks, secrets.token_hex(8))
    if machine.same(kept.marks, found):
        # A card that was added belongs to this machine from now on; nothing is forgotten when none
        # can be read.
        return replace(kept, marks=marks) if found else kept
    return Belonging(marks, secrets.token_hex(8), machine.suffix(found))


def node_of(configured: str, of_host: str, belongs: Belonging) -> str:
    """Return the node's name: the configured one; else the host's, a copy's with its suffix."""
    if configured:
        return configured
    if not belongs.suffix:
        return of_host
    return f"{of_host[: 63 - len(belongs.suffix) - 1]}-{belongs.suffix}"


def _read(path: Path) -> Belonging | None:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(value, Mapping):
        return None
    words = {name: value.get(name, "") for name in ("marks", "key", "suffix")}
    if not words["key"] or not all(isinstance(word, str) for word in words.values()):
        return None
    return Belonging(**words)


def _write(path: Path, belongs: Belonging) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        draft.write_text(json.dumps(asdict(belongs), indent=1) + "\n")
        draft.chmod(0o644)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
