"""`edgeagent verify` and `edgeagent schema`: what a run folder is worth, and what it looks like."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Put the commands on the command line."""
    verify = commands.add_parser(
        "verify",
        help="check that a run's result follows from its raw records",
        description="Check a run folder: the files' hashes, the result's schema, and that every "
        "metric follows from the raw records. Exit status 1 when something does not.",
    )
    verify.add_argument("folder", metavar="RUN", help="a run folder")
    verify.add_argument("--json", action="store_true", help="print the faults as JSON")
    verify.set_defaults(run=run_verify)
    schema = commands.add_parser(
        "schema",
        help="print the JSON Schema of a published document",
        description="Print the JSON Schema of a published document.",
    )
    schema.add_argument("name", choices=["result", "plan"], help="which document")
    schema.set_defaults(run=run_schema)


def run_verify(options: argparse.Namespace) -> int:
    """Print each fault; 0 when there is none, else 1."""
    from edgeagent import app

    faults = app.verify(Path(options.folder))
    if options.json:
        _print(json.dumps({"ok": not faults, "faults": faults}, indent=2))
    elif faults:
        for fault in faults:
            _print(fault)
        _print(f"{len(faults)} faults: this result does not follow from its records")
    else:
        _print("ok: hashes, schema and every metric follow from the raw records")
    return 1 if faults else 0


def run_schema(options: argparse.Namespace) -> int:
    """Print the schema."""
    from edgeagent import app

    _print(json.dumps(app.schema(options.name), indent=2))
    return 0


def _print(text: str) -> None:
    print(text)  # noqa: T201  # because the CLI prints
