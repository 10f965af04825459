"""A command line can be repeated from what is shown of it, and gives no secret away."""

from __future__ import annotations

import pytest

from edgeagent.core.command import without_secrets


def test_ordinary_words_stay_as_they_are() -> None:
    words = (
        "edgeagent", "sweep", "--engine", "llamacpp", "--model", "a b.gguf", "--output-tokens=4",
        "--prefix-tokens", "64", "--api-key-file", "/etc/key", "--url", "http://127.0.0.1:80/v1",
    )  # fmt: skip
    assert without_secrets(words) == words


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--api-key", "k"], ["--api-key", "***"]),
        (["--api-key=k=1"], ["--api-key=***"]),
        (["--hf-token", "k", "-np", "4"], ["--hf-token", "***", "-np", "4"]),
        (["--engine-arg", "vllm=--api-key=k"], ["--engine-arg", "vllm=--api-key=***"]),
        (
            ["--engine-arg", "vllm=--api-key", "--engine-arg", "vllm=k"],
            ["--engine-arg", "vllm=--api-key", "--engine-arg", "vllm=***"],
        ),
        (
            ["--engine-arg=vllm=--api-key", "--engine-arg=vllm=k"],
            ["--engine-arg=vllm=--api-key", "--engine-arg=vllm=***"],
        ),
        (["--url", "http://me:k@box/v1"], ["--url", "http://***@box/v1"]),
        (["http://box/?token=k&n=1"], ["http://box/?token=***&n=1"]),
        (["--password"], ["--password"]),
    ],
)
def test_secrets_are_hidden_and_nothing_else(words: list[str], shown: list[str]) -> None:
    assert without_secrets(words) == tuple(shown)
