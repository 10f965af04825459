"""What a slot costs, worked out by hand for each class of box."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeagent.core.memory import (
    Buffer,
    ExpectedSlot,
    Point,
    Pool,
    SlotCost,
    Subject,
    buffers_from,
    costs,
    doubts,
    pool_cost,
)
from edgeagent.core.model import MemorySample, SamplePhase

MIB = 1 << 20
GIB = 1 << 30

Values = dict[str, float | int | None]


def sample(phase: SamplePhase, values: Values, why: str = "not told") -> MemorySample:
    absent = {name: why for name, value in values.items() if value is None}
    return MemorySample(0, 0, "cell", values, absent, phase)


def start(
    slots: int, loaded: Values, repeat: int = 0, before: Values | None = None, *load: Values
) -> Point:
    return Point(
        slots,
        repeat,
        (
            sample("before", before or {}),
            sample("ready", loaded),
            *(sample("load", values) for values in load),
            sample("loaded", loaded),
        ),
    )


def anonymous(slots: int, per_slot_mib: float = 45.0, base_mib: float = 100.0) -> Values:
    return {
        "engine.pss_anon_bytes": int((base_mib + slots * per_slot_mib) * MIB),
        "engine.pss_shmem_bytes": 0,
        "engine.pss_file_bytes": 250 * MIB,
    }


def box(kind: str, expected: float | None = None) -> Subject:
    slot = None if expected is None else ExpectedSlot("llamacpp", "off", expected - MIB, MIB)
    return Subject("llamacpp", "off", 2048, kind, slot)


def only(found: tuple[SlotCost, ...]) -> SlotCost:
    assert len(found) == 1
    return found[0]


def repeated(kind: str, *slots: int) -> SlotCost:
    points = [start(n, anonymous(n), repeat) for n in slots for repeat in (0, 1)]
    return only(costs(box(kind), points))


def test_on_a_cpu_box_the_slope_of_anonymous_memory_is_the_cost_and_weights_stand_apart() -> None:
    cost = repeated("cpu", 1, 4, 8)
    assert cost.domain == "host"
    assert (cost.source, cost.quality) == ("pss_anon", "attributed")
    assert cost.measured_bytes_per_slot == 45 * MIB
    assert cost.base_bytes == 100 * MIB
    assert cost.mapped_bytes == 250 * MIB
    assert list(cost.ci95 or ()) == [45 * MIB, 45 * MIB]
    assert cost.slots == (1, 1, 4, 4, 8, 8)


def test_one_disturbed_start_does_not_move_the_slope() -> None:
    points = [start(n, anonymous(n), r) for n in (1, 4, 8) for r in (0, 1, 2)]
    points[4] = start(4, anonymous(4, base_mib=400.0), 1)
    assert only(costs(box("cpu"), points)).measured_bytes_per_slot == 45 * MIB


def test_too_few_starts_give_a_slope_and_no_interval_and_say_what_to_do() -> None:
    cost = only(costs(box("cpu"), [start(n, anonymous(n)) for n in (1, 4)]))
    assert cost.measured_bytes_per_slot == 45 * MIB
    assert cost.ci95 is None
    assert "--memory-repeats" in str(cost.reason)


def test_where_pss_cannot_be_read_resident_memory_stands_in_and_is_named() -> None:
    points = [
        start(n, {"engine.pss_anon_bytes": None, "engine.anon_bytes": (50 + 10 * n) * MIB})
        for n in (1, 2, 4)
    ]
    cost = only(costs(box("cpu"), points))
    assert (cost.source, cost.measured_bytes_per_slot) == ("rss_anon", 10 * MIB)


def test_without_any_process_numbers_the_change_of_the_whole_box_is_said_to_be_that() -> None:
    points = [
        start(n, {"host.used_bytes": (3000 + 20 * n) * MIB}, 0, {"host.used_bytes": 2000 * MIB})
        for n in (1, 2, 4)
    ]
    cost = only(costs(box("cpu"), points))
    assert (cost.source, cost.quality) == ("mem_available", "system_delta")
    assert cost.measured_bytes_per_slot == 20 * MIB
    assert cost.base_bytes == 1000 * MIB


def test_nothing_read_is_unavailable_with_the_probes_reason_and_never_zero() -> None:
    points = [start(n, {"engine.pss_anon_bytes": None}) for n in (1, 2)]
    cost = only(costs(box("cpu"), points))
    assert (cost.quality, cost.measured_bytes_per_slot) == ("unavailable", None)
    assert cost.reason == "not told"


def test_a_gpu_and_its_host_are_two_domains() -> None:
    points = [
        start(
            n,
            {**anonymous(n, 1.0), "gpu.engine_bytes": (900 + 112 * n) * MIB},
            0,
            {"gpu.A.total_bytes": 24 * GIB, "gpu.A.used_bytes": 1 * GIB},
        )
        for n in (1, 4, 8)
    ]
    gpu, host = costs(box("dgpu"), points)
    assert (gpu.domain, gpu.source, gpu.measured_bytes_per_slot) == (
        "gpu", "nvml_processes", 112 * MIB,
    )  # fmt: skip
    assert (host.domain, host.measured_bytes_per_slot) == ("host", 1 * MIB)
    # (24 - 1) GiB, less 5 % of them, less 900 MiB, over 112 MiB: (23552 - 1177.6 - 900) / 112
    assert gpu.max_slots == 191


def test_an_engine_on_the_cpu_of_a_box_with_a_gpu_has_no_gpu_cost() -> None:
    points = [start(n, {**anonymous(n), "gpu.engine_bytes": 0}) for n in (1, 4)]
    assert [cost.domain for cost in costs(box("dgpu"), points)] == ["host"]


def test_a_foreign_process_namespace_leaves_the_devices_own_difference() -> None:
    points = [
        start(
            n,
            {"gpu.engine_bytes": None, "gpu.A.used_bytes": (2000 + 100 * n) * MIB},
            0,
            {"gpu.A.used_bytes": 1000 * MIB},
        )
        for n in (1, 2, 4)
    ]
    cost = costs(box("dgpu"), points)[0]
    assert (cost.source, cost.quality) == ("nvml_device", "device_delta")
    assert (cost.measured_bytes_per_slot, cost.base_bytes) == (100 * MIB, 1000 * MIB)


def test_a_second_user_of_the_device_is_noticed() -> None:
    points = [
        start(
            n,
            {"gpu.engine_bytes": n * GIB, "gpu.A.used_bytes": (n + 3) * GIB},
            0,
            {"gpu.A.used_bytes": 1 * GIB},
        )
        for n in (1, 2)
    ]
    assert costs(box("dgpu"), points)[0].foreign_bytes == 2 * GIB


def test_on_unified_memory_under_nvidia_ko_gpu_and_processes_are_added() -> None:
    points = [
        start(n, {**anonymous(n, 0.5, 200.0), "gpu.engine_bytes": (500 + 112 * n) * MIB})
        for n in (1, 4, 8)
    ]
    cost = only(costs(box("uma-nvidia"), points))
    assert cost.domain == "unified"
    assert cost.measured_bytes_per_slot == 112.5 * MIB
    assert cost.base_bytes == 700 * MIB


def test_on_a_jetson_under_nvgpu_nvmap_and_processes_are_never_added() -> None:
    points = [
        start(n, {**anonymous(n, 0.5), "nvmap.engine_bytes": (500 + 112 * n) * MIB})
        for n in (1, 4, 8)
    ]
    unified, host = costs(box("uma-nvgpu"), points)
    assert (unified.source, unified.measured_bytes_per_slot) == ("nvmap_clients", 112 * MIB)
    assert (host.source, host.measured_bytes_per_slot) == ("pss_anon", 0.5 * MIB)


def test_without_the_helper_a_jetson_gives_the_growth_of_all_nvmap_memory() -> None:
    points = [
        start(
            n,
            {"nvmap.engine_bytes": None, "nvmap.used_bytes": (700 + 112 * n) * MIB},
            0,
            {"nvmap.used_bytes": 200 * MIB},
        )
        for n in (1, 4, 8)
    ]
    cost = costs(box("uma-nvgpu"), points)[0]
    assert (cost.source, cost.quality) == ("nvmap_used", "system_delta")
    assert cost.measured_bytes_per_slot == 112 * MIB


@pytest.mark.parametrize(("vram_total", "domain"), [(512 * MIB, "unified"), (16 * GIB, "gpu")])
def test_an_amd_gpu_with_a_small_carve_out_works_in_the_hosts_memory(
    vram_total: int, domain: str
) -> None:
    points = [
        start(
            n,
            {**anonymous(n, 1.0), "drm.engine_bytes": 100 * n * MIB},
            0,
            {"drm.vram_total_bytes": vram_total},
        )
        for n in (1, 2, 4)
    ]
    first = costs(box("amd"), points)[0]
    assert first.domain == domain
    assert first.measured_bytes_per_slot == (101 if domain == "unified" else 100) * MIB


def test_slots_that_fit_leave_the_reserve_and_the_mapped_weights() -> None:
    points = [
        start(n, anonymous(n), 0, {"host.available_bytes": 8 * GIB, "host.used_bytes": 0})
        for n in (1, 4, 8)
    ]
    cost = only(costs(box("cpu"), points))
    # 8,192 - 512 reserve - 100 base - 250 mapped = 7,330 MiB; / 45 = 162.9
    assert cost.max_slots == 162
    assert cost.reserve_bytes == 512 * MIB


def test_what_the_engine_reports_stands_beside_and_mapped_weights_are_left_out() -> None:
    def point(slots: int) -> Point:
        buffers = (
            Buffer("model", "CPU_Mapped", 250 * MIB),
            Buffer("kv", "CPU", slots * 45 * MIB),
            Buffer("output", "CPU", slots * MIB),
            Buffer("compute", "CPU", 15 * MIB),
        )
        told = start(slots, anonymous(slots))
        return Point(slots, 0, told.samples, buffers)

    cost = only(costs(box("cpu", 46.0 * MIB), [point(n) for n in (1, 4, 8)]))
    assert cost.engine_reported_bytes_per_slot == 46 * MIB
    assert cost.predicted_bytes_per_slot == 46 * MIB
    assert cost.reported.kv_bytes_per_slot == 45 * MIB
    assert cost.reported.output_bytes_per_slot == MIB
    assert cost.reported.compute_bytes == 15 * MIB
    assert cost.reported.weights_bytes == 250 * MIB


def test_what_an_engine_holds_at_rest_is_told_apart_from_what_serving_makes_it_hold() -> None:
    def point(slots: int, repeat: int) -> Point:
        return Point(
            slots,
            repeat,
            (
                sample("ready", anonymous(slots, 45.0)),
                sample("load", {"engine.anon_bytes": 999 * MIB}),
                sample("loaded", anonymous(slots, 47.0, 130.0)),
            ),
        )

    points = [point(n, r) for n in (1, 4, 8) for r in (0, 1)]
    cost = only(costs(box("cpu", 45.0 * MIB), points))
    assert cost.measured_bytes_per_slot == 47 * MIB
    assert cost.ready_bytes_per_slot == 45 * MIB
    assert cost.load_peak_bytes == (999 * MIB,) * 6
    assert [code for code, _ in doubts(cost)] == ["engine_memory_grows"]


def test_a_slot_that_costs_more_at_rest_than_arithmetic_says_is_unexplained() -> None:
    points = [start(n, anonymous(n), r) for n in (1, 4, 8) for r in (0, 1)]
    found = dict(doubts(only(costs(box("cpu", 30.0 * MIB), points))))
    assert "+50%" in found["memory_unexplained"]


def test_a_cost_without_an_interval_or_with_a_wide_one_is_not_resolved() -> None:
    few = only(costs(box("cpu"), [start(n, anonymous(n)) for n in (1, 4)]))
    assert [code for code, _ in doubts(few)] == ["memory_not_resolved"]
    noise = iter((0.0, 60.0, 10.0, 90.0, 0.0, 50.0))
    noisy = [
        start(n, anonymous(n, 10.0, 100.0 + next(noise)), r) for n in (1, 2, 3) for r in (0, 1)
    ]
    assert "memory_not_resolved" in dict(doubts(only(costs(box("cpu"), noisy))))


def test_more_slots_than_the_engine_offers_never_fit() -> None:
    points = [start(n, anonymous(n), 0, {"host.available_bytes": 900 * GIB}) for n in (1, 4, 8)]
    subject = replace(box("cpu"), most_slots=256)
    assert only(costs(subject, points)).max_slots == 256


def test_a_failed_start_is_left_out_and_only_failed_ones_say_why() -> None:
    good = [start(n, anonymous(n)) for n in (1, 4)]
    bad = Point(8, 0, (), failure="it died")
    assert only(costs(box("cpu"), [*good, bad])).slots == (1, 4)
    nothing = only(costs(box("cpu"), [bad]))
    assert (nothing.quality, nothing.reason) == ("unavailable", "it died")


def decoding(*seen: tuple[int, int, int]) -> tuple[MemorySample, ...]:
    names = ("pool.requests_running", "pool.kv_blocks_used", "pool.requests_waiting")
    return tuple(sample("load", dict(zip(names, each, strict=True))) for each in seen)


def test_a_pool_costs_blocks_in_use_times_their_size() -> None:
    # Facts of SmolLM2 on a CPU: blocks of 128 tokens are 2,949,120 bytes; a request of 250 + 8
    # tokens holds 2 of them until its seventh token and 3 from then on; 363 blocks are usable, so
    # 121 such requests fit. The sample in which one waits is of an edge.
    seen = decoding((1, 2, 0), (1, 3, 0), (2, 4, 0), (2, 6, 0), (3, 9, 1), (4, 12, 0), (0, 0, 0))
    cost = pool_cost(box("cpu"), Pool(363, 2_949_120), [Point(4, 0, seen)])
    assert cost.slots == (1, 2, 4)
    assert cost.measured_bytes_per_slot == 3 * 2_949_120
    assert (cost.method, cost.quality) == ("blocks_in_use", "engine_reported")
    assert (cost.domain, cost.max_slots, cost.cross_check_bytes_per_slot) == ("host", 121, None)


def test_pools_of_two_sizes_are_the_cross_check_of_what_a_block_costs() -> None:
    # 17 blocks a sequence of 2,048 tokens at 128: 16 x 2.8125 MiB = 45 MiB each.
    def point(slots: int) -> Point:
        ready = sample("ready", anonymous(slots, 45.0, 900.0))
        return Point(slots, 0, (ready, *decoding((1, 3, 0), (slots, 3 * slots, 0))))

    cost = pool_cost(box("cpu"), Pool(128, 2_949_120), [point(2), point(8)])
    assert cost.cross_check_bytes_per_slot == cost.ready_bytes_per_slot == 45 * MIB
    assert "counted" in str(cost.reason)
    assert list(doubts(cost)) == []
    assert cost.cross_check_source == "relaunch"


def test_pools_that_differ_by_less_than_starts_do_are_no_check() -> None:
    def point(slots: int) -> Point:
        ready = sample("ready", anonymous(slots, 5.6, 900.0))
        return Point(slots, 0, (ready, *decoding((1, 1, 0), (slots, slots, 0))))

    near = pool_cost(box("cpu"), Pool(128, 2_949_120), [point(1), point(2)])
    assert near.cross_check_bytes_per_slot is None
    assert near.ready_bytes_per_slot is None
    far = pool_cost(box("cpu"), Pool(128, 2_949_120), [point(1), point(16)])
    assert far.ready_bytes_per_slot == pytest.approx(5.6 * MIB, abs=1)


def test_a_pool_that_tells_nothing_is_unavailable_with_the_reason() -> None:
    blind = pool_cost(box("cpu"), Pool(10, None), [Point(1, 0, decoding((1, 3, 0)))])
    assert (blind.quality, blind.reason) == ("unavailable", "the size of a block is not known")
    silent = pool_cost(box("cpu"), Pool(10, 5), [Point(1, 0, ())])
    assert silent.reason == "the engine told of no blocks"
    dead = pool_cost(box("cpu"), Pool(10, 5), [Point(1, 0, (), failure="it died")])
    assert (dead.measured_bytes_per_slot, dead.reason) == (None, "it died")


def test_what_is_no_buffer_is_left_out() -> None:
    told = [{"kind": "kv", "device": "CPU", "bytes": 3}, {"kind": "kv"}, "kv", 3]
    assert buffers_from(told) == (Buffer("kv", "CPU", 3),)
    assert buffers_from(None) == ()
