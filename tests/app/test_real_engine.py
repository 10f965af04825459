"""The main job on the real llama-server: cold is cold, warm is warm, a kill costs nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from agent import SMALL, begun, edgeagent, lines, processes_of, result, until

pytestmark = pytest.mark.real_engine


@pytest.fixture
def real() -> list[str]:
    server = os.environ.get("EDGEAGENT_TEST_LLAMA_SERVER")
    model = os.environ.get("EDGEAGENT_TEST_MODEL")
    if not server or not model:
        assert os.environ.get("EDGEAGENT_REQUIRE_REAL") != "1", "the real engine must be here"
        pytest.skip("EDGEAGENT_TEST_LLAMA_SERVER and EDGEAGENT_TEST_MODEL are not set")
    return ["--engine=llamacpp", f"--binary={server}", f"--model={model}"]


def test_a_sweep_of_a_real_model_is_proved_and_survives_a_kill(
    tmp_path: Path, real: list[str]
) -> None:
    folder = tmp_path / "run"
    process = begun("sweep", *real, *SMALL, "--output-tokens=24", "--out", folder, "--quiet")
    until(
        lambda: (folder / "cells.jsonl").exists() and (folder / "cells.jsonl").read_text(),
        "the first cell",
    )
    process.kill()
    process.communicate()
    until(lambda: not processes_of(folder), "the end of the engine")
    kept = lines(folder, "cells.jsonl")
    done = edgeagent("sweep", "--resume", folder, "--quiet", timeout_s=120)
    document = result(folder)
    assert document["status"] == "complete", done.stderr
    for cell in document["cells"]:
        # 48 of 64 prompt tokens are the shared opening; one more may agree by chance
        shared = (0.75, 0.78) if cell["prefix_cache"] == "on" else (0.0, 0.0)
        assert shared[0] <= cell["cached_prompt_fraction"] <= shared[1]
        assert cell["requests"] == {"planned": 4, "ok": 4, "failed": 0, "errors": {}}
        assert cell["token_count_source"] == "timings"  # noqa: S105  # because it is no password
        assert cell["output_tokens"] == 4 * 24
    ids = [line["cell_id"] for line in lines(folder, "cells.jsonl")]
    assert len(ids) == len(set(ids)) == 4
    assert ids[: len(kept)] == [line["cell_id"] for line in kept]
    for launch in document["engines"][0]["launches"]:
        assert 0.0 <= launch["model_cached_fraction"] <= 1.0
    model = document["models"][0]
    assert (model["quantization"], model["architecture"]) == ("Q4_1", "llama")
    assert edgeagent("verify", folder).returncode == 0
