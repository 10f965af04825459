"""Which processes on this box are engines, and which belong to them?

Names and parents come from /proc without any library. Of a command line only what tells engines
apart is kept (model and port): the rest may hold keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

EngineName = Literal["llamacpp", "vllm"]

_MODEL_FLAGS = {"llamacpp": ("-m", "--model"), "vllm": ("--model",)}


@dataclass(frozen=True)
class Process:
    """A process, as far as it matters here."""

    pid: int
    parent: int
    name: str
    argv: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunningEngine:
    """An engine that somebody has started, with every process of its tree."""

    kind: EngineName
    pids: tuple[int, ...]
    """Its processes, the first of them first."""
    model: str | None
    port: int | None


def scan(proc: Path) -> tuple[Process, ...]:
    """Return every process listed below `proc`; one that ends meanwhile is left out."""
    found = (_read(folder) for folder in proc.glob("[0-9]*"))
    return tuple(sorted((one for one in found if one), key=lambda one: one.pid))


def _read(folder: Path) -> Process | None:
    try:
        stat = (folder / "stat").read_text("utf-8", "replace")
    except OSError:
        return None
    try:
        cmdline = (folder / "cmdline").read_bytes()
    except OSError:
        cmdline = b""
    return parse(stat, cmdline)


def parse(stat: str, cmdline: bytes) -> Process | None:
    """Return the process of a `stat` line; the name in it may hold spaces and parentheses."""
    opening, closing = stat.find("("), stat.rfind(")")
    rest = stat[closing + 1 :].split()
    if not 0 < opening < closing or len(rest) < 2:  # noqa: PLR2004  # because state and parent follow
        return None
    try:
        pid, parent = int(stat[:opening]), int(rest[1])
    except ValueError:
        return None
    argv = tuple(part.decode("utf-8", "replace") for part in cmdline.split(b"\0") if part)
    return Process(pid, parent, stat[opening + 1 : closing], argv)


def tree(processes: Iterable[Process], pid: int) -> tuple[int, ...]:
    """Return `pid` and every descendant of it, as far as they are listed."""
    children: dict[int, list[int]] = {}
    listed = set()
    for process in processes:
        listed.add(process.pid)
        children.setdefault(process.parent, []).append(process.pid)
    found: list[int] = []
    waiting = [pid] if pid in listed else []
    while waiting:
        one = waiting.pop(0)
        if one not in found:
            found.append(one)
            waiting += sorted(children.get(one, ()))
    return tuple(found)


def engines(processes: Sequence[Process]) -> tuple[RunningEngine, ...]:
    """Return the engines among them; a process that an engine has started is part of it."""
    kinds = {one.pid: kind for one in processes if (kind := engine_kind(one)) is not None}
    parents = {one.pid: one.parent for one in processes}
    return tuple(
        RunningEngine(
            kind=kinds[one.pid],
            pids=tree(processes, one.pid),
            model=_model(kinds[one.pid], one.argv),
            port=_port(one.argv),
        )
        for one in processes
        if one.pid in kinds and not _within(one.pid, kinds, parents)
    )


def _within(pid: int, kinds: dict[int, EngineName], parents: dict[int, int]) -> bool:
    """Whether one of its ancestors is an engine."""
    seen = {pid}
    parent = parents.get(pid)
    while parent is not None and parent not in seen:
        if parent in kinds:
            return True
        seen.add(parent)
        parent = parents.get(parent)
    return False


def engine_kind(process: Process) -> EngineName | None:
    """Return which engine a process is, by its program, or by the script or module it runs."""
    program = _base(process.argv[0]) if process.argv else process.name
    if program == "llama-server" or process.name == "llama-server":
        return "llamacpp"
    if program == "vllm" or process.name.lower().startswith("vllm"):
        return "vllm"
    if program.startswith("python") and _python_runs_vllm(process.argv[1:]):
        return "vllm"
    return None


def _python_runs_vllm(arguments: Sequence[str]) -> bool:
    for index, word in enumerate(arguments):
        if word == "-m":
            following = arguments[index + 1 : index + 2]
            return bool(following) and following[0].split(".")[0] == "vllm"
        if not word.startswith("-"):
            return _base(word) == "vllm"
    return False


def _model(kind: EngineName, argv: Sequence[str]) -> str | None:
    named = _option(argv, _MODEL_FLAGS[kind])
    if named is None and "serve" in argv:
        after = argv[argv.index("serve") + 1 :]
        named = next((word for word in after[:1] if not word.startswith("-")), None)
    return named


def _port(argv: Sequence[str]) -> int | None:
    text = _option(argv, ("--port",))
    return int(text) if text is not None and text.isdecimal() else None


def _option(argv: Sequence[str], names: Sequence[str]) -> str | None:
    for index, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else next(iter(argv[index + 1 : index + 2]), None)
    return None


def _base(path: str) -> str:
    return path.rpartition("/")[2]
