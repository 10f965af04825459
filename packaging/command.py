#!/usr/bin/python3 -I
"""Which modules does the installed command run?

Installed as /usr/bin/edgeagent. Its own libraries come before the system's, the system's are there
for what the package only recommends (matplotlib, jinja2, cryptography), and neither the environment
nor the working directory has a say (-I).
"""

import sys
from pathlib import Path

if not (3, 10) <= sys.version_info[:2] < (3, 15):
    found = ".".join(map(str, sys.version_info[:2]))
    sys.stderr.write(
        f"edgeagent: {sys.executable} is Python {found}, and this package has what Python 3.10 to "
        "3.14 needs: let /usr/bin/python3 be the distribution's own again "
        "(update-alternatives --display python3)\n"
    )
    raise SystemExit(2)

_HOME = Path(__file__).resolve().parents[1] / "lib/edgeagent"
sys.path[:0] = [str(_HOME / "app"), str(_HOME / "vendor")]

from edgeagent.cli.main import entry  # noqa: E402  # because it is found only now

entry()
