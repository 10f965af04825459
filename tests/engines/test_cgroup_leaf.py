"""An engine's own cgroup: made where the agent may, refused with a reason elsewhere, taken away."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_places import eventually, exists, living
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.core.model import EngineConfig, EngineSpec
from edgeagent.engines.cgroup_leaf import ROOT_VARIABLE, find_place, make_leaf, own_group, set_up
from edgeagent.engines.fake import FakeEngine
from edgeagent.engines.process import EngineProcess

MIXED = "9:name=systemd:/\n4:memory:/job\n0::/system.slice/edgeagent.service/agent\n"


def tree(root: Path, own: str, mount: str = "sys/fs/cgroup") -> Path:
    """A recorded box whose agent is in `own`; the folder of that group."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(f"0::{own}\n", encoding="utf-8")
    folder = root / mount / own.lstrip("/")
    for each in (folder, folder.parent):
        each.mkdir(parents=True, exist_ok=True)
        (each / "cgroup.procs").write_text("", encoding="utf-8")
    return folder


def test_our_group_is_the_one_of_version_two() -> None:
    assert own_group(MIXED) == "/system.slice/edgeagent.service/agent"
    assert own_group("4:memory:/job\n") is None


@given(st.text())
def test_any_text_has_a_group_or_none(text: str) -> None:
    group = own_group(text)
    assert group is None or group.startswith("/")


# ------------------------------------------------------------------------------- where leaves go


@pytest.mark.parametrize("mount", ["sys/fs/cgroup", "sys/fs/cgroup/unified"])
def test_leaves_go_below_a_group_of_our_own(ordinary_folder: Path, mount: str) -> None:
    folder = tree(ordinary_folder, "/user.slice/app.scope", mount)
    assert find_place(ordinary_folder).folder == folder


def test_leaves_go_beside_an_agent_in_a_group_of_that_name(ordinary_folder: Path) -> None:
    folder = tree(ordinary_folder, "/system.slice/edgeagent.service/agent")
    assert find_place(ordinary_folder).folder == folder.parent


