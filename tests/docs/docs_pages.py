"""What stands in the documentation: its pages, their code, and the command lines in it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOT_A_SHELL = {"text", "toml", "json", "python", "ini", "sql", "yaml", "nginx", "xml"}


@dataclass(frozen=True)
class Block:
    """Code of a page: `kind` is the word behind the fence, empty for indented code."""

    page: Path
    line: int
    kind: str
    text: str
    run: str | None = None
    """What `<!-- run: ... -->` before it says, where it is to be run."""


@dataclass(frozen=True)
class Line:
    """A command line of edgeagent, in words; `whole` is false where something is left out in it."""

    where: str
    words: tuple[str, ...]
    whole: bool


def pages() -> list[Path]:
    """Every page that a person reads: docs/, README, CONTRIBUTING."""
    top = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    return top + sorted((ROOT / "docs").rglob("*.md"))


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


_FENCE = re.compile(r"^(```+)\s*(\w*)[^\n]*\n(.*?)^\1\s*$", re.MULTILINE | re.DOTALL)
_RUN = re.compile(r"<!-- run: (.+?) -->\n\Z")
_INDENTED = re.compile(r"(?<=\n\n)((?: {4}.*\n|\n(?= {4}))+)")


def blocks(page: Path) -> list[Block]:
    """The code of a page, fenced and indented, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for fence in _FENCE.finditer(text):
        mark = _RUN.search(text[: fence.start()])
        line = text.count("\n", 0, fence.start()) + 1
        found.append(Block(page, line, fence[2], fence[3], mark[1] if mark else None))
    rest = _FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), text)
    found += [
        Block(page, rest.count("\n", 0, code.start()) + 1, "", code[1])
        for code in _INDENTED.finditer(rest)
    ]
    return sorted(found, key=lambda block: block.line)


def lines_of_code(page: Path) -> Iterator[Line]:
    """Every command line of edgeagent in the code of a page."""
    for block in blocks(page):
        if block.kind in NOT_A_SHELL:
            continue
        text = re.sub(r"\\\n\s*", " ", block.text)
        for number, line in enumerate(text.splitlines()):
            yield from _commands(line.strip(), f"{name(page)}:{block.line + number}")


def lines_of_prose(page: Path) -> Iterator[Line]:
    """Every command that is named in a sentence: seldom whole, so its names are what counts."""
    text = page.read_text(encoding="utf-8")
    text = _FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), text)
    for code in re.finditer(r"`(edgeagent [^`]+)`", text):
        where = f"{name(page)}:{text.count(chr(10), 0, code.start()) + 1}"
        words = re.sub(r"[\[\]]", " ", code[1]).split()
        yield Line(where, _without_rest(tuple(words[1:])), whole=False)


def _commands(line: str, where: str) -> Iterator[Line]:
    for words in _split(line):
        arguments = _arguments(words)
        if arguments is not None:
            whole = not any("..." in word or "…" in word for word in arguments)
            yield Line(where, _without_rest(arguments), whole)


def _arguments(words: list[str]) -> tuple[str, ...] | None:
    """What edgeagent is given; None where another program is started."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if re.fullmatch(r"(\S*/)?edgeagent", word):
            return tuple(rest)
        if word in ("-u", "-n"):
            rest = rest[1:]  # whose name, how nice
        elif word not in ("$", "sudo", "nice") and not re.match(r"[A-Z_]+=", word):
            return None
    return None


def _without_rest(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word for word in words if word not in ("...", "…"))


def _split(line: str) -> Iterator[list[str]]:
    """The commands of a line, each in words; none for what is no shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";|&<>")
    lexer.commenters = "#"
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        for token in lexer:
            if set(token) <= set(";|&"):
                yield words
                words = []
            else:
                words.append(token)
    except ValueError:
        return
    if words:
        yield words
