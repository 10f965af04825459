"""The examples work as they stand, and are typed as strictly as anybody may ask."""

from __future__ import annotations

import asyncio
import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgeagent.engines.scripted import Script, ScriptedServer
from edgeagent.engines.scripted_stream import Tempo

EXAMPLES = Path(__file__).parents[2] / "examples"
OLD_RUN = Path(__file__).parents[1] / "results" / "3-comparison"


def example(
    name: str, *arguments: object, environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one, from a folder that is not the repository's."""
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *map(str, arguments)],
        capture_output=True, text=True, timeout=200, check=False, cwd="/",
        env={**os.environ, **(environ or {})},
    )  # fmt: skip


def rows_of(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.startswith("cache-")]


def test_two_settings_are_compared(tmp_path: Path) -> None:
    done = example(
        "compare_two_settings.py", "none", "--kind=fake", "--quick", "--concurrency", 1, 2,
        "--out", tmp_path / "run",
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr  # 1: a busy box may raise a doubt
    assert [row[:2] for row in rows_of(done.stdout)] == [
        ["cache-f16", "1"], ["cache-f16", "2"], ["cache-q8_0", "1"], ["cache-q8_0", "2"],
    ]  # fmt: skip
    assert all(float(row[2]) > 0 for row in rows_of(done.stdout))
    assert done.stdout.splitlines()[-1] == f"all of it: {tmp_path / 'run'}"


@pytest.mark.real_engine
def test_two_settings_of_a_real_engine_are_compared(tmp_path: Path) -> None:
    server = os.environ.get("EDGEAGENT_TEST_LLAMA_SERVER")
    model = os.environ.get("EDGEAGENT_TEST_MODEL")
    if not server or not model:
        assert os.environ.get("EDGEAGENT_REQUIRE_REAL") != "1", "the real engine must be here"
        pytest.skip("EDGEAGENT_TEST_LLAMA_SERVER and EDGEAGENT_TEST_MODEL are not set")
    done = example(
        "compare_two_settings.py", model, "--binary", server, "--quick", "--concurrency", 1,
        "--out", tmp_path / "run",
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    assert [row[:2] for row in rows_of(done.stdout)] == [["cache-f16", "1"], ["cache-q8_0", "1"]]


def test_a_model_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    done = example("compare_two_settings.py", tmp_path / "nix.gguf", "--quick")
    assert done.returncode == 2
    assert "nix.gguf does not exist" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_run_becomes_rows_of_cells() -> None:
    done = example("rows_for_pandas.py", OLD_RUN)
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert [row["status"] for row in rows] == ["ok", "ok"]
    assert [row["ttft_s_p95"] for row in rows] == ["", ""]  # missing is not zero
    assert all(float(row["output_tokens_per_s"]) > 0 for row in rows)


def test_a_run_becomes_rows_of_requests() -> None:
    done = example("rows_for_pandas.py", OLD_RUN, "--requests")
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert len(rows) == 12
    assert all(0 < float(row["first_token_s"]) < float(row["last_token_s"]) for row in rows)


def test_what_is_no_run_is_one_sentence(tmp_path: Path) -> None:
    done = example("rows_for_pandas.py", tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


@pytest.mark.anyio
async def test_the_notebook_can_be_followed_to_its_end(tmp_path: Path) -> None:
    script = Script(slots=4, tempo=Tempo(ttft_s=0.02, itl_s=0.005))
    async with ScriptedServer(script) as server:
        environ = {"SERVER_URL": server.url, "RUN_FOLDER": str(tmp_path / "run")}
        done = await asyncio.to_thread(example, "notebook.py", environ=environ)
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path / 'run'}: complete" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("[0.0, ")


def test_the_examples_pass_the_strictest_type_check_where_edgeagent_is_only_installed(
    tmp_path: Path,
) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "import edgeagent\n"
        "edgeagent.plan(concurency=[1])\n"
        'edgeagent.read("run").result.cells[0].ttft_s.p50 + 1\n'
        "edgeagent.nothing\n"
    )
    copies = [tmp_path / path.name for path in sorted(EXAMPLES.glob("*.py"))]
    for copy in copies:
        copy.write_bytes((EXAMPLES / copy.name).read_bytes())
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir=cache",
         *(path.name for path in copies), wrong.name],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    told = done.stdout.splitlines()
    assert [line for line in told if "error" in line and not line.startswith("wrong.py")] == [
        f"Found 3 errors in 1 file (checked {len(copies) + 1} source files)"
    ]
    assert 'did you mean "concurrency"' in done.stdout
    assert 'Unsupported operand types for + ("None" and "int")' in done.stdout
    assert 'Module has no attribute "nothing"' in done.stdout
