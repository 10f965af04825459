"""What the package contains, run where it was unpacked, by the Pythons of this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

import nvml_library
import pytest
from small_sweep import SMALL

pytestmark = pytest.mark.timeout(1800)  # the first test of a session waits for the packages


def run(
    root: Path,
    *arguments: object,
    python: str = "/usr/bin/python3",
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """The installed command, as its first line starts it: `python -I`."""
    return subprocess.run(
        [python, "-I", root / "usr/bin/edgeagent", *map(str, arguments)],
        capture_output=True, encoding="utf-8", check=False, timeout=240, cwd=cwd,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(env or {})},
    )  # fmt: skip


def system_pythons() -> list[str]:
    """Every Python here that the package is for."""
    names = ("/usr/bin/python3", *(f"python3.{n}" for n in range(10, 15)))
    return [path for name in names if (path := shutil.which(name)) and supported(path)]


def supported(python: str) -> bool:
    code = "import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 15))"
    return subprocess.run([python, "-I", "-c", code], check=False).returncode == 0


def test_the_command_starts_with_every_python_of_this_machine(here: Path) -> None:
    found = system_pythons()
    assert found
    for python in found:
        done = run(here, "config", "show", python=python)
        assert done.returncode == 0, (python, done.stderr)
        assert "[mqtt]" in done.stdout


def test_a_sweep_with_its_children_works_where_it_was_unpacked(here: Path, tmp_path: Path) -> None:
    done = run(here, "sweep", "--engine", "fake", *SMALL, "--out", tmp_path / "run")

    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run/result.json").read_text())
    [launch] = result["engines"][0]["launches"]
    assert launch["argv"][:2] == ["/usr/bin/python3", "-I"]
    # The sheet is drawn by a child, which finds our modules; what the system lacks, it names.
    assert (tmp_path / "run/report.html").exists() or "needs jinja2 and matplotlib" in done.stderr
    assert run(here, "verify", tmp_path / "run").returncode == 0


def test_the_child_that_asks_nvml_finds_its_modules(here: Path, tmp_path: Path) -> None:
    library = nvml_library.build(tmp_path)

    done = run(here, "monitor", "--once", "--json", env=nvml_library.environment(library, "rtx"))

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["values"]["gpu.devices"] == 1


def test_neither_the_environment_nor_the_working_directory_bring_modules(
    here: Path, tmp_path: Path
) -> None:
    for name in ("json", "pydantic", "edgeagent", "psutil"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a stranger')")

    done = run(
        here, "sweep", "--engine", "fake", *SMALL, "--no-report", "--out", "run",
        cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert "stranger" not in done.stderr


def test_its_own_libraries_come_before_the_systems_which_serve_for_the_rest(
    here: Path, tmp_path: Path
) -> None:
    venv.create(tmp_path / "system", symlinks=True)
    python = tmp_path / "system/bin/python"
    packages = next(tmp_path.glob("system/lib/*/site-packages"))
    for name in ("pydantic", "anyio", "httpx", "psutil", "typing_extensions"):
        (packages / f"{name}.py").write_text("raise ImportError('the system has another version')")
    (packages / "jinja2.py").write_text("")
    (packages / "click.py").write_text("import sys; sys.exit('httpx brings its command line')")
    code = (
        "import sys, runpy; sys.argv = ['edgeagent', '--version']\n"
        "try: runpy.run_path(sys.orig_argv[-1], run_name='__main__')\n"
        "except SystemExit: pass\n"
        "import anyio, httpx, jinja2, psutil, pydantic, typing_extensions\n"
        "print(pydantic.__file__, jinja2.__file__)"
    )

    done = subprocess.run(
        [python, "-I", "-c", code, here / "usr/bin/edgeagent"],
        capture_output=True, encoding="utf-8", check=True, timeout=60,
    )  # fmt: skip

    ours, theirs = done.stdout.splitlines()[-1].split()
    assert ours == str(here / "usr/lib/edgeagent/vendor/pydantic/__init__.py")
    assert theirs == str(packages / "jinja2.py")


@pytest.mark.parametrize("version", [(3, 9, 2), (3, 15, 0)])
def test_another_python_is_refused_in_one_sentence(here: Path, version: tuple[int, ...]) -> None:
    command = here / "usr/bin/edgeagent"
    # as if it were that Python: none of them is needed on the machine that tests
    code = f"import sys; sys.version_info = {version}; exec(open({str(command)!r}).read())"

    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, encoding="utf-8", check=False
    )

    assert done.returncode == 2
    [sentence] = done.stderr.splitlines()
    assert f"is Python {version[0]}.{version[1]}" in sentence
    assert "update-alternatives" in sentence


def test_bash_completes_commands_and_options(here: Path) -> None:
    script = here / "usr/share/bash-completion/completions/edgeagent"

    def completed(*words: str) -> list[str]:
        line = " ".join(f"'{word}'" for word in words)
        code = (
            f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; "
            "$(complete -p edgeagent | grep -oP '(?<=-F )\\S+') edgeagent; "
            "printf '%s\\n' \"${COMPREPLY[@]}\""
        )
        return subprocess.run(
            ["bash", "--norc", "-c", code], capture_output=True, encoding="utf-8", check=True
        ).stdout.split()

    assert completed("edgeagent", "swe") == ["sweep"]
    assert "--concurrency" in completed("edgeagent", "sweep", "--conc")


def test_the_man_pages_tell_every_command_and_every_key(here: Path) -> None:
    def told(name: str) -> str:
        return subprocess.run(
            ["zcat", here / "usr/share/man" / name], capture_output=True, check=True
        ).stdout.decode().replace("\\-", "-")  # fmt: skip

    commands = told("man1/edgeagent.1.gz")
    for name in ("sweep", "config check", "fleet collect", "keys new", "models pair", "daemon"):
        assert f".SS edgeagent {name}\n" in commands
    assert ".SS edgeagent\n" not in commands
    keys = told("man5/edgeagent.toml.5.gz")
    shipped = (here / "etc/edgeagent/edgeagent.toml").read_text()
    for line in shipped.splitlines():
        if line.startswith("#") and " = " in line and not line.startswith("# "):
            assert f".B {line[1:].split(' = ')[0]} = " in keys, line
