"""The benchmark runs and its figures make sense; how good they are depends on the machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_the_quick_benchmark_serves_every_request_and_sees_every_token() -> None:
    script = Path(__file__).with_name("bench_client.py")
    done = subprocess.run(
        [sys.executable, str(script), "--quick", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    figures = json.loads(done.stdout)
    assert [row["beside"] for row in figures] == [0, 2]
    for row in figures:
        assert row["requests_ok"] == row["requests"] == 8
        assert row["events"] == 8 * 16
        assert row["cpu_s_per_1000_events"] > 0
