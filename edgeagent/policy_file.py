"""What does the policy file of this box say, and may it be believed?

The file is the owner's word against the plant's, so it counts only when nobody but root can have
written it. Every fault in it is reported at once, each with its key; a file with a fault allows
nothing at all.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import stat
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from edgeagent.core.policy import (
    DAYS,
    KNOBS,
    OPERATIONS,
    Bounds,
    Day,
    Guards,
    Knob,
    Operation,
    Policy,
    Window,
)
from edgeagent.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # the same code under its older name

DEFAULT_PATH = Path("/etc/edgeagent/commands.toml")
_MOST_BYTES = 64 * 1024
_MB = 1_000_000


@dataclass(frozen=True)
class PolicyFile:
    """A policy and the SHA-256 of the file that it came from, as hex, for the status message."""

    policy: Policy
    sha256: str


# -------------------------------------------------------------------------------------- the keys


def _once(values: list[Any]) -> list[Any]:
    if len(set(values)) < len(values):
        raise ValueError("name each one once")
    return values


_CLOCK = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])|24:00")


def _clock(text: str) -> str:
    if not _CLOCK.fullmatch(text):
        raise ValueError('write a time of day like "22:30", up to "24:00"')
    return text


_Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
_Issuer = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
_Unit = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9:_.@-]{0,200}\.service$")]
_Time = Annotated[str, AfterValidator(_clock)]
_Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
_Seconds = Annotated[int, Field(ge=0, le=10 * 365 * 86_400)]
_Bound = Annotated[int, Field(ge=0, le=10_000_000)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Bounds(_Strict):
    min: _Bound
    max: _Bound
    count: Annotated[int, Field(ge=1, le=32)] = 8

    @model_validator(mode="after")
    def _in_order(self) -> _Bounds:
        if self.max < self.min:
            raise ValueError("max is less than min")
        return self


class _AllBounds(_Strict):
    concurrency: _Bounds | None = None
    requests: _Bounds | None = None
    seconds: _Bounds | None = None
    repeats: _Bounds | None = None
    output_tokens: _Bounds | None = None
    prompt_tokens: _Bounds | None = None
    prefix_tokens: _Bounds | None = None
    context: _Bounds | None = None
    memory_slots: _Bounds | None = None


class _Window(_Strict):
    days: Annotated[list[Day], Field(min_length=1), AfterValidator(_once)] = list(DAYS)
    begin: _Time = Field(alias="from")
    end: _Time = Field(alias="to")


class _Guards(_Strict):
    max_foreign_gpu: _Share | None = None
    max_foreign_cpu: _Share | None = None
    max_production_requests: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    max_temperature_c: Annotated[float, Field(ge=-40, le=150, allow_inf_nan=False)] | None = None
    min_available_mb: Annotated[int, Field(ge=0, le=100_000_000)] | None = None


class _File(_Strict):
    operations: Annotated[list[Operation], AfterValidator(_once)] = []
    profiles: Annotated[list[_Name], AfterValidator(_once)] = []
    issuers: Annotated[list[_Issuer], AfterValidator(_once)] = []
    max_runs_per_day: Annotated[int, Field(ge=0, le=1000)] = 0
    cooldown_s: _Seconds = 3600
    max_duration_s: Annotated[int, Field(ge=60, le=7 * 86_400)] = 14_400
    when_busy: Literal["wait", "refuse"] = "wait"
    production_units: Annotated[list[_Unit], AfterValidator(_once)] = []
    bounds: _AllBounds = _AllBounds()
    windows: list[_Window] = []
    guards: _Guards = _Guards()

    @model_validator(mode="after")
    def _says_when(self) -> _File:
        if "sweep" in self.operations and not self.windows:
            raise ValueError(
                "operations has sweep, but there is no [[windows]] that says when: add one, from "
                '"00:00" to "24:00" if any time will do'
            )
        return self


# --------------------------------------------------------------------------------------- the file


def read_policy(path: Path, owners: Collection[int] = (0,)) -> PolicyFile:
    """The policy in the file, which one of `owners` (user ids) must own and nobody else may write.

    Raises ConfigError with all faults, one a line.
    """
    data = _trusted(path, owners)
    try:
        document = tomllib.loads(data.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not TOML ({error}): correct that line") from error
    try:
        keys = _File.model_validate(document)
    except ValidationError as error:
        raise ConfigError("\n".join(_sentences(path, error))) from error
    return PolicyFile(_policy(keys), hashlib.sha256(data).hexdigest())


def _trusted(path: Path, owners: Collection[int]) -> bytes:
    try:
        with path.open("rb") as file:
            # Asked of the open file, so that nothing can be put in its place in between.
            status = os.fstat(file.fileno())
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path} does not exist, but mqtt.commands is enabled: write a policy there (see "
            "configs/commands.toml), or set mqtt.commands.enabled = false"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror or error}): give a file that the agent may "
            "read"
        ) from error
    if fault := _distrusted(status, owners):
        raise ConfigError(f"{path} {fault}")
    if len(data) > _MOST_BYTES:
        raise ConfigError(f"{path} is longer than {_MOST_BYTES} bytes: a policy is shorter")
    return data


def _distrusted(status: os.stat_result, owners: Collection[int]) -> str | None:
    if not stat.S_ISREG(status.st_mode):
        return "is not a file: give a file"
    if status.st_uid not in owners:
        return (
            f"belongs to user {status.st_uid}, so it is not the word of this box's owner: "
            "chown root it"
        )
    if status.st_mode & 0o022:
        return (
            f"has mode {stat.S_IMODE(status.st_mode):04o}, so others than its owner can change it: "
            "chmod 0644 it"
        )
    return None


# ------------------------------------------------------------------------------------- the faults


def _sentences(path: Path, error: ValidationError) -> list[str]:
    return [_sentence(path, fault) for fault in error.errors(include_url=False)]


def _sentence(path: Path, fault: Any) -> str:
    place = _place(fault["loc"])
    if fault["type"] == "extra_forbidden":
        close = difflib.get_close_matches(str(fault["loc"][-1]), _known(fault["loc"]), n=1)
        hint = f", did you mean {close[0]}?" if close else ""
        return f"{path}: {place} is not a known key{hint}"
    value = fault["input"]
    shown = f" {value!r}" if isinstance(value, str | int | float) else ""
    message = fault["msg"].removeprefix("Value error, ").replace("Input should be", "should be")
    where = f"{place}:" if place else "policy:"
    return f"{path}: {where}{shown} {message[0].lower()}{message[1:]}{_suggestion(fault)}"


def _suggestion(fault: Any) -> str:
    """The word of a fixed list that was meant."""
    known: dict[str, Collection[str]] = {"operations": OPERATIONS, "days": DAYS}
    words = known.get(next((str(part) for part in fault["loc"][::-1] if part in known), ""), ())
    close = difflib.get_close_matches(str(fault["input"]), list(words), n=1)
    return f", did you mean {close[0]}?" if close else ""


def _place(loc: tuple[int | str, ...]) -> str:
    """Where in the file, with tables counted from 1: windows[2].from."""
    text = ""
    for part in loc:
        text += f"[{part + 1}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def _known(loc: tuple[int | str, ...]) -> list[str]:
    """The keys that would have been right in this place."""
    tables: dict[int | str, type[BaseModel]] = {"windows": _Window, "guards": _Guards}
    model: type[BaseModel] = tables.get(loc[0], _File) if len(loc) > 1 else _File
    if loc[0] == "bounds" and len(loc) > 1:
        model = _AllBounds if len(loc) == 2 else _Bounds  # noqa: PLR2004  # because bounds.KNOB
    return [field.alias or name for name, field in model.model_fields.items()]


# ------------------------------------------------------------------------------------- the policy


def _policy(keys: _File) -> Policy:
    return Policy(
        operations=tuple(keys.operations),
        profiles=tuple(keys.profiles),
        issuers=tuple(keys.issuers),
        bounds=_bounds(keys.bounds),
        windows=tuple(_window(window) for window in keys.windows),
        max_runs_per_day=keys.max_runs_per_day,
        cooldown_s=keys.cooldown_s,
        max_duration_s=keys.max_duration_s,
        when_busy=keys.when_busy,
        guards=_guards(keys.guards),
        production_units=tuple(keys.production_units),
    )


def _bounds(keys: _AllBounds) -> dict[Knob, Bounds]:
    found = ((knob, getattr(keys, knob)) for knob in KNOBS)
    return {knob: Bounds(bounds.min, bounds.max, bounds.count) for knob, bounds in found if bounds}


def _window(keys: _Window) -> Window:
    return Window(tuple(keys.days), _minute(keys.begin), _minute(keys.end))


def _minute(text: str) -> int:
    hours, minutes = text.split(":")
    return int(hours) * 60 + int(minutes)


def _guards(keys: _Guards) -> Guards:
    return Guards(
        most_foreign_gpu=keys.max_foreign_gpu,
        most_foreign_cpu=keys.max_foreign_cpu,
        most_production_requests=keys.max_production_requests,
        most_temperature_c=keys.max_temperature_c,
        least_available_bytes=None
        if keys.min_available_mb is None
        else keys.min_available_mb * _MB,
    )
