"""Memory of host and engine, read from recorded trees and from real processes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trees import unpack

from edgeagent.probes.host import (
    HostProbe,
    parse_meminfo,
    parse_status,
    process_root,
    whole_number,
)

KIB = 1024

MEMINFO = """\
MemTotal:       16000000 kB
MemFree:         1000000 kB
MemAvailable:   12000000 kB
SwapTotal:       2000000 kB
SwapFree:        1500000 kB
HugePages_Total:       3
"""

STATUS = """\
Name:\tllama-server
State:\tS (sleeping)
VmHWM:\t  900000 kB
VmRSS:\t  700000 kB
RssAnon:\t  200000 kB
RssFile:\t  450000 kB
RssShmem:\t   50000 kB
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for pid in ("41", "42", "self"):
        (tmp_path / "proc" / pid).mkdir(parents=True)
        (tmp_path / "proc" / pid / "status").write_text(STATUS)
    (tmp_path / "proc/meminfo").write_text(MEMINFO)
    (tmp_path / "sys/block/nvme0n1").mkdir(parents=True)
    return tmp_path


def test_used_memory_is_what_is_not_available(tree: Path) -> None:
    values, absent = HostProbe(tree).read([])

    # 16,000,000 - 12,000,000 = 4,000,000 and 2,000,000 - 1,500,000 = 500,000 units of 1024 bytes
    assert values["host.total_bytes"] == 16_384_000_000
    assert values["host.available_bytes"] == 12_288_000_000
    assert values["host.free_bytes"] == 1_024_000_000
    assert values["host.used_bytes"] == 4_096_000_000
    assert values["host.swap_used_bytes"] == 512_000_000
    assert not any(name.startswith("host.") for name in absent)


def test_an_engine_is_the_sum_of_its_processes_anonymous_and_mapped_apart(tree: Path) -> None:
    values, _ = HostProbe(tree).read([41, 42])

    assert values["engine.rss_bytes"] == 2 * 700_000 * 1024
    assert values["engine.anon_bytes"] == 2 * 250_000 * 1024  # shared memory counts as anonymous
    assert values["engine.mapped_bytes"] == 2 * 450_000 * 1024
    assert values["engine.processes"] == 2


def test_without_an_engine_its_memory_is_null_and_not_zero(tree: Path) -> None:
    values, absent = HostProbe(tree).read([])

    engine = {name: value for name, value in values.items() if name.startswith("engine.")}
    assert set(engine.values()) == {None}
    assert {absent[name] for name in engine} == {"no engine of ours is running"}


def test_a_process_that_ended_meanwhile_is_not_an_error(tree: Path) -> None:
    values, absent = HostProbe(tree).read([41, 99])

    assert values["engine.processes"] == 1
    assert absent == {}


def test_an_engine_that_ended_altogether_is_null(tree: Path) -> None:
    values, absent = HostProbe(tree).read([98, 99])

    assert values["engine.rss_bytes"] is None
    assert absent["engine.rss_bytes"] == "the engine's processes have ended"


def test_a_kernel_that_does_not_tell_a_value_gives_null(tree: Path) -> None:
    (tree / "proc/meminfo").write_text("MemTotal: 16000000 kB\n")

    values, absent = HostProbe(tree).read([])

    assert values["host.used_bytes"] is None
    assert absent["host.used_bytes"] == "/proc/meminfo does not list it"


def test_a_tree_without_processes_gives_the_box_reasons_and_the_live_processes_values(
    tmp_path: Path,
) -> None:
    values, absent = HostProbe(tmp_path).read([os.getpid()])

    box = {name: value for name, value in values.items() if name.startswith("host.")}
    assert set(box.values()) == {None}
    assert set(absent) == set(box)
    assert values["engine.rss_bytes"]


def test_processes_are_read_where_they_were_recorded(tree: Path, tmp_path: Path) -> None:
    assert process_root(tree) == tree / "proc"
    assert process_root(Path("/")) == Path("/proc")
    assert process_root(tmp_path / "nothing at all") == Path("/proc")


def test_compressed_swap_costs_what_it_takes_of_the_memory(tmp_path: Path) -> None:
    values, _ = HostProbe(unpack("intel", tmp_path)).read([951])

    assert values["host.zram_bytes"] == 272_629_760  # mem_used_total, not what it stands for
    assert values["host.swap_used_bytes"] == 1_048_576 * KIB


def test_a_box_without_compressed_swap_spends_nothing_on_it(tree: Path) -> None:
    values, _ = HostProbe(tree).read([])

    assert values["host.zram_bytes"] == 0


def test_a_compressed_swap_that_is_switched_off_is_looked_for_again(tmp_path: Path) -> None:
    root = unpack("intel", tmp_path)
    probe = HostProbe(root)
    probe.read([])
    shutil.rmtree(root / "sys/block/zram0")

    gap, absent = probe.read([])
    after, _ = probe.read([])

    assert gap["host.zram_bytes"] is None
    assert "zram" in absent["host.zram_bytes"]
    assert after["host.zram_bytes"] == 0


@pytest.mark.parametrize("name", ["amd-apu", "intel", "cpu"])
def test_recorded_boxes_tell_everything(tmp_path: Path, name: str) -> None:
    values, absent = HostProbe(unpack(name, tmp_path)).read([951])

    assert absent.keys() <= {"host.zram_bytes"}
    assert values["engine.processes"] == 1
    assert values["agent.rss_bytes"] == 45_000 * KIB


def test_the_agent_measures_itself() -> None:
    values, _ = HostProbe().read([os.getpid()])

    assert values["agent.rss_bytes"] == pytest.approx(values["engine.rss_bytes"], rel=0.2)
    assert values["agent.cpu_s"]


@given(st.text())
def test_any_text_is_parsed_without_an_error(text: str) -> None:
    assert all(value >= 0 for value in parse_meminfo(text).values())
    assert parse_status(text).rss_bytes >= 0


@given(st.text())
def test_any_state_of_compressed_swap_is_a_value_or_a_reason(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    root = tmp_path_factory.mktemp("zram")
    (root / "sys/block/zram0").mkdir(parents=True)
    (root / "sys/block/zram0/mm_stat").write_text(text, "utf-8", "replace")

    values, absent = HostProbe(root).read([])

    assert (values["host.zram_bytes"] is None) == ("host.zram_bytes" in absent)


@given(st.text(st.characters(categories=["Nd"]), min_size=1, max_size=6000))
def test_any_digits_are_parsed_without_an_error(digits: str) -> None:
    assert parse_meminfo(f"MemTotal: {digits} kB\n").keys() <= {"MemTotal"}
    assert parse_status(f"VmRSS: {digits} kB\n").rss_bytes >= 0
    assert whole_number(digits) is None or digits.isascii()
