"""The buyer's sheet: everything on it stands in the results, and nothing in them breaks it."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import sheet_documents as results
from hypothesis import given
from hypothesis import strategies as st
from sheet_page import Element, looked_up, parsed

from edgeagent.core.answers import QUESTIONS
from edgeagent.core.findings import CODES
from edgeagent.report.sheet import How, RunHow, sheet_html
from edgeagent.report.sheet_advice import ADVICE
from edgeagent.report.sheet_values import formatted, rounded

_SCALES = {
    "ms": Decimal(1000),
    "percent": Decimal(100),
    "mib": 1 / Decimal(1 << 20),
    "MiB": 1 / Decimal(1 << 20),
    "GiB": 1 / Decimal(1 << 30),
}
_DOCS = Path(__file__).parents[2] / "docs" / "findings.md"


def sheet(*documents: dict[str, Any], how: How | None = None) -> Element:
    return parsed(sheet_html(results.runs(*documents), results.pictures(), how or How()))


def with_id(page: Element, name: str) -> Element:
    return next(page.all(id=name))


@pytest.fixture(scope="module")
def whole() -> Element:
    return sheet(results.full())


def marked_numbers(page: Element) -> list[Element]:
    return [one for one in page.all(data_from=None, data_as=None) if one.tag == "span"]


def shown_number(text: str) -> Decimal:
    bare = text.replace("\N{NARROW NO-BREAK SPACE}", "").replace("\N{MINUS SIGN}", "-")
    return Decimal(bare.removesuffix(" %").removesuffix(" MiB").removesuffix(" GiB"))


def true_number(kind: str, text: str, value: float) -> Decimal:
    unit = text[-3:] if kind == "size" else kind
    return Decimal(value) * _SCALES.get(unit, Decimal(1)) + (kind == "ordinal")


@pytest.mark.parametrize("document", [results.full, results.partial, results.failed])
def test_every_number_is_one_of_the_document_rounded_by_less_than_its_last_digit(
    document: Any,
) -> None:
    found = document()
    for one in marked_numbers(sheet(found)):
        value = looked_up([found], one.attributes["data-from"])
        shown = shown_number(one.text)
        step = Decimal(1).scaleb(int(shown.as_tuple().exponent))
        true = true_number(one.attributes["data-as"], one.text, value)
        assert abs(shown - true) <= step / 2, f"{one.text} for {value}: {one.attributes}"


def test_a_full_sheet_shows_numbers_of_every_part_of_the_document(whole: Element) -> None:
    parts = {one.attributes["data-from"].split("/")[1] for one in marked_numbers(whole)}
    assert parts >= {
        "levels", "cells", "memory", "comparison", "interference", "capacity", "knee", "effects",
        "workload", "host", "models", "engines",
    }  # fmt: skip


def test_every_text_that_names_its_place_is_what_stands_there(whole: Element) -> None:
    document = results.full()
    seen = 0
    for one in whole.all("bdi", data_from=None):
        pointer = one.attributes["data-from"]
        if pointer.endswith("#") or not pointer.startswith("0/"):
            continue  # a key, or words joined for a shell
        value = looked_up([document], pointer)
        if one.attributes.get("data-as") == "time":
            assert one.text == f"{value[:10]} {value[11:16]} UTC"
        elif isinstance(value, bool):
            assert one.text == ("yes" if value else "no")
        else:
            assert one.text == str(value)
        seen += 1
    assert seen > 100


@pytest.mark.parametrize("documents", [(results.full,), (results.partial,), (results.full,) * 2])
def test_no_digit_stands_on_the_page_that_is_not_taken_from_a_document(documents: Any) -> None:
    page = next(sheet(*(one() for one in documents)).all("body"))
    # Headings of columns and what a plot shows are checked elsewhere.
    free = page.open_texts(["data-from", "data-fixed"], ["thead", "dt", "svg", "figure"])
    assert [text for text in free if re.search(r"\d", text)] == []


def test_the_seven_questions_come_first_each_with_the_answer_of_the_document(
    whole: Element,
) -> None:
    answers = next(whole.all("ol"))
    questions = [one.text.strip() for one in answers.all("h3")]
    assert questions == [f"{number} {words}" for number, words in QUESTIONS.items()]
    texts = [next(one.all("p")).text for one in answers.all("div", **{"class": "answer"})]
    assert texts == [results.full()["answers"][number]["text"] for number in QUESTIONS]


def test_an_answer_that_was_not_measured_keeps_the_option_that_measures_it() -> None:
    assert (
        "not measured: run with --second-operator"
        in with_id(sheet(results.real()), "r0-answers").text
    )


def test_the_cells_behind_an_answer_are_links_to_their_rows() -> None:
    document = results.real()
    ids = [cell["cell_id"] for cell in document["cells"]]
    document["answers"]["4"]["cells"] = ids[:4]
    page = sheet(document)
    targets = [one.attributes["href"] for one in with_id(page, "r0-answers").all("a")]
    for place in range(4):
        assert f"#r0-cell-{place}" in targets
        assert ids[place] in with_id(page, f"r0-cell-{place}").text


def test_every_link_leads_to_a_place_of_the_page_and_every_id_is_there_once(
    whole: Element,
) -> None:
    ids = [one.attributes["id"] for one in whole.all(id=None)]
    assert len(ids) == len(set(ids))
    targets = [one.attributes["href"] for one in whole.all("a")]
    assert targets
    assert {target.removeprefix("#") for target in targets} <= set(ids)


def test_the_page_asks_for_nothing_and_may_run_nothing(whole: Element) -> None:
    policy = next(whole.all("meta", http_equiv="Content-Security-Policy")).attributes["content"]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:")
    assert list(whole.all("script")) == []
    assert list(whole.all(src=None)) == []
    assert [one.attributes["href"] for one in whole.all("link")] == ["data:,"]
    style = next(whole.all("style")).text
    assert "url(" not in style
    assert "@import" not in style


# ------------------------------------------------------------------------------------ missing


def test_what_was_not_measured_is_a_dash_with_its_reason_and_zero_is_zero() -> None:
    document = results.real()
    metrics = document["levels"][0]["metrics"]
    metrics["ttft_s.p95"] = {"mean": None, "ci95": None}
    metrics["cached_prompt_fraction"] = {"mean": 0.0, "ci95": [0.0, 0.0]}
    table = next(with_id(sheet(document), "r0-table").all("table"))
    first = next(next(table.all("tbody")).all("tr")).text
    assert "– (p95 takes 20 requests)" in first  # noqa: RUF001  # because it is the dash
    assert "0 %" in first


def test_a_column_without_a_single_value_is_left_out_with_the_documents_reason() -> None:
    text = with_id(sheet(results.real()), "r0-table").text
    assert "Energy is left out: no energy counter and no power could be read here" in text


def test_what_could_not_be_established_says_so_and_why() -> None:
    text = with_id(sheet(results.partial()), "r0-measured").text
    assert "not established: vllm did not start: no module" in text
    assert "not established: this box does not report one" in text


def test_a_partial_run_says_which_levels_are_missing() -> None:
    page = sheet(results.partial())
    missing = next(page.all("div", **{"class": "callout"})).text
    assert "This run is not complete" in missing
    assert "vllm, prefix cache off, 16 at once, was not measured" in missing
    assert "llamacpp, prefix cache off, 4 at once, 1 of 3 repeats" in missing


def test_a_failed_run_still_gives_a_sheet() -> None:
    page = sheet(results.failed())
    assert "This run failed." in next(page.all("div", **{"class": "callout"})).text
    assert "No level was measured." in page.text


def test_a_run_that_was_killed_says_that_it_was_summed_up_for_the_sheet() -> None:
    page = sheet(results.partial(), how=How((RunHow(finished=False),)))
    assert "did not come to its end" in page.text


def test_an_empty_document_gives_a_sheet_that_has_nothing() -> None:
    page = sheet({})
    assert "a box without a name" in page.text
    assert "the result has no answer to it" in page.text


@pytest.mark.parametrize("junk", [None, 7, "words", [], {}, [None], [7], {"x": None}, True])
def test_a_document_of_any_other_shape_ends_in_a_sheet(junk: Any) -> None:
    document = results.small()
    for key in document:
        sheet_html(results.runs({**document, key: junk}), [], How())
    for key in ("host", "workload", "answers"):
        for inner in document[key]:
            changed = {**document, key: {**document[key], inner: junk}}
            sheet_html(results.runs(changed), [], How())
    for key in ("levels", "cells", "memory", "comparison", "interference", "effects", "knee"):
        for inner in document[key][0]:
            changed = {**document, key: [{**document[key][0], inner: junk}]}
            sheet_html(results.runs(changed), [], How())


# ------------------------------------------------------------------------------------ rounding


@given(
    value=st.floats(-1e9, 1e9, allow_subnormal=False),
    limit=st.integers(-(10**6), 10**6).map(lambda thousandths: thousandths / 1000),
    digits=st.integers(0, 3),
)
def test_rounding_leaves_a_value_on_its_side_of_a_limit(
    value: float, limit: float, digits: int
) -> None:
    if 0 < abs(value - limit) < 1e-6 or 0 < abs(value) < 1e-6:
        return  # no number of digits that people read tells them apart
    shown = float(shown_number(rounded(value, digits, (limit,))))
    assert (shown > limit, shown < limit) == (value > limit, value < limit)


def test_a_share_just_below_all_is_not_shown_as_all() -> None:
    assert formatted(0.996, "percent") == "99.6 %"
    assert formatted(0.99996, "percent") == "99.996 %"
    assert formatted(0.9499, "percent") == "94.99 %"
    assert formatted(1.0, "percent") == "100 %"


def test_a_time_just_above_the_limit_is_not_shown_at_it() -> None:
    assert formatted(1.0004, "s", (1.0,)) == "1.0004"
    assert formatted(1.0004, "ms", (1.0,)) == "1\N{NARROW NO-BREAK SPACE}000.4"


def test_a_factor_just_above_one_is_not_shown_as_one() -> None:
    assert formatted(1.0012, "factor") == "1.001"
    assert formatted(1.0, "factor") == "1.00"


def test_a_small_value_is_not_shown_as_zero() -> None:
    assert formatted(0.0000004, "ms") == "0.0004"
    assert formatted(1024.0, "size") == "0.001 MiB"
    assert formatted(0.0, "size") == "0 MiB"


# ------------------------------------------------------------------------------------ findings


def test_findings_stand_worst_first_with_what_to_do() -> None:
    document = results.real()
    document["findings"] = [
        {"code": "too_few_samples", "severity": "info", "text": "few", "cells": []},
        {"code": "throttled", "severity": "suspect", "text": "it was hot", "cells": []},
        {"code": "co_tenant", "severity": "warning", "text": "somebody else", "cells": []},
    ]
    found = with_id(sheet(document), "r0-findings")
    assert [one.text for one in found.all("code")] == ["throttled", "co_tenant", "too_few_samples"]
    assert ADVICE["throttled"] in found.text


def test_every_finding_has_advice_and_the_documentation_gives_the_same() -> None:
    row = re.compile(r"^\| `(\w+)` \| (?:suspect|warning|info) \| .* \| (.*) \|$", re.MULTILINE)
    rows = row.findall(_DOCS.read_text(encoding="utf-8"))
    assert {code: words.replace("`", "") for code, words in rows} == dict(ADVICE)
    assert set(ADVICE) == set(CODES)


# --------------------------------------------------------------------------------- several runs


def test_several_runs_are_compared_at_the_head_and_each_has_its_part() -> None:
    slower = results.real()
    slower["levels"] = slower["levels"][:3]
    slower["memory"] = []
    page = sheet(results.full(), slower)
    head = with_id(page, "compared")
    assert {one.text for one in head.all("a")} == {"box 1", "box 2"}
    assert "– (this level was not measured in this run)" in head.text  # noqa: RUF001  # because it is the dash
    assert "– (not measured in this run)" in head.text  # noqa: RUF001  # because it is the dash
    for place in range(2):
        part = with_id(page, f"run-{place}")
        assert with_id(part, f"r{place}-answers").tag == "section"


def test_numbers_of_the_second_run_come_from_the_second_document() -> None:
    first, second = results.full(), results.real()
    for level in second["levels"]:
        level["metrics"]["output_tokens_per_s"]["mean"] *= 3.7
    for one in marked_numbers(sheet(first, second)):
        value = looked_up([first, second], one.attributes["data-from"])
        shown = shown_number(one.text)
        true = true_number(one.attributes["data-as"], one.text, value)
        assert abs(shown - true) <= Decimal(1).scaleb(int(shown.as_tuple().exponent)) / 2


# ----------------------------------------------------------------------------------- provenance


def test_the_files_and_how_to_repeat_it_are_named() -> None:
    command = "edgeagent sweep 'my plan.toml' --out runs/a"
    how = How((RunHow(command=command, signature="signed by the key 3f9a"),), agent="1.0")
    text = with_id(sheet(results.real(), how=how), "r0-repeat").text
    assert command in text
    assert "signed by the key 3f9a" in text
    assert results.real()["files"]["requests.jsonl"] in text
    assert "--max-num-seqs 32" in text


def test_without_a_command_the_sheet_says_that_it_is_not_established() -> None:
    assert "The command itself is not established" in sheet(results.real()).text


# ---------------------------------------------------------------------------------- hostile names


def test_hostile_names_stay_words() -> None:
    page = sheet(results.hostile())
    assert list(page.all("script")) == []
    assert list(page.all("img")) == []
    handlers = [name for one in page.all() for name in one.attributes if name.startswith("on")]
    assert handlers == []
    for words in results.HOSTILE[:4]:
        assert words in page.text


def test_marks_that_turn_or_hide_other_words_are_written_out() -> None:
    document = results.real()
    document["host"]["hostname"] = "box\u202egpj.exe\x00\x1b[31m\ud800"
    html = sheet_html(results.runs(document), [], How())
    assert "box\\u202egpj.exe\\u0000\\u001b[31m\\ud800" in html
    assert not re.search("[\u202e\x00\x1b\ud800]", html)


def test_every_text_of_a_document_keeps_its_own_direction() -> None:
    document = results.real()
    document["host"]["hostname"] = "صندوق الحافة"
    heading = next(sheet(document).all("h1"))
    assert next(heading.all("bdi")).text == "صندوق الحافة"


def test_twice_the_cells_are_no_more_than_twice_the_page() -> None:
    small = sheet_html(results.runs(results.many(20, 3)), [], How())
    large = sheet_html(results.runs(results.many(40, 3)), [], How())
    assert len(large) < 2 * len(small)
