"""Are Python, the system's release and the libraries those that the agent is made for?"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Mapping
from importlib import metadata

from edgeagent.core import diagnosis
from edgeagent.core.diagnosis import Check

OLDEST_PYTHON, NEWEST_PYTHON = (3, 10), (3, 14)
"""Both are tried."""
_LIBRARIES = (
    "httpx",
    "h11",
    "nvidia-ml-py",
    "paho-mqtt",
    "psutil",
    "pydantic",
    "rich",
    "structlog",
)
_EXTRAS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "report": (("jinja2", "matplotlib"), "sheets as HTML"),
    "sign": (("cryptography",), "signing results, verifying signatures"),
}
_OLDEST_L4T = 36


def checks(host: Mapping[str, object]) -> tuple[Check, ...]:
    """Judge them all."""
    found = (
        python(sys.version_info[:3]),
        diagnosis.libraries(platform.python_version(), _versions(_LIBRARIES)),
        extras({name: _versions(parts) for name, (parts, _) in _EXTRAS.items()}),
        release(host.get("release")),
    )
    return tuple(check for check in found if check is not None)


def python(version: tuple[int, int, int]) -> Check:
    """Judge the interpreter."""
    name = "agent.python"
    text = f"Python {'.'.join(map(str, version))} ({sys.executable})"
    bounds = "3.10 to 3.14"
    if version < OLDEST_PYTHON:
        hint = "use the distribution's python3 of Debian 12, Ubuntu 22.04, JetPack 6, or newer"
        return Check(name, "fault", f"{text} is too old: {bounds} are tried", hint)
    if version[:2] > NEWEST_PYTHON:
        hint = f"take one of {bounds}, or a newer edgeagent"
        return Check(name, "warning", f"{text} is newer than what was tried: {bounds}", hint)
    return Check(name, "ok", text)


def extras(found: Mapping[str, Mapping[str, str | None]]) -> Check:
    """Say what parts that not everybody needs are there."""
    name = "agent.extras"
    lacking = [extra for extra, parts in found.items() if None in parts.values()]
    if not lacking:
        told = [f"{part} {version}" for parts in found.values() for part, version in parts.items()]
        return Check(name, "ok", ", ".join(told))
    lost = "; ".join(f"{_EXTRAS[extra][1]} ({', '.join(_gone(found[extra]))})" for extra in lacking)
    hint = f"pip install 'edgeagent[{','.join(lacking)}]', or apt install " + " ".join(
        f"python3-{part}" for extra in lacking for part in _gone(found[extra])
    )
    return Check(name, "missing", f"not installed, and so not possible: {lost}", hint)


def _gone(parts: Mapping[str, str | None]) -> list[str]:
    return [part for part, version in parts.items() if version is None]


def release(name: object) -> Check | None:
    """Judge the release of a Jetson or DGX; None on any other box."""
    if not isinstance(name, str):
        return None
    found = re.match(r"L4T (\d+)", name)
    if found and int(found.group(1)) < _OLDEST_L4T:
        text = f"{name} is out of scope: it has neither Python 3.10 nor NVML"
        hint = "flash JetPack 6 or 7 (Orin, Thor); Xavier has neither, and is not supported"
        return Check("box.release", "fault", text, hint)
    return Check("box.release", "ok", name)


def _versions(names: tuple[str, ...]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found
