"""What does the service's unit say, as far as it decides what the service can see and do?

Read from the unit's files, main file and drop-ins, so that it can be told before anything runs and
below another root. systemd's own rules hold: the last word counts, lists add up, empty starts anew.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

NAME = "edgeagent.service"
_FOLDERS = (
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
)
_HOMES = (Path("/home"), Path("/root"), Path("/run/user"))
_TEMPORARY = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108  # because PrivateTmp= hides just these
_YES = frozenset({"yes", "true", "on", "1"})
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LISTS = frozenset(
    {
        "BindPaths", "BindReadOnlyPaths", "ReadWritePaths", "SupplementaryGroups", "StateDirectory",
        "CacheDirectory", "LogsDirectory", "RuntimeDirectory", "Environment", "LoadCredential",
    }
)  # fmt: skip
_OWN_FOLDERS = {
    "StateDirectory": Path("/var/lib"),
    "CacheDirectory": Path("/var/cache"),
    "LogsDirectory": Path("/var/log"),
    "RuntimeDirectory": Path("/run"),
}
_ALWAYS_WRITABLE = (Path("/dev"), Path("/proc"), Path("/sys"))


@dataclass(frozen=True)
class Unit:
    """The `[Service]` section of a unit."""

    files: tuple[Path, ...]
    masked: bool = False
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def last(self, key: str, default: str = "") -> str:
        """The value of a key that has one."""
        return (self.values.get(key) or (default,))[-1]

    def words(self, key: str) -> tuple[str, ...]:
        """The words of a key that has many."""
        return tuple(word for line in self.values.get(key, ()) for word in line.split())

    def says_yes(self, key: str) -> bool:
        """Whether a switch is on."""
        return self.last(key).lower() in _YES

    @property
    def user(self) -> str:
        """As whom the service runs."""
        return self.last("User", "root")

    @property
    def path(self) -> str:
        """Where the service looks for programs."""
        for word in self.words("Environment"):
            name, _, value = word.strip('"').partition("=")
            if name == "PATH":
                return value
        return _PATH

    def hides(self, path: Path) -> str | None:
        """Which line of the unit keeps the service from seeing this path; None when none does."""
        path = Path(os.path.normpath(path))
        bound = [*self._bound("BindReadOnlyPaths"), *self._bound("BindPaths")]
        if any(path.is_relative_to(place) for place in bound):
            return None
        home = self.last("ProtectHome", "no").lower()
        if home in _YES | {"tmpfs"} and any(path.is_relative_to(place) for place in _HOMES):
            return f"ProtectHome={home}"
        if self.says_yes("PrivateTmp") and any(path.is_relative_to(p) for p in _TEMPORARY):
            return "PrivateTmp=yes"
        return None

    def _bound(self, key: str) -> Iterator[Path]:
        for word in self.words(key):
            source, _, rest = word.removeprefix("-").partition(":")
            yield Path(rest.partition(":")[0] or source)

    def closes(self, path: Path) -> str | None:
        """Which line of the unit keeps the service from writing below this path."""
        if self.last("ProtectSystem").lower() != "strict":
            return None
        path = Path(os.path.normpath(path))
        own = [
            folder / name.partition(":")[0]
            for key, folder in _OWN_FOLDERS.items()
            for name in self.words(key)
        ]
        given = [Path(word.lstrip("-+")) for word in self.words("ReadWritePaths")]
        private = _TEMPORARY if self.says_yes("PrivateTmp") else ()
        bound = self._bound("BindPaths")
        open_ = (*own, *given, *private, *bound, *_ALWAYS_WRITABLE)
        return (
            None if any(path.is_relative_to(place) for place in open_) else "ProtectSystem=strict"
        )

    def makes(self, path: Path) -> bool:
        """Whether systemd makes this folder when the service starts."""
        return any(
            path == folder / name
            for key, folder in _OWN_FOLDERS.items()
            for name in self.words(key)
        )


def find(root: Path, name: str = NAME) -> Unit | None:
    """Return the unit with its drop-ins, None when it is not installed."""
    main = next((path for path in _places(root, name) if os.path.lexists(path)), None)
    if main is None:
        return None
    if main.is_symlink() and os.readlink(main) == "/dev/null":  # noqa: PTH115  # because it may be dangling
        return Unit((main,), masked=True)
    drop_ins: dict[str, Path] = {}
    for folder in _places(root, f"{name}.d"):
        for path in sorted(folder.glob("*.conf")):
            drop_ins.setdefault(path.name, path)
    files = (main, *(drop_ins[key] for key in sorted(drop_ins)))
    values: dict[str, tuple[str, ...]] = {}
    for path in files:
        for key, value in _assignments(_text(path)):
            before = values.get(key, ()) if key in _LISTS else ()
            values[key] = (*before, value) if value else ()
    return Unit(files, values=values)


def _places(root: Path, name: str) -> list[Path]:
    return [root / folder / name for folder in _FOLDERS]


def _assignments(text: str) -> Iterator[tuple[str, str]]:
    section = ""
    for line in text.replace("\\\n", " ").splitlines():
        stripped = line.strip()
        if stripped.startswith("["):
            section = stripped
        elif section == "[Service]" and "=" in stripped and stripped[0] not in "#;":
            key, _, value = stripped.partition("=")
            yield key.strip(), value.strip()


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
