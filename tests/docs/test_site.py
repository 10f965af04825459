"""The site is whole, needs nobody, and says what the code says."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from docs_pages import ROOT, blocks, name, pages

from edgeagent.publish.messages import MESSAGES

FETCHED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}


class Fetched(HTMLParser):
    """What a browser fetches for a page by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        value = dict(attrs).get(FETCHED.get(tag, ""))
        if value:
            self.found.append(value)


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    made = [path for path in site.rglob("*.html") if "examples" not in path.parts]
    assert len(made) > 40
    for path in made:
        fetched = Fetched()
        fetched.feed(path.read_text(encoding="utf-8"))
        assert fetched.found
        assert not [one for one in fetched.found if re.match(r"(https?:)?//", one)], path
    for path in site.rglob("*.css"):
        assert not re.search(r"url\(\s*[\"']?(https?:)?//", path.read_text(encoding="utf-8")), path


def test_everything_that_is_fetched_is_there(site: Path) -> None:
    for path in site.rglob("*.html"):
        fetched = Fetched()
        fetched.feed(path.read_text(encoding="utf-8"))
        for one in fetched.found:
            if path.name != "404.html" and not one.startswith(("data:", "#")):
                assert (path.parent / one.partition("?")[0].partition("#")[0]).is_file(), one


def test_files_of_the_repository_come_along(site: Path) -> None:
    for file in ("configs/plan.toml", "configs/edgeagent.toml", "configs/commands.toml"):
        assert (site / "files" / file).read_bytes() == (ROOT / file).read_bytes()


def test_the_references_are_what_the_code_says() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/docs_reference.py", "--check"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_of_the_pages_outside_of_docs_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)#\s]+)", (ROOT / page).read_text(encoding="utf-8")):
        assert re.match("https?:", link) or (ROOT / link).exists(), link


def test_readme_is_read_in_two_minutes() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) < 600


def test_every_page_about_docs_that_the_code_names_is_there() -> None:
    for folder, ending in (("edgeagent", "*.py"), ("systemd", "*"), ("configs", "*")):
        for path in (ROOT / folder).rglob(ending):
            if path.is_file():
                text = path.read_text(encoding="utf-8")
                for page in re.findall(r"(?<!ggml's )docs/[a-z0-9/-]+\.md", text):
                    assert (ROOT / page).is_file(), f"{path.relative_to(ROOT)} names {page}"


def test_every_message_stands_in_the_table_of_topics() -> None:
    text = (ROOT / "docs/mqtt.md").read_text(encoding="utf-8")
    assert not [one for one in MESSAGES if f"`{one}`" not in text]


@pytest.mark.parametrize("page", [name(page) for page in pages()])
def test_a_page_reads_the_same_in_the_repository_and_in_the_site(page: str) -> None:
    """Without an empty line before it the site takes a list or a table for text."""
    path = ROOT / page
    text = path.read_text(encoding="utf-8")
    for block in blocks(path):
        text = text.replace(block.text, "\n" * block.text.count("\n"), 1)
    lines = text.splitlines()
    for number, (before, line) in enumerate(itertools.pairwise(lines), start=2):
        if not before.strip() or re.match(r"\s*([-*|>]|\d+\.|<!--)", before):
            continue
        begins = re.match(r"([-*] |\d+\. |\|)", line)
        assert not begins or before.startswith(" "), f"{page}:{number}: {line}"
