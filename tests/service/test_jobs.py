"""A sweep on somebody's behalf, in a real process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from agent import SMALL, fake, processes_of, until

from edgeagent.cli.main import parser
from edgeagent.cli.sweep import new_job
from edgeagent.config import SweepRequest
from edgeagent.errors import UsageError
from edgeagent.jobs import SweepJob, finished


def asked(*more: str) -> SweepRequest:
    words = ["sweep", *fake(), *SMALL, "--prefix-cache=off", *more]
    return new_job(parser().parse_args(words)).request


def serves(folder: Path) -> bool:
    """Whether its engine has answered something."""
    path = folder / "requests.jsonl"
    return path.exists() and path.stat().st_size > 0


def test_it_measures_and_leaves_a_result(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "one"
    job = SweepJob.start(folder, asked(), os.environ, "--no-report")
    assert job.wait(90) in (0, 1), job.last_words()
    done = finished(folder)
    assert done is not None
    assert done.document["status"] == "complete"
    assert done.document["run_id"] == "one"
    assert (job.progress().done, job.progress().planned) == (2, 2)
    job.close()


def test_it_can_be_ended_and_keeps_what_it_has(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    job = SweepJob.start(folder, asked("--requests=400"), os.environ, "--no-report")
    until(lambda: serves(folder), "the first answer")
    job.stop()
    assert job.wait(60) == 143
    assert "--resume" in job.last_words()
    assert processes_of(folder) == []
    job.close()


def test_one_that_is_killed_leaves_no_engine(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    job = SweepJob.start(folder, asked("--requests=400"), os.environ, "--no-report")
    until(lambda: serves(folder), "the first answer")
    job.kill()
    assert job.wait(60) == -signal.SIGKILL
    until(lambda: not processes_of(folder), "the end of its engine")
    assert finished(folder) is None
    job.close()


def test_it_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    script = (
        "import os, sys, time; from pathlib import Path\n"
        "sys.path[:0] = [sys.argv[2]]\n"
        "from test_jobs import asked; from edgeagent.jobs import SweepJob\n"
        "SweepJob.start(Path(sys.argv[1]), asked('--requests=400'), os.environ, '--no-report')\n"
        "time.sleep(600)\n"
    )
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent / "app")])
    daemon = subprocess.Popen(
        [sys.executable, "-c", script, str(folder), str(here)],
        env={**os.environ, "PYTHONPATH": path},
    )
    until(lambda: serves(folder), "the first answer")
    daemon.kill()
    daemon.wait(30)
    until(lambda: not processes_of(folder), "the end of sweep and engine")


def test_a_folder_that_is_taken_is_refused(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    with pytest.raises(UsageError, match="something in it"):
        SweepJob.start(tmp_path, asked(), os.environ)
