"""How is an NVIDIA GPU asked without risking the agent?

NVML can crash or hang its process, so it is asked in a child (`nvml_child.py`). `NvmlProbe.read`
waits for an answer only briefly; without one the values are None, with the reason. A child that
stays silent is killed, and one that has ended is replaced after a while, ever more rarely: a driver
may come up late, or stay away for good. Where there is no NVML library no child is started.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgeagent.itself import program
from edgeagent.ports import Readings
from edgeagent.probes.host import process_root

LIBRARY = "libnvidia-ml.so.1"

WSL_FOLDER = Path("usr/lib/wsl/lib")

_PACKAGE_PARENT = Path(__file__).parents[2]

_MOST_PATIENT = 16
"""Times `again_s` is the longest pause between children that never answer."""


@dataclass(frozen=True)
class Patience:
    """How long to wait for what, in seconds."""

    answer_s: float = 0.2
    """For an answer, within one read; the sampler waits for nothing longer."""
    stale_s: float = 1.0
    """An answer that came late is used by the next read, but not if it was asked for longer ago."""
    start_s: float = 15.0
    """For a child's first answer: waking a GPU without persistence takes seconds."""
    hang_s: float = 5.0
    """For any later answer, until the child counts as hung."""
    again_s: float = 60.0
    """From the end of a child until the next is tried; twice as long each time none answers."""
    ask_again_s: float = 30.0
    """From a call that a device does not support until it is asked again."""


class NvmlProbe:
    """Memory, load, clocks, power and heat of every NVIDIA GPU; see `Probe`.

    Not for use by two threads at once. Devices and their calls are known from the first answer on,
    and stay known when the child that gave it has ended.
    """

    name = "gpu"

    def __init__(
        self,
        env: Mapping[str, str] | None = None,
        patience: Patience | None = None,
        root: Path = Path("/"),
        processes: Path | None = None,
    ) -> None:
        self._env = dict(os.environ if env is None else env)
        self._patience = patience if patience is not None else Patience()
        self._root = root
        self._processes = processes or process_root(root)
        self._child: _Child | None = None
        self._not_before_s = 0.0
        self._failures = 0
        self._known = _Known()
        self.reason: str | None = "NVML has not been asked yet"
        """Why the last read got no answer; None when it got one."""

    @property
    def devices(self) -> tuple[Mapping[str, object], ...]:
        """The GPUs, each followed by its MIG devices, with what does not change.

        Of each: uuid, name, memory (own, shared, unknown), memory_version (1, 2), total_bytes,
        quality; of a GPU: pci_bus_id, power_limit_w; of a MIG device: mig_parent.
        """
        return self._known.devices

    @property
    def capabilities(self) -> Mapping[str, Mapping[str, str]]:
        """By device, what it tells: `ok`, or the word why it does not.

        Of memory, processes, utilisation, sm_clock, memory_clock, power, energy, temperature,
        throttle_reasons, throttle_counters. The words are NVML's own (`not_supported`,
        `gpu_is_lost`), `not_believed` for what cannot be true, and `told_by_mig`.
        """
        return self._known.capabilities

    @property
    def quality(self) -> str:
        """How far `gpu.engine_bytes` is known.

        `attributed`: from the rows of the engine's processes. `attributed_partly`: the same, and
        rows were dropped or a device tells nothing. `device_delta` and `system_delta`: only a
        device's or the host's memory as a whole is known. `unavailable`: nothing is.
        """
        return self._known.quality

    def facts(self) -> Mapping[str, object]:
        """Return what does not change: versions, devices, how far memory can be attributed.

        `refused` names the GPUs that NVML counts and does not give, with its word why.
        """
        return {
            **self._known.system,
            "quality": self.quality,
            "devices": list(self.devices),
            "reason": self.reason,
        }

    def warnings(self) -> tuple[str, ...]:
        """Return a sentence for each device that does not tell everything."""
        return tuple(
            f"{_label(device)}: NVML does not tell {told}"
            for device in self.devices
            if (told := _refused(self.capabilities.get(str(device["uuid"]), {})))
        )

    def read(self, pids: Sequence[int]) -> Readings:
        """Return the readings of now, each None with its reason where there is no answer."""
        values = self._answer(pids)
        names = self._known.names
        if values is None or len(values) != len(names):
            reason = self.reason or "NVML gave an answer that is none"
            return dict.fromkeys(names), dict.fromkeys(names, reason)
        return dict(zip(names, values, strict=True)), self._known.absent

    def close(self) -> None:
        """End the child; safe to call twice."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def _answer(self, pids: Sequence[int]) -> list[Any] | None:
        child = self._child or self._start()
        if child is None:
            return None
        try:
            told = self._ask(child, pids)
        except _EndedError as error:
            self._give_up(str(error))
            return None
        if told is None:
            self._wait(child)
            return None
        self.reason = None
        return told.values

    def _ask(self, child: _Child, pids: Sequence[int]) -> Told | None:
        """Return an answer that is young enough, or None for not yet. Raises _EndedError."""
        reply = child.ask(pids, self._patience.answer_s)
        while reply is not None:
            told = parse(reply.line)
            if isinstance(told, str):
                raise _EndedError(told)
            self._failures = 0
            self._known.learn(told.news)
            if reply.age_s <= self._patience.stale_s or reply.was_waited_for:
                return told
            reply = child.ask(pids, self._patience.answer_s)
        return None

    def _start(self) -> _Child | None:
        if time.monotonic() < self._not_before_s:
            return None
        if not library_is_there(self._env, self._root):
            self._later(f"{LIBRARY} is not installed: no NVIDIA driver here")
            return None
        arguments = (str(self._patience.ask_again_s), str(self._root), str(self._processes))
        self._child = _Child(with_wsl(self._env, self._root), arguments)
        return self._child

    def _wait(self, child: _Child) -> None:
        limit_s = self._patience.hang_s if child.answered else self._patience.start_s
        if child.silent_s() >= limit_s:
            self._give_up(f"NVML did not answer for {limit_s:g} s, so its process was ended")
        else:
            self.reason = "NVML has not answered yet"

    def _give_up(self, reason: str) -> None:
        self.close()
        self._later(reason)
        self._failures += 1

    def _later(self, reason: str) -> None:
        self.reason = reason
        longer = min(2**self._failures, _MOST_PATIENT)
        self._not_before_s = time.monotonic() + longer * self._patience.again_s


@dataclass
class _Known:
    """What the child has told so far; it repeats nothing."""

    names: tuple[str, ...] = ("gpu.devices",)
    absent: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[Mapping[str, object], ...] = ()
    capabilities: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    quality: str = "unavailable"
    system: Mapping[str, object] = field(default_factory=dict)

    def learn(self, news: Mapping[str, Any]) -> None:
        """Take in what has changed."""
        self.names = tuple(news.get("names", self.names))
        self.absent = news.get("absent", self.absent)
        self.devices = tuple(news.get("devices", self.devices))
        self.capabilities = news.get("capabilities", self.capabilities)
        self.quality = news.get("quality", self.quality)
        self.system = news.get("system", self.system)


def _label(device: Mapping[str, object]) -> str:
    return str(device.get("name") or device["uuid"])


def _refused(calls: Mapping[str, str]) -> str:
    """Return what is not told, by reason; empty where everything is."""
    by_reason: dict[str, list[str]] = {}
    for call, word in calls.items():
        if word != "ok":
            by_reason.setdefault(word, []).append(call)
    return "; ".join(f"{', '.join(refused)} ({word})" for word, refused in by_reason.items())


@dataclass(frozen=True)
class Told:
    """What a line of the child says: values in the order of their names, and what has changed."""

    values: list[Any]
    news: Mapping[str, Any]


def parse(line: bytes) -> Told | str:
    """Return what a line says, or the reason for which the child could not go on."""
    try:
        told = json.loads(line)
        if "error" in told:
            return str(told["error"])
        return Told(list(told["values"]), dict(told.get("news", {})))
    except (ValueError, TypeError, KeyError):
        return "the process that asks NVML gave an answer that is none"


def library_is_there(env: Mapping[str, str], root: Path = Path("/")) -> bool:
    """Return whether the loader would find NVML, without loading it: that alone can crash."""
    folders = [Path(part) for part in env.get("LD_LIBRARY_PATH", "").split(":") if part]
    folders += [root / "usr/lib", root / "usr/lib64", root / "lib", root / "lib64"]
    folders.append(root / WSL_FOLDER)
    if any((folder / LIBRARY).exists() for folder in folders):
        return True
    try:
        cache = (root / "etc/ld.so.cache").read_bytes()
    except OSError:
        return False
    return f"{LIBRARY}\0".encode() in cache


def with_wsl(env: Mapping[str, str], root: Path = Path("/")) -> Mapping[str, str]:
    """Return `env` with WSL's folder of libraries on the loader's path, where there is one."""
    folder = root / WSL_FOLDER
    if not (folder / LIBRARY).exists():
        return env
    path = ":".join(filter(None, [env.get("LD_LIBRARY_PATH"), str(folder)]))
    return {**env, "LD_LIBRARY_PATH": path}


class _EndedError(Exception):
    """The child has ended; the text says how."""


@dataclass(frozen=True)
class _Reply:
    """A line of the child's, how long ago it was asked for, and whether in this very read."""

    line: bytes
    age_s: float
    was_waited_for: bool