def test_a_group_marked_as_delegated_will_do_for_root_too(tmp_path: Path) -> None:
    folder = tree(tmp_path, "/system.slice/edgeagent.service")
    try:
        os.setxattr(folder, "user.delegate", b"1")
    except OSError as error:
        pytest.skip(f"this file system takes no user attributes: {error}")
    assert find_place(tmp_path).folder == folder


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "could not be read"),
        ("4:memory:/job\n", "no cgroup v2"),
        ("0::/\n", "the root of the cgroups"),
        ("0::/elsewhere\n", "is not mounted"),
    ],
)
def test_where_none_can_be_made_there_is_a_reason(
    tmp_path: Path, text: str | None, words: str
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    if text is not None:
        (tmp_path / "proc/self/cgroup").write_text(text, encoding="utf-8")
    place = find_place(tmp_path)
    assert place.folder is None
    assert words in (place.reason or "")
    leaf = make_leaf({}, tmp_path)
    assert (leaf.folder, leaf.reason) == (None, place.reason)


def test_a_group_of_somebody_else_is_left_alone(ordinary_folder: Path) -> None:
    folder = tree(ordinary_folder, "/user.slice/session.scope")
    (folder / "cgroup.procs").chmod(0o444)
    assert "was not delegated" in (find_place(ordinary_folder).reason or "")


def test_being_root_is_no_permission(tmp_path: Path) -> None:
    tree(tmp_path, "/user.slice/session.scope")
    if os.geteuid() != 0:
        pytest.skip("only root has everybody's permission")
    assert "was not delegated" in (find_place(tmp_path).reason or "")


# ------------------------------------------------------------------------------------ one leaf


def test_a_folder_that_is_no_cgroup_gets_no_leaf(tmp_path: Path) -> None:
    leaf = make_leaf({ROOT_VARIABLE: str(tmp_path)})
    assert leaf.folder is None
    assert "is no cgroup" in (leaf.reason or "")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_does_not_exist_gets_no_leaf(tmp_path: Path) -> None:
    leaf = make_leaf({ROOT_VARIABLE: str(tmp_path / "none")})
    assert "takes no group for an engine" in (leaf.reason or "")
    leaf.kill()
    leaf.remove()


def test_only_settings_that_the_kernel_offers_are_written(tmp_path: Path) -> None:
    for name in ("memory.oom.group", "cgroup.procs"):
        (tmp_path / name).write_text("", encoding="ascii")
    assert set_up(tmp_path) == ("memory.oom.group",)
    assert (tmp_path / "memory.oom.group").read_text(encoding="ascii") == "1"
    assert not (tmp_path / "memory.swap.max").exists()
    (tmp_path / "memory.swap.max").write_text("max", encoding="ascii")
    assert set_up(tmp_path) == ("memory.oom.group", "memory.swap.max")
    # Cut to its new length by the kernel's file; an ordinary one keeps what is behind.
    assert (tmp_path / "memory.swap.max").read_text(encoding="ascii").startswith("0")


# --------------------------------------------------------------------------- a real cgroup tree

REAL = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")


@pytest.fixture
def groups() -> Iterator[Path]:
    """A group of version 2 of our own on this machine."""
    for mount in map(Path, REAL):
        folder = mount / f"edgeagent-test-{os.getpid()}"
        if not (mount / "cgroup.controllers").exists():
            continue
        try:
            folder.mkdir()
        except OSError:
            continue
        yield folder
        folder.rmdir()
        return
    pytest.skip("no cgroup of version 2 can be made on this machine")


@pytest.fixture
def asked(groups: Path) -> Iterator[Path]:
    """The agent's environment names the group, as an operator would."""
    os.environ[ROOT_VARIABLE] = str(groups)
    yield groups
    del os.environ[ROOT_VARIABLE]


DESERTERS = """
import os, signal, sys, time
for number in range(8):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            with open(os.path.join(sys.argv[1], str(os.getpid())), "w"):
                pass
            time.sleep(600)
        os._exit(0)
time.sleep(600)
"""


def test_a_real_leaf_is_made_and_taken_away(groups: Path) -> None:
    leaf = make_leaf({ROOT_VARIABLE: str(groups)})
    assert leaf.folder == groups / "engine-1"
    # It is empty still, and yet nobody else's: its engine may be about to move in.
    other = make_leaf({ROOT_VARIABLE: str(groups)})
    assert other.folder == groups / "engine-2"
    for each in (leaf, other, other):
        each.remove()
    assert [path.name for path in groups.iterdir() if path.is_dir()] == []


def test_a_real_leaf_that_was_left_behind_is_taken_over(groups: Path) -> None:
    left = groups / "engine-1"
    left.mkdir()
    an_hour_ago = time.time() - 3600
    os.utime(left, (an_hour_ago, an_hour_ago))
    leaf = make_leaf({ROOT_VARIABLE: str(groups)})
    assert leaf.folder == left
    leaf.remove()


@pytest.mark.anyio
@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_a_real_leaf_holds_the_whole_engine_and_goes_with_it(
    tmp_path: Path, asked: Path, how: str
) -> None:
    folder = tmp_path / "pids"
    folder.mkdir()
    process = await EngineProcess.start(
        "engine",
        (sys.executable, "-c", DESERTERS, str(folder)),
        dict(os.environ),
        tmp_path / "log",
    )
    assert await eventually(lambda: len(list(folder.iterdir())) == 8)
    pids = {int(path.name) for path in folder.iterdir()}
    leaf = asked / "engine-1"
    assert process.isolation()["folder"] == str(leaf)
    inside = set(map(int, (leaf / "cgroup.procs").read_text(encoding="ascii").split()))
    assert inside == pids | {process.pid}
    # Its neighbour gets another one.
    beside = await EngineProcess.start(
        "engine", ("sleep", "600"), dict(os.environ), tmp_path / "log2"
    )
    assert await eventually(lambda: beside.isolation().get("folder") == str(asked / "engine-2"))
    if how == "kill":
        process.kill("the test says so")
    await process.stop()
    assert not any(exists(pid) for pid in inside)
    assert not leaf.exists()
    assert living(beside.pid)
    await beside.stop()
    assert [path.name for path in asked.iterdir() if path.is_dir()] == []


@pytest.mark.anyio
async def test_a_launch_tells_its_real_group(tmp_path: Path, asked: Path) -> None:
    spec = EngineSpec("fake", "fake")
    engine = FakeEngine(spec)
    server = await engine.start(EngineConfig(spec, 1, 256, "on", "off"), tmp_path / "log", 30)
    try:
        told = server.facts.details["cgroup"]
        assert isinstance(told, dict)
        assert told["folder"] == str(asked / "engine-1")
    finally:
        await engine.stop()
    assert not (asked / "engine-1").exists()


@pytest.mark.anyio
async def test_a_launch_without_a_group_tells_why(tmp_path: Path) -> None:
    os.environ[ROOT_VARIABLE] = str(tmp_path / "none")
    spec = EngineSpec("fake", "fake")
    engine = FakeEngine(spec)
    try:
        server = await engine.start(EngineConfig(spec, 1, 256, "on", "off"), tmp_path / "log", 30)
        told = server.facts.details["cgroup"]
    finally:
        del os.environ[ROOT_VARIABLE]
        await engine.stop()
    assert isinstance(told, dict)
    assert "takes no group" in str(told["reason"])
