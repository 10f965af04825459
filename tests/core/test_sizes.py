"""An amount of memory as people write it."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.core.sizes import amount_bytes
from edgeagent.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8GiB", 8 << 30), ("8g", 8 << 30), ("8 GiB", 8 << 30), ("8GB", 8 * 10**9),
        ("512MiB", 512 << 20), ("1.5GiB", 3 << 29), ("0", 0), ("1048576", 1 << 20), ("1000B", 1000),
        (" 4k ", 4096), ("2TiB", 2 << 40),
    ],
)  # fmt: skip
def test_amounts_have_units(text: str, expected: int) -> None:
    assert amount_bytes(text, "--budget") == expected


def test_a_small_number_without_a_unit_is_asked_about_and_not_taken_for_bytes() -> None:
    with pytest.raises(UsageError, match="8GiB"):
        amount_bytes("8", "--budget")


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1GiB", "8 apples", "8GiBs", "1e9", "0x10", "1.2.3G", "9" * 25, "٣GiB"]
)
def test_anything_else_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match="--budget"):
        amount_bytes(text, "--budget")


@given(st.text(max_size=30))
def test_any_text_is_an_amount_or_refused(text: str) -> None:
    with suppress(UsageError):
        assert amount_bytes(text, "--budget") >= 0
