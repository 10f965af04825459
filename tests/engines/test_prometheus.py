"""A page of counters is read as it was written, and whatever else it holds adds nothing."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.engines.prometheus import Sample, parse

NAMES = st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,20}", fullmatch=True).filter(
    lambda name: not name.endswith("_created")
)
LABELS = st.dictionaries(
    st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,10}", fullmatch=True), st.text(max_size=20), max_size=4
)
# A page is split into lines at "\n" alone; a value may hold any other character.
SAMPLES = st.builds(Sample, NAMES, LABELS, st.floats(allow_nan=False))


def written(sample: Sample) -> str:
    def escaped(value: str) -> str:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    labels = ",".join(f'{name}="{escaped(value)}"' for name, value in sample.labels.items())
    return (
        f"{sample.name}{{{labels}}} {sample.value!r}"
        if labels
        else (f"{sample.name} {sample.value!r}")
    )


@given(st.lists(SAMPLES, max_size=8))
def test_what_was_written_is_read_again(samples: list[Sample]) -> None:
    page = parse("\n".join(map(written, samples)))
    for sample in samples:
        assert sample in page.of(sample.name)
    assert sum(len(page.of(name)) for name in {s.name for s in samples}) == len(samples)


@given(st.text())
def test_any_text_is_read_without_a_complaint(text: str) -> None:
    assert parse(text).total("absent") is None


@given(st.lists(SAMPLES, min_size=1, max_size=3), st.text(alphabet='{}",=\\ #x1\n', max_size=30))
def test_noise_between_lines_takes_no_line_away(samples: list[Sample], noise: str) -> None:
    page = parse("\n".join(f"{written(sample)}\n{noise}\n" for sample in samples))
    for sample in samples:
        assert sample in page.of(sample.name)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("a 1", 1.0),
        ("a 1.5 1700000000000", 1.5),  # with a moment
        ('a{le="+Inf"} 7 # {trace_id="x"} 0.5 1.7', 7.0),  # with an exemplar
        ("a 1e3", 1000.0),
        ("  a\t2", 2.0),
        ('a{b="c",} 3', 3.0),  # a comma may end the labels
        ('a { b = "c" } 3', None),  # no space may stand before them
        ("a", None),
        ("a one", None),
        ('a{b="c} 1', None),
        ("a{b=c} 1", None),
        ("1a 2", None),
        ("# a 1", None),
        ("a NaN", None),
        ("a +Inf", None),
    ],
)
def test_a_line_is_a_number_or_nothing(line: str, value: float | None) -> None:
    assert parse(line).total("a") == value


def test_the_moment_a_counter_was_made_is_no_count() -> None:
    page = parse("tokens_total 5\ntokens_created 1.7e+09\n")
    assert page.total("tokens_total") == 5
    assert page.of("tokens_created") == ()


def test_a_total_is_over_all_series_and_unknown_when_one_is() -> None:
    page = parse('a{engine="0"} 2\na{engine="1"} 3\nb{engine="0"} 2\nb{engine="1"} NaN\n')
    assert page.total("a") == 5
    assert page.total("b") is None
    assert math.isnan(page.of("b")[1].value)
