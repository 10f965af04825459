"""Which commands are obeyed, what becomes of them, and what the same command gets a second time."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from edgeagent.core.commands import (
    FINAL,
    Accepted,
    Box,
    Cancel,
    Code,
    Command,
    CommandState,
    Head,
    Meta,
    Note,
    Override,
    Ping,
    Rejected,
    Resync,
    Seen,
    Situation,
    StateName,
    Step,
    Sweep,
    admitted,
    advance,
    begin,
    cancelling,
    judge,
    progress_is_due,
    recovered,
    repeated,
)
from edgeagent.core.policy import Bounds, Guards, LocalTime, Policy, Window

NOW = 1_796_006_000_000
HEAD = Head("0b2f6a5e-0000-4000-8000-000000000001", NOW - 1000, NOW + 3_600_000, "plant-operator")
SWEEP = Sweep(HEAD, "nightly-llama")
NIGHTS = Window(("mon", "tue", "wed", "thu", "fri"), 22 * 60, 6 * 60)
POLICY = Policy(
    operations=("sweep", "cancel", "resync", "ping", "meta"),
    profiles=("nightly-llama", "gone"),
    issuers=("plant-operator",),
    bounds={"concurrency": Bounds(1, 16, 4), "seconds": Bounds(10, 600)},
    windows=(NIGHTS,),
    max_runs_per_day=2,
    cooldown_s=3600,
    max_duration_s=14_400,
)
CALM = Situation(NOW, LocalTime("tue", 23 * 60), "sync", ("nightly-llama", "weekly"))


def code(
    command: Command = SWEEP, policy: Policy = POLICY, situation: Situation = CALM
) -> Code | None:
    outcome = judge(command, policy, situation)
    return outcome.code if isinstance(outcome, Rejected) else None


def aged(issued: int, expires: int) -> Sweep:
    """The sweep, issued and running out so many seconds from now."""
    head = replace(HEAD, issued_at_ms=NOW + issued * 1000, expires_at_ms=NOW + expires * 1000)
    return replace(SWEEP, head=head)


# ------------------------------------------------------------------------------------- judging


def test_a_sweep_that_keeps_to_the_policy_starts_and_ends_with_the_limit_or_the_window() -> None:
    assert judge(SWEEP, POLICY, CALM) == Accepted("start", "nightly-llama", 14_400)
    late = replace(CALM, local=LocalTime("wed", 5 * 60))
    assert judge(SWEEP, POLICY, late) == Accepted("start", "nightly-llama", 3600)


def test_nothing_is_obeyed_where_nobody_wrote_a_policy() -> None:
    commands = (SWEEP, Cancel(HEAD, HEAD.id), Resync(HEAD, "R", 1, 2), Ping(HEAD), Meta(HEAD))
    assert {code(command, Policy()) for command in commands} == {"policy_disabled"}


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (replace(POLICY, operations=("ping",)), "policy_disabled"),
        (replace(POLICY, issuers=("somebody",)), "policy_disabled"),
        (replace(POLICY, profiles=("weekly",)), "unknown_profile"),
        (replace(POLICY, max_runs_per_day=0), "quota"),
        (replace(POLICY, windows=()), None),
    ],
)
def test_each_list_of_the_policy_counts(policy: Policy, expected: Code | None) -> None:
    assert code(policy=policy) == expected


def test_a_profile_has_to_be_allowed_and_to_exist() -> None:
    assert code(replace(SWEEP, profile="weekly")) == "unknown_profile"
    assert code(replace(SWEEP, profile="gone")) == "unknown_profile"


@pytest.mark.parametrize(
    ("issued", "expires", "expected"),
    [
        (-3900, 60, None),  # the broker kept it for an hour, and clocks differ by 300 s
        (-3901, 60, "replay"),
        (300, 3600, None),
        (301, 3600, "replay"),
        (0, 86_400, None),
        (0, 86_401, "out_of_bounds"),
        (0, 0, "expired"),
        (-90_000, -3600, "expired"),  # what ran out has run out, however old it is
    ],
)
def test_a_command_is_neither_over_nor_too_old_nor_valid_for_too_long(
    issued: int, expires: int, expected: Code | None
) -> None:
    assert code(aged(issued=issued, expires=expires)) == expected


def test_without_a_clock_only_what_needs_none_is_obeyed() -> None:
    unsure = replace(CALM, clk="unsync")
    old = replace(HEAD, issued_at_ms=0, expires_at_ms=0)
    assert code(SWEEP, situation=unsure) == "clock_unsync"
    assert code(Cancel(HEAD, HEAD.id), situation=unsure) == "clock_unsync"
    assert code(Meta(HEAD), situation=unsure) == "clock_unsync"
    assert code(Ping(old), situation=unsure) is None
    assert code(Resync(old, "M", 1, 9), situation=unsure) is None
    assert code(Ping(old)) == "expired"
    assert code(SWEEP, situation=replace(CALM, clk="holdover")) is None


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (Override(concurrency=(1, 4, 16)), None),
        (Override(concurrency=(1, 17)), "out_of_bounds"),
        (Override(concurrency=(1, 2, 3, 4, 5)), "out_of_bounds"),
        (Override(seconds=9), "out_of_bounds"),
        (Override(seconds=10), None),
        (Override(context=512), "out_of_bounds"),  # no bounds, no override
    ],
)
def test_an_override_needs_bounds_and_keeps_them(override: Override, expected: Code | None) -> None:
    assert code(replace(SWEEP, override=override)) == expected


def test_outside_of_every_window_the_answer_is_window() -> None:
    assert code(situation=replace(CALM, local=LocalTime("tue", 12 * 60))) == "window"


def test_runs_and_those_that_wait_count_towards_the_day() -> None:
    assert code(situation=replace(CALM, runs_today=1)) is None
    assert code(situation=replace(CALM, runs_today=2)) == "quota"


def test_the_cooldown_begins_when_a_run_ends() -> None:
    ended = replace(CALM, last_end_ms=NOW - 3_599_000)
    outcome = judge(SWEEP, POLICY, ended)
    assert isinstance(outcome, Rejected)
    assert (outcome.code, outcome.sentence[-16:]) == ("cooldown", "ask again in 1 s")
    assert code(situation=replace(CALM, last_end_ms=NOW - 3_600_000)) is None


def test_a_clock_that_was_put_back_does_not_lock_the_box() -> None:
    assert code(situation=replace(CALM, last_end_ms=NOW + 10**12)) is None


def test_one_sweep_may_wait_while_another_runs_and_a_second_may_not() -> None:
    running = replace(CALM, running="sweep")
    assert judge(SWEEP, POLICY, running) == Accepted("wait", "nightly-llama", 14_400)
    assert code(situation=replace(running, waiting=1)) == "busy"
    assert code(policy=replace(POLICY, when_busy="refuse"), situation=running) == "busy"


def test_a_sweep_whose_turn_has_come_is_judged_once_more_but_not_for_its_age() -> None:
    waited = aged(issued=-20_000, expires=60)
    assert code(waited) == "replay"
    assert judge(waited, POLICY, CALM, "turn") == Accepted("start", "nightly-llama", 14_400)
    over = judge(aged(issued=-20_000, expires=-1), POLICY, CALM, "turn")
    assert isinstance(over, Rejected)
    assert over.code == "expired"


def test_a_sweep_whose_turn_has_come_waits_for_the_cooldown() -> None:
    just_ended = replace(CALM, last_end_ms=NOW - 1000)
    outcome = judge(SWEEP, POLICY, just_ended, "turn")
    assert isinstance(outcome, Accepted)
    assert outcome.action == "wait"


def test_a_full_spool_refuses_sweeps_and_nothing_else() -> None:
    full = replace(CALM, spool="full")
    assert code(situation=full) == "spool_full"
    assert code(Ping(HEAD), situation=full) is None


@pytest.mark.parametrize(
    ("guards", "box", "expected"),
    [
        (Guards(most_foreign_gpu=0.05), Box(foreign_gpu=0.05), None),
        (Guards(most_foreign_gpu=0.05), Box(foreign_gpu=0.06), "busy"),
        (Guards(most_foreign_cpu=0.25), Box(foreign_cpu=0.5), "busy"),
        (Guards(most_production_requests=0), Box(production_requests=0), None),
        (Guards(most_production_requests=0), Box(production_requests=1), "busy"),
        (Guards(most_temperature_c=80), Box(temperature_c=80.5), "thermal"),
        (Guards(least_available_bytes=2_000), Box(available_bytes=2_000), None),
        (Guards(least_available_bytes=2_000), Box(available_bytes=1_999), "busy"),
        (Guards(), Box(), None),
    ],
)
def test_guards_look_at_the_box_before_a_sweep_starts(
    guards: Guards, box: Box, expected: Code | None
) -> None:
    policy = replace(POLICY, guards=guards)
    assert code(policy=policy, situation=replace(CALM, box=box)) == expected


@pytest.mark.parametrize(
    ("guards", "expected"),
    [
        (Guards(most_foreign_gpu=0.05), "busy"),
        (Guards(most_foreign_cpu=0.25), "busy"),
        (Guards(most_production_requests=0), "busy"),
        (Guards(most_temperature_c=80), "thermal"),
        (Guards(least_available_bytes=1), "busy"),
    ],
)
def test_a_guard_that_cannot_see_refuses(guards: Guards, expected: Code) -> None:
    assert code(policy=replace(POLICY, guards=guards)) == expected


def test_a_dry_run_is_judged_like_a_run_and_begins_nothing() -> None:
    dry = replace(SWEEP, mode="dry_run")
    assert judge(dry, POLICY, CALM) == Accepted("answer", "nightly-llama", 14_400)
    assert code(dry, situation=replace(CALM, local=LocalTime("tue", 720))) == "window"
    hot = replace(POLICY, guards=Guards(most_temperature_c=80))
    assert code(dry, hot, replace(CALM, box=Box(temperature_c=90))) == "thermal"


def test_somebody_on_the_box_needs_no_permission_but_the_box_has_to_be_free() -> None:
    head = replace(HEAD, origin="box", issuer="root", issued_at_ms=0, expires_at_ms=0)
    local = Sweep(head, "weekly")
    unsure = replace(CALM, clk="unsync", runs_today=9, last_end_ms=NOW - 1)
    assert judge(local, Policy(), unsure) == Accepted("start", "weekly", None)
    assert judge(local, POLICY, unsure) == Accepted("start", "weekly", 7 * 3600)
    assert code(local, POLICY, replace(unsure, local=LocalTime("tue", 720))) == "window"
    assert code(replace(local, profile="nothing"), Policy(), unsure) == "unknown_profile"
    assert code(replace(local, override=Override(context=1)), Policy()) == "out_of_bounds"
    hot = replace(POLICY, guards=Guards(most_temperature_c=80))
    assert code(local, hot, replace(CALM, box=Box(temperature_c=90))) == "thermal"


def test_the_profile_that_is_started_is_spelt_as_the_policy_spells_it() -> None:
    asked = "nightly-llama-".removesuffix("-")  # equal, and another object
    outcome = judge(replace(SWEEP, profile=asked), POLICY, CALM)
    assert isinstance(outcome, Accepted)
    assert outcome.profile is POLICY.profiles[0]


NUMBERS = st.integers(-5, NOW * 2)
HEADS = st.builds(
    Head, st.uuids().map(str), NUMBERS, NUMBERS, st.sampled_from(["plant-operator", "mallory"])
)
LEVELS = st.lists(st.integers(-1, 40), max_size=6).map(tuple)
SWEEPS = st.builds(
    Sweep,
    HEADS,
    st.sampled_from(["nightly-llama", "gone", "x"]),
    st.builds(Override, concurrency=st.none() | LEVELS, seconds=st.none() | st.integers(0, 900)),
    st.sampled_from(["run", "dry_run"]),
)
SITUATIONS = st.builds(
    Situation,
    st.integers(0, NOW * 2),
    st.builds(LocalTime, st.sampled_from(["mon", "sat"]), st.integers(0, 1439)),
    st.sampled_from(["sync", "unsync"]),
    st.just(("nightly-llama",)),
    st.sampled_from(["nothing", "sweep"]),
    st.integers(0, 2),
    st.integers(0, 3),
    st.none() | st.integers(0, NOW * 2),
    st.sampled_from(["room", "full"]),
)


@given(SWEEPS, SITUATIONS)
@examples(max_examples=500)
def test_whatever_is_asked_the_answer_has_a_known_code_and_a_start_finds_the_box_free(
    sweep: Sweep, situation: Situation
) -> None:
    outcome = judge(sweep, POLICY, situation)
    if isinstance(outcome, Rejected):
        assert outcome.code in get_args(Code)
        assert outcome.sentence
    elif outcome.action == "start":
        assert (situation.running, situation.waiting, sweep.mode) == ("nothing", 0, "run")
        assert sweep.head.issuer == "plant-operator"
        assert sweep.head.expires_at_ms > situation.now_ms


# ------------------------------------------------------------------------------ what becomes of it


def state(name: StateName) -> CommandState:
    return CommandState(HEAD.id, "sweep", name, NOW)


def test_a_sweep_goes_from_accepted_over_running_to_an_end() -> None:
    current = begin(SWEEP, Accepted("start"), NOW)
    running = advance(current, "start", NOW + 1, Note(run="r1", done=0, total=8))
    assert running == CommandState(HEAD.id, "sweep", "running", NOW + 1, run="r1", done=0, total=8)
    further = advance(running, "progress", NOW + 2, Note(done=3))
    assert further is not None
    assert (further.state, further.done, further.total, further.run) == ("running", 3, 8, "r1")
    ended = advance(further, "succeed", NOW + 3)
    assert ended is not None
    assert (ended.state, ended.run) == ("succeeded", "r1")


def test_what_was_refused_says_why_and_is_at_its_end() -> None:
    first = begin(SWEEP, Rejected("window", "not now"), NOW)
    assert (first.state, first.code, first.reason) == ("rejected", "window", "not now")


@pytest.mark.parametrize("name", sorted(FINAL))
@pytest.mark.parametrize("step", get_args(Step))
def test_nothing_follows_an_end(name: StateName, step: Step) -> None:
    assert advance(state(name), step, NOW) is None


def test_a_running_sweep_cannot_be_started() -> None:
    assert advance(state("running"), "start", NOW) is None


STEPS = st.lists(st.sampled_from(get_args(Step)), max_size=30)


@given(STEPS)
def test_no_order_of_steps_starts_a_command_twice(steps: list[Step]) -> None:
    current, starts, ends = state("accepted"), 0, 0
    for step in steps:
        after = advance(current, step, NOW)
        if after is None:
            continue
        starts += step == "start"
        ends += after.state in FINAL
        current = after
    assert starts <= 1
    assert ends <= 1


@given(st.data())
def test_no_kill_between_two_writes_starts_a_command_twice(data: st.DataObject) -> None:
    """A life may end after any write or act; the next one begins with what was written."""
    disk, started = state("accepted"), 0
    for _ in range(data.draw(st.integers(1, 5))):
        for changed in recovered([disk], NOW):
            disk = changed
        for act in ("write", "start", "write end"):
            if data.draw(st.booleans(), label=f"killed before {act}"):
                break
            if act == "write":
                running = advance(disk, "start", NOW)
                if running is None:
                    break
                disk = running
            elif act == "start":
                started += 1
            else:
                disk = advance(disk, "succeed", NOW) or disk
    assert started <= 1


def test_after_a_restart_what_ran_was_interrupted_and_what_waited_still_waits() -> None:
    found = [state("accepted"), state("running"), state("succeeded"), state("rejected")]
    changed = recovered(found, NOW + 5)
    assert [(item.state, item.at_ms) for item in changed] == [("interrupted", NOW + 5)]


def test_progress_is_told_once_in_ten_seconds() -> None:
    assert progress_is_due(None, 0)
    assert not progress_is_due(1000, 10_999)
    assert progress_is_due(1000, 11_000)


def test_a_cancel_takes_back_what_waits_stops_what_runs_and_finds_nothing_else() -> None:
    taken_back = cancelling(state("accepted"), NOW)
    assert isinstance(taken_back, CommandState)
    assert taken_back.state == "cancelled"
    assert cancelling(state("running"), NOW) == "stop"
    assert {cancelling(state(name), NOW) for name in FINAL} == {"nothing"}
    assert cancelling(None, NOW) == "nothing"


# -------------------------------------------------------------------------- the same command again


def test_the_same_command_again_gets_the_stored_answer() -> None:
    seen = Seen("f1", state("running"))
    assert repeated(None, "f1") is None
    assert repeated(seen, "f1") == state("running")
    assert repeated(seen, None) == state("running")


def test_another_command_under_a_known_id_is_a_replay() -> None:
    outcome = repeated(Seen("f1", state("running")), "f2")
    assert isinstance(outcome, Rejected)
    assert outcome.code == "replay"


def test_five_messages_are_looked_at_in_ten_seconds() -> None:
    recent: list[int] = []
    words = []
    for at_ms in (0, 100, 200, 300, 400, 500, 9_999, 10_000, 10_050, 10_100):
        word, recent = admitted(recent, at_ms)
        words.append(word)
    assert words == ["admit"] * 5 + ["drop", "drop", "admit", "drop", "admit"]


@given(st.lists(st.integers(0, 3000), max_size=200))
def test_no_flood_gets_more_than_five_into_any_ten_seconds(gaps: list[int]) -> None:
    recent: list[int] = []
    now_ms, taken = 0, []
    for gap in gaps:
        now_ms += gap
        word, recent = admitted(recent, now_ms)
        if word == "admit":
            taken.append(now_ms)
    for first, sixth in zip(taken, taken[5:], strict=False):
        assert sixth - first >= 10_000
    assert len(recent) <= 5
