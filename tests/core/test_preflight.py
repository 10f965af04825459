"""What is refused before it is tried, with the arithmetic."""

from __future__ import annotations

from edgeagent.core.kv import MemoryPrediction
from edgeagent.core.model import EngineConfig, EngineSpec
from edgeagent.core.preflight import MARGIN_BYTES, Room, refusal, room

MIB = 1 << 20
GIB = 1 << 30

CONFIG = EngineConfig(EngineSpec("llamacpp", "llamacpp"), 16, 8192, "off", "off")


def need(total_bytes: int) -> MemoryPrediction:
    return MemoryPrediction(
        weights_bytes=2 * GIB,
        kv_bytes=total_bytes - 2 * GIB,
        state_bytes=0,
        output_bytes=0,
        metadata_bytes=0,
        draft_bytes=0,
        compute_bytes=None,
        total_bytes=total_bytes,
        bytes_per_slot=1,
    )


def test_what_fits_with_the_margin_is_let_through_and_a_byte_more_is_not() -> None:
    there = Room("host", 8 * GIB)
    assert refusal(CONFIG, need(8 * GIB - MARGIN_BYTES), there) is None
    assert refusal(CONFIG, need(8 * GIB - MARGIN_BYTES + 1), there) is not None


def test_a_refusal_shows_the_arithmetic_and_what_to_do() -> None:
    text = str(refusal(CONFIG, need(10 * GIB), Room("host", 4 * GIB)))
    # 8 GiB of cache over 16 slots are 512 MiB each
    for part in ("10.25 GiB", "2.00 GiB weights", "16 x 512.0 MiB", "4.00 GiB", "--context"):
        assert part in text


def test_where_nobody_can_say_what_is_there_nothing_is_refused() -> None:
    assert refusal(CONFIG, need(900 * GIB), Room("GPU", None)) is None


def test_on_unified_memory_and_without_a_gpu_the_hosts_available_memory_counts() -> None:
    values = {"host.available_bytes": 5 * GIB, "host.free_bytes": 0, "gpu.A.total_bytes": None}
    for kind in ("cpu", "uma-nvidia", "uma-nvgpu", "amd", "intel"):
        assert room(kind, "auto", values) == Room("host", 5 * GIB)


def test_a_gpu_with_memory_of_its_own_counts_unless_the_cpu_was_asked_for() -> None:
    values = {
        "host.available_bytes": 5 * GIB,
        "gpu.A.total_bytes": 24 * GIB,
        "gpu.A.used_bytes": 3 * GIB,
        "gpu.A.reserved_bytes": 1 * GIB,
    }
    assert room("dgpu", "auto", values) == Room("GPU", 20 * GIB)
    assert room("dgpu", "cpu", values) == Room("host", 5 * GIB)


def test_a_gpu_that_does_not_tell_gives_no_room_and_no_zero() -> None:
    assert room("dgpu", "gpu", {"gpu.A.total_bytes": None}) == Room("GPU", None)
    assert room("dgpu", "gpu", {}) == Room("GPU", None)


def test_a_limit_of_the_control_group_below_what_is_available_counts() -> None:
    values = {"host.available_bytes": 20 * GIB, "cgroup.limit_bytes": 4 * GIB}
    assert room("cpu", "auto", values) == Room("cgroup", 4 * GIB)
    assert "control group" in str(refusal(CONFIG, need(8 * GIB), room("cpu", "auto", values)))
