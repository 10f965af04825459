"""What of a vLLM is left in shared memory after it was killed?

An engine that ends by SIGKILL leaves its message queues in /dev/shm, and they stay until the box
restarts. What appeared since the launch, has a name as Python gives them, is ours and is mapped or
opened by nobody is removed.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

_NAME = re.compile(r"(?:psm_|sem\.mp-)[0-9a-z_-]+", re.IGNORECASE)
_SHM = Path("/dev/shm")  # noqa: S108  # because it is shared memory, and only names in it are read
_PROC = Path("/proc")
_INODE = 4
"""Of a line of /proc/PID/maps."""


def seen(folder: Path = _SHM) -> frozenset[str]:
    """Names of such segments that are there now."""
    with contextlib.suppress(OSError):
        return frozenset(p.name for p in folder.iterdir() if _NAME.fullmatch(p.name))
    return frozenset()


def remove_leftovers(
    before: frozenset[str], folder: Path = _SHM, proc: Path = _PROC
) -> tuple[str, ...]:
    """Remove what appeared since `before` and nobody holds; the names removed."""
    new = seen(folder) - before
    if not new:
        return ()
    held = set(_held(proc))
    removed = []
    for name in sorted(new):
        path = folder / name
        with contextlib.suppress(OSError):
            status = path.lstat()
            if status.st_uid == os.geteuid() and status.st_ino not in held:
                path.unlink()
                removed.append(name)
    return tuple(removed)


def _held(proc: Path) -> Iterator[int]:
    """Inodes that some process maps or has open.

    Not names: libc makes a semaphore under another name and links it to its own, so whoever made it
    maps, by name, a file that has long been deleted.
    """
    for process in proc.iterdir():
        if not process.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            maps = (process / "maps").read_text(encoding="utf-8", errors="replace")
            for line in maps.splitlines():
                # address perms offset dev inode path
                fields = line.split(maxsplit=5)
                if len(fields) > _INODE and fields[_INODE].isdigit():
                    yield int(fields[_INODE])
        with contextlib.suppress(OSError):
            for file in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    yield file.stat().st_ino
