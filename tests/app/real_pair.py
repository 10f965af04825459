"""Both real engines on the two forms of one model, and vLLM's Python for questions to its parts."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest

from edgeagent.load.workload import plant_text

_START_S = 400.0
"""vLLM was seen to need 26 to 54 s alone, and the box may be shared."""


def named(variable: str, required: str = "EDGEAGENT_REQUIRE_VLLM") -> Path:
    found = os.environ.get(variable)
    if not found:
        reason = os.environ.get("EDGEAGENT_NO_VLLM", f"{variable} is not set")
        assert os.environ.get(required) != "1", reason
        pytest.skip(reason)
    return Path(found)


def vllm_python() -> Path:
    return named("EDGEAGENT_TEST_VLLM_PYTHON")


def asked(script: str, *words: object) -> Any:
    """What a script that runs in vLLM's environment prints, as JSON."""
    done = subprocess.run(
        [vllm_python(), "-W", "ignore", "-c", script, *map(str, words)],
        capture_output=True, text=True, timeout=250, check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextlib.contextmanager
def _serving(command: Sequence[object], port: int, log: Path) -> Iterator[httpx.Client]:
    """A server that answers; at the end nothing of its process group is left."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(word) for word in command], stdout=out, stderr=out, start_new_session=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
                 "VLLM_NO_USAGE_STATS": "1"},
        )  # fmt: skip
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120)
    try:
        deadline = time.monotonic() + _START_S
        while not _ready(client):
            tail = log.read_text(errors="replace")[-3000:]
            assert process.poll() is None, tail
            assert time.monotonic() < deadline, tail
            time.sleep(0.1)
        yield client
    finally:
        client.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _ready(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.HTTPError:
        return False


Serving: TypeAlias = contextlib.AbstractContextManager[httpx.Client]


def llama(model: Path, log: Path, context: int = 1024) -> Serving:
    """A llama-server with the most exact cache it has."""
    server = named("EDGEAGENT_TEST_LLAMA_SERVER", "EDGEAGENT_REQUIRE_REAL")
    port = _free_port()
    return _serving(
        [server, "-m", model, "--host", "127.0.0.1", "--port", port, "-np", 1, "-c", context,
         "-t", 1, "-fit", "off", "-ngl", 0, "--cache-ram", 0, "--offline", "--no-warmup",
         "-ctk", "f32", "-ctv", "f32"],
        port, log,
    )  # fmt: skip


def vllm(folder: Path, log: Path) -> Serving:
    """vLLM on the CPU; its console script looks for a distribution of another name there."""
    port = _free_port()
    return _serving(
        [vllm_python(), "-m", "vllm.entrypoints.openai.api_server", "--model", folder,
         "--served-model-name", "pair", "--host", "127.0.0.1", "--port", port, "--enforce-eager",
         "--max-model-len", 1024, "--max-num-seqs", 4, "--kv-cache-memory-bytes", 256 << 20],
        port, log,
    )  # fmt: skip


_POOL = "aZ 9.'\n\t\r -_éß中あ🏭²½\u00a0\u0301s{}[]\"\\/tTlLdDrRvVmM   "


def texts() -> list[str]:
    """Plant traffic, and what tokenizers have stumbled over."""
    rng = random.Random(5)
    made = ["".join(rng.choice(_POOL) for _ in range(rng.randrange(1, 60))) for _ in range(150)]
    return [
        *(plant_text(random.Random(seed), 2000) for seed in range(3)),
        *made,
        "Überdruck 12.5 bar — 設備が停止しました 🏭🔥 Привет мир שלום",
        "  two  spaces\n\n\n\ttabs \r\n end ", "   ", "\n\n", " leading", "trailing ", "",
        "1234567890 3.14 ½ ² \U0001d7d8 ٣٤٥", "a" * 300, "e\u0301 é 👩\u200d👩\u200d👧 \U0001f1e9",
        "don't WE'LL I'd O'Neil's \u2019s \u017f'\u017f K\u212a",
        "<|im_start|>user\nhi<|im_end|>\n<start_of_turn>x",
        "def f(x):\n    return {'a': [1, 2]}\n\n",
        "\u200b\ufeffx\u00a0y\u3000z\u2028w", "\x00\x01",
        "中文字符abc123", "▁x y▁", "! !! ?a ..b",
    ]  # fmt: skip
