"""A collector as a process: `collector_child.py OPTIONS`, as `edgeagent fleet collect OPTIONS`."""

from __future__ import annotations

import argparse
import sys

from edgeagent.cli import fleet
from edgeagent.errors import EdgeAgentError


def main() -> int:
    top = argparse.ArgumentParser()
    fleet.add_to(top.add_subparsers(required=True))
    options = top.parse_args(["fleet", "collect", *sys.argv[1:]])
    try:
        return int(options.run(options))
    except EdgeAgentError as error:
        print(f"edgeagent: {error}", file=sys.stderr, flush=True)
        return error.exit_status


sys.exit(main())
