"""Does this process end when the one that started it does?

The daemon runs each sweep in a process of its own. Should the daemon be killed, the kernel asks the
sweep to end (PR_SET_PDEATHSIG), which ends its engines in order.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Mapping

VARIABLE = "EDGEAGENT_PARENT"
_PR_SET_PDEATHSIG = 1


def tie(environ: Mapping[str, str]) -> None:
    """Tie our life to the process that `EDGEAGENT_PARENT` names, if it is our parent."""
    parent = environ.get(VARIABLE, "")
    if not parent.isdecimal():
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(parent):  # it died before we had asked
        os.kill(os.getpid(), signal.SIGTERM)
