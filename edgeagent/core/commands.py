"""May this command be obeyed, what has become of it, and what is the answer when it comes again?

Judging is a function of three values: the command, the policy of the box, and the situation. What
becomes of a command is a state that only `advance` moves on: accepted, running, and then one of
four ends. The daemon writes a state down before it acts on it; a step for which `advance` has no
answer must not be taken. That makes "at most one run per command" a property of this module and of
one durable write (docs/decisions/0015).

Order of the checks for a sweep, each with its code:
  the policy allows the operation and the issuer             policy_disabled
  the clock of the box is right                              clock_unsync
  not over, not valid for too long, not issued too long ago  expired, out_of_bounds, replay
  the profile is known and allowed                           unknown_profile
  each override has bounds and keeps them                    out_of_bounds
  a window is open                                           window
  the spool has room for results                             spool_full
  runs of today, time since the last one                     quota, cooldown
  others, production, heat, memory                           busy, thermal
The wire adds the rest before anything is judged: retained, too_large, schema, bad_sig.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

from edgeagent.core.delivery import ClockState, Stream
from edgeagent.core.policy import (
    KNOBS,
    Bounds,
    Guards,
    Knob,
    LocalTime,
    Operation,
    Policy,
    left_minutes,
)

SKEW_S = 300
"""How far the clocks of the issuer and of the box may lie apart."""
QUEUE_ALLOWANCE_S = 3600
"""How long the broker keeps a command for a box that is away: the life of its session."""
LONGEST_S = 24 * 3600
"""No command is valid longer than this from now on."""

RATE = 5
RATE_WINDOW_MS = 10_000
PROGRESS_EVERY_MS = 10_000

Code = Literal[
    "policy_disabled",
    "unknown_profile",
    "out_of_bounds",
    "window",
    "busy",
    "cooldown",
    "quota",
    "expired",
    "replay",
    "clock_unsync",
    "retained",
    "bad_sig",
    "too_large",
    "schema",
    "spool_full",
    "thermal",
]


# ------------------------------------------------------------------------------------ the command


@dataclass(frozen=True)
class Head:
    """What every command says of itself."""

    id: str
    """A UUID in small letters, checked at the wire."""
    issued_at_ms: int
    expires_at_ms: int
    issuer: str
    """A claim of the sender's, as good as the signature or the broker's rights are."""
    origin: Literal["plant", "box"] = "plant"
    """From the broker, or from somebody on the box itself (`edgeagent trigger`, a timer)."""


@dataclass(frozen=True)
class Override:
    """Numbers in place of a profile's own; None leaves the profile's."""

    concurrency: tuple[int, ...] | None = None
    requests: int | None = None
    seconds: int | None = None
    repeats: int | None = None
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    prefix_tokens: int | None = None
    context: int | None = None
    memory_slots: tuple[int, ...] | None = None

    def given(self) -> dict[Knob, tuple[int, ...]]:
        """What is overridden, each as the list of its numbers."""
        values = ((knob, getattr(self, knob)) for knob in KNOBS)
        return {
            knob: value if isinstance(value, tuple) else (value,)
            for knob, value in values
            if value is not None
        }


@dataclass(frozen=True)
class Sweep:
    """Measure with a profile of the box, or only say whether it would be done."""

    head: Head
    profile: str
    override: Override = Override()
    mode: Literal["run", "dry_run"] = "run"
    operation: Literal["sweep"] = "sweep"


@dataclass(frozen=True)
class Cancel:
    """End the sweep that another command asked for."""

    head: Head
    of: str
    operation: Literal["cancel"] = "cancel"


@dataclass(frozen=True)
class Resync:
    """Send the rows `first` to `last` of a stream again, both included."""

    head: Head
    stream: Stream
    first: int
    last: int
    operation: Literal["resync"] = "resync"


@dataclass(frozen=True)
class Ping:
    """Answer."""

    head: Head
    operation: Literal["ping"] = "ping"


@dataclass(frozen=True)
class Meta:
    """Publish again what this box is and can do."""

    head: Head
    operation: Literal["meta"] = "meta"


Command = Sweep | Cancel | Resync | Ping | Meta


# ---------------------------------------------------------------------------------- the situation


@dataclass(frozen=True)
class Box:
    """What the guards see. None: it could not be read, so a guard on it refuses."""

    foreign_gpu: float | None = None
    foreign_cpu: float | None = None
    production_requests: int | None = None
    temperature_c: float | None = None
    available_bytes: int | None = None


@dataclass(frozen=True)
class Situation:
    """The moment at which a command is judged."""

    now_ms: int
    """UTC since 1970."""
    local: LocalTime
    clk: ClockState
    profiles: tuple[str, ...]
    """Those that the configuration of the box has."""
    running: Literal["nothing", "sweep"] = "nothing"
    waiting: int = 0
    """Accepted sweeps whose turn has not come."""
    runs_today: int = 0
    """That the plant asked for and that were begun since midnight, local time."""
    last_end_ms: int | None = None
    """When the last of them ended; None when there was none."""
    spool: Literal["room", "full"] = "room"
    box: Box = Box()


Moment = Literal["arrival", "turn"]


@dataclass(frozen=True)
class Rejected:
    """No, and why: `sentence` is for the person who asked."""

    code: Code
    sentence: str


@dataclass(frozen=True)
class Accepted:
    """Yes. `action` says when; a dry run is answered and begins nothing."""

    action: Literal["start", "wait", "answer"]
    profile: str | None = None
    """For a sweep: the name as the policy or the configuration spells it, never the message's."""
    longest_s: int | None = None
    """For a sweep: it is to be ended after this time; None where nothing limits it."""


