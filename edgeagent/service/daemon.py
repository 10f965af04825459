"""What does the agent do as a service?

    samples ─┐
    messages ┼─▶ one queue ─▶ one thread: telemetry, commands, the sweep that runs
    people ──┤                              │
    signals ─┘                              ▼
                                   spool ─▶ pump ─▶ broker

Everything is decided in one thread, so nothing has to be locked and a stuck decision is seen by the
watchdog. What may wait or hang stands in threads of its own: reading probes, the broker, people at
the socket, the production engine, systemctl, removing old runs. A sweep is a process of its own.

A step that fails in a way that we can explain is a trouble, told by the status, and the other steps
go on: a spool that cannot be written does not stop the measuring. A bug ends the daemon with its
traceback, and systemd starts it again.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from edgeagent import __version__, publishing
from edgeagent.core.backoff import Pace as LinkPace
from edgeagent.core.commands import Accepted, Situation, Sweep
from edgeagent.core.delivery import Entry, Stamp
from edgeagent.core.model import MemorySample
from edgeagent.core.outgoing import Finished
from edgeagent.core.policy import Policy
from edgeagent.core.telemetry import gpu_values, memory_values
from edgeagent.errors import EdgeAgentError
from edgeagent.journal import Journal
from edgeagent.probes import box
from edgeagent.publish.messages import encoded
from edgeagent.publish.signature import Key
from edgeagent.publish.status import About
from edgeagent.publish.wire import Command as Message
from edgeagent.publishing import Ears
from edgeagent.service import describing, production, retention
from edgeagent.service.commanding import Commander
from edgeagent.service.control import ControlServer
from edgeagent.service.delivering import NEEDS_NO_NEW_CONNECTION, OF_THE_CONNECTION, Delivery
from edgeagent.service.describing import Standing
from edgeagent.service.doorway import Ask, Doorway, answer, refuse, turn_away
from edgeagent.service.inbox import Inbox, Item, Sampled, Signalled
from edgeagent.service.observing import Observing
from edgeagent.service.production import Errand
from edgeagent.service.pulse import Health, Pulse
from edgeagent.service.running import PRODUCTION_FILE, Surroundings, SweepRunner
from edgeagent.service.situation import Busy, Calendar, Judging
from edgeagent.service.troubles import Troubles
from edgeagent.service.upkeep import Certificate, PolicyOnDisk, signing_key
from edgeagent.settings import Settings, after_reload, changes
from edgeagent.systemd import Notifier
from edgeagent.wallclock import WallClock

_TURN_S = 1.0
_FLUSH_S = 10.0
_KEEP_TIME_S = 600.0
_HOURLY_S = 3600.0
_STATUS_S = 5.0


@dataclass(frozen=True)
class Around:
    """What the daemon stands in."""

    load: Callable[[], Settings]
    """Read the configuration; raises ConfigError."""
    environ: Mapping[str, str]
    notifier: Notifier
    journal: Journal
    link_pace: LinkPace = field(default_factory=LinkPace)
    systemctl: tuple[str, ...] = production.SYSTEMCTL
    policy_owners: frozenset[int] = frozenset({0})
    clock: Callable[[], WallClock] = WallClock


def run(around: Around, made: Callable[[Around, Inbox], Daemon] | None = None) -> int:
    """Be the service until somebody ends it; return the exit status. Raises EdgeAgentError."""
    inbox = Inbox()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: inbox.put(Signalled(received)))
    daemon = (made or Daemon)(around, inbox)
    try:
        daemon.begin()
        while daemon.ending == "no":
            daemon.turn()
    finally:
        daemon.end()
    return 0


class Daemon:
    """See the module."""

    def __init__(self, around: Around, inbox: Inbox) -> None:
        """Open everything. Raises EdgeAgentError; nothing is left open then."""
        self._around, self._inbox = around, inbox
        self._log = around.journal
        self.ending: Literal["no", "yes"] = "no"
        self._due_s: dict[str, float] = {}
        self._tidying: Errand | None = None
        self._troubles = Troubles(around.journal.warning)
        self._office = publishing.open_office(around.load(), clock=around.clock())
        self._settings = self._office.settings
        try:
            self._put_together()
        except BaseException:
            self._office.close()
            raise

    def _put_together(self) -> None:
        around, office = self._around, self._office
        ears = Ears(self._message, around.journal.info, self._about)
        self._delivery = Delivery(office, ears, around.link_pace)
        self._observing = Observing(
            around.environ, lambda: self._settings, self._inbox.sample, lambda: self._runner.pid
        )
        self._policy = PolicyOnDisk(lambda: self._settings, around.policy_owners, self._troubles)
        self._certificate = Certificate(
            office.spool, self.stamp, self._delivery.record, self._troubles
        )
        self._calendar = Calendar(office.spool)
        self._judging = Judging(
            self._calendar,
            self._observing.telemetry,
            lambda: self._settings,
            lambda: self._policy.now().policy,
            self.stamp,
        )
        self._runner = SweepRunner(
            Surroundings(
                lambda: self._settings,
                self._hand_over,
                self._troubles,
                around.environ,
                around.systemctl,
            )
        )
        self._commander = Commander(
            office.spool, office.topics, self._delivery, self, self, around.journal.info
        )
        health = Health(
            self._signs, self._observing.has_sampled, lambda: self._settings.daemon.watchdog
        )
        self._pulse = Pulse(
            around.notifier, self._log, health, lambda: describing.sentence(self._standing())
        )
        self._doorway = Doorway(self._inbox.put)
        self._control = ControlServer(
            self._settings.daemon.socket, self._doorway.serve, _group(self._settings)
        )
        try:
            self._delivery.start()
        except BaseException:
            self._control.close()
            raise

    # ------------------------------------------------------------------------------------ the loop

    def begin(self) -> None:
        """Begin to work."""
        self._observing.start()
        self._recover()
        self._look_at_files()
        self.tell_meta()
        identity = self._office.identity
        self._log.info(
            "started",
            {"version": __version__, "site": identity.site, "node": identity.node,
             "epoch": self._office.spool.epoch, "broker": self._settings.mqtt.host or None},
        )  # fmt: skip

    def _recover(self) -> None:
        self._troubles.heeded(
            "recovery", lambda: self._commander.recover(self._runner.hand_over_left)
        )

    def turn(self) -> None:
        """Go round once."""
        for item in self._inbox.take(_TURN_S):
            self._troubles.heeded("work", lambda item=item: self._handle(item))  # type: ignore[misc]  # because mypy cannot type a default in a lambda
            self._pulse.feed()  # each may wait for a disk that is slow to say no
        if overlooked := self._inbox.overlooked():
            self._commander.overlooked(overlooked)
        self._recover()
        self._troubles.heeded("commands", self._look_after_the_sweep)
        self._do_what_is_due()

    def _handle(self, item: Item) -> None:
        if isinstance(item, Sampled):
            self._take(item.sample)
        elif isinstance(item, Message):
            self._commander.arrived(item)
        elif isinstance(item, Ask):
            self._answer(item)
        elif item.number == signal.SIGHUP:
            self._reload()
        else:
            self.ending = "yes"

    def _look_after_the_sweep(self) -> None:
        ended = self._runner.turn()
        if ended is not None:
            self._observing.telemetry.forget()
            self._calendar.ended(self.stamp().ts_ms)
            running = self._commander.running
            self._log.info(
                "sweep_ended",
                {"run": running.run if running else None, "how": ended.step,
                 "text": ended.note.reason},
            )  # fmt: skip
            self._commander.ended(ended.step, ended.note)
        elif (progress := self._runner.progress()) is not None:
            self._commander.progressed(progress.done, progress.planned)
        self._commander.turn("under way" if self._runner.active else "none")

    def _do_what_is_due(self) -> None:
        if self._due("flush", _FLUSH_S):
            self._flush()
        if self._due("time", _KEEP_TIME_S):
            self._troubles.heeded("time", self._office.keep_time)
        if self._due("files", _HOURLY_S):
            self._look_at_files()
            self._commander.forget_acks()
            self._tidy()
        if self._due("clock", _TURN_S):
            self._troubles.heeded("clock", self._look_at_the_clock)
        if self._due("status", _STATUS_S):
            self._pulse.tell()
        self._pulse.feed()

    def _due(self, what: str, every_s: float) -> bool:
        now_s = time.monotonic()
        if now_s < self._due_s.get(what, 0.0):
            return False
        self._due_s[what] = now_s + every_s
        return True

    def _signs(self, stale_s: float) -> dict[str, bool]:
        """Whether what should move does; a broker that is away is another matter."""
        return {
            "sampler": self._observing.moves(stale_s),
            "delivery": self._delivery.moves(time.monotonic(), stale_s),
            "control": self._control.alive,
        }

    # ---------------------------------------------------------------------------------- telemetry

    def _take(self, sample: MemorySample) -> None:
        stamp = self.stamp()
        if not self._runner.active:
            self._observing.look(sample)
        if not self._delivery.wanted:
            return
        telemetry = self._observing.telemetry
        if telemetry.live(sample, stamp, self._delivery.live):
            self._mirror(sample)
        for entry in telemetry.minutes(sample, stamp):
            self._office.spool.add(entry)
        for entry in telemetry.events(sample, stamp):
            self._delivery.record(entry)

    def _mirror(self, sample: MemorySample) -> None:
        troubles = self._troubles.sentences()
        figures = {**memory_values(sample.values), **gpu_values(sample.values)}
        self._delivery.mirrored("degraded" if troubles else "ok", figures)
        if not self._delivery.mirror_moves():
            self._troubles.stands(
                "mirror", "the Sparkplug mirror has ended: systemctl restart edgeagent"
            )

    def _flush(self) -> None:
        in_the_way = self._office.spool.flush()
        if in_the_way is None:
            self._troubles.settled("spool")
        else:
            self._troubles.stands("spool", str(in_the_way))

    def _look_at_the_clock(self) -> None:
        step = self._office.clock.step()
        if step is None:
            return
        stamp = self.stamp()
        value: dict[str, object] = {
            "boot": stamp.boot,
            "mono_ms": step.mono_ms,
            "old_ts": step.old_ms,
            "new_ts": step.new_ms,
        }
        self._log.warning("clock_step", value)
        self._delivery.record(Entry("R", "e/clock_step", "edgeagent.clock_step/1", stamp, value))

    # ------------------------------------------------------------------------ files of others' care

    def _look_at_files(self) -> None:
        self._policy.now()
        path = self._settings.mqtt.tls.cert_file
        self._troubles.heeded("certificate", lambda: self._certificate.look(path))

    def _tidy(self) -> None:
        """Remove old runs, in a thread: some are large."""
        if self._tidying is not None and not self._tidying.done:
            return
        agent, held = self._settings.agent, self._runner.held

        def tidy() -> None:
            limits = (agent.runs_max_mb, agent.runs_max_age_d)
            gone = retention.tidy(agent.runs_dir, time.time(), limits, held.__contains__)
            if gone:
                self._log.info("runs_removed", {"runs": gone})

        self._tidying = Errand(tidy)

    # ------------------------------------ what commands see and do (commanding.Seeing and .Acting)

    def stamp(self) -> Stamp:
        """Return now."""
        return self._office.clock.stamp()

    def key(self) -> Key | None:
        """Return the key of commands' signatures. Raises ConfigError."""
        return signing_key(self._settings)

    def policies(self, origin: Literal["plant", "box"]) -> tuple[Policy, ...]:
        """Return what all has to allow a command from there."""
        return self._judging.policies(origin)

    def situation(self) -> Situation:
        """Return the moment at which a command is judged. Raises SpoolUnavailable."""
        active = self._runner.active or self._commander.running is not None
        return self._judging.situation(
            Busy("under way" if active else "none", self._commander.waiting)
        )

    def unwatched(self) -> str | None:
        """Return why nobody can say whether the box is idle; None when it can be said."""
        return self._judging.unwatched()

    def new_name(self) -> str:
        """Return the name of a run that begins now."""
        return self._runner.new_name()

    def begin_sweep(self, name: str, sweep: Sweep, outcome: Accepted) -> None:
        """Begin a sweep. Raises EdgeAgentError; then nothing was begun."""
        self._runner.begin(name, sweep, outcome, self._policy.now().policy.production_units)
        self._log.info("sweep_started", {"run": name, "profile": outcome.profile})
        if sweep.head.origin == "plant":
            self._troubles.heeded("calendar", self._calendar.begun)

    def stop_sweep(self) -> None:
        """End the sweep that runs."""
        self._runner.stop()

    def tell_meta(self) -> None:
        """Say what this box is, what may be asked of it, and within which limits."""
        facts = box.host_facts(self._observing.root)
        policy = self._policy.now().policy
        for below, document in describing.meta_documents(
            self._office, self._settings, policy, facts
        ):
            self._delivery.announce(below, encoded(document))

    def _hand_over(self, run: Finished) -> Callable[[], bool]:
        handed = self._delivery.hand_over(run)
        return lambda: self._delivery.arrived(handed)

    # ---------------------------------------------------------------------------- people, timers

    def _message(self, message: Message) -> None:
        """Take a message over; called in the pump's thread."""
        if not self._inbox.message(message):
            self._delivery.stored(message)

    def _answer(self, ask: Ask) -> None:
        operation = ask.request.get("op")
        if operation == "status":
            answer(ask, describing.state_document(self._office, self._standing()))
        elif operation == "trigger":
            self._doorway.trigger(ask, self._commander, self.stamp().ts_ms)
        elif operation == "wake":
            self._delivery.wake()
            answer(ask, {})
        else:
            refuse(ask, "schema", "op has to be status, trigger or wake")

    def _standing(self) -> Standing:
        commander = self._commander
        return Standing(
            commander.running,
            commander.waiting,
            self._troubles.sentences(),
            self._delivery.state(),
            self.unwatched(),
        )

    def _about(self) -> About:
        """Asked in the pump's thread: reads values that are replaced whole."""
        return About(
            __version__,
            self._certificate.not_after_ms,
            self._policy.latest.sha256 or None,
            self._troubles.sentences(),
        )

    # -------------------------------------------------------------------------- reload, the end

    def _reload(self) -> None:
        self._pulse.reloading()
        try:
            self._take_over(self._named(self._around.load()))
        except EdgeAgentError as error:
            self._troubles.stands("configuration", f"the configuration was not taken over: {error}")
            self._log.error("reload_refused", {"text": str(error)})
        self._pulse.ready()

    def _named(self, new: Settings) -> Settings:
        """Under the name that this box has, where the configuration gives it none."""
        if new.origin("agent", "node") != "default":
            return new
        return new.as_node(self._office.identity.node)

    def _take_over(self, new: Settings) -> None:
        """Let other settings count. Raises ConfigError: then the old ones do."""
        found = changes(self._settings, new)
        settings = after_reload(self._settings, new)
        live = frozenset(found.live)
        if OF_THE_CONNECTION & live or any(
            key.startswith("mqtt.") for key in live - NEEDS_NO_NEW_CONNECTION
        ):
            self._delivery.renew(settings)
        self._settings = settings
        self._observing.keep_pace()
        if "telemetry.sample_interval_s" in live:
            self._observing.sample_anew()
        self._policy.forget()
        self._look_at_files()
        self.tell_meta()
        self._log.info(
            "reloaded", {"changed": list(found.live), "needs_restart": list(found.restart)}
        )
        if found.restart:
            keys = ", ".join(found.restart)
            self._troubles.stands(
                "configuration", f"a restart is needed for {keys}: systemctl restart edgeagent"
            )
        else:
            self._troubles.settled("configuration")

    def end(self) -> None:
        """End within the time that is left, the most important first."""
        limit_s = self._settings.daemon.stop_timeout_s
        self._pulse.stopping()
        ended = self._runner.end(limit_s * 0.5)
        if ended is not None:
            self._commander.ended(ended.step, ended.note)
        for item in self._inbox.take(0.0):
            if isinstance(item, Ask):
                turn_away(item)
        self._doorway.close()
        if self._delivery.wanted:
            for entry in self._observing.telemetry.rest(time.monotonic(), self.stamp()):
                self._office.spool.add(entry)
            self._office.spool.flush()
            self._delivery.stop("shutdown", limit_s * 0.3)
        self._control.close()
        self._observing.end(1.0)
        self._office.close()
        self._log.info("ended")


def _group(settings: Settings) -> str | None:
    """The group that may ask; for an ordinary user's daemon nobody else."""
    return settings.daemon.socket_group or None if settings.scope == "system" else None


def restore(settings: Settings) -> str | None:
    """Start again what was stopped for a sweep (ExecStopPost); return its name.

    Does not wait for the start: systemd is just ending us, and would wait for itself.
    """
    return production.restore(settings.agent.state_dir / PRODUCTION_FILE, wait="no")
