"""`edgeagent compare`: what stored runs, or the engines of one run, say about each other."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

_EXAMPLES = """\
examples:
  edgeagent compare edgeagent-runs/A                       the engines of one run
  edgeagent compare runs/A runs/B --metric ttft_s.p95      two boxes, versions or quantizations
  edgeagent compare runs/A runs/B --json
"""


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Put the command and its options on the command line."""
    compare = commands.add_parser(
        "compare",
        help="where one engine or run overtakes another, and how sure that is",
        usage="edgeagent compare RUN [RUN ...] [--metric NAME] [--json]",
        description="Compare the curves of stored runs over concurrency: which side is better up "
        "to where,\nbetween which concurrencies they cross (95 %), or how many more repeats would "
        "settle it.\nWhat differs besides is said; runs that cannot be compared are refused.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    compare.add_argument("folders", metavar="RUN", nargs="+", help="a run folder")
    compare.add_argument(
        "--metric",
        metavar="NAME",
        help="one metric by its name in result.json (default: the usual ones)",
    )
    compare.add_argument("--json", action="store_true", help="print the comparison as JSON")
    compare.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the comparison; 0 whatever its outcome."""
    from edgeagent import comparing

    document = comparing.compare_runs([Path(folder) for folder in options.folders], options.metric)
    if options.json:
        print(json.dumps(document, indent=2))  # noqa: T201  # because the CLI prints
    else:
        from edgeagent.report.comparison import show

        show(document, sys.stdout)
    return 0
