"""The site in a real browser, from a folder: it is quiet, it fits, it can be searched."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import pytest
from headless import Browser, Page, tool

LOOKS = (("index.html", 1280), ("index.html", 400), ("mqtt.html", 400), ("reference/cli.html", 400))
"""Pages, and how wide the window is: tables, code and pictures are what does not fit."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_is_quiet_and_fits(site: Path, scheme: Literal["light", "dark"]) -> None:
    # a browser of its own for each, since a page remembers how it was looked at
    with Browser(tool("EDGEAGENT_TEST_CHROMIUM")) as browser:
        for name, width in LOOKS:
            _looked_at(browser, site / name, width, scheme)


def _looked_at(browser: Browser, file: Path, width: int, scheme: Literal["light", "dark"]) -> None:
    with browser.open(file, width, scheme) as page:
        assert page.complaints() == []
        assert [one for one in page.requests() if not one.startswith(("file:", "data:"))] == []
        wide = page.run("document.documentElement.scrollWidth")
        assert wide <= width, f"{file.name} is {wide} px wide in a window of {width}"
        shown = page.run("document.body.dataset.mdColorScheme")
        assert shown == {"light": "default", "dark": "slate"}[scheme]


def test_search_works_without_a_server(site: Path) -> None:
    with (
        Browser(tool("EDGEAGENT_TEST_CHROMIUM")) as browser,
        browser.open(site / "index.html", 1280) as page,
    ):
        assert _hits(page, "watermark") > 0
        assert page.complaints() == []


_SEARCH = """new Promise(async (done) => {
  const field = document.querySelector('[data-md-component="search-query"]');
  document.querySelector('#__search').click();
  for (let i = 0; i < 600; i++) {
    field.focus();
    field.value = WORD;
    field.dispatchEvent(new Event('input', {bubbles: true}));
    field.dispatchEvent(new KeyboardEvent('keyup', {bubbles: true}));
    const found = document.querySelectorAll('.md-search-result__item').length;
    if (found) return done(found);
    await new Promise((next) => setTimeout(next, 100));
  }
  done(0);
})"""


def _hits(page: Page, word: str) -> int:
    """How many results the search shows within a minute."""
    found: int = page.run(_SEARCH.replace("WORD", repr(word)))
    return found
