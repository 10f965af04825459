"""`python -m edgeagent` is the `edgeagent` command."""

from edgeagent.cli.main import entry

entry()
