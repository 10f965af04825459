"""A document that was computed again is the same, or the difference is named."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.core.verify import differences

DOCUMENT: dict[str, Any] = {
    "run_id": "r",
    "cells": [{"cell_id": "a", "ttft_s": {"n": 3, "p50": 0.25}}, {"cell_id": "b", "ok": True}],
}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)


def test_nothing_differs_from_itself() -> None:
    assert differences(DOCUMENT, copy.deepcopy(DOCUMENT)) == []


def test_a_difference_names_where_and_both_values() -> None:
    other = copy.deepcopy(DOCUMENT)
    other["cells"][0]["ttft_s"]["p50"] = 0.3
    assert differences(DOCUMENT, other, "result.json") == [
        "result.json.cells[0].ttft_s.p50: stored 0.25, recomputed 0.3"
    ]


def test_what_is_missing_on_either_side_is_a_difference() -> None:
    other = copy.deepcopy(DOCUMENT)
    del other["run_id"]
    other["new"] = 1
    assert differences(DOCUMENT, other) == [
        "new: stored None, recomputed 1",
        "run_id: stored 'r', recomputed None",
    ]


def test_lists_of_different_length_are_compared_as_far_as_they_go() -> None:
    assert differences([1, 2, 3], [1, 5], "x") == [
        "x: stored 3 entries, recomputed 2",
        "x[1]: stored 2, recomputed 5",
    ]


def test_a_tuple_is_a_list_and_a_whole_float_an_integer() -> None:
    assert differences({"ci95": [1, 2.0]}, {"ci95": (1.0, 2)}) == []


@pytest.mark.parametrize(
    ("stored", "recomputed", "same"),
    [
        (1.0, 1.0 + 5e-10, True),
        (1.0, 1.0 + 5e-9, False),
        (1e9, 1e9 + 0.5, True),
        (0.0, 1e-9, False),
        (0, None, False),
        (1, True, False),
        (0, False, False),
        ("1", 1, False),
        ([], {}, False),
        ([], "", False),
        (None, None, True),
        (float("nan"), 1.0, False),
    ],
)
def test_only_rounding_is_forgiven(stored: object, recomputed: object, *, same: bool) -> None:
    assert (differences(stored, recomputed) == []) is same


def test_long_values_are_shortened() -> None:
    (line,) = differences({"a": "x" * 1000}, {"a": 1})
    assert len(line) < 150


@given(json_values)
def test_every_value_equals_its_copy(value: object) -> None:
    assert differences(value, copy.deepcopy(value)) == []


@given(json_values, json_values)
def test_a_difference_is_one_from_both_sides(left: object, right: object) -> None:
    assert len(differences(left, right)) == len(differences(right, left))
