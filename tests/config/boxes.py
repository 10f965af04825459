"""A box to configure: a root of its own, a home, an environment, nothing of this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from edgeagent.settings import Settings, SettingsError, Surroundings, load

SYSTEM = "etc/edgeagent/edgeagent.toml"
VENDOR = "usr/lib/edgeagent/defaults.toml"
USER = "home/ann/.config/edgeagent/edgeagent.toml"


@dataclass
class Box:
    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    host_name: str = "edge-0001"

    def write(self, name: str, text: str, mode: int = 0o644) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(mode)
        return path

    def here(self, scope: Literal["system", "user"] = "system") -> Surroundings:
        return Surroundings(
            environment=self.environment,
            host_name=self.host_name,
            home=self.root / "home/ann",
            working_dir=self.root / "work",
            scope=scope,
            root=self.root,
        )

    def load(
        self,
        text: str | None = None,
        scope: Literal["system", "user"] = "system",
        assignments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Settings:
        if text is not None:
            self.write(SYSTEM, text)
        self.environment.update(environment or {})
        return load(self.here(scope), None, assignments)

    def faults(self, text: str, environment: Mapping[str, str] | None = None) -> list[str]:
        """What is wrong with a configuration, without the folder's name."""
        with pytest.raises(SettingsError) as caught:
            self.load(text, environment=environment)
        assert caught.value.exit_status == 78
        return [str(fault).replace(f"{self.root}/", "") for fault in caught.value.faults]


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)