def judge(
    command: Command,
    policy: Policy,
    situation: Situation,
    moment: Moment = "arrival",
) -> Accepted | Rejected:
    """Whether the command is obeyed. At its `turn`, a sweep that waited is judged once more.

    Somebody on the box itself needs neither permission nor a clock, and neither quota nor cooldown
    hold for them; windows, bounds, room in the spool and the guards do. `situation.waiting` counts
    the others that wait.
    """
    refusal = _permission(command, policy) or _validity(command, situation, moment)
    if refusal is not None:
        return refusal
    if not isinstance(command, Sweep):
        return Accepted("answer")
    return _judge_sweep(command, policy, situation, moment)


def _permission(command: Command, policy: Policy) -> Rejected | None:
    if command.head.origin == "box":
        return None
    if command.operation not in policy.operations:
        return Rejected(
            "policy_disabled",
            f"the policy of this box does not allow {command.operation}: its owner can add it to "
            "operations in the policy file",
        )
    if command.head.issuer not in policy.issuers:
        return Rejected(
            "policy_disabled",
            f"the policy of this box does not know the issuer {command.head.issuer}: its owner can "
            "add it to issuers in the policy file",
        )
    return None


_NEEDS_NO_CLOCK = frozenset({"ping", "resync"})
"""What does no harm when it comes late or twice, and helps to find out what is wrong."""


def _validity(command: Command, situation: Situation, moment: Moment) -> Rejected | None:
    head, now_ms = command.head, situation.now_ms
    if head.origin == "box":
        return None
    if situation.clk == "unsync":
        if command.operation in _NEEDS_NO_CLOCK:
            return None
        return Rejected(
            "clock_unsync",
            "the clock of this box is not synchronised, so nobody can tell how old a command is: "
            "give the box a time source",
        )
    if head.expires_at_ms <= now_ms:
        late = (now_ms - head.expires_at_ms) // 1000
        return Rejected("expired", f"the command ran out {late} s ago: send a new one")
    return _age(head, now_ms) if moment == "arrival" else None


