"""`edgeagent monitor`: what the probes see now.

The live view is ended with Ctrl-C, as every such view is, so that is its ordinary end: status 0.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from edgeagent.errors import UsageError

if TYPE_CHECKING:
    from edgeagent.inspection import Monitor

DEFAULT_HZ = 1.0
FASTEST_HZ = 20.0
SLOWEST_HZ = 0.01

_MONITOR = """\
Show what the probes see on this box now; nothing is started or changed.
On a terminal the view is refreshed until Ctrl-C. Elsewhere one reading is
printed, unless --hz asks for more: then --json prints one line a reading.
"""


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Put the command on the command line."""
    monitor = commands.add_parser(
        "monitor",
        help="show what the probes see now",
        description=_MONITOR,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    monitor.add_argument("--once", action="store_true", help="take one reading and end")
    monitor.add_argument("--json", action="store_true", help="print readings as JSON")
    monitor.add_argument(
        "--hz", type=float, metavar="N", help=f"readings a second, go on ({DEFAULT_HZ:g})"
    )
    monitor.add_argument(
        "--pid",
        type=int,
        metavar="PID",
        help="the engine is this process and what it started (default: engines found running)",
    )
    monitor.set_defaults(run=run_monitor)


def run_monitor(options: argparse.Namespace) -> int:
    """Print one reading or many; the end of a live view by Ctrl-C is its ordinary end."""
    _refuse(options)
    from edgeagent.inspection import Monitor

    monitor = Monitor(os.environ, options.pid)
    try:
        if _live(options):
            _go_on(monitor, options)
        else:
            _once(monitor, options)
    except KeyboardInterrupt:
        return 0
    finally:
        monitor.close()
    return 0


def _refuse(options: argparse.Namespace) -> None:
    """Raise UsageError for options that make no sense."""
    if options.hz is not None and not SLOWEST_HZ <= options.hz <= FASTEST_HZ:
        raise UsageError(f"--hz {options.hz:g} must lie between {SLOWEST_HZ:g} and {FASTEST_HZ:g}")
    if options.hz is not None and options.once:
        raise UsageError("--once takes one reading, so --hz says nothing: leave one of them out")
    if options.pid is not None and options.pid < 1:
        raise UsageError(f"--pid {options.pid}: process ids begin at 1")


def _live(options: argparse.Namespace) -> bool:
    return not options.once and (options.hz is not None or sys.stdout.isatty())


def _once(monitor: Monitor, options: argparse.Namespace) -> None:
    document = monitor.once()
    if options.json:
        _print(json.dumps(document, indent=2))
        return
    from edgeagent.report import inspect

    inspect.show_reading(document, sys.stdout)


def _go_on(monitor: Monitor, options: argparse.Namespace) -> None:
    """Print readings at a fixed rate until somebody ends it."""
    period_s = 1 / (options.hz or DEFAULT_HZ)
    monitor.warm_up()
    if options.json:
        while True:
            print(json.dumps(monitor.read()), flush=True)  # noqa: T201  # because the CLI prints
            _wait(period_s)
    from edgeagent.report import inspect

    with inspect.LiveReadings(sys.stdout) as view:
        while True:
            view.update(monitor.read())
            _wait(period_s)


def _wait(period_s: float) -> None:
    time.sleep(period_s - time.monotonic() % period_s)


def _print(text: str) -> None:
    print(text)  # noqa: T201  # because the CLI prints
