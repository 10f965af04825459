"""`edgeagent models pair` from its words to its answer."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_pair import Tiny, file, weights

from edgeagent.cli import models
from edgeagent.errors import UsageError
from edgeagent.models.pair_identity import weights_digest

COMMAND = """
import argparse, sys
from edgeagent.cli import models
from edgeagent.errors import EdgeAgentError
parser = argparse.ArgumentParser()
models.add_to(parser.add_subparsers())
options = parser.parse_args(sys.argv[1:])
try:
    sys.exit(options.run(options))
except EdgeAgentError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_status)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(file(Tiny(), weights(Tiny())))
    return path


def run(*words: object) -> int:
    parser = argparse.ArgumentParser()
    models.add_to(parser.add_subparsers())
    options = parser.parse_args(["models", "pair", *map(str, words)])
    before = signal.getsignal(signal.SIGTERM)
    try:
        status: int = options.run(options)
    finally:
        signal.signal(signal.SIGTERM, before)
    return status


def test_the_answer_names_both_files_and_the_digest(
    tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "pair"
    assert run(source, "--out", out) == 0
    told = capsys.readouterr().out
    assert f"llama.cpp  {out}/model-bf16.gguf\n" in told
    assert f"vLLM       {out}/hf\n" in told
    assert f"in bf16, {weights_digest(out / 'hf')}\n" in told


def test_the_type_can_be_chosen(
    tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(source, "--out", tmp_path / "pair", "--type", "f16") == 0
    assert "model-f16.gguf" in capsys.readouterr().out


def test_a_source_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        run(tmp_path / "none.gguf", "--out", tmp_path / "pair")


@pytest.mark.parametrize("package", ["numpy", "gguf"])
def test_without_the_extra_the_command_that_installs_it_is_named(
    tmp_path: Path, source: Path, package: str
) -> None:
    # A package that cannot be imported stands in the way of the real one.
    absent = tmp_path / "absent"
    absent.mkdir()
    sentence = f"No module named {package!r}"
    (absent / f"{package}.py").write_text(f"raise ImportError({sentence!r}, name={package!r})\n")
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "models", "pair", source, "--out", tmp_path / "pair"],
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(absent)},
    )  # fmt: skip
    assert done.returncode == 2
    assert f"needs the Python package {package}" in done.stderr
    assert "pip install 'edgeagent[pair]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_disk_that_fills_up_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, source: Path
) -> None:
    # A limit on the size of a file stands for a full disk.
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000,) * 2)\n"
    done = subprocess.run(
        [sys.executable, "-c", limit + COMMAND, "models", "pair", source, "--out", tmp_path / "p"],
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
    )  # fmt: skip
    assert done.returncode == 2
    assert "(file too large)" in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.gguf"]


def test_the_command_line_needs_no_numpy_until_a_pair_is_made() -> None:
    code = "import sys; import edgeagent.cli.models, edgeagent.models.gguf, edgeagent.models.hf;"
    subprocess.run(
        [sys.executable, "-c", code + "assert 'numpy' not in sys.modules"], timeout=60, check=True
    )


def test_a_run_that_is_terminated_leaves_nothing(tmp_path: Path) -> None:
    source = tmp_path / "tiny.gguf"
    many = Tiny(layers=200)  # so many that it is met at work
    source.write_bytes(file(many, weights(many)))
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "models", "pair", source, "--out", tmp_path / "pair"]
    )
    unfinished = tmp_path / ".pair.unfinished"
    deadline = time.monotonic() + 60
    while not unfinished.exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.001)
    process.terminate()
    assert process.wait(60) == 143
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.gguf"]
