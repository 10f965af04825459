"""The wheel, installed as pipx does it: into an empty environment, with what the lock names."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from small_sweep import SMALL

ROOT = Path(__file__).parents[2]


def oldest_python() -> str:
    """The oldest Python here that is supported and has pip: what works with it works with ours."""
    check = "import sys, ensurepip, venv; sys.exit(not (3, 10) <= sys.version_info[:2])"
    for number in range(10, sys.version_info[1]):
        found = shutil.which(f"python3.{number}")
        if found and not subprocess.run([found, "-I", "-c", check], check=False).returncode:
            return found
    return sys.executable


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the wheel and nothing of ours beside."""
    programs = tmp_path_factory.mktemp("pipx") / "venv/bin"
    subprocess.run([oldest_python(), "-m", "venv", programs.parent], check=True)
    pip = (programs / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check")
    lock = ROOT / "packaging/requirements.lock"
    subprocess.run([*pip, "--require-hashes", "--only-binary", ":all:", "-r", lock], check=True)
    # --no-index: whatever the wheel asks for has to be there by the lock
    subprocess.run([*pip, "--no-index", next(dist.glob("*.whl"))], check=True)
    return programs


def run(programs: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [programs / "edgeagent", *map(str, arguments)], capture_output=True, encoding="utf-8",
        check=False, timeout=240, cwd=programs, env={**os.environ, "PYTHONWARNINGS": "error"},
    )  # fmt: skip


def test_the_command_is_there_in_the_wheels_version(installed: Path, dist: Path) -> None:
    version = next(dist.glob("*.whl")).name.split("-")[1]
    done = run(installed, "--version")
    assert (done.returncode, done.stdout.split()[-1]) == (0, version), done.stderr


def test_a_sweep_measures_and_its_result_holds(installed: Path, tmp_path: Path) -> None:
    done = run(installed, "sweep", "--engine", "fake", *SMALL, "--out", tmp_path / "run")
    assert done.returncode in {0, 1}, done.stderr  # because on a busy box cells are suspect
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["status"] == "complete"
    assert [cell["requests"]["ok"] for cell in result["cells"]] == [4], done.stderr
    assert run(installed, "verify", tmp_path / "run").returncode == 0


def test_what_needs_an_extra_says_which_one(installed: Path, tmp_path: Path) -> None:
    done = run(installed, "keys", "new", "--out", tmp_path / "signing.key")
    assert done.returncode == 2
    assert "edgeagent[sign]" in done.stderr
    assert done.stderr.count("\n") == 1
