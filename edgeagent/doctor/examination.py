"""Does everything that the agent needs work on this box?

The application side of `edgeagent doctor`. All parts are asked at once, each with its own time: one
that hangs costs its own line. Nothing is changed; what is started is NVML's own child, programs
with --version, and a child that looks in the rights of the service's user.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from edgeagent import __version__
from edgeagent.core import diagnosis
from edgeagent.core.diagnosis import Check, Nodes
from edgeagent.doctor import (
    accounts,
    basis,
    broker,
    calendar,
    engines,
    files,
    measuring,
    redaction,
    rights,
    service,
    unit,
)
from edgeagent.doctor.accounts import Account
from edgeagent.doctor.bounded import Errand, OverdueError
from edgeagent.doctor.files import Profiles, Seen, Wanted
from edgeagent.doctor.unit import Unit
from edgeagent.errors import ConfigError
from edgeagent.inspection import now
from edgeagent.probes import box, catalogue, surroundings
from edgeagent.settings import Settings
from edgeagent.settings_check import Reader
from edgeagent.settings_faults import Fault

SCHEMA = "edgeagent.doctor/1"

_RUNS = "edgeagent-runs"
_REDACTION_S = 10.0
_AS_ROOT = "sudo edgeagent doctor tries it as the service's user"
_REPORT_IT = "this is a fault of edgeagent: report it with edgeagent doctor --json"
_NOT_SEEN = Seen((), {}, {}, {}, Nodes())


@dataclass(frozen=True)
class Question:
    """What is asked: about which box, with which configuration, and how far."""

    environ: Mapping[str, str]
    settings: Settings
    faults: tuple[Fault, ...] = ()
    reach: Literal["broker", "offline"] = "broker"

    @property
    def root(self) -> Path:
        """The folder that stands for `/`."""
        return catalogue.sysroot(self.environ)


@dataclass(frozen=True)
class Subject:
    """On whose behalf the box is looked at."""

    asker: Account
    service: Account | None
    unit: Unit | None
    whom: Account
    """Whose rights count for files and programs."""
    may_become: Literal["self", "can", "cannot"]
    """Whether those are ours, can be taken, or cannot."""

    @property
    def whose(self) -> str:
        """How that user is called in a sentence."""
        return f"user {self.whom.name}"

    @property
    def asks_for_others(self) -> bool:
        """Whether an ordinary user looks at a box whose files are the service's to use."""
        return self.service is not None and self.whom is not self.service and self.whom.uid != 0

    @property
    def sandbox(self) -> Unit | None:
        """The unit that closes things to that user; None where it is not the service."""
        return self.unit if self.service is not None and self.whom is self.service else None


@dataclass
class Findings:
    """What has come together so far."""

    checks: list[Check] = field(default_factory=list)

    def take(self, checks: Iterable[Check | None]) -> None:
        """Add what is there."""
        self.checks.extend(check for check in checks if check is not None)

    def take_of_others(self, checks: Iterable[Check | None], subject: Subject) -> None:
        """Add what concerns the service's files, if it is not for this user to use them."""
        for check in checks:
            if check is not None and check.state == "fault" and subject.asks_for_others:
                self.checks.append(Check(check.name, "unasked", check.text, _AS_ROOT))
            else:
                self.take([check])

    def await_all(self, errands: Mapping[str, Errand[list[Check]]]) -> None:
        """Add what each errand brings; one that is late, or has a bug, brings that."""
        for name, errand in errands.items():
            try:
                self.take(errand.result())
            except OverdueError as error:
                self.take([Check(name, "fault", f"{error}; the rest went on", _hangs(name))])
            except Exception as error:  # noqa: BLE001  # because a bug in one part must not hide the others
                text = f"{type(error).__name__}: {error}"
                self.take([Check(name, "fault", text, _REPORT_IT)])


def _hangs(name: str) -> str:
    return f"{name} hangs on this box: see dmesg, and what it is connected to"


def examine(question: Question) -> dict[str, Any]:
    """Return everything that was looked at, and what it is worth; secrets are left out."""
    root, settings = question.root, question.settings
    clocks = (time.time(), time.monotonic())
    host = box.host_facts(root)
    profiles = files.profiles(settings)
    subject = subject_of(root, settings)
    findings = Findings()
    # First, because a child is only made while there is one thread.
    seen = _looked(question, subject, profiles, str(host["class"]), findings)
    measured = Errand(lambda: measuring.measure(root, question.environ, host), measuring.LIMIT_S)
    errands = _errands(question, subject, profiles, seen)
    daemon = _daemon(question, subject, findings)
    errands |= _broker_errand(question, daemon)
    findings.take(_of_configuration(question, subject, profiles, seen, str(host["class"])))
    findings.take_of_others(_of_files(question, subject, profiles, seen), subject)
    findings.take(_of_places(question, subject, seen))
    findings.await_all(errands)
    read = _measured(measured, findings)
    findings.take([_of_the_date(question, clocks)])
    checks = [*read.checks, *findings.checks]
    document = {
        "schema": SCHEMA,
        "at": now(),
        "agent": {"version": __version__, "python": platform.python_version()},
        "asked": _asked(question, subject),
        "host": host,
        "worst": diagnosis.worst(checks),
        "checks": [asdict(check) for check in checks],
        "configuration": _configuration(question, profiles),
        "service": daemon.answer,
        "probes": read.probes,
        "facts": read.facts,
        "capabilities": read.capabilities,
    }
    return _without_secrets(document, question)


