"""What fits into a budget, against figures worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.core.fit import (
    Advice,
    Ask,
    Budget,
    Limits,
    advice,
    default_reserve_bytes,
    max_context,
    max_slots,
)
from edgeagent.errors import UsageError

MIB, GIB = 1 << 20, 1 << 30
LIMITS = Limits(slots=256, context_per_slot=8192)
ASK = Ask(slots=4, context_per_slot=1024, kv_type="f16")
PER_TOKEN = {"f16": 1000, "q8_0": 500, "q4_0": 250}


def need(ask: Ask) -> int:
    """Weights of a million bytes and a thousand bytes a token."""
    if ask.kv_type not in PER_TOKEN:
        raise UsageError("not for these heads")
    return 1_000_000 + ask.slots * ask.context_per_slot * PER_TOKEN[ask.kv_type]


@pytest.mark.parametrize(
    ("usable", "slots"),
    # A slot takes 1,024,000 bytes beside a million of weights.
    [(1_000_000, 0), (2_023_999, 0), (2_024_000, 1), (5_096_000, 4), (10**12, 256)],
)
def test_the_largest_number_of_slots(usable: int, slots: int) -> None:
    assert max_slots(need, ASK, usable, LIMITS) == slots


@pytest.mark.parametrize(
    ("usable", "context"),
    # 4 slots: a step of 256 tokens takes 1,024,000 bytes.
    [(2_023_999, 0), (2_024_000, 256), (5_100_000, 1024), (10**12, 8192)],
)
def test_the_largest_context_in_whole_steps(usable: int, context: int) -> None:
    assert max_context(need, ASK, usable, LIMITS) == context


def test_a_context_the_model_was_trained_for_is_offered_though_it_is_no_whole_step() -> None:
    assert max_context(need, ASK, 10**12, Limits(256, 1000)) == 1000
    assert max_context(need, ASK, 4_999_999, Limits(256, 1000)) == 768


def test_what_fits_needs_no_advice() -> None:
    assert advice(need, ASK, 5_096_000, LIMITS, ("q8_0",)) == ()


def test_fewer_slots_a_smaller_type_or_a_smaller_context_each_alone() -> None:
    # 4 slots of 1,024 take 5,096,000; there are 3,100,000.
    found = advice(need, ASK, 3_100_000, LIMITS, ("q8_0", "q4_0"))
    assert found == (
        Advice("slots", Ask(2, 1024, "f16"), 3_048_000),
        Advice("kv_type", Ask(4, 1024, "q8_0"), 3_048_000),
        Advice("context", Ask(4, 512, "f16"), 3_048_000),
    )


def test_the_first_smaller_type_that_fits_is_named() -> None:
    found = advice(need, ASK, 2_100_000, LIMITS, ("q8_0", "q4_0"))
    assert Advice("kv_type", Ask(4, 1024, "q4_0"), 2_024_000) in found


def test_a_type_that_the_engine_refuses_is_not_advised() -> None:
    found = advice(need, ASK, 3_100_000, LIMITS, ("iq9", "q8_0"))
    assert [one.ask.kv_type for one in found if one.change == "kv_type"] == ["q8_0"]


def test_where_no_change_alone_helps_one_slot_with_less_context_may() -> None:
    found = advice(need, Ask(16, 4096, "f16"), 1_300_000, LIMITS, ("q8_0",))
    assert found == (Advice("slots_and_context", Ask(1, 256, "f16"), 1_256_000),)


def test_where_nothing_fits_the_smallest_launch_is_told() -> None:
    found = advice(need, ASK, 900_000, LIMITS, ("q8_0",))
    assert found == (Advice("weights", Ask(1, 256, "f16"), 1_256_000),)


@pytest.mark.parametrize(
    ("total", "reserve"),
    [(8 * GIB, 512 * MIB), (64 * GIB, 64 * GIB // 20), (0, 512 * MIB), (10 * GIB, 512 * MIB)],
)
def test_the_reserve_is_a_twentieth_and_at_least_512_mib(total: int, reserve: int) -> None:
    assert default_reserve_bytes(total) == reserve


def test_a_budget_below_its_reserve_has_nothing_to_use() -> None:
    assert Budget(100, 30).usable_bytes == 70
    assert Budget(100, 300).usable_bytes == 0


@given(
    slots=st.integers(1, 300),
    context=st.integers(1, 10_000),
    usable=st.integers(0, 10**10),
)
def test_what_is_advised_fits_and_one_more_does_not(slots: int, context: int, usable: int) -> None:
    ask = Ask(slots, context, "f16")
    for found in advice(need, ask, usable, LIMITS, ("q8_0", "q4_0")):
        assert found.total_bytes == need(found.ask)
        assert (found.change == "weights") == (found.total_bytes > usable)
    most = max_slots(need, ask, usable, LIMITS)
    assert most == 256 or need(Ask(most + 1, context, "f16")) > usable
