"""What is a plot of the sheet, whose series are in it, and what do they share?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgeagent.report.plot_style import Style, style
from edgeagent.report.plots_words import clean, finite, word
from edgeagent.report.reading import mappings
from edgeagent.report.sheet_run import SheetRun

Value = str | float | int | None

TITLE_EM = 24.0
"""So much of a name stands in a title."""

SERIES_FROM = ("levels", "distributions", "timelines", "arrivals")
"""Lists of a document whose items are of one engine and setting."""


@dataclass(frozen=True)
class Table:
    """What a plot shows, as numbers."""

    header: tuple[str, ...]
    """With units: those of `result.json`."""
    rows: tuple[tuple[Value, ...], ...]
    """Numbers as they stand in the document, not rounded; None was not measured."""


@dataclass(frozen=True)
class Plot:
    """A picture, and what says the same without it."""

    key: str
    """Unique in a sheet; ids in the SVG begin with `plot-` and it."""
    title: str
    svg: str
    """Ready to stand in an HTML page; nothing in it can be scripted."""
    alternative: str
    """What the picture shows, in words and numbers. Plain text: escape it."""
    caption: str
    """How to read it. Plain text."""
    table: Table


@dataclass(frozen=True)
class Missing:
    """A plot for which there are no numbers."""

    key: str
    title: str
    reason: str
    """Why there are none, and what to run to get them. Plain text."""


@dataclass(frozen=True)
class Setting:
    """Whose numbers these are: which run's (by its place), which engine's, set how."""

    run: int
    engine: str
    prefix_cache: str
    speculation: str


def setting_of(run: int, item: Mapping[str, object]) -> Setting:
    """Return whose numbers an item of a document gives."""
    return Setting(run, word(item, "engine"), word(item, "prefix_cache"), word(item, "speculation"))


def items(runs: Sequence[SheetRun], name: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the objects of a list in each run's document, with the place of the run."""
    for run, shown in enumerate(runs):
        for item in mappings(shown.document.get(name)):
            yield run, item


def concurrency_of(item: Mapping[str, object]) -> int | None:
    """Return the level of an item; None where it is no number above zero."""
    found = finite(item.get("concurrency"))
    return None if found is None or found < 1 else int(found)


@dataclass(frozen=True)
class Cast:
    """All series of a sheet: the same one has the same name and look in every plot."""

    runs: tuple[SheetRun, ...]
    settings: tuple[Setting, ...]
    _places: Mapping[Setting, int] = field(repr=False)
    _differ: frozenset[str] = field(repr=False)

    @classmethod
    def of(cls, runs: Sequence[SheetRun]) -> Cast:
        """Return the series of these runs, in the order in which they first come."""
        found = {
            setting_of(run, item): None for name in SERIES_FROM for run, item in items(runs, name)
        }
        settings = tuple(found)
        differ = frozenset(
            name
            for name in ("engine", "prefix_cache", "speculation")
            if len({getattr(setting, name) for setting in settings}) > 1
        )
        places = {setting: place for place, setting in enumerate(settings)}
        return cls(tuple(runs), settings, places, differ)

    def style(self, setting: Setting) -> Style:
        """Return the look of a series."""
        return style(self._places.get(setting, 0))

    def name(self, setting: Setting) -> str:
        """Return what tells a series from the others, in full."""
        words = [setting.engine]
        if "prefix_cache" in self._differ:
            words.append(f"cache {setting.prefix_cache}")
        if "speculation" in self._differ:
            words.append(f"speculation {setting.speculation}")
        return self.from_run(setting.run, ", ".join(words))

    def from_run(self, run: int, words: str) -> str:
        """Return the words, after the name of their run where there are several."""
        return words if len(self.runs) == 1 else f"{clean(self.runs[run].label)}: {words}"

    def shared(self) -> str:
        """Return what all series have in common, as a sentence; empty where nothing is."""
        if not self.settings:
            return ""
        one = self.settings[0]
        words = [
            f"{called} {getattr(one, name)}"
            for name, called in (("prefix_cache", "prefix cache"), ("speculation", "speculation"))
            if name not in self._differ
        ]
        return f"All with {' and '.join(words)}." if words else ""

    def among(self, settings: Iterable[Setting]) -> tuple[Setting, ...]:
        """Return these settings, each once, in the order of the sheet."""
        return tuple(sorted(set(settings), key=lambda setting: self._places[setting]))


def pages(settings: Sequence[Setting], per_page: int, most: int) -> tuple[tuple[Setting, ...], ...]:
    """Return the settings in groups of `per_page`, at most `most` groups."""
    cut = [tuple(settings[at : at + per_page]) for at in range(0, len(settings), per_page)]
    return tuple(cut[:most])


def page_key(key: str, page: int) -> str:
    """Return `key`, `key-2`, `key-3`."""
    return key if page == 0 else f"{key}-{page + 1}"


def page_title(title: str, page: int, of: int) -> str:
    """Return the title, with the number of the page where there are several."""
    return title if of == 1 else f"{title} ({page + 1} of {of})"
