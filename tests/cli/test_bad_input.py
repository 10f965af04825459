"""What a user gets wrong, and the one sentence that answers it. Nothing half-written is left."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from agent import SMALL, edgeagent, fake, sentence, words


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(24))
    return path


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    path = tmp_path / "llama-server"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -m edgeagent.engines.scripted "$@"\n')
    path.chmod(0o755)
    return path


def llamacpp(binary: object, model: object) -> list[str]:
    return ["--engine=llamacpp", f"--binary={binary}", f"--model={model}"]


def refused(folder: Path, status: int, *arguments: object) -> str:
    """The sentence; no run folder has been made."""
    done = edgeagent("sweep", *arguments, "--out", folder)
    assert done.returncode == status, done.stderr
    assert not folder.exists()
    return sentence(done)


def test_a_model_that_is_not_there(tmp_path: Path, binary: Path) -> None:
    told = refused(tmp_path / "r", 2, *llamacpp(binary, tmp_path / "none.gguf"))
    assert "none.gguf does not exist" in told


def test_a_model_that_is_no_gguf(tmp_path: Path, binary: Path) -> None:
    (tmp_path / "x.gguf").write_text("hello")
    assert "not a whole GGUF" in refused(tmp_path / "r", 2, *llamacpp(binary, tmp_path / "x.gguf"))


def test_a_truncated_model(tmp_path: Path, binary: Path, model: Path) -> None:
    model.write_bytes(model.read_bytes()[:-1])
    assert "not a whole GGUF" in refused(tmp_path / "r", 2, *llamacpp(binary, model))


def test_a_binary_that_is_not_there(tmp_path: Path, model: Path) -> None:
    assert "does not exist" in refused(tmp_path / "r", 2, *llamacpp("/no/llama-server", model))


def test_a_binary_that_is_not_in_path(tmp_path: Path, model: Path) -> None:
    assert "PATH" in refused(tmp_path / "r", 2, *llamacpp("llama-server-none", model))


def test_a_binary_that_may_not_be_run(tmp_path: Path, binary: Path, model: Path) -> None:
    binary.chmod(0o644)
    assert "not executable" in refused(tmp_path / "r", 2, *llamacpp(binary, model))


def test_a_binary_that_is_something_else(tmp_path: Path, model: Path) -> None:
    assert "--help" in refused(tmp_path / "r", 2, *llamacpp("/bin/true", model))


@pytest.mark.parametrize("levels", ["0", "-4", "four", "4,4", "1,,2", "1.5"])
def test_levels_that_are_none(tmp_path: Path, levels: str) -> None:
    told = refused(tmp_path / "r", 2, *fake(), f"--concurrency={levels}")
    assert "--concurrency" in told


def test_a_context_smaller_than_a_request(tmp_path: Path) -> None:
    told = refused(tmp_path / "r", 2, *fake(), "--context=100")
    assert "give at least 384" in told


def test_an_unknown_option_is_answered_by_usage(tmp_path: Path) -> None:
    done = edgeagent("sweep", "--concurency=4")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_an_unknown_key_of_a_plan(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text("[sweep]\nconcurency = [1]\n")
    assert "did you mean concurrency?" in refused(tmp_path / "r", 2, plan)


def test_the_example_plan_is_a_plan(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "configs" / "plan.toml"
    # Every key was understood: what is wrong is that its example paths are not there.
    assert "model.gguf does not exist" in refused(tmp_path / "r", 2, example)


def test_a_folder_that_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "mine").write_text("x")
    done = edgeagent("sweep", *fake(), "--out", tmp_path / "r")
    assert done.returncode == 2
    assert "has something in it" in sentence(done)
    assert [path.name for path in (tmp_path / "r").iterdir()] == ["mine"]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    done = edgeagent("sweep", *fake(), "--out", "/proc/nowhere/run")
    assert done.returncode == 2
    assert "/proc/nowhere" in sentence(done)


def test_resuming_what_is_no_run(tmp_path: Path) -> None:
    done = edgeagent("sweep", "--resume", tmp_path)
    assert done.returncode == 2
    assert "not a run folder" in sentence(done)


def test_a_resumed_run_takes_no_other_plan(tmp_path: Path) -> None:
    done = edgeagent("sweep", "--resume", tmp_path, "--repeats=5")
    assert done.returncode == 2


def test_more_slots_than_the_box_has_memory_for(tmp_path: Path) -> None:
    path = os.environ.get("EDGEAGENT_TEST_MODEL")
    server = os.environ.get("EDGEAGENT_TEST_LLAMA_SERVER")
    if not path or not server:
        assert os.environ.get("EDGEAGENT_REQUIRE_REAL") != "1"
        pytest.skip("needs a real model")
    # 1,024 slots of 8,192 tokens, 22.5 MiB per 1,024 tokens: 180 GiB
    told = refused(tmp_path / "r", 3, *llamacpp(server, path), "--slots=1024", "--context=8192")
    assert "180." in told
    assert "available" in told


def test_verifying_what_is_no_run(tmp_path: Path) -> None:
    done = edgeagent("verify", tmp_path)
    assert done.returncode == 2
    assert "not a run folder" in sentence(done)


# ----------------------------------------------------------------------------------------- a URL


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """A server that gives every request this answer."""
    loop = asyncio.new_event_loop()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        writer.write(answer)
        writer.close()

    server = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0))
    port = server.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def http(status: str, kind: str, body: str) -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
    # Said, because it is done: a client that keeps the connection would race with its end.
    return f"{head}connection: close\r\n\r\n{body}".encode()


def test_a_url_that_answers_html(tmp_path: Path) -> None:
    with answering(http("200 OK", "text/html", "<html>router</html>")) as url:
        told = refused(tmp_path / "r", 69, "--url", url)
    assert "text/html, not a list of models" in told


def test_a_url_that_wants_a_key(tmp_path: Path) -> None:
    with answering(http("401 Unauthorized", "application/json", "{}")) as url:
        assert "--api-key-file" in refused(tmp_path / "r", 69, "--url", url)


def test_a_url_that_answers_nothing(tmp_path: Path) -> None:
    with answering(b"") as url:
        assert "did not answer" in refused(tmp_path / "r", 69, "--url", url)


def test_a_url_where_nobody_listens(tmp_path: Path) -> None:
    assert "did not answer" in refused(tmp_path / "r", 69, "--url=http://127.0.0.1:1")


def test_a_key_file_that_is_not_there(tmp_path: Path) -> None:
    told = refused(tmp_path / "r", 2, "--url=http://127.0.0.1:1", "--api-key-file=/no/key")
    assert "/no/key" in told


# ----------------------------------------------------------------------------------------- manners


def test_a_dry_run_shows_the_plan_and_starts_nothing(tmp_path: Path) -> None:
    done = edgeagent("sweep", *fake(), *SMALL, "--dry-run", "--out", tmp_path / "r")
    assert done.returncode == 0
    assert "measure 2 at once: 2 lead-in, 4 measured requests" in done.stdout
    assert "expected time" in done.stdout
    assert not (tmp_path / "r").exists()


def test_versions_and_help() -> None:
    assert edgeagent("--version").stdout.startswith("edgeagent 0.")
    for command in ([], ["sweep"], ["verify"], ["schema"]):
        done = subprocess.run(
            words(*command, "--help"),
            capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "80"},
        )  # fmt: skip
        assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_reader_that_has_gone_is_no_crash() -> None:
    done = subprocess.run(
        f"{sys.executable} -m edgeagent schema result | head -c 10",
        shell=True, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
