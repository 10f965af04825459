"""How does an engine's process live and end?

The agent's side of `keeper.py`: start an engine under a keeper, know every process of it, tell in
one sentence why it died, and end all of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from edgeagent.engines.cgroup_leaf import Leaf, make_leaf
from edgeagent.errors import EngineError

GRACE_S = 5.0
"""How long an engine may take to end by itself."""

_SCRUBBED_PREFIXES = ("LLAMA_ARG_",)
_SCRUBBED = frozenset({"AIP_MODE"})
"""llama-server obeys these silently; AIP_MODE even moves its port."""

_KEEPER = Path(__file__).with_name("keeper.py")
_SIGNAL_HINTS: Mapping[int, str] = {
    signal.SIGKILL: " (the kernel does this when memory runs out)",
    # Seen: a build made for AMX on a box whose kernel withholds it; `--no-repack` avoids AMX.
    signal.SIGILL: " (it is built for another kind of processor)",
}
_LAST_WORDS_BYTES = 64 * 1024
_SENTENCE = 300
_LINE = 1000
_LOOK_EVERY_S = 1.0

_KNOWN_LAST_WORDS = (
    # In order of how much they explain; llama.cpp first (facts: its log of b10434 and b11434).
    re.compile(r"couldn't bind HTTP server socket.*"),
    re.compile(r"error: invalid argument.*"),
    re.compile(r"error while handling argument.*"),
    re.compile(r"(?:ggml_backend_\S*alloc\S*|ggml_gallocr_\S*): failed.*"),
    re.compile(r"failed to allocate.*", re.IGNORECASE),
    re.compile(r"unable to allocate.*", re.IGNORECASE),
    re.compile(r".*out of memory.*", re.IGNORECASE),
    re.compile(r"failed to initialize the context:.*"),
    re.compile(r"(?:error loading model|llama_model_load: error).*"),
    re.compile(r"failed to (?:load|open|create).*"),
    re.compile(r"edgeagent: cannot run.*"),
    re.compile(r"\w*(?:Error|Exception): .*"),
    re.compile(r"error while loading shared libraries.*"),
)


def scrubbed(environment: Mapping[str, str], extra: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The environment for an engine: ours, without what would steer it behind our back."""
    kept = {
        name: value
        for name, value in environment.items()
        if name not in _SCRUBBED and not name.startswith(_SCRUBBED_PREFIXES)
    }
    return {**kept, **dict(extra)}


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def last_words(text: str) -> str | None:
    """What an engine's log says about its end, as one line; None when it says nothing."""
    lines = [_bare(line) for line in text.splitlines() if line.strip()]
    for pattern in _KNOWN_LAST_WORDS:
        for line in reversed(lines):
            if found := pattern.search(line):
                return _clipped(found.group(0))
    return _clipped(lines[-1]) if lines else None


def _bare(line: str) -> str:
    """A log line without llama.cpp's time and level (`0.00.003.675 E `)."""
    # Clipped, because searching a line takes the square of its length.
    return re.sub(r"^\d+(?:\.\d+){3} [IWED] ", "", line.strip()[:_LINE])


