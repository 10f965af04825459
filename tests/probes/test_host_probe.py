"""Memory of host and engine, read from recorded trees and from real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.probes.host import HostProbe, parse_meminfo, parse_status

MIB = 1 << 20

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
    return tmp_path


def test_used_memory_is_what_is_not_available(tree: Path) -> None:
    values, absent = HostProbe(tree).read([])

    # 16,000,000 - 12,000,000 = 4,000,000 and 2,000,000 - 1,500,000 = 500,000 units of 1024 bytes
    assert values["host.total_bytes"] == 16_384_000_000
    assert values["host.available_bytes"] == 12_288_000_000
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


def test_a_box_without_proc_gives_reasons_only(tmp_path: Path) -> None:
    values, absent = HostProbe(tmp_path).read([1])

    assert values.pop("agent.cpu_s") is not None  # type: ignore[attr-defined]
    assert set(values.values()) == {None}
    assert set(absent) == set(values)


CHILD = """
import mmap, sys
held = bytearray(b"x" * (64 << 20))
file = open(sys.argv[1], "rb")
seen = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
for page in range(0, len(seen), mmap.PAGESIZE):
    seen[page]
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_real_process_shows_its_mapped_file_and_its_own_memory_apart(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.write_bytes(b"w" * (32 * MIB))
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(weights)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        values, _ = HostProbe().read([child.pid])
        child.kill()

    anonymous, mapped = values["engine.anon_bytes"], values["engine.mapped_bytes"]
    assert anonymous is not None
    assert mapped is not None
    assert 64 * MIB <= anonymous < 96 * MIB
    assert 32 * MIB <= mapped < 64 * MIB


def test_the_agent_measures_itself() -> None:
    values, _ = HostProbe().read([os.getpid()])

    assert values["agent.rss_bytes"] == pytest.approx(values["engine.rss_bytes"], rel=0.2)
    assert values["agent.cpu_s"]


@given(st.text())
def test_any_text_is_parsed_without_an_error(text: str) -> None:
    assert all(value >= 0 for value in parse_meminfo(text).values())
    assert parse_status(text).rss_bytes >= 0
