"""What is this file's SHA-256, without reading 20 GB twice?

Remembered by device, inode, size and both times of change in the user's cache folder: content can
change and its modification time be put back (`touch -d`, `rsync -t`), while the time at which the
inode changed cannot. The memory is a convenience: when it cannot be read or written, the file is
simply read again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from edgeagent.errors import UsageError

_CHUNK_BYTES = 4 << 20
_REMEMBERED = 500
_HASH = re.compile(r"[0-9a-f]{64}")


def cache_file(environment: dict[str, str] | None = None) -> Path:
    """Where hashes are remembered: `$XDG_CACHE_HOME/edgeagent/hashes.json`."""
    env = os.environ if environment is None else environment
    base = env.get("XDG_CACHE_HOME") or str(Path(env.get("HOME", "/nonexistent")) / ".cache")
    return Path(base) / "edgeagent" / "hashes.json"


def sha256(
    path: Path,
    memory: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> str:
    """SHA-256 of the file as hex, remembered in `memory`. Raises UsageError when unreadable.

    `progress` is called with bytes read and bytes in all.
    """
    try:
        with path.open("rb") as file:
            stat = os.fstat(file.fileno())
            key = _key(stat)
            known = _read(memory).get(key)
            if known is not None:
                return known
            whole = hashlib.sha256()
            done = 0
            while chunk := file.read(_CHUNK_BYTES):
                whole.update(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(done, stat.st_size)
            if _key(os.fstat(file.fileno())) != key:
                memory = None  # somebody wrote while it was read: what it is now, nobody knows
    except OSError as error:
        raise UsageError(
            f"{path} was to be hashed and cannot be read ({(error.strerror or '').lower()}): "
            "make it readable"
        ) from error
    _remember(memory, key, whole.hexdigest())
    return whole.hexdigest()


def _key(stat: os.stat_result) -> str:
    """Equal as long as a file is the same and nobody has touched it."""
    times = f"{stat.st_mtime_ns}:{stat.st_ctime_ns}"
    return f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{times}"


def _read(memory: Path | None) -> dict[str, str]:
    if memory is None:
        return {}
    try:
        value = json.loads(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(value, dict):
        return {}
    return {k: v for k, v in value.items() if isinstance(v, str) and _HASH.fullmatch(v)}


def _remember(memory: Path | None, key: str, value: str) -> None:
    if memory is None:
        return
    known = {**_read(memory), key: value}
    newest = dict(list(known.items())[-_REMEMBERED:])
    with contextlib.suppress(OSError):
        memory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=memory.parent, prefix="hashes.", delete=False, encoding="utf-8"
        ) as file:
            json.dump(newest, file)
        try:
            Path(file.name).replace(memory)
        except OSError:
            Path(file.name).unlink()
