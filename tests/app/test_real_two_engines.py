"""Both real engines in one sweep, on the same weights: the short form of the whole question."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent import OF_THE_BOX, edgeagent, processes_of, result
from real_pair import named, vllm_python

pytestmark = pytest.mark.real_engine

PLAN = """
[sweep]
concurrency = [1, 2]
requests = 4
warmup = 1
repeats = 1
cooldown = 0.5
prefix_cache = "on"
prefix_tokens = 160
prompt_tokens = 32
output_tokens = 8
memory_slots = [1, 16]
memory_repeats = 1
settle = 1.0
canary = 0

[engines.llamacpp]
kind = "llamacpp"
binary = "{server}"
model = "{pair}/model-bf16.gguf"

[engines.vllm]
kind = "vllm"
binary = "{vllm}"
model = "{pair}/hf"
args = ["--enforce-eager"]
"""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    server, pair = named("EDGEAGENT_TEST_LLAMA_SERVER"), named("EDGEAGENT_TEST_PAIR")
    vllm = vllm_python()
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.format(server=server, pair=pair, vllm=vllm))
    return path


@pytest.mark.timeout(900)
def test_both_engines_are_measured_on_the_same_weights_and_nothing_is_left(
    tmp_path: Path, plan: Path
) -> None:
    folder = tmp_path / "run"
    done = edgeagent("sweep", plan, "--out", folder, "--quiet", timeout_s=840)
    document = result(folder)
    assert document["status"] == "complete", done.stderr
    doubts = {f["code"] for f in document["findings"] if f["severity"] == "suspect"}
    assert doubts <= OF_THE_BOX, done.stderr
    for cell in document["cells"]:
        assert cell["requests"] == {"planned": 4, "ok": 4, "failed": 0, "errors": {}}
        assert cell["output_tokens"] == 4 * 8
        # The shared opening, less one block of 128 tokens where prefixes come in blocks.
        assert cell["cached_prompt_fraction"] >= (128 if cell["engine"] == "vllm" else 158) / 192
        of_pool = cell["memory"]["values"].get("pool.kv_blocks_used")
        assert (of_pool is not None) == (cell["engine"] == "vllm")
    digests = {model["weights_digest"] for model in document["models"]}
    assert len(document["models"]) == 2
    assert len(digests) == 1
    assert None not in digests
    costs = {cost["engine"]: cost for cost in document["memory"]}
    # 256 tokens a slot x 23,040 bytes. A request of 200 tokens holds 2 blocks of 128, and the first
    # one lies within the shared opening: the second request adds a single block.
    assert costs["llamacpp"]["predicted_bytes_per_slot"] == pytest.approx(256 * 23040, rel=0.05)
    assert costs["vllm"]["measured_bytes_per_slot"] == 128 * 23040
    # Starts of its three processes differ by some MiB whatever the pool: 15 slots are 84 MiB.
    assert costs["vllm"]["ready_bytes_per_slot"] == pytest.approx(256 * 23040, rel=0.25)
    assert {found["outcome"] for found in document["comparison"]} == {"unresolved"}
    assert not processes_of(folder)
    assert edgeagent("verify", folder).returncode == 0
