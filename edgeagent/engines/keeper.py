"""Who ends the engine when the agent cannot?

A small process of its own between agent and engine. It starts the engine, waits for the agent's
word on standard input, and ends every descendant when that word or the end of the pipe comes: the
pipe also closes when the agent is killed, so no engine outlives us. The words are `stop` (ask
politely, then insist) and `kill` (insist at once; also while a stop is still polite).

Run as `python -I -S -E keeper.py GRACE_SECONDS LOG LEAF -- COMMAND ...`; LEAF is a cgroup that the
engine moves itself into (cgroup_leaf.py), or empty. Standard library only, since it stays in
memory beside the measurement. It reports on standard output, a line each:

    started PID
    exited STATUS        (a negative number is the signal that ended it)

How nothing escapes: the keeper is a *subreaper*, so a descendant whose parent has died becomes our
child, even one in a session of its own; ending is repeated until no child is left, and where there
is a leaf the kernel ends all of it in one go. Should the
keeper itself be killed, the kernel kills the engine's first process (PR_SET_PDEATHSIG), and the
agent the rest of its group.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

_LOOK_S = 0.5
"""How often it looks by itself; a word or a child's end wakes it at once."""

_ENGINE_OOM_SCORE = "500"
"""Under memory pressure the kernel should choose the engine, not the agent or the plant."""

_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)
"""By the keeper, that is: its only word is the pipe's. The engine gets the defaults back."""


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _say(line: str) -> None:
    with contextlib.suppress(OSError):  # the agent may be gone; the engine must still end
        os.write(1, (line + "\n").encode())


def _write(path: str, text: str) -> None:
    """Write a small file of the kernel's; what it refuses is left as it is."""
    try:
        file = os.open(path, os.O_WRONLY)
    except OSError:
        return
    try:
        os.write(file, text.encode())
    except OSError:
        pass
    finally:
        os.close(file)


def _become_engine(command: list[str], log: str, leaf: str, keeper: int) -> None:
    """In the child: a group of its own, tied to the keeper's life; never returns."""
    os.setsid()
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(127)  # the keeper died before the tie was made
    # A container may forbid it; then the kernel chooses by size.
    _write("/proc/self/oom_score_adj", _ENGINE_OOM_SCORE)
    if leaf:
        _write(f"{leaf}/cgroup.procs", "0")
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.closerange(3, 256)
    for name in _IGNORED:
        signal.signal(name, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _IGNORED)
    try:
        os.execvp(command[0], command)  # noqa: S606  # because starting it without a shell is the point
    except OSError as error:
        os.write(2, f"edgeagent: cannot run {command[0]}: {error.strerror}\n".encode())
        os._exit(127)


def _descendants() -> list[int]:
    """Every process below us, children before grandchildren."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208  # because pathlib costs memory
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as stat:  # noqa: PTH123  # because pathlib costs memory
                fields = stat.read().rpartition(b")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    below = children.get(os.getpid(), [])
    while below:
        found.extend(below)
        below = [child for pid in below for child in children.get(pid, [])]
    return found


def _signal_all(what: int) -> None:
    for pid in _descendants():
        try:
            os.kill(pid, what)
        except OSError:
            continue


def _wake(number: int, frame: object) -> None:
    """Nothing: the signal has written to the wake-up pipe already."""


class _Keeper:
    def __init__(self, engine: int, grace_s: float, leaf: str) -> None:
        self._engine = engine
        self._grace_s = grace_s
        self._leaf = leaf
        self._told = False
        self._listening = True
        """Whether the pipe is still open on the agent's side."""
        self._insisting = False
        # A child's end wakes the wait at once: the agent must know while it still judges the cell.
        self._child_ended, write = os.pipe()
        os.set_blocking(write, False)
        signal.signal(signal.SIGCHLD, _wake)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def reap(self) -> bool:
        """Collect what has ended; whether any child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._engine and not self._told:
                self._told = True
                _say(f"exited {os.waitstatus_to_exitcode(status)}")

    def _wait(self, seconds: float) -> bool:
        """Wait for a word or a child's end; whether a word, or the pipe's end, has come."""
        sources = [0, self._child_ended] if self._listening else [self._child_ended]
        ready, _, _ = select.select(sources, [], [], seconds)
        if self._child_ended in ready:
            os.read(self._child_ended, 4096)
        if 0 not in ready:
            return False
        words = os.read(0, 4096)
        self._listening = bool(words)
        self._insisting = self._insisting or b"kill" in words
        return True

    def watch(self) -> None:
        """Wait for the agent's word; `stop`, `kill` or a closed pipe ends the wait."""
        ended_at: float | None = None
        while not self._wait(_LOOK_S):
            self.reap()
            if self._told and ended_at is None:
                ended_at = time.monotonic()
            if ended_at is not None and time.monotonic() - ended_at > 1.0:
                # The engine itself is gone: what it left behind must not stay on the box.
                return

    def end_all(self) -> None:
        """Ask politely unless told to kill, then insist, until no descendant is left."""
        if not self._insisting:
            _signal_all(signal.SIGTERM)
        deadline = time.monotonic() + self._grace_s
        while self.reap() and not self._insisting and time.monotonic() < deadline:
            self._wait(0.02)
        insist_until = time.monotonic() + 30.0
        while self.reap() and time.monotonic() < insist_until:
            if self._leaf:
                _write(f"{self._leaf}/cgroup.kill", "1")
            _signal_all(signal.SIGKILL)
            self._wait(0.02)
        if self._leaf:
            with contextlib.suppress(OSError):
                os.rmdir(self._leaf)  # noqa: PTH106  # because pathlib costs memory


def main(arguments: list[str]) -> int:
    """Keep one engine; returns when nothing of it is left."""
    log, leaf, command = arguments[1], arguments[2], arguments[4:]
    for name in _IGNORED:
        signal.signal(name, signal.SIG_IGN)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    keeper = os.getpid()
    # Blocked, a signal waits for the child; ignored, a stop right after the start would be lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED)
    engine = os.fork()
    if engine == 0:
        _become_engine(command, log, leaf, keeper)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _IGNORED)
    own = _Keeper(engine, float(arguments[0]), leaf)
    _say(f"started {engine}")
    own.watch()
    own.end_all()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
