"""What a monitor makes of two readings."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgeagent.inspection import rates


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
