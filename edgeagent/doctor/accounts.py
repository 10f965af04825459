"""Who is a user of this box, and to which groups does it belong?

The system's own answer for `/`, which knows directories of users as well; below another root its
passwd and group files alone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

_PASSWD_FIELDS, _GROUP_FIELDS = 7, 4


@dataclass(frozen=True)
class Account:
    """A user, with the numbers of all its groups."""

    name: str
    uid: int
    gids: frozenset[int] = frozenset()
    gid: int = 0

    def joined(self, gids: frozenset[int]) -> Account:
        """The same user with more groups, such as those that a unit adds."""
        return replace(self, gids=self.gids | gids)


def account(root: Path, name: str) -> Account | None:
    """Return a user by name, None when this box has none of that name."""
    return _system_account(name) if root == Path("/") else _listed_account(root, name)


def myself() -> Account:
    """Return the user in whose rights this process runs."""
    uid, gid = os.geteuid(), os.getegid()
    return Account(_name_of(uid), uid, frozenset({*os.getgroups(), gid}), gid)


def group(root: Path, name: str) -> int | None:
    """Return a group's number, None when this box has none of that name."""
    if root != Path("/"):
        return next((gid for known, gid, _ in _groups(root) if known == name), None)
    import grp

    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def group_name(root: Path, gid: int) -> str:
    """Return a group's name, or its number where it has none."""
    if root != Path("/"):
        return next((known for known, number, _ in _groups(root) if number == gid), str(gid))
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _system_account(name: str) -> Account | None:
    import pwd

    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    gids = frozenset(os.getgrouplist(name, entry.pw_gid))
    return Account(name, entry.pw_uid, gids, entry.pw_gid)


def _name_of(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _listed_account(root: Path, name: str) -> Account | None:
    for words in _lines(root / "etc/passwd"):
        if len(words) == _PASSWD_FIELDS and words[0] == name:
            if not (words[2].isdecimal() and words[3].isdecimal()):
                return None
            gid = int(words[3])
            joined = {number for _, number, members in _groups(root) if name in members}
            return Account(name, int(words[2]), frozenset({gid, *joined}), gid)
    return None


def _groups(root: Path) -> list[tuple[str, int, tuple[str, ...]]]:
    return [
        (words[0], int(words[2]), tuple(words[3].split(",")))
        for words in _lines(root / "etc/group")
        if len(words) == _GROUP_FIELDS and words[2].isdecimal()
    ]


def _lines(path: Path) -> list[list[str]]:
    try:
        text = path.read_text("utf-8", "replace")
    except OSError:
        return []
    return [line.split(":") for line in text.splitlines()]
