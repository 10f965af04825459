"""The benchmark of the fleet's views runs; how good its figures are depends on the machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_a_small_store_is_made_asked_and_removed(tmp_path: Path) -> None:
    script = Path(__file__).with_name("bench_fleet_views.py")
    sizes = ["--telemetry", "600", "--results", "30", "--boxes", "6"]
    done = subprocess.run(
        [sys.executable, str(script), *sizes, "--store", f"sqlite://{tmp_path}/bench.db"],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    said = [json.loads(line) for line in done.stdout.splitlines()]
    rows = next(one["rows"] for one in said if "rows" in one)
    assert rows == {"node": 6, "telemetry": 600, "telemetry_hour": 18, "run": 30, "point": 300}
    answers = {one["question"]: one["answer"] for one in said if "question" in one}
    assert answers["status"] == 6
    assert answers["report: levels"] == 300
    assert answers["report: memory"] == 6
    assert list(tmp_path.iterdir()) == []
