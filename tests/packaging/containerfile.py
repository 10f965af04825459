"""What does a Containerfile say, and what does it make of a root file system?

Not a container engine: stages, COPY, RUN, ENV, USER and the words of a start, as far as ours uses
them. What it does not know is an error, so that nothing is passed over.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_OF_AN_IMAGE = frozenset({"VOLUME", "WORKDIR", "USER", "STOPSIGNAL", "ENTRYPOINT", "CMD"})
_KNOWN = frozenset({"ARG", "FROM", "COPY", "RUN", "ENV", "HEALTHCHECK"}) | _OF_AN_IMAGE


@dataclass(frozen=True)
class Instruction:
    word: str
    text: str
    """All that follows the word, on one line."""


def instructions(text: str) -> Iterator[Instruction]:
    """Each instruction with its continued lines; comments are left out."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for joined in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        if joined.strip():
            word, _, rest = joined.strip().partition(" ")
            assert word in _KNOWN, f"{word} is not known here"
            yield Instruction(word, rest.strip())


@dataclass(frozen=True)
class Copied:
    sources: tuple[str, ...]
    target: str
    stage: str | None
    """None: from the checkout."""


def copied(instruction: Instruction) -> Copied:
    words = instruction.text.split()
    stage = None
    if words[0].startswith("--from="):
        stage = words.pop(0).removeprefix("--from=")
    assert not words[0].startswith("--"), words
    return Copied(tuple(words[:-1]), words[-1], stage)


@dataclass
class Image:
    """A root, and how a container of it is started."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    words: dict[str, list[str]] = field(default_factory=dict)
    """ENTRYPOINT, CMD, HEALTHCHECK, VOLUME, and of the others the one word."""


_INSIDE = """
mount --bind /dev "$1/dev"
mount -t proc proc "$1/proc"
exec chroot "$1" /bin/sh -ec "$2"
"""

Unpack = Callable[[str, Path], None]
"""Puts the base image that is named into a folder."""


class Builder:
    """Makes the stages of a Containerfile, one after the other, in folders below `work`."""

    def __init__(self, context: Path, work: Path, unpack: Unpack, given: Mapping[str, str]) -> None:
        self._context, self._work, self._unpack = context, work, unpack
        self._given = dict(given)
        self._stages: dict[str, Image] = {}

    def build(self, text: str) -> Image:
        """Carry out every instruction; the last stage."""
        image = Image(self._work)
        for instruction in instructions(text):
            if instruction.word == "FROM":
                image = self._begin(instruction.text)
            else:
                self._carry_out(image, instruction)
        return image

    def _begin(self, text: str) -> Image:
        base, _, name = self._filled(text).partition(" AS ")
        root = self._work / (name or "final")
        root.mkdir()
        self._unpack(base, root)
        self._stages[name] = Image(root)
        return self._stages[name]

    def _filled(self, text: str) -> str:
        return re.sub(r"\$\{(\w+)\}", lambda found: self._given[found[1]], text)

    def _carry_out(self, image: Image, instruction: Instruction) -> None:
        word, text = instruction.word, instruction.text
        if word == "ARG":
            name, _, default = text.partition("=")
            assert default or name in self._given, name
            self._given.setdefault(name, default)
        elif word == "COPY":
            self._copy(image, copied(instruction))
        elif word == "RUN":
            own = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", _INSIDE, "run"]
            subprocess.run([*own, image.root, text], check=True)
        elif word == "ENV":
            image.environment |= dict(part.split("=", 1) for part in shlex.split(text))
        elif word == "HEALTHCHECK":
            image.words[word] = json.loads(text.split(" CMD ")[1])
        else:
            image.words[word] = json.loads(text) if text.startswith("[") else [text]

    def _copy(self, image: Image, what: Copied) -> None:
        base = self._context if what.stage is None else self._stages[what.stage].root
        target = image.root / what.target.lstrip("/")
        for source in what.sources:
            found = sorted(base.glob(self._filled(source).lstrip("/")))
            assert found, f"COPY {source}: there is none"
            for path in found:
                into = target / path.name if what.target.endswith("/") else target
                into.parent.mkdir(parents=True, exist_ok=True)
                if path.is_dir():
                    shutil.copytree(path, into, dirs_exist_ok=True, symlinks=True)
                else:
                    shutil.copy2(path, into)
                os.chown(into, 0, 0)
