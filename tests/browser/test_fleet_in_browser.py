"""The fleet's page in a real browser: quiet, alone, as wide as a phone, readable by everybody."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from fleet_made import NOW_MS, BoxMade, boxes, one_healthy, stored
from headless import Browser, Page, tool

from edgeagent.fleet import views
from edgeagent.fleet.queries import Chosen
from edgeagent.fleet.store import open_store

_DESKTOP, _PHONE = 1280, 360
_MOST_ROWS = 40
"""Rows of a table that are examined: a thousand boxes have a thousand rows of one kind."""

Scheme = Literal["light", "dark"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser(tool("EDGEAGENT_TEST_CHROMIUM")) as running:
        yield running


@pytest.fixture(scope="module")
def axe() -> str:
    return tool("EDGEAGENT_TEST_AXE").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every kind of page, made once."""
    folder = tmp_path_factory.mktemp("fleets")
    return {
        "one": _page(folder / "one", one_healthy()),
        "thirty": _page(folder / "thirty", boxes(30)),
        "thousand": _page(folder / "thousand", boxes(1000, runs=1)),
        "hostile": _page(folder / "hostile", boxes(30, runs=1), hostile=True),
        "none": _page(folder / "none", []),
    }


def _page(path: Path, made: Sequence[BoxMade], *, hostile: bool = False) -> Path:
    store = open_store(f"sqlite://{path}.db", "collect")
    stored(store, made, hostile)
    page = path.with_suffix(".html")
    text = views.page(store, Chosen(), NOW_MS)
    page.write_text(text, encoding="utf-8", errors="backslashreplace")
    store.close()
    return page


@dataclass(frozen=True)
class Look:
    """A page, and how it is looked at."""

    page: Path
    width: int
    scheme: Scheme


LOOKS: tuple[tuple[str, int, Scheme], ...] = (
    ("one", _DESKTOP, "light"),
    ("one", _PHONE, "dark"),
    ("thirty", _DESKTOP, "light"),
    ("thirty", _DESKTOP, "dark"),
    ("thirty", _PHONE, "light"),
    ("thirty", _PHONE, "dark"),
    ("thousand", _DESKTOP, "dark"),
    ("thousand", _PHONE, "light"),
    ("hostile", _DESKTOP, "light"),
    ("hostile", _PHONE, "dark"),
    ("none", _PHONE, "light"),
)
"""Every size of fleet, both widths, both schemes; all of them together only for thirty boxes."""


@pytest.fixture
def look(pages: dict[str, Path], kind: str, width: int, scheme: Scheme) -> Look:
    return Look(pages[kind], width, scheme)


@pytest.mark.parametrize(("kind", "width", "scheme"), LOOKS)
def test_a_fleet_is_silent_alone_and_fits_and_everybody_can_read_it(
    browser: Browser, look: Look, axe: str
) -> None:
    with browser.open(look.page, look.width, look.scheme) as page:
        if look.page.stem != "thousand":  # because a picture of it is a hundred metres long
            page.picture(_kept(look.page, f"{look.width}-{look.scheme}.png"))
        unfold(page)
        assert page.run("document.documentElement.scrollWidth") <= look.width
        assert page.complaints() == []
        asked = [url for url in page.requests() if not url.startswith("data:")]
        assert asked == [look.page.as_uri()]
        page.run(_SHORTEN)
        page.run(f"{axe}; 0")
        found = page.run(_EXAMINE)
    assert found["violations"] == []
    assert {"color-contrast", "document-title", "heading-order"} <= set(found["passes"])


_SHORTEN = f"""
document.querySelectorAll("tbody").forEach(body => {{
  [...body.rows].slice({_MOST_ROWS}).forEach(row => row.remove())
}}); 0
"""

_EXAMINE = """
axe.run(document, {resultTypes: ["violations"]}).then(result => ({
  passes: result.passes.map(one => one.id),
  violations: result.violations.map(one => [one.id, one.help, one.nodes.slice(0, 3).map(
    node => node.html.slice(0, 200) + " " + node.failureSummary)]),
}))
"""


def shown_boxes(page: Page) -> list[str]:
    """The boxes in the table of all boxes that are to be seen."""
    names: list[str] = page.run(
        "[...document.querySelectorAll('#boxes > .scroll tbody tr')]"
        ".filter(row => row.offsetParent !== null).map(row => row.cells[0].innerText)"
    )
    return names


def test_a_class_a_site_and_trouble_narrow_the_page_down_without_a_script(
    browser: Browser, pages: dict[str, Path]
) -> None:
    with browser.open(pages["thirty"], _DESKTOP) as page:
        assert len(shown_boxes(page)) == 30
        choose(page, "dgpu")
        assert len(shown_boxes(page)) == 6
        choose(page, "plant9-paint")
        assert shown_boxes(page) == ["edge-0015", "edge-0018"]
        choose(page, "with a trouble")
        assert shown_boxes(page) == ["edge-0015"]
        for key in ("class", "site", "state"):
            page.run(f"document.querySelector('#all-{key}').click()")
        assert len(shown_boxes(page)) == 30


def choose(page: Page, name: str) -> None:
    page.run(
        "[...document.querySelectorAll('.filters label')]"
        f".find(label => label.innerText.includes('{name}')).click()"
    )


def test_a_fleet_prints_in_pages_of_a4(browser: Browser, pages: dict[str, Path]) -> None:
    with browser.open(pages["thirty"], _DESKTOP, "dark") as page:
        printed = page.pdf(_kept(pages["thirty"], "pages.pdf")).read_bytes()
        page.ask("Emulation.setEmulatedMedia", {"media": "print", "features": []})
        page.resize(_PAPER, 1000)
        width = page.run("document.documentElement.scrollWidth")
    assert printed.startswith(b"%PDF")
    assert width <= _PAPER, "a table is wider than the paper"


_PAPER = 688
"""Pixels of CSS between the margins of A4."""


def test_hostile_boxes_run_nothing_and_the_policy_would_not_let_them(
    browser: Browser, pages: dict[str, Path]
) -> None:
    with browser.open(pages["hostile"], _DESKTOP) as page:
        unfold(page)
        assert page.run("typeof window.struck") == "undefined"
        assert page.run("document.querySelectorAll('script, img, iframe, object').length") == 0
        page.run(
            "document.body.insertAdjacentHTML('beforeend', "
            '\'<img src="data:,x" onerror="window.struck=2">\')'
        )
        page.wait_until("Log.entryAdded")
        assert page.run("typeof window.struck") == "undefined"


def unfold(page: Page) -> None:
    """Open everything that can be opened, as a curious reader would."""
    page.run("document.querySelectorAll('details').forEach(one => { one.open = true })")


def _kept(page: Path, name: str) -> Path:
    """Where a picture goes: to the named folder, for those who want to look; else away."""
    folder = os.environ.get("EDGEAGENT_SHEET_PICTURES")
    return (Path(folder) if folder else page.parent) / f"fleet-{page.stem}-{name}"
