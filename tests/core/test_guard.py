"""When the guard ends an engine, on traces worked out by hand, and what can never make it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.core.guard import GIB, Reading, Verdict, default_floor_bytes, judge

MIB = 1 << 20


def reading(at_s: float, available: float, attributed: float | None = None) -> Reading:
    """A look, in seconds and GiB; nearly nothing is ever free, as on a box that has run a while."""
    share = None if attributed is None else round(attributed * GIB)
    return Reading(at_s, round(available * GIB), 100 * MIB, share)


def watched(trace: list[Reading], floor_bytes: int) -> tuple[Verdict, Reading]:
    """The first verdict that ends the engine, or else the last one, and its reading."""
    for count in range(1, len(trace) + 1):
        verdict = judge(trace[:count], floor_bytes)
        if verdict.action == "kill":
            return verdict, trace[count - 1]
    return verdict, trace[-1]


# ------------------------------------------------------------------------------------ the floor


@pytest.mark.parametrize(
    ("total_gib", "floor_gib"),
    [
        (3.4, 0.34),  # a 4 GB module: a tenth, 1.5 GiB would be nearly half of it
        (7.4, 0.74),  # an 8 GB module: a tenth
        (15.2, 1.5),  # a 16 GB module: 3 % are 0.46, a tenth is 1.52
        (61.4, 1.842),  # 3 %
        (121.6, 3.648),
    ],
)
def test_the_floor_follows_the_size_of_the_box(total_gib: float, floor_gib: float) -> None:
    assert default_floor_bytes(round(total_gib * GIB)) / GIB == pytest.approx(floor_gib, rel=1e-6)


def test_two_looks_below_the_floor_end_the_engine_and_one_does_not() -> None:
    trace = [reading(0, 1.6), reading(1, 1.4), reading(2, 1.6), reading(3, 1.4), reading(4, 1.3)]
    verdict, last = watched(trace, 3 * GIB // 2)
    assert (verdict.action, verdict.cause, last.at_s) == ("kill", "floor", 4)
    assert verdict.margin_bytes == round(1.3 * GIB) - 3 * GIB // 2
    assert verdict.reason == (
        "1.30 GiB of memory was available at two looks in a row, less than the floor of 1.50 GiB"
    )


# ------------------------------------------------------------------------------------ the slope


def collapse(attributed: bool) -> list[Reading]:  # noqa: FBT001  # because both are tried
    """29 GiB to 2.5 GiB in 9 s, as it was seen on a box that then had to be power-cycled."""
    rate = (29 - 2.5) / 9
    return [
        reading(k / 4, 29 - rate * k / 4, 4 + rate * k / 4 if attributed else None)
        for k in range(41)
    ]


@pytest.mark.parametrize("total_gib", [32, 64, 122])
@pytest.mark.parametrize("attributed", [True, False])
def test_a_collapse_is_ended_before_a_second_below_the_floor(
    total_gib: int,
    attributed: bool,  # noqa: FBT001  # because both are tried
) -> None:
    floor = default_floor_bytes(total_gib * GIB)
    crossing_s = (29 - floor / GIB) / ((29 - 2.5) / 9)
    verdict, last = watched(collapse(attributed), floor)
    assert verdict.action == "kill"
    assert last.at_s < crossing_s + 1
    assert last.available_bytes > 0


def test_the_slope_ends_it_before_the_floor_is_reached() -> None:
    # 2.944 GiB/s: below twice the floor of 3.66 GiB at 7.25 s and later, with 7.65 - 2 x 2.944 > 0
    # left by then; at 8.0 s 5.444 GiB are available, and 2 s more would leave -0.44 GiB.
    verdict, last = watched(collapse(attributed=True), default_floor_bytes(122 * GIB))
    assert (verdict.cause, last.at_s) == ("slope", 8.0)
    assert verdict.reason == (
        "5.44 GiB of memory was available and 2.94 GiB a second went while the engine still "
        "grew: nothing would have been left in 1.8 s"
    )


def test_fast_loading_far_from_the_floor_is_left_alone() -> None:
    # 4 GiB/s with 6 GiB available looks like a collapse in 1.5 s, and ends with 3.5 GiB left.
    trace = [reading(k / 4, max(3.5, 6 - k), min(2.5, k)) for k in range(12)]
    verdict, _ = watched(trace, default_floor_bytes(round(15.2 * GIB)))
    assert verdict.action == "keep"


def test_loading_that_has_just_ended_is_left_alone() -> None:
    # On an 8 GB module (floor 0.74): 1 GiB/s until 1.5 GiB are left, then nothing more.
    trace = [reading(k / 4, max(1.5, 3.5 - k / 4), min(2, k / 4)) for k in range(16)]
    verdict, _ = watched(trace, default_floor_bytes(round(7.4 * GIB)))
    assert verdict.action == "keep"


def test_the_last_step_tells_that_a_fall_has_stopped() -> None:
    # 4 GiB went within the last second, none of it within the last step.
    falling = [reading(0, 5.4, 0), reading(0.25, 3.4, 2), reading(0.5, 1.6, 4)]
    assert judge(falling, 3 * GIB // 2).cause == "slope"
    assert judge([*falling[:2], reading(0.5, 1.6, 4), reading(0.75, 1.6, 4)], GIB).action == "keep"


def test_a_neighbour_ends_a_flat_engine_only_at_the_floor() -> None:
    floor = 3 * GIB // 2
    trace = [reading(k / 4, 6 - k / 2, 4.0) for k in range(12)]  # 2 GiB/s, none of it ours
    verdict, last = watched(trace, floor)
    assert (verdict.cause, last.available_bytes) == ("floor", round(0.5 * GIB))


def test_an_engine_that_takes_a_little_meanwhile_has_no_part_in_a_neighbours_fall() -> None:
    trace = [reading(k / 4, 6 - k / 2, 4 + k / 100) for k in range(8)]
    assert watched(trace, 3 * GIB // 2)[0].action == "keep"


# -------------------------------------------------------------------------- what never ends one


def test_a_page_cache_that_fills_up_never_ends_an_engine() -> None:
    trace = [
        Reading(float(k), 20 * GIB - k * MIB, max(50 * MIB, 18 * GIB - k * GIB // 4), 4 * GIB)
        for k in range(120)
    ]
    verdict, last = watched(trace, 3 * GIB // 2)
    assert verdict.action == "keep"
    assert last.free_bytes == 50 * MIB


def test_without_a_look_there_is_no_margin() -> None:
    verdict = judge([], GIB)
    assert (verdict.action, verdict.margin_bytes) == ("keep", None)


readings = st.lists(
    st.tuples(
        st.floats(0.001, 5),
        st.integers(0, 200 * GIB),
        st.integers(0, 200 * GIB),
        st.none() | st.integers(0, 200 * GIB),
    ),
    max_size=12,
)
floors = st.integers(0, 20 * GIB)


def history(steps: list[tuple[float, int, int, int | None]]) -> list[Reading]:
    at_s, made = 0.0, []
    for step_s, available, free, attributed in steps:
        at_s += step_s
        made.append(Reading(at_s, available, free, attributed))
    return made


@given(readings, floors)
def test_a_verdict_follows_from_available_memory_and_says_why(
    steps: list[tuple[float, int, int, int | None]], floor: int
) -> None:
    trace = history(steps)
    verdict = judge(trace, floor)
    blind = [Reading(r.at_s, r.available_bytes, 0, r.attributed_bytes) for r in trace]
    assert judge(blind, floor) == verdict  # free memory has no say
    assert verdict.reason
    assert "\n" not in verdict.reason
    assert (verdict.cause is None) == (verdict.action == "keep")
    if trace:
        assert verdict.margin_bytes == trace[-1].available_bytes - floor


@given(st.floats(1, 128), st.floats(0.01, 3), st.floats(0, 0.25))
def test_an_engine_of_up_to_three_floors_a_second_is_ended_in_time(
    total_gib: float, floors_a_second: float, phase_s: float
) -> None:
    floor = default_floor_bytes(round(total_gib * GIB))
    rate = floors_a_second * floor / GIB
    begin = 4 * floor / GIB  # available when it begins, in GiB
    looks_at = [phase_s + k / 4 for k in range(int(4 * begin / rate) + 2)]
    trace = [reading(t, max(0, begin - rate * t), rate * t) for t in looks_at]
    last = next(
        trace[at]
        for at in range(len(trace))
        # What is judged is the last second and a half; the whole trace would take the test long.
        if judge(trace[max(0, at - 8) : at + 1], floor).action == "kill"
    )
    assert last.available_bytes - rate * GIB / 4 > 0


@given(readings, floors)
def test_plenty_of_memory_never_ends_an_engine(
    steps: list[tuple[float, int, int, int | None]], floor: int
) -> None:
    trace = history(steps)
    if trace and trace[-1].available_bytes >= 2 * floor:
        assert judge(trace, floor).action == "keep"


@given(readings, floors)
def test_two_looks_below_the_floor_always_end_it(
    steps: list[tuple[float, int, int, int | None]], floor: int
) -> None:
    trace = history(steps)
    if len(trace) > 1 and all(r.available_bytes < floor for r in trace[-2:]):
        assert judge(trace, floor).cause == "floor"


@given(readings, floors, st.integers(0, 200 * GIB))
def test_an_engine_that_is_flat_is_ended_by_the_floor_alone(
    steps: list[tuple[float, int, int, int | None]], floor: int, share: int
) -> None:
    trace = [Reading(r.at_s, r.available_bytes, 0, share) for r in history(steps)]
    assert judge(trace, floor).cause in (None, "floor")


@given(st.integers(1, 1 << 45))
def test_the_floor_is_at_most_a_tenth(total: int) -> None:
    assert 0 <= default_floor_bytes(total) <= total / 10
