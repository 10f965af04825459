"""The spool's benchmark runs; how good its figures are depends on the disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_the_quick_benchmark_of_the_spool_says_all_its_figures(tmp_path: Path) -> None:
    script = Path(__file__).with_name("bench_spool.py")
    done = subprocess.run(
        [sys.executable, str(script), "--quick", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    said = done.stdout
    assert said.count("start with") == 2
    for figure in ("R, one by one", "M, 500 a flush", "a week's 110 rows", "drained by 20"):
        assert figure in said
