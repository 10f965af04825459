"""Are the plots of a sheet true to the document, harmless in a page, and there for every input?"""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree as ET

import plots_sample as sample
import pytest

from edgeagent.report.plots import Missing, Plot, plots
from edgeagent.report.sheet_run import SheetRun

KINDS = ("throughput", "ttft", "itl", "ratio", "memory", "timeline", "arrival", "energy")
SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = (
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>&amp;",
    "$x^2_{\\frac$ $$",
    "/models/" + "very-long-" * 30,
    "\u202e\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd",
    "_hidden\n\x00\x1b[31m\ud800",
    "t0",
    "",
)


def drawn(*runs: SheetRun) -> dict[str, Plot]:
    return {plot.key: plot for plot in plots(runs) if isinstance(plot, Plot)}


def missing(*runs: SheetRun) -> dict[str, Missing]:
    return {plot.key: plot for plot in plots(runs) if isinstance(plot, Missing)}


def numbers(value: Any) -> Iterator[float]:
    """Every number of a document."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from numbers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from numbers(inner)
    elif isinstance(value, (int, float)):
        yield float(value)


def parsed(svg: str) -> ET.Element:
    return ET.fromstring(svg)  # noqa: S314  # because we wrote it


def words(svg: str) -> list[str]:
    return [element.text or "" for element in parsed(svg).iter(f"{SVG}text")]


def markers(svg: str, colour: str) -> list[tuple[float, float]]:
    """Where the filled markers of a series stand."""
    return [
        (float(use.attrib["x"]), float(use.attrib["y"]))
        for use in parsed(svg).iter(f"{SVG}use")
        if "opacity" not in use.attrib["style"]  # as the ends of intervals have it
        and f"fill: var(--plot-{colour}," in use.attrib["style"]
        and use.attrib["style"].count(f"--plot-{colour},") == 2
    ]


@pytest.fixture(scope="module")
def whole() -> dict[str, Plot]:
    return drawn(sample.run(sample.whole()))


def test_a_whole_document_gives_every_plot_in_the_order_of_the_sheet(
    whole: dict[str, Plot],
) -> None:
    assert [key for key in whole if not key[-1].isdigit()] == list(KINDS)


def test_each_plot_is_xml_with_a_text_alternative_and_a_table(whole: dict[str, Plot]) -> None:
    for plot in whole.values():
        root = parsed(plot.svg)
        assert root.tag == f"{SVG}svg"
        assert root.attrib["role"] == "img"
        assert plot.alternative in root.attrib["aria-label"]
        assert plot.table.rows
        assert all(len(row) == len(plot.table.header) for row in plot.table.rows)


def test_every_number_of_a_table_stands_in_the_document(whole: dict[str, Plot]) -> None:
    known = set(numbers(sample.whole()))
    steps_of_time = {"timeline", "timeline-2", "arrival"}
    for plot in whole.values():
        for row in plot.table.rows:
            # The first column of a course is the place of a step: its number times its length.
            values = row[1:] if plot.key in steps_of_time else row
            for value in values:
                if isinstance(value, (int, float)):
                    assert float(value) in known, (plot.key, value)


def test_points_stand_as_high_as_their_numbers(whole: dict[str, Plot]) -> None:
    heights = [y for _, y in markers(whole["throughput"].svg, "1")][: len(sample.LEVELS)]
    rates = [20.0 * n**0.4 for n in sample.LEVELS]
    per_token = (heights[0] - heights[-1]) / (rates[-1] - rates[0])
    for height, rate in zip(heights, rates, strict=True):
        assert height == pytest.approx(heights[0] - per_token * (rate - rates[0]), abs=0.05)


def test_doublings_of_concurrency_are_equally_far_apart(whole: dict[str, Plot]) -> None:
    places = [x for x, _ in markers(whole["throughput"].svg, "1")][: len(sample.LEVELS)]
    steps = [b - a for a, b in pairwise(places)]
    assert steps == pytest.approx([steps[0]] * len(steps), abs=0.05)


def test_the_alternative_says_the_numbers(whole: dict[str, Plot]) -> None:
    assert "llamacpp: 20 (18 to 22) at 1" in whole["throughput"].alternative
    assert "59 slots fit" in whole["memory"].alternative
    assert "first token came after 625 ms" in whole["arrival"].alternative


def test_axes_name_their_units(whole: dict[str, Plot]) -> None:
    assert "output tokens/s, all requests together" in words(whole["throughput"].svg)
    assert "95th percentile (p95), ms" in words(whole["ttft"].svg)
    assert "time between two tokens, ms (logarithmic)" in words(whole["itl"].svg)
    assert "GPU memory, 4,096 tokens a slot, GiB" in words(whole["memory"].svg)
    assert "whole box, J per output token" in words(whole["energy"].svg)


def test_the_levels_measured_are_the_ticks(whole: dict[str, Plot]) -> None:
    written = words(whole["throughput"].svg)
    assert all(str(level) in written for level in sample.LEVELS)


def test_the_same_document_gives_the_same_bytes(whole: dict[str, Plot]) -> None:
    assert {key: plot.svg for key, plot in drawn(sample.run(sample.whole())).items()} == {
        key: plot.svg for key, plot in whole.items()
    }


def test_ids_are_unique_over_all_plots_and_every_reference_is_met(whole: dict[str, Plot]) -> None:
    page = "".join(plot.svg for plot in whole.values())
    ids = re.findall(r'\bid="([^"]*)"', page)
    referred = re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', page)
    assert len(ids) == len(set(ids))
    assert {a or b for a, b in referred} == set(ids)


def test_colours_come_from_the_page_and_have_fallbacks(whole: dict[str, Plot]) -> None:
    for plot in whole.values():
        bare = re.sub(r"var\(--plot-[a-z0-9]+, (#[0-9a-f]{6}|currentColor)\)", "", plot.svg)
        assert not re.search(r"#[0-9a-f]{6}\b", bare.partition("<defs")[2])


def test_nothing_but_drawing_is_in_an_svg(whole: dict[str, Plot]) -> None:
    allowed = {"svg", "g", "defs", "path", "use", "clipPath", "rect", "text"}
    for plot in whole.values():
        found = {element.tag.removeprefix(SVG) for element in parsed(plot.svg).iter()}
        assert found <= allowed


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_words_and_nothing_else(name: str) -> None:
    document = sample.whole((name, "vllm"))
    for plot in drawn(sample.run(document, name), sample.run(document, "other")).values():
        root = parsed(plot.svg)
        assert not list(root.iter(f"{SVG}script"))
        assert "<script" not in plot.svg
        assert "<img" not in plot.svg
        assert not any(attr.startswith("on") for part in root.iter() for attr in part.attrib)
        plot.svg.encode("utf-8")
        plot.title.encode("utf-8")
        assert not re.search("[\x00-\x08\x1b\u202a-\u202e\u2066-\u2069]", plot.svg)


def test_a_dollar_begins_no_formula() -> None:
    plot = drawn(sample.run(sample.whole(("a$x_1$", "vllm"))))["throughput"]
    assert "a$x_1$" in words(plot.svg)


def test_long_names_stay_apart_when_they_are_shortened() -> None:
    names = ("m" * 200 + "1" + "n" * 100, "m" * 200 + "2" + "n" * 100)
    legend = [
        w for w in words(drawn(sample.run(sample.whole(names)))["throughput"].svg) if "…" in w
    ]
    assert len(legend) == len(set(legend)) == 2


def test_a_level_without_a_number_is_a_gap_and_no_zero() -> None:
    document = sample.whole(("llamacpp",))
    document["levels"][2]["metrics"]["output_tokens_per_s"] = sample.mean(None)
    plot = drawn(sample.run(document))["throughput"]
    assert len(markers(plot.svg, "1")) == len(sample.LEVELS) - 1
    assert plot.table.rows[2][3:] == (None, None, None)
    outline = max(re.findall(r'<path d="([^"]*)"[^>]*stroke: var\(--plot-1,', plot.svg), key=len)
    assert outline.count("M") >= 2


def test_a_missing_sample_of_memory_is_a_gap_and_is_said(whole: dict[str, Plot]) -> None:
    assert "Gaps: no sample." in whole["timeline"].caption
    assert whole["timeline"].table.rows[20][3] is None


def test_a_course_without_memory_says_why() -> None:
    document = sample.whole(("llamacpp",))
    document["timelines"][0] |= {
        "memory_bytes": [None] * 60,
        "memory_reason": "no source <answered>",
    }
    assert "no source <answered>." in drawn(sample.run(document))["timeline"].caption


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e300, 10**400, "12", True, [1], {}])
def test_what_is_no_number_is_not_drawn(value: object) -> None:
    document = sample.whole(("llamacpp",))
    document["levels"][0]["metrics"]["output_tokens_per_s"] = {"mean": value, "ci95": [value, 1]}
    document["levels"][1]["metrics"]["output_tokens_per_s"] = {"mean": 5, "ci95": [value, value]}
    document["timelines"][0]["memory_bytes"] = [value] * 60
    document["arrivals"][0]["operator_end_s"] = value
    document["distributions"][0]["counts"] = value
    document["memory"][0]["budget_bytes"] = value
    document["comparison"][0]["levels"][0]["factor"] = value
    plot = drawn(sample.run(document))["throughput"]
    assert plot.table.rows[0][3] is None
    assert "nan" not in plot.svg.lower()


def test_one_level_and_no_interval_still_make_a_plot() -> None:
    document = {"levels": [sample.level("fake", 4, 30.0)]}
    document["levels"][0]["metrics"]["output_tokens_per_s"] = sample.mean(30.0, None)
    plot = drawn(sample.run(document))["throughput"]
    assert len(markers(plot.svg, "1")) == 1
    assert "no interval" in plot.caption


def test_an_interval_that_is_cut_is_said_to_go_on() -> None:
    document = sample.whole(("llamacpp",))
    document["levels"][4]["metrics"]["output_tokens_per_s"] = {"mean": 60, "ci95": [-400, 520]}
    plot = drawn(sample.run(document))["throughput"]
    assert "goes on beyond it" in plot.caption
    assert plot.table.rows[4][3:] == (60.0, -400.0, 520.0)


def test_an_empty_document_says_for_each_plot_what_to_run() -> None:
    found = missing(sample.run({}))
    assert tuple(found) == KINDS
    assert all("edgeagent " in plot.reason for plot in found.values())


def test_no_run_at_all_draws_nothing() -> None:
    assert tuple(missing()) == KINDS


def test_the_reason_of_a_box_without_power_reaches_the_reader() -> None:
    document = {"cells": [{"energy": {"reason": "this box shows no rails"}}]}
    assert "this box shows no rails" in missing(sample.run(document))["energy"].reason


def test_several_runs_are_series_with_the_names_of_their_boxes() -> None:
    document = sample.whole(("llamacpp",))
    plot = drawn(sample.run(document, "Orin"), sample.run(document, "N100"))["throughput"]
    assert {"Orin: llamacpp", "N100: llamacpp"} <= set(words(plot.svg))
    assert {row[0] for row in plot.table.rows} == {"Orin: llamacpp", "N100: llamacpp"}


def test_a_series_keeps_its_look_when_another_plot_lacks_the_first() -> None:
    document = sample.whole()
    document["timelines"] = document["timelines"][1:]
    assert "--plot-2," in drawn(sample.run(document))["timeline"].svg
    assert "--plot-1," not in drawn(sample.run(document))["timeline"].svg


def test_what_differs_is_in_the_name_and_what_does_not_is_in_the_caption() -> None:
    levels = [sample.level("vllm", n, 9.0 * n, cache) for cache in ("on", "off") for n in (1, 2)]
    plot = drawn(sample.run({"levels": levels}))["throughput"]
    assert {"vllm, cache on", "vllm, cache off"} <= set(words(plot.svg))
    assert "All with speculation off." in plot.caption


def test_more_series_than_can_be_told_apart_make_further_plots_and_none_is_lost() -> None:
    levels = [sample.level(f"engine{e}", n, 5.0 + e) for e in range(30) for n in (1, 2)]
    found = drawn(sample.run({"levels": levels}))
    assert {"throughput", "throughput-2", "throughput-3"} <= set(found)
    shown = {row[0] for key in found if key.startswith("thr") for row in found[key].table.rows}
    assert len(shown) == 30
    assert "6 further series" in found["throughput-3"].caption


def test_a_curve_that_spans_decades_is_logarithmic_and_says_so() -> None:
    document = sample.whole(("llamacpp",))
    for level, n in zip(document["levels"], sample.LEVELS, strict=True):
        level["metrics"]["ttft_s.p50"] = sample.mean(0.05 * n**2)
    assert "median (p50), s (logarithmic)" in words(drawn(sample.run(document))["ttft"].svg)


def test_up_is_better_for_the_first_engine_in_rates_and_in_times(whole: dict[str, Plot]) -> None:
    rates = [y for _, y in markers(whole["ratio"].svg, "1")]
    times = [y for _, y in markers(whole["ratio"].svg, "2")]
    assert rates[0] < rates[-1]  # the factor falls, more is better: downhill
    assert times[0] > times[-1]  # the factor falls, less is better: uphill
    assert "cross here" in words(whole["ratio"].svg)


def test_a_budget_out_of_reach_is_told_instead_of_drawn() -> None:
    document = sample.whole(("llamacpp",))
    document["memory"][0] |= {"budget_bytes": 1 << 40, "reserve_bytes": 0}
    plot = drawn(sample.run(document))["memory"]
    assert not any(word.startswith("budget") for word in words(plot.svg))
    assert "far above" in plot.caption


def test_memory_that_was_never_measured_says_why() -> None:
    document = {"memory": [{"engine": "x", "slots": [], "bytes": [], "reason": "no start lived"}]}
    assert "no start lived" in missing(sample.run(document))["memory"].reason


def test_matplotlib_is_not_imported_before_something_is_drawn() -> None:
    code = (
        "import sys; from edgeagent.report.plots import plots; "
        "from edgeagent.report.sheet_run import SheetRun; plots([SheetRun('box', {})]); "
        "sys.exit('matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_pyplot_stays_out_and_the_settings_of_others_stay_as_they_are() -> None:
    import matplotlib as mpl

    before = mpl.rcParams["svg.fonttype"]
    drawn(sample.run(sample.whole(("llamacpp",))))
    assert mpl.rcParams["svg.fonttype"] == before
    assert "matplotlib.pyplot" not in sys.modules
