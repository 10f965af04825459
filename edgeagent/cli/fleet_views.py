"""`edgeagent fleet status`, `watch`, `report`, `export`: what the collector knows."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgeagent.fleet.queries import Chosen

_STORE = "sqlite:///var/lib/edgeagent-fleet/fleet.db"


def add_to(sub: argparse._SubParsersAction[Any]) -> None:
    """Put the four views on the command line of `edgeagent fleet`."""
    _add_status(sub)
    _add_watch(sub)
    _add_report(sub)
    _add_export(sub)


def _add_status(sub: argparse._SubParsersAction[Any]) -> None:
    status = sub.add_parser("status", help="one line a box: state, backlog, last result, troubles")
    _add_store(status)
    _add_choice(status)
    status.add_argument("--json", action="store_true", help="the same as one JSON document")
    status.set_defaults(run=run_status)


def _add_watch(sub: argparse._SubParsersAction[Any]) -> None:
    watch = sub.add_parser("watch", help="the same table, live")
    _add_store(watch)
    _add_choice(watch)
    watch.add_argument(
        "--every", metavar="S", type=_seconds, default=2.0, help="seconds between looks (2)"
    )
    watch.set_defaults(run=run_watch)


def _add_report(sub: argparse._SubParsersAction[Any]) -> None:
    report = sub.add_parser(
        "report",
        help="the fleet on one HTML page",
        description="Write one HTML page about the fleet; it needs no network and no script.",
    )
    _add_store(report)
    _add_choice(report)
    report.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default="fleet.html",
        help="where to; - is standard output",
    )
    report.set_defaults(run=run_report)


def _add_export(sub: argparse._SubParsersAction[Any]) -> None:
    export = sub.add_parser(
        "export",
        help="Parquet and CSV for pandas, DuckDB, spreadsheets",
        description="Write what the collector has as Parquet, by date and site, and as CSV.",
    )
    _add_store(export)
    _add_choice(export)
    export.add_argument("--out", metavar="DIR", required=True, help="a folder, new or empty")
    export.add_argument(
        "--format", choices=("both", "parquet", "csv"), default="both", help="both unless said"
    )
    export.set_defaults(run=run_export)


def _add_store(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--store", metavar="URL", default=_STORE, help=f"what `fleet collect` fills ({_STORE})"
    )


def _add_choice(command: argparse.ArgumentParser) -> None:
    command.add_argument("--site", metavar="SITE", help="only the boxes of one site")
    command.add_argument("--class", dest="box_class", metavar="CLASS", help="only of one class")


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.2 <= value <= 3600:  # noqa: PLR2004  # because faster flickers, slower is not live
        raise ValueError
    return value


def run_status(options: argparse.Namespace) -> int:
    """Print the table; 0 whatever it says."""
    import json

    from edgeagent.fleet import status, table, views

    at_ms = views.now_ms()
    with views.opened(options.store) as store:
        lines = views.lines(store, _chosen(options), at_ms)
    if options.json:
        print(json.dumps(status.document(lines, at_ms), indent=2))  # noqa: T201  # because the CLI prints
    else:
        table.show(lines, sys.stdout)
    return 0


def run_watch(options: argparse.Namespace) -> int:
    """Show the table until it is interrupted."""
    from edgeagent.fleet import table, views

    looking = views.Looking(options.store, _chosen(options))
    try:
        table.watch(looking, options.every, sys.stdout)
    finally:
        looking.close()
    return 0


def run_report(options: argparse.Namespace) -> int:
    """Write the page; 0 whatever it says."""
    from edgeagent import reporting
    from edgeagent.fleet import views

    with views.opened(options.store) as store:
        text = views.page(store, _chosen(options), views.now_ms())
    if options.output == "-":
        sys.stdout.write(text)
        return 0
    reporting.write(text, Path(options.output))
    print(f"written: {options.output}", file=sys.stderr)  # noqa: T201  # because the CLI prints
    return 0


def run_export(options: argparse.Namespace) -> int:
    """Write the files; say how many rows went into which table."""
    from edgeagent.fleet import export, views

    with views.opened(options.store) as store:
        written = export.write(store, _chosen(options), Path(options.out), options.format)
    for table, rows in written.items():
        print(f"{table}: {rows:,} rows", file=sys.stderr)  # noqa: T201  # because the CLI prints
    print(f"written: {options.out}", file=sys.stderr)  # noqa: T201  # because the CLI prints
    return 0


def _chosen(options: argparse.Namespace) -> Chosen:
    from edgeagent.fleet.queries import Chosen

    return Chosen(options.site, options.box_class)
