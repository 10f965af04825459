"""Every example that a help text shows is a command line that the program takes."""

import argparse
import re
import shlex
from collections.abc import Iterator

import pytest

from edgeagent.cli.main import parser

_COMMENT = re.compile(r" {2,}(?=\S)|\s#.*")


def _parsers(top: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield top
    for action in top._actions:  # because argparse has no other way to its commands
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _parsers(below)


def examples(help_text: str) -> list[list[str]]:
    """The words of each line that begins with two blanks and the program's name."""
    lines = re.findall(r"^  (edgeagent .*)$", help_text, re.MULTILINE)
    return [shlex.split(_COMMENT.split(line, maxsplit=1)[0]) for line in lines]


EVERY = [
    pytest.param(words, id=" ".join(words))
    for one in _parsers(parser())
    for words in examples(one.format_help())
]


@pytest.mark.parametrize("words", EVERY)
def test_an_example_of_a_help_text_is_understood(words: list[str]) -> None:
    options = parser().parse_args(words[1:])
    assert callable(options.run)


def test_examples_are_found_without_what_is_said_of_them() -> None:
    text = "examples:\n  edgeagent a b\n  edgeagent c 'd e'    which does f\n  edgeagent g  # h\nx"
    assert examples(text) == [
        ["edgeagent", "a", "b"], ["edgeagent", "c", "d e"], ["edgeagent", "g"]
    ]  # fmt: skip
    assert len(EVERY) > 20
