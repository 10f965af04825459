"""Who ends the engine when the agent cannot?

A small process of its own between agent and engine. It starts the engine, waits for the agent's
word on standard input, and ends every descendant when that word or the end of the pipe comes: the
pipe also closes when the agent is killed, so no engine outlives us.

Run as `python -I -S -E keeper.py GRACE_SECONDS LOG -- COMMAND ...`; standard library only, since
it stays in memory beside the measurement. It reports on standard output, a line each:

    started PID
    exited STATUS        (a negative number is the signal that ended it)

How nothing escapes: the keeper is a *subreaper*, so a descendant whose parent has died becomes our
child, even one in a session of its own; ending is repeated until no child is left. Should the
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


def _become_engine(command: list[str], log: str, keeper: int) -> None:
    """In the child: a group of its own, tied to the keeper's life; never returns."""
    os.setsid()
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(127)  # the keeper died before the tie was made
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:  # noqa: PTH123  # because pathlib costs memory
            score.write(_ENGINE_OOM_SCORE)
    except OSError:
        pass  # a container may forbid it; then the kernel chooses by size
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
    def __init__(self, engine: int, grace_s: float) -> None:
        self._engine = engine
        self._grace_s = grace_s
        self._told = False
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

    def watch(self) -> None:
        """Wait for the agent's word; `stop` or a closed pipe ends the wait."""
        ended_at: float | None = None
        while True:
            ready, _, _ = select.select([0, self._child_ended], [], [], _LOOK_S)
            if 0 in ready:
                return
            if ready:
                os.read(self._child_ended, 4096)
            self.reap()
            if self._told and ended_at is None:
                ended_at = time.monotonic()
            if ended_at is not None and time.monotonic() - ended_at > 1.0:
                # The engine itself is gone: what it left behind must not stay on the box.
                return

    def end_all(self) -> None:
        """Ask politely, then insist, until no descendant is left."""
        _signal_all(signal.SIGTERM)
        deadline = time.monotonic() + self._grace_s
        while self.reap() and time.monotonic() < deadline:
            time.sleep(0.02)
        insist_until = time.monotonic() + 30.0
        while self.reap() and time.monotonic() < insist_until:
            _signal_all(signal.SIGKILL)
            time.sleep(0.02)


def main(arguments: list[str]) -> int:
    """Keep one engine; returns when nothing of it is left."""
    grace_s, log, command = float(arguments[0]), arguments[1], arguments[3:]
    for name in _IGNORED:
        signal.signal(name, signal.SIG_IGN)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    keeper = os.getpid()
    # Blocked, a signal waits for the child; ignored, a stop right after the start would be lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED)
    engine = os.fork()
    if engine == 0:
        _become_engine(command, log, keeper)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _IGNORED)
    own = _Keeper(engine, grace_s)
    _say(f"started {engine}")
    own.watch()
    own.end_all()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
