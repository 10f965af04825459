"""The sheet in a real browser: it is quiet, it fits, it prints, and everybody can read it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
import sheet_documents as results
from headless import Browser, Page, tool

from edgeagent.report.plots import plots
from edgeagent.report.sheet import How, RunHow, sheet_html

_DESKTOP, _PHONE = 1280, 360
_HOW = How((RunHow(command="edgeagent sweep compare.toml --out runs/a"),), agent="1.0")

Scheme = Literal["light", "dark"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser(tool("EDGEAGENT_TEST_CHROMIUM")) as running:
        yield running


@pytest.fixture(scope="module")
def axe() -> str:
    return tool("EDGEAGENT_TEST_AXE").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Look:
    """A sheet, and how it is looked at."""

    sheet: Path
    width: int
    scheme: Scheme


@pytest.fixture
def look(sheets: dict[str, Path], kind: str, width: int, scheme: Scheme) -> Look:
    return Look(sheets[kind], width, scheme)


@pytest.fixture(scope="module")
def sheets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every kind of sheet, drawn once."""
    folder = tmp_path_factory.mktemp("sheets")
    kinds = {
        "full": [results.full()],
        "two": [results.full(), results.real()],
        "partial": [results.partial()],
        "failed": [results.failed()],
        "hostile": [results.hostile()],
    }
    written = {}
    for name, documents in kinds.items():
        runs = results.runs(*documents)
        written[name] = folder / f"{name}.html"
        written[name].write_text(
            sheet_html(runs, plots(runs), _HOW), encoding="utf-8", errors="backslashreplace"
        )
    return written


KINDS = ("full", "two", "partial", "failed", "hostile")

LOOKS: tuple[tuple[str, int, Scheme], ...] = (
    ("full", _DESKTOP, "light"),
    ("full", _DESKTOP, "dark"),
    ("full", _PHONE, "light"),
    ("full", _PHONE, "dark"),
    ("two", _DESKTOP, "light"),
    ("two", _PHONE, "dark"),
    ("partial", _DESKTOP, "dark"),
    ("partial", _PHONE, "light"),
    ("failed", _PHONE, "light"),
    ("hostile", _DESKTOP, "dark"),
    ("hostile", _PHONE, "light"),
)
"""Every kind of sheet, both widths, both schemes; all of them together only for the full one."""


@pytest.mark.parametrize(("kind", "width", "scheme"), LOOKS)
def test_a_sheet_is_silent_alone_and_fits_and_everybody_can_read_it(
    browser: Browser, look: Look, axe: str
) -> None:
    with browser.open(look.sheet, look.width, look.scheme) as page:
        page.picture(_kept(look.sheet, f"{look.width}-{look.scheme}.png"))
        unfold(page)
        assert page.run("document.documentElement.scrollWidth") <= look.width
        assert page.complaints() == []
        asked = [url for url in page.requests() if not url.startswith("data:")]
        assert asked == [look.sheet.as_uri()]
        page.run(f"{axe}; 0")
        found = page.run(_EXAMINE)
    assert found["violations"] == []
    assert {"color-contrast", "document-title", "heading-order", "list"} <= set(found["passes"])


_EXAMINE = """
axe.run(document, {resultTypes: ["violations"]}).then(result => ({
  passes: result.passes.map(one => one.id),
  violations: result.violations.map(one => [one.id, one.help, one.nodes.slice(0, 3).map(
    node => node.html.slice(0, 200) + " " + node.failureSummary)]),
}))
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_sheet_prints_on_white_paper_in_pages_of_a4(
    browser: Browser, sheets: dict[str, Path], kind: str
) -> None:
    with browser.open(sheets[kind], _DESKTOP, "dark") as page:
        printed = page.pdf(_kept(sheets[kind], "pages.pdf")).read_bytes()
        page.ask("Emulation.setEmulatedMedia", {"media": "print", "features": _DARK})
        page.resize(_PAPER, 1000)
        ink = page.run("getComputedStyle(document.body).color")
        width = page.run("document.documentElement.scrollWidth")
    assert re.search(rb"/MediaBox \[0 0 59[45]\.?\d* 84[12]\.?\d*\]", printed)
    assert ink == "rgb(27, 36, 48)"
    assert width <= _PAPER, "a table is wider than the paper"


_DARK = [{"name": "prefers-color-scheme", "value": "dark"}]
_PAPER = 688
"""Pixels of CSS between the margins of A4."""


def test_a_link_to_a_cell_unfolds_the_table_that_it_stands_in(
    browser: Browser, sheets: dict[str, Path]
) -> None:
    with browser.open(sheets["full"], _DESKTOP) as page:
        assert page.run("document.querySelector('#r0-cells').open") is False
        page.run("location.hash = '#r0-cell-3'")
        assert page.run("document.querySelector('#r0-cells').open") is True


def test_hostile_names_run_nothing_and_the_policy_would_not_let_them(
    browser: Browser, sheets: dict[str, Path]
) -> None:
    with browser.open(sheets["hostile"], _DESKTOP) as page:
        unfold(page)
        assert page.run("typeof window.struck") == "undefined"
        assert page.run("document.querySelectorAll('script, img, iframe, object').length") == 0
        page.run(
            "document.body.insertAdjacentHTML('beforeend', "
            '\'<details open ontoggle="window.struck=1"></details>'
            '<img src="data:,x" onerror="window.struck=2">\')'
        )
        page.wait_until("Log.entryAdded")
        assert page.run("typeof window.struck") == "undefined"


def unfold(page: Page) -> None:
    """Open everything that can be opened, as a curious reader would."""
    page.run("document.querySelectorAll('details').forEach(one => { one.open = true })")


def _kept(sheet: Path, name: str) -> Path:
    """Where a picture goes: to the named folder, for those who want to look; else away."""
    folder = os.environ.get("EDGEAGENT_SHEET_PICTURES")
    return (Path(folder) if folder else sheet.parent) / f"{sheet.stem}-{name}"
