"""`edgeagent fleet request` and `retire`: ask boxes for sweeps; clear what one left behind."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import uuid
from typing import TYPE_CHECKING, Any

from edgeagent.cli.config import add_config_option, load
from edgeagent.errors import UsageError

if TYPE_CHECKING:
    from edgeagent.core.rollout import Limits
    from edgeagent.fleet.choosing import Candidate, Choice
    from edgeagent.fleet.line import Line
    from edgeagent.fleet.places import Layout
    from edgeagent.fleet.request import Errand, Outcome
    from edgeagent.fleet.retire import Leftovers
    from edgeagent.publish.signature import Key
    from edgeagent.settings import Settings

_REQUEST = """\
Ask boxes of the plant for the sweep of one of their profiles, one after the
other, and follow them to the end. What a box is asked for it judges by its own
policy (docs/commands.md). The broker is the one of the configuration, mqtt.host.
"""
_REQUEST_EXAMPLES = """\
examples:
  edgeagent fleet request --profile nightly --site plant7 --dry-run
  edgeagent fleet request --profile nightly --where class=uma-nvgpu --at-once 4
  edgeagent fleet request --profile nightly --node edge-0001 --override concurrency=1,4
  edgeagent fleet request --cancel 5d0f…   take back what a rollout asked for

exit status: 0 all succeeded · 1 some did not · 69 no broker · 75 all said "later"
(busy, cooldown, quota, window, thermal, spool_full) · 130 interrupted
"""
_RETIRE = """\
Clear what a box that is gone has left retained at the broker (status, meta,
answers, receipts), and mark it in the store. It asks for the box's name again.
"""
_RETIRE_EXAMPLES = """\
examples:
  edgeagent fleet retire edge-0001
  edgeagent fleet retire edge-0001 --store sqlite:///var/lib/edgeagent-fleet/fleet.db --yes
