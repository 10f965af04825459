"""What of the samples goes to the plant."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from edgeagent.core.telemetry import Minute, gpu_values, memory_values

TWO_GPUS = {
    "host.used_bytes": 5,
    "host.swap_used_bytes": 0,
    "gpu.GPU-b.used_bytes": 20,
    "gpu.GPU-a.used_bytes": 10,
    "gpu.GPU-a.utilisation_fraction": 0.5,
    "gpu.GPU-b.power_w": None,
    "gpu.devices": 2,
}


def test_memory_of_box_and_gpus_has_flat_names_and_zero_is_kept() -> None:
    assert memory_values(TWO_GPUS) == {
        "ram_used_bytes": 5,
        "swap_used_bytes": 0,
        "gpu_used_bytes": 10,
        "gpu1_used_bytes": 20,
    }


def test_what_is_not_known_is_absent() -> None:
    assert gpu_values(TWO_GPUS) == {"gpu_util_fraction": 0.5}
    assert memory_values({"host.used_bytes": None, "host.total_bytes": math.nan}) == {}


def test_a_jetson_has_its_load_from_the_kernel() -> None:
    assert gpu_values({"jetson.gpu_load_fraction": 0.25}) == {"gpu_util_fraction": 0.25}


def test_a_minute_is_minimum_mean_maximum_and_last() -> None:
    minute = Minute()
    for at_s, value in ((10.0, 2), (11.0, 6), (13.5, 4)):
        assert not minute.due(at_s, 60)
        minute.add(at_s, {"a": value})
    assert minute.due(70.0, 60)
    assert minute.take(70.0) == {
        "samples": 3, "span_s": 60.0, "a_min": 2, "a_mean": 4.0, "a_max": 6, "a_last": 4,
    }  # fmt: skip
    assert minute.take(71.0) == {"samples": 0, "span_s": 0.0}


def test_a_value_that_comes_and_goes_is_summed_up_over_what_was_seen() -> None:
    minute = Minute()
    for value in (1.0, None, 3.0):
        minute.add(0.0, {"a": value})
    assert minute.take(1.0)["a_mean"] == 2.0


@given(st.lists(st.floats(-1e12, 1e12), min_size=1))
def test_a_mean_lies_between_minimum_and_maximum(values: list[float]) -> None:
    minute = Minute()
    for value in values:
        minute.add(0.0, {"a": value})
    found = minute.take(0.0)
    slack = 1e-6 * max(1.0, abs(found["a_max"]), abs(found["a_min"]))
    assert found["a_min"] - slack <= found["a_mean"] <= found["a_max"] + slack
