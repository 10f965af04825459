"""A service makes room for its engines' cgroups; an engine is held to the memory it was given."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeagent.engines.cgroup_leaf import LIMIT_VARIABLE, ROOT_VARIABLE, make_leaf, make_room
from edgeagent.engines.process import EngineProcess
from edgeagent.errors import EngineError

US = {"SYSTEMD_EXEC_PID": str(os.getpid())}


def service(root: Path, name: str, *, holds: int) -> Path:
    """A recorded box on which we are in the group of that name; its folder."""
    folder = root / "sys/fs/cgroup/system.slice" / name
    folder.mkdir(parents=True)
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(f"0::/system.slice/{name}\n", encoding="utf-8")
    (folder / "cgroup.procs").write_text(f"{holds}\n", encoding="utf-8")
    return folder


def test_a_service_moves_itself_into_a_group_of_its_own(ordinary_folder: Path) -> None:
    folder = service(ordinary_folder, "edgeagent.service", holds=os.getpid())
    make_room(US, ordinary_folder)
    assert (folder / "agent").is_dir()


@pytest.mark.parametrize(
    ("environment", "name", "holds"),
    [
        ({}, "edgeagent.service", os.getpid()),
        ({"SYSTEMD_EXEC_PID": "1"}, "edgeagent.service", os.getpid()),  # a child of the service
        ({**US, ROOT_VARIABLE: "/elsewhere"}, "edgeagent.service", os.getpid()),
        (US, "session-3.scope", os.getpid()),  # shared with a shell
        (US, "edgeagent.service", 1),  # moved already
    ],
)
def test_nobody_else_is_moved(
    ordinary_folder: Path, environment: dict[str, str], name: str, holds: int
) -> None:
    folder = service(ordinary_folder, name, holds=holds)
    make_room(environment, ordinary_folder)
    assert not (folder / "agent").exists()


def test_where_there_is_no_group_nothing_is_done(tmp_path: Path) -> None:
    make_room(US, tmp_path)
    assert list(tmp_path.iterdir()) == []


MOVES = """
import os, sys
from edgeagent.engines.cgroup_leaf import make_leaf, make_room
sys.stdin.readline()
make_room({"SYSTEMD_EXEC_PID": str(os.getpid())})
leaf = make_leaf({})
print(leaf.folder or leaf.reason)
leaf.remove()
print(open("/proc/self/cgroup").read())
"""


@pytest.fixture
def delegated() -> Iterator[Path]:
    """A real group that is marked as systemd marks a delegated one."""
    for mount in map(Path, ("/sys/fs/cgroup/unified", "/sys/fs/cgroup")):
        folder = mount / f"edgeagent-test-{os.getpid()}.service"
        if not (mount / "cgroup.controllers").exists():
            continue
        try:
            folder.mkdir()
            os.setxattr(folder, "user.delegate", b"1")
        except OSError:
            if folder.exists():
                folder.rmdir()
            continue
        yield folder
        for left in (folder / "agent", folder):
            if left.exists():
                left.rmdir()
        return
    pytest.skip("no cgroup of version 2 can be made and marked on this machine")


def test_in_a_real_group_engines_are_beside_the_service(delegated: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", MOVES],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as child:  # fmt: skip
        (delegated / "cgroup.procs").write_text(str(child.pid), encoding="utf-8")
        told, _ = child.communicate("go\n", 60)
    leaf, *groups = told.splitlines()
    assert leaf == str(delegated / "engine-1")
    assert f"0::/{delegated.name}/agent" in groups


# --------------------------------------------------------------------------------- the limit


def asked(root: Path, amount: str) -> dict[str, str]:
    return {ROOT_VARIABLE: str(root), LIMIT_VARIABLE: amount}


def test_no_limit_is_asked_for_by_default(tmp_path: Path) -> None:
    assert make_leaf({ROOT_VARIABLE: str(tmp_path)}).unlimited is None


@pytest.mark.parametrize("amount", ["12 GB", "-1", "0", "max", "1.5G", "12Q", "9" * 30])
def test_what_is_no_amount_is_told(tmp_path: Path, amount: str) -> None:
    told = make_leaf(asked(tmp_path, amount)).unlimited
    assert told is not None
    assert f"{LIMIT_VARIABLE} is {amount}" in told
    assert "write 12G" in told


def test_a_limit_without_a_group_is_told_with_the_reason(tmp_path: Path) -> None:
    told = make_leaf(asked(tmp_path / "none", "12G")).unlimited
    assert told is not None
    assert "takes no group for an engine" in told


@pytest.mark.anyio
async def test_an_engine_that_cannot_be_held_to_its_limit_is_not_started(tmp_path: Path) -> None:
    os.environ[LIMIT_VARIABLE] = "12G"
    os.environ[ROOT_VARIABLE] = str(tmp_path / "none")
    try:
        with pytest.raises(EngineError, match="cannot be kept"):
            await EngineProcess.start("engine", ("true",), dict(os.environ), tmp_path / "log")
    finally:
        del os.environ[LIMIT_VARIABLE], os.environ[ROOT_VARIABLE]
    assert not (tmp_path / "log").exists()
