"""The package in a booted Debian 12: installed, configured, started, disturbed, removed.

The scenarios stand in packaging/trying/scenarios.py; packaging/try_install boots a system and runs
them. Debian 13, upgrades, an image, the real engine and arm64 are the same command without --quick;
their last results are in docs/packaging-results.md.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TRY = ROOT / "packaging/try_install"
_CANNOT = 75


def quick_scenarios() -> list[str]:
    """Names of the scenarios that CI runs, as the program itself marks them."""
    tree = ast.parse((ROOT / "packaging/trying/scenarios.py").read_text())
    calls = [
        decorator
        for function in tree.body
        if isinstance(function, ast.FunctionDef)
        for decorator in function.decorator_list
        if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == "scenario"
    ]
    return [
        word.value
        for call in calls
        if len(call.args) == 1 and isinstance(word := call.args[0], ast.Constant)
        if isinstance(word.value, str)
    ]


@pytest.fixture(scope="module")
def outcomes(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What became of each scenario, on a system that was booted for it."""
    (deb,) = dist.glob("edgeagent_*_amd64.deb")
    results = tmp_path_factory.mktemp("boot") / "results.jsonl"
    done = subprocess.run(
        [TRY, "--release", "bookworm", "--deb", deb, "--quick", "--results", results],
        capture_output=True, encoding="utf-8", check=False, timeout=1500,
    )  # fmt: skip
    print(done.stdout)
    if done.returncode in (2, _CANNOT):
        why = f"no Debian was booted, so the service was not tried: {done.stderr.strip()}"
        print(why)
        if os.environ.get("EDGEAGENT_REQUIRE_NSPAWN") == "1":
            pytest.fail(why)
        pytest.skip(why)
    assert done.returncode in (0, 1), done.stderr
    records = map(json.loads, results.read_text().splitlines())
    return {record["scenario"]: record for record in records}


def test_there_is_a_scenario_for_each_promise() -> None:
    promised = {
        "install", "as shipped", "bad configuration", "READY", "sweep, scripted engine",
        "an engine's cgroup", "sandbox", "credentials", "watchdog", "agent killed", "stop",
        "nvmap helper", "remove", "purge",
    }  # fmt: skip
    assert promised <= set(quick_scenarios())


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", quick_scenarios())
def test_debian_12(outcomes: dict[str, Any], name: str) -> None:
    told = outcomes[name]
    assert told["outcome"] == "ok", told["detail"]
