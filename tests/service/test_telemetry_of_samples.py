"""Samples of the box become messages, events and an answer to "is it idle"."""

from __future__ import annotations

from collections.abc import Mapping

from edgeagent.core.delivery import Stamp
from edgeagent.core.model import MemorySample
from edgeagent.service.telemetry import Pace, Telemetry, box_of

STAMP = Stamp(1_796_000_000_000, "b00t", 5000, "sync")
PACE = Pace(live_s=5, aggregate_s=60, idle_for_s=30)


def sample(at_s: float, **values: float | None) -> MemorySample:
    return MemorySample(
        round(at_s * 1e9), 0, None, {k.replace("__", "."): v for k, v in values.items()}, {}
    )


class Sent:
    """Takes live readings."""

    def __init__(self) -> None:
        self.topics: list[str] = []

    def __call__(self, below: str, schema: str, value: Mapping[str, object], stamp: Stamp) -> bool:
        self.topics.append(below)
        return True


def test_live_readings_go_at_their_pace_whatever_the_samples_jitter() -> None:
    telemetry, sent = Telemetry(PACE), Sent()
    told = [telemetry.live(sample(at_s, host__used_bytes=1), STAMP, sent)
            for at_s in (0, 1, 2, 3, 4, 4.97, 6, 9.99)]  # fmt: skip
    assert [at for at, was in enumerate(told) if was] == [0, 5, 7]
    assert sent.topics == ["m/mem"] * 3


def test_a_minute_is_told_when_it_is_full_and_the_rest_at_the_end() -> None:
    telemetry = Telemetry(PACE)
    seen = [sample(second, host__used_bytes=second) for second in range(63)]
    (minute,) = [entry for one in seen for entry in telemetry.minutes(one, STAMP)]
    assert (minute.topic, minute.stream) == ("m/mem_1m", "M")
    assert (minute.value["samples"], minute.value["ram_used_bytes_max"]) == (60, 59)
    (rest,) = telemetry.rest(63, STAMP)
    assert (rest.value["samples"], rest.value["ram_used_bytes_min"]) == (3, 60)


def test_a_box_that_throttles_all_day_tells_it_now_and_then() -> None:
    telemetry = Telemetry(PACE)
    told = [
        second
        for second in range(1300)
        if telemetry.events(
            sample(second, hygiene__throttle_count=second, hygiene__temperature_max_c=90), STAMP
        )
    ]
    assert told == [1, 601, 1201]


def test_what_others_use_is_a_share_and_never_more_than_all() -> None:
    values = {
        "hygiene.cpu_cores": 4,
        "hygiene.foreign_cpu_cores": 4.2,
        "jetson.gpu_load_fraction": 0.5,
    }
    box = box_of(values, 3)
    assert (box.foreign_cpu, box.foreign_gpu, box.production_requests) == (1.0, 0.5, 3)
    assert box_of({}, None).foreign_cpu is None


def test_a_gpu_that_was_seen_once_is_asked_for_from_then_on() -> None:
    telemetry, seen = Telemetry(PACE), list[str]()
    for one in (sample(0), sample(1, jetson__gpu_load_fraction=0.0), sample(2)):
        telemetry.look(one, None)
        seen.append(telemetry.sees_gpu)
    assert seen == ["no", "yes", "yes"]


def test_another_span_of_idleness_is_looked_at_anew_and_another_pace_is_not() -> None:
    telemetry = Telemetry(PACE)
    for second in range(31):
        telemetry.look(sample(second), None)
    telemetry.keep_pace(Pace(1, 10, 30))
    assert telemetry.lookback.covered()
    telemetry.keep_pace(Pace(1, 10, 20))
    assert not telemetry.lookback.covered()
