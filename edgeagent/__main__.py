"""`python -m edgeagent` is the `edgeagent` command."""

import sys

if sys.version_info < (3, 10):  # noqa: UP036  # because who runs it from its source is told, too
    _FOUND = ".".join(str(part) for part in sys.version_info[:3])
    sys.stderr.write(
        "edgeagent: Python 3.10 or newer is needed, and this is "  # no newer syntax in this file
        + _FOUND
        + ": run it with another python3, or install the .deb on Debian 12, Ubuntu 22.04 or later\n"
    )
    sys.exit(2)

from edgeagent.cli.main import entry

entry()
