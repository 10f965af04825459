"""What memory does the scripted server take, and what processes does it leave lying about?

Real memory of a real process, of sizes that are known: weights are a mapped file, the cache and the
buffers are private anonymous pages, and every page of both is touched. It says so in llama.cpp's
words when asked, so that what a probe measures can be held against what the engine reports.

Everything is bounded, because it runs on machines with other work: `MOST_BYTES` in all, growth up
to `MOST_GROWTH_BYTES`, at most `MOST_CHILDREN` children, each of which ends by itself.
"""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20
MOST_BYTES = 2 << 30
MOST_GROWTH_BYTES = 1 << 30
MOST_CHILDREN = 64
_LIFE_S = "600"
_GROWTH_STEP_S = 0.02
_LAYERS = 30


@dataclass(frozen=True)
class MemoryScript:
    """Sizes in bytes; nothing is taken by default."""

    map_bytes: int = 0
    """Of a file that is mapped and read: the weights."""
    slot_bytes: int = 0
    """Per slot, taken at the start: the cache."""
    compute_bytes: int = 0
    """Per slot, taken at its first request and kept: buffers that a first load brings."""
    growth_bytes_per_s: int = 0
    """Taken for as long as it starts, which it then does until it is ended."""
    growth_limit_bytes: int = MOST_GROWTH_BYTES
    children: int = 0
    deserter: bool = False
    """A grandchild in a session of its own, without a parent, deaf to SIGTERM."""
    device: str | None = None
    """Report buffers in the log as lying on this device; `none` says that no GPU was found."""

    def excess(self, slots: int) -> str | None:
        """Why this is more than a scripted server may take; None when it is not."""
        pages = self.map_bytes + slots * (self.slot_bytes + self.compute_bytes)
        if pages > MOST_BYTES:
            return f"{pages} bytes are more than the {MOST_BYTES} that it may take"
        if self.growth_limit_bytes > MOST_GROWTH_BYTES:
            return f"it may grow by {MOST_GROWTH_BYTES} bytes at most"
        if self.children > MOST_CHILDREN:
            return f"it may have {MOST_CHILDREN} children at most"
        return None

    def log_lines(self, slots: int) -> Iterator[str]:
        """Its memory in llama.cpp's words; nothing unless a device is named."""
        device = self.device
        if device is None:
            return
        if device == "none":
            yield "no usable GPU found, --gpu-layers option will be ignored"
            device = "CPU"
        layers = 0 if device == "CPU" else _LAYERS
        weights = "CPU_Mapped" if device == "CPU" else device
        yield f"load_tensors: offloaded {layers}/{_LAYERS} layers to GPU"
        yield f"load_tensors: {_line(weights, 'model', self.map_bytes)}"
        yield f"llama_context: {_line('CPU', ' output', 0)}"
        yield f"llama_kv_cache: {_line(device, 'KV', self.slot_bytes * slots)}"
        yield f"sched_reserve: {_line(device, 'compute', self.compute_bytes * slots)}"


class Memory:
    """What one server holds; kept until the process ends."""

    def __init__(self, script: MemoryScript, slots: int) -> None:
        """Take what the start takes."""
        self._script = script
        self._held: list[mmap.mmap] = []
        self._computing: set[int] = set()
        if script.map_bytes:
            self._held.append(_mapped(script.map_bytes))
        for _ in range(slots if script.slot_bytes else 0):
            self._held.append(_anonymous(script.slot_bytes))

    def request(self, slot: int) -> None:
        """A slot takes a request; its first one brings its buffers."""
        if self._script.compute_bytes and slot not in self._computing:
            self._computing.add(slot)
            self._held.append(_anonymous(self._script.compute_bytes))

    def grow(self) -> Iterator[float]:
        """Take more and more up to the limit; yields how long to wait before the next piece."""
        rate, limit = self._script.growth_bytes_per_s, self._script.growth_limit_bytes
        begun, taken = time.monotonic(), 0
        while taken < limit:
            due = int(rate * (time.monotonic() - begun))
            piece = _pages(min(due, limit) - taken)
            if piece > 0:
                self._held.append(_anonymous(piece))
                taken += piece
            elif limit - taken < mmap.PAGESIZE:
                return
            yield _GROWTH_STEP_S


def _line(device: str, kind: str, count: int) -> str:
    return f"{device:>12} {kind} buffer size = {count / MIB:8.2f} MiB"


def _pages(count: int) -> int:
    return count - count % mmap.PAGESIZE


def _anonymous(count: int) -> mmap.mmap:
    """Private pages, each written once."""
    held = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    held[:: mmap.PAGESIZE] = b"\x01" * -(-count // mmap.PAGESIZE)
    return held


def _mapped(count: int) -> mmap.mmap:
    """A file's pages, each read once. The file has no name, no blocks, and goes with the process.

    Not in /tmp, which may be a memory file system: its pages would count as anonymous.
    """
    folder = "/var/tmp" if Path("/var/tmp").is_dir() else None  # noqa: S108  # because the file has no name there
    with tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(count)
        held = mmap.mmap(file.fileno(), count, prot=mmap.PROT_READ)
    held[:: mmap.PAGESIZE]
    return held


def spawn(script: MemoryScript) -> None:
    """Start the children and the deserter."""
    for _ in range(min(script.children, MOST_CHILDREN)):
        # Not waited for: whoever ends the server has to end them.
        subprocess.Popen(["/bin/sleep", _LIFE_S])
    if script.deserter:
        _desert()


def _desert() -> None:
    if (middle := os.fork()) != 0:
        os.waitpid(middle, 0)
        return
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # an ignored signal stays so over exec
        os.execv("/bin/sleep", ["sleep", _LIFE_S])  # noqa: S606  # because no shell is wanted
    os._exit(0)