def _clipped(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SENTENCE else text[: _SENTENCE - 1] + "…"


class _Words:
    """The pipe to a keeper; a word may be said from any thread, and after the end of either side.

    A pipe of our own: asyncio's may be written to from the event loop only, and a bare file number
    could belong to another file once the pipe is closed.
    """

    def __init__(self) -> None:
        self.keepers_end, self._ours = os.pipe()
        os.set_blocking(self._ours, False)
        self._lock = threading.Lock()
        self._open = True

    def say(self, word: str) -> None:
        with self._lock, contextlib.suppress(OSError):  # the keeper may have ended already
            if self._open:
                os.write(self._ours, f"{word}\n".encode())

    def close(self) -> None:
        with self._lock:
            if self._open:
                self._open = False
                os.close(self._ours)


@dataclass(frozen=True)
class _Log:
    """What one start has written: its file's part from `start` on."""

    path: Path
    start: int

    @classmethod
    def ready(cls, path: Path) -> _Log:
        path.parent.mkdir(parents=True, exist_ok=True)
        return cls(path, path.stat().st_size if path.exists() else 0)

    def head(self, limit: int) -> str:
        try:
            with self.path.open("rb") as log:
                log.seek(self.start)
                return log.read(limit).decode("utf-8", "replace")
        except OSError:
            return ""

    def tail(self, limit: int) -> str:
        try:
            with self.path.open("rb") as log:
                end = log.seek(0, os.SEEK_END)
                log.seek(max(self.start, end - limit))
                return log.read().decode("utf-8", "replace")
        except OSError:
            return ""


class EngineProcess:
    """One engine under its keeper. Make it with `start`."""

    def __init__(
        self,
        name: str,
        keeper: asyncio.subprocess.Process,
        words: _Words,
        leaf: Leaf,
        pid: int,
        log: _Log,
    ) -> None:
        self.pid = pid
        self._name = name
        self._keeper = keeper
        self._words = words
        self._leaf = leaf
        self._log = log
        self._status: int | None = None
        self._killed: str | None = None
        self._stopping = False
        self._tree: tuple[int, ...] = ()
        self._looked_at = 0.0
        self._reader = asyncio.ensure_future(self._listen())

    @classmethod
    async def start(
        cls, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> EngineProcess:
        """Start `command`, its output appended to `log`. Raises EngineError."""
        kept = _Log.ready(log)
        leaf = make_leaf(os.environ)
        if leaf.unlimited is not None:
            leaf.remove()
            raise EngineError(f"{name} was not started: {leaf.unlimited}")
        words = _Words()
        try:
            keeper = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-S",
                "-E",
                str(_KEEPER),
                str(GRACE_S),
                str(log),
                str(leaf.folder or ""),
                "--",
                *command,
                stdin=words.keepers_end,
                stdout=asyncio.subprocess.PIPE,
                env=dict(environment),
                start_new_session=True,
            )
        except BaseException:
            words.close()
            leaf.remove()
            raise
        finally:
            os.close(words.keepers_end)
        assert keeper.stdout is not None  # noqa: S101  # because it was asked for as a pipe
        try:
            line = await keeper.stdout.readline()
        except BaseException:
            words.close()  # cancelled: the keeper ends by itself, and takes all along
            raise
        if not line.startswith(b"started "):
            words.close()
            leaf.remove()
            raise EngineError(f"{name} could not be started: its keeper ended at once")
        return cls(name, keeper, words, leaf, int(line.split()[1]), kept)

    async def _listen(self) -> None:
        assert self._keeper.stdout is not None  # noqa: S101  # because it was asked for as a pipe
        while line := await self._keeper.stdout.readline():
            if line.startswith(b"exited "):
                self._status = int(line.split()[1])
        if self._status is None:
            self._status = -signal.SIGKILL

    @property
    def status(self) -> int | None:
        """Exit status; negative for a signal; None while it runs."""
        return self._status

    def pids(self) -> tuple[int, ...]:
        """Every process of the engine that lived when it was last looked, a second ago at most."""
        import psutil  # because only a running engine needs it

        # Finding descendants reads every process of the box: too dear for each sample.
        if time.monotonic() - self._looked_at < _LOOK_EVERY_S and self._status is None:
            return self._tree
        self._looked_at = time.monotonic()
        self._tree = self._look(psutil)
        return self._tree

    def _look(self, psutil: ModuleType) -> tuple[int, ...]:
        try:
            tree = psutil.Process(self._keeper.pid).children(recursive=True)
        except psutil.Error:
            return ()
        return tuple(child.pid for child in tree)

    def death(self) -> str | None:
        """None while it lives; else one sentence, the guard's own if that was asked to end it."""
        if self._killed is not None:
            return f"{self._name} was ended by the memory guard: {self._killed}"
        if self._status is None:
            return None
        return f"{self._name} {ended(self._status)}{self._quoted_log()}"

    @property
    def guarded(self) -> bool:
        """Whether the memory guard ended it."""
        return self._killed is not None

    def kill(self, why: str) -> None:
        """SIGKILL all of it, from any thread, without waiting; `why` is kept for `death`.

        Three ways at once, because the box is about to collapse: the kernel's (cgroup.kill), ours
        (its process group), and the keeper, who repeats it until nothing is left. One that has
        ended by itself keeps its own death.
        """
        if self._status is None:
            self._killed = self._killed or why
            self._leaf.kill()
            self._kill_group()
        self._words.say("kill")

    def isolation(self) -> Mapping[str, object]:
        """Its cgroup, or why it has none of its own; true once it answers."""
        return self._leaf.details(self.pid)

    def log_text(self) -> str:
        """What this start has written so far, the last part of it if it is long."""
        return self._log.tail(_LAST_WORDS_BYTES)

    def log_head(self, limit: int = 1 << 20) -> str:
        """The first `limit` bytes of what this start has written."""
        return self._log.head(limit)

    def _quoted_log(self) -> str:
        words = last_words(self.log_text())
        return f'; its last words were "{words}"' if words else "; its log is empty"

    async def stop(self) -> None:
        """End every process of the engine and wait until none is left."""
        if self._stopping:
            await self._keeper.wait()
            return
        self._stopping = True
        self._words.say("stop")
        try:
            await asyncio.wait_for(self._keeper.wait(), GRACE_S + 40.0)
        except asyncio.TimeoutError:
            self._kill_group()
            self._keeper.kill()
            await self._keeper.wait()
        self._words.close()
        await self._reader
        self._kill_group()
        self._leaf.remove()

    def _kill_group(self) -> None:
        """The engine's own group: empty unless the keeper was killed before its work was done."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def ended(status: int) -> str:
    """How a process ended, in words."""
    if status >= 0:
        return f"ended with exit status {status}"
    name = signal.Signals(-status).name if -status in set(signal.Signals) else str(-status)
    return f"was ended by {name}{_SIGNAL_HINTS.get(-status, '')}"
