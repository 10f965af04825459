"""What becomes of a request, from its bytes to its last answer?

    message ─ received ─▶ request ─ judge ─▶ state ─ on the disk ─▶ answer ─▶ act

A state is on the disk before anything is done about it, so that no kill makes one id run twice
(docs/decisions/0015). Requests of people and timers on the box take the same way from `judge` on.
Everything here runs in one thread, the daemon's; nothing of a message reaches what is called here
but the words and numbers that the wire and the policy have let through.

A spool that cannot be written holds nothing up for good: a request that it does not take is
refused, an end that it does not take is told later, and an event is told to the log in any case.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from edgeagent.core import commands
from edgeagent.core.canonical import digest
from edgeagent.core.commands import (
    FINAL,
    Accepted,
    Cancel,
    Command,
    CommandState,
    Moment,
    Note,
    Rejected,
    Resync,
    Situation,
    Step,
    Sweep,
)
from edgeagent.core.delivery import Entry, Stamp
from edgeagent.core.policy import Guards, Policy
from edgeagent.errors import ConfigError, EdgeAgentError
from edgeagent.publish import command_rows as rows
from edgeagent.publish.command_rows import Said
from edgeagent.publish.commands import Arrived, Refused, Request, received
from edgeagent.publish.signature import Key
from edgeagent.publish.spool import Spool
from edgeagent.publish.spool_commands import CommandState as Stored
from edgeagent.publish.topics import Topics
from edgeagent.publish.wire import Command as Message
from edgeagent.service import command_answers as answers
from edgeagent.service.acks import Acks

_MOST_UNSAID = 200


class Outlet(Protocol):
    """Where answers go."""

    def announce(self, below: str, payload: bytes, expiry_s: int | None = None) -> None:
        """Publish a retained document; empty bytes clear it."""
        ...

    def record(self, entry: Entry) -> None:
        """Put an event into the spool; raises EdgeAgentError."""
        ...

    def stored(self, command: Message) -> None:
        """Say that a command is stored."""
        ...

    def again(self) -> None:
        """Say that rows of the spool are to go once more."""
        ...


class Acting(Protocol):
    """What the daemon does on behalf of a command. None of it waits."""

    def new_name(self) -> str:
        """Return the name of a run that begins now."""
        ...

    def begin_sweep(self, name: str, sweep: Sweep, outcome: Accepted) -> None:
        """Begin a sweep as the run of this name; raises EdgeAgentError."""
        ...

    def stop_sweep(self) -> None:
        """End the sweep that runs."""
        ...

    def tell_meta(self) -> None:
        """Publish again what this box is and can do."""
        ...


class Seeing(Protocol):
    """What the daemon knows at the moment of asking."""

    def policies(self, origin: Literal["plant", "box"]) -> tuple[Policy, ...]:
        """Return what all has to allow a command from there."""
        ...

    def key(self) -> Key | None:
        """Return the key of signatures, None where none is wanted; raises ConfigError."""
        ...

    def situation(self) -> Situation:
        """Return the moment at which a command is judged; raises EdgeAgentError."""
        ...

    def unwatched(self) -> str | None:
        """Return why nobody can say whether the box is idle; None when it can be said."""
        ...

    def stamp(self) -> Stamp:
        """Return now."""
        ...


@dataclass
class _Pending:
    """A command that is not over."""

    state: CommandState
    said: Said
    command: Command
    told_ms: int | None = None


Watcher = Callable[[CommandState], None]
Tell = Callable[[str, Mapping[str, object]], None]


class Commander:
    """See the module."""

    def __init__(
        self,
        spool: Spool,
        topics: Topics,
        outlet: Outlet,
        seeing: Seeing,
        acting: Acting,
        tell: Tell,
    ) -> None:
        """`tell` writes to the log: an event's name and its fields."""
        self._spool, self._topics, self._outlet = spool, topics, outlet
        self._seeing, self._acting, self._log = seeing, acting, tell
        self._recovered: Literal["no", "yes"] = "no"
        self._recent_ms: list[int] = []
        self._dropped = 0
        self._running: _Pending | None = None
        self._waiting: _Pending | None = None
        self._stop_wanted: Literal["no", "cancelled"] = "no"
        self._unsettled: list[tuple[_Pending, Step, Note]] = []
        self._unsaid: deque[Entry] = deque(maxlen=_MOST_UNSAID)
        self._acks = Acks(spool, outlet, lambda: seeing.stamp().ts_ms, tell)
        self._watchers: dict[str, list[Watcher]] = {}

    @property
    def running(self) -> CommandState | None:
        """The sweep that runs."""
        return None if self._running is None else self._running.state

    @property
    def waiting(self) -> int:
        """How many accepted sweeps wait for their turn."""
        return 0 if self._waiting is None else 1

    def watch(self, command_id: str, watcher: Watcher) -> None:
        """Let somebody hear of every further state of a command."""
        self._watchers.setdefault(command_id, []).append(watcher)

    # ------------------------------------------------------------------------------ what comes in

    def recover(self, left: Callable[[str], None]) -> None:
        """Take up what an earlier life left: what ran was interrupted, what waited still waits.

        `left` is called with the name of each interrupted run. Nothing is obeyed before this has
        gone well once. Raises SpoolFull, SpoolUnavailable.
        """
        if self._recovered == "yes":
            return
        self._acks.recall()
        for stored in self._spool.unfinished():
            try:
                state, said, command = rows.state(stored), rows.said(stored), rows.command(stored)
            except ValueError as error:  # of a later version of ours
                self._log("command_not_understood", {"id": stored.id, "text": str(error)})
                continue
            self._take_up(state, said, command, left)
        self.announce_known()
        self._recovered = "yes"

    def _take_up(
        self,
        state: CommandState,
        said: Said,
        command: Command | Rejected,
        left: Callable[[str], None],
    ) -> None:
        changed = commands.recovered([state], self._stamp().ts_ms)
        if changed:
            if state.run is not None:
                left(state.run)
            self._keep(changed[0], said)
        elif isinstance(command, Sweep) and self._waiting is None:
            self._waiting = _Pending(state, said, command)
        elif self._waiting is None or self._waiting.state.id != state.id:
            self._step(state, said, "cancel", Note(reason="the agent ended before its turn"))

    def arrived(self, message: Message) -> None:
        """Take in a message from the broker; never raises EdgeAgentError."""
        verdict, self._recent_ms = commands.admitted(self._recent_ms, self._stamp().mono_ms)
        if verdict == "drop":
            self.overlooked(1)
            self._outlet.stored(message)
            return
        self._tell_dropped()
        outcome = self._received(message)
        try:
            self._refuse_before_recovery()
            if isinstance(outcome, Refused):
                self._refuse(outcome)
            elif outcome is not None:
                self._decide(outcome)
        except EdgeAgentError as error:
            # Not stored, so not obeyed: an id that nobody remembers could run twice.
            self._log("command_not_stored", {"text": str(error)})
            self._refuse_unstored(outcome, error)
        self._outlet.stored(message)

    def _refuse_before_recovery(self) -> None:
        if self._recovered == "no":
            raise EdgeAgentError("what an earlier life left could not be read yet: try again")

    def overlooked(self, count: int) -> None:
        """So many messages were let go without a look at them; only their number is told."""
        self._dropped += count

    def _received(self, message: Message) -> Request | Refused | None:
        try:
            key = self._seeing.key()
        except ConfigError as error:
            self._log("no_key", {"text": str(error)})
            key = Key(secrets.token_bytes(32))  # which no signature fits
        below = self._topics.below(message.topic) or ""
        retain: Literal["retained", "live"] = "retained" if message.retain == "retained" else "live"
        return received(Arrived(below, message.payload, retain), key)

    def asked(self, sweep: Sweep) -> CommandState:
        """Take in what somebody on the box asks for. Raises EdgeAgentError: nothing was begun."""
        self._refuse_before_recovery()
        said = {"profile": sweep.profile, **_document(sweep)}
        return self._decide(Request(sweep, digest(said), said))

    def _refuse(self, refused: Refused) -> None:
        operation, command_id = refused.operation, refused.id
        if operation is None or command_id is None:
            self._audit({"op": "unknown", "id": "unknown", "state": "rejected",
                         "code": refused.rejected.code})  # fmt: skip
            return
        again = commands.repeated(_seen(self._spool.seen(command_id)), None)
        if isinstance(again, CommandState):
            self._acks.say(again)
            return
        now_ms = self._stamp().ts_ms
        state = commands.rejected(command_id, operation, refused.rejected, now_ms)
        self._keep_first(state, Said("", {}, now_ms))

    def _refuse_unstored(self, outcome: Request | Refused | None, error: EdgeAgentError) -> None:
        if isinstance(outcome, Request):
            head, operation = outcome.command.head, outcome.command.operation
            now_ms = self._stamp().ts_ms
            refusal = Rejected("spool_full", f"the command cannot be stored: {error}")
            state = commands.rejected(head.id, operation, refusal, now_ms)
            self._acks.announce(state)

    def _decide(self, request: Request) -> CommandState:
        """Answer a request; return its state. Raises EdgeAgentError while nothing is stored."""
        command = request.command
        again = commands.repeated(_seen(self._spool.seen(command.head.id)), request.fingerprint)
        now_ms = self._stamp().ts_ms
        if isinstance(again, CommandState):
            self._acks.say(again)
            return again
        if isinstance(again, Rejected):
            told = commands.rejected(command.head.id, command.operation, again, now_ms)
            self._audit(answers.audit(told, command))
            return told
        outcome = self._judged(command, "arrival")
        state = commands.begin(command, outcome, now_ms)
        said = Said(request.fingerprint, request.document, now_ms, command.head.origin)
        self._keep_first(state, said, command)
        if not isinstance(outcome, Accepted):
            return state
        pending = _Pending(state, said, command)
        try:
            self._obey(pending, outcome)
        except EdgeAgentError as error:  # it is stored, so it is taken up in a later turn
            self._log("command_held_up", {"id": command.head.id, "text": str(error)})
        return pending.state

    def _judged(self, command: Command, moment: Moment) -> Accepted | Rejected:
        """What policy and situation say; the strictest of what has to allow it."""
        situation = self._seeing.situation()
        if moment == "turn":
            situation = replace(situation, waiting=0)  # it is not one of the others that wait
        policies = self._seeing.policies(command.head.origin)
        unwatched = self._seeing.unwatched() if isinstance(command, Sweep) else None
        if unwatched is not None:
            policies = tuple(replace(policy, guards=Guards()) for policy in policies)
        outcome = _strictest(
            [commands.judge(command, policy, situation, moment) for policy in policies]
        )
        if unwatched is None or isinstance(outcome, Rejected) or outcome.action == "wait":
            return outcome
        return Rejected("busy", unwatched)

    # ------------------------------------------------------------------------------- what is done

    def _obey(self, pending: _Pending, outcome: Accepted) -> None:
        command = pending.command
        if isinstance(command, Sweep) and outcome.action != "answer":
            self._waiting = pending
            if outcome.action == "start":
                self._begin(pending, outcome)
        else:
            try:
                note = self._answer(command)
            except EdgeAgentError as error:
                note = Note(code="spool_full", reason=str(error))
            self._settle(pending, "fail" if note.code else "succeed", note)

    def _answer(self, command: Command) -> Note:
        """Do what is done at once, and say how it went. Raises EdgeAgentError."""
        if isinstance(command, Cancel):
            return self._cancel(command)
        if isinstance(command, Resync):
            again = self._spool.resync(command.stream, command.first, command.last)
            self._outlet.again()
            return Note(reason=f"{again} rows are sent again")
        if isinstance(command, Sweep):
            return Note(reason="it would be run")
        if command.operation == "meta":
            self._acting.tell_meta()
            self.announce_known()
        return Note()

    def _cancel(self, command: Cancel) -> Note:
        known = self._spool.seen(command.of)
        of = None if known is None else rows.state(known)
        outcome = commands.cancelling(of, self._stamp().ts_ms)
        if outcome == "stop":
            self._stop_wanted = "cancelled"
            self._acting.stop_sweep()
            return Note(reason="the sweep is being ended")
        if outcome == "nothing" or known is None:
            return Note(reason="there was nothing to cancel")
        self._keep(outcome, rows.said(known))
        if self._waiting is not None and self._waiting.state.id == command.of:
            self._waiting = None
        return Note(reason="it was cancelled before its turn came")

    def _begin(self, pending: _Pending, outcome: Accepted) -> None:
        """Begin the sweep that waits. Raises EdgeAgentError; then it waits still."""
        assert isinstance(pending.command, Sweep)  # noqa: S101  # because nothing else is begun
        name = self._acting.new_name()
        started = self._advance(pending, "start", Note(run=name))
        self._waiting = None
        if started is None:
            return
        self._stop_wanted = "no"
        try:
            self._acting.begin_sweep(name, pending.command, outcome)
        except EdgeAgentError as error:
            self._settle(pending, "fail", Note(reason=str(error)))
            return
        self._running = pending

    # ---------------------------------------------------------------------------- what goes on

    def turn(self, sweep: Literal["none", "under way"]) -> None:
        """Tell what could not be told, and let the sweep that waits begin when its turn has come.

        Raises EdgeAgentError while the spool cannot be used.
        """
        self._tell_dropped()
        self._say_unsaid()
        while self._unsettled:
            self._advance(*self._unsettled[0])
            del self._unsettled[0]
        pending = self._waiting
        if pending is None or sweep == "under way" or self._seeing.unwatched() is not None:
            return
        outcome = self._judged(pending.command, "turn")
        if isinstance(outcome, Rejected):
            self._advance(pending, "fail", Note(code=outcome.code, reason=outcome.sentence))
            self._waiting = None
        elif outcome.action == "start":
            self._begin(pending, outcome)

    def progressed(self, done: int, total: int | None) -> None:
        """Say how far the sweep is, at most every ten seconds. Raises EdgeAgentError."""
        pending = self._running
        if pending is None or (done, total) == (pending.state.done, pending.state.total):
            return
        now_ms = self._stamp().mono_ms
        if commands.progress_is_due(pending.told_ms, now_ms):
            pending.told_ms = now_ms
            self._advance(pending, "progress", Note(done=done, total=total))

    def ended(self, step: Literal["succeed", "fail", "interrupt"], note: Note) -> None:
        """The sweep has ended, and its results are on the disk."""
        pending, self._running = self._running, None
        if pending is not None:
            cancelled = self._stop_wanted == "cancelled" and step != "succeed"
            self._settle(pending, "cancel" if cancelled else step, note)

    # ------------------------------------------------------------------------- keeping and telling

    def _stamp(self) -> Stamp:
        return self._seeing.stamp()

    def _settle(self, pending: _Pending, step: Step, note: Note) -> None:
        """Take a last step, now or as soon as the spool takes it."""
        try:
            self._advance(pending, step, note)
        except EdgeAgentError as error:
            self._log("command_not_settled", {"id": pending.state.id, "text": str(error)})
            self._unsettled.append((pending, step, note))

    def _advance(self, pending: _Pending, step: Step, note: Note) -> CommandState | None:
        """Take a step, if it can be taken: on the disk first, then told. Raises EdgeAgentError."""
        state = self._step(pending.state, pending.said, step, note, pending.command)
        if state is not None:
            pending.state = state
        return state

    def _step(
        self, state: CommandState, said: Said, step: Step, note: Note, of: Command | None = None
    ) -> CommandState | None:
        moved = commands.advance(state, step, self._stamp().ts_ms, note)
        if moved is not None:
            self._keep(moved, said, of)
        return moved

    def _keep_first(self, state: CommandState, said: Said, of: Command | None = None) -> None:
        row = rows.stored(state, said)
        if self._spool.remember(row.id, row.op, row.state, row.detail) == "again":
            raise EdgeAgentError(f"{state.id} is known already: another agent uses this spool")
        self._tell(state, of)

    def _keep(self, state: CommandState, said: Said, of: Command | None = None) -> None:
        row = rows.stored(state, said)
        self._spool.state(row.id, row.state, row.detail)
        self._tell(state, of)

    def _tell(self, state: CommandState, of: Command | None) -> None:
        """Tell of a state that is on the disk; that it cannot be told changes nothing about it."""
        self._acks.say(state)
        if state.state in FINAL or state.state == "accepted":
            self._audit(answers.audit(state, of))
        watchers = self._watchers.get(state.id, ())
        for watcher in watchers:
            watcher(state)
        if state.state in FINAL:
            self._watchers.pop(state.id, None)

    def _audit(self, value: Mapping[str, object]) -> None:
        self._log("command", value)
        self._unsaid.append(Entry("R", "e/audit", "edgeagent.audit/1", self._stamp(), value))
        try:
            self._say_unsaid()
        except EdgeAgentError as error:
            self._log("event_held_up", {"text": str(error)})

    def _say_unsaid(self) -> None:
        while self._unsaid:
            self._outlet.record(self._unsaid[0])
            self._unsaid.popleft()

    def _tell_dropped(self) -> None:
        """Say once after a flood how many messages were not looked at."""
        over = commands.admitted(self._recent_ms, self._stamp().mono_ms)[0] == "admit"
        if self._dropped and over:
            count, self._dropped = self._dropped, 0
            self._audit({"op": "unknown", "id": "unknown", "state": "dropped", "n": count})

    def announce_known(self) -> None:
        """Publish again what a broker may have forgotten. Raises SpoolUnavailable."""
        for command_id in self._acks.ids():
            stored = self._spool.seen(command_id)
            if stored is not None:
                self._acks.announce(rows.state(stored))

    def forget_acks(self) -> None:
        """Clear the acks that have stood for long enough."""
        self._acks.forget()


