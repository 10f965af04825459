"""What the kernel charges to the engine's cgroup, from recorded trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trees import unpack

from edgeagent.probes.cgroup import (
    CgroupProbe,
    parse_cgroup,
    parse_counts,
    tightest,
)

UNIT = "sys/fs/cgroup/system.slice/edgeagent.service"
ENGINE = (951, 952)
CHARGES = ("current_bytes", "anon_bytes", "file_bytes", "oom_kills")


def test_an_engine_in_a_cgroup_of_its_own(tmp_path: Path) -> None:
    values, absent = CgroupProbe(unpack("cpu", tmp_path)).read(ENGINE)

    assert values == {
        "cgroup.engine_current_bytes": 9_932_111_872,
        "cgroup.engine_anon_bytes": 1_342_177_280,
        "cgroup.engine_file_bytes": 8_589_934_592,
        "cgroup.engine_oom_kills": 1,
        "cgroup.limit_bytes": 24 << 30,  # of the whole service; the leaf itself has none
    }
    assert absent == {}


def test_the_tightest_limit_on_the_way_to_the_root_counts(tmp_path: Path) -> None:
    root = unpack("cpu", tmp_path)
    (root / UNIT / "engine-1/memory.max").write_text(f"{20 << 30}\n")
    (root / "sys/fs/cgroup/system.slice/memory.max").write_text(f"{22 << 30}\n")

    values, _ = CgroupProbe(root).read(ENGINE)

    assert values["cgroup.limit_bytes"] == 20 << 30


def test_no_limit_is_null_and_not_zero(tmp_path: Path) -> None:
    values, absent = CgroupProbe(unpack("amd-apu", tmp_path)).read([951])

    assert values["cgroup.limit_bytes"] is None
    assert absent == {"cgroup.limit_bytes": "no limit"}


@pytest.mark.parametrize("agents", ["engine-1", "engine-1/inner"])
def test_a_cgroup_that_holds_the_agent_too_is_not_the_engines_but_its_limit_is(
    tmp_path: Path, agents: str
) -> None:
    root = unpack("cpu", tmp_path)
    (root / "proc/900/cgroup").write_text(f"0::/system.slice/edgeagent.service/{agents}\n")

    values, absent = CgroupProbe(root).read(ENGINE)

    for name in CHARGES:
        assert values[f"cgroup.engine_{name}"] is None
        assert "shares its cgroup with the agent" in absent[f"cgroup.engine_{name}"]
    assert values["cgroup.limit_bytes"] == 24 << 30


def test_a_container_in_which_everything_is_at_the_root_still_tells_its_limit(
    tmp_path: Path,
) -> None:
    root = unpack("cpu", tmp_path)
    for pid in (900, *ENGINE):
        (root / f"proc/{pid}/cgroup").write_text("0::/\n")
    (root / "sys/fs/cgroup/memory.max").write_text(f"{8 << 30}\n")

    values, absent = CgroupProbe(root).read(ENGINE)

    assert values["cgroup.engine_current_bytes"] is None
    assert "shares" in absent["cgroup.engine_current_bytes"]
    assert values["cgroup.limit_bytes"] == 8 << 30


def test_without_an_engine_the_agents_own_limit_is_told(tmp_path: Path) -> None:
    values, absent = CgroupProbe(unpack("cpu", tmp_path)).read([])

    assert values["cgroup.engine_current_bytes"] is None
    assert absent["cgroup.engine_current_bytes"] == "no engine of ours is running"
    assert values["cgroup.limit_bytes"] == 24 << 30


def test_an_engine_that_is_spread_over_cgroups_is_null(tmp_path: Path) -> None:
    root = unpack("cpu", tmp_path)
    (root / "proc/952/cgroup").write_text("0::/system.slice/other.service\n")

    values, absent = CgroupProbe(root).read(ENGINE)

    assert values["cgroup.engine_current_bytes"] is None
    assert absent["cgroup.engine_current_bytes"] == "the engine's processes are in several cgroups"


def test_a_process_that_ended_meanwhile_is_not_an_error(tmp_path: Path) -> None:
    probe = CgroupProbe(unpack("cpu", tmp_path))

    some, _ = probe.read([951, 99])
    none, absent = probe.read([98, 99])

    assert some["cgroup.engine_current_bytes"] == 9_932_111_872
    assert none["cgroup.engine_current_bytes"] is None
    assert absent["cgroup.engine_current_bytes"] == "the engine's processes have ended"


def test_a_cgroup_without_the_memory_controller_says_so(tmp_path: Path) -> None:
    root = unpack("cpu", tmp_path)
    for file in (root / "sys/fs/cgroup").rglob("memory.*"):
        file.unlink()

    values, absent = CgroupProbe(root).read(ENGINE)

    assert set(values.values()) == {None}
    assert "memory controller is not on" in absent["cgroup.engine_current_bytes"]
    assert "accounts for memory" in absent["cgroup.limit_bytes"]


HYBRID = "9:name=systemd:/\n4:memory:/jobs/7\n1:cpu,cpuacct:/\n0::/jobs/7\n"


@pytest.mark.parametrize("text", [HYBRID, "4:memory:/jobs/7\n", ""])
def test_memory_under_cgroup_v1_is_one_null(tmp_path: Path, text: str) -> None:
    root = unpack("cpu", tmp_path)
    (root / "proc/900/cgroup").write_text(text)

    values, absent = CgroupProbe(root).read(ENGINE)

    assert values == {"cgroup.limit_bytes": None}
    assert "cgroup v1" in absent["cgroup.limit_bytes"]


def test_this_very_box_is_a_value_or_a_reason() -> None:
    values, absent = CgroupProbe().read([os.getpid()])

    assert "cgroup.limit_bytes" in values
    assert set(absent) == {name for name, value in values.items() if value is None}


# ------------------------------------------------------------------------------------------ parsing


def test_a_cgroup_is_told_by_its_path() -> None:
    assert parse_cgroup("1:name=systemd:/x\n0::/a/b:c\n").path == "/a/b:c"
    assert "outside" in parse_cgroup("0::/../../other\n").reason


def test_a_limit_is_the_smallest_number() -> None:
    assert tightest(["max\n", "9\n", "7\n"]) == 7
    assert tightest(["max\n", ""]) is None


@given(st.text() | st.binary().map(lambda raw: raw.decode("utf-8", "replace")))
def test_any_text_is_parsed_without_an_error(text: str) -> None:
    place = parse_cgroup(text)
    assert place.path is not None or place.reason
    assert all(count >= 0 for count in parse_counts(text).values())
    assert tightest([text]) is None or text.strip().isdigit()


@given(st.text(min_size=1), st.text())
def test_any_cgroup_file_is_a_reading(
    tmp_path_factory: pytest.TempPathFactory, path: str, limit: str
) -> None:
    root = tmp_path_factory.mktemp("any")
    for pid in ("7", "self"):
        (root / "proc" / pid).mkdir(parents=True)
        (root / "proc" / pid / "cgroup").write_text(f"0::/{path}\n", "utf-8", "replace")
    (root / "sys/fs/cgroup").mkdir(parents=True)
    (root / "sys/fs/cgroup/memory.max").write_text(limit, "utf-8", "replace")

    values, absent = CgroupProbe(root).read([7])

    assert set(absent) == {name for name, value in values.items() if value is None}
