"""Which failures can we explain to the operator, and with which exit status?

Every message is one sentence: what was tried, what was seen, what to do.
Only the command line catches `EdgeAgentError`; anything else is our bug and keeps its traceback.
"""

from __future__ import annotations


class EdgeAgentError(Exception):
    """A failure that we can explain; `exit_status` is what the process returns."""

    exit_status = 1


class UsageError(EdgeAgentError):
    """What the operator gave is wrong: an option, a plan, a path, a file."""

    exit_status = 2


class EngineError(EdgeAgentError):
    """No engine could be started, it died for good, or preflight refused it."""

    exit_status = 3


class GuardError(EngineError):
    """The memory guard ended the engine to save the box."""


class DeviceMismatchError(EngineError):
    """The engine runs, but not on the device that was asked for."""


class UnreachableError(EdgeAgentError):
    """A server that somebody else runs (URL, broker, database) does not answer as it should."""

    exit_status = 69


class BusyError(EdgeAgentError):
    """Somebody else is at work here; try again later."""

    exit_status = 75


class ConfigError(EdgeAgentError):
    """The configuration file is wrong."""

    exit_status = 78
