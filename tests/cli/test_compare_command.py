"""`edgeagent compare` as its options and exit statuses."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest
from stored_runs import LLAMA, Made, stored

from edgeagent.cli import compare
from edgeagent.errors import UsageError


def command(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    compare.add_to(parser.add_subparsers())
    options = parser.parse_args(["compare", *map(str, arguments)])
    status: int = options.run(options)
    return status


BOTH = Made({"llamacpp": lambda n: 20.0 + n, "vllm": lambda n: 10.0 * n})


def test_it_prints_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(stored(tmp_path / "a", BOTH)) == 0
    assert "llamacpp is better up to 1, vllm from 4; they cross" in capsys.readouterr().out


def test_it_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(stored(tmp_path / "a", BOTH), "--metric", "ttft_s.p95", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    (found,) = document["pairs"][0]["comparison"]
    assert (found["metric"], found["outcome"]) == ("ttft_s.p95", "crosses")


def test_runs_that_cannot_be_compared_have_exit_status_2(tmp_path: Path) -> None:
    alone = replace(BOTH, spec=replace(BOTH.spec, engines=(LLAMA,)))
    with pytest.raises(UsageError) as refused:
        command(stored(tmp_path / "a", alone))
    assert refused.value.exit_status == 2
