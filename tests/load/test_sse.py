"""Event streams: whole, cut, padded and broken, the payloads are the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raw_server import pieces

from edgeagent.load.sse import MAX_EVENT_BYTES, SseOverflowError, SseParser


def parse(*chunks: bytes) -> list[bytes]:
    parser = SseParser()
    payloads = [payload for chunk in chunks for payload in parser.feed(chunk)]
    return payloads + parser.close()


def test_a_whole_event_is_its_payload() -> None:
    assert parse(b'data: {"a":1}\n\n') == [b'{"a":1}']


def test_an_event_is_complete_at_its_blank_line_and_not_before() -> None:
    parser = SseParser()
    assert parser.feed(b"data: x\n") == []
    assert parser.feed(b"\n") == [b"x"]


def test_several_events_of_one_read_come_in_order() -> None:
    assert parse(b"data: 1\n\ndata: 2\n\ndata: 3\n\n") == [b"1", b"2", b"3"]


def test_a_payload_of_several_lines_keeps_its_line_ends() -> None:
    assert parse(b"data: {\ndata: }\n\n") == [b"{\n}"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_line_end_of_the_standard_is_one(end: bytes) -> None:
    assert parse(b"data: 1" + end + end + b"data: 2" + end + end) == [b"1", b"2"]


def test_comments_pings_and_other_fields_are_not_events() -> None:
    stream = b": ping\n\nevent: message\nid: 7\nretry: 10\ndata: 1\n\n:\n\ndata: 2\n\n"
    assert parse(stream) == [b"1", b"2"]


def test_an_event_without_data_is_none() -> None:
    assert parse(b"data:\n\n", b"data: \n\n", b"data\n\n", b"event: x\n\n", b"data: 1\n\n") == [
        b"1"
    ]


def test_only_one_space_after_the_colon_is_not_data() -> None:
    assert parse(b"data:a\n\ndata: b\n\ndata:  c\n\n") == [b"a", b"b", b" c"]


@pytest.mark.parametrize("tail", [b"data: [DONE]", b"data: [DONE]\n", b"data: [DONE]\r"])
def test_a_last_event_without_its_blank_line_is_given_at_the_end(tail: bytes) -> None:
    assert parse(b"data: 1\n\n" + tail) == [b"1", b"[DONE]"]


def test_an_event_that_never_ends_is_refused_before_memory_is() -> None:
    parser = SseParser()
    for _ in range(MAX_EVENT_BYTES // 1_000_000):
        parser.feed(b"x" * 1_000_000)
    with pytest.raises(SseOverflowError):
        parser.feed(b"x" * 1_000_000)


LINE = st.binary(min_size=1, max_size=20).map(
    lambda data: b"x" + data.replace(b"\n", b"").replace(b"\r", b"")
)
EVENT = st.lists(LINE, min_size=1, max_size=3)
NOISE = st.sampled_from([b"", b": ping", b": \xc3\xbc", b"event: message", b"id: 1"])
CUTS = st.lists(st.integers(0, 10_000), max_size=12)


@given(
    st.lists(st.tuples(EVENT, NOISE), max_size=6), st.sampled_from([b"\n", b"\r\n", b"\r"]), CUTS
)
def test_any_stream_cut_anywhere_gives_its_events(
    events: list[tuple[list[bytes], bytes]], end: bytes, cuts: list[int]
) -> None:
    stream = b"".join(
        (noise + end if noise else b"") + b"".join(b"data: " + line + end for line in lines) + end
        for lines, noise in events
    )
    assert parse(*pieces(stream, cuts)) == [b"\n".join(lines) for lines, _ in events]


@given(st.binary(max_size=200) | st.text("data: \r\n{}x", max_size=60).map(str.encode), CUTS)
def test_arbitrary_bytes_never_raise_and_cuts_never_matter(data: bytes, cuts: list[int]) -> None:
    assert parse(*pieces(data, cuts)) == parse(data)
