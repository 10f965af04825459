"""What must not stand in a bug report, and how is it kept out?

Nothing of ours prints a secret. But programs are asked, errors are repeated, and a configuration
may hold what it should not: so whatever the doctor says is gone through once more, at the very end,
for every secret that this box is known to have and for what looks like one anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from edgeagent.config import toml
from edgeagent.settings import Settings
from edgeagent.settings_faults import is_secret
from edgeagent.settings_keys import FileKey, field_at

HIDDEN = "(not shown)"
SHORTEST = 4
"""A secret with fewer letters is in every text, and none to speak of."""
_LONGEST_FILE = 65_536
_NOT_TEXT = frozenset({"schema", "name", "state", "severity", "worst"})
_ENVIRON = re.compile(
    r"secret|token|passw|passphrase|credential|(api|access|private)_?key", re.IGNORECASE
)
_PATTERNS = (
    (
        re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*-----|\Z)", re.DOTALL),
        HIDDEN,
    ),
    (re.compile(r"(?<=://)[^\s/@]+@"), f"{HIDDEN}@"),
    (re.compile(r"(?i)\b(bearer|basic) [A-Za-z0-9._~+/=-]{8,}"), rf"\1 {HIDDEN}"),
    (
        re.compile(
            r"(?i)\b([a-z0-9_-]*(?:password|passwd|passphrase|secret|token|api[-_]?key))"
            r"(=|\": ?\"|' ?: ?')[^\s\"'&,;]+"
        ),
        rf"\1\2{HIDDEN}",
    ),
    (re.compile(r"(?i)(--[a-z-]*(?:password|secret|token|api-key)) [^\s\"'-]\S*"), rf"\1 {HIDDEN}"),
)
_LINE = re.compile(r"^\s*(?:[\w.\"-]+\.)?\"?([\w-]+)\"?\s*=\s*(.*?)\s*$", re.MULTILINE)


def known_secrets(
    settings: Settings, files: Iterable[Path], environ: Mapping[str, str]
) -> frozenset[str]:
    """Return every secret that this box is known to have, as far as this user can read it."""
    found = {
        *_in_named_files(settings),
        *(value for name, value in environ.items() if _ENVIRON.search(name)),
        *_in_values(settings),
    }
    for path in files:
        found.update(_in_text(_read(path)))
    return frozenset(word for word in found if len(word) >= SHORTEST)


def redacted(value: Any, secrets: frozenset[str]) -> Any:
    """Return a JSON value in which no text holds a secret; its structure stays."""
    longest_first = sorted(secrets, key=len, reverse=True)
    return _walk(value, longest_first)


def _walk(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, Mapping):
        return {
            key: below if key in _NOT_TEXT else _walk(below, secrets)
            for key, below in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_walk(below, secrets) for below in value]
    return clean(value, secrets) if isinstance(value, str) else value


def clean(text: str, secrets: Iterable[str]) -> str:
    """Return the text without them, and without what looks like one."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text


def _in_named_files(settings: Settings) -> Iterator[str]:
    for path, value in settings.values():
        key = field_at(path)
        marks = key.metadata if key else ()
        secret = any(isinstance(mark, FileKey) and mark.kind == "secret" for mark in marks)
        if value and (secret or path[-1] == "api_key_file"):
            yield from _pieces(_read(Path(str(value))))


def _pieces(text: str) -> Iterator[str]:
    """Return a secret file as a whole and line by line; what frames a key is no secret."""
    yield text.strip()
    for line in text.splitlines():
        if line.strip() and not line.startswith("-----"):
            yield line.strip()


def _in_values(settings: Settings) -> Iterator[str]:
    """Return what stands in an engine's environment or arguments, and in URLs."""
    for path, value in settings.values():
        if "env" in path[:-1] and is_secret(path[-1]):
            yield str(value)
        if isinstance(value, Mapping) and path[-1] == "env":
            yield from (str(held) for name, held in value.items() if is_secret(str(name)))
        if isinstance(value, list) and path[-1] in ("args", "command"):
            yield from _in_words([str(word) for word in value])


def _in_words(words: list[str]) -> Iterator[str]:
    previous = ""
    for word in words:
        name, equals, held = word.partition("=")
        if equals and is_secret(name.lstrip("-")):
            yield held
        elif previous.startswith("-") and is_secret(previous.lstrip("-")):
            yield word
        previous = word


def _in_text(text: str) -> Iterator[str]:
    """Return what a configuration file gives for keys whose names are those of secrets."""
    for name, value in _LINE.findall(text):
        if is_secret(name):
            yield value.strip("\"'")
    try:
        yield from _in_document(toml(text))
    except ValueError:
        return


def _in_document(document: Mapping[str, Any]) -> Iterator[str]:
    for name, value in document.items():
        if isinstance(value, Mapping):
            yield from _in_document(value)
        elif is_secret(name):
            yield str(value)
        elif isinstance(value, list) and name in ("args", "command"):
            yield from _in_words([str(word) for word in value])
        elif isinstance(value, str) and "://" in value and "@" in value:
            user = value.partition("://")[2].rpartition("@")[0]
            yield from (user, user.partition(":")[2])


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_LONGEST_FILE).decode("utf-8", "replace")
    except OSError:
        return ""
