"""edgeagent measures local LLM servers on an edge box; see edgeagent/app.py for the whole arrow.

As a library it is what `__all__` names (docs/library.md). Nothing of it is imported before it is
used: the agent's own processes import this module too, and have no memory to spare.
"""

from __future__ import annotations  # because an older Python is to get as far as __main__.py

import sys

# httpx looks for what a command line of its own needs, and where click lies about, as on most
# systems, it takes 6 MB of the agent's memory for it: now it is not found.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # because None says just that

TYPE_CHECKING = False
"""As typing's, by whose name type checkers know it: importing typing takes longer than all this."""

if TYPE_CHECKING:
    from edgeagent.api import (
        EngineOptions,
        Plan,
        Run,
        SloOptions,
        SweepOptions,
        plan,
        read,
        run,
        run_async,
        summarise,
    )
    from edgeagent.core.model import Cell, Finding, MemorySample, RequestTrace
    from edgeagent.core.result import CellDocument, Level, Result
    from edgeagent.core.stats import Distribution
    from edgeagent.errors import (
        BusyError,
        ConfigError,
        DeviceMismatchError,
        EdgeAgentError,
        EngineError,
        GuardError,
        UnreachableError,
        UsageError,
    )
    from edgeagent.report.progress import ProgressState

__version__ = "0.1.0.dev0"

__all__ = [
    "BusyError",
    "Cell",
    "CellDocument",
    "ConfigError",
    "DeviceMismatchError",
    "Distribution",
    "EdgeAgentError",
    "EngineError",
    "EngineOptions",
    "Finding",
    "GuardError",
    "Level",
    "MemorySample",
    "Plan",
    "ProgressState",
    "RequestTrace",
    "Result",
    "Run",
    "SloOptions",
    "SweepOptions",
    "UnreachableError",
    "UsageError",
    "__version__",
    "plan",
    "read",
    "run",
    "run_async",
    "summarise",
]

_HOMES = {
    **dict.fromkeys(("Cell", "Finding", "MemorySample", "RequestTrace"), "edgeagent.core.model"),
    **dict.fromkeys(("CellDocument", "Level", "Result"), "edgeagent.core.result"),
    "Distribution": "edgeagent.core.stats",
    "ProgressState": "edgeagent.report.progress",
}
"""Where a public name is defined, where that is neither `errors` nor `api`."""


if not TYPE_CHECKING:  # because mypy takes a module with __getattr__ for one with every name

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module  # because most never come here

        of_errors = name.endswith("Error")
        home = _HOMES.get(name, "edgeagent.errors" if of_errors else "edgeagent.api")
        return getattr(import_module(home), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
