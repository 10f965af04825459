"""One value has one form in bytes, and two values never share it."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.core.canonical import canonical, digest

_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)


def by_hand(value: Any) -> str:
    """The rules of the module, written once more without a library."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return '"' + "".join(_character(c) for c in value) + '"'
    if isinstance(value, list):
        return "[" + ",".join(by_hand(inner) for inner in value) + "]"
    pairs = [f"{by_hand(key)}:{by_hand(value[key])}" for key in sorted(value)]
    return "{" + ",".join(pairs) + "}"


def _character(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    return f"\\u{ord(character):04x}" if ord(character) < 0x20 else character


def test_a_document_worked_out_by_hand() -> None:
    value = {"ü": [1, 1.0, -0.0, 1e-07, 1e16, None, True], "a": {"z": 'say "é"\n\x01', "b": "€😀/"}}
    written = (
        '{"a":{"b":"€😀/","z":"say \\"é\\"\\n\\u0001"},"ü":[1,1.0,-0.0,1e-07,1e+16,null,true]}'
    )
    assert canonical(value) == written.encode()


def test_spaces_and_the_order_of_keys_do_not_matter() -> None:
    assert canonical(json.loads(' { "b" : 1 ,\n"a": [ 2 ] } ')) == b'{"a":[2],"b":1}'


def test_a_count_and_a_measurement_differ() -> None:
    assert canonical(1) != canonical(1.0)


def test_half_a_surrogate_pair_is_written_as_an_escape() -> None:
    # A path that is not UTF-8, as Python holds it.
    assert canonical("a\udcff") == b'"a\\udcff"'
    assert json.loads(canonical("a\udcff")) == "a\udcff"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, {"a": [math.nan]}])
def test_what_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical(value)


@given(values)
def test_it_follows_the_rules(value: Any) -> None:
    assert canonical(value) == by_hand(value).encode("utf-8", "backslashreplace")


@given(values)
def test_it_is_json_of_the_same_value(value: Any) -> None:
    assert canonical(json.loads(canonical(value))) == canonical(value)


def test_the_digest_is_that_of_the_canonical_form() -> None:
    # printf '{}' | sha256sum
    empty = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    assert digest({}) == f"sha256:{empty}"
