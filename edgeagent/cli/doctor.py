"""`edgeagent doctor`: what works on this box, and what to do about the rest."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from edgeagent.cli.config import add_config_option, examined

_ABOUT = """\
Say what works here and what to do about the rest: every probe and every GPU
call, engines and their versions, permissions of models, keys and devices as
the service's user, the broker step by step, certificates, clocks, disk, the
service, the configuration. Run it as root (sudo) to have that user's rights
tried; nothing is changed. Whatever hangs is given up after its time.

Exit status 0: nothing failed (what this box does not have is no failure);
1: a line failed; 78: the configuration is wrong.
"""


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Put the command on the command line."""
    doctor = commands.add_parser(
        "doctor",
        help="say what works on this box, and what to do about the rest",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    doctor.add_argument(
        "--json", action="store_true", help="everything as JSON, for a bug report; without secrets"
    )
    doctor.add_argument(
        "--offline", action="store_true", help="leave the broker alone; nothing leaves this box"
    )
    doctor.add_argument(
        "--system",
        action="store_const",
        const="system",
        dest="scope",
        help="the service's configuration, without this user's own file and folders",
    )
    add_config_option(doctor)
    doctor.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the checks; 78 for a wrong configuration, 1 when a line failed, else 0."""
    from edgeagent.doctor import examination
    from edgeagent.probes.catalogue import SYSROOT

    if os.environ.get(SYSROOT):
        options.root = os.environ[SYSROOT]
    settings, faults = examined(options)
    reach = "offline" if options.offline else "broker"
    document = examination.examine(
        examination.Question(os.environ, settings, faults, reach)  # type: ignore[arg-type]  # because mypy takes a word for any word
    )
    if options.json:
        print(json.dumps(document, indent=2, ensure_ascii=False))  # noqa: T201  # because the CLI prints
    else:
        from edgeagent.report import inspect

        inspect.show_doctor(document, sys.stdout)
    sys.stdout.flush()
    return examination.exit_status(document)
