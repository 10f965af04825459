"""What a Sparkplug host is shown, in which order, and how seldom."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.publish.sparkplug import Metric, Payload, decoded, encoded
from edgeagent.publish.sparkplug_mirror import (
    BDSEQ,
    MOST_HISTORY,
    REBIRTH,
    Action,
    HangUp,
    Mirror,
    Names,
    Send,
    death,
    next_bdseq,
    node_metrics,
    run_metrics,
    sound,
)

NAMES = Names("plant7", "edge-0001")
HOSTED = Names("plant7", "edge-0001", "scada")
STATE = "spBv1.0/STATE/scada"


def gauge(name: str, value: float | None) -> Metric:
    return Metric(name, "double", value)


def kinds(actions: Sequence[Action]) -> list[str]:
    """NBIRTH, DBIRTH/llamacpp, hang up: what is done, in order."""
    return [_kind(action) for action in actions]


def _kind(action: Action) -> str:
    if isinstance(action, HangUp):
        return "hang up"
    levels = action.topic.split("/")
    return "/".join([levels[2], *levels[4:]])


def payloads(actions: Sequence[Action]) -> list[Payload]:
    return [decoded(action.payload) for action in actions if isinstance(action, Send)]


def values(payload: Payload) -> dict[str, object]:
    return {metric.name: metric.value for metric in payload.metrics}


def born(names: Names = NAMES) -> Mirror:
    """A mirror that knows one value of the node and one of a device, at 0 s."""
    mirror = Mirror(names)
    mirror.readings([gauge("ram", 100.0)], 0)
    mirror.readings([gauge("tps", 50.0)], 0, "llamacpp")
    mirror.connected(7, 0)
    return mirror


def rebirth(value: object = True) -> bytes:  # noqa: FBT002  # because it is the metric's value
    return encoded(Payload(0, (Metric(REBIRTH, "boolean", value=bool(value)),), None))


def state(online: bool, ts: int) -> bytes:  # noqa: FBT001  # because it is the message's value
    return json.dumps({"online": online, "timestamp": ts}).encode()


# ------------------------------------------------------------------------------------ connecting


def test_the_births_come_first_with_seq_0_and_the_bdseq_of_the_will() -> None:
    mirror = Mirror(NAMES)
    mirror.readings([gauge("ram", 100.0)], 0)
    mirror.readings([gauge("tps", 50.0)], 0, "llamacpp")
    will = death(NAMES, 7, 0)
    actions = mirror.connected(7, 5)
    assert kinds([will, *actions]) == ["NDEATH", "NBIRTH", "DBIRTH/llamacpp"]
    last, node, device = payloads([will, *actions])
    assert (last.seq, values(last)) == (None, {BDSEQ: 7})
    assert (node.seq, values(node)) == (0, {BDSEQ: 7, REBIRTH: False, "ram": 100.0})
    assert (device.seq, values(device)) == (1, {"tps": 50.0})
    assert {metric.ts_ms for metric in node.metrics} == {5}


def test_ndeath_goes_with_qos_1_and_all_else_with_qos_0() -> None:
    mirror = born()
    sent = [
        death(NAMES, 7, 0),
        *mirror.connected(7, 0),
        *mirror.readings([gauge("ram", 200.0)], 2000),
        *mirror.leaving(3000),
    ]
    qos = {(_kind(action), action.qos) for action in sent if isinstance(action, Send)}
    assert qos == {("NDEATH", 1), ("NBIRTH", 0), ("DBIRTH/llamacpp", 0), ("NDATA", 0)}


def test_an_orderly_end_says_ndeath_itself_and_once() -> None:
    mirror = born()
    assert kinds(mirror.leaving(9)) == ["NDEATH"]
    assert mirror.leaving(9) == []


def test_the_bdseq_counts_connections_from_0_and_wraps_after_255() -> None:
    assert [next_bdseq(None), next_bdseq(0), next_bdseq(254), next_bdseq(255)] == [0, 1, 255, 0]


def test_names_lose_what_mqtt_keeps_for_itself() -> None:
    assert Names("a/b", "c+#").topic("DDATA", "x/y") == "spBv1.0/a_b/DDATA/c__/x_y"
    assert sound("") == "_"


# ---------------------------------------------------------------------------------------- the data


def test_a_value_is_sent_when_it_moved_by_more_than_a_hundredth() -> None:
    mirror = born()
    assert mirror.readings([gauge("ram", 101.0)], 1000) == []
    moved = mirror.readings([gauge("ram", 101.1)], 2000)
    assert kinds(moved) == ["NDATA"]
    assert values(payloads(moved)[0]) == {"ram": 101.1}


def test_a_slow_drift_is_measured_from_what_the_host_has() -> None:
    mirror = born()
    sent = [
        second
        for second in range(1, 9)
        if mirror.readings([gauge("ram", 100 + 0.4 * second)], second * 1000)
    ]
    assert sent == [3, 6]  # 101.2 against 100, then 102.4 against 101.2


def test_data_is_sent_at_most_once_a_second_and_nothing_is_forgotten() -> None:
    mirror = born()
    assert mirror.readings([gauge("ram", 200.0)], 999) == []
    assert kinds(mirror.readings([], 1000)) == ["NDATA"]
    assert mirror.readings([gauge("ram", 300.0)], 1999) == []
    assert kinds(mirror.readings([gauge("ram", 300.0)], 2000)) == ["NDATA"]


def test_each_device_has_its_own_second() -> None:
    mirror = born()
    assert kinds(mirror.readings([gauge("ram", 200.0)], 1000)) == ["NDATA"]
    assert kinds(mirror.readings([gauge("tps", 9.0)], 1001, "llamacpp")) == ["DDATA/llamacpp"]


def test_losing_a_reading_and_getting_it_back_is_news() -> None:
    mirror = born()
    lost = mirror.readings([gauge("ram", None)], 1000)
    assert values(payloads(lost)[0]) == {"ram": None}
    back = mirror.readings([gauge("ram", 100.0)], 2000)
    assert values(payloads(back)[0]) == {"ram": 100.0}


def test_words_are_news_when_they_change() -> None:
    mirror = Mirror(NAMES)
    mirror.readings(node_metrics("idle", {}), 0)
    mirror.connected(0, 0)
    assert mirror.readings(node_metrics("idle", {}), 1000) == []
    assert kinds(mirror.readings(node_metrics("sweep", {}), 2000)) == ["NDATA"]


def test_seq_counts_every_message_and_wraps_after_255() -> None:
    mirror = born()
    seqs: list[int | None] = []
    for second in range(1, 600):
        device = "llamacpp" if second % 3 == 0 else None
        moved = [gauge("tps" if device else "ram", 2.0**second)]
        seqs += [payload.seq for payload in payloads(mirror.readings(moved, second * 1000, device))]
    assert seqs == [(2 + count) % 256 for count in range(599)]


def test_a_metric_that_the_birth_had_not_makes_a_new_birth_at_most_every_5_s() -> None:
    mirror = born()
    assert mirror.readings([gauge("swap", 1.0)], 1000) == []
    again = mirror.readings([], 5000)
    assert kinds(again) == ["NBIRTH", "DBIRTH/llamacpp"]
    assert values(payloads(again)[0]) == {BDSEQ: 7, REBIRTH: False, "ram": 100.0, "swap": 1.0}


def test_what_the_birth_had_goes_on_meanwhile() -> None:
    mirror = born()
    mirror.readings([gauge("swap", 1.0)], 1000)
    assert values(payloads(mirror.readings([gauge("ram", 300.0)], 1500))[0]) == {"ram": 300.0}


def test_a_new_engine_is_born_and_a_lost_one_dies() -> None:
    mirror = born()
    appeared = mirror.readings([gauge("tps", 1.0)], 1000, "vllm")
    died = mirror.gone("vllm", 2000)
    assert kinds([*appeared, *died]) == ["DBIRTH/vllm", "DDEATH/vllm"]
    assert [payload.seq for payload in payloads([*appeared, *died])] == [2, 3]
    assert mirror.gone("vllm", 3000) == []
    assert kinds(mirror.connected(8, 4000)) == ["NBIRTH", "DBIRTH/llamacpp"]


def test_a_summary_of_more_than_64_values_is_cut_and_more_metrics_are_refused() -> None:
    metrics = run_metrics({f"m{number:03}": float(number) for number in range(100)})
    assert len(metrics) == 64
    mirror = Mirror(NAMES)
    mirror.readings(metrics, 0, "vllm")
    with pytest.raises(ValueError, match="65 metrics"):
        mirror.readings([gauge("one-more", 1.0)], 0, "vllm")


def test_a_number_that_is_none_is_unknown() -> None:
    found = node_metrics("idle", {"a": float("nan"), "b": float("inf"), "c": None, "d": 0})
    assert [metric.value for metric in found] == ["idle", None, None, None, 0.0]


# -------------------------------------------------------------------------------------- the rebirth


def test_a_rebirth_has_the_same_bdseq_and_begins_at_seq_0() -> None:
    mirror = born()
    mirror.readings([gauge("ram", 200.0)], 1000)
    again = mirror.received(NAMES.commands, rebirth(), 6000)
    assert kinds(again) == ["NBIRTH", "DBIRTH/llamacpp"]
    node = payloads(again)[0]
    assert (node.seq, values(node)[BDSEQ], values(node)["ram"]) == (0, 7, 200.0)


def test_many_requests_make_one_rebirth_in_5_s_and_the_last_is_not_forgotten() -> None:
    mirror = born()
    births = 0
    for tenth in range(1, 121):
        births += bool(mirror.received(NAMES.commands, rebirth(), tenth * 100))
    assert births == 2
    assert kinds(mirror.readings([], 15_000)) == ["NBIRTH", "DBIRTH/llamacpp"]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff\xff",
        rebirth(value=False),
        encoded(Payload(0, (Metric("Node Control/Reboot", "boolean", value=True),), None)),
        encoded(Payload(0, (Metric(REBIRTH, "string", "true"),), None)),
        encoded(Payload(0, (Metric(REBIRTH, "int64", 1),), None)),
        rebirth() + b"\x2a\xff\xff\x01" + b"x" * 32_767,
    ],
)
def test_nothing_but_a_rebirth_can_be_asked_of_the_node(payload: bytes) -> None:
    assert born().received(NAMES.commands, payload, 60_000) == []


@given(st.binary(max_size=200), st.sampled_from([NAMES.commands, STATE, "else"]))
def test_no_message_of_a_host_does_more_than_a_birth(payload: bytes, topic: str) -> None:
    actions = born(HOSTED).received(topic, payload, 60_000)
    assert set(kinds(actions)) <= {"NBIRTH", "DBIRTH/llamacpp"}


# --------------------------------------------------------------------------------- the primary host


def test_nothing_is_born_before_the_primary_host_is_online() -> None:
    mirror = born(HOSTED)
    assert mirror.readings([gauge("ram", 500.0)], 1000) == []
    assert mirror.received(NAMES.commands, rebirth(), 1000) == []
    assert mirror.received(STATE, state(online=False, ts=10), 1000) == []
    assert kinds(mirror.received(STATE, state(online=True, ts=11), 2000))[0] == "NBIRTH"


def test_when_the_primary_host_goes_the_node_dies_and_hangs_up() -> None:
    mirror = born(HOSTED)
    mirror.received(STATE, state(online=True, ts=10), 0)
    assert kinds(mirror.received(STATE, state(online=False, ts=10), 9)) == ["NDEATH", "hang up"]


def test_an_older_state_of_the_host_changes_nothing() -> None:
    mirror = born(HOSTED)
    mirror.received(STATE, state(online=True, ts=10), 0)
    assert mirror.received(STATE, state(online=False, ts=9), 1) == []


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"ONLINE",
        b"[]",
        b'{"online": true}',
        b'{"online": 1, "timestamp": 5}',
        b'{"online": true, "timestamp": true}',
        b'{"online": true, "timestamp": "5"}',
        b"[" * 8000,
        b"\xff",
    ],
)
def test_a_state_that_is_not_as_specified_changes_nothing(payload: bytes) -> None:
    assert born(HOSTED).received(STATE, payload, 0) == []


def test_what_was_read_meanwhile_is_sent_as_historical_after_the_births() -> None:
    mirror = Mirror(HOSTED)
    for second in range(5):
        mirror.readings([gauge("ram", 100.0 + second * 10)], second * 1000)
    mirror.readings([gauge("ram", 140.5)], 5000)  # within the deadband
    mirror.connected(0, 6000)
    actions = mirror.received(STATE, state(online=True, ts=1), 6000)
    assert kinds(actions) == ["NBIRTH", "NDATA"]
    past = payloads(actions)[1]
    assert [(metric.ts_ms, metric.value, metric.history) for metric in past.metrics] == [
        (second * 1000, 100.0 + second * 10, "historical") for second in range(5)
    ]
    assert mirror.received(STATE, state(online=True, ts=2), 6001) == []


def test_the_past_is_bounded_and_its_oldest_part_goes() -> None:
    mirror = Mirror(HOSTED)
    for second in range(MOST_HISTORY + 50):
        mirror.readings([gauge("ram", float(second % 2))], second * 1000)
    mirror.connected(0, 0)
    actions = mirror.received(STATE, state(online=True, ts=1), 10**9)
    past = [metric for payload in payloads(actions)[1:] for metric in payload.metrics]
    assert (len(past), past[0].ts_ms) == (MOST_HISTORY, 50_000)
    assert [payload.seq for payload in payloads(actions)] == list(range(51))


def test_without_a_primary_host_no_past_is_kept() -> None:
    mirror = Mirror(NAMES)
    mirror.readings([gauge("ram", 1.0)], 0)
    mirror.readings([gauge("ram", 2.0)], 1000)
    assert kinds(mirror.connected(0, 2000)) == ["NBIRTH"]


def test_a_device_that_comes_again_has_none_of_the_past_of_the_one_before() -> None:
    mirror = Mirror(HOSTED)
    mirror.readings([gauge("d0", 0.0)], 0, "vllm")
    mirror.gone("vllm", 0)
    mirror.readings([gauge("d1", 1.0)], 0, "vllm")
    mirror.connected(1, 0)
    host = _Host()
    host.forget(1)
    for action in mirror.received(STATE, state(online=True, ts=0), 0):
        host.take(action)
    assert host.known["vllm"] == {"d1"}


# ------------------------------------------------------------------------------- whatever happens

HAPPENED = st.lists(
    st.tuples(
        st.sampled_from(["read", "read device", "rebirth", "lost", "connect", "on", "off", "gone"]),
        st.integers(0, 3000),
        st.floats(0, 1000),
    ),
    max_size=60,
)


@given(HAPPENED, st.sampled_from([NAMES, HOSTED]))
def test_in_any_order_of_events_a_host_can_follow(
    happened: list[tuple[str, int, float]], names: Names
) -> None:
    """Births before data, every metric named by a birth, seq without a hole, one bdSeq each."""
    mirror, host, now_ms, bdseq = Mirror(names), _Host(), 0, 0
    for what, later_ms, value in happened:
        now_ms += later_ms
        actions: Sequence[Action] = ()
        match what:
            case "read":
                actions = mirror.readings([gauge(f"n{int(value) % 3}", value)], now_ms)
            case "read device":
                actions = mirror.readings([gauge(f"d{int(value) % 3}", value)], now_ms, "vllm")
            case "rebirth":
                actions = mirror.received(names.commands, rebirth(), now_ms)
            case "lost":
                mirror.lost()
                host.forget()
            case "connect":
                bdseq = next_bdseq(bdseq)
                host.forget(bdseq)
                actions = mirror.connected(bdseq, now_ms)
            case "gone":
                actions = mirror.gone("vllm", now_ms)
            case _:
                actions = mirror.received(STATE, state(online=what == "on", ts=now_ms), now_ms)
        for action in actions:
            host.take(action)


class _Host:
    """What a host knows of the node; it fails on what it could not make sense of."""

    def __init__(self) -> None:
        self.known: dict[str, set[str]] = {}
        self.seq: int | None = None
        self.bdseq: int | None = None

    def forget(self, bdseq: int | None = None) -> None:
        self.known, self.seq, self.bdseq = {}, None, bdseq

    def take(self, action: Action) -> None:
        if isinstance(action, HangUp):
            return
        kind, _, device = _kind(action).partition("/")
        payload = decoded(action.payload)
        if kind == "NDEATH":
            assert values(payload) == {BDSEQ: self.bdseq}
            self.known, self.seq = {}, None
            return
        if kind == "NBIRTH":
            assert payload.seq == 0
            assert values(payload)[BDSEQ] == self.bdseq
            self.known = {}
        else:
            assert self.seq is not None
            assert "" in self.known
            assert payload.seq == (self.seq + 1) % 256
        self.seq = payload.seq
        names = set(values(payload))
        if kind.endswith("BIRTH"):
            self.known[device] = names
        elif kind == "DDEATH":
            del self.known[device]
        else:
            assert names <= self.known[device]
