"""One thread that reads all probes on time, and what happens when something is not as planned."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.clock import ManualClock, SystemClock
from edgeagent.core.model import MemorySample
from edgeagent.errors import EdgeAgentError
from edgeagent.ports import Probe, Readings
from edgeagent.probes.fake import FakeProbe
from edgeagent.probes.host import HostProbe
from edgeagent.probes.hygiene import HygieneProbe
from edgeagent.probes.nvml import NvmlProbe
from edgeagent.probes.sampler import Sampler, Schedule


class BrokenProbe:
    name = "broken"

    def read(self, pids: Sequence[int]) -> Readings:
        raise ZeroDivisionError("a bug of ours")

    def facts(self) -> dict[str, object]:
        return {}

    def close(self) -> None:
        pass


def test_a_sample_says_how_late_it_is_and_to_which_cell_it_belongs() -> None:
    kept: list[MemorySample] = []
    sampler = Sampler([FakeProbe([{"a": 1}])], ManualClock(1_000), kept.append, lambda: (7,))
    sampler.mark("c1")

    sampler.take(due_ns=900)

    assert kept == [MemorySample(1_000, 100, "c1", {"a": 1}, {})]
    assert sampler.latest == kept[0]


def test_every_probe_is_told_the_engines_processes_of_now() -> None:
    probe = FakeProbe([{"a": 1}])
    pids = [(1, 2), (3,)]
    sampler = Sampler([probe], ManualClock(), lambda _: None, lambda: pids.pop(0))

    sampler.take(0)
    sampler.take(0)

    assert probe.asked == [(1, 2), (3,)]


def test_a_reason_is_told_once_per_cell_and_again_when_it_changes() -> None:
    kept: list[MemorySample] = []
    probe = FakeProbe([{"a": None}, {"a": None}, {"a": 1}, {"a": None}])
    sampler = Sampler([probe], ManualClock(), kept.append)

    sampler.take(0)
    sampler.take(0)
    sampler.take(0)
    sampler.mark("c1")
    sampler.take(0)

    assert [sample.absent for sample in kept] == [
        {"a": "not prepared"},
        {},
        {},
        {"a": "not prepared"},
    ]
    assert sampler.latest is not None
    assert sampler.latest.absent == {"a": "not prepared"}


def test_a_bug_in_one_probe_is_a_gap_and_the_others_are_read() -> None:
    kept: list[MemorySample] = []
    sampler = Sampler([BrokenProbe(), FakeProbe([{"a": 1}])], ManualClock(), kept.append)

    sampler.take(0)

    assert kept[0].values == {"broken": None, "a": 1}
    assert kept[0].absent == {"broken": "ZeroDivisionError: a bug of ours"}


def test_an_engine_that_vanishes_while_asked_has_no_processes() -> None:
    def gone() -> tuple[int, ...]:
        raise ProcessLookupError

    probe = FakeProbe([{"a": 1}])
    Sampler([probe], ManualClock(), lambda _: None, gone).take(0)

    assert probe.asked == [()]


def test_a_sink_that_cannot_keep_a_sample_is_remembered_and_the_display_goes_on() -> None:
    def full(_: MemorySample) -> None:
        raise EdgeAgentError("the disk is full")

    sampler = Sampler([FakeProbe([{"a": 1}, {"a": 2}])], ManualClock(), full)

    sampler.take(0)
    sampler.take(0)

    assert str(sampler.failure) == "the disk is full"
    assert sampler.latest is not None
    assert sampler.latest.values == {"a": 2}


def test_the_thread_samples_until_it_is_stopped_and_then_closes_the_probes() -> None:
    kept: list[MemorySample] = []
    three = threading.Event()

    def keep(sample: MemorySample) -> None:
        kept.append(sample)
        if len(kept) == 3:
            three.set()

    probe = FakeProbe([{"a": 1}])
    sampler = Sampler([probe], SystemClock(), keep, hz=200.0)
    sampler.start()
    assert three.wait(30)
    sampler.stop()
    sampler.stop()
    number = len(kept)

    assert number >= 3
    assert probe.closed
    assert all(sample.late_ns >= 0 for sample in kept)
    stamps = [sample.at_ns for sample in kept]
    assert stamps == sorted(stamps)
    assert not [thread for thread in threading.enumerate() if thread.name == "sampler"]


def test_stopping_a_sampler_that_never_began_closes_its_probes() -> None:
    probe = FakeProbe([{"a": 1}])

    Sampler([probe], ManualClock(), lambda _: None).stop()

    assert probe.closed


@given(
    st.integers(0, 10**18), st.integers(1, 10**10), st.lists(st.integers(0, 10**11), max_size=30)
)
def test_moments_that_were_missed_are_skipped_and_never_made_up_for(
    start_ns: int, period_ns: int, pauses_ns: list[int]
) -> None:
    schedule = Schedule(start_ns, period_ns)
    now_ns = start_ns
    for pause_ns in pauses_ns:
        now_ns += pause_ns
        due_ns = schedule.next_due_ns(now_ns)
        assert now_ns < due_ns <= now_ns + period_ns
        assert (due_ns - start_ns) % period_ns == 0
        now_ns = due_ns


@pytest.mark.parametrize("make", [HostProbe, HygieneProbe, NvmlProbe, lambda: FakeProbe([{}])])
def test_every_probe_keeps_the_promises_of_the_port(make: type[Probe]) -> None:
    probe = make()
    try:
        for pids in ((), (1, 4_194_303)):
            values, absent = probe.read(pids)
            assert {name for name, value in values.items() if value is None} == set(absent)
            assert all(absent.values())
    finally:
        probe.close()
        probe.close()


def test_a_full_reading_asks_the_expensive_probes_too_and_says_its_phase() -> None:
    kept: list[MemorySample] = []
    dear = FakeProbe([{"dear": 7}], "dear")
    sampler = Sampler([FakeProbe([{"a": 1}])], ManualClock(), kept.append, full=[dear])
    sampler.mark("c", "load")
    sampler.take(0)
    sampler.take_full("loaded")
    sampler.take(0)
    assert [sample.values for sample in kept] == [{"a": 1}, {"a": 1, "dear": 7}, {"a": 1}]
    assert [sample.phase for sample in kept] == ["load", "loaded", "load"]
    assert {sample.cell_id for sample in kept} == {"c"}
    sampler.stop()
    assert dear.closed
