"""How is an NVIDIA GPU asked without risking the agent?

NVML can crash or hang its process, so it is asked in a child (`nvml_child.py`). `NvmlProbe.read`
waits for an answer only briefly; without one the values are None, with the reason. A child that
stays silent is killed, and one that has ended is replaced after a while: a driver may come up late.
Where there is no NVML library no child is started.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgeagent.ports import Readings

LIBRARY = "libnvidia-ml.so.1"

_PACKAGE_PARENT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Patience:
    """How long to wait for what, in seconds."""

    answer_s: float = 0.2
    """For an answer, within one read; the sampler waits for nothing longer."""
    start_s: float = 15.0
    """For a child's first answer: waking a GPU without persistence takes seconds."""
    hang_s: float = 5.0
    """For any later answer, until the child counts as hung."""
    again_s: float = 60.0
    """From the end of a child until the next is tried."""


class NvmlProbe:
    """GPU memory and utilisation; see `Probe`. Not for use by two threads at once."""

    name = "gpu"

    def __init__(
        self, env: Mapping[str, str] | None = None, patience: Patience | None = None
    ) -> None:
        self._env = dict(os.environ if env is None else env)
        self._patience = patience if patience is not None else Patience()
        self._child: _Child | None = None
        self._not_before_s = 0.0
        self._reason = "NVML has not been asked yet"
        self._names: tuple[str, ...] = ("gpu.devices",)
        self.devices: tuple[Mapping[str, object], ...] = ()
        """The GPUs of the last answer: uuid, name."""

    def read(self, pids: Sequence[int]) -> Readings:
        """Return the readings of now, each None with its reason where there is no answer."""
        answer = self._answer(pids)
        if answer is None:
            return dict.fromkeys(self._names), dict.fromkeys(self._names, self._reason)
        self.devices = answer.devices
        self._names = tuple(answer.values)
        return answer.values, answer.absent

    def close(self) -> None:
        """End the child; safe to call twice."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def _answer(self, pids: Sequence[int]) -> Answer | None:
        child = self._child or self._start()
        if child is None:
            return None
        try:
            line = child.ask(json.dumps(list(pids)), self._patience.answer_s)
            answer = None if line is None else parse(line)
        except _EndedError as error:
            answer = str(error)
        if isinstance(answer, Answer):
            return answer
        if answer is None:
            self._wait(child)
        else:
            self._give_up(answer)
        return None

    def _start(self) -> _Child | None:
        if time.monotonic() < self._not_before_s:
            return None
        if not library_is_there(self._env):
            self._later(f"{LIBRARY} is not installed: no NVIDIA driver here")
            return None
        self._child = _Child(self._env)
        return self._child

    def _wait(self, child: _Child) -> None:
        limit_s = self._patience.hang_s if child.answered else self._patience.start_s
        if child.silent_s() >= limit_s:
            self._give_up(f"NVML did not answer for {limit_s:g} s, so its process was ended")
        else:
            self._reason = "NVML has not answered yet"

    def _give_up(self, reason: str) -> None:
        self.close()
        self._later(reason)

    def _later(self, reason: str) -> None:
        self._reason = reason
        self._not_before_s = time.monotonic() + self._patience.again_s


@dataclass(frozen=True)
class Answer:
    """What the child read."""

    devices: tuple[Mapping[str, object], ...]
    values: dict[str, float | int | None]
    absent: dict[str, str]


def parse(line: bytes) -> Answer | str:
    """Return the answer of a line, or the reason for which the child could not give one."""
    try:
        told = json.loads(line)
        if "error" in told:
            return str(told["error"])
        return Answer(tuple(told["devices"]), dict(told["values"]), dict(told["absent"]))
    except (ValueError, TypeError, KeyError):
        return "the process that asks NVML gave an answer that is none"


def library_is_there(env: Mapping[str, str], root: Path = Path("/")) -> bool:
    """Return whether the loader would find NVML, without loading it: that alone can crash."""
    folders = [Path(part) for part in env.get("LD_LIBRARY_PATH", "").split(":") if part]
    folders += [root / "usr/lib", root / "usr/lib64", root / "lib", root / "lib64"]
    if any((folder / LIBRARY).exists() for folder in folders):
        return True
    try:
        cache = (root / "etc/ld.so.cache").read_bytes()
    except OSError:
        return False
    return f"{LIBRARY}\0".encode() in cache


class _EndedError(Exception):
    """The child has ended; the text says how."""


class _Child:
    """The process that asks NVML, and the question it still owes an answer to."""

    def __init__(self, env: Mapping[str, str]) -> None:
        path = os.pathsep.join(filter(None, [str(_PACKAGE_PARENT), env.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "edgeagent.probes.nvml_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env={**env, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for the agent, which then ends its child in order
        )
        self._received = b""
        self._asked_s: float | None = None
        self.answered = False

    def ask(self, question: str, patience_s: float) -> bytes | None:
        """Return the answer to `question`; None when it is not there in time.

        While an answer is owed nothing new is asked; when it comes it is too old, and dropped.
        Raises _EndedError.
        """
        if self._asked_s is not None and self._line(0.0) is None:
            return None
        self._send(question)
        return self._line(patience_s)

    def silent_s(self) -> float:
        """Return for how long an answer has been owed."""
        return 0.0 if self._asked_s is None else time.monotonic() - self._asked_s

    def end(self) -> None:
        """Kill and reap it."""
        process = self._process
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _send(self, question: str) -> None:
        pipe = self._process.stdin
        if pipe is None:
            raise _EndedError("the process that asks NVML has no input")
        with suppress(BrokenPipeError):  # it may have said why before it ended: `_line` reads that
            pipe.write(question.encode() + b"\n")
        self._asked_s = time.monotonic()

    def _line(self, patience_s: float) -> bytes | None:
        pipe = self._process.stdout
        until_s = time.monotonic() + patience_s
        while b"\n" not in self._received:
            left_s = max(0.0, until_s - time.monotonic())
            if pipe is None or not select.select([pipe], [], [], left_s)[0]:
                return None
            piece = os.read(pipe.fileno(), 1 << 16)
            if not piece:
                raise _EndedError(self._last_words())
            self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        self._asked_s = None
        self.answered = True
        return line

    def _last_words(self) -> str:
        status = self._process.wait()
        if status < 0:
            return f"NVML crashed its process (signal {-status})"
        return f"the process that asks NVML ended with status {status}"
