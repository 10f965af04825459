"""Which boxes are asked now, which wait, and when is enough enough?

A request for many boxes is told to one after the other. A box has a stage, which only these events
move on: it was asked, the broker would not take the request, it answered, time has passed. From
the stages follows what is due. Three promises:

- never are more boxes in flight (asked, and neither over nor given up) than `at_once`, unless one
  that was given up comes back, and then nobody else is asked until there is room again;
- two boxes are never asked within `stagger_ms`;
- after `stop_after` failures, or a halt, nobody else is asked; who was asked is followed on.

An answer that says "later" (busy, outside of its window, …) is no failure of the box, and does not
count for stopping. An end stays: what comes after it, such as the same answer again, changes
nothing. Silence is not an end: a box that was given up may still answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

AckState = Literal[
    "accepted", "running", "succeeded", "failed", "cancelled", "interrupted", "rejected"
]
ACK_STATES: tuple[AckState, ...] = get_args(AckState)
Stage = Literal[
    "waiting",  # its turn has not come
    "asked",  # the request is out, nothing was heard yet
    "accepted",
    "running",
    "succeeded",
    "failed",
    "cancelled",
    "interrupted",
    "rejected",
    "silent",  # given up: no answer in time; the request is still out
    "overdue",  # given up: not over in time; it still runs as far as we know
    "undelivered",  # the broker did not take it, or has nobody who listens
    "skipped",  # never asked
]
IN_FLIGHT: frozenset[Stage] = frozenset({"asked", "accepted", "running"})
ENDED: frozenset[Stage] = frozenset(
    {"succeeded", "failed", "cancelled", "interrupted", "rejected", "undelivered", "skipped"}
)
GIVEN_UP: frozenset[Stage] = frozenset({"silent", "overdue"})
_RANK: Mapping[str, int] = {"asked": 0, "accepted": 1, "running": 2}

LATER: frozenset[str] = frozenset({"busy", "cooldown", "quota", "window", "thermal", "spool_full"})
"""Codes by which a box says that it would, at another time."""

Verdict = Literal["succeeded", "failed", "later"]


@dataclass(frozen=True)
class Limits:
    """How carefully many boxes are asked."""

    at_once: int = 10
    stagger_ms: int = 1_000
    stop_after: int | None = 3
    """Failures; None never stops."""
    answer_within_ms: int = 90_000
    end_within_ms: int = 6 * 3_600_000
    """Both from the asking."""

    def __post_init__(self) -> None:
        stop_after = 1 if self.stop_after is None else self.stop_after
        if self.at_once < 1 or self.stagger_ms < 0 or stop_after < 1:
            raise ValueError("at_once and stop_after are at least 1, stagger_ms at least 0")


@dataclass(frozen=True)
class Answer:
    """What a box said about its request."""

    state: AckState
    code: str | None = None
    reason: str | None = None
    run: str | None = None
    progress: float | None = None
    """0 to 1."""


@dataclass(frozen=True)
class Box:
    """How one box stands."""

    stage: Stage = "waiting"
    asked_ms: int | None = None
    answer: Answer | None = None
    reason: str | None = None
    """Why it is skipped or undelivered, else what the box itself said last."""

    @property
    def code(self) -> str | None:
        """The code of a refusal."""
        return None if self.answer is None else self.answer.code

    @property
    def later(self) -> bool:
        """Whether it said that it would at another time."""
        return self.stage in {"rejected", "failed"} and self.code in LATER

    @property
    def failed(self) -> bool:
        """Whether it counts towards stopping."""
        if self.stage in {"rejected", "failed"}:
            return not self.later
        return self.stage in {"interrupted", "undelivered"} or self.stage in GIVEN_UP


@dataclass(frozen=True)
class Rollout:
    """Every box by its name, in the order in which they are asked."""

    boxes: Mapping[str, Box]
    limits: Limits = Limits()
    last_asked_ms: int | None = None
    halted: str | None = None
    """Why nobody else is asked."""
    # kept beside the boxes because a thousand of them are asked about at every turn
    _in_flight: int = field(default=0, repr=False)

    # ------------------------------------------------------------ what is due

    def due(self, now_ms: int) -> tuple[str, ...]:
        """The boxes to ask now."""
        room = max(0, self.limits.at_once - self._in_flight)
        if self.halted is not None or not room or self._stagger_left(now_ms) > 0:
            return ()
        if self.limits.stagger_ms:
            room = 1
        return tuple(_first(room, self._at("waiting")))

    def next_ms(self, now_ms: int) -> int | None:
        """How long nothing is due as long as nothing is heard; None: for ever."""
        waits = [self._deadline(box) - now_ms for box in self.boxes.values() if _in_flight(box)]
        may_ask = self.halted is None and self._in_flight < self.limits.at_once
        if may_ask and any(self._at("waiting")):
            waits.append(self._stagger_left(now_ms))
        return max(0, min(waits)) if waits else None

    @property
    def over(self) -> bool:
        """Whether nothing is left to do: nobody waits, nobody is in flight."""
        return not self._in_flight and not any(self._at("waiting"))

    # ------------------------------------------------------------ what happens

    def asked(self, name: str, now_ms: int) -> Rollout:
        """The request to a waiting box has gone out. Raises ValueError for another stage."""
        if self.boxes[name].stage != "waiting":
            raise ValueError(f"{name} is {self.boxes[name].stage}, and is asked once")
        box = Box("asked", now_ms)
        return replace(self._with({name: box}), last_asked_ms=now_ms)

    def undelivered(self, name: str, reason: str) -> Rollout:
        """The broker did not take the request, or has nobody to give it to."""
        box = self.boxes[name]
        if box.stage != "asked":
            return self  # because a box that answered has heard it
        return self._with({name: replace(box, stage="undelivered", reason=reason)})

    def answered(self, name: str, answer: Answer) -> Rollout:
        """A box said how its request stands; a box that was not asked is none of ours."""
        box = self.boxes.get(name)
        if box is None or box.asked_ms is None:
            return self
        if box.stage in ENDED and box.stage != "undelivered":
            return self
        if _RANK.get(answer.state, 9) < _RANK.get(box.stage, 0):
            return self  # because "accepted" after "running" is an old one
        if box.stage == "overdue" and answer.state in IN_FLIGHT:
            return self._with(
                {name: replace(box, answer=answer)}
            )  # because it still takes too long
        return self._with(
            {name: replace(box, stage=answer.state, answer=answer, reason=answer.reason)}
        )

    def aged(self, now_ms: int) -> Rollout:
        """Time has passed: whoever took too long is given up."""
        late = {
            name: self._given_up(box)
            for name, box in self.boxes.items()
            if _in_flight(box) and now_ms >= self._deadline(box)
        }
        return self._with(late) if late else self

    def deaf(self, lasted_ms: int) -> Rollout:
        """We heard nothing for so long ourselves: it does not count against who was asked."""
        moved = {
            name: replace(box, asked_ms=(box.asked_ms or 0) + lasted_ms)
            for name, box in self.boxes.items()
            if box.stage == "asked"
        }
        return self._with(moved)

    def halt(self, reason: str) -> Rollout:
        """Nobody else is asked."""
        if self.halted is not None:
            return self
        skipped = {name: Box("skipped", reason=reason) for name in self._at("waiting")}
        return replace(self._placed(skipped), halted=reason)

    # ------------------------------------------------------------ what came of it

    @property
    def tally(self) -> Counter[Stage]:
        """How many boxes are at each stage."""
        return Counter(box.stage for box in self.boxes.values())

    @property
    def failures(self) -> int:
        """Boxes that count towards stopping."""
        return sum(box.failed for box in self.boxes.values())

    @property
    def out(self) -> tuple[str, ...]:
        """Who may still act on the request: in flight, or given up."""
        return tuple(
            name
            for name, box in self.boxes.items()
            if box.stage in IN_FLIGHT or box.stage in GIVEN_UP
        )

    @property
    def verdict(self) -> Verdict:
        """All succeeded; or all of them said "later"; or anything else."""
        boxes = self.boxes.values()
        if all(box.stage == "succeeded" for box in boxes):
            return "succeeded"
        return "later" if all(box.later for box in boxes) else "failed"

    # ------------------------------------------------------------ inside

    def _at(self, stage: Stage) -> Iterable[str]:
        return (name for name, box in self.boxes.items() if box.stage == stage)

    def _stagger_left(self, now_ms: int) -> int:
        if self.last_asked_ms is None:
            return 0
        return max(0, self.last_asked_ms + self.limits.stagger_ms - now_ms)

    def _deadline(self, box: Box) -> int:
        within = self.limits.end_within_ms
        if box.stage == "asked":
            within = min(within, self.limits.answer_within_ms)
        return (box.asked_ms or 0) + within

    def _given_up(self, box: Box) -> Box:
        if box.stage == "asked":
            seconds = self.limits.answer_within_ms / 1000
            return replace(box, stage="silent", reason=f"no answer within {seconds:g} s")
        seconds = self.limits.end_within_ms / 1000
        return replace(
            box, stage="overdue", reason=f"{box.stage}, and not over within {seconds:g} s"
        )

    def _placed(self, changed: Mapping[str, Box]) -> Rollout:
        boxes = {**self.boxes, **changed}
        return replace(self, boxes=boxes, _in_flight=sum(map(_in_flight, boxes.values())))

    def _with(self, changed: Mapping[str, Box]) -> Rollout:
        after = self._placed(changed)
        stop = self.limits.stop_after
        if stop is not None and after.halted is None and after.failures >= stop:
            return after.halt(f"stopped after {stop} failure{'s' if stop > 1 else ''}")
        return after


def rollout(names: Iterable[str], skipped: Mapping[str, str], limits: Limits) -> Rollout:
    """A rollout that has not begun; `skipped` says of some of them why they are not asked."""
    boxes = {
        name: Box("skipped", reason=skipped[name]) if name in skipped else Box() for name in names
    }
    return Rollout(boxes, limits)


def _in_flight(box: Box) -> bool:
    return box.stage in IN_FLIGHT


def _first(count: int, names: Iterable[str]) -> Iterable[str]:
    for number, name in enumerate(names):
        if number >= count:
            return
        yield name
