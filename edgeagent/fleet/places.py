"""Which box and which site does a topic name, and what must a collector subscribe to?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from edgeagent.errors import UsageError

DEFAULT_ROOT = "edgeagent/v1"

_ID = re.compile(r"[a-z0-9][a-z0-9-]{1,62}\Z")
_LEVEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")


@dataclass(frozen=True)
class Place:
    """Where a message came from: `site` is None where the topics do not name it."""

    site: str | None
    node: str
    below: str


@dataclass(frozen=True)
class Layout:
    """The fleet's topics: levels, of which "{site}" and "{node}" stand for any."""

    levels: tuple[str, ...]

    def place(self, topic: str) -> Place | None:
        """Return where a topic belongs, or None for one of nobody's."""
        parts = topic.split("/", len(self.levels))
        if len(parts) <= len(self.levels) or not parts[-1]:
            return None
        found: dict[str, str] = {}
        for level, part in zip(self.levels, parts, strict=False):
            if level in {"{site}", "{node}"}:
                if not _ID.match(part):
                    return None
                found[level] = part
            elif level != part:
                return None
        return Place(found.get("{site}"), found["{node}"], parts[-1])

    def topic(self, site: str, node: str, below: str) -> str:
        """Return a topic of one box; "+" in place of a name makes it a filter."""
        names = {"{site}": site, "{node}": node}
        return "/".join([*(names.get(level, level) for level in self.levels), below])

    def receipts(self, site: str, node: str) -> str:
        """Return the topic of a box's receipts."""
        return self.topic(site, node, "rx")

    def all(self, below: str) -> str:
        """Return the filter for the same topic of every box."""
        return self.topic("+", "+", below)

    def rows(self, share: str | None) -> tuple[str, ...]:
        """Return the filters of what is stored; members of a `share` get each message once."""
        head = f"$share/{share}/" if share else ""
        return tuple(head + self.all(below) for below in ("m/#", "r/#", "e/#"))

    def state(self) -> tuple[str, ...]:
        """Return the filters of what is retained; a shared subscription never gets these."""
        return tuple(self.all(below) for below in ("status", "meta/node"))

    @property
    def receipts_filter(self) -> str:
        """The filter of what boxes have been told."""
        return self.all("rx")


def layout(root: str) -> Layout:
    """Return the layout for a root, such as "edgeagent/v1", or a template with {node} in it.

    UsageError for one that could not be subscribed to.
    """
    text = root.strip("/")
    template = text if "{node}" in text else f"{text}/{{site}}/{{node}}"
    levels = tuple(template.split("/"))
    for level in levels:
        if level not in {"{site}", "{node}"} and not _LEVEL.match(level):
            raise UsageError(
                f'--topic-root is "{root}": the level "{level}" has to be {{site}}, {{node}} or '
                "letters, digits, dots, - and _"
            )
    if levels.count("{node}") != 1 or levels.count("{site}") > 1:
        raise UsageError(f'--topic-root is "{root}": {{node}} and {{site}} stand in it once')
    return Layout(levels)


def kind(below: str) -> Literal["status", "meta", "rx", "row"] | None:
    """Return what a topic below the box's prefix carries, None for what we did not ask for."""
    if below == "status":
        return "status"
    if below == "meta/node":
        return "meta"
    if below == "rx":
        return "rx"
    return "row" if below[:2] in {"m/", "r/", "e/"} else None