def exit_status(document: Mapping[str, Any]) -> int:
    """Return 78 when the configuration has a fault, 1 when anything else has, else 0."""
    faults = {
        check["name"] for check in document.get("checks", ()) if check.get("state") == "fault"
    }
    if "configuration" in faults:
        return ConfigError.exit_status
    return 1 if faults or document.get("worst") == "fault" else 0


# ---------------------------------------------------------------------------------- on whose behalf


def subject_of(root: Path, settings: Settings) -> Subject:
    """Find the service's user; an ordinary user's own configuration is that user's matter."""
    installed = unit.find(root)
    asker = accounts.myself()
    name = installed.user if installed is not None else "edgeagent"
    found = accounts.account(root, name)
    if found is not None and installed is not None:
        added = (accounts.group(root, group) for group in installed.words("SupplementaryGroups"))
        found = found.joined(frozenset(gid for gid in added if gid is not None))
    if found is None or settings.scope == "user":
        return Subject(asker, found, installed, asker, "self")
    if found.uid == asker.uid:
        return Subject(asker, found, installed, found, "self")
    return Subject(asker, found, installed, found, "can" if asker.uid == 0 else "cannot")


def _asked(question: Question, subject: Subject) -> dict[str, Any]:
    def told(user: Account | None) -> dict[str, Any] | None:
        if user is None:
            return None
        names = sorted(accounts.group_name(question.root, gid) for gid in user.gids)
        return {"user": user.name, "uid": user.uid, "groups": names}

    return {
        "by": told(subject.asker),
        "service": told(subject.service),
        "scope": question.settings.scope,
        "root": str(question.root),
        "reach": question.reach,
    }


def _looked(
    question: Question, subject: Subject, profiles: Profiles, kind: str, findings: Findings
) -> Seen | None:
    """Look in the rights of the service's user, or in ours; None where neither can be."""
    if subject.may_become == "cannot":
        text = f"what {subject.whose} may read: only that user and root can try it"
        findings.take([Check("files", "unasked", text, "sudo edgeagent doctor")])
        return None
    wanted = Wanted(
        question.settings,
        Reader(
            subject.whom.uid,
            subject.whom.gids,
            subject.whose,
            home_hidden="visible",  # the unit's own lines are looked at
            manner="tried",
        ),
        question.root,
        kind,
        tuple(path for _, path in profiles.models),
        tuple(_programs(profiles, subject)),
        files.service_places(question.settings),
    )
    try:
        if subject.may_become == "can":
            files.look(wanted)  # so that all is imported before the rights to read it are gone
        whom = subject.whom if subject.may_become == "can" else None
        return files.seen(rights.look(whom, lambda: files.look(wanted), files.LIMIT_S))
    except OverdueError as error:
        text = f"looking at files as {subject.whose} gave {error}"
        findings.take([Check("files", "fault", text, "is a network drive away? see mount")])
    except (rights.CannotLookError, OSError) as error:
        findings.take([Check("files", "unasked", f"looking as {subject.whose} failed: {error}")])
    return None


def _programs(profiles: Profiles, subject: Subject) -> Iterator[Path]:
    for engine in profiles.engines:
        if engine.command and not engine.attached:
            file = engines.program_of(engine, _path(subject))
            if file is not None:
                yield Path(file)


def _path(subject: Subject) -> str:
    own = subject.sandbox.path if subject.sandbox is not None else os.environ.get("PATH")
    return own or os.defpath


# --------------------------------------------------------------------------------------- the parts


def _errands(
    question: Question, subject: Subject, profiles: Profiles, seen: Seen | None
) -> dict[str, Errand[list[Check]]]:
    """Begin everything that may take its time."""
    root, environ = question.root, question.environ
    wanted = question.settings.mqtt.enabled or bool(question.settings.profiles())
    asker = engines.Asker(environ, subject.whom if subject.may_become == "can" else None)
    stand = engines.Stand(asker, _path(subject), subject.sandbox, subject.whose)
    refused = seen.programs if seen is not None else {}
    found = {
        "engine": _errand(lambda: engines.present(root, environ), engines.LIMIT_S),
        "service": _errand(
            lambda: [service.unit_check(root, subject.unit, wanted)], service.LIMIT_S
        ),
        "agent": _errand(lambda: basis.checks(box.host_facts(root)), service.LIMIT_S),
    }
    for engine in profiles.engines:
        file = engines.program_of(engine, stand.path) if engine.command else None
        why = refused.get(str(file))
        found[f"configured.{engine.id}"] = _errand(
            lambda engine=engine, why=why: [engines.configured(engine, stand, why)],  # type: ignore[misc]  # because mypy cannot see a default of a lambda
            engines.LIMIT_S,
        )
    return found


