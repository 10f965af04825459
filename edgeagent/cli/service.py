"""`edgeagent daemon`, `trigger` and `publish`: the box and the plant's broker."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeagent.cli.config import add_config_option, load, sound_part
from edgeagent.errors import BusyError, EdgeAgentError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from edgeagent.publishing import Office
    from edgeagent.settings import Settings

_DAEMON = """\
Run as a service: telemetry and results to the plant's broker, sweeps on request of the plant or of
somebody on this box. It connects out and listens on nothing but a local socket.
"""
_TRIGGER_EXAMPLES = """\
examples:
  edgeagent trigger nightly            ask for the sweep [sweep.profiles.nightly]
  edgeagent trigger nightly --wait     and wait for its end

exit status: 0 accepted (with --wait: done) · 1 failed · 2 refused · 69 no daemon · 75 busy
"""
_PUBLISH_EXAMPLES = """\
examples:
  edgeagent publish edgeagent-runs/A           put a result into the spool; the daemon delivers it
  edgeagent publish edgeagent-runs/A --flush   deliver it now, with everything that waits
  edgeagent publish --flush                    deliver what waits
"""
_BUSY = {"busy", "cooldown", "quota", "window", "thermal", "spool_full", "ending"}


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Put the commands on the command line."""
    daemon = commands.add_parser("daemon", help="run as a service", description=_DAEMON)
    add_config_option(daemon)
    daemon.add_argument(
        "--restore",
        action="store_true",
        help="only start again what was stopped for a sweep, and end (systemd's ExecStopPost)",
    )
    daemon.set_defaults(run=run_daemon, scope="system")
    trigger = commands.add_parser(
        "trigger",
        help="ask the daemon for a sweep",
        description="Ask the daemon on this box for the sweep of a profile.",
        epilog=_TRIGGER_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_config_option(trigger)
    trigger.add_argument("profile", metavar="PROFILE", help="a name of [sweep.profiles]")
    trigger.add_argument("--wait", action="store_true", help="wait for the end of the sweep")
    trigger.add_argument("--json", action="store_true", help="print what the daemon says as JSON")
    trigger.set_defaults(run=run_trigger)
    publish = commands.add_parser(
        "publish",
        help="put results into the spool, and deliver them",
        usage="edgeagent publish [RUN ...] [--flush] [--timeout S]",
        description="Put results into the spool. The daemon delivers them, or --flush does.",
        epilog=_PUBLISH_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_config_option(publish)
    publish.add_argument("runs", metavar="RUN", nargs="*", help="a run folder")
    publish.add_argument("--flush", action="store_true", help="deliver everything that waits, now")
    publish.add_argument(
        "--timeout", type=float, default=60.0, metavar="S", help="longest wait for --flush (60)"
    )
    publish.set_defaults(run=run_publish)


def run_daemon(options: argparse.Namespace) -> int:
    """Run until somebody ends it."""
    from edgeagent.engines.cgroup_leaf import make_room
    from edgeagent.journal import journal
    from edgeagent.service import daemon
    from edgeagent.systemd import notifier

    if options.restore:
        unit = daemon.restore(sound_part(options))  # also where the configuration has a fault
        if unit is not None:
            _print(f"started again: {unit}")
        return 0
    make_room(os.environ)  # before there are threads and children
    around = daemon.Around(
        load=lambda: _checked(load(options)),
        environ=os.environ,
        notifier=notifier(os.environ),
        journal=journal(os.environ),
        policy_owners=frozenset({0, os.geteuid()}) if os.geteuid() else frozenset({0}),
    )
    return daemon.run(around)


def _checked(settings: Settings) -> Settings:
    """The service uses every file that is named, so they are looked at before anything begins."""
    from edgeagent.settings_check import myself, require_files

    require_files(settings, myself())
    return settings


def run_trigger(options: argparse.Namespace) -> int:
    """Ask, and say what was answered."""
    from edgeagent.service.control import ask

    settings = load(options)
    request = {"op": "trigger", "profile": options.profile, "wait": options.wait}
    last: Mapping[str, object] = {}
    for answer in ask(settings.daemon.socket, request, 30.0):
        if ("state" in answer or "error" in answer) and _news(answer) != _news(last):
            last = answer
            _tell(answer, options)
    return _status_of(last)


def _news(answer: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in answer.items() if name != "last"}


def _tell(answer: Mapping[str, object], options: argparse.Namespace) -> None:
    if options.json:
        _print(json.dumps(_news(answer)))
        return
    if answer.get("state") == "rejected" or "error" in answer:
        return  # said as the error that it is
    words = [f"{answer.get('state')}"]
    if answer.get("total"):
        words.append(f"{answer.get('done')} of {answer.get('total')} cells")
    words += [str(answer[name]) for name in ("run", "reason") if answer.get(name)]
    _print(": ".join(words))


def _status_of(answer: Mapping[str, object]) -> int:
    state = answer.get("state")
    if state == "rejected" or "error" in answer:
        sentence = str(answer.get("reason") or answer.get("text"))
        busy = (answer.get("code") or answer.get("error")) in _BUSY
        raise BusyError(sentence) if busy else UsageError(sentence)
    return 1 if state in ("failed", "cancelled", "interrupted") else 0


def run_publish(options: argparse.Namespace) -> int:
    """Put runs into the spool, and deliver if wanted."""
    from edgeagent import publishing

    if not options.runs and not options.flush:
        raise UsageError("name a run folder to publish, or --flush to deliver what waits")
    settings = load(options)
    if options.flush:
        publishing.broker_of(settings)  # refuses before anything is done
    office = publishing.open_office(settings)
    try:
        _hand_over(office, options.runs)
        if not options.flush:
            _wake(settings.daemon.socket)
            return 0
        left = publishing.flush(office, options.timeout, lambda _left: None)
    finally:
        office.close()
    if not left.rows:
        _print("everything is delivered")
        return 0
    why = f"; {left.why}" if left.why else ""
    _print(f"{left.rows} messages still wait in the spool{why}")
    return 1


def _hand_over(office: Office, runs: Iterable[str]) -> None:
    from edgeagent import publishing

    for name in runs:
        rows = publishing.hand_over_folder(office, Path(name))
        _print(
            f"{name}: {f'{len(rows)} messages in the spool' if rows else 'was published before'}"
        )


def publish_run(options: argparse.Namespace, folder: Path) -> str:
    """Put a run that has just ended into the spool; return a sentence. Raises EdgeAgentError."""
    from edgeagent import publishing

    settings = load(options)
    office = publishing.open_office(settings)
    try:
        rows = publishing.hand_over_folder(office, folder)
    finally:
        office.close()
    who = (
        "the daemon delivers them"
        if _wake(settings.daemon.socket)
        else ("deliver them with: edgeagent publish --flush")
    )
    return f"{len(rows)} messages for the broker are in the spool; {who}"


def _wake(place: Path) -> bool:
    """Tell the daemon, if there is one; it would find out by itself within a minute."""
    from edgeagent.service.control import ask

    try:
        list(ask(place, {"op": "wake"}, 5.0))
    except EdgeAgentError:
        return False
    return True


def _print(text: str) -> None:
    print(text, file=sys.stdout, flush=True)  # noqa: T201  # because the CLI prints
