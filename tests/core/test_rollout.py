"""Many boxes are asked in order, few at a time, and no longer than they do well."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from edgeagent.core.rollout import (
    ACK_STATES,
    ENDED,
    GIVEN_UP,
    IN_FLIGHT,
    LATER,
    AckState,
    Answer,
    Limits,
    Rollout,
    rollout,
)

FAST = Limits(at_once=2, stagger_ms=0, stop_after=2, answer_within_ms=100, end_within_ms=1000)


def begun(names: str = "abcd", limits: Limits = FAST, **skipped: str) -> Rollout:
    return rollout(names, skipped, limits)


def ask(state: Rollout, now_ms: int) -> Rollout:
    for name in state.due(now_ms):
        state = state.asked(name, now_ms)
    return state


def stages(state: Rollout) -> str:
    return " ".join(box.stage for box in state.boxes.values())


def says(state: Rollout, name: str, word: AckState, code: str | None = None) -> Rollout:
    return state.answered(name, Answer(word, code))


def test_no_more_are_asked_at_once_than_allowed_and_the_next_when_one_is_over() -> None:
    state = ask(begun(), 0)
    assert stages(state) == "asked asked waiting waiting"
    assert state.due(1) == ()
    state = says(state, "b", "succeeded")
    assert state.due(2) == ("c",)


def test_a_stagger_lets_one_pass_at_a_time() -> None:
    state = begun(limits=replace(FAST, stagger_ms=50))
    assert state.due(0) == ("a",)
    state = ask(state, 0)
    assert state.due(49) == ()
    assert state.next_ms(20) == 30
    assert state.due(50) == ("b",)


def test_after_the_set_number_of_failures_nobody_else_is_asked() -> None:
    state = ask(begun(), 0)
    state = says(says(state, "a", "failed"), "b", "interrupted")
    assert stages(state) == "failed interrupted skipped skipped"
    assert state.boxes["d"].reason == "stopped after 2 failures"
    assert state.over
    assert state.verdict == "failed"


def test_who_was_asked_is_followed_to_its_end_after_a_stop() -> None:
    state = ask(begun(limits=replace(FAST, stop_after=1)), 0)
    state = says(state, "a", "failed")
    assert stages(state) == "failed asked skipped skipped"
    assert not state.over
    assert says(state, "b", "succeeded").over


@pytest.mark.parametrize("code", sorted(LATER))
def test_a_box_that_says_later_does_not_count_as_a_failure(code: str) -> None:
    state = ask(begun("ab", replace(FAST, stop_after=1)), 0)
    state = says(says(state, "a", "rejected", code), "b", "rejected", code)
    assert state.failures == 0
    assert state.verdict == "later"


def test_a_box_whose_turn_came_too_late_says_later_as_well() -> None:
    state = ask(begun("a"), 0)
    assert says(says(state, "a", "accepted"), "a", "failed", "window").verdict == "later"


def test_one_success_among_busy_boxes_is_no_verdict_of_later() -> None:
    state = ask(begun("ab"), 0)
    state = says(says(state, "a", "rejected", "busy"), "b", "succeeded")
    assert state.verdict == "failed"


def test_silence_gives_a_box_up_and_makes_room_and_its_late_answer_still_counts() -> None:
    state = ask(begun("abc"), 0)
    state = state.aged(99)
    assert stages(state) == "asked asked waiting"
    state = says(state, "b", "accepted").aged(100)
    assert stages(state) == "silent accepted waiting"
    assert state.boxes["a"].reason == "no answer within 0.1 s"
    assert state.out == ("a", "b")
    assert state.due(100) == ("c",)
    assert stages(says(state, "a", "succeeded")) == "succeeded accepted waiting"


def test_a_late_answer_takes_its_place_back_before_anybody_else_is_asked() -> None:
    state = ask(says(ask(begun("abc"), 0), "b", "running").aged(100), 100)
    state = says(state, "a", "running")
    assert state.due(101) == ()
    assert stages(state) == "running running asked"


def test_a_run_that_does_not_end_is_given_up_and_stays_so_until_it_ends() -> None:
    state = says(ask(begun("a"), 0), "a", "running").aged(1000)
    assert state.boxes["a"].reason == "running, and not over within 1 s"
    assert stages(says(state, "a", "running")) == "overdue"
    assert stages(says(state, "a", "succeeded")) == "succeeded"


def test_an_end_stays_whatever_comes_after_it() -> None:
    state = says(ask(begun("a"), 0), "a", "succeeded")
    assert says(state, "a", "running") == state
    assert says(state, "a", "failed") == state


def test_an_old_answer_does_not_turn_a_box_back() -> None:
    state = says(ask(begun("a"), 0), "a", "running")
    assert says(state, "a", "accepted") == state


def test_a_box_that_was_not_asked_cannot_answer() -> None:
    state = begun("a")
    assert says(state, "a", "succeeded") == state
    assert says(state, "z", "succeeded") == state


def test_the_broker_not_taking_it_is_a_failure_unless_the_box_has_answered() -> None:
    state = ask(begun("ab"), 0)
    state = says(state, "a", "accepted").undelivered("a", "nobody listens")
    state = state.undelivered("b", "nobody listens")
    assert stages(state) == "accepted undelivered"
    assert state.failures == 1


def test_time_in_which_we_were_deaf_does_not_count_against_a_box() -> None:
    state = ask(begun("a"), 0).deaf(500)
    assert stages(state.aged(599)) == "asked"
    assert stages(state.aged(600)) == "silent"


def test_boxes_that_are_left_out_are_shown_and_make_it_no_success() -> None:
    state = ask(begun("ab", b="offline"), 0)
    state = says(state, "a", "succeeded")
    assert state.over
    assert state.boxes["b"].reason == "offline"
    assert state.verdict == "failed"


def test_a_halt_skips_who_waits_and_keeps_its_first_reason() -> None:
    state = ask(begun(), 0).halt("interrupted").halt("again")
    assert stages(state) == "asked asked skipped skipped"
    assert state.halted == "interrupted"


def test_nobody_is_asked_twice() -> None:
    with pytest.raises(ValueError, match="is asked once"):
        ask(begun("a"), 0).asked("a", 1)


@pytest.mark.parametrize("wrong", [{"at_once": 0}, {"stagger_ms": -1}, {"stop_after": 0}])
def test_limits_that_would_ask_nobody_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least"):
        Limits(**wrong)


NAMES = [f"box-{number}" for number in range(7)]


class AnyOrderOfEvents(RuleBasedStateMachine):
    """Whatever happens in whatever order, the promises of the module hold."""

    @initialize(
        limits=st.builds(
            Limits,
            at_once=st.integers(1, 4),
            stagger_ms=st.sampled_from([0, 30]),
            stop_after=st.none() | st.integers(1, 3),
            answer_within_ms=st.sampled_from([40, 100]),
            end_within_ms=st.sampled_from([150, 400]),
        ),
        away=st.sets(st.sampled_from(NAMES), max_size=2),
    )
    def begin(self, limits: Limits, away: Iterable[str]) -> None:
        self.now_ms = 0
        self.state = rollout(NAMES, dict.fromkeys(away, "offline"), limits)
        self.asked: dict[str, int] = {}
        self.ends: dict[str, str] = {}
        self.moved()

    def moved(self) -> None:
        for name, box in self.state.boxes.items():
            if box.stage in ENDED and box.stage != "undelivered":
                assert self.ends.setdefault(name, box.stage) == box.stage

    @rule()
    def ask(self) -> None:
        for name in self.state.due(self.now_ms):
            in_flight = sum(self.state.tally[stage] for stage in IN_FLIGHT)
            assert in_flight < self.state.limits.at_once
            assert self.state.halted is None
            last = max(self.asked.values(), default=-1_000)
            assert self.now_ms - last >= self.state.limits.stagger_ms
            assert name not in self.asked
            self.asked[name] = self.now_ms
            self.state = self.state.asked(name, self.now_ms)
        self.moved()

    @rule(
        name=st.sampled_from(NAMES),
        word=st.sampled_from(ACK_STATES),
        code=st.sampled_from([None, "busy", "bad_sig"]),
    )
    def answer(self, name: str, word: AckState, code: str | None) -> None:
        self.state = self.state.answered(name, Answer(word, code))
        self.moved()

    @rule(name=st.sampled_from(NAMES))
    def refuse(self, name: str) -> None:
        self.state = self.state.undelivered(name, "nobody listens")
        self.moved()

    @rule(passed_ms=st.integers(0, 120))
    def pass_time(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.state = self.state.aged(self.now_ms)
        self.moved()

    @rule()
    def leap_to_what_is_due_next(self) -> None:
        wait = self.state.next_ms(self.now_ms)
        assert (wait is None) == self.state.over
        if wait is None:
            return
        before = self.state
        self.now_ms += wait
        aged = before.aged(self.now_ms)
        assert aged != before or aged.due(self.now_ms), "it woke for nothing"
        self.state = aged
        self.moved()

    @rule()
    def halt(self) -> None:
        self.state = self.state.halt("interrupted")
        self.moved()

    @invariant()
    def every_box_is_counted_once(self) -> None:
        assert sum(self.state.tally.values()) == len(NAMES)
        assert set(self.state.boxes) == set(NAMES)

    @invariant()
    def a_stop_leaves_nobody_waiting(self) -> None:
        if self.state.halted is not None:
            assert not self.state.tally["waiting"]
        stop = self.state.limits.stop_after
        if stop is not None and self.state.failures >= stop:
            assert self.state.halted is not None

    @invariant()
    def who_is_out_was_asked(self) -> None:
        assert set(self.state.out) <= set(self.asked)
        given_up = sum(self.state.tally[stage] for stage in GIVEN_UP)
        assert len(self.state.out) == given_up + sum(self.state.tally[one] for one in IN_FLIGHT)

    @invariant()
    def success_means_that_each_succeeded(self) -> None:
        everyone = self.state.tally["succeeded"] == len(NAMES)
        assert (self.state.verdict == "succeeded") == everyone


AnyOrderOfEvents.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestAnyOrderOfEvents: Any = AnyOrderOfEvents.TestCase


@given(st.integers(1, 5), st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_every_box_is_asked_in_the_end_when_all_do_well(
    at_once: int, lengths_ms: list[int]
) -> None:
    names = [f"n{number}" for number in range(len(lengths_ms))]
    length = dict(zip(names, lengths_ms, strict=True))
    state = rollout(names, {}, Limits(at_once=at_once, stagger_ms=5, stop_after=1))
    now_ms, most = 0, 0
    while not state.over:
        state = ask(state, now_ms)
        running = [name for name, box in state.boxes.items() if box.stage == "asked"]
        most = max(most, len(running))
        for name in running:
            if now_ms - (state.boxes[name].asked_ms or 0) >= length[name]:
                state = says(state, name, "succeeded")
        now_ms += 1
    assert state.verdict == "succeeded"
    assert most <= at_once
