"""The benchmark of the collector runs, and what it counts is what was sent."""

import pytest
from bench_collector import Load, bench, messages


@pytest.mark.parametrize("where", ["sqlite", "postgres"])
def test_every_row_of_a_small_load_is_stored(where: str) -> None:
    figures = bench(where, Load(rows=600, boxes=5))
    # What was stored when the first row was seen is not counted: of a load as small, perhaps all.
    assert 0 <= figures.rows <= 600
    assert figures.rows_per_s >= 0
    assert min(figures.cpu_s) > 0
    assert len(figures.cpu_s) == (1 if where == "sqlite" else 2)


def test_messages_have_the_size_that_the_figures_speak_of() -> None:
    assert {len(payload) for _, payload in messages(Load(rows=20, boxes=3))} == {1_000}