def _errand(work: Callable[[], Iterable[Check]], limit_s: float) -> Errand[list[Check]]:
    return Errand(lambda: list(work()), limit_s)


def _daemon(question: Question, subject: Subject, findings: Findings) -> service.Daemon:
    """Ask the running service; below another root there is none to ask."""
    if question.root != Path("/"):
        return service.Daemon(())
    told = service.daemon(question.settings.daemon.socket, _runs(subject))
    findings.take(told.checks)
    return told


def _runs(subject: Subject) -> bool:
    """Whether systemd holds the service for running."""
    if subject.unit is None or not service.systemd_runs(Path("/")):
        return False
    told = service.state()
    return not isinstance(told, str) and told.get("ActiveState") == "active"


def _broker_errand(question: Question, daemon: service.Daemon) -> dict[str, Errand[list[Check]]]:
    settings = question.settings
    if not settings.mqtt.enabled:
        return {"broker": _errand(lambda: [diagnosis.broker(None)], _REDACTION_S)}
    if question.reach == "offline":
        return {"broker": _errand(lambda: [broker.left_alone(settings)], _REDACTION_S)}
    node = (daemon.answer or {}).get("node")
    # A copied disk speaks under another name than its configuration says.
    spoken = settings.as_node(node) if isinstance(node, str) else settings
    moment = broker.utc_now()
    return {"broker": _errand(lambda: broker.asked(spoken, moment), broker.LIMIT_S)}


def _measured(errand: Errand[measuring.Measured], findings: Findings) -> measuring.Measured:
    try:
        return errand.result()
    except OverdueError as error:
        findings.take([Check("probes", "fault", f"{error}; the rest went on", _hangs("a probe"))])
    except Exception as error:  # noqa: BLE001  # because a bug in one part must not hide the others
        findings.take([Check("probes", "fault", f"{type(error).__name__}: {error}", _REPORT_IT)])
    return measuring.Measured(())


def _of_configuration(
    question: Question, subject: Subject, profiles: Profiles, seen: Seen | None, kind: str
) -> Iterator[Check | None]:
    settings = question.settings
    faults = (*question.faults, *settings.warnings, *profiles.faults)
    yield from files.configuration(settings.files, faults)
    if settings.mqtt.enabled:
        yield from broker.certificates(settings, broker.utc_now())
    if seen is not None and subject.sandbox is not None:
        yield files.gpu(kind, seen.nodes, subject.whose)


def _of_files(
    question: Question, subject: Subject, profiles: Profiles, seen: Seen | None
) -> Iterator[Check]:
    if seen is not None:
        count = files.count_named(question.settings)
        if subject.service is None and subject.whom.uid == 0 and (count or profiles.models):
            text = "this box has no user edgeagent, so root's rights were tried, who may read all"
            hint = "install the package, or sudo systemd-sysusers, and ask again"
            yield Check("files.user", "unasked", text, hint)
        yield from files.named(seen, subject.whose, count)
        yield from files.models(profiles.models, seen, subject.whose, subject.sandbox)


def _of_places(question: Question, subject: Subject, seen: Seen | None) -> Iterator[Check]:
    from edgeagent.models.hashing import cache_file

    yield diagnosis.disk("runs", surroundings.place(_here() / _RUNS))
    yield diagnosis.disk("cache", surroundings.place(cache_file(dict(question.environ)).parent))
    if seen is not None:
        whose = subject.whose if subject.may_become == "can" else ""
        yield from files.places(question.settings, seen, whose, subject.sandbox)


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path("/nowhere")


def _of_the_date(question: Question, clocks: tuple[float, float]) -> Check:
    wall_s, monotonic_s = clocks
    stepped_s = (time.time() - wall_s) - (time.monotonic() - monotonic_s)
    keys = question.settings
    certificates = [path for path in (keys.mqtt.tls.cert_file, keys.mqtt.tls.ca_file) if path]
    written = [keys.mqtt.spool.path, *keys.files]
    return calendar.date(broker.utc_now(), calendar.past(certificates, written), stepped_s)


def _configuration(question: Question, profiles: Profiles) -> dict[str, Any]:
    from edgeagent import settings_text

    faults = (*question.faults, *question.settings.warnings, *profiles.faults)
    document = settings_text.document(question.settings)
    return {
        "sound": not any(fault.severity == "error" for fault in faults),
        "files": document["files"],
        "faults": [asdict(fault) for fault in faults],
        "settings": document["settings"],
    }


def _without_secrets(document: dict[str, Any], question: Question) -> dict[str, Any]:
    settings = question.settings
    broken = (Path(fault.where.partition(":")[0]) for fault in question.faults if fault.where)
    read = [*settings.files, *(path for path in broken if path.is_absolute())]
    try:
        secrets = Errand(
            lambda: redaction.known_secrets(settings, read, question.environ), _REDACTION_S
        ).result()
    except OverdueError:
        secrets = frozenset()  # a drive that hangs gave nothing that could be shown, either
    cleaned: dict[str, Any] = redaction.redacted(document, secrets)
    return cleaned
