"""The engine's memory with each page counted once, from recorded trees and damaged ones."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from trees import unpack

from edgeagent.probes.pss import PssProbe, Shares, parse_resident, parse_smaps_rollup

KIB = 1024


def test_a_page_that_two_processes_share_counts_once(tmp_path: Path) -> None:
    values, absent = PssProbe(unpack("cpu", tmp_path)).read([951, 952])

    # both map the 8 GiB of the model, so half of it is each one's share
    assert values["engine.pss_file_bytes"] == 2 * 4_194_304 * KIB
    assert values["engine.pss_anon_bytes"] == (1_048_576 + 262_144) * KIB
    assert values["engine.pss_shmem_bytes"] == 0
    assert values["engine.pss_bytes"] == (5_242_880 + 4_456_448) * KIB
    assert values["engine.pss_is_rss"] == 0
    assert absent == {}


def test_the_peak_is_what_each_process_had_at_most(tmp_path: Path) -> None:
    values, _ = PssProbe(unpack("cpu", tmp_path)).read([951, 952])

    assert values["engine.peak_rss_bytes"] == (9_500_000 + 8_700_000) * KIB


def test_a_kernel_without_shares_gives_resident_sizes_and_says_so(tmp_path: Path) -> None:
    root = unpack("cpu", tmp_path)
    for file in root.glob("proc/[0-9]*/smaps_rollup"):
        file.unlink()
    probe = PssProbe(root)

    values, absent = probe.read([951, 952])

    assert values["engine.pss_file_bytes"] == 2 * 8_388_608 * KIB
    assert values["engine.pss_anon_bytes"] == (1_048_576 + 262_144) * KIB
    assert values["engine.pss_is_rss"] == 1
    assert absent == {}
    assert probe.facts() == {"pss_source": "status"}


def test_a_kernel_that_does_not_tell_kinds_apart_gives_resident_sizes(tmp_path: Path) -> None:
    root = unpack("intel", tmp_path)
    (root / "proc/951/smaps_rollup").write_text("Rss: 100 kB\nPss: 90 kB\n")

    values, _ = PssProbe(root).read([951])

    assert values["engine.pss_shmem_bytes"] == 60_000 * KIB
    assert values["engine.pss_is_rss"] == 1


def test_without_an_engine_nothing_is_zero(tmp_path: Path) -> None:
    values, absent = PssProbe(unpack("cpu", tmp_path)).read([])

    assert set(values.values()) == {None}
    assert {absent[name] for name in values} == {"no engine of ours is running"}


def test_a_process_that_ends_between_listing_and_reading_is_not_an_error(tmp_path: Path) -> None:
    root = unpack("cpu", tmp_path)
    (root / "proc/952/smaps_rollup").unlink()  # it ended between the two files

    values, absent = PssProbe(root).read([951, 952, 99])

    assert values["engine.pss_bytes"] == 5_242_880 * KIB
    assert absent == {}


def test_an_engine_that_ended_altogether_is_null(tmp_path: Path) -> None:
    values, absent = PssProbe(unpack("cpu", tmp_path)).read([98, 99])

    assert set(values.values()) == {None}
    assert absent["engine.pss_bytes"] == "the engine's processes have ended"


def test_a_real_zombie_holds_nothing() -> None:
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)

        values, absent = PssProbe().read([ended.pid])

    assert values["engine.pss_bytes"] is None
    assert absent["engine.pss_bytes"] == "the engine's processes have ended"


STRANGER = """
import os
from edgeagent.probes.pss import PssProbe
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
print(PssProbe().read([1]))
"""


def test_a_process_that_may_not_be_read_is_null_with_the_kernels_word() -> None:
    told = subprocess.run([sys.executable, "-c", STRANGER], capture_output=True, check=True)
    values, absent = ast.literal_eval(told.stdout.decode())

    assert set(values.values()) == {None}
    assert absent["engine.pss_bytes"] == (
        "the memory of process 1 could not be read: Permission denied"
    )


# ------------------------------------------------------------------------------------------ parsing


def test_shares_are_read_in_bytes() -> None:
    text = "x [rollup]\nRss: 9 kB\nPss:  7 kB\nPss_Dirty: 4 kB\nPss_Anon: 4 kB\nPss_File: 2 kB\n"

    assert parse_smaps_rollup(text + "Pss_Shmem: 1 kB\n") == Shares(7168, 4096, 2048, 1024)
    assert parse_smaps_rollup(text) is None


@given(st.text() | st.binary().map(lambda raw: raw.decode("utf-8", "replace")))
def test_any_text_is_parsed_without_an_error(text: str) -> None:
    assert parse_smaps_rollup(text) is None or "Pss_Anon" in text
    assert parse_resident(text)[1] >= 0


@given(st.text(st.characters(categories=["Nd"]), max_size=6000))
def test_any_digits_are_parsed_without_an_error(digits: str) -> None:
    text = "".join(f"{name}: {digits} kB\n" for name in ("Pss", "Pss_Anon", "VmRSS", "VmHWM"))

    assert parse_smaps_rollup(text) is None
    assert parse_resident(text)[1] >= 0
