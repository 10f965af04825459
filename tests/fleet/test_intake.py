import json
from typing import Any

import pytest
from fleet_boxes import payload
from hypothesis import example, given
from hypothesis import strategies as st

from edgeagent.errors import UsageError
from edgeagent.fleet.intake import MOST_PAYLOAD_BYTES, Incoming, Verdict, judge
from edgeagent.fleet.places import layout

_LAYOUT = layout("edgeagent/v1")
_TOPIC = "edgeagent/v1/plant7/edge-1/"


def _judge(payload: bytes, below: str = "e/oom", **changes: Any) -> Verdict:
    topic = changes.pop("topic", _TOPIC + below)
    retained = bool(changes.pop("retained", False))
    return judge(Incoming(topic, payload, retained, 1_796_000_005_000), _LAYOUT.place(topic))


def _reason(verdict: Verdict) -> str | None:
    return None if verdict.quarantined is None else verdict.quarantined.reason


def test_a_sound_row_is_kept_with_the_bytes_that_came() -> None:
    sent = payload("edge-1", 7)
    verdict = _judge(sent)
    assert verdict.message is not None
    assert verdict.message[:6] == ("edge-1", "aaaa", "R", 7, "edgeagent.oom/1", "oom")
    assert verdict.message.payload == sent.decode()
    assert verdict.quarantined is None


def test_a_schema_that_nobody_knows_is_kept_raw() -> None:
    verdict = _judge(payload("edge-1", schema="edgeagent.oom/2", v=["another", "shape"]))
    assert verdict.message is not None
    assert verdict.message.schema == "edgeagent.oom/2"
    assert verdict.quarantined is None


def test_a_known_schema_with_unknown_values_is_kept_raw_and_noted() -> None:
    verdict = _judge(payload("edge-1", schema="edgeagent.point/1", v="words"), "r/point/run-1")
    assert verdict.message is not None
    assert verdict.point is None
    assert _reason(verdict) == "kept raw: a level without values"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"node": "edge-2"}, "forged: the node inside is not the topic's"),
        ({"site": "plant8"}, "forged: the site inside is not the topic's"),
        ({"stream": "X"}, "of no stream"),
        ({"seq": 0}, "its number is below 1"),
        ({"seq": 1 << 60}, "seq is missing, or no whole number from 0 to 2**53"),
        ({"seq": True}, "seq is missing, or no whole number from 0 to 2**53"),
        ({"epoch": "e" * 65}, "epoch is missing, or no word of at most 64 characters"),
        ({"clk": "perhaps"}, "a clock of no known state"),
        ({"ts": None}, "ts is missing, or no whole number from 0 to 2**53"),
    ],
)
def test_what_is_not_sound_is_set_aside_with_the_reason(
    changes: dict[str, Any], reason: str
) -> None:
    sent = payload("edge-1", **changes)
    verdict = _judge(sent)
    assert verdict.message is None
    assert _reason(verdict) == reason


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"", "not JSON, or with numbers that JSON has not"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[1]", "not a JSON object"),
        (b'{"seq": NaN}', "not JSON, or with numbers that JSON has not"),
        (b"[" * 100_000, "not JSON, or with numbers that JSON has not"),
    ],
)
def test_what_is_no_json_object_is_set_aside(sent: bytes, reason: str) -> None:
    assert _reason(_judge(sent)) == reason


def test_a_row_above_the_limit_is_declared_lost_so_that_its_box_goes_on() -> None:
    verdict = _judge(payload("edge-1", 9, v={"pad": "x" * MOST_PAYLOAD_BYTES}))
    assert verdict.message is None
    assert _reason(verdict) == "too large"
    assert [gap[:5] for gap in verdict.gaps] == [("edge-1", "aaaa", "R", 9, 9)]
    assert verdict.quarantined is not None
    assert len(verdict.quarantined.payload) == 2_000


def test_topics_of_the_quarantine_are_few_whatever_a_box_calls_its_runs() -> None:
    topics = set()
    for n in range(100):
        verdict = _judge(b"nonsense", f"r/run/run-{n}")
        assert verdict.quarantined is not None
        topics.add(verdict.quarantined.topic)
    assert topics == {_TOPIC + "r/run"}


def test_a_minute_of_telemetry_keeps_its_numbers() -> None:
    sent = payload(
        "edge-1", 3, schema="edgeagent.mem_1m/1", stream="M", v={"samples": 12, "a": 1.5}
    )
    verdict = _judge(sent, "m/mem_1m")
    assert verdict.telemetry is not None
    assert json.loads(verdict.telemetry.v) == {"samples": 12, "a": 1.5}
    assert verdict.message is None


def test_a_live_reading_is_looked_at_and_not_stored() -> None:
    sent = payload("edge-1", 3, schema="edgeagent.mem/1", stream="L", v={"ram_used_bytes": 5})
    verdict = _judge(sent, "m/mem")
    assert (verdict.message, verdict.telemetry) == (None, None)
    assert verdict.news is not None
    assert verdict.news.live == {"ram_used_bytes": 5}