def _age(head: Head, now_ms: int) -> Rejected | None:
    if head.expires_at_ms > now_ms + LONGEST_S * 1000:
        return Rejected(
            "out_of_bounds", "the command is valid for more than 24 h: let it expire sooner"
        )
    if head.issued_at_ms < now_ms - (SKEW_S + QUEUE_ALLOWANCE_S) * 1000:
        age = (now_ms - head.issued_at_ms) // 1000
        return Rejected(
            "replay",
            f"the command was issued {age} s ago, more than the {SKEW_S + QUEUE_ALLOWANCE_S} s for "
            "which a broker may keep it: send a new one",
        )
    if head.issued_at_ms > now_ms + SKEW_S * 1000:
        ahead = (head.issued_at_ms - now_ms) // 1000
        return Rejected(
            "replay",
            f"the command was issued {ahead} s in the future: put the clock of its sender right",
        )
    return None


# -------------------------------------------------------------------------------------- the sweep


def _judge_sweep(
    sweep: Sweep, policy: Policy, situation: Situation, moment: Moment
) -> Accepted | Rejected:
    profile = _profile(sweep, policy, situation)
    if isinstance(profile, Rejected):
        return profile
    cooldown = _cooldown(sweep, policy, situation)
    refusal = (
        _overrides(sweep, policy)
        or _window(policy, situation)
        or _spool(situation)
        or _quota(sweep, policy, situation)
        or (cooldown if moment == "arrival" else None)
        or _occupied(policy, situation)
    )
    if refusal is not None:
        return refusal
    waits = situation.running == "sweep" or cooldown is not None
    # The box as it is counts when a sweep starts; what waits is looked at when its turn comes.
    if not waits and (refusal := _guarded(policy.guards, situation.box)):
        return refusal
    longest_s = _longest_s(sweep, policy, situation)
    if sweep.mode == "dry_run":
        return Accepted("answer", profile, longest_s)
    return Accepted("wait" if waits else "start", profile, longest_s)


def _profile(sweep: Sweep, policy: Policy, situation: Situation) -> str | Rejected:
    """The profile's name out of our own lists."""
    allowed = situation.profiles if sweep.head.origin == "box" else policy.profiles
    found = next((name for name in allowed if name == sweep.profile), None)
    if found is None:
        return Rejected(
            "unknown_profile",
            f"the profile {sweep.profile} is not one that may be asked for here: allowed are "
            f"{', '.join(allowed) or 'none'}",
        )
    if found not in situation.profiles:
        return Rejected(
            "unknown_profile",
            f"the policy allows the profile {found}, but the configuration of this box has none of "
            "that name: its owner can add it under sweep.profiles",
        )
    return found


def _overrides(sweep: Sweep, policy: Policy) -> Rejected | None:
    for knob, values in sweep.override.given().items():
        bounds = policy.bounds.get(knob)
        if bounds is None:
            return Rejected(
                "out_of_bounds", f"the policy has no bounds for {knob}, so it cannot be overridden"
            )
        if sentence := _outside(knob, values, bounds):
            return Rejected("out_of_bounds", sentence)
    return None


def _outside(knob: Knob, values: tuple[int, ...], bounds: Bounds) -> str | None:
    if len(values) > bounds.count:
        return f"{knob} names {len(values)} values, and the policy allows {bounds.count}"
    wrong = next((value for value in values if not bounds.least <= value <= bounds.most), None)
    if wrong is None:
        return None
    return f"{knob} is {wrong}, and the policy allows {bounds.least} to {bounds.most}"


def _window(policy: Policy, situation: Situation) -> Rejected | None:
    if left_minutes(policy.windows, situation.local) == 0:
        local = situation.local
        return Rejected(
            "window",
            f"it is {local.day} {local.minute // 60:02}:{local.minute % 60:02} on this box, and no "
            "window of its policy is open: ask again inside one",
        )
    return None


def _spool(situation: Situation) -> Rejected | None:
    if situation.spool == "full":
        return Rejected(
            "spool_full",
            "the spool has no room for the results of a sweep: let the box deliver what it holds",
        )
    return None


def _quota(sweep: Sweep, policy: Policy, situation: Situation) -> Rejected | None:
    if sweep.head.origin == "box":
        return None
    if situation.runs_today + situation.waiting < policy.max_runs_per_day:
        return None
    return Rejected(
        "quota",
        f"the policy allows {policy.max_runs_per_day} runs a day, and that many were begun today: "
        "ask again tomorrow",
    )


