"""Who says what: which files, variables and options make the configuration, in which order?

    built in < /usr/lib/edgeagent/defaults.toml < /etc/edgeagent/edgeagent.toml
             < /etc/edgeagent/conf.d/*.toml by name < ~/.config/edgeagent/edgeagent.toml
             < EDGEAGENT_SECTION__KEY < --set section.key=value

Tables are merged, everything else replaces what stood there. Each layer is read on its own and
says of every key on which line it stands, so that a fault (and `config show --origin`) can name
it. An ordinary user has a file of their own on top, and a state folder of their own: where the
service keeps its files is not for them, so those keys of the system's files are left out.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from edgeagent.config import toml, why
from edgeagent.errors import UsageError
from edgeagent.settings_faults import Fault, is_secret, secret_advice, unknown
from edgeagent.settings_keys import FileKey, KeyPath, field_at, keys

PREFIX = "EDGEAGENT_"
CREDENTIAL = "credential:"
_DRAFT = "draft:"
_LONGEST_STATEMENT = 500
SERVICE_ONLY: frozenset[KeyPath] = frozenset(
    {("agent", "state_dir"), ("agent", "runs_dir"), ("mqtt", "spool", "path")}
)
_OTHERS_MAY_WRITE = 0o002
_BOOLEANS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


@dataclass(frozen=True)
class Surroundings:
    """What the configuration depends on besides itself."""

    environment: Mapping[str, str]
    host_name: str
    home: Path
    working_dir: Path
    scope: Literal["system", "user"] = "system"
    root: Path = Path("/")

    def credential(self, name: str) -> Path:
        """Where systemd puts a credential: for us, or for the service when we are not it."""
        folder = self.environment.get("CREDENTIALS_DIRECTORY")
        return Path(folder or "/run/credentials/edgeagent.service") / name

    def state_dir(self) -> Path:
        """Where the agent's state belongs when nobody says otherwise."""
        if self.scope == "system":
            return Path("/var/lib/edgeagent")
        folder = self.environment.get("XDG_STATE_HOME")
        return (Path(folder) if folder else self.home / ".local/state") / "edgeagent"

    def user_file(self) -> Path:
        """An ordinary user's own configuration."""
        folder = self.environment.get("XDG_CONFIG_HOME")
        return (Path(folder) if folder else self.home / ".config") / "edgeagent/edgeagent.toml"


@dataclass(frozen=True)
class Source:
    """One file, the environment or the options: what it says, and where each key stands in it."""

    document: dict[str, Any]
    where: str
    folder: Path
    whose: Literal["system", "user", "given"] = "given"
    origins: Mapping[KeyPath, str] = field(default_factory=dict)

    def origin(self, path: KeyPath) -> str:
        """The line of the key, of the table it stands in, or the source alone."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.origins:
                return self.origins[path[:end]]
        return self.where


@dataclass
class Reading:
    """The layers as they come in, and what is wrong with them."""

    here: Surroundings
    document: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, str] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def put(self, source: Source) -> None:
        """Lay what a source says over what is there; what no configuration may say stays out."""
        self._drop_secrets(source)
        if source.whose == "system" and self.here.scope == "user":
            for path in SERVICE_ONLY:
                _drop(source.document, path)
        self._place_files(source)
        for path, value in _walk(source.document):
            if not isinstance(value, dict):
                self._forget_below(path)
            self.origins[path] = source.origin(path)
        _merge(self.document, source.document)

    def _forget_below(self, path: KeyPath) -> None:
        for known in [known for known in self.origins if known[: len(path)] == path]:
            del self.origins[known]

    def _drop_secrets(self, source: Source) -> None:
        for path, _ in list(_walk(source.document)):
            if is_secret(path[-1]) and not field_at(path) and "env" not in path[:-1]:
                origin = source.origin(path)
                self.faults.append(Fault(origin, ".".join(path), secret_advice(path)))
                _drop(source.document, path)

    def _place_files(self, source: Source) -> None:
        for path, value in list(_walk(source.document)):
            for place, text in _file_names(path, value, source.document):
                try:
                    placed = self._placed(text, source.folder)
                except ValueError as error:
                    self.faults.append(Fault(source.origin(path), ".".join(path), str(error)))
                    continue
                place(placed)

    def _placed(self, text: str, folder: Path) -> str:
        if not text or text.startswith("{state_dir}"):
            return text
        if text.startswith(CREDENTIAL):
            name = text.removeprefix(CREDENTIAL)
            if not name or "/" in name:
                raise ValueError(f"names no credential: write {CREDENTIAL}NAME, as the unit has it")
            return str(self.here.credential(name))
        if text == "~" or text.startswith("~/"):
            return str(self.here.home / text[2:])
        return str(folder / text)

    def origin(self, path: KeyPath) -> str:
        """Where the key, or the table it stands in, was said; "default" where it was not."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.origins:
                return self.origins[path[:end]]
        return "default"