"""
_ISSUER = "plant-operator"
_MOST_NAMED = 20


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Put the commands on the command line."""
    request = commands.add_parser(
        "request",
        help="ask boxes for a sweep, and follow it",
        description=_REQUEST,
        epilog=_REQUEST_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_config_option(request)
    what = request.add_mutually_exclusive_group(required=True)
    what.add_argument("--profile", metavar="NAME", help="a profile that the boxes know")
    what.add_argument("--cancel", metavar="ROLLOUT", help="take back what this one asked for")
    _add_choice(request)
    _add_care(request)
    _add_message(request)
    request.add_argument("--json", action="store_true", help="print what came of it as JSON")
    request.set_defaults(run=run_request)
    retire = commands.add_parser(
        "retire",
        help="clear what a decommissioned box left retained",
        description=_RETIRE,
        epilog=_RETIRE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_config_option(retire)
    retire.add_argument("node", metavar="NODE", help="the box's id")
    retire.add_argument("--site", metavar="SITE", help="its site, where two have this name")
    retire.add_argument("--store", metavar="URL", help="the collector's store, to mark it there")
    retire.add_argument("--yes", action="store_true", help="do not ask for its name again")
    retire.add_argument("--force", action="store_true", help="even if it is online")
    retire.set_defaults(run=run_retire)


def _add_choice(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("which boxes (all that are online, unless said)")
    group.add_argument("--site", metavar="SITE", help="of one site")
    group.add_argument(
        "--node", dest="nodes", metavar="NODE", action="append", default=[], help="(repeatable)"
    )
    group.add_argument(
        "--where",
        metavar="KEY=VALUE[,VALUE]",
        action="append",
        default=[],
        help="class, engine, health, state or version (repeatable: all must hold)",
    )
    group.add_argument(
        "--store",
        metavar="URL",
        help="choose from the collector's store; default: from what boxes left at the broker",
    )


def _add_care(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("how carefully")
    group.add_argument(
        "--stagger", metavar="S", type=float, default=1.0, help="seconds between two boxes (1)"
    )
    group.add_argument(
        "--at-once", metavar="N", type=int, default=10, help="boxes that are at it at once (10)"
    )
    group.add_argument(
        "--stop-after-failures",
        metavar="N",
        type=int,
        default=3,
        help="ask nobody else after so many failures; 0: never stop (3)",
    )
    group.add_argument(
        "--answer-within",
        metavar="S",
        type=float,
        default=90.0,
        help="give a box up that has not answered (90)",
    )
    group.add_argument(
        "--timeout",
        metavar="S",
        type=float,
        default=21_600.0,
        help="give a box up that is not done (21600, 6 h)",
    )


def _add_message(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("the request")
    group.add_argument(
        "--dry-run", action="store_true", help="only ask whether the boxes would, nothing is run"
    )
    group.add_argument(
        "--override",
        metavar="KEY=N[,N]",
        action="append",
        default=[],
        help="a number of the profile, such as concurrency=1,4 (repeatable)",
    )
    group.add_argument(
        "--expires", metavar="S", type=int, default=3600, help="how long it is valid (3600)"
    )
    group.add_argument(
        "--issuer", metavar="NAME", default=_ISSUER, help=f"in whose name ({_ISSUER})"
    )
    group.add_argument(
        "--key",
        metavar="FILE",
        help="sign with this key (default: mqtt.commands.hmac_key_file, else unsigned)",
    )


# ---------------------------------------------------------------- request


def run_request(options: argparse.Namespace) -> int:
    """Ask, follow, say what came of it; the exit status of `_REQUEST_EXAMPLES`."""
    from edgeagent.fleet.request import begun, checked, document_of, exit_status

    settings = load(options)
    errand = checked(_errand(options, settings))
    choice, limits = _choice(options), _limits(options)
    line = _line(settings, "fleet-request")
    try:
        line.open()
        boxes = _boxes(line, errand.places, choice, options.store)
        outcome = _pursued(line, errand, boxes, begun(boxes, limits), options)
    finally:
        line.close()
    if options.json:
        _print(json.dumps(document_of(errand, outcome), indent=2))
    else:
        _say(errand, outcome)
    return exit_status(outcome)


def _pursued(
    line: Line, errand: Errand, boxes: list[Candidate], state: Any, options: argparse.Namespace
) -> Outcome:
    from edgeagent.fleet.request import pursue
    from edgeagent.fleet.request_view import watching

    stream = sys.stderr if options.json else sys.stdout
    with watching(stream) as watch:
        return pursue(line, errand, boxes, state, watch)


def _say(errand: Errand, outcome: Outcome) -> None:
    from edgeagent.fleet.request_view import summed, table

    state = outcome.state
    if sys.stdout.isatty():
        table(state, sys.stdout)
    else:
        _print(summed(state.tally))
    if outcome.reason is not None:
        _print(f"the broker was lost, and with it what boxes say from now on: {outcome.reason}")
    elif state.halted is not None and outcome.end == "over":
        _print(f"{state.halted}: nobody else was asked")
    if state.out and errand.what.operation == "sweep":
        _print(f"{len(state.out)} may still act on it: {_listed(state.out)}")
        _print(
            f"to take it back: edgeagent fleet request --cancel {errand.rollout}{_named(state.out)}"
        )


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _named(names: tuple[str, ...]) -> str:
    """The options that name these boxes; none where there are too many for a line."""
    if len(names) > _MOST_NAMED:
        return ""
    return "".join(f" --node {name.split('/')[1]}" for name in names)


def _errand(options: argparse.Namespace, settings: Settings) -> Errand:
    from edgeagent.fleet.places import layout
    from edgeagent.fleet.request import Cancels, Errand, Sweeps

    what: Sweeps | Cancels
    if options.cancel is not None:
        if options.override or options.dry_run:
            raise UsageError("--cancel takes a request back: it has no --override and no --dry-run")
        what = Cancels(_uuid(options.cancel))
    else:
        override = _override(options.override)
        what = Sweeps(options.profile, override, "dry_run" if options.dry_run else "run")
    return Errand(
        what,
        options.issuer,
        layout(settings.topic_template),
        options.expires,
        _key(options, settings),
    )


def _uuid(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError as error:
        raise UsageError(
            f'"{text}" is no rollout: give the id that `fleet request` said or its --json has'
        ) from error


def _override(texts: list[str]) -> dict[str, int | list[int]]:
    found: dict[str, int | list[int]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        key = name.replace("-", "_")
        try:
            numbers = [int(value) for value in values.split(",")]
        except ValueError:
            numbers = []
        if not equals or not numbers or key in found:
            raise UsageError(
                f'--override "{text}" cannot be used: write KEY=NUMBER or KEY=NUMBER,NUMBER, each '
                "key once, as in concurrency=1,4"
            )
        listed = key in {"concurrency", "memory_slots"} or len(numbers) > 1
        found[key] = numbers if listed else numbers[0]
    return found


def _key(options: argparse.Namespace, settings: Settings) -> Key | None:
    from edgeagent.publish.signature import read_key

    configured = settings.mqtt.commands.hmac_key_file
    name = options.key if options.key is not None else configured
    return None if name is None else read_key(str(name))


def _choice(options: argparse.Namespace) -> Choice:
    from edgeagent.fleet.choosing import Choice, parsed_where
    from edgeagent.publish.topics import checked_id

    for name in options.nodes:
        _checked("--node", name, checked_id)
    if options.site is not None:
        _checked("--site", options.site, checked_id)
    return Choice(options.site, tuple(dict.fromkeys(options.nodes)), parsed_where(options.where))


def _checked(what: str, name: str, check: Any) -> None:
    from edgeagent.errors import ConfigError

    try:
        check(what, name)
    except ConfigError as error:
        raise UsageError(str(error)) from error


def _limits(options: argparse.Namespace) -> Limits:
    from edgeagent.core.rollout import Limits

    seconds = (options.stagger, options.answer_within, options.timeout)
    if not all(math.isfinite(one) and 0 <= one <= 10_000_000 for one in seconds):  # noqa: PLR2004  # because four months are for ever
        raise UsageError("--stagger, --answer-within and --timeout are seconds, 0 or more")
    if options.at_once < 1 or options.stop_after_failures < 0:
        raise UsageError("--at-once is 1 or more, --stop-after-failures is 0 or more")
    cancel = options.cancel is not None
    return Limits(
        at_once=options.at_once,
        stagger_ms=0 if cancel else int(options.stagger * 1000),
        stop_after=None if cancel else options.stop_after_failures or None,
        answer_within_ms=int(options.answer_within * 1000),
        end_within_ms=int(options.timeout * 1000),
    )


def _boxes(line: Line, places: Layout, choice: Choice, url: str | None) -> list[Candidate]:
    from edgeagent.fleet.choosing import at_broker, chosen, in_store
    from edgeagent.fleet.store import open_store, shown

    if url is None:
        return chosen(at_broker(line, places, choice), choice, "the broker")
    store = open_store(url, "read")
    try:
        known = in_store(store)
    finally:
        store.close()
    return chosen(known, choice, shown(url))


def _line(settings: Settings, name: str) -> Line:
    from edgeagent.fleet.line import Line
    from edgeagent.publishing import broker_of

    return Line(broker_of(settings), name)


# ---------------------------------------------------------------- retire


def run_retire(options: argparse.Namespace) -> int:
    """Clear and mark; 0 also when nothing was there."""
    from edgeagent.fleet.places import layout
    from edgeagent.fleet.retire import clear, leftovers
    from edgeagent.publish.topics import checked_id

    _checked("NODE", options.node, checked_id)
    if options.site is not None:
        _checked("--site", options.site, checked_id)
    settings = load(options)
    places = layout(settings.topic_template)
    line = _line(settings, "fleet-retire")
    try:
        line.open()
        left = leftovers(line, places, options.node, options.site)
        if left is None:
            _print(f"{options.node} has left nothing at the broker")
        else:
            _agreed(left, options)
            clear(line, left)
            _print(f"cleared {len(left.topics)} retained messages of {options.node}")
    finally:
        line.close()
    _mark(options)
    return 0


def _agreed(left: Leftovers, options: argparse.Namespace) -> None:
    """Raise UsageError unless the operator means it."""
    node = left.identity.node
    if left.state == "online" and not options.force:
        raise UsageError(
            f"{node} is online, and would come back with its next status: switch it off first, or "
            "say --force"
        )
    if options.yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"nobody can be asked whether {node} is meant: say --yes")
    _print(f"{len(left.topics)} retained messages at {left.identity.site} will be cleared:")
    for topic in left.topics[:_MOST_NAMED]:
        _print(f"  {topic}")
    if input("type the box's name to go on: ").strip() != node:
        raise UsageError("that was another name: nothing was cleared")


def _mark(options: argparse.Namespace) -> None:
    from edgeagent.fleet.retire import mark_retired
    from edgeagent.fleet.store import open_store, shown

    if options.store is None:
        return
    store = open_store(options.store, "write")
    try:
        known = mark_retired(store, options.node, options.site, time.time_ns() // 1_000_000)
    finally:
        store.close()
    where = shown(options.store)
    _print(f"marked as retired in {where}" if known else f"{where} does not know {options.node}")


def _print(text: str) -> None:
    print(text)  # noqa: T201  # because the CLI prints
