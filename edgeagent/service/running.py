"""Who carries out the sweeps that the daemon accepts, one at a time?

Makes room (the plant's own service, where it is allowed), starts the sweep in a process of its own,
looks after its time, and when it has ended puts its result into the spool before anybody is told
that it has. Whatever happens, what was stopped is started again. Nothing here waits, except `end`.

    begin ─▶ making room ─▶ running ─▶ handing over ─▶ ended
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from edgeagent import jobs
from edgeagent.config import SweepRequest
from edgeagent.core.commands import Accepted, Note, Sweep
from edgeagent.core.outgoing import Finished
from edgeagent.errors import BusyError, ConfigError, EdgeAgentError
from edgeagent.jobs import SweepJob
from edgeagent.service import production
from edgeagent.service.production import Errand, Production
from edgeagent.service.troubles import Troubles
from edgeagent.settings import Settings, profile_request

PRODUCTION_FILE = "production.json"
_RESTORE_AGAIN_S = 60.0
_HAND_OVER_AGAIN_S = 15.0
_LEFT_AGAIN_S = 10.0
_PATIENCE_S = 20.0
"""From asking a sweep to end until it is ended."""
_PROGRESS_EVERY_S = 5.0
_ARRIVAL_S = 30.0
"""Longest wait for the broker to have a result before the word that it is there."""
_OK, _DOUBTFUL, _KILLED = 0, 1, -9


@dataclass(frozen=True)
class Ended:
    """How a sweep has ended; its result is in the spool, where there is a broker."""

    step: Literal["succeed", "fail", "interrupt"]
    note: Note


@dataclass(frozen=True)
class Surroundings:
    """What the runner asks of the daemon."""

    settings: Callable[[], Settings]
    hand_over: Callable[[Finished], Callable[[], bool]]
    """Put a result into the spool; what comes back says whether it has arrived at the broker.

    Both are asked again when they raise EdgeAgentError.
    """
    troubles: Troubles
    environ: Mapping[str, str]
    systemctl: tuple[str, ...] = production.SYSTEMCTL
    now_s: Callable[[], float] = time.monotonic


@dataclass(frozen=True)
class _Wanted:
    folder: Path
    request: SweepRequest
    options: tuple[str, ...]
    longest_s: int | None


@dataclass
class _Making:
    """Room is made; nothing has begun."""

    errand: Errand
    wanted: _Wanted
    stopped: Literal["no", "yes"] = "no"

    @property
    def folder(self) -> Path:
        return self.wanted.folder


@dataclass
class _Running:
    job: SweepJob
    ends_s: float | None
    """When its time is over, monotonic."""
    overdue: Literal["no", "yes"] = "no"
    asked_s: float | None = None
    """When it was asked to end."""

    @property
    def folder(self) -> Path:
        return self.job.folder


@dataclass
class _Over:
    """It has ended, and its result is being handed over."""

    folder: Path
    ended: Ended
    again_s: float = 0.0
    arrived: Callable[[], bool] | None = None
    """Whether the broker has the result, which is in the spool; None before it is."""
    until_s: float = 0.0
    """How long that is waited for, monotonic."""


class SweepRunner:
    """See the module; all calls come from the daemon's thread."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._phase: _Making | _Running | _Over | None = None
        self._restoring: Errand | None = None
        self._restore_s = 0.0
        self._left: list[str] = []
        self._left_s = 0.0
        self._progress = jobs.Progress(0, None)
        self._progress_s = 0.0

    @property
    def active(self) -> bool:
        """Whether a sweep is under way, from making room to the hand-over of its result."""
        return self._phase is not None

    @property
    def pid(self) -> int | None:
        """The sweep's process, while it runs."""
        phase = self._phase
        return phase.job.pid if isinstance(phase, _Running) else None

    @property
    def held(self) -> frozenset[str]:
        """The runs whose folders are still needed."""
        own = () if self._phase is None else (self._phase.folder.name,)
        return frozenset((*self._left, *own))

    # ------------------------------------------------------------------------------- the beginning

    @staticmethod
    def new_name() -> str:
        """Return the name of a run that begins now."""
        return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(3)}"

    def begin(self, name: str, sweep: Sweep, outcome: Accepted, units: tuple[str, ...]) -> None:
        """Begin a sweep; `units` are the services that may be stopped for it.

        Raises EdgeAgentError; then nothing was begun.
        """
        settings = self._around.settings()
        given = sweep.override.given()
        override: dict[str, object] = {key: _plain(key, given[key]) for key in given}
        request = profile_request(settings, outcome.profile or "", override)
        wanted = _Wanted(
            settings.agent.runs_dir / name, request, _options(settings), outcome.longest_s
        )
        unit = settings.schedule.production_unit
        if not unit:
            self._run(wanted)
        else:
            self._phase = _Making(self._make_room(unit, units), wanted)

    def _make_room(self, unit: str, units: tuple[str, ...]) -> Errand:
        if unit not in units:
            raise ConfigError(
                f"schedule.production_unit is {unit}, and the policy file does not allow to stop "
                "it: add it to production_units there, or take it out here"
            )
        if self._restoring is not None:
            raise BusyError(f"{unit} is just being started again: ask again later")
        return Errand(Production(unit, self._state_file, self._around.systemctl).stop)

    def _run(self, wanted: _Wanted) -> None:
        environ, options = self._around.environ, wanted.options
        try:
            job = SweepJob.start(wanted.folder, wanted.request, environ, *options)
        except OSError as error:
            raise EdgeAgentError(f"could not start a sweep: {error.strerror or error}") from error
        longest_s = wanted.longest_s
        self._progress, self._progress_s = jobs.Progress(0, None), 0.0
        self._phase = _Running(job, None if longest_s is None else self._around.now_s() + longest_s)

    @property
    def _state_file(self) -> Path:
        return self._around.settings().agent.state_dir / PRODUCTION_FILE

    # ------------------------------------------------------------------------------- while it runs

    def progress(self) -> jobs.Progress | None:
        """Return how far the sweep is; None when none runs. Looked up every few seconds."""
        phase, now_s = self._phase, self._around.now_s()
        if not isinstance(phase, _Running):
            return None
        if now_s - self._progress_s >= _PROGRESS_EVERY_S:
            self._progress_s = now_s
            self._progress = phase.job.progress()
        return self._progress

    def stop(self) -> None:
        """Ask the sweep to end."""
        phase = self._phase
        if isinstance(phase, _Running):
            self._ask_to_end(phase)
        elif isinstance(phase, _Making):
            phase.stopped = "yes"

    def _ask_to_end(self, running: _Running) -> None:
        if running.asked_s is None:
            running.asked_s = self._around.now_s()
        running.job.stop()

    def turn(self) -> Ended | None:
        """Look after the sweep; return how it has ended, once, when it has."""
        self._give_back()
        self._hand_over_left()
        phase = self._phase
        if isinstance(phase, _Making):
            return self._when_there_is_room(phase)
        if isinstance(phase, _Running):
            self._look_after(phase)
            phase = self._phase
        return self._hand_over(phase) if isinstance(phase, _Over) else None

    def _when_there_is_room(self, making: _Making) -> Ended | None:
        if not making.errand.done:
            return None
        error = making.errand.error
        if error is None and making.stopped == "no":
            try:
                self._run(making.wanted)
            except EdgeAgentError as wrong:
                error = wrong
            else:
                return None
        self._phase = None
        self._restore_s = 0.0
        self._give_back()
        why = str(error) if error is not None else "it was ended before it had begun"
        return Ended("fail", Note(reason=why))

    def _look_after(self, running: _Running) -> None:
        status = running.job.poll()
        now_s = self._around.now_s()
        if status is not None:
            self._phase = self._over(running, status)
            self._restore_s = 0.0
            self._give_back()  # before the hand-over: nobody waits for the spool
        elif running.overdue == "no" and running.ends_s is not None and now_s >= running.ends_s:
            running.overdue = "yes"
            self._ask_to_end(running)
        elif running.asked_s is not None and now_s - running.asked_s >= _PATIENCE_S:
            running.job.kill()

    @staticmethod
    def _over(running: _Running, status: int) -> _Over:
        folder = running.job.folder
        run = jobs.finished(folder)
        words = running.job.last_words()
        running.job.close()
        complete = run is not None and run.document.get("status") == "complete"
        well = complete and status in (_OK, _DOUBTFUL)
        if not well and running.overdue == "yes":
            words = "its time was over; what was measured is kept"
        reason = words or (None if status == _OK else f"it ended with status {status}")
        far = running.job.progress()
        note = Note(reason=reason, done=far.done, total=far.planned)
        return _Over(folder, Ended("succeed" if well else "fail", note))

    def _hand_over(self, over: _Over) -> Ended | None:
        """Result first, then the word that it is there: into the spool, and to the broker."""
        now_s = self._around.now_s()
        if over.arrived is None:
            if now_s < over.again_s:
                return None
            over.again_s = now_s + _HAND_OVER_AGAIN_S
            if not self._around.troubles.heeded("hand_over", lambda: self._give_to_spool(over)):
                return None
            over.until_s = now_s + _ARRIVAL_S
        if over.arrived is not None and now_s < over.until_s and not over.arrived():
            return None
        self._phase = None
        return over.ended

    def _give_to_spool(self, over: _Over) -> None:
        run = jobs.finished(over.folder)
        over.arrived = (lambda: True) if run is None else self._around.hand_over(run)

    # ------------------------------------------------------------------------------------- the end

    def end(self, patience_s: float) -> Ended | None:
        """End the sweep now, and its engines, within about the time.

        Return how it ended; None when none was under way, or when its result could not be handed
        over: the next daemon will find it.
        """
        phase, self._phase = self._phase, None
        if isinstance(phase, _Running):
            phase = self._ended_now(phase, patience_s)
        if isinstance(phase, _Making):
            ended: Ended | None = Ended("interrupt", Note(reason="ended before it had begun"))
        elif isinstance(phase, _Over):
            over = phase
            handed = self._around.troubles.heeded("hand_over", lambda: self._give_to_spool(over))
            ended = over.ended if handed else None
        else:
            ended = None
        self.restore_at_once()
        return ended

    def _ended_now(self, running: _Running, patience_s: float) -> _Over:
        family = jobs.family(running.job.pid)
        running.job.stop()
        status = running.job.wait(patience_s * 0.6)
        if status is None:
            running.job.kill()
            status = running.job.wait(patience_s * 0.2)
        jobs.gone(family, patience_s * 0.2)
        over = self._over(running, _KILLED if status is None else status)
        if over.ended.step == "fail":
            note = over.ended.note
            why = "the agent was stopped; what was measured is kept"
            over.ended = Ended("interrupt", replace(note, reason=why))
        return over

    def restore_at_once(self) -> None:
        """Hand over to systemd what has to be started again."""
        file, systemctl = self._state_file, self._around.systemctl
        self._around.troubles.heeded(
            "production", lambda: production.restore(file, systemctl, "no")
        )

    # ------------------------------------------------------------------ what an earlier life left

    def hand_over_left(self, name: str) -> None:
        """Put the result of a run that an earlier life began into the spool, once it has one."""
        self._left.append(name)
        self._left_s = 0.0

    def _hand_over_left(self) -> None:
        now_s = self._around.now_s()
        if not self._left or now_s - self._left_s < _LEFT_AGAIN_S:
            return
        self._left_s = now_s
        runs_dir = self._around.settings().agent.runs_dir
        for name in list(self._left):
            folder = runs_dir / name
            if jobs.at_work(folder):
                continue  # it is just ending, and writes its result last
            if self._around.troubles.heeded(
                "hand_over_left",
                lambda folder=folder: self._give_to_spool(_Over(folder, _LEFT)),  # type: ignore[misc]  # because mypy cannot type a default in a lambda
            ):
                self._left.remove(name)

    def _give_back(self) -> None:
        """Start again what was stopped for a sweep, in a thread; what fails is tried again."""
        errand = self._restoring
        if errand is not None:
            if not errand.done:
                return
            self._restoring = None
            if errand.error is not None:
                self._around.troubles.stands("production", str(errand.error))
            else:
                self._around.troubles.settled("production")
        now_s = self._around.now_s()
        if isinstance(self._phase, _Making | _Running) or (
            self._restore_s and now_s - self._restore_s < _RESTORE_AGAIN_S
        ):
            return
        self._restore_s = now_s
        file, systemctl = self._state_file, self._around.systemctl
        if production.owed(file) is not None:
            self._restoring = Errand(lambda: production.restore(file, systemctl))


_LEFT = Ended("interrupt", Note())


def _plain(name: str, values: tuple[int, ...]) -> object:
    return list(values) if name in ("concurrency", "memory_slots") else values[0]


def _options(settings: Settings) -> tuple[str, ...]:
    """A configured key signs; its path comes from the configuration, never from a message."""
    key = settings.signing.key_file
    return ("--no-report",) if key is None else ("--no-report", "--sign", str(key))
