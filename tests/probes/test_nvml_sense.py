"""What is believed of NVML's answers: values in, values out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.probes.nvml_sense import (
    NO_ENGINE,
    NOT_TOLD,
    OTHER_NAMESPACE,
    QUALITIES,
    SHARED,
    Memory,
    MemoryTold,
    Onlooker,
    Row,
    Share,
    View,
    engine_total,
    foreign_processes,
    judge_memory,
    quality,
    share,
    unlisted,
    worst,
)

MIB = 1 << 20
GIB = 1 << 30
HOST = 128 * GIB
ENGINE = Onlooker(frozenset({10, 11}), lambda pid: pid < 100)  # processes up to 99 live


def test_not_supported_and_a_copy_of_the_hosts_total_mean_the_same() -> None:
    untold = judge_memory(None, "not_supported", "NVML says not_supported", HOST)
    copied = judge_memory(MemoryTold(HOST, 30 * GIB, 0), "", "", HOST)
    zero = judge_memory(MemoryTold(0, 0), "", "", HOST)

    assert untold == copied == zero == Memory("shared", reason=SHARED)


def test_a_card_as_large_as_the_host_but_not_to_the_byte_has_its_own_memory() -> None:
    memory = judge_memory(MemoryTold(24 * GIB, GIB, 400 * MIB), "", "", 24 * GIB - 300 * MIB)

    assert memory == Memory("own", 24 * GIB, GIB, 400 * MIB)


def test_what_may_not_be_asked_is_not_taken_for_shared() -> None:
    memory = judge_memory(None, "no_permission", "NVML says no_permission", HOST)

    assert memory == Memory("unknown", reason="NVML says no_permission")


def test_more_used_than_there_is_is_not_believed() -> None:
    memory = judge_memory(MemoryTold(8 * GIB, 9 * GIB, 0), "", "", HOST)

    assert (memory.total_bytes, memory.used_bytes) == (8 * GIB, None)


def test_version_1_does_not_tell_the_reserve() -> None:
    memory = judge_memory(MemoryTold(8 * GIB, GIB), "", "", None)

    assert (memory.used_bytes, memory.reserved_bytes) == (GIB, None)
    assert "version 1" in memory.reason


def test_a_process_in_several_lists_counts_once_with_its_largest_row() -> None:
    rows = [Row(10, 500), Row(11, 30), Row(10, 512), Row(10, None)]

    assert share(rows, 1000, ENGINE) == Share(542, "", "all", 0, frozenset())


@pytest.mark.parametrize(
    "nonsense",
    [Row(0, 5), Row(1 << 31, 5), Row(10, 1001), Row(150, 5)],
    ids=["nobody", "an impossible id", "more than the device has", "a dead process"],
)
def test_a_row_that_cannot_be_true_is_dropped_and_counted(nonsense: Row) -> None:
    seen = share([Row(10, 512), nonsense, Row(20, 64)], 1000, ENGINE)

    assert seen == Share(512, "", "part", 1, frozenset({20}))


def test_an_engine_that_is_not_listed_uses_nothing_of_the_device() -> None:
    assert share([Row(20, 64)], 1000, ENGINE).engine_bytes == 0
    assert share([], 1000, ENGINE).engine_bytes == 0


def test_an_engine_that_is_not_listed_among_nonsense_is_not_known_to_use_nothing() -> None:
    seen = share([Row(0, 5), Row(20, 64)], 1000, ENGINE)

    assert (seen.engine_bytes, seen.told) == (None, "nothing")
    assert seen.reason == "1 of NVML's 2 process rows cannot be true, none is the engine's"


@pytest.mark.parametrize("used_bytes", [None, 0])
def test_a_process_with_a_context_and_no_bytes_is_not_told(used_bytes: int | None) -> None:
    seen = share([Row(10, used_bytes), Row(20, used_bytes)], 1000, ENGINE)

    assert (seen.engine_bytes, seen.reason, seen.told) == (None, NOT_TOLD, "nothing")
    assert seen.foreign == frozenset({20})


def test_a_neighbour_whose_memory_is_not_told_does_not_hide_the_engines() -> None:
    assert share([Row(10, 512), Row(20, None)], 1000, ENGINE).told == "all"


def test_rows_that_add_up_to_more_than_the_device_has_are_not_believed() -> None:
    assert share([Row(10, 600), Row(11, 600)], 1000, ENGINE).engine_bytes is None
    assert share([Row(10, 600), Row(11, 600)], None, ENGINE).engine_bytes == 1200


def test_ids_of_another_namespace_are_no_garbage_and_tell_nothing() -> None:
    inside = replace(ENGINE, view="namespace")

    seen = share([Row(5000, 512), Row(5001, 64)], 1000, inside)

    assert seen == Share(None, OTHER_NAMESPACE, "nothing", 0, None)


@pytest.mark.parametrize("view", ["namespace", "wsl"])
def test_from_inside_a_missing_engine_is_not_an_engine_without_memory(view: View) -> None:
    seen = share([], 1000, replace(ENGINE, view=view))

    assert (seen.engine_bytes, seen.told) == (None, "nothing")
    assert "does not list the engine" in seen.reason


def test_without_an_engine_there_is_nothing_to_attribute() -> None:
    nobody = replace(ENGINE, engine=frozenset())

    assert share([Row(20, 64)], 1000, nobody) == Share(None, NO_ENGINE, "all", 0, frozenset({20}))


def test_quality_falls_to_what_is_left() -> None:
    own, shared, unknown = Memory("own", 10, 5), Memory("shared"), Memory("unknown")
    told = Share(5, "", "all", 0, frozenset())

    assert quality(told, own) == "attributed"
    assert quality(replace(told, told="part"), own) == "attributed_partly"
    assert quality(unlisted("why"), own) == "device_delta"
    assert quality(unlisted("why"), shared) == "system_delta"
    assert quality(unlisted("why"), unknown) == "unavailable"


def test_the_sum_over_devices_needs_each_unless_the_engine_was_found() -> None:
    here, nowhere = Share(512, "", "all"), Share(0, "", "all")

    assert engine_total([here, replace(here, engine_bytes=100)]) == (612, "")
    assert engine_total([nowhere, nowhere]) == (0, "")
    assert engine_total([here, unlisted("why")]) == (512, "")
    assert engine_total([nowhere, unlisted("why")]) == (None, "why")
    assert engine_total([]) == (0, "")


def test_the_quality_of_the_sum_is_the_worst_of_its_parts() -> None:
    assert worst(["attributed", "attributed"], 5) == "attributed"
    assert worst(["attributed", "system_delta"], 5) == "attributed_partly"
    assert worst(["attributed", "system_delta"], None) == "system_delta"
    assert worst([], None) == "unavailable"


def test_a_process_on_two_devices_is_one_foreign_process() -> None:
    seen = [Share(0, "", "all", 0, frozenset(pids)) for pids in ({1, 2}, {2, 3})]

    assert foreign_processes([*seen, unlisted("why")]) == (3, "")
    assert foreign_processes([unlisted("why")])[0] is None


rows = st.lists(
    st.builds(
        Row,
        st.integers(-2, 130) | st.sampled_from([1 << 22, (1 << 22) + 1, 0xFFFFFFFF]),
        st.none() | st.integers(0, 100) | st.integers(0, (1 << 64) - 2),
    ),
    max_size=12,
)
onlookers = st.builds(
    Onlooker,
    st.frozensets(st.integers(1, 99), max_size=6),
    st.just(ENGINE.exists),
    st.sampled_from(["whole", "namespace", "wsl"]),
)


@given(rows, st.none() | st.integers(0, 200), onlookers)
def test_whatever_nvml_lists_nothing_is_counted_twice_or_beyond_the_device(
    listed: list[Row], limit_bytes: int | None, onlooker: Onlooker
) -> None:
    seen = share(listed, limit_bytes, onlooker)

    assert (seen.engine_bytes is None) == bool(seen.reason)
    assert seen.dropped is not None
    assert 0 <= seen.dropped <= len(listed)
    assert all(onlooker.exists(pid) and pid not in onlooker.engine for pid in seen.foreign or ())
    assert quality(seen, Memory("own", 1, 1)) in QUALITIES
    if seen.engine_bytes is None:
        assert seen.told == "nothing" or not onlooker.engine
        return
    assert limit_bytes is None or seen.engine_bytes <= limit_bytes
    most = {
        pid: max((row.used_bytes or 0 for row in listed if row.pid == pid), default=0)
        for pid in onlooker.engine
    }
    assert seen.engine_bytes <= sum(most.values())
    if seen.dropped:
        assert seen.told != "all"


@given(rows, onlookers)
def test_a_list_given_twice_says_the_same(listed: list[Row], onlooker: Onlooker) -> None:
    once, twice = share(listed, 100, onlooker), share(listed * 2, 100, onlooker)

    assert twice.engine_bytes == once.engine_bytes
    assert twice.foreign == once.foreign