def _strictest(outcomes: list[Accepted | Rejected]) -> Accepted | Rejected:
    """The first refusal; else the acceptance of all, with the shortest time."""
    accepted: list[Accepted] = []
    for outcome in outcomes:
        if isinstance(outcome, Rejected):
            return outcome
        accepted.append(outcome)
    times = [one.longest_s for one in accepted if one.longest_s is not None]
    later = next((one for one in accepted if one.action == "wait"), accepted[0])
    return replace(later, longest_s=min(times, default=None))


def _seen(stored: Stored | None) -> commands.Seen | None:
    try:
        return rows.seen(stored)
    except ValueError as error:
        raise EdgeAgentError(
            f"the spool's record of this id is of another version: {error}"
        ) from error


def _document(sweep: Sweep) -> dict[str, object]:
    """A local request as if it had come over the wire, so that a restart can take it up."""
    head = sweep.head
    override = {name: list(values) for name, values in sweep.override.given().items()}
    lists = ("concurrency", "memory_slots")
    plain = {name: values if name in lists else values[0] for name, values in override.items()}
    return {
        "schema": "edgeagent.cmd.sweep/1",
        "id": head.id,
        "issued_at": head.issued_at_ms,
        "expires_at": head.expires_at_ms,
        "issuer": head.issuer,
        "profile": sweep.profile,
        "dry_run": sweep.mode == "dry_run",
        **({"override": plain} if plain else {}),
    }
