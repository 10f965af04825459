"""What does the site have that does not lie in docs/?

CONTRIBUTING.md and CHANGELOG.md become pages. A file of the repository to which a page links (a
configuration, a unit, a module) is copied into the site below `files/`, and the link follows it, so
that a page reads the same in the repository and in the site, and every link is checked.
"""  # noqa: INP001  # because mkdocs loads it by its path

from __future__ import annotations

import logging
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Files of the repository, and the pages that they become."""

_LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
_log = logging.getLogger("mkdocs.hooks.docs")


def on_config(config: Any) -> Any:
    """Put every decision into the navigation."""
    for group in config.nav:
        for entries in group.values():
            for entry in entries:
                for title, place in entry.items():
                    if place == "decisions/*":
                        entry[title] = [{"Overview": "decisions/index.md"}, *_decisions()]
    return config


def _decisions() -> Iterator[dict[str, str]]:
    for path in sorted((ROOT / "docs/decisions").glob("0*.md")):
        number, _, name = path.stem.partition("-")
        yield {f"{int(number)} {name.replace('-', ' ')}": f"decisions/{path.name}"}


def _list_of_decisions() -> str:
    lines = [
        "# Decisions",
        "",
        "Why things are as they are, where others would wonder. Each page stays as it was written; "
        "one that no longer holds is answered by a later one.",
        "",
    ]
    for path in sorted((ROOT / "docs/decisions").glob("0*.md")):
        title = path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        lines.append(f"- [{title}]({path.name})")
    return "\n".join(lines)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and the files that stand outside of docs/."""
    files.append(File.generated(config, "decisions/index.md", content=_list_of_decisions()))
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=relinked(text, source, page)))
    for file in list(files.documentation_pages()):
        if file.src_uri in PAGES.values():
            text, source = (ROOT / _source_of(file.src_uri)).read_text(encoding="utf-8"), "."
        else:
            text, source = file.content_string, f"docs/{file.src_uri}"
        for target in outside(text, source):
            copy = f"files/{target}"
            if (ROOT / target).is_file() and files.get_file_from_path(copy) is None:
                files.append(File.generated(config, copy, abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links out of docs/ point at the copies."""
    if page.file.src_uri in PAGES.values():
        return markdown
    return relinked(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)


def on_page_content(html: str, **_: Any) -> str:
    """Mark code that is short enough to stay on one line of a table."""
    return re.sub(r"<code>([^<]{1,26})</code>", r'<code class="short">\1</code>', html)


def relinked(text: str, source: str, page: str) -> str:
    """The text of `source` (by its path in the repository) as the text of `page`."""
    here = posixpath.dirname(page) or "."

    def moved(link: re.Match[str]) -> str:
        target = _in_repository(link[2], source)
        if target is None:
            return link[0]
        if target in PAGES:
            place = PAGES[target]
        elif target.startswith("docs/"):
            place = target.removeprefix("docs/")
        else:
            place = f"files/{target}"
            if not (ROOT / target).is_file():
                _log.warning("%s links to %s, which is no file", source, target)
        return f"{link[1]}{posixpath.relpath(place, here)}{link[3]}"

    return _LINK.sub(moved, text)


def outside(text: str, source: str) -> Iterator[str]:
    """The files outside of docs/ that it links to, by their paths in the repository."""
    for link in _LINK.finditer(text):
        target = _in_repository(link[2], source)
        if target and not target.startswith("docs/") and target not in PAGES:
            yield target


def _in_repository(target: str, source: str) -> str | None:
    """Where a link from `source` leads to; None for one to elsewhere."""
    if re.match(r"[a-z]+:|/", target):
        return None
    found = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    return None if found.startswith("..") else found


def _source_of(page: str) -> str:
    return next(source for source, made in PAGES.items() if made == page)
