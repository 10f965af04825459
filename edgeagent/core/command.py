"""How was something asked for on a command line, told without its secrets?

Hidden are the values of options whose names say that they hold a key, a token or a password,
wherever in a word they stand (`--engine-arg llamacpp=--api-key=…`), and what URLs carry of these.
Names of files are shown: a secret stays in its file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

HIDDEN = "***"

_NAME = r"(?:[\w-]*[-_.])?(?:api-?_?key|token|passw(?:or)?d|secret)"
_WITH_VALUE = re.compile(rf"((?:^|[=?&;])-{{0,2}}{_NAME}=)[^&;]*", re.IGNORECASE)
_ALONE = re.compile(rf"(?:^|=)-{{1,2}}{_NAME}$", re.IGNORECASE)
_IN_URL = re.compile(r"(\w[\w+.-]*://)[^/?#\s]*@")
_CARRIER = "--engine-arg"
"""Its value is a word of somebody else's command line: KIND=WORD."""


def without_secrets(argv: Sequence[str]) -> tuple[str, ...]:
    """The same words, each secret replaced by `***`."""
    shown: list[str] = []
    secret_next = False
    for word in argv:
        if secret_next and word != _CARRIER:
            shown.append(_hidden(word, of_carrier=_is_carried(word, shown)))
            secret_next = False
            continue
        shown.append(_IN_URL.sub(rf"\1{HIDDEN}@", _WITH_VALUE.sub(rf"\1{HIDDEN}", word)))
        secret_next = secret_next or _ALONE.search(word) is not None
    return tuple(shown)


def environment_without_secrets(env: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Variables by name; the value of one whose name has a word for a secret is `***`."""
    return {
        name: HIDDEN
        if _SECRETS & {*name.upper().split("_")}
        else _IN_URL.sub(rf"\1{HIDDEN}@", value)
        for name, value in env
    }


_SECRETS = frozenset(
    ("KEY", "APIKEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIALS")
)


def _is_carried(word: str, before: Sequence[str]) -> bool:
    return word.startswith(f"{_CARRIER}=") or (bool(before) and before[-1] == _CARRIER)


def _hidden(word: str, *, of_carrier: bool) -> str:
    """A whole word hidden; of one that is handed on, who it is for is kept."""
    if not of_carrier:
        return HIDDEN
    kept = "=".join(word.split("=")[: 2 if word.startswith(_CARRIER) else 1])
    return f"{kept}={HIDDEN}"
