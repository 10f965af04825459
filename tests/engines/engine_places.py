"""Where the real engine lies, and small things that the engine tests share."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from edgeagent.core.kv_model import uniform
from edgeagent.core.model import EngineConfig, EngineSpec, ModelIdentity
from edgeagent.engines.llamacpp import LlamaCppEngine, LlamaCppModel
from edgeagent.engines.vllm import VllmEngine
from edgeagent.engines.vllm_flags import Place, VllmModel

SERVER = "EDGEAGENT_TEST_LLAMA_SERVER"
MODEL = "EDGEAGENT_TEST_MODEL"
VLLM_PYTHON = "EDGEAGENT_TEST_VLLM_PYTHON"
VLLM_MODEL = "EDGEAGENT_TEST_VLLM_MODEL"
REQUIRED = "EDGEAGENT_REQUIRE_REAL"
FIXTURES = Path(__file__).with_name("fixtures")


def place(name: str) -> str:
    """The path in the environment; without it the test is skipped, or fails where it must run."""
    found = os.environ.get(name)
    if found:
        return found
    why = f"{name} is not set: it names a real engine or its model"
    if os.environ.get(REQUIRED) == "1":
        pytest.fail(why)
    pytest.skip(why)


def no_hash(path: Path) -> str:
    return "a" * 64


def weights(path: str) -> LlamaCppModel:
    return LlamaCppModel(ModelIdentity(id="m", path=path), sliding_window=False)


def real_config(command: tuple[str, ...], slots: int = 2, context: int = 256) -> EngineConfig:
    # One thread: the tests ask for a few tokens, and the box has other work.
    spec = EngineSpec("real", "llamacpp", command, "m.gguf", args=("-t", "1"))
    return EngineConfig(spec, slots, context, "on", "off", "cpu")


def llama(
    command: tuple[str, ...], model: str, environment: Mapping[str, str] | None = None
) -> LlamaCppEngine:
    return LlamaCppEngine(real_config(command).engine, weights(model), no_hash, environment)


SCRIPTED_VLLM = (sys.executable, "-m", "edgeagent.engines.scripted_vllm")
SCRIPTED_MODEL = VllmModel(
    # As scripted_vllm.py has it: 256 bytes a token.
    ModelIdentity(id="scripted", path="scripted"), uniform(2, 1, 32, 32), element_type="bfloat16"
)  # fmt: skip


@dataclass(frozen=True)
class Scripted:
    spec: EngineSpec
    engine: VllmEngine


def scripted_vllm(
    *more: str,
    command: tuple[str, ...] = SCRIPTED_VLLM,
    environment: Mapping[str, str] | None = None,
) -> Scripted:
    """vLLM as far as its surface goes, in blocks of 16 tokens, on a box with two cores."""
    spec = EngineSpec("v", "vllm", command, "scripted", args=("--block-size", "16", *more))
    place = Place(gpu=False, cores=2)
    return Scripted(spec, VllmEngine(spec, SCRIPTED_MODEL, no_hash, environment, place))


def living(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="latin-1")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def exists(pid: int) -> bool:
    """Whether the process table still holds it, a zombie included."""
    return Path(f"/proc/{pid}").exists()


async def eventually(true: Callable[[], object], deadline_s: float = 20.0) -> bool:
    """Whether it became true before the deadline, looked at again and again."""
    until = time.monotonic() + deadline_s
    while time.monotonic() < until:
        if true():
            return True
        await asyncio.sleep(0.02)
    return bool(true())
