"""An engine of ours that behaves like llama-server and costs nothing.

The scripted server (scripted.py) in a real process under a real keeper: the same life cycle, the
same endpoints, the same port of the contract suite, with times and faults chosen by arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from edgeagent.core.model import EngineConfig, EngineIdentity, EngineSpec, ModelIdentity
from edgeagent.engines.llamacpp import LlamaCppEngine, LlamaCppModel
from edgeagent.itself import program

COMMAND = program("edgeagent.engines.scripted")

_MODEL = ModelIdentity(
    id="scripted",
    path="scripted",
    format="scripted",
    sha256="0" * 64,
    reason="a scripted server has no weights",
)


def _no_hash(path: Path) -> str:  # noqa: ARG001  # because it stands in for a hash of a file
    return "0" * 64


class FakeEngine(LlamaCppEngine):
    """The scripted server as an engine; `spec.args` choose its times and faults."""

    def __init__(self, spec: EngineSpec, environment: Mapping[str, str] | None = None) -> None:
        command = spec.command if spec.command and spec.command != ("",) else COMMAND
        super().__init__(
            replace(spec, command=command), LlamaCppModel(_MODEL), _no_hash, environment
        )

    def identify(self, config: EngineConfig) -> EngineIdentity:
        """As llama-server is identified, under its own kind."""
        return replace(super().identify(config), kind="fake")
