"""What a monitor makes of two readings, and of what engines say of themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.core.diagnosis import Program
from edgeagent.inspection import LLAMA_SERVER, exit_status, llama_server, rates


def test_counters_have_a_rate_and_other_values_have_none() -> None:
    before = {"power.rapl_j": 10.0, "pressure.io_some_s": 1.0, "host.used_bytes": 1}
    now = {"power.rapl_j": 16.0, "pressure.io_some_s": 1.5, "host.used_bytes": 5}

    assert rates((100.0, before), (102.0, now)) == {"power.rapl_j": 3.0, "pressure.io_some_s": 0.25}


def test_nothing_happened_is_a_rate_but_no_chip_takes_no_energy() -> None:
    values = {"power.rapl_j": 10.0, "vm.swap_in_pages": 7}

    assert rates((0.0, values), (1.0, values)) == {"vm.swap_in_pages": 0.0}


def test_a_counter_that_was_reset_or_is_new_has_no_rate() -> None:
    before = {"vm.swap_in_pages": 7, "vm.swap_out_pages": None}
    now = {"vm.swap_in_pages": 2, "vm.swap_out_pages": 5, "vm.refault_file": 9}

    assert rates((0.0, before), (1.0, now)) == {}


names = st.sampled_from(["power.rapl_j", "vm.allocstall", "pressure.cpu_some_s", "host.used_bytes"])
readings = st.dictionaries(names, st.none() | st.integers(0, 1 << 50))


@given(readings, readings, st.floats(-1, 10))
def test_a_rate_is_never_negative(
    before: dict[str, int | None], now: dict[str, int | None], passed_s: float
) -> None:
    assert all(rate >= 0 for rate in rates((0.0, before), (passed_s, now)).values())


def test_only_a_fault_makes_the_status_1() -> None:
    assert [exit_status({"worst": state}) for state in ("ok", "missing", "warning", "fault")] == [
        0,
        0,
        0,
        1,
    ]


@pytest.mark.parametrize(
    ("script", "version", "reason"),
    [
        ("echo 'version: 1 (a)' >&2", "1 (a)", None),
        ("echo 'loaded backend'; echo 'version: 2 (b)'; exit 1", "2 (b)", None),
        ("exit 3", None, "it said nothing and ended with status 3"),
        ("echo hello", None, 'it said "hello"'),
    ],
)
def test_a_llama_server_is_known_by_what_it_says_of_its_version(
    tmp_path: Path, script: str, version: str | None, reason: str | None
) -> None:
    server = tmp_path / "llama-server"
    server.write_text(f"#!/bin/sh\n{script}\n")
    server.chmod(0o755)

    assert llama_server({"PATH": str(tmp_path)}) == Program(str(server), version, reason)


def test_a_file_for_another_machine_is_no_llama_server(tmp_path: Path) -> None:
    server = tmp_path / "server"
    server.write_bytes(b"\x7fELF nonsense")
    server.chmod(0o755)

    found = llama_server({LLAMA_SERVER: str(server)})

    assert (found.version, found.reason) == (None, "Exec format error")


def test_without_any_llama_server_there_is_none(tmp_path: Path) -> None:
    assert llama_server({"PATH": str(tmp_path)}) == Program(None)
