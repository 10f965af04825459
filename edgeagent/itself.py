"""How does the agent start another process of itself?

`python -m MODULE` finds a module that is installed for that Python. As a Debian package we are not:
the program's first line says `python3 -I`, and its second where our modules lie. A child is then
given the same list of places, on its command line and not in its environment, because an engine
that the child starts would take our libraries for its own.
"""

from __future__ import annotations

import sys

_BEGIN = (
    "import sys, runpy; sys.path[:] = {places!r}; "
    "runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
)


def program(module: str = "edgeagent") -> tuple[str, ...]:
    """Return the words that start `module` of ours, with the Python and the libraries that we use.

    The module's own arguments go behind them.
    """
    if not sys.flags.isolated:
        return (sys.executable, "-m", module)
    return (sys.executable, "-I", "-c", _BEGIN.format(places=sys.path, module=module))
