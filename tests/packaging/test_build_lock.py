"""What goes into the packages is locked: each version, each hash, and nothing is missing."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")


@dataclass(frozen=True)
class Locked:
    requirement: Requirement
    hashes: tuple[str, ...]


def locked(name: str) -> Iterator[Locked]:
    text = (ROOT / "packaging" / name).read_text().replace("\\\n", " ")
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            wanted, *hashes = re.split(r"\s+--hash=", line.strip())
            yield Locked(Requirement(wanted), tuple(hashes))


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_version_is_pinned_and_every_file_has_a_hash() -> None:
    for name in ("requirements.lock", "tools.lock"):
        for one in locked(name):
            assert str(one.requirement.specifier).startswith("=="), one
            assert one.hashes, one
            assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each) for each in one.hashes), one


def test_the_lock_has_what_the_project_depends_on_for_each_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = list(locked("requirements.lock"))
    for python in PYTHONS:
        versions = {
            plain(one.requirement.name): str(one.requirement.specifier).removeprefix("==")
            for one in found
            if applies(one.requirement, python)
        }
        for wanted in map(Requirement, project["dependencies"]):
            if applies(wanted, python):
                version = versions[plain(wanted.name)]
                assert wanted.specifier.contains(version, prereleases=True), (wanted, python)


def applies(requirement: Requirement, python: str) -> bool:
    where = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "extra": "",
    }
    return requirement.marker is None or requirement.marker.evaluate(where)


def test_the_lock_of_the_tools_has_what_is_asked_for_them() -> None:
    asked = {
        plain(line)
        for line in (ROOT / "packaging/tools.in").read_text().split("\n")
        if line and not line.startswith("#")
    }
    assert asked <= {plain(one.requirement.name) for one in locked("tools.lock")}


def test_the_pythons_are_the_same_wherever_they_stand() -> None:
    said = {
        "vendor.py": r'PYTHONS = \("3\.10", "3\.11", "3\.12", "3\.13", "3\.14"\)',
        "tools.sh": r'PYTHONS="3\.10 3\.11 3\.12 3\.13 3\.14"',
        "command.py": r"\(3, 10\) <= sys\.version_info\[:2\] < \(3, 15\)",
        "debian/control": r"python3 \(>= 3\.10\),\s+python3 \(<< 3\.15\)",
    }
    for name, pattern in said.items():
        assert re.search(pattern, (ROOT / "packaging" / name).read_text()), name
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.10"
