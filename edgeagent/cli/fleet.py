"""`edgeagent fleet`: the plant's side."""

from __future__ import annotations

import argparse
from typing import Any

from edgeagent.cli import fleet_collect, fleet_requests, fleet_views

_EXAMPLES = """\
examples:
  edgeagent fleet collect            store what the boxes send, and tell them so
  edgeagent fleet status             one line a box
  edgeagent fleet report -o fleet.html
  edgeagent fleet request --profile nightly --site plant7 --dry-run
"""


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Put the commands and their options on the command line."""
    fleet = commands.add_parser(
        "fleet",
        help="collect the results of many boxes, compare them, ask for sweeps",
        description="Collect the results of many boxes over MQTT, compare them, ask for sweeps.\n"
        "Runs on a server of the plant.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = fleet.add_subparsers(title="commands", metavar="COMMAND", required=True)
    fleet_collect.add_to(what)
    fleet_views.add_to(what)
    fleet_requests.add_to(what)
