"""`edgeagent keys`: the pair of keys by which this box signs its results."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

_EXAMPLES = """\
examples:
  edgeagent keys new                 a pair for this user, where `sign` looks
  edgeagent keys new --out /etc/edgeagent/signing.pem
  edgeagent keys show                its fingerprint, for whoever checks results
  edgeagent keys show box-7.pub
"""


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Put the commands and their options on the command line."""
    keys = commands.add_parser(
        "keys",
        help="make or show the key by which results are signed",
        description="Make or show the Ed25519 key by which results are signed. The private file\n"
        "stays on the box, readable by its owner alone; the .pub file goes to whoever\n"
        "checks.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = keys.add_subparsers(title="commands", metavar="COMMAND", required=True)
    new = what.add_parser(
        "new", help="make a pair of keys", description="Make a pair of keys: FILE and FILE.pub."
    )
    new.add_argument("--out", metavar="FILE", help="the private key (default: the user's)")
    new.add_argument(
        "--force",
        action="store_true",
        help="make a new pair where one is; the old one is kept as FILE.old-1",
    )
    new.add_argument("--json", action="store_true", help="print it as JSON")
    new.set_defaults(run=run_new)
    show = what.add_parser(
        "show",
        help="print a key's fingerprint and its public half",
        description="Print a key's fingerprint and its public half, never the private one.",
    )
    show.add_argument(
        "file", metavar="FILE", nargs="?", help="a private key or a .pub file (default: the user's)"
    )
    show.add_argument("--json", action="store_true", help="print it as JSON")
    show.set_defaults(run=run_show)


def run_new(options: argparse.Namespace) -> int:
    """Make a pair and say where it is."""
    from edgeagent import signing

    path = Path(options.out) if options.out else signing.default_key()
    pair = signing.new_pair(path, "keep_aside" if options.force else "refuse")
    kept = [str(old) for old in pair.kept]
    if options.json:
        document = {"private": str(pair.private), "public": str(pair.public), "kept": kept}
        _print(json.dumps({**document, "key_id": pair.key.key_id}, indent=2))
        return 0
    _print(f"private key  {pair.private} (stays here; sign with: edgeagent sweep --sign)")
    _print(f"public key   {pair.public} (give it to whoever checks: edgeagent verify --key)")
    _print(f"fingerprint  {pair.key.key_id}")
    if kept:
        _print(f"kept aside   {', '.join(kept)}")
    return 0


def run_show(options: argparse.Namespace) -> int:
    """Print fingerprint and public key."""
    from edgeagent import signing

    path = signing.find_key(options.file) if options.file else signing.default_key()
    key = signing.any_public(path)
    if options.json:
        _print(json.dumps({"key_id": key.key_id, "public_key": key.pem}, indent=2))
    else:
        _print(key.key_id)
        _print(key.pem.rstrip())
    return 0


def _print(text: str) -> None:
    print(text)  # noqa: T201  # because the CLI prints
