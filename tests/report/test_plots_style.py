"""Can everybody tell the series apart, on paper, on a dark screen and on a phone?"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.report import plots_picture as picture
from edgeagent.report.plot_style import CSS, SERIES, TEXT, WIDTH, colours, style
from edgeagent.report.plots_words import clean, distinct, em, finite, shorten, shown, size

THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


def luminance(colour: str) -> float:
    """WCAG's relative luminance."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(a: str, b: str) -> float:
    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", THEMES)
def test_every_series_stands_out_from_the_paper(theme: Literal["light", "dark"]) -> None:
    known = colours(theme)
    for number in range(1, len(SERIES) + 1):
        assert contrast(known[str(number)], known["paper"]) >= 3


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", ["ink", "quiet", "alarm"])
def test_words_can_be_read(theme: Literal["light", "dark"], name: str) -> None:
    assert contrast(colours(theme)[name], colours(theme)["paper"]) >= 4.5


def test_neighbours_differ_on_a_grey_printer() -> None:
    for a, b in pairwise(SERIES[:4]):
        assert contrast(a, b) >= 1.3
    assert contrast(SERIES[0], SERIES[1]) >= 2


def test_no_two_series_share_a_marker_or_a_dash() -> None:
    looks = [style(number) for number in range(len(SERIES))]
    assert len({look.marker for look in looks}) == len({look.dashes for look in looks}) == 8


def test_paper_is_never_dark() -> None:
    assert "@media screen and (prefers-color-scheme: dark)" in CSS


def test_words_are_eleven_pixels_high_on_a_phone() -> None:
    assert TEXT * 360 / WIDTH >= 11


@given(st.text())
def test_a_clean_name_is_one_line_of_visible_text(name: str) -> None:
    found = clean(name)
    assert found
    assert found.isprintable() or "\N{REPLACEMENT CHARACTER}" in found
    found.encode("utf-8")


@given(st.text(min_size=1), st.floats(2, 50))
def test_a_short_name_has_no_more_than_its_room(name: str, room: float) -> None:
    assert em(shorten(name, room)) <= room + 1e-9


@given(st.lists(st.text(alphabet="ab", max_size=60), min_size=1, max_size=6, unique=True))
def test_different_names_stay_different(names: list[str]) -> None:
    found = distinct(names, 8.0)
    assert len(set(found)) == len(names)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (0.123456, "0.1235"), (17.2829, "17.28"), (1234.5, "1234"), (98765.4, "98,765"),
        (0.00001234, "1.234e-05"), (-3.5, "-3.5"), (100.0, "100"), (None, "not measured"),
    ],
)  # fmt: skip
def test_numbers_keep_four_digits(value: float | None, text: str) -> None:
    assert shown(value) == text


def test_bytes_are_told_in_the_unit_that_reads_well() -> None:
    assert size(7 * (1 << 20) + (1 << 19)) == "7.5 MiB"
    assert size(12 << 30) == "12 GiB"
    assert size(300) == "300 bytes"


@given(st.one_of(st.none(), st.booleans(), st.text(), st.integers(), st.floats()))
def test_only_numbers_that_can_be_drawn_are_numbers(value: object) -> None:
    found = finite(value)
    assert found is None or abs(found) < 1e18


@given(st.floats(0, 1e12), st.floats(1e-9, 1e12))
def test_a_linear_axis_holds_its_ends_and_has_few_ticks(low: float, span: float) -> None:
    axis = picture.linear(low, low + span)
    assert axis.low <= low + span * 1e-6 + low * 1e-12
    assert axis.high >= (low + span) * (1 - 1e-9)
    assert 2 <= len(axis.ticks) <= 9


def test_ticks_that_would_touch_are_left_out_and_the_ends_stay() -> None:
    axis = picture.levels_axis(range(1, 101))
    written = axis.written(300.0, 12.5)
    assert {"1", "100"} <= {word for _, word in written}
    assert len(written) < 20


def test_the_axis_of_a_ratio_is_upside_down_where_less_is_better() -> None:
    assert picture.factor_axis([0.5, 2.0], "higher").fraction(2.0) > 0.5
    assert picture.factor_axis([0.5, 2.0], "lower").fraction(2.0) < 0.5


def test_steps_hold_from_edge_to_edge() -> None:
    assert picture.steps((0, 1, 2), (5, None)) == ((0, 1, 1, 2), (5, 5, None, None))
