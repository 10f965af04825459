"""Raw records as lines: exact both ways, tolerant of what is newer, strict about what is wrong."""

from __future__ import annotations

import dataclasses
import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.core.model import (
    ErrorKind,
    MemorySample,
    RequestTrace,
    Role,
    StampSource,
    TokenSource,
)
from edgeagent.store.records import (
    RecordError,
    sample_from,
    sample_line,
    trace_from,
    trace_line,
)

stamps = st.integers(0, 10**19)
counts = st.integers(0, 10**6)
text = st.text(st.characters(codec=None))  # lone surrogates included: engines send broken text


def maybe(what: st.SearchStrategy[int]) -> st.SearchStrategy[int | None]:
    return st.none() | what


traces = st.builds(
    RequestTrace,
    cell_id=text,
    attempt=text,
    index=counts,
    role=st.sampled_from(get_args(Role)),
    scheduled_ns=stamps,
    sent_ns=maybe(stamps),
    headers_ns=maybe(stamps),
    first_event_ns=maybe(stamps),
    event_ns=st.lists(stamps).map(tuple),
    event_tokens=st.lists(counts).map(tuple),
    shared_events=st.lists(counts).map(tuple),
    first_answer_event=maybe(counts),
    finished_ns=maybe(stamps),
    error=st.none() | st.sampled_from(get_args(ErrorKind)),
    error_detail=st.none() | text,
    http_status=maybe(counts),
    finish_reason=st.none() | text,
    expected_tokens=maybe(counts),
    prompt_tokens=maybe(counts),
    cached_tokens=maybe(counts),
    output_tokens=maybe(counts),
    token_source=st.none() | st.sampled_from(get_args(TokenSource)),
    stamp_source=st.sampled_from(get_args(StampSource)),
    late_stamps=counts,
    draft_tokens=maybe(counts),
    draft_accepted=maybe(counts),
    wave=maybe(counts),
    retried=st.booleans(),
)

samples = st.builds(
    MemorySample,
    at_ns=stamps,
    late_ns=stamps,
    cell_id=st.none() | text,
    values=st.dictionaries(
        text, st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    ),
    absent=st.dictionaries(text, text),
)

extras = st.dictionaries(st.text(min_size=1).map("later_{}".format), st.none() | st.text())


@given(traces, extras)
def test_a_request_comes_back_exactly_whatever_a_later_version_adds(
    trace: RequestTrace, added: dict[str, str | None]
) -> None:
    record = json.loads(trace_line(trace))

    assert trace_from({**record, **added}) == trace


@given(samples, extras)
def test_a_sample_comes_back_exactly_whatever_a_later_version_adds(
    sample: MemorySample, added: dict[str, str | None]
) -> None:
    record = json.loads(sample_line(sample))

    assert sample_from({**record, **added}) == sample


@given(traces, samples)
def test_a_record_is_one_line_of_ascii(trace: RequestTrace, sample: MemorySample) -> None:
    for line in (trace_line(trace), sample_line(sample)):
        assert line.isascii()
        assert "\n" not in line


def test_every_field_of_a_request_is_written() -> None:
    """A field added to the model is written by itself; this fails until it is read as well."""
    named = {field.name for field in dataclasses.fields(RequestTrace)}
    known = {"cell_id": "c", "attempt": "a", "index": 1, "role": "measured", "scheduled_ns": 2}
    other: dict[str, object] = {
        "event_ns": (5, 6),
        "event_tokens": (1, 2),
        "shared_events": (1,),
        "error": "idle",
        "error_detail": "x",
        "finish_reason": "stop",
        "token_source": "usage",
        "stamp_source": "monotonic",
        "retried": True,
    }
    numbers = dict.fromkeys(named - set(known) - set(other), 7)
    trace = RequestTrace(**{**known, **other, **numbers})  # type: ignore[arg-type]

    record = json.loads(trace_line(trace))

    assert set(record) == named
    assert trace_from(record) == trace


def test_stamps_are_kept_as_distances_and_equal_token_counts_as_one_number() -> None:
    trace = RequestTrace(
        "c", "a", 0, "measured", 10, event_ns=(100, 130, 131), event_tokens=(2, 2, 2)
    )

    record = json.loads(trace_line(trace))

    assert record == {
        "cell_id": "c",
        "attempt": "a",
        "index": 0,
        "role": "measured",
        "scheduled_ns": 10,
        "event_ns": [100, 30, 1],
        "event_tokens": 2,
    }


GOOD = {"cell_id": "c", "attempt": "a", "index": 1, "role": "measured", "scheduled_ns": 2}


@pytest.mark.parametrize(
    "wrong",
    [
        {"index": None},
        {"index": "1"},
        {"index": True},
        {"role": "spectator"},
        {"error": "gremlins"},
        {"event_ns": 5},
        {"event_ns": [1, "2"]},
        {"event_ns": [1.5]},
        {"sent_ns": 1.5},
    ],
)
def test_a_field_that_is_not_what_it_should_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(RecordError):
        trace_from({**GOOD, **wrong})


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from([*GOOD, "values"]), inner),
    )
)
def test_any_json_is_a_record_or_refused(value: object) -> None:
    for parse in (trace_from, sample_from):
        try:
            parse(value)
        except RecordError:
            continue


def test_a_value_that_json_cannot_carry_is_refused_at_writing() -> None:
    with pytest.raises(ValueError, match="JSON"):
        sample_line(MemorySample(1, 0, None, {"a": float("nan")}))
