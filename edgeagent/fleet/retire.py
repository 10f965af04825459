"""What has a box that is gone left at the broker, and how is it cleared?

A broker keeps retained messages for ever: status, meta, answers, receipts, and whatever else stands
below the box's prefix. An empty retained message takes one away. That needs rights that nobody
else should have all the time: a user of its own (configs/mosquitto/edgeagent.acl, plant-janitor).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from edgeagent.errors import UnreachableError, UsageError
from edgeagent.fleet.choosing import Choice, candidate, filters, parsed
from edgeagent.fleet.client import DENIED, FIRST_FAILURE, Arrived, Letter
from edgeagent.fleet.line import Line, Lost, Taken
from edgeagent.fleet.places import Layout
from edgeagent.fleet.store import Store
from edgeagent.publish.topics import Identity

_QUIET_S = 1.5
_LONGEST_S = 30.0


@dataclass(frozen=True)
class Leftovers:
    """What a box has left retained; `state` is what its status says, None without one."""

    identity: Identity
    topics: tuple[str, ...]
    state: Literal["online", "offline"] | None


def leftovers(line: Line, places: Layout, node: str, site: str | None) -> Leftovers | None:
    """Look at the broker; None when nothing is there. Raises UsageError for two sites."""
    found = _retained(line, places, node, site)
    sites = {place.site for topic in found if (place := places.place(topic)) is not None}
    if len(sites) > 1:
        names = ", ".join(sorted(str(one) for one in sites))
        raise UsageError(f"{node} has left something at more than one site ({names}): say --site")
    if not found:
        return None
    status = next(
        (parsed(body) for topic, body in found.items() if _is_status(places, topic)), None
    )
    where = next(iter(sites)) or (status or {}).get("site") or site or "default"
    box = candidate(str(where), node, status, None)
    if box is None:
        raise UsageError(f'"{where}" is no name of a site, so that this is no box of ours')
    return Leftovers(box.identity, tuple(sorted(found)), box.state)


def _is_status(places: Layout, topic: str) -> bool:
    place = places.place(topic)
    return place is not None and place.below == "status"


def _retained(line: Line, places: Layout, node: str, site: str | None) -> Mapping[str, bytes]:
    line.listen(filters(places, Choice(site, (node,)), "#"))
    found: dict[str, bytes] = {}
    started = last = time.monotonic()
    while time.monotonic() - last < _QUIET_S and time.monotonic() - started < _LONGEST_S:
        for event in line.wait(0.1):
            if isinstance(event, Lost):
                raise UnreachableError(f"{event.text}: what is retained there cannot be known")
            if isinstance(event, Arrived) and event.retained and event.payload:
                found[event.topic] = event.payload
                last = time.monotonic()
    return found


def clear(line: Line, left: Leftovers, patience_s: float = 60.0) -> None:
    """Take every one of them away. Raises UnreachableError with what could not be cleared."""
    waiting = set(left.topics)
    for topic in left.topics:
        line.say(topic, Letter(topic, b"", "retained"))
    denied: list[str] = []
    deadline = time.monotonic() + patience_s
    while waiting and time.monotonic() < deadline:
        for event in line.wait(0.5):
            if isinstance(event, Taken):
                waiting.discard(event.token)
                if event.code >= FIRST_FAILURE:
                    denied.append(f"{event.token} ({_why(event.code)})")
    if denied or waiting:
        which = sorted(denied) or [f"{topic} (no answer)" for topic in sorted(waiting)]
        raise UnreachableError(
            f"{len(which)} of {len(left.topics)} retained messages could not be cleared, the first "
            f"is {which[0]}: use the certificate of a user who may write there (plant-janitor)"
        )


def _why(code: int) -> str:
    return "denied" if code == DENIED else f"reason {code:#04x}"


def mark_retired(store: Store, node: str, site: str | None, now_ms: int) -> bool:
    """Write down that a box is gone; False when the store does not know it."""
    if site is None:
        return store.change("UPDATE node SET retired_ms = ? WHERE node = ?", (now_ms, node)) > 0
    return (
        store.change(
            "UPDATE node SET retired_ms = ? WHERE node = ? AND site = ?", (now_ms, node, site)
        )
        > 0
    )
