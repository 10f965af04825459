"""Which command was asked for, and what is its exit status?

The only place that catches `EdgeAgentError`. Anything else is our bug and shows its traceback.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from edgeagent import __version__
from edgeagent.errors import EdgeAgentError, UsageError

_DESCRIPTION = """\
Measure local LLM servers on this box the way an agent with sub-agents uses
them: throughput, time to first token and memory per simultaneous request.
"""

_EPILOG = """\
exit status:
  0 done, every cell ok            69 a server cannot be reached
  1 done, a cell failed or is      75 busy, try again
    suspect; verify found a fault  78 the configuration file is wrong
  2 what was given is wrong       130 interrupted, 143 terminated: what was
  3 no engine could be started        measured is kept, --resume goes on
"""


class _Parser(argparse.ArgumentParser):
    """argparse that says what is wrong in one sentence, as everything else here does."""

    def error(self, message: str) -> NoReturn:
        left = message.removeprefix("unrecognized arguments: ")
        if left != message and left.replace(" ", "").isdigit():
            message += " (a list is written with commas: 1,4,8)"
        raise UsageError(f"{message}: see {self.prog} --help")


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    # Imported here, not above: each command brings only the names of its options.
    from edgeagent.cli import (
        compare,
        config,
        doctor,
        fleet,
        inspect,
        keys,
        memory,
        models,
        records,
        report,
        service,
        sweep,
    )

    top = _Parser(
        prog="edgeagent",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"edgeagent {__version__}")
    config.add_config_option(top)
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    sweep.add_to(commands)
    report.add_to(commands)
    compare.add_to(commands)
    memory.add_to(commands)
    models.add_to(commands)
    inspect.add_to(commands)
    doctor.add_to(commands)
    records.add_to(commands)
    keys.add_to(commands)
    service.add_to(commands)
    fleet.add_to(commands)
    config.add_to(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    try:
        options = parser().parse_args(arguments)
        status: int = options.run(options)
        sys.stdout.flush()  # here, where a reader that has gone is still understood
    except EdgeAgentError as error:
        print(f"edgeagent: {error}", file=sys.stderr)  # noqa: T201  # because this is the door
        return error.exit_status
    except KeyboardInterrupt:
        # Before the first engine was started: later the sweep itself ends in order.
        print("edgeagent: interrupted before anything was measured", file=sys.stderr)  # noqa: T201  # because this is the door
        return 130
    except OSError as error:
        return _output_lost(error)
    return status


def _output_lost(error: OSError) -> int:
    """The exit status when standard output takes nothing more. Raises `error` if it is another."""
    if error.errno not in (errno.EPIPE, errno.ENOSPC):
        raise error
    # What is still buffered goes nowhere, else the interpreter would complain while it ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno == errno.EPIPE:
        return 1  # the reader has gone (`| head`): nobody is left to tell
    text = "could not write to standard output: no space left on its disk; make room"
    print(f"edgeagent: {text}", file=sys.stderr)  # noqa: T201  # because this is the door
    return 2


def entry() -> None:
    """Console script."""
    sys.exit(main())


if __name__ == "__main__":
    entry()