def test_a_result_becomes_a_run_and_its_levels_become_points() -> None:
    result = {
        "started_at": "2026-11-30T08:00:00Z", "host": {"class": "uma-nvgpu"}, "levels": [],
        "comparison": [{"metric": "a"}], "findings": "none",
    }  # fmt: skip
    run = _judge(
        payload(
            "edge-1",
            schema="edgeagent.run/1",
            v={"run_id": "A", "status": "complete", "extent": "whole", "result": result},
        ),
        "r/run/A",
    ).run
    assert run is not None
    assert (run.run_id, run.class_, json.loads(run.document)) == ("A", "uma-nvgpu", result)
    assert (run.comparison, run.findings) == ('[{"metric":"a"}]', None)
    point = _judge(
        payload(
            "edge-1",
            schema="edgeagent.point/1",
            run="A",
            point=0,
            engine="vllm",
            v={"concurrency": 8, "output_tokens_per_s": 41, "goodput_per_s": None},
        ),
        "r/point/A",
    ).point
    assert point is not None
    assert (point.run, point.point, point.engine, point.concurrency) == ("A", "0", "vllm", 8)
    assert (point.output_tokens_per_s, point.goodput_per_s) == (41.0, None)


def test_a_declared_gap_says_which_numbers_will_not_come() -> None:
    values = {"stream": "M", "from": 11, "to": 60, "n": 40, "reason": "evicted", "every": 5}
    verdict = _judge(payload("edge-1", 2, schema="edgeagent.gap/1", v=values), "e/gap")
    assert [gap[2:7] for gap in verdict.gaps] == [("M", 11, 60, 5, "evicted")]
    assert verdict.message is not None


def test_rows_of_a_box_that_does_not_know_the_time_wait_for_one_that_does() -> None:
    unclear = _judge(payload("edge-1", 1, clk="unsync", ts=1_000, mono_ms=400))
    assert unclear.unclear == ("edge-1", "b1", "aaaa", "R", 1, 400)
    clear = _judge(payload("edge-1", 2, clk="sync", ts=1_796_000_000_000, mono_ms=1_400))
    assert clear.boot == ("edge-1", "b1", 1_795_999_998_600, 1_400)


def test_a_retained_status_is_as_old_as_its_box_says() -> None:
    said = {
        "schema": "edgeagent.status/1", "site": "plant7", "node": "edge-1", "state": "online",
        "session": "s", "session_n": 3, "ts": 1_795_000_000_000,
    }  # fmt: skip
    fresh = _judge(json.dumps(said).encode(), "status").news
    old = _judge(json.dumps(said).encode(), "status", retained=True).news
    assert fresh is not None
    assert old is not None
    assert (fresh.rx_ms, old.rx_ms) == (1_796_000_005_000, 1_795_000_000_000)


def test_a_cleared_retained_message_means_nothing() -> None:
    assert _judge(b"", "status") == Verdict()
    assert _judge(b"", "rx") == Verdict()


@pytest.mark.parametrize(
    "topic",
    [
        "edgeagent/v1/plant7/edge-1",
        "edgeagent/v1/plant7/edge-1/",
        "edgeagent/v2/plant7/edge-1/status",
        "edgeagent/v1/Plant7/edge-1/status",
        "edgeagent/v1/plant7/../status",
        "x",
        "",
    ],
)
def test_a_topic_that_is_no_boxs_is_set_aside(topic: str) -> None:
    assert _reason(_judge(payload("edge-1"), topic=topic)) == "no box has such a topic"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
_NAMES = ["edgeagent.mem_1m/1", "edgeagent.point/1", "edgeagent.run/1", "edgeagent.gap/1", "x"]


@given(
    st.sampled_from(["e/oom", "r/run/A", "r/point/A", "m/mem_1m", "status", "meta/node", "rx"]),
    st.sampled_from(_NAMES),
    st.sampled_from(["R", "M", "L"]),
    st.dictionaries(
        st.sampled_from(
            ["v", "ts", "seq", "run", "point", "clk", "boot", "schema", "epoch", "mono_ms"]
        ),
        _JSON,
    ),
)
@example("m/mem_1m", "edgeagent.mem_1m/1", "M", {"v": {"a": float("inf")}})
@example("r/run/A", "edgeagent.run/1", "R", {"v": {"result": {"\ud800\x00": "\x00"}}})
def test_whatever_a_box_sends_is_stored_or_set_aside(
    below: str, schema: str, stream: str, changes: dict[str, Any]
) -> None:
    sent = payload("edge-1", **{"schema": schema, "stream": stream, **changes})
    verdict = _judge(sent, below)
    for row in (verdict.message, verdict.telemetry, verdict.point, verdict.run):
        for value in row or ():
            assert isinstance(value, str | int | float | None)
            if isinstance(value, str):
                assert "\x00" not in value
                value.encode()


@given(st.binary(max_size=200), st.text(max_size=60))
def test_whatever_comes_is_stored_or_set_aside(sent: bytes, topic: str) -> None:
    _judge(sent, topic=topic)
    _judge(sent)


def test_a_root_may_be_a_template_of_the_plants_own() -> None:
    own = layout("acme/plant7/{node}")
    place = own.place("acme/plant7/edge-1/r/run/A")
    assert place is not None
    assert (place.site, place.node, place.below) == (None, "edge-1", "r/run/A")
    assert own.rows("team")[0] == "$share/team/acme/plant7/+/m/#"
    with pytest.raises(UsageError, match="has to be"):
        layout("a/#")
