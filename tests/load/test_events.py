"""What an event says, in the words of each server. Counts are worked out from the events shown."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.load.events import Seen, StreamMeter


def read(*events: object) -> tuple[StreamMeter, list[Seen]]:
    meter = StreamMeter()
    return meter, [meter.read(_payload(event)) for event in events]


def _payload(event: object) -> bytes:
    return event if isinstance(event, bytes) else json.dumps(event).encode()


def chat(reason: str | None = None, /, **delta: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def text(content: str, reason: str | None = None, **more: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "text": content, "finish_reason": reason, **more}]}


def tokens(seen: list[Seen]) -> list[int]:
    return [one.tokens for one in seen]


# ------------------------------------------------------------------------------- llama-server


def test_llama_server_counts_by_its_timings_however_many_tokens_an_event_has() -> None:
    meter, seen = read(
        {**chat(role="assistant", content=None), "timings": {"predicted_n": 0}},
        {**chat(content="a"), "timings": {"predicted_n": 1, "cache_n": 7, "prompt_n": 3}},
        {**chat(content="bcd"), "timings": {"predicted_n": 4}},
        chat("length"),
        {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 4}},
        b"[DONE]",
    )
    assert tokens(seen) == [0, 1, 3, 0, 0, 0]  # the growth of predicted_n: 0, 0-1, 1-4
    assert meter.source == "timings"
    assert (meter.prompt_tokens, meter.cached_tokens, meter.output_tokens) == (10, 7, 4)
    assert meter.finish_reason == "length"
    assert seen[-1].done


def test_tokens_that_the_chat_parser_held_back_count_with_the_next_event() -> None:
    _, seen = read(
        {**chat(content="a"), "timings": {"predicted_n": 1}},
        {**chat(tool_calls=[{"index": 0}]), "timings": {"predicted_n": 6}},
        chat("tool_calls"),
        {"choices": [], "usage": {"completion_tokens": 7}, "timings": {"predicted_n": 7}},
    )
    # The last of the 7 had no event of its own: it shows only in the final timings.
    assert tokens(seen) == [1, 5, 0, 1]


def test_timings_that_come_only_at_the_end_do_not_recount_what_was_counted_by_chunks() -> None:
    meter, seen = read(
        text("a"), text("b"), {**text("", "length"), "timings": {"predicted_n": 8}}, b"[DONE]"
    )
    assert tokens(seen) == [1, 1, 0, 0]
    assert meter.source == "chunks"
    assert meter.output_tokens == 8  # the difference to 2 is for the findings to tell


def test_progress_is_not_a_token() -> None:
    _, seen = read(
        {
            **chat(role="assistant", content=None),
            "prompt_progress": {"total": 40, "cache": 0, "processed": 20, "time_ms": 3},
        }
    )
    assert seen == [Seen()]


def test_the_own_route_ends_with_stop_and_needs_no_done() -> None:
    meter, seen = read(
        {"content": "a", "tokens": [5], "stop": False, "tokens_predicted": 1},
        {"content": "", "tokens": [6], "stop": False, "tokens_predicted": 2},
        {
            "content": "",
            "tokens": [],
            "stop": True,
            "stop_type": "limit",
            "tokens_predicted": 2,
            "tokens_evaluated": 9,
            "timings": {"cache_n": 4, "prompt_n": 5, "predicted_n": 2},
        },
    )
    assert tokens(seen) == [1, 1, 0]
    assert [one.done for one in seen] == [False, False, True]
    assert (meter.finish_reason, meter.output_tokens, meter.prompt_tokens) == ("length", 2, 9)
    assert meter.cached_tokens == 4


def test_drafts_are_read_from_the_timings() -> None:
    timings = {"predicted_n": 8, "draft_n": 6, "draft_n_accepted": 0}
    meter, _ = read({**text("a"), "timings": timings})
    assert (meter.draft_tokens, meter.draft_accepted) == (6, 0)


# --------------------------------------------------------------------------------------- vLLM


def test_vllm_counts_by_usage_on_every_event_and_an_empty_last_text_is_a_token() -> None:
    def usage(completion: int) -> dict[str, object]:
        return {"usage": {"prompt_tokens": 40, "completion_tokens": completion}}

    meter, seen = read(
        {**chat(role="assistant", content=""), **usage(0)},
        {**chat(content="ab"), **usage(2)},
        {**chat(content="c"), **usage(3)},
        {**chat("stop", content=""), **usage(4)},
        {
            "choices": [],
            "usage": {
                "prompt_tokens": 40,
                "completion_tokens": 4,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
        },
    )
    assert tokens(seen) == [0, 2, 1, 1, 0]
    assert meter.source == "usage"
    assert (meter.cached_tokens, meter.output_tokens) == (0, 4)  # zero is a measurement


def test_vllm_token_ids_count_where_there_is_no_usage() -> None:
    meter, seen = read(
        text("", token_ids=None), text("ab", token_ids=[1, 2]), text("", "length", token_ids=[3])
    )
    assert tokens(seen) == [0, 2, 1]
    assert meter.source == "token_ids"


def test_an_error_event_is_an_error_whatever_follows() -> None:
    _, seen = read({"error": {"message": "EngineCore\nencountered an issue.", "code": 500}})
    assert seen[0].error == "EngineCore encountered an issue."


@pytest.mark.parametrize("error", ["busy", {"code": 1}, ["x"]])
def test_an_error_of_any_shape_is_one(error: object) -> None:
    _, seen = read({"error": error})
    assert seen[0].error


def test_an_error_field_of_null_is_none() -> None:
    _, seen = read({**text("a"), "error": None})
    assert seen == [Seen(1, "answer")]


# -------------------------------------------------------------------------------- any server


def test_without_any_count_events_with_text_count_one_and_the_rest_none() -> None:
    meter, seen = read(
        chat(role="assistant"),
        chat(content=None),
        chat(content=""),
        chat(content="a"),
        chat(reasoning="b"),
        chat(reasoning_content="c"),
        chat(tool_calls=[{"index": 0}]),
        chat("stop"),
    )
    assert tokens(seen) == [0, 0, 0, 1, 1, 1, 1, 0]
    assert [one.channel for one in seen[3:7]] == ["answer", "reasoning", "reasoning", "tool"]
    assert meter.source == "chunks"
    assert meter.output_tokens is None


def test_usage_in_the_finish_event_closes_and_counts_nothing_twice() -> None:
    meter, seen = read(
        chat(content="a"),
        chat(content="b"),
        {**chat("length"), "usage": {"prompt_tokens": 3, "completion_tokens": 9}},
    )
    assert tokens(seen) == [1, 1, 0]
    assert (meter.source, meter.output_tokens) == ("chunks", 9)


def test_a_usage_of_zero_on_the_first_event_does_not_promise_more_of_it() -> None:
    _, seen = read(
        {**chat(role="assistant"), "usage": {"prompt_tokens": 3, "completion_tokens": 0}},
        chat(content="a"),
        chat(content="b"),
    )
    assert tokens(seen) == [0, 1, 1]


def test_an_empty_finish_reason_is_none() -> None:
    meter, _ = read(text("a", ""))
    assert meter.finish_reason is None


def test_a_count_that_falls_back_takes_nothing_away() -> None:
    _, seen = read(*({**text("a"), "timings": {"predicted_n": n}} for n in (3, 1, 4)))
    assert tokens(seen) == [3, 0, 1]


@pytest.mark.parametrize("payload", [b"{", b"[]", b"3", b"null", b'"x"', b"\xff", b"[" * 100_000])
def test_what_is_not_an_object_is_malformed(payload: bytes) -> None:
    _, seen = read(payload)
    assert seen[0].malformed
    assert "\n" not in seen[0].malformed


@pytest.mark.parametrize("end", [b"[DONE]", b" [DONE] "])
def test_done_is_done(end: bytes) -> None:
    assert read(end)[1] == [Seen(done=True)]


def test_what_a_record_keeps_can_be_written() -> None:
    _, seen = read({"error": {"message": "\ud800 broken"}})
    assert seen[0].error is not None
    seen[0].error.encode("utf-8")


# ----------------------------------------------------------------------------------- any bytes

NAMES = [
    *("choices", "delta", "content", "text", "usage", "timings", "error", "stop", "tokens"),
    *("token_ids", "completion_tokens", "predicted_n", "finish_reason", "message", "stop_type"),
    *("prompt_tokens_details", "cached_tokens", "tokens_predicted", "cache_n", "prompt_n"),
]
LEAF = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
JSON = st.recursive(
    LEAF,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=2), inner, max_size=5)
    ),
    max_leaves=12,
)


@given(st.lists(JSON.map(lambda value: json.dumps(value).encode()) | st.binary(), max_size=4))
def test_nothing_that_a_server_sends_raises(payloads: list[bytes]) -> None:
    _, seen = read(*payloads)
    assert all(one.tokens >= 0 for one in seen)


@given(st.lists(st.integers(0, 5), max_size=20))
def test_the_events_of_a_counted_stream_sum_up_to_its_count(steps: list[int]) -> None:
    total = 0
    events: list[object] = []
    for step in steps:
        total += step
        events.append({**text("x" * step), "timings": {"predicted_n": total}})
    _, seen = read(*events)
    assert tokens(seen) == steps


def test_the_drafts_of_a_request_come_with_vllms_last_event() -> None:
    meter = StreamMeter()
    speculative = {"num_draft_tokens": 20, "num_accepted_draft_tokens": 15, "num_spec_steps": 5}
    event = {
        "choices": [],
        "usage": {"prompt_tokens": 40, "completion_tokens": 21},
        "metrics": {"queue_time_ms": 0.1, "speculative_decoding": speculative},
    }
    meter.read(json.dumps(event).encode())
    assert (meter.draft_tokens, meter.draft_accepted) == (20, 15)
    nothing: tuple[object, ...] = (None, [], {"speculative_decoding": 3})
    for odd in nothing:
        meter.read(json.dumps({"choices": [], "metrics": odd}).encode())
    assert (meter.draft_tokens, meter.draft_accepted) == (20, 15)
