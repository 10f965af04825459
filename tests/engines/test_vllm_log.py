"""vLLM's log tells how far a start has come, and the cause of a failure is not its last line.

The logs are of 0.32.0 on a CPU, without tracebacks' lines of code.
"""

from __future__ import annotations

import pytest
from engine_places import FIXTURES
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.engines.vllm_log import Kind, cause, device, stage


def log(name: str) -> str:
    return (FIXTURES / "vllm" / f"{name}.log").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("unknown-flag", "unknown_flag", "error: unrecognized arguments: --no-such-flag"),
        ("bad-value", "unknown_flag", "error: argument --max-model-len: invalid human_readable"),
        ("no-model", "no_model", "huggingface_hub.errors.HFValidationError: Repo id must be"),
        ("port-busy", "port_busy", "OSError: [Errno 98] Address already in use"),
        ("pool-too-small", "pool_too_small", "To serve at least one request with the model's"),
        ("no-memory", "no_memory", "Available memory on node 0 (16.13/17.59 GiB) on kv cache"),
        ("too-long", "too_long", "Value error, User-specified max_model_len (50000) is greater"),
        (
            "bad-speculation",
            "other",
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for "
            "SpeculativeConfig method Input should be 'ngram'",
        ),
    ],
)
def test_the_root_cause_is_found_and_named(name: str, kind: Kind, words: str) -> None:
    found = cause(log(name))
    assert found is not None
    assert found.kind == kind
    assert found.words.startswith(words)
    assert "\n" not in found.words
    assert len(found.words) <= 300


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        # As in its source; no GPU was there to see them on.
        (
            "ValueError: Free memory on device cuda:0 (3.1/7.4 GiB) on startup is less than "
            "desired GPU memory utilization (0.92, 6.8 GiB).",
            "no_memory",
        ),
        ("ValueError: No available memory for the cache blocks. Try increasing ...", "no_memory"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.0 GiB.", "no_memory"),
        ("AssertionError: Error in memory profiling. Initial free memory 3 GiB ...", "memory_race"),
        # Of a python without vLLM, and of one whose libraries do not fit.
        ("/venv/bin/python: No module named vllm", "environment"),
        ("ImportError: libcudart.so.12: cannot open shared object file", "environment"),
        ("ModuleNotFoundError: No module named 'torchvision'", "environment"),
        ("edgeagent: cannot run /venv/bin/vllm: No such file or directory", "environment"),
        ("ValueError: something of its own", "other"),
        ("nothing that is known", "other"),
    ],
)
def test_causes_that_stand_alone_are_known(line: str, kind: Kind) -> None:
    follows = "(APIServer pid=7) RuntimeError: Engine core failed. See root cause above."
    prefix = "(EngineCore pid=8) ERROR 11-30 08:47:25 [core.py:1510] "
    found = cause(f"{prefix}{line}\n" + (f"{follows}\n" if "Error" in line else ""))
    assert found is not None
    assert found.kind == kind


def test_a_warning_that_speaks_of_an_error_is_not_the_cause() -> None:
    warning = (
        "(APIServer pid=7) WARNING 11-30 08:44:40 [system_utils.py:255] Found ulimit of 20000. "
        "This can cause fd limit errors like `OSError: [Errno 24] Too many open files`"
    )
    found = cause(f"{warning}\nRuntimeError: the real one\n")
    assert found is not None
    assert found.words == "RuntimeError: the real one"


def test_an_empty_log_tells_no_cause_and_no_stage() -> None:
    assert cause("\n \n") is None
    assert stage("") is None


def test_stages_follow_each_other_as_the_log_grows() -> None:
    lines = log("start").splitlines(keepends=True)
    said: list[str | None] = []
    for end in range(len(lines) + 1):
        now = stage("".join(lines[:end]))
        if not said or said[-1] != now:
            said.append(now)
    assert said == [
        None,
        "importing its libraries",
        "reading the model's configuration",
        "starting its engine",
        "loading weights",
        "loading weights, 0 %",
        "loading weights, 100 %",
        "weights loaded, preparing the cache",
        "cache made, warming up",
        "opening its port",
    ]


def test_the_device_is_the_one_it_names() -> None:
    assert device(log("start")) == "cpu"
    assert device("config: device_config=cuda, structured ...") == "gpu"
    assert device("GPU KV cache size: 43,296 tokens, Maximum concurrency ...") == "gpu"
    assert device("nothing of the kind") is None


@given(st.text())
def test_any_text_is_read_in_one_line(text: str) -> None:
    found = cause(text)
    assert found is None or "\n" not in found.words
    stage(text)
