"""The benchmark of large runs makes sound runs, and what it measures does not explode."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("bench_report.py")


def test_a_run_of_invented_records_verifies_and_growth_is_no_worse_than_linear() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--cells", "20,80"],
        capture_output=True, text=True, timeout=250, check=True,
    )  # fmt: skip
    for step in ("recall and result", "verify"):
        assert f"| {step} | 80 |" in done.stdout, done.stdout
        (found,) = re.findall(
            rf"{step}: 4 times the cells took ([\d.]+) times .* and ([\d.]+) times", done.stdout
        )
        # Four times the work, and what starting up takes besides; quadratic would be sixteen.
        assert float(found[0]) < 8
        assert float(found[1]) < 4
