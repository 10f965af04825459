"""`edgeagent verify`, `sign` and `schema`: what a run folder is worth, and what it looks like."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # because each command imports what it needs when it runs
    from edgeagent.sealing import Verdict

_EXAMPLES = """\
examples:
  edgeagent verify edgeagent-runs/A
  edgeagent verify edgeagent-runs/A --key box-7.pub     it must be that box's
"""


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Put the commands on the command line."""
    verify = commands.add_parser(
        "verify",
        help="check that a run's result follows from its raw records, and who signed it",
        description="Check a run folder: the hash of every file, the result's schema, that\n"
        "every metric follows from the raw records, and the signature. Exit status 1\n"
        "when something does not hold.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verify.add_argument("folder", metavar="RUN", help="a run folder")
    verify.add_argument(
        "--key",
        metavar="FILE.pub",
        dest="keys",
        action="append",
        default=[],
        help="a public key to trust; the run must be signed by it (repeatable: by one of them)",
    )
    verify.add_argument("--json", action="store_true", help="print the verdict as JSON")
    verify.set_defaults(run=run_verify)
    sign = commands.add_parser(
        "sign",
        help="sign the result of a finished run",
        description="Sign the result of a finished run that holds together; `sweep --sign` does it "
        "at its end.",
    )
    sign.add_argument("folder", metavar="RUN", help="a run folder")
    sign.add_argument(
        "--key", metavar="FILE", help="a private key, or a systemd credential's name (default: the "
        "user's, see edgeagent keys new)",
    )  # fmt: skip
    sign.set_defaults(run=run_sign)
    schema = commands.add_parser(
        "schema",
        help="print the JSON Schema of a published document",
        description="Print the JSON Schema of a published document.",
    )
    schema.add_argument(
        "name", metavar="NAME", help="result, plan, or a message on the broker (status, mem_1m, …)"
    )
    schema.set_defaults(run=run_schema)


def run_verify(options: argparse.Namespace) -> int:
    """Print what was found; 0 when everything holds together, else 1."""
    from edgeagent import sealing, signing

    keys = [signing.read_public(Path(name)) for name in options.keys]
    verdict = sealing.examine(Path(options.folder), keys)
    document = _document(verdict, options.folder)
    if options.json:
        _print(json.dumps(document, indent=2))
    else:
        from edgeagent.report.verdict import render

        _print(render(document).rstrip("\n"))
    return 1 if verdict.faults else 0


def _document(verdict: Verdict, run: str) -> dict[str, Any]:
    """The verdict as JSON values."""
    seal = verdict.seal
    return {
        "ok": not verdict.faults,
        "run": run,
        "faults": list(verdict.faults),
        "notes": list(verdict.notes),
        "files": verdict.files,
        "numbers": verdict.numbers,
        "cells": verdict.cells,
        "agent_version": verdict.agent_version,
        "signature": {
            "state": seal.state,
            "trusted": seal.trusted,
            "key_id": seal.key_id,
            "signed_at": seal.signed_at,
        },
    }


def run_sign(options: argparse.Namespace) -> int:
    """Sign, and say by which key."""
    from edgeagent import sealing, signing

    key = signing.find_key(options.key) if options.key else signing.default_key()
    seal = sealing.sign_checked(Path(options.folder), key)
    _print(f"signed by {seal.key_id}: {Path(options.folder) / sealing.SIGNATURE}")
    return 0


def run_schema(options: argparse.Namespace) -> int:
    """Print the schema."""
    from edgeagent import app

    _print(json.dumps(app.schema(options.name), indent=2))
    return 0


def _print(text: str) -> None:
    print(text)  # noqa: T201  # because the CLI prints
