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
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

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


class EngineProcess:
    """One engine under its keeper. Make it with `start`."""

    def __init__(
        self, name: str, keeper: asyncio.subprocess.Process, pid: int, log: Path, log_start: int
    ) -> None:
        self.pid = pid
        self._name = name
        self._keeper = keeper
        self._log = log
        self._log_start = log_start
        self._status: int | None = None
        self._stopping = False
        self._tree: tuple[int, ...] = ()
        self._looked_at = 0.0
        self._reader = asyncio.ensure_future(self._listen())

    @classmethod
    async def start(
        cls, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> EngineProcess:
        """Start `command`, its output appended to `log`. Raises EngineError."""
        log.parent.mkdir(parents=True, exist_ok=True)
        log_start = log.stat().st_size if log.exists() else 0
        keeper = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            "-E",
            str(_KEEPER),
            str(GRACE_S),
            str(log),
            "--",
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
        )
        assert keeper.stdout is not None  # noqa: S101  # because it was asked for as a pipe
        line = await keeper.stdout.readline()
        if not line.startswith(b"started "):
            raise EngineError(f"{name} could not be started: its keeper ended at once")
        return cls(name, keeper, int(line.split()[1]), log, log_start)

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
        """None while it lives; else one sentence."""
        if self._status is None:
            return None
        return f"{self._name} {ended(self._status)}{self._quoted_log()}"

    def log_text(self) -> str:
        """What this start has written so far, the last part of it if it is long."""
        try:
            with self._log.open("rb") as log:
                end = log.seek(0, os.SEEK_END)
                log.seek(max(self._log_start, end - _LAST_WORDS_BYTES))
                return log.read().decode("utf-8", "replace")
        except OSError:
            return ""

    def log_head(self, limit: int = 1 << 20) -> str:
        """The first `limit` bytes of what this start has written."""
        try:
            with self._log.open("rb") as log:
                log.seek(self._log_start)
                return log.read(limit).decode("utf-8", "replace")
        except OSError:
            return ""

    def _quoted_log(self) -> str:
        words = last_words(self.log_text())
        return f'; its last words were "{words}"' if words else "; its log is empty"

    async def stop(self) -> None:
        """End every process of the engine and wait until none is left."""
        if self._stopping:
            await self._keeper.wait()
            return
        self._stopping = True
        if self._keeper.stdin is not None:
            with contextlib.suppress(OSError):
                self._keeper.stdin.write(b"stop\n")
                await self._keeper.stdin.drain()
            self._keeper.stdin.close()
        try:
            await asyncio.wait_for(self._keeper.wait(), GRACE_S + 40.0)
        except asyncio.TimeoutError:
            self._kill_group()
            self._keeper.kill()
            await self._keeper.wait()
        await self._reader
        self._kill_group()

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