class _Child:
    """The process that asks NVML, and the question it still owes an answer to."""

    def __init__(self, env: Mapping[str, str], arguments: Sequence[str]) -> None:
        path = os.pathsep.join(filter(None, [str(_PACKAGE_PARENT), env.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [*program("edgeagent.probes.nvml_child"), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env={**env, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for the agent, which then ends its child in order
        )
        self._waiting = select.poll()  # `select` is blind to numbers above 1023, which a load has
        if self._process.stdout is not None:
            self._waiting.register(self._process.stdout, select.POLLIN)
        self._received = b""
        self._asked_s: float | None = None
        self.answered = False

    def ask(self, pids: Sequence[int], patience_s: float) -> _Reply | None:
        """Return the answer; None when it is not there in time.

        While one is owed nothing new is asked; when it comes, it is what this call returns.
        Raises _EndedError.
        """
        owed = self._asked_s is not None
        if not owed:
            self._send(json.dumps(list(pids)))
        line = self._line(0.0 if owed else patience_s)
        if line is None:
            return None
        age_s = self.silent_s()
        self._asked_s = None
        self.answered = True
        return _Reply(line, age_s, was_waited_for=not owed)

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
            if pipe is None or not self._waiting.poll(left_s * 1000):
                return None
            piece = os.read(pipe.fileno(), 1 << 16)
            if not piece:
                raise _EndedError(self._last_words())
            self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _last_words(self) -> str:
        status = self._process.wait()
        if status < 0:
            return f"NVML crashed its process (signal {-status})"
        return f"the process that asks NVML ended with status {status}"
