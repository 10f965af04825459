"""The real llama-server as far as the memory lines of its log go."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from edgeagent.core.kv import CacheLayout, MemoryPrediction, ModelMemory, predict_llamacpp
from edgeagent.core.kv_gguf import from_gguf
from edgeagent.models.gguf import read_model

MIB = 1 << 20
SERVER = "EDGEAGENT_TEST_LLAMA_SERVER"
PLAIN, WINDOWED = "EDGEAGENT_TEST_MODEL", "EDGEAGENT_TEST_SWA_MODEL"


def named(variable: str) -> Path:
    found = os.environ.get(variable)
    if not found:
        assert os.environ.get("EDGEAGENT_REQUIRE_REAL") != "1", f"{variable} must be set"
        pytest.skip(f"{variable} is not set")
    return Path(found)


def predicted(model: Path, layout: CacheLayout) -> MemoryPrediction:
    facts = read_model(model)
    found = from_gguf(facts.metadata)
    assert found.shape is not None, found.reason
    memory = ModelMemory(found.shape, facts.size_bytes, facts.vocabulary)
    return predict_llamacpp(memory, layout)


def log_of(server: Path, model: Path, layout: CacheLayout) -> str:
    """The lines of a start, up to the one that says that it listens."""
    tokens = str(layout.slots * layout.context_per_slot)
    split = "--no-kv-unified" if layout.sharing == "split" else "--kv-unified"
    process = subprocess.Popen(
        [server, "-m", model, "--host", "127.0.0.1", "--port", "0", "-np", str(layout.slots),
         "-c", tokens, split, "-ctk", layout.kv_type, "-ctv", layout.kv_type, "-fa", "on",
         "-fit", "off", "-ngl", "0", "-t", "2", "--cache-ram", "0", "--no-warmup", "--offline",
         "-lv", "4"],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    lines = []
    try:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if "listening on" in line:
                break
    finally:
        process.kill()
        process.communicate()
    log = "".join(lines)
    assert "listening on" in log, log[-2000:]
    return log


def reported_mib(log: str, what: str) -> float:
    """Of all buffers of a kind; a windowed model has two caches."""
    found = re.findall(rf"{what} buffer size =\s*([0-9.]+) MiB", log)
    assert found, log[-2000:]
    return sum(map(float, found))