def _walk(document: Mapping[str, Any], path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Every table and every value, tables before what they hold."""
    for name, value in document.items():
        yield (*path, name), value
        if isinstance(value, dict):
            yield from _walk(value, (*path, name))


def _table(document: dict[str, Any], path: KeyPath) -> dict[str, Any] | None:
    for name in path:
        below = document.get(name)
        if not isinstance(below, dict):
            return None
        document = below
    return document


def _drop(document: dict[str, Any], path: KeyPath) -> None:
    table = _table(document, path[:-1])
    if table is not None:
        table.pop(path[-1], None)


def _merge(into: dict[str, Any], above: Mapping[str, Any]) -> None:
    for name, value in above.items():
        if isinstance(value, dict):
            if not isinstance(into.get(name), dict):
                into[name] = {}
            _merge(into[name], value)
        else:
            into[name] = value


_Place = Callable[[str], None]


def _file_names(
    path: KeyPath, value: object, document: dict[str, Any]
) -> Iterator[tuple[_Place, str]]:
    """The file names in this value, each with what puts another one in its place."""
    key = field_at(path)
    table = _table(document, path[:-1])
    if key is None or table is None:
        return
    name = path[-1]
    if isinstance(value, str) and (
        any(isinstance(mark, FileKey) for mark in key.metadata) or _plan_file(name, value, table)
    ):
        yield partial(table.__setitem__, name), value
    if name == "command" and isinstance(value, list) and value and _has_folder(value[0]):
        yield partial(value.__setitem__, 0), value[0]
    if name == "speculation":
        words: list[Any] = value if isinstance(value, list) else [value]
        table[name] = words
        for index, word in enumerate(words):
            if isinstance(word, str) and word.startswith(_DRAFT):
                yield partial(_put_draft, words, index), word.removeprefix(_DRAFT)


def _put_draft(words: list[str], index: int, path: str) -> None:
    words[index] = _DRAFT + path


def _plan_file(name: str, value: str, table: Mapping[str, Any]) -> bool:
    """Whether a key of a plan's table names a file: a program without a folder is looked up."""
    if name == "binary":
        return _has_folder(value)
    if name == "model":  # of a server that runs already it is a name
        return not table.get("url") and table.get("kind") != "openai"
    return name in ("prompts", "api_key_file", "cacert")


def _has_folder(value: object) -> bool:
    return isinstance(value, str) and "/" in value


# ------------------------------------------------------------------------------------------- files


def read_files(reading: Reading, given: Path | None) -> None:
    """Lay the chain of files, or the one file that was given in its place."""
    here = reading.here
    if given is not None:
        _read_file(reading, here.working_dir / given, "given")
        return
    for path in _system_files(reading):
        _read_file(reading, path, "system")
    if here.scope == "user" and os.path.lexists(here.user_file()):
        _read_file(reading, here.user_file(), "user")


def _system_files(reading: Reading) -> list[Path]:
    etc = reading.here.root / "etc/edgeagent"
    single = [reading.here.root / "usr/lib/edgeagent/defaults.toml", etc / "edgeagent.toml"]
    drop_ins: list[Path] = []
    try:
        drop_ins = sorted(path for path in (etc / "conf.d").iterdir() if path.suffix == ".toml")
    except FileNotFoundError:
        pass  # most boxes have none
    except OSError as error:
        text = f"cannot be read ({why(error)}): make it a folder that everybody may read"
        reading.faults.append(Fault(f"{etc}/conf.d", "", text))
    return [path for path in single if os.path.lexists(path)] + drop_ins


def _read_file(reading: Reading, path: Path, whose: Literal["system", "user", "given"]) -> None:
    where = str(path)
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors open a file with a mark
        document = _document(text, path.stat().st_mode)
    except FileNotFoundError:
        reading.faults.append(Fault(where, "", "does not exist: give a file that does"))
    except (OSError, UnicodeDecodeError) as error:
        advice = "make it a text file that this user may read"
        reading.faults.append(Fault(where, "", f"cannot be read ({why(error)}): {advice}"))
    except ValueError as error:
        reading.faults.append(Fault(where, "", str(error)))
    else:
        reading.files.append(path)
        origins = {key: f"{where}:{line}" for key, line in lines_of(text).items()}
        reading.put(Source(document, where, path.parent, whose, origins))


def _document(text: str, mode: int) -> dict[str, Any]:
    if stat.S_ISREG(mode) and mode & _OTHERS_MAY_WRITE:
        raise ValueError("may be written by everybody: chmod o-w it")
    try:
        return toml(text)
    except ValueError as error:
        raise ValueError(f"is not TOML ({error}): correct that line") from error


def lines_of(text: str) -> dict[KeyPath, int]:
    """On which line does each table and key stand? The text is known to be TOML.

    A statement is as many lines as it takes to be TOML on its own; that way there is no second
    reader of TOML here that could understand a key differently.
    """
    found: dict[KeyPath, int] = {}
    lines = text.split("\n")
    table: KeyPath = ()
    at = 0
    while at < len(lines):
        words = lines[at].strip()
        if not words or words.startswith("#"):
            at += 1
            continue
        statement, end = _statement(lines, at)
        if words.startswith("["):
            table = _header(statement)
            found.setdefault(table, at + 1)
        else:
            for path, _ in _walk(statement):
                found.setdefault((*table, *path), at + 1)
        at = end
    return found


def _statement(lines: Sequence[str], at: int) -> tuple[dict[str, Any], int]:
    for end in range(at + 1, min(len(lines), at + _LONGEST_STATEMENT) + 1):
        try:
            return toml("\n".join(lines[at:end])), end
        except ValueError:
            continue
    return {}, len(lines)  # its lines stay unknown, the file's name does not


def _header(statement: object) -> KeyPath:
    path: list[str] = []
    while isinstance(statement, dict) and statement:
        name, statement = next(iter(statement.items()))
        path.append(name)
        if isinstance(statement, list):
            statement = statement[-1]
    return tuple(path)


# ------------------------------------------------------------------------- environment and options


def read_environment(reading: Reading) -> None:
    """Lay what EDGEAGENT_SECTION__KEY says over it.

    A variable that is no key is a warning, not a fault: environments are inherited, and an older
    unit should not keep a newer agent from starting.
    """
    for name, text in sorted(reading.here.environment.items()):
        if not name.startswith(PREFIX):
            continue
        path = tuple(name.removeprefix(PREFIX).lower().split("__"))
        if len(path) < 2:  # noqa: PLR2004  # because a setting has a section and a key
            _warn_of_single_underscore(reading, name)
        elif field_at(path) or is_secret(path[-1]):
            reading.put(_one_key(path, text, name, reading.here))
        else:
            reading.faults.append(Fault(name, "", unknown(path, _variable), "warning"))


def _variable(path: KeyPath) -> str:
    return PREFIX + "__".join(path).upper()


def _warn_of_single_underscore(reading: Reading, name: str) -> None:
    for path, _ in keys():
        if "_".join(path).upper() == name.removeprefix(PREFIX):
            text = f"is not a known key, did you mean {_variable(path)}?"
            reading.faults.append(Fault(name, "", text, "warning"))


def read_options(reading: Reading, assignments: Sequence[str]) -> None:
    """Lay what `--set section.key=value` says over it. Raises UsageError."""
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        path = tuple(part.strip() for part in name.split("."))
        if not equals or not all(path):
            raise UsageError(
                f"--set {name} sets nothing: write it like --set mqtt.host=broker.plant"
            )
        reading.put(_one_key(path, text, f"--set {name}", reading.here))


def _one_key(path: KeyPath, text: str, where: str, here: Surroundings) -> Source:
    key = field_at(path)
    value: Any = _typed(text, key.annotation) if key else text
    for name in reversed(path):
        value = {name: value}
    return Source(value, where, here.working_dir)


def _typed(text: str, annotation: Any) -> object:
    """The text as the type that the key wants; the text itself where it is not one."""
    wanted = set(_types(annotation))
    if text[:1] in ("[", "{") and wanted & {list, tuple, dict}:
        try:
            return toml(f"value = {text}")["value"]
        except ValueError:
            return text
    if wanted & {list, tuple}:
        return [part.strip() for part in text.split(",") if part.strip()]
    if bool in wanted:
        return _BOOLEANS.get(text.lower(), text)
    for number in (int, float):
        if number in wanted:
            try:
                return number(text)
            except ValueError:
                continue
    return text


def _types(annotation: Any) -> Iterator[Any]:
    origin = get_origin(annotation)
    if origin is None:
        yield annotation
    elif origin in (list, tuple, dict):
        yield origin
    elif origin is Annotated:
        yield from _types(get_args(annotation)[0])
    else:  # a union, or words
        for part in get_args(annotation):
            yield from _types(part)
