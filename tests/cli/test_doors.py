"""How the command line refuses, and what happens when nobody takes its output."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from agent import ROOT, edgeagent, fake, sentence, words


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "COMMAND"),
        (("frobnicate",), "frobnicate"),
        (("sweep", "--frobnicate"), "--frobnicate"),
        (("sweep", "--requests", "many"), "--requests"),
        (("sweep", "--shape", "zigzag"), "--shape"),
        (("sweep", "--engine", "fake", "--slots", "0"), "--slots"),
        (("sweep", "--engine", "fake", "--slots", "-4"), "--slots"),
        (("schema", "frob"), "frob"),
        (("memory", "m.gguf", "--slots", "1", "4", "8"), "1,4,8"),
        (("memory", "m.gguf", "--budget", "8"), "8GiB"),
    ],
)
def test_what_is_wrong_with_words_is_one_sentence(arguments: tuple[str, ...], named: str) -> None:
    done = edgeagent(*arguments)
    assert done.returncode == 2
    assert named in sentence(done)
    assert done.stdout == ""


def test_a_full_disk_under_standard_output_is_one_sentence() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            words("schema", "result"), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert "standard output" in sentence(done)


def test_a_pipe_that_nobody_reads_ends_quietly() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            words("schema", "result"), stdout=write, stderr=subprocess.PIPE, text=True, check=False
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_an_interrupt_before_anything_began_is_no_traceback(tmp_path: Path) -> None:
    fifo = tmp_path / "plan.toml"  # reading it waits for a writer: as slow as a model's hash
    os.mkfifo(fifo)
    running = subprocess.Popen(
        words("sweep", fifo), cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    writer = os.open(fifo, os.O_WRONLY)  # returns once the agent has opened it
    running.send_signal(signal.SIGINT)
    # A signal that comes just before the read is looked at when the read returns: let it return.
    os.close(writer)
    _, stderr = running.communicate(timeout=60)
    assert running.returncode == 130
    assert stderr == "edgeagent: interrupted before anything was measured\n"


def test_quiet_prints_nothing(tmp_path: Path) -> None:
    done = edgeagent(
        "sweep", *fake(), "--concurrency=1", "--requests=2", "--repeats=1", "--output-tokens=2",
        "--prefix-cache=off", "--memory-repeats=0", "--canary=0", "--quiet",
        "--out", tmp_path / "run",
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
