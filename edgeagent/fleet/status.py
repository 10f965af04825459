"""How is each box, and which of them needs somebody?

Values in, values out: `standing` turns what the database says of a box into a line, `document` into
JSON. The line is the same in the table, in the live view and on the page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from edgeagent.fleet.queries import Box, Spool

SCHEMA = "edgeagent.fleet.status/1"

SILENT_S = 15 * 60
"""A box tells how it is every five minutes: a status older than three of them says nothing."""

State = Literal["online", "offline", "unknown"]
Weight = Literal["bad", "care"]

CERT_CARE_DAYS, CERT_BAD_DAYS = 30, 7
CLOCK_CARE_S = 60
OLD_BACKLOG_S = 3600
_DAY_S = 86_400
_OFFLINE = {"lwt": "the connection broke", "shutdown": "shut down", "update": "being updated"}


@dataclass(frozen=True)
class Trouble:
    """Something about a box that somebody should look at."""

    weight: Weight
    text: str


@dataclass(frozen=True)
class Line:
    """A box at this moment."""

    box: Box
    state: State
    age_s: float | None
    """Since anything came from it."""
    status_age_s: float | None
    engines: tuple[str, ...]
    """What was measured last; what the box is set up for where nothing was."""
    cert_days: float | None
    result_age_s: float | None
    troubles: tuple[Trouble, ...] = ()

    @property
    def weight(self) -> Weight | None:
        """The worst of its troubles; None for a box that is well."""
        weights = {trouble.weight for trouble in self.troubles}
        return "bad" if "bad" in weights else "care" if weights else None


def lines(boxes: Sequence[Box], now_ms: int) -> list[Line]:
    """A line for each box, in their order."""
    return [standing(box, now_ms) for box in boxes]


def standing(box: Box, now_ms: int) -> Line:
    """How a box is, by the clock of whoever asks."""
    last = box.last
    line = Line(
        box=box,
        state=_state(box, now_ms),
        age_s=_since(box.last_rx_ms, now_ms),
        status_age_s=_since(box.status_ms, now_ms),
        engines=(last.engines if last else ()) or box.configured,
        cert_days=_days(box.cert_not_after_ms, now_ms),
        result_age_s=_since(last.at_ms if last else None, now_ms),
    )
    return replace(line, troubles=tuple(_troubles(line)))


def _state(box: Box, now_ms: int) -> State:
    """Whether it is there. Offline stays: who said goodbye, or lost the line, sends no status."""
    if box.state == "offline":
        return "offline"
    silent = _since(box.status_ms, now_ms)
    return (
        "online"
        if box.state == "online" and silent is not None and silent <= SILENT_S
        else "unknown"
    )


def _since(then_ms: int | None, now_ms: int) -> float | None:
    return None if then_ms is None else max(0, now_ms - then_ms) / 1000


def _days(then_ms: int | None, now_ms: int) -> float | None:
    return None if then_ms is None else (then_ms - now_ms) / 1000 / _DAY_S


def _troubles(line: Line) -> Iterator[Trouble]:
    box = line.box
    yield from _absence(line)
    if line.cert_days is not None and line.cert_days <= CERT_CARE_DAYS:
        yield _certificate(line.cert_days)
    yield from _spool(box.spool)
    yield from _clock(box)
    if box.last is not None and box.last.status in {"failed", "partial"}:
        yield Trouble("care", f"its last run is {box.last.status}")
    for said in box.troubles:
        yield Trouble("care", said)


def _absence(line: Line) -> Iterator[Trouble]:
    reason = line.box.reason or ""
    if line.state == "offline":
        words = _OFFLINE.get(reason, "it said so")
        yield Trouble("bad" if reason == "lwt" else "care", f"offline: {words}")
    elif line.state == "unknown":
        yield Trouble("bad", _silence(line.status_age_s))


def _spool(spool: Spool) -> Iterator[Trouble]:
    if spool.evicted:
        yield Trouble("bad", f"{spool.evicted:,} messages were given up for lack of room")
    if spool.parked:
        yield Trouble("care", f"{spool.parked:,} messages are parked: the broker refuses them")
    if spool.oldest_age_s is not None and spool.oldest_age_s > OLD_BACKLOG_S:
        yield Trouble("care", f"its oldest waiting message is {age(spool.oldest_age_s)} old")


def _clock(box: Box) -> Iterator[Trouble]:
    if box.clk == "unsync":
        yield Trouble("care", "its clock is not synchronised")
    if box.lag_ms is not None and abs(box.lag_ms) > CLOCK_CARE_S * 1000:
        side = "behind" if box.lag_ms > 0 else "ahead"
        yield Trouble("care", f"its clock is {age(abs(box.lag_ms) / 1000)} {side}")


def _silence(seconds: float | None) -> str:
    return "it never told its status" if seconds is None else f"no status for {age(seconds)}"


def _certificate(days: float) -> Trouble:
    if days < 0:
        return Trouble("bad", f"its certificate ended {age(-days * _DAY_S)} ago")
    return Trouble(
        "bad" if days <= CERT_BAD_DAYS else "care", f"its certificate ends in {age(days * _DAY_S)}"
    )


_STEPS = ((_DAY_S, "d"), (3600, "h"), (60, "min"), (1, "s"))


def age(seconds: float) -> str:
    """A time as people say it, rounded down: `90 s`, `12 min`, `27 h`, `9 d`."""
    size, unit = next(((size, unit) for size, unit in _STEPS if seconds >= 2 * size), _STEPS[-1])
    return f"{int(seconds // size):,} {unit}"


def short_version(name: str) -> str:
    """A version without what a build adds in brackets."""
    return name.partition(" (")[0]


def worst_first(line: Line) -> tuple[int, int, str, str]:
    """The order of a table: boxes with troubles first, then by site and name."""
    place = {"bad": 0, "care": 1, None: 2}[line.weight]
    return place, -len(line.troubles), line.box.site, line.box.node


def document(all_lines: Sequence[Line], now_ms: int) -> dict[str, object]:
    """The table as JSON. Times are milliseconds since 1970, ages seconds; null is not known."""
    return {
        "schema": SCHEMA,
        "at_ms": now_ms,
        "counts": counts(all_lines),
        "boxes": [_document(line) for line in all_lines],
    }


def counts(all_lines: Sequence[Line]) -> dict[str, int]:
    """How many boxes are in which state, and how many have a trouble."""
    found = {"boxes": len(all_lines), "online": 0, "offline": 0, "unknown": 0, "troubled": 0}
    for line in all_lines:
        found[line.state] += 1
        found["troubled"] += line.weight is not None
    return found


def _document(line: Line) -> dict[str, object]:
    box, last = line.box, line.box.last
    return {
        "node": box.node,
        "site": box.site,
        "class": box.box_class,
        "state": line.state,
        "reason": box.reason,
        "age_s": line.age_s,
        "last_rx_ms": box.last_rx_ms,
        "version": box.version,
        "engines": list(line.engines),
        "spool": {
            "rows": box.spool.rows,
            "bytes": box.spool.bytes,
            "oldest_age_s": box.spool.oldest_age_s,
            "parked": box.spool.parked,
            "evicted": box.spool.evicted,
        },
        "last_result": None
        if last is None
        else {"run_id": last.run_id, "status": last.status, "at_ms": last.at_ms},
        "cert_not_after_ms": box.cert_not_after_ms,
        "cert_days": line.cert_days,
        "clk": box.clk,
        "lag_ms": box.lag_ms,
        "weight": line.weight,
        "troubles": [{"weight": one.weight, "text": one.text} for one in line.troubles],
    }
