"""A receipt that says less is believed when it is said again, later, and nothing else meanwhile."""

from hypothesis import given
from hypothesis import strategies as st

from edgeagent.core.step_back import StepBack, Told


def at(upto: int, ts_ms: float) -> Told:
    return Told("R", upto, ts_ms)


def test_less_that_goes_on_for_half_a_minute_is_believed_once() -> None:
    less = StepBack(30.0)
    assert not less.heard(at(50, 1_000), 50, 1.0)
    assert not less.heard(at(30, 2_000), 50, 2.0)
    assert not less.heard(at(30, 30_000), 50, 31.9)
    assert less.heard(at(31, 32_000), 50, 32.0)
    assert not less.heard(at(31, 33_000), 50, 33.0)


def test_a_receipt_that_was_overtaken_is_nothing_however_often_it_comes() -> None:
    less = StepBack(30.0)
    less.heard(at(50, 5_000), 50, 1.0)
    for second in range(200):
        assert not less.heard(at(30, 4_999), 50, 2.0 + second)


def test_one_that_the_broker_kept_is_nothing_however_often_it_comes() -> None:
    """As when a box starts anew, and its broker came back with what it had a while ago."""
    less = StepBack(30.0)
    for second in range(200):
        assert not less.heard(at(30, 4_999), 50, 2.0 + second)


def test_as_much_as_ever_in_between_begins_the_wait_anew() -> None:
    """As with a second collector that lags behind."""
    less = StepBack(30.0)
    for second in range(0, 200, 2):
        assert not less.heard(at(30, 1_000 * second), 50, second)
        assert not less.heard(at(50, 1_000 * second + 1), 50, second + 1)


def test_streams_are_apart() -> None:
    less = StepBack(30.0)
    less.heard(Told("M", 1, 1), 9, 0.0)
    assert not less.heard(at(1, 2), 9, 31.0)
    assert less.heard(Told("M", 1, 3), 9, 32.0)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 100), st.integers(0, 20))))
def test_nothing_is_believed_but_less_said_twice_with_a_while_between(
    said: list[tuple[int, int, int]],
) -> None:
    less, now_s, had = StepBack(30.0), 0.0, 3
    heard: list[tuple[int, float, float]] = []
    for upto, ts_ms, passed_s in said:
        now_s += passed_s
        believed = less.heard(at(upto, ts_ms), had, now_s)
        heard.append((upto, ts_ms, now_s))
        if believed:
            since = max((n for n, (one, _, _) in enumerate(heard) if one >= had), default=-1)
            assert any(
                now_s - when_s >= 30.0 and ts_ms > then_ms
                for _, then_ms, when_s in heard[since + 1 : -1]
            )