def _cooldown(sweep: Sweep, policy: Policy, situation: Situation) -> Rejected | None:
    """Too soon after the last run; while one runs, its own end is what counts later."""
    if sweep.head.origin == "box" or situation.last_end_ms is None or situation.running == "sweep":
        return None
    elapsed_s = (situation.now_ms - situation.last_end_ms) // 1000
    # A clock that was put back since then tells nothing, and must not lock the box for long.
    if not 0 <= elapsed_s < policy.cooldown_s:
        return None
    return Rejected(
        "cooldown",
        f"the last run ended {elapsed_s} s ago, and the policy wants {policy.cooldown_s} s between "
        f"runs: ask again in {policy.cooldown_s - elapsed_s} s",
    )


def _occupied(policy: Policy, situation: Situation) -> Rejected | None:
    if situation.waiting:
        return Rejected("busy", "a sweep waits here already, and only one may: ask again later")
    if situation.running == "sweep" and policy.when_busy == "refuse":
        return Rejected("busy", "a sweep is running here: ask again when it has ended")
    return None


def _guarded(guards: Guards, box: Box) -> Rejected | None:
    """The first guard that refuses. What it cannot see it refuses as well."""
    limits: tuple[tuple[Code, str, str, float | None, float | None], ...] = (
        ("busy", "GPU use by others", "", box.foreign_gpu, guards.most_foreign_gpu),
        ("busy", "CPU use by others", "", box.foreign_cpu, guards.most_foreign_cpu),
        (
            "busy",
            "requests in the production engine",
            "",
            box.production_requests,
            guards.most_production_requests,
        ),
        ("thermal", "temperature", " °C", box.temperature_c, guards.most_temperature_c),
    )
    for code, what, unit, value, most in limits:
        if most is None:
            continue
        if value is None:
            return Rejected(code, f"the policy limits {what}, which could not be read")
        if value > most:
            return Rejected(
                code, f"{what}: {value:.4g}{unit}, and the policy allows at most {most:.4g}{unit}"
            )
    return _memory(guards, box)


def _memory(guards: Guards, box: Box) -> Rejected | None:
    least = guards.least_available_bytes
    if least is None:
        return None
    if box.available_bytes is None:
        return Rejected("busy", "the policy limits available memory, which could not be read")
    if box.available_bytes < least:
        return Rejected(
            "busy",
            f"available memory: {box.available_bytes / 1e9:.2f} GB, and the policy wants at least "
            f"{least / 1e9:.2f} GB",
        )
    return None


def _longest_s(sweep: Sweep, policy: Policy, situation: Situation) -> int | None:
    """Until the longest duration or the end of the window, whichever comes first."""
    left = left_minutes(policy.windows, situation.local)
    limits = [] if left is None else [left * 60]
    if sweep.head.origin == "plant":
        limits.append(policy.max_duration_s)
    return min(limits, default=None)


# ----------------------------------------------------------------------------- what becomes of it

StateName = Literal[
    "accepted", "running", "succeeded", "failed", "cancelled", "interrupted", "rejected"
]
FINAL: frozenset[StateName] = frozenset(
    {"succeeded", "failed", "cancelled", "interrupted", "rejected"}
)


@dataclass(frozen=True)
class CommandState:
    """What is known of a command; what its ack says."""

    id: str
    operation: Operation
    state: StateName
    at_ms: int
    """UTC, when it became so."""
    code: Code | None = None
    reason: str | None = None
    run: str | None = None
    """The run's id, once there is one."""
    done: int | None = None
    total: int | None = None
    """Cells measured so far, and cells of the sweep."""


Step = Literal["start", "progress", "succeed", "fail", "cancel", "interrupt"]

