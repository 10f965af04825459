"""Which boxes does an operator mean?

Boxes are known from the collector's store, or from what they have left retained at the broker:
status and meta/node. Both become the same `Candidate`. What a box says of itself is text of a
stranger: it is compared, and shown cleaned, and nothing else.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from edgeagent.errors import ConfigError, UsageError
from edgeagent.fleet.client import Arrived
from edgeagent.fleet.line import Line
from edgeagent.fleet.places import Layout
from edgeagent.fleet.store import Store
from edgeagent.publish.topics import Identity

WHERE: tuple[str, ...] = ("class", "engine", "health", "state", "version")
"""What boxes can be chosen by, besides site and node."""

_QUIET_S = 1.5
_LONGEST_S = 30.0
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Candidate:
    """A box that is known; None is what nobody said."""

    identity: Identity
    state: Literal["online", "offline"] | None = None
    facts: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The values of each word of WHERE."""

    @property
    def name(self) -> str:
        """SITE/NODE."""
        return named(self.identity)


@dataclass(frozen=True)
class Choice:
    """What the operator said; empty is everything."""

    site: str | None = None
    nodes: tuple[str, ...] = ()
    where: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def fits(self, box: Candidate) -> bool:
        """Whether a box is meant."""
        if self.site is not None and box.identity.site != self.site:
            return False
        if self.nodes and box.identity.node not in self.nodes:
            return False
        return all(box.facts.get(key, frozenset()) & wanted for key, wanted in self.where.items())


def named(identity: Identity) -> str:
    """SITE/NODE, by which a box goes in tables."""
    return f"{identity.site}/{identity.node}"


def parsed_where(texts: Iterable[str]) -> dict[str, frozenset[str]]:
    """Read KEY=VALUE[,VALUE]; each key once. Raises UsageError."""
    found: dict[str, frozenset[str]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        words = frozenset(word.strip() for word in values.split(",") if word.strip())
        if key not in WHERE or not equals or not words or key in found:
            raise UsageError(
                f'--where "{text}" cannot be used: write one of {", ".join(WHERE)}, each once, as '
                "in class=uma-nvgpu or engine=vllm,llamacpp"
            )
        found[key] = words
    return found


def chosen(boxes: Sequence[Candidate], choice: Choice, source: str) -> list[Candidate]:
    """The boxes that are meant, by name. Raises UsageError when there is none of one that is."""
    fitting = sorted((box for box in boxes if choice.fits(box)), key=lambda box: box.name)
    missing = set(choice.nodes) - {box.identity.node for box in boxes}
    if missing:
        raise UsageError(
            f"{source} knows no {' and no '.join(sorted(missing))}; it knows {_some(boxes)}"
        )
    if not fitting:
        raise UsageError(
            f"{source} knows {len(boxes)} boxes, and none is meant by what was given; "
            f"there are {_what_there_is(boxes)}"
        )
    return fitting


def _some(boxes: Sequence[Candidate]) -> str:
    names = sorted(box.identity.node for box in boxes)
    if not names:
        return "no box at all"
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""  # noqa: PLR2004  # because five are enough to see the pattern
    return ", ".join(names[:5]) + more


def _what_there_is(boxes: Sequence[Candidate]) -> str:
    sites = sorted({box.identity.site for box in boxes})
    classes = sorted({value for box in boxes for value in box.facts.get("class", ())})
    return (
        f"sites {', '.join(sites[:8]) or 'none'} and classes {', '.join(classes[:8]) or 'none'}"
        if boxes
        else "none at all: is the topic prefix right, and did a box ever connect?"
    )


# ---------------------------------------------------------------- topics


def filters(places: Layout, choice: Choice, below: str) -> list[str]:
    """Subscriptions that reach the boxes that are meant."""
    return [places.topic(choice.site or "+", node, below) for node in choice.nodes or ("+",)]


# ---------------------------------------------------------------- from the broker


def at_broker(line: Line, places: Layout, choice: Choice) -> list[Candidate]:
    """Every box in reach of the choice's subscriptions; waits until no more comes."""
    wanted = ("status", "meta/node")
    line.listen([one for below in wanted for one in filters(places, choice, below)])
    said: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    started = last = time.monotonic()
    while time.monotonic() - last < _QUIET_S and time.monotonic() - started < _LONGEST_S:
        if choice.nodes and sum(len(one) for one in said.values()) == 2 * len(choice.nodes):
            break
        for event in line.wait(0.1):
            if isinstance(event, Arrived) and _noted(event, places, said):
                last = time.monotonic()
    return [box for key, one in said.items() if (box := _candidate(key, one)) is not None]


def _noted(
    event: Arrived, places: Layout, said: dict[tuple[str, str], dict[str, Mapping[str, Any]]]
) -> bool:
    place = places.place(event.topic)
    document = parsed(event.payload)
    if place is None or document is None or place.below not in {"status", "meta/node"}:
        return False
    site = place.site if place.site is not None else document.get("site")
    if not isinstance(site, str):
        return False
    said.setdefault((site, place.node), {})[place.below] = document
    return event.retained


def parsed(payload: bytes) -> Mapping[str, Any] | None:
    """Read a JSON object; None for anything else, and for one of over a MiB."""
    if len(payload) > _MOST_BYTES:
        return None
    try:
        document = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _candidate(key: tuple[str, str], said: Mapping[str, Mapping[str, Any]]) -> Candidate | None:
    return candidate(key[0], key[1], said.get("status"), said.get("meta/node"))


def candidate(
    site: str, node: str, status: Mapping[str, Any] | None, meta: Mapping[str, Any] | None
) -> Candidate | None:
    """A box from what it says of itself; None for one whose name is no sound id."""
    try:
        identity = Identity(site, node)
    except ConfigError:
        return None
    status, meta = status or {}, meta or {}
    host, engines = meta.get("host"), meta.get("engines")
    listed = engines if isinstance(engines, list) else []
    kinds = [one.get("kind") for one in listed if isinstance(one, dict)]
    facts = {
        "class": _words(host.get("class") if isinstance(host, dict) else None),
        "engine": _words(*kinds),
        "health": _words(status.get("health")),
        "state": _words(status.get("state")),
        "version": _words(status.get("version"), meta.get("version")),
    }
    state = status.get("state")
    return Candidate(identity, state if state in {"online", "offline"} else None, facts)


def _words(*values: object) -> frozenset[str]:
    return frozenset(value for value in values if isinstance(value, str))


# ---------------------------------------------------------------- from the store


def in_store(store: Store) -> list[Candidate]:
    """Every box that the collector has seen and nobody has retired."""
    rows = store.query(
        "SELECT site, node, status, meta, class FROM node WHERE retired_ms IS NULL ORDER BY node"
    )
    found = []
    for site, node, status, meta, box_class in rows:
        box = candidate(site, node, _stored(status), _stored(meta))
        if box is None:
            continue
        if isinstance(box_class, str):
            box = Candidate(box.identity, box.state, {**box.facts, "class": _words(box_class)})
        found.append(box)
    return found


def _stored(text: object) -> Mapping[str, Any] | None:
    return parsed(text.encode()) if isinstance(text, str) else None
