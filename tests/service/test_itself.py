"""The agent starts itself anew with the Python and the libraries it has, installed or packaged."""

from __future__ import annotations

import os
import subprocess
import sys

from edgeagent.itself import program

# As /usr/bin/edgeagent of the package does: nothing but what its second line names is found.
PACKAGED = """
import json, subprocess, sys
sys.path[:] = {places!r}
from edgeagent.itself import program
words = program({module!r})
done = subprocess.run([*words, *sys.argv[1:]], capture_output=True, text=True, env={{}}, cwd="/")
print(json.dumps([list(words), done.stdout, done.stderr]))
"""


def packaged(module: str, *arguments: str) -> list[str]:
    code = PACKAGED.format(places=[path for path in sys.path if path], module=module)
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, *arguments],
        capture_output=True, text=True, check=True, cwd="/",
    )  # fmt: skip
    return done.stdout.splitlines()


def test_an_installed_agent_is_a_module_of_its_python() -> None:
    assert program() == (sys.executable, "-m", "edgeagent")


def test_a_packaged_agent_finds_itself_without_the_environment() -> None:
    (told,) = packaged("edgeagent", "--version")
    assert '"-I"' in told
    assert "edgeagent 0." in told


def test_a_packaged_agent_finds_its_scripted_engine() -> None:
    (told,) = packaged("edgeagent.engines.scripted", "--help")
    assert "--port" in told


def test_what_it_starts_has_none_of_its_libraries_in_the_environment() -> None:
    before = dict(os.environ)
    program()
    assert dict(os.environ) == before
