"""How are many boxes asked for the same, and how does one know what came of it?

Each box gets a request of its own: signed for the moment, with an id that follows from the
rollout's and the box's name, so that a later `--cancel ROLLOUT` needs no notes of ours to know
which id each box was given. The answers are retained, so that a connection may break meanwhile.
Who is asked when is decided in core/rollout.py; here it is said and heard.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ValidationError

from edgeagent.core.rollout import Answer, Limits, Rollout, rollout
from edgeagent.errors import UnreachableError, UsageError
from edgeagent.fleet.choosing import Candidate, named
from edgeagent.fleet.client import DENIED, FIRST_FAILURE, NOBODY_LISTENS, Arrived, Letter
from edgeagent.fleet.line import Back, Event, Line, Lost, Taken
from edgeagent.fleet.places import Layout
from edgeagent.publish.command_messages import CmdCancel, CmdSweep
from edgeagent.publish.messages import Ack
from edgeagent.publish.signature import Key, signed
from edgeagent.publish.topics import Identity

LONGEST_S = 24 * 3600
_MOST_ACK_BYTES = 65_536
_LOST_FOR_GOOD_S = 300.0
_LOOK_S = 0.25

End = Literal["over", "interrupted", "lost"]


@dataclass(frozen=True)
class Sweeps:
    """Run a profile, or say whether it would be."""

    profile: str
    override: Mapping[str, int | list[int]] = field(default_factory=dict)
    mode: Literal["run", "dry_run"] = "run"
    operation: Literal["sweep"] = "sweep"

    def fields(self, _name: str) -> dict[str, object]:
        """What the request to a box says besides its head."""
        said: dict[str, object] = {"profile": self.profile}
        if self.override:
            said["override"] = dict(self.override)
        if self.mode == "dry_run":
            said["dry_run"] = True
        return said


@dataclass(frozen=True)
class Cancels:
    """Take back what a rollout has asked for."""

    of: uuid.UUID
    operation: Literal["cancel"] = "cancel"

    def fields(self, name: str) -> dict[str, object]:
        """What the request to a box says besides its head."""
        return {"target": id_of(self.of, name)}


@dataclass(frozen=True)
class Errand:
    """What is asked, in whose name, and for how long it holds."""

    what: Sweeps | Cancels
    issuer: str
    places: Layout
    expires_s: int = 3600
    key: Key | None = None
    rollout: uuid.UUID = field(default_factory=uuid.uuid4)

    def document(self, name: str, now_ms: int) -> dict[str, object]:
        """The request to one box, as it is sent at this moment."""
        document: dict[str, object] = {
            "schema": f"edgeagent.cmd.{self.what.operation}/1",
            "id": id_of(self.rollout, name),
            "issued_at": now_ms,
            "expires_at": now_ms + self.expires_s * 1000,
            "issuer": self.issuer,
            **self.what.fields(name),
        }
        if self.key is not None:
            document["sig"] = signed(document, self.key)
        return document

    def topic(self, identity: Identity, kind: Literal["cmd", "ack"]) -> str:
        """Where a box hears the request, or answers it."""
        request = id_of(self.rollout, named(identity))
        return self.places.topic(
            identity.site, identity.node, f"{kind}/{self.what.operation}/{request}"
        )


def id_of(rollout_id: uuid.UUID, name: str) -> str:
    """The id of the request to the box SITE/NODE, in small letters."""
    return str(uuid.uuid5(rollout_id, name))


def checked(errand: Errand) -> Errand:
    """Return the errand if boxes can read its requests. Raises UsageError."""
    if not 1 <= errand.expires_s <= LONGEST_S:
        raise UsageError(
            f"a request cannot be valid for {errand.expires_s} s: say 1 to {LONGEST_S} (24 h)"
        )
    model = CmdSweep if errand.what.operation == "sweep" else CmdCancel
    try:
        model.model_validate(errand.document("site/node", 0))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the request"
        raise UsageError(f"{where} cannot be asked for: {first['msg']}") from error
    return errand


# ---------------------------------------------------------------- asking and following


@dataclass(frozen=True)
class Outcome:
    """How it ended, and how each box stands."""

    end: End
    state: Rollout
    reason: str | None = None


Watch = Callable[[Rollout], None]


def begun(boxes: Sequence[Candidate], limits: Limits) -> Rollout:
    """A rollout over these boxes; who is not connected is left out, and said so."""
    skipped = {box.name: _away(box) for box in boxes if box.state != "online"}
    return rollout((box.name for box in boxes), skipped, limits)


def _away(box: Candidate) -> str:
    return "offline" if box.state == "offline" else "never told whether it is online"


def pursue(
    line: Line, errand: Errand, boxes: Sequence[Candidate], state: Rollout, watch: Watch
) -> Outcome:
    """Ask and follow until every box is over or given up. Ctrl-C ends it, and is an outcome."""
    pursuit = _Pursuit(line, errand, {box.name: box.identity for box in boxes}, state, watch)
    try:
        return pursuit.run()
    except KeyboardInterrupt:
        return Outcome("interrupted", pursuit.state.halt("interrupted"))
    except UnreachableError as error:
        # Not raised on: who was asked has to be told.
        return Outcome("lost", pursuit.state.halt("the broker was lost"), str(error))


@dataclass
class _Pursuit:
    line: Line
    errand: Errand
    who: Mapping[str, Identity]
    state: Rollout
    watch: Watch
    by_topic: dict[str, str] = field(default_factory=dict)
    lost: tuple[float, str] | None = None

    def run(self) -> Outcome:
        self.watch(self.state)
        while True:
            now_ms = _now_ms()
            if self.lost is None:
                self._move(self.state.aged(now_ms))
                self._ask(now_ms)
            elif now_ms / 1000 - self.lost[0] > _LOST_FOR_GOOD_S:
                return Outcome("lost", self.state.halt("the broker was lost"), self.lost[1])
            if self.state.over:
                return Outcome("over", self.state)
            wait_ms = self.state.next_ms(now_ms)
            wait_s = _LOOK_S if wait_ms is None else min(_LOOK_S, wait_ms / 1000)
            for event in self.line.wait(wait_s):
                self._hear(event)

    def _move(self, state: Rollout) -> None:
        if state is not self.state:
            self.state = state
            self.watch(state)

    def _ask(self, now_ms: int) -> None:
        due = self.state.due(now_ms)
        if not due:
            return
        acks = {self.errand.topic(self.who[name], "ack"): name for name in due}
        self.by_topic.update(acks)
        self.line.listen(acks)
        for name in due:
            document = self.errand.document(name, time.time_ns() // 1_000_000)
            payload = json.dumps(document, separators=(",", ":")).encode()
            topic = self.errand.topic(self.who[name], "cmd")
            self.line.say(name, Letter(topic, payload, expiry_s=self.errand.expires_s))
            self._move(self.state.asked(name, now_ms))

    def _hear(self, event: Event) -> None:
        if isinstance(event, Arrived):
            name = self.by_topic.get(event.topic)
            answer = None if name is None else answer_in(event.payload)
            if name is not None and answer is not None:
                self._move(self.state.answered(name, answer))
        elif isinstance(event, Taken):
            self._move(_taken(self.state, event))
        elif isinstance(event, Lost):
            self.lost = (_now_ms() / 1000, event.text)
        elif isinstance(event, Back):
            self.lost = None
            self._move(self.state.deaf(int(event.away_s * 1000)))


def answer_in(payload: bytes) -> Answer | None:
    """What an ack says; None for one that cannot be read."""
    if len(payload) > _MOST_ACK_BYTES:
        return None
    try:
        ack = Ack.model_validate_json(payload)
    except ValidationError:
        return None
    progress = None if ack.progress is None else float(ack.progress)
    return Answer(ack.state, ack.code, ack.reason, ack.run, progress)


def _taken(state: Rollout, event: Taken) -> Rollout:
    if event.code == NOBODY_LISTENS:
        return state.undelivered(
            event.token,
            "nobody listens: commands are off on the box, or it has left since its last status",
        )
    if event.code == DENIED:
        return state.undelivered(
            event.token, "the broker denies us its cmd topic: use an operator's certificate"
        )
    if event.code >= FIRST_FAILURE:
        return state.undelivered(event.token, f"the broker took it not (reason {event.code:#04x})")
    return state


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


# ---------------------------------------------------------------- what came of it

SCHEMA = "edgeagent.fleet.request/1"


def document_of(errand: Errand, outcome: Outcome) -> dict[str, Any]:
    """What came of it, as JSON says it."""
    return {
        "schema": SCHEMA,
        "rollout": str(errand.rollout),
        "operation": errand.what.operation,
        "profile": errand.what.profile if isinstance(errand.what, Sweeps) else None,
        "dry_run": isinstance(errand.what, Sweeps) and errand.what.mode == "dry_run",
        "end": outcome.end,
        "verdict": outcome.state.verdict,
        "halted": outcome.state.halted,
        "tally": dict(sorted(outcome.state.tally.items())),
        "boxes": [
            {
                "site": name.split("/")[0],
                "node": name.split("/")[1],
                "id": None if box.asked_ms is None else id_of(errand.rollout, name),
                "stage": box.stage,
                "code": box.code,
                "reason": box.reason,
                "run": None if box.answer is None else box.answer.run,
            }
            for name, box in outcome.state.boxes.items()
        ],
    }


def exit_status(outcome: Outcome) -> int:
    """0 all succeeded, 75 all said "later", 130 interrupted, 69 the broker was lost, else 1."""
    if outcome.end == "interrupted":
        return 130
    if outcome.end == "lost":
        return 69
    return {"succeeded": 0, "later": 75, "failed": 1}[outcome.state.verdict]
