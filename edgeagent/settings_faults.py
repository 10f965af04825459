"""What is wrong with a configuration, said so that it can be corrected?

All faults are told at once: who corrects a file on a box behind three doors wants to go once.
A value is repeated only where it cannot be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from edgeagent.config import closest
from edgeagent.errors import ConfigError, UsageError
from edgeagent.settings_keys import KeyPath, field_at, keys, table_at

_SECRET = re.compile(
    r"(^|_)(password|passwd|passphrase|pass|pwd|secret|token|hmac_key|private_key|api_key|apikey)$"
)
_SHOWN = 60


@dataclass(frozen=True)
class Fault:
    """One thing to correct (or to know, when it is a warning): where, which key, and what."""

    where: str
    key: str
    text: str
    severity: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        """One line for the operator."""
        return " ".join(
            (": ".join(part for part in (self.where, self.key) if part), self.text)
        ).strip()


class SettingsError(ConfigError):
    """The configuration cannot be used; `faults` has every reason."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        if all(fault.where.startswith("--set ") for fault in self.faults):
            self.exit_status = UsageError.exit_status  # no file is wrong, only what was typed
        super().__init__(_told(self.faults))


def _told(faults: Sequence[Fault]) -> str:
    if len(faults) == 1:
        return str(faults[0])
    lines = "".join(f"\n  {fault}" for fault in faults)
    return f"the configuration has {len(faults)} faults:{lines}"


def is_secret(name: str) -> bool:
    """Whether a key of this name would hold a secret itself, and not name a file with it."""
    return bool(_SECRET.search(name.lower().replace("-", "_")))


def secret_advice(path: KeyPath) -> str:
    """What to do instead of writing a secret into a configuration."""
    name = path[-1].lower().replace("-", "_")
    wanted = (*path[:-1], f"{name}_file")
    named = ".".join(wanted) if field_at(wanted) else "the key that ends in _file"
    return (
        "is a secret, and a configuration holds none: put it into a file that only the service "
        f"may read, and name that file with {named}"
    )


def unknown(path: KeyPath, spelled: Callable[[KeyPath], str] = ".".join) -> str:
    """Why this key is refused, and which one was meant."""
    meant = _meant(path)
    return f"is not a known key{f', did you mean {spelled(meant)}?' if meant else ''}"


def _meant(path: KeyPath) -> KeyPath | None:
    """The same key in another table, a key of this table with nearly this name, or one anywhere."""
    elsewhere = [known for known, _ in keys() if known[-1] == path[-1]]
    if elsewhere:
        return elsewhere[0]
    table = table_at(path[:-1])
    near = closest(path[-1], list(table.model_fields)) if table else None
    if near:
        return (*path[:-1], near)
    anywhere = {".".join(known): known for known, _ in keys()}
    return anywhere.get(closest(".".join(path), list(anywhere)) or "")


def of_validation(
    errors: Iterable[Mapping[str, Any]], section: KeyPath
) -> list[tuple[KeyPath, str]]:
    """Key and text of each fault that the schema found below a section."""
    return [_of_one(error, section) for error in errors]


def _of_one(error: Mapping[str, Any], section: KeyPath) -> tuple[KeyPath, str]:
    path = (*section, *(str(part) for part in error["loc"] if not _internal(part)))
    if error["type"] == "extra_forbidden":
        return path, unknown(path)
    message = str(error["msg"]).removeprefix("Value error, ")
    message = message.replace("Input should be", "should be")
    message = message.replace("valid tuple", "list").replace("valid list", "list")
    if error["type"] == "is_instance_of":
        message = "should be the path of a file"
    if error["type"] in ("model_type", "model_attributes_type", "dict_type"):
        message = f"should be a table: write [{'.'.join(path)}] and its keys below it"
    return path, f"{message[0].lower()}{message[1:]}{_shown(error['input'])}"


def _internal(part: object) -> bool:
    return str(part).startswith("function-")


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return f", not {str(value).lower()}"
    if isinstance(value, str | int | float) and len(repr(value)) <= _SHOWN:
        return f", not {value!r}"
    return ""
