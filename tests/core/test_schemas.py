"""What has the same number can be read, what has another cannot, and fields are known by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from edgeagent.core.result import Result
from edgeagent.core.schemas import field_digest, unreadable

KNOWN = "edgeagent.result/1"


@pytest.mark.parametrize("found", [KNOWN, "edgeagent.result/1.0", "edgeagent.result/1.27"])
def test_the_same_number_can_be_read(found: str) -> None:
    assert unreadable(found, KNOWN) is None


@pytest.mark.parametrize(
    "found", ["edgeagent.result/2", "edgeagent.result/10", "edgeagent.result/0.1"]
)
def test_another_number_cannot_and_the_reason_is_told(found: str) -> None:
    why = unreadable(found, KNOWN)
    assert why is not None
    assert found in why
    assert "use the edgeagent that wrote it" in why


@pytest.mark.parametrize(
    "found",
    [None, 1, [], "", "edgeagent.result", "edgeagent.plan/1", "edgeagent.result/1.x", "/1", "a/1 "],
)
def test_something_else_is_no_result(found: object) -> None:
    assert "give the document that a sweep wrote" in (unreadable(found, KNOWN) or "")


@dataclass(frozen=True)
class Inner:
    a: int


@dataclass(frozen=True)
class Outer:
    cells: tuple[Inner, ...]
    named: Mapping[str, Inner | None]


def test_a_field_more_gives_another_digest_wherever_it_is() -> None:
    @dataclass(frozen=True)
    class Wider:
        a: int
        b: int = 0

    assert field_digest(Inner) != field_digest(Wider)
    assert field_digest(Outer) != field_digest(Inner)
    assert field_digest(Outer) == field_digest(Outer)


def test_the_digest_is_worked_out_from_the_names_alone() -> None:
    # printf 'Inner.a\nOuter.cells\nOuter.named' | sha256sum
    assert field_digest(Outer) == "c16e3f626670fbec"


def test_the_results_own_digest_is_short_hexadecimal() -> None:
    assert len(bytes.fromhex(field_digest(Result))) == 8
