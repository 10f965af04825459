"""What, besides readings, does measuring on this box depend on: device files, clocks, room?

Looked at once, for `edgeagent doctor`; nothing is changed. What these facts are worth is judged in
core/diagnosis.py.
"""

from __future__ import annotations

import grp
import os
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from edgeagent.core.diagnosis import Access, CgroupFacts, Nodes, Place
from edgeagent.probes import box
from edgeagent.probes.settings import settings

SO_TIMESTAMPNS = 35
"""Linux's value; Python's socket module does not name it."""

_TIMESPEC_BYTES = 16
_LOOPBACK_S = 2.0
_STAMPS_BEGIN_S = 0.5
_BETWEEN_S = 0.01

_NODES = {
    "nvidia": ("dev/nvidia[0-9]*", "dev/nvidiactl", "dev/nvidia-uvm"),
    "dri": ("dev/dri/renderD*",),
    "tegra": ("dev/nvmap", "dev/nvhost-gpu", "dev/nvgpu/igpu0/ctrl"),
    "kfd": ("dev/kfd",),
    "windows": ("dev/dxg",),
}
_NEEDED = {
    "dgpu": ("dev/nvidiactl", "dev/nvidia-uvm"),
    "uma-nvidia": ("dev/nvidiactl", "dev/nvidia-uvm"),
    "uma-nvgpu": ("dev/nvmap",),
    "amd": ("dev/dri/renderD128",),
    "intel": ("dev/dri/renderD128",),
    "wsl": ("dev/dxg",),
}


def device_nodes(root: Path, kind: str) -> Nodes:
    """Return the device files of GPUs below `root`, by what this user may do with them."""
    needed = _NEEDED["wsl" if _under_windows(root) else kind] if kind in _NEEDED else ()
    paths = [path for patterns in _NODES.values() for path in _found(root, patterns)]
    refused = [path for path in paths if not _may(path, os.R_OK | os.W_OK)]
    return Nodes(
        usable=tuple(_shown(root, path) for path in paths if path not in refused),
        refused=tuple(_shown(root, path) for path in refused),
        lacking=tuple(f"/{path}" for path in needed if not (root / path).exists()),
        groups=tuple(sorted({name for path in refused if (name := _group(path))})),
    )


def _under_windows(root: Path) -> bool:
    return "microsoft" in (_text(root / "proc/sys/kernel/osrelease") or "").lower()


def _found(root: Path, patterns: Iterable[str]) -> list[Path]:
    return [path for pattern in patterns for path in sorted(root.glob(pattern))]


def _shown(root: Path, path: Path) -> str:
    return f"/{path.relative_to(root)}"


def _group(path: Path) -> str | None:
    try:
        return grp.getgrgid(path.stat().st_gid).gr_name
    except (OSError, KeyError):
        return None


def access(path: Path, mode: int = os.R_OK) -> Access:
    """Return what this user may do with a file."""
    try:
        path.stat()
    except PermissionError:
        return "refused"
    except OSError:
        return "absent"
    return "readable" if _may(path, mode) else "refused"


def rapl_access(root: Path) -> Access:
    """Return whether the processor's energy counter can be read."""
    counters = sorted((root / "sys/class/powercap").glob("*rapl:*/energy_uj"))
    return access(counters[0]) if counters else "absent"


# ------------------------------------------------------------------------------------------ clocks


def kernel_stamps() -> tuple[bool, str | None]:
    """Send bytes over loopback and return whether one came with a stamp, or why none did.

    Where nobody else wants stamps the kernel begins with them a moment after it was asked.
    """
    try:
        with _connection() as (sending, receiving):
            until_s = time.monotonic() + _STAMPS_BEGIN_S
            while not _is_stamped(sending, receiving):
                if time.monotonic() > until_s:
                    return False, "bytes came without one"
                time.sleep(_BETWEEN_S)
    except OSError as error:
        return False, error.strerror or type(error).__name__
    return True, None


@contextmanager
def _connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection over loopback whose second end asks for stamps."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(_LOOPBACK_S)
        with socket.create_connection(server.getsockname(), _LOOPBACK_S) as receiving:
            receiving.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            sending, _ = server.accept()
            with sending:
                yield sending, receiving


def _is_stamped(sending: socket.socket, receiving: socket.socket) -> bool:
    sending.sendall(b"x")
    _, told, _, _ = receiving.recvmsg(1, socket.CMSG_SPACE(_TIMESPEC_BYTES))
    return any(kind == SO_TIMESTAMPNS for _, kind, _ in told)


def wall_clock(root: Path) -> bool | None:
    """Return whether the kernel takes its wall clock for synchronised; None when it is not told."""
    told = settings(root).get("clock_synchronised")
    return told if isinstance(told, bool) else None


def clock_source(root: Path) -> str | None:
    """Return the name of the kernel's clock source."""
    return _text(root / "sys/devices/system/clocksource/clocksource0/current_clocksource")


# ------------------------------------------------------------------------------------------- places


def place(path: Path) -> Place:
    """Return whether a folder can be written, and its room; it need not exist yet."""
    there = path
    # os.path, because Path raises where a folder on the way is closed
    while not os.path.exists(there) and there != there.parent:  # noqa: PTH110  # because see above
        there = there.parent
    try:
        status = os.statvfs(there)
        mounted: Literal["read-write", "read-only"] = (
            "read-only" if status.f_flag & os.ST_RDONLY else "read-write"
        )
        free_bytes = status.f_bavail * status.f_frsize
    except OSError:
        free_bytes, mounted = None, "read-write"
    writable = os.path.isdir(there) and _may(there, os.W_OK | os.X_OK)  # noqa: PTH112  # because see above
    return Place(str(path), free_bytes, writable, mounted)


def cgroup(root: Path) -> CgroupFacts:
    """Return how control groups are laid out here, and whether we may make our own."""
    layout = box.cgroup_version(root)
    path = own_group(_text(root / "proc/self/cgroup") or "")
    if layout != "v2":
        return CgroupFacts(layout or "none", path, delegated=False)
    ours = root / "sys/fs/cgroup" / (path or "/").lstrip("/")
    controllers = tuple((_text(ours / "cgroup.controllers") or "").split())
    delegated = _may(ours, os.W_OK) and _may(ours / "cgroup.procs", os.W_OK)
    return CgroupFacts("v2", path, delegated, controllers)


def own_group(text: str) -> str | None:
    """Return the path of the version 2 group in /proc/self/cgroup; None where there is none."""
    for line in text.splitlines():
        if line.startswith("0::"):
            return line[3:]
    return None


def _may(path: Path, mode: int) -> bool:
    """Whether the user in whose rights we run, not the one who started us, may do this."""
    return os.access(path, mode, effective_ids=True)


def _text(path: Path) -> str | None:
    try:
        return path.read_text("utf-8", "replace").strip() or None
    except OSError:
        return None
