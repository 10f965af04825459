"""Engines that somebody else started, found by what /proc tells of every process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.probes.processes import Process, engine_kind, engines, parse, scan, tree


def process(pid: int, parent: int, *argv: str, name: str = "x") -> Process:
    return Process(pid, parent, name, argv)


@pytest.mark.parametrize(
    ("argv", "name", "kind"),
    [
        (("/opt/llama.cpp/llama-server", "-m", "a.gguf"), "llama-server", "llamacpp"),
        (("./run.sh",), "llama-server", "llamacpp"),  # exec -a, or a script of that name
        (("/venv/bin/python3", "/venv/bin/vllm", "serve", "Qwen"), "python3", "vllm"),
        (("python", "-m", "vllm.entrypoints.openai.api_server"), "python", "vllm"),
        (("vllm", "serve", "Qwen"), "vllm", "vllm"),
        (("VLLM::EngineCore",), "VLLM::EngineCor", "vllm"),
        (("python3", "-m", "http.server"), "python3", None),
        (("python3", "report.py", "vllm"), "python3", None),
        (("vim", "llama-server"), "vim", None),
        ((), "kworker/0:1", None),
    ],
)
def test_an_engine_is_known_by_its_program_not_by_a_word_in_its_arguments(
    argv: tuple[str, ...], name: str, kind: str | None
) -> None:
    assert engine_kind(process(7, 1, *argv, name=name)) == kind


def test_what_an_engine_started_is_part_of_it() -> None:
    found = engines(
        (
            process(1, 0, "init"),
            process(10, 1, "vllm", "serve", "org/model", "--port", "8001"),
            process(11, 10, "VLLM::EngineCore", name="VLLM::EngineCor"),
            process(12, 11, "python3", "worker.py"),
            process(20, 1, "llama-server", "--port=8080", "--model", "/models/b.gguf"),
        )
    )

    assert [(one.kind, one.pids, one.model, one.port) for one in found] == [
        ("vllm", (10, 11, 12), "org/model", 8001),
        ("llamacpp", (20,), "/models/b.gguf", 8080),
    ]


def test_the_module_that_python_runs_is_not_taken_for_the_model() -> None:
    argv = ("python", "-m", "vllm.entrypoints.openai.api_server", "--model", "org/model")

    (found,) = engines((process(5, 1, *argv),))

    assert found.model == "org/model"


def test_a_name_may_hold_parentheses_and_spaces() -> None:
    assert parse("42 (a) b (c)) S 7 1 1", b"x\0y\0") == Process(42, 7, "a) b (c)", ("x", "y"))


@given(st.text(), st.binary())
def test_whatever_stands_in_stat_is_a_process_or_none(stat: str, cmdline: bytes) -> None:
    found = parse(stat, cmdline)

    assert found is None or isinstance(found.pid, int)


links = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), unique_by=lambda link: link[0])


@given(links, st.integers(1, 30))
def test_a_tree_has_every_descendant_once_even_where_parents_go_in_circles(
    listed: list[tuple[int, int]], pid: int
) -> None:
    found = tree([process(one, parent) for one, parent in listed], pid)

    parents = dict(listed)
    assert len(set(found)) == len(found)
    assert (pid in found) == (pid in parents)
    for one in found[1:]:
        assert parents[one] in found


def test_the_processes_of_this_machine_are_read_with_their_parents() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as child:
        found = {one.pid: one for one in scan(Path("/proc"))}

        assert found[child.pid].parent == os.getpid()
        assert child.pid in tree(found.values(), os.getpid())
        child.communicate(b"\n")
