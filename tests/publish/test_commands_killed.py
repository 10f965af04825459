"""A command that comes again and again starts one run at most, wherever the agent is killed."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_taker import ID
from spool_places import opened

TAKER = Path(__file__).with_name("command_taker.py")
PLACES = ("before accepted", "accepted", "running", "begun", "succeeded")


def life(folder: Path, place: str) -> None:
    """One life of the agent, killed at a place or, where it does not come by, ended in peace."""
    command = [sys.executable, str(TAKER), str(folder), place]
    paths = os.pathsep.join([str(TAKER.parent), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as started:
        assert started.stdout is not None
        try:
            started.stdout.readline()  # its word, or the end
        finally:
            started.kill()


def outcome(folder: Path) -> tuple[int, str | None]:
    """How often a run was begun, and what is known of the command."""
    runs = folder / "runs"
    begun = len(runs.read_text().splitlines()) if runs.exists() else 0
    spool = opened(folder / "spool.db")
    seen = spool.seen(ID)
    spool.close()
    return begun, None if seen is None else seen.state


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("before accepted", (0, None)),
        ("accepted", (0, "accepted")),
        ("running", (0, "running")),
        ("begun", (1, "running")),
        ("succeeded", (1, "succeeded")),
    ],
)
def test_what_stands_on_disk_after_a_kill(
    tmp_path: Path, place: str, expected: tuple[int, str | None]
) -> None:
    life(tmp_path, place)
    assert outcome(tmp_path) == expected


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("before accepted", (1, "succeeded")),
        ("accepted", (1, "succeeded")),
        ("running", (0, "interrupted")),
        ("begun", (1, "interrupted")),
        ("succeeded", (1, "succeeded")),
    ],
)
def test_the_next_life_begins_what_was_not_begun_and_nothing_else(
    tmp_path: Path, place: str, expected: tuple[int, str | None]
) -> None:
    life(tmp_path, place)
    life(tmp_path, "nowhere")
    assert outcome(tmp_path) == expected


@pytest.mark.parametrize("places", list(itertools.pairwise((*PLACES, PLACES[0]))))
def test_two_kills_and_three_deliveries_start_one_run_at_most(
    tmp_path: Path, places: tuple[str, str]
) -> None:
    for place in (*places, "nowhere"):
        life(tmp_path, place)
    begun, state = outcome(tmp_path)
    assert begun <= 1
    assert state in ("succeeded", "interrupted")
