"""What a second operator costs, worked out by hand, and how often the intervals hold.

The usual scene: two in flight, each with a token every 100 ms from 50 ms on, so 20 tokens a second.
Nobody comes at 6 s, a newcomer at 12 s, and so on every 12 s; each window is watched for 4 s.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import COST, MS, S, cell, request

from edgeagent.core.interference import (
    Effects,
    Estimate,
    Interference,
    Observed,
    combine,
    observe,
    sentence,
)
from edgeagent.core.model import Arrival, ArrivalRecord, ArrivalSpec, RequestTrace, Switch

SPEC = ArrivalSpec(
    pairs=1,
    first="none",
    prompt_tokens=448,
    wanted_prompt_tokens=1280,
    output_tokens=4,
    quiet_s=2.0,
)


def moments(pairs: int) -> list[Arrival]:
    """The rehearsal at 2 s would be over at 4 s; pairs begin at 6, 18, 30 ... s."""
    windows = [Arrival(2 * S, 4 * S, "rehearsal")]
    for pair in range(pairs):
        begin = 6 + 12 * pair
        windows.append(Arrival(begin * S, (begin + 4) * S, "none"))
        windows.append(Arrival((begin + 6) * S, (begin + 10) * S, "operator"))
    return windows


def a_record(pairs: int = 1, *, cache: Switch = "off", slots: int | None = 3) -> ArrivalRecord:
    of = replace(cell(2, cache), purpose="arrival", arrival=replace(SPEC, pairs=pairs))
    end_ns = (8 + 12 * pairs) * S
    return ArrivalRecord(
        of, "a1", 0, end_ns, slots=slots, client=COST, arrivals=tuple(moments(pairs))
    )


def steady(seconds: int = 20, stalls: Sequence[tuple[int, int]] = ()) -> list[int]:
    """A token every 100 ms, in ms; each stall (moment, length) moves everything after it."""
    times = []
    for tick in range(seconds * 10):
        at_ms = 50 + 100 * tick
        for begin_ms, length_ms in stalls:
            if at_ms >= begin_ms:
                at_ms += length_ms
        times.append(at_ms)
    return times


def victims(stalls: Sequence[tuple[int, int]] = (), seconds: int = 20) -> list[RequestTrace]:
    return [request(0, steady(seconds, stalls), index=index) for index in range(2)]


def newcomer(at_ms: int, first_ms: int, last_ms: int, index: int = 2) -> RequestTrace:
    return request(at_ms, [first_ms, last_ms], role="operator", index=index)


def only(observed: Observed) -> Interference:
    (found,) = combine([observed])
    return found


def value(estimate: Estimate) -> float:
    assert estimate.value is not None
    return estimate.value


# --------------------------------------------------------------------------------- worked values


def stalled() -> Interference:
    """At 12 s everything stands still for 800 ms; the newcomer has its last token after 1.5 s."""
    traces = [*victims([(12_000, 800)]), newcomer(12_000, 12_900, 13_500)]
    return only(observe(a_record(), traces))


def test_a_stall_is_the_difference_of_the_longest_gaps() -> None:
    # From 11.95 s to 12.85 s, and 100 ms where nobody comes
    assert value(stalled().victim.during.gap_max_s) == pytest.approx(0.9)
    assert value(stalled().undisturbed.during.gap_max_s) == pytest.approx(0.1)
    assert value(stalled().effects.gap_max_s) == pytest.approx(0.8)
    assert value(stalled().effects.gap_typical_s) == pytest.approx(0.8)


def test_rates_are_of_as_long_as_the_newcomer_was_there() -> None:
    found = stalled()
    # 12.85, 12.95 ... 13.45 s: seven tokens each in 1.5 s, against fifteen
    assert value(found.victim.during.output_tokens_per_s) == pytest.approx(14 / 1.5)
    assert value(found.undisturbed.during.output_tokens_per_s) == pytest.approx(30 / 1.5)
    assert value(found.slowdown) == pytest.approx(1 - 14 / 30)
    assert value(found.victim.before.output_tokens_per_s) == pytest.approx(20)
    assert value(found.victim.after.output_tokens_per_s) == pytest.approx(20)


def test_lost_tokens_are_those_missing_at_the_windows_end() -> None:
    # 0.8 s of 20 tokens a second
    assert value(stalled().effects.lost_tokens) == pytest.approx(16)


def test_they_have_recovered_when_the_stall_is_over() -> None:
    # The first token after it comes 850 ms after the moment.
    assert stalled().recovery_s == pytest.approx(0.85)
    assert stalled().unrecovered == 0


def test_the_newcomers_own_times() -> None:
    operator = stalled().operator
    assert operator.ttft_s == pytest.approx(0.9)
    assert operator.served_s == pytest.approx(1.5)
    assert (operator.prompt_tokens, operator.wanted_prompt_tokens) == (448, 1280)
    assert (operator.requests, operator.failed) == (1, 0)


def test_itl_p99_is_over_the_window_and_needs_a_hundred_tokens() -> None:
    # Two in flight have 80 tokens in 4 s: too few to have one in a hundred.
    assert stalled().effects.itl_p99_s.value is None
    traces = [
        *(request(0, steady(20, [(12_000, 800)]), index=index) for index in range(4)),
        newcomer(12_000, 12_900, 13_500),
    ]
    # Of 128 gaps four are 900 ms; the 99th percentile is one of those.
    assert value(only(observe(a_record(), traces)).effects.itl_p99_s) == pytest.approx(0.8)


def test_a_share_taken_for_good_is_never_recovered_from() -> None:
    # From 12 s on one of the two has no token any more.
    half = [request(0, [at for at in steady() if at < 12_000], index=0), victims()[1]]
    found = only(observe(a_record(), [*half, newcomer(12_000, 12_900, 13_500)]))
    assert found.unrecovered == 1
    assert found.recovery_s == pytest.approx(4.0)  # all of the window
    assert value(found.slowdown) == pytest.approx(0.5)
    assert "not back to normal in 1 of 1 windows" in sentence(found)


def test_without_an_effect_every_effect_is_none() -> None:
    found = only(observe(a_record(), [*victims(), newcomer(12_000, 12_100, 13_500)]))
    for effect in (found.effects.gap_max_s, found.effects.lost_tokens, found.slowdown):
        assert effect.value == pytest.approx(0)
    assert found.recovery_s == 0


def test_a_hiccup_that_happens_anyway_drops_out() -> None:
    traces = [*victims([(6_500, 300), (12_200, 300)]), newcomer(12_000, 12_100, 13_500)]
    assert value(only(observe(a_record(), traces)).effects.gap_max_s) == pytest.approx(0)


def test_one_victims_hiccup_is_not_a_stall_of_half_the_fan_out() -> None:
    steady_ones = [request(0, steady(), index=index) for index in range(3)]
    of = a_record()
    of = replace(of, cell=replace(of.cell, concurrency=4))
    hit = request(0, steady(20, [(12_000, 500)]), index=3)
    found = only(observe(of, [*steady_ones, hit, newcomer(12_000, 12_100, 13_500)]))
    assert value(found.effects.gap_max_s) == pytest.approx(0.5)
    assert value(found.effects.gap_typical_s) == pytest.approx(0)


# ------------------------------------------------------------------------------- queue and prefix


def test_who_is_sent_while_every_slot_is_taken_waits_for_the_next_to_end() -> None:
    # Two slots, both taken: the newcomer waits from 12.0 s until one ends at 12.4 s; whoever comes
    # after that one waits until the other ends, at 12.9 s.
    traces = [
        request(0, [12_400], index=0),
        request(0, [12_900], index=1),
        newcomer(12_000, 12_600, 13_500),
        request(12_410, [13_000, 16_000], index=2),
        request(12_910, [13_600, 16_000], index=3),
    ]
    found = only(observe(a_record(slots=2), traces))
    assert found.operator.queue_s == pytest.approx(0.4)
    # The newcomer, the one at 12.41 s, and the one at 12.91 s, until the newcomer ends.
    assert found.effects.queued.value == 3


def test_a_slot_that_is_given_back_at_the_same_moment_is_free() -> None:
    chained = [
        request(at, [at + 100, at + 1000], index=at // 1000) for at in range(0, 20_000, 1000)
    ]
    found = only(observe(a_record(slots=2), [*chained, newcomer(12_000, 12_100, 13_000, 99)]))
    assert found.effects.queued.value == 0


def test_an_engine_that_does_not_tell_its_slots_has_no_queue() -> None:
    traces = [*victims(), newcomer(12_000, 12_100, 13_500)]
    found = only(observe(a_record(slots=None), traces))
    assert found.effects.queued.value is None
    assert found.operator.queue_s is None


def rounds(cached_after_12_s: int) -> list[RequestTrace]:
    """One request a second and lane; those sent from 12 s to 14 s find less in the cache."""
    return [
        request(
            second * 1000,
            steady_within(second),
            index=second,
            cached_tokens=cached_after_12_s if 12 <= second < 14 else 256,
        )
        for second in range(20)
    ]


def steady_within(second: int) -> list[int]:
    return [second * 1000 + 50 + 100 * tick for tick in range(10)]


def test_evicted_prefix_is_what_the_next_requests_find_missing() -> None:
    traces = [*rounds(0), newcomer(12_000, 12_100, 13_500, 99)]
    found = only(observe(a_record(cache="on"), traces))
    assert found.prefix_tokens_evicted == 2 * 256


def test_where_no_cache_is_wanted_nothing_can_be_evicted() -> None:
    traces = [*rounds(0), newcomer(12_000, 12_100, 13_500, 99)]
    assert only(observe(a_record(cache="off"), traces)).prefix_tokens_evicted is None


# -------------------------------------------------------------------- windows, pairs, and too few


def test_a_newcomer_that_failed_costs_its_pair_and_is_counted() -> None:
    bad = replace(newcomer(12_000, 12_100, 13_500), error="http_5xx")
    good = newcomer(24_000, 24_100, 25_500, 4)
    found = only(observe(a_record(2), [*victims(seconds=32), bad, good]))
    assert found.pairs == 1
    assert (found.operator.requests, found.operator.failed) == (2, 1)
    assert found.operator.errors == ("http_5xx",)


def test_a_cell_whose_newcomers_all_failed_says_so_and_nothing_else() -> None:
    bad = replace(newcomer(12_000, 12_100, 13_500), error="http_5xx")
    found = only(observe(a_record(), [*victims(), bad]))
    assert found.pairs == 0
    assert found.slowdown == Estimate()
    assert found.effects == Effects()
    assert "not known" in sentence(found)
    assert "http_5xx" in sentence(found)


def test_a_cell_without_a_window_is_an_answer_too() -> None:
    found = only(observe(replace(a_record(), arrivals=()), victims()))
    assert found.reason == "nothing can be said: no window was finished"


def test_two_pairs_have_no_interval_and_three_have_one() -> None:
    def found(pairs: int) -> Interference:
        came = [
            newcomer(at * 1000, at * 1000 + 100, at * 1000 + 1500, at)
            for at in range(12, 12 * pairs + 1, 12)
        ]
        return only(observe(a_record(pairs), [*victims(seconds=12 * pairs + 8), *came]))

    assert found(2).slowdown.ci95 is None
    assert found(2).reason == "no intervals: 2 pairs of windows, and it takes 3"
    assert found(3).slowdown.ci95 is not None
    assert found(3).reason is None


def test_pairs_of_every_launch_count_and_settings_stay_apart() -> None:
    traces = [*victims([(12_000, 800)]), newcomer(12_000, 12_900, 13_500)]
    again = replace(a_record(), cell=replace(a_record().cell, cell_id="other", repeat=1))
    warm = a_record(cache="on")
    both = combine([observe(a_record(), traces), observe(warm, traces), observe(again, traces)])
    assert [(one.prefix_cache, one.pairs, one.launches) for one in both] == [
        ("off", 2, 2),
        ("on", 1, 1),
    ]
    assert both[0].cells == (a_record().cell.cell_id, "other")


def test_pairs_that_begin_with_the_newcomer_are_pairs_too() -> None:
    windows = moments(1)
    turned = replace(
        a_record(),
        arrivals=(
            windows[0],
            replace(windows[1], kind="operator"),
            replace(windows[2], kind="none"),
        ),
    )
    traces = [*victims([(6_000, 800)]), newcomer(6_000, 6_900, 7_500)]
    assert value(only(observe(turned, traces)).effects.gap_max_s) == pytest.approx(0.8)


# ------------------------------------------------------------------------- how often they are right


def noisy(rng: random.Random, pairs: int, stall: Callable[[], float]) -> Observed:
    """Two in flight at about 10 tokens a second each; every newcomer stalls both."""
    came = [arrival.at_ns // MS for arrival in moments(pairs) if arrival.kind == "operator"]
    stalls = {at: stall() for at in came}
    lanes = []
    for index in range(2):
        at_ms, times, waiting = 0.0, [], sorted(stalls)
        while at_ms < (8 + 12 * pairs) * 1000:
            at_ms += 100 * rng.lognormvariate(0, 0.3)
            if waiting and at_ms >= waiting[0]:
                at_ms += stalls[waiting.pop(0)]
            times.append(round(at_ms))
        lanes.append(request(0, times, index=index))
    newcomers = [newcomer(at, at + 100, at + 2500, at) for at in came]
    return observe(a_record(pairs), [*lanes, *newcomers])


def coverage(
    stall_s: float, truth: float, of: Callable[[Interference], Estimate], rounds: int = 150
) -> float:
    """How often the interval of an effect holds the truth, all from one seed."""
    rng = random.Random(20260101)
    hits = 0
    for _ in range(rounds):
        found = only(noisy(rng, 4, lambda: stall_s * 1000))
        interval = of(found).ci95
        assert interval is not None
        hits += interval[0] <= truth <= interval[1]
    return hits / rounds


@pytest.mark.parametrize(
    "of",
    [
        lambda found: found.effects.gap_max_s,
        lambda found: found.effects.gap_typical_s,
        lambda found: found.effects.lost_tokens,
        lambda found: found.slowdown,
    ],
    ids=["gap_max_s", "gap_typical_s", "lost_tokens", "slowdown"],
)
def test_a_newcomer_without_effect_has_intervals_that_cover_none(
    of: Callable[[Interference], Estimate],
) -> None:
    assert coverage(0.0, 0.0, of) >= 0.90


def test_what_a_stall_costs_is_covered_as_often() -> None:
    # Tokens come every 100 ms x the mean of the noise, exp(0.3 ** 2 / 2) = 1.046.
    truth = 0.8 * 2 / 0.1046
    assert coverage(0.8, truth, lambda found: found.effects.lost_tokens) >= 0.90


@given(st.lists(st.integers(0, 20_000), max_size=60), st.sampled_from([1, 2, 3, None]))
def test_whatever_the_stamps_are_there_is_an_answer(stamps: list[int], slots: int | None) -> None:
    traces = [
        request(min(part), sorted(part), index=number)
        for number, part in enumerate(stamps[at : at + 7] for at in range(0, len(stamps), 7))
    ]
    found = only(observe(a_record(slots=slots), [*traces, newcomer(12_000, 12_100, 13_500, 99)]))
    assert sentence(found).endswith(".")
    for effect in vars(found.effects).values():
        assert effect.n <= 1


def test_the_same_records_always_give_the_same_answer() -> None:
    traces = list(chain(victims([(12_000, 800)]), [newcomer(12_000, 12_900, 13_500)]))
    assert only(observe(a_record(), traces)) == only(observe(a_record(), traces[::-1]))


# ------------------------------------------------------------------------------------- in words


def test_the_answer_is_one_sentence() -> None:
    assert sentence(stalled()) == (
        "llamacpp at 2, prefix cache off: a second operator with a prompt of 448 tokens stalls "
        "running answers by 0.80 s (no interval), takes 53% of their output while it is served "
        "(no interval); they are back to normal after 0.85 s; the newcomer has its first token "
        "after 0.90 s."
    )


def test_what_cannot_be_told_from_nothing_is_told_so() -> None:
    quiet = replace(
        stalled(),
        effects=Effects(gap_typical_s=Estimate(0.001, (-0.01, 0.012), 4)),
        slowdown=Estimate(0.01, (-0.1, 0.12), 4),
        recovery_s=0.0,
    )
    text = sentence(quiet)
    assert "does not measurably stall running answers (-10.0 ms to 12.0 ms, 95 %)" in text
    assert "takes no measurable share of their output" in text
    assert "nothing to recover from" in text
