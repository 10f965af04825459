"""How does a test get an NVIDIA driver that is not there?

`build` compiles a libnvidia-ml.so.1 of our own, which plays the machine that FAKE_NVML names; see
`fixtures/fake_nvml.c` for the machines and for what else can be set.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

LIBRARY = "libnvidia-ml.so.1"

SOURCE = Path(__file__).parent / "fixtures" / "fake_nvml.c"

MISSING = "missing"
"""The machine whose driver lacks the younger functions: a library of its own."""

PROFILES = (
    "rtx",
    "old",
    "mid",
    "orin",
    "orinzero",
    "orin7",
    "thor",
    "gb10",
    "gb10total",
    "wsl",
    "mig",
    "two",
    "lost",
    "late",
    "garbage",
    "foreign",
    "zero",
    "none",
    "nodrv",
    "mismatch",
    "unknown",
    "slow",
    "segfault",
    "hang",
    MISSING,
)


def build(folder: Path) -> Path:
    """Compile the library into `folder`, and that of MISSING below it; return `folder`."""
    _compile(folder / LIBRARY)
    _compile(folder / MISSING / LIBRARY, "-DMISSING")
    return folder


def environment(folder: Path, profile: str, **more: str) -> Mapping[str, str]:
    """Return this process's environment with the machine `profile`, as built into `folder`.

    `more` are settings of the library: `FAKE_NVML_PID="4242"`.
    """
    place = folder / MISSING if profile == MISSING else folder
    return {**os.environ, "LD_LIBRARY_PATH": str(place), "FAKE_NVML": profile, **more}


def _compile(library: Path, *options: str) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise RuntimeError("the NVML of our own needs a C compiler: install gcc")
    library.parent.mkdir(parents=True, exist_ok=True)
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", *options]
    subprocess.run([*command, "-o", str(library), str(SOURCE)], check=True)
