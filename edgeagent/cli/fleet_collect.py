"""`edgeagent fleet collect`: store what the boxes send, and tell them so."""

from __future__ import annotations

import argparse
import os
import re
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from edgeagent.cli.config import add_config_option, load
from edgeagent.errors import UsageError

if TYPE_CHECKING:
    from edgeagent.publish.broker import Broker
    from edgeagent.settings import Settings

_ABOUT = """\
Run as a service on a server of the plant: subscribe to what the boxes send,
store it, and tell each box how far its rows are stored, so that it may forget
them. The broker and how to reach it stand in [mqtt] of the configuration.
"""
_EXAMPLES = """\
examples:
  edgeagent fleet collect --set mqtt.host=broker.plant --set mqtt.enabled=true
  edgeagent fleet collect --store postgresql://fleet@db/fleet --share collectors
  edgeagent fleet collect --queue-limit 100000     as max_queued_messages of the broker
"""
_SHARE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
_DAY_MS, _LEAST_DAYS = 86_400_000, 60
_USUAL_QUEUE = 1_000
"""Of mosquitto and HiveMQ CE."""


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Put the command on the command line."""
    collect = commands.add_parser(
        "collect",
        help="store what the boxes send, and tell them so",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    collect.add_argument(
        "--store",
        metavar="URL",
        default="sqlite:///var/lib/edgeagent-fleet/fleet.db",
        help="sqlite:///PATH or postgresql://USER@HOST/DATABASE (%(default)s)",
    )
    collect.add_argument(
        "--topic-root",
        metavar="ROOT",
        help="what stands before SITE/NODE, or a template with {node} (mqtt.topic_prefix)",
    )
    collect.add_argument(
        "--queue-limit",
        metavar="N",
        type=_count,
        default=_USUAL_QUEUE,
        help="messages that the broker keeps for one subscriber (%(default)s); "
        "boxes share half of them",
    )
    collect.add_argument(
        "--share",
        metavar="NAME",
        help="be one of several collectors that share the work; needs a postgresql:// store",
    )
    collect.add_argument(
        "--keep-days",
        metavar="N",
        type=_count,
        default=90,
        help="how long minutes of telemetry are kept, at least 60 (%(default)s); "
        "hours and results stay",
    )
    collect.add_argument(
        "--owners",
        metavar="FILE",
        help='lines "SITE NODE": these boxes and no others (default: first come)',
    )
    add_config_option(collect)
    collect.set_defaults(run=run_collect, scope="system")


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 1_000_000_000:  # noqa: PLR2004  # because no queue is longer
        raise argparse.ArgumentTypeError(f'"{text}" is no whole number above 0')
    return int(text)


def run_collect(options: argparse.Namespace) -> int:
    """Collect until somebody ends it."""
    # Here, because the parser of every other command must not pay for it.
    from edgeagent.fleet.collector import Around, Collector, Rules
    from edgeagent.fleet.listener import Listener
    from edgeagent.fleet.places import layout
    from edgeagent.fleet.store import open_store
    from edgeagent.journal import journal
    from edgeagent.systemd import notifier

    settings = load(options)
    rules = Rules(
        layout(options.topic_root or settings.topic_template),
        options.queue_limit,
        _checked_share(options.share, options.store),
        _checked_days(options.keep_days) * _DAY_MS,
        None if options.owners is None else read_owners(Path(options.owners)),
    )
    stopping = Event()
    for which in (signal.SIGTERM, signal.SIGINT):
        signal.signal(which, lambda _signal, _frame: stopping.set())
    listener = Listener(_broker(settings), rules.subscription())
    store = open_store(options.store, "collect")
    try:
        around = Around(journal(os.environ), notifier(os.environ))
        Collector(store, listener, rules, around).run(stopping)
    finally:
        store.close()
    return 0


def _checked_days(days: int) -> int:
    # A broker or a box may send again what is as old as that.
    if days < _LEAST_DAYS:
        raise UsageError(f"--keep-days is {days}; it has to be {_LEAST_DAYS} or more")
    return days


def _broker(settings: Settings) -> Broker:
    """The broker of [mqtt]; by default with a client id that no box on this machine has."""
    from edgeagent.publishing import broker_of

    broker = broker_of(settings)
    if settings.origin("mqtt", "client_id") == "default":
        broker = replace(broker, client_id=f"{broker.client_id}-fleet")
    return broker


def _checked_share(share: str | None, store: str) -> str | None:
    if share is None:
        return None
    if not _SHARE.match(share):
        raise UsageError(f'--share is "{share}"; use letters, digits, dots, - and _')
    if store.startswith("sqlite:"):
        raise UsageError("--share is for several collectors, which need a postgresql:// store")
    return share


def read_owners(path: Path) -> Mapping[str, str]:
    """Return the site of each node. Raises UsageError."""
    from edgeagent.errors import ConfigError
    from edgeagent.publish.topics import Identity

    owners: dict[str, str] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UsageError(f"--owners {path} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            site, node = words
            Identity(site, node)
        except (ValueError, ConfigError) as error:
            raise UsageError(
                f'--owners {path}, line {number}: it has to be "SITE NODE" ({error})'
            ) from error
        if owners.setdefault(node, site) != site:
            raise UsageError(f"--owners {path}, line {number}: {node} stands there twice")
    return owners
