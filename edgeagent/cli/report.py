"""`edgeagent report`: the buyer's sheet of a run or several; the same as text, rows or JSON."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

_EXAMPLES = """\
examples:
  edgeagent report edgeagent-runs/A                        writes edgeagent-runs/A/report.html
  edgeagent report runs/A runs/B -o sheet.html             two boxes or versions in one sheet
  edgeagent report runs/A --csv -o cells.csv               a row a cell
"""


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Put the command and its options on the command line."""
    report = commands.add_parser(
        "report",
        help="the buyer's sheet of a run or several",
        usage="edgeagent report RUN [RUN ...] [-o FILE] [--text | --csv | --csv-levels | --json]",
        description="Write the buyer's sheet: one HTML file that needs no network and no script.\n"
        "The same content as text, CSV or JSON goes to standard output, or to FILE.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    report.add_argument("runs", metavar="RUN", nargs="+", help="a run folder or a result.json")
    report.add_argument("-o", "--output", metavar="FILE", help="where to; - is standard output")
    forms = report.add_mutually_exclusive_group()
    for form, words in (
        ("text", "what `sweep` prints at its end"),
        ("csv", "one row a cell"),
        ("csv-levels", "one row a level, with intervals over its repeats"),
        ("json", "the results as one JSON document"),
    ):
        forms.add_argument(f"--{form}", dest="form", action="store_const", const=form, help=words)
    report.set_defaults(run=run, form="html")


def run(options: argparse.Namespace) -> int:
    """Write the report; 0 whatever it says."""
    from edgeagent import reporting

    results = reporting.read_results([Path(name) for name in options.runs])
    to = _target(options, results[0].path)
    width = shutil.get_terminal_size((140, 24)).columns
    text = reporting.rendered(results, options.form, width)
    if to is None:
        sys.stdout.write(text)
        return 0
    reporting.write(text, to)
    print(f"written: {to}", file=sys.stderr)  # noqa: T201  # because the CLI prints
    return 0


def _target(options: argparse.Namespace, first: Path) -> Path | None:
    """Where the report goes; None for standard output."""
    if options.output == "-":
        return None
    if options.output:
        return Path(options.output)
    if options.form != "html":
        return None
    return first / "report.html" if len(options.runs) == 1 else Path("edgeagent-report.html")
