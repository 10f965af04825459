"""Whatever command the documentation names, the command line understands."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest
from docs_pages import Line, lines_of_code, lines_of_prose, name, pages

from edgeagent.cli.main import parser
from edgeagent.errors import UsageError

PARSER = parser()
PAGES = {name(page): page for page in pages()}


@pytest.mark.parametrize("page", PAGES)
def test_every_line_of_code_is_one_that_the_command_line_takes(page: str) -> None:
    for line in lines_of_code(PAGES[page]):
        if line.whole:
            assert _refusal(line.words) is None, f"{line.where}: {_refusal(line.words)}"
        else:
            assert not list(_unknown(line)), line


@pytest.mark.parametrize("page", PAGES)
def test_every_command_in_a_sentence_has_names_that_exist(page: str) -> None:
    for line in lines_of_prose(PAGES[page]):
        assert not list(_unknown(line)), line


def test_the_lines_are_really_found() -> None:
    found = [line for page in PAGES.values() for line in lines_of_code(page)]
    commands = {line.words[0] for line in found if line.words}
    assert {"sweep", "report", "verify", "fleet", "config", "memory", "doctor"} <= commands
    assert sum(line.whole for line in found) > 60


@pytest.mark.parametrize(
    "words",
    [("swep",), ("sweep", "--engin-arg", "x"), ("fleet", "colect"), ("memory", "m", "--context=x")],
)
def test_a_wrong_line_would_be_told(words: tuple[str, ...]) -> None:
    line = Line("here", words, whole=True)
    assert _refusal(words) is not None or list(_unknown(line))


def _refusal(words: tuple[str, ...]) -> str | None:
    """Why a whole line is refused. A place for a number, N or S, stands for one."""
    filled = ["1" if word in ("N", "S") else word for word in words]
    try:
        PARSER.parse_args(filled)
    except UsageError as error:
        return str(error)
    except SystemExit as end:  # --help and --version
        return None if end.code == 0 else str(end.code)
    return next(_unknown(Line("", words, whole=True)), None)


def _unknown(line: Line) -> Iterator[str]:
    """Names of commands and options that there are not; abbreviated options count as wrong.

    What follows the name of a command with commands below it, and is a small word, is one of these.
    """
    command: argparse.ArgumentParser = PARSER
    known = set(PARSER._option_string_actions)
    named = True  # the word before was a command's name
    for word in line.words:
        below = _commands(command)
        option = word.partition("=")[0] if word.startswith("--") else word
        if word in below:
            command, named = below[word], True
            known |= set(command._option_string_actions)
            continue
        if word.startswith("-") and option not in known and not word[1:].isdigit():
            yield f"{command.prog} has no {option}"
        if below and named and word.isalpha() and word.islower():
            yield f"{command.prog} has no command {word}"
        named = False


def _commands(of: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}
