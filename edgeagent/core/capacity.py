"""How many simultaneous requests does this box serve, and which number should be tried next?

A concurrency *holds* when at least 95 % of the requests keep the SLO in every repeat. The search
doubles until one does not, then halves the gap. The answer is the largest concurrency up to which
everything that was tried holds: one that does not hold ends it, whatever larger ones did, since
nobody can sell 8 places of which 4 are too many. Between `low` and `high` it depends on the repeat
or was not tried; `high` + 1 held in no repeat, or is out of bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

GOOD = 0.95
"""Of the requests of a repeat must keep the SLO."""

FINE = 16
"""A gap of less than a sixteenth of the answer is not worth another start."""

LimitedBy = Literal["slo", "memory", "slots", "range"]


@dataclass(frozen=True)
class Evaluation:
    """What was seen at one concurrency: of each repeat the share of good requests.

    None for a repeat that failed: it served nobody.
    """

    concurrency: int
    good_fractions: tuple[float | None, ...]

    @property
    def holds(self) -> bool:
        """Whether the SLO held in every repeat."""
        return bool(self.good_fractions) and all(map(_good, self.good_fractions))

    @property
    def holds_sometimes(self) -> bool:
        """Whether it held in a repeat."""
        return any(map(_good, self.good_fractions))


def _good(share: float | None) -> bool:
    return share is not None and share >= GOOD


@dataclass(frozen=True)
class Bounds:
    """What cannot be exceeded, None where it is not known."""

    range: int
    """The largest concurrency that may be tried at all."""
    memory: int | None = None
    """Slots that fit in memory."""
    slots: int | None = None
    """Slots of a server that somebody else started."""

    def limit(self) -> tuple[int, LimitedBy]:
        """The tightest one, and which it is."""
        bounds: list[tuple[int, LimitedBy]] = [(self.range, "range")]
        if self.slots is not None:
            bounds.append((self.slots, "slots"))
        if self.memory is not None:
            bounds.append((self.memory, "memory"))
        return min(bounds, key=lambda bound: bound[0])


@dataclass(frozen=True)
class Search:
    """What is known so far about one engine."""

    engine: str
    slo: Mapping[str, float | None]
    bounds: Bounds
    evaluations: tuple[Evaluation, ...] = ()


@dataclass(frozen=True)
class Capacity:
    """How many simultaneous requests are served within the SLO; 0 when not even one is."""

    engine: str
    slo: Mapping[str, float | None]
    concurrency: int
    low: int
    high: int
    """Everything tried up to `low` holds in every repeat; `high` + 1 holds in none."""
    limited_by: LimitedBy
    repeats: int = 0
    """The fewest repeats of a concurrency that the answer rests on."""
    reason: str | None = None
    text: str = ""
    evaluations: tuple[Evaluation, ...] = field(default=())


def next_concurrency(search: Search) -> int | None:
    """The concurrency to try next; None when the answer is known well enough."""
    limit, _ = search.bounds.limit()
    holds, fails = _gap(search)
    if holds >= limit:
        return None
    if fails is None:
        return min(limit, max(1, 2 * holds))
    if fails - holds <= max(1, holds // FINE):
        return None
    return (holds + fails) // 2


def capacity(search: Search) -> Capacity | None:
    """The answer so far; None before anything was tried."""
    known = _known(search)
    if not known:
        return None
    limit, by = search.bounds.limit()
    holds, fails = _gap(search)
    hopeless = [
        one.concurrency for one in known if one.concurrency > holds and not one.holds_sometimes
    ]
    found = Capacity(
        engine=search.engine,
        slo=search.slo,
        concurrency=holds,
        low=holds,
        high=min([limit, *(number - 1 for number in hopeless)]),
        limited_by="slo" if fails is not None else by,
        repeats=min(len(one.good_fractions) for one in known),
        reason=_doubt(known, holds),
        evaluations=known,
    )
    return replace(found, text=sentence(found))


def sentence(found: Capacity) -> str:
    """The answer in words."""
    if not found.concurrency:
        said = f"{found.engine} does not keep the SLO even for one request at a time"
    else:
        said = f"{found.engine} serves {found.concurrency} at once within the SLO"
        if found.high > found.concurrency:
            said += f" (at most {found.high})"
    ends: Mapping[LimitedBy, str] = {
        "slo": "",
        "memory": "; more do not fit in memory",
        "slots": "; the server has no more slots",
        "range": "; more were not tried",
    }
    doubt = f"; {found.reason}" if found.reason else ""
    return f"{said}{ends[found.limited_by]}{doubt}"


def _known(search: Search) -> tuple[Evaluation, ...]:
    """What was tried within the bounds, by concurrency; repeats of the same one belong together."""
    limit, _ = search.bounds.limit()
    tried: dict[int, tuple[float | None, ...]] = {}
    for one in search.evaluations:
        if 1 <= one.concurrency <= limit:
            tried[one.concurrency] = (*tried.get(one.concurrency, ()), *one.good_fractions)
    return tuple(Evaluation(number, tried[number]) for number in sorted(tried))


def _gap(search: Search) -> tuple[int, int | None]:
    """Up to where everything tried holds, and the first that does not; None when all do."""
    holds = 0
    for one in _known(search):
        if not one.holds:
            return holds, one.concurrency
        holds = one.concurrency
    return holds, None


def _doubt(known: Sequence[Evaluation], holds: int) -> str | None:
    above = [one.concurrency for one in known if one.concurrency > holds and one.holds]
    if above:
        return (
            f"it held at {above[-1]} but not at a smaller concurrency: the box is not steady, "
            "repeat more often"
        )
    if min(len(one.good_fractions) for one in known) == 1:
        return "one repeat only: the next one may differ"
    return None
