"""What the documentation says may be run does run, as it stands there.

Each page's blocks run in order in one folder, which has a `model.gguf`; in PATH there is a
`llama-server` that is the scripted engine, and `edgeagent` itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from agent import OF_THE_BOX
from docs_pages import blocks, name, pages
from gguf_maker import Tensor, Value, gguf

from edgeagent.config import toml
from edgeagent.settings_keys import SettingsFile

_AGENT = f"""#!{sys.executable}
import json, pathlib, subprocess, sys
status = subprocess.run([sys.executable, "-m", "edgeagent", *sys.argv[1:]]).returncode
if status == 1 and sys.argv[1] == "sweep":  # a busy test machine raises doubts of its own
    newest = max(pathlib.Path.cwd().rglob("result.json"), key=lambda path: path.stat().st_mtime_ns)
    findings = json.loads(newest.read_text())["findings"]
    doubts = {{found["code"] for found in findings if found["severity"] == "suspect"}}
    status = 0 if doubts and doubts <= {set(OF_THE_BOX)!r} else 1
sys.exit(status)
"""
_ENGINE = f"""#!/bin/sh
exec {sys.executable} -m edgeagent.engines.scripted --ttft-ms 40 --itl-ms 10 "$@"
"""
RUNNABLE = {
    name(page): found
    for page in pages()
    if (found := [block for block in blocks(page) if block.run is not None])
}


@pytest.mark.parametrize("page", RUNNABLE)
def test_a_block_that_may_be_run_runs(page: str, tmp_path: Path) -> None:
    places = _places(tmp_path)
    for block in RUNNABLE[page]:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text],
            cwd=tmp_path / "here", env=places, capture_output=True, text=True, timeout=240,
            check=False,
        )  # fmt: skip
        where = f"{page}:{block.line} ({block.run})"
        assert done.returncode == 0, f"{where}: {done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, where


def test_some_blocks_are_marked() -> None:
    assert {"docs/sweep.md", "docs/configuration.md", "docs/memory.md"} <= set(RUNNABLE)


@pytest.mark.parametrize("page", [name(page) for page in pages()])
def test_every_piece_of_configuration_is_one(page: str) -> None:
    for block in blocks(pages()[0].parent / page):
        if block.kind == "toml":
            SettingsFile.model_validate(toml(block.text))


def _places(folder: Path) -> dict[str, str]:
    """The environment in which blocks run."""
    for below in ("bin", "here", "home"):
        (folder / below).mkdir()
    for program, text in (("edgeagent", _AGENT), ("llama-server", _ENGINE)):
        (folder / "bin" / program).write_text(text)
        (folder / "bin" / program).chmod(0o755)
    (folder / "here/model.gguf").write_bytes(_model())
    kept = {key: os.environ[key] for key in ("LANG", "PYTHONPATH") if key in os.environ}
    return {**kept, "PATH": f"{folder}/bin:/usr/bin:/bin", "HOME": str(folder / "home")}


def _model() -> bytes:
    sizes = {
        "block_count": 2, "context_length": 8192, "embedding_length": 64,
        "attention.head_count": 2, "attention.head_count_kv": 1, "vocab_size": 32,
    }  # fmt: skip
    metadata = {
        "general.architecture": Value("string", "llama"),
        "general.name": Value("string", "Tiny"),
        **{f"llama.{key}": Value("u32", value) for key, value in sizes.items()},
    }
    return gguf(metadata, [Tensor("token_embd.weight", (64, 32), 1)], bytes(64 * 32 * 2))