_STEPS: dict[tuple[StateName, Step], StateName] = {
    ("accepted", "start"): "running",
    ("accepted", "succeed"): "succeeded",  # what is answered at once never runs
    ("accepted", "fail"): "failed",
    ("accepted", "cancel"): "cancelled",
    ("running", "progress"): "running",
    ("running", "succeed"): "succeeded",
    ("running", "fail"): "failed",
    ("running", "cancel"): "cancelled",
    ("running", "interrupt"): "interrupted",
}


@dataclass(frozen=True)
class Note:
    """What is learnt with a step; None leaves what was known."""

    code: Code | None = None
    reason: str | None = None
    run: str | None = None
    done: int | None = None
    total: int | None = None


def begin(command: Command, outcome: Accepted | Rejected, now_ms: int) -> CommandState:
    """The first state of a command that was judged."""
    if isinstance(outcome, Accepted):
        return CommandState(command.head.id, command.operation, "accepted", now_ms)
    return rejected(command.head.id, command.operation, outcome, now_ms)


def rejected(command_id: str, operation: Operation, refusal: Rejected, now_ms: int) -> CommandState:
    """The only state of a command that was refused, at the wire or after it."""
    return CommandState(
        command_id, operation, "rejected", now_ms, code=refusal.code, reason=refusal.sentence
    )


def advance(
    current: CommandState, step: Step, now_ms: int, note: Note | None = None
) -> CommandState | None:
    """The state after the step. None: it cannot be taken from here, so it must not be acted on."""
    state = _STEPS.get((current.state, step))
    if state is None:
        return None
    noted = note or Note()
    learnt = {
        item.name: value
        for item in fields(noted)
        if (value := getattr(noted, item.name)) is not None
    }
    return replace(current, state=state, at_ms=now_ms, **learnt)


def progress_is_due(last_sent_ms: int | None, now_ms: int) -> bool:
    """Whether progress may be published again; both on the monotonic clock."""
    return last_sent_ms is None or now_ms - last_sent_ms >= PROGRESS_EVERY_MS


def recovered(states: Iterable[CommandState], now_ms: int) -> tuple[CommandState, ...]:
    """What changes when the agent comes up and finds these: what ran, was interrupted.

    What was accepted and not begun is left alone: it takes its turn and is judged once more.
    """
    return tuple(
        state
        for state in (
            advance(found, "interrupt", now_ms, Note(reason="the agent ended while the sweep ran"))
            for found in states
        )
        if state is not None
    )


def cancelling(of: CommandState | None, now_ms: int) -> CommandState | Literal["stop", "nothing"]:
    """What a cancel does: the state of what still waited, or to stop what runs, or nothing."""
    if of is None or of.operation != "sweep" or of.state in FINAL:
        return "nothing"
    if of.state == "running":
        return "stop"
    return replace(of, state="cancelled", at_ms=now_ms, reason="cancelled before its turn came")


# ------------------------------------------------------------------------- the same command again


@dataclass(frozen=True)
class Seen:
    """A command that was judged before."""

    fingerprint: str
    """SHA-256 of what it said, without its signature."""
    state: CommandState


def repeated(seen: Seen | None, fingerprint: str | None) -> CommandState | Rejected | None:
    """The answer to an id: the stored state again, or None for one that is new.

    Another command under a known id is a replay; its refusal is told, but the stored state stays
    what it is. `fingerprint` is None for a message that could not be read: a known id then says
    what it last said.
    """
    if seen is None:
        return None
    if fingerprint is None or fingerprint == seen.fingerprint:
        return seen.state
    return Rejected(
        "replay", "another command had this id before: give each command an id of its own"
    )


# --------------------------------------------------------------------------------------- the rate


def admitted(recent_ms: Sequence[int], now_ms: int) -> tuple[Literal["admit", "drop"], list[int]]:
    """Whether one more message is looked at, and the times to remember, on the monotonic clock.

    Of any ten seconds five are, whatever they hold; what is dropped leaves no trace here.
    """
    kept = [at_ms for at_ms in recent_ms if now_ms - at_ms < RATE_WINDOW_MS]
    if len(kept) >= RATE:
        return "drop", kept
    return "admit", [*kept, now_ms]
