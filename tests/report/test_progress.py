"""What the operator sees while a sweep runs: on a terminal, in a log, and not at all."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.report.progress import (
    ASCII,
    UNICODE,
    LiveProgress,
    PlainProgress,
    ProgressState,
    SilentProgress,
    duration,
    glyphs_for,
    panel,
    share_done,
)

MEASURING = ProgressState(
    what="measuring",
    step=3,
    steps=4,
    cell="llamacpp, cache on, 16 at once, repeat 2 of 3",
    requests_done=16,
    requests_planned=64,
    elapsed_s=192.4,
    left_s=61.0,
    tokens_per_s=38.21,
    engine_bytes=412 << 20,
    host_available_bytes=5 << 30,
)
STARTING = ProgressState(what="starting", step=1, steps=4, cell="llamacpp")


def test_the_panel_says_what_runs_how_far_it_is_and_what_is_seen() -> None:
    lines = [line.text for line in panel(MEASURING, idle_s=0.0, width=80)]

    # (2 steps + 16/64) / 4 = 0.5625 of the 57 characters beside the times: 32 filled
    assert lines == [
        "[3/4] measuring: llamacpp, cache on, 16 at once, repeat 2 of 3",
        "━" * 32 + "─" * 25 + "  3:12, about 1:01 left",
        "16 of 64 requests   38.2 tokens/s   engine 412 MiB   5.00 GiB free",
    ]


def test_time_goes_on_while_nothing_is_reported() -> None:
    later = [line.text for line in panel(MEASURING, idle_s=30.0, width=80)]

    assert later[1].endswith("3:42, about 0:31 left")


def test_what_is_not_known_is_not_shown() -> None:
    lines = [line.text for line in panel(STARTING, idle_s=0.0, width=60)]

    assert lines == ["[1/4] starting: llamacpp", "─" * 54 + "  0:00"]


def test_failures_stand_out() -> None:
    lines = panel(replace(MEASURING, failures=2), idle_s=0.0, width=80)

    assert lines[2].text.endswith("2 failed")
    assert lines[2].style == "red"


words = st.text(st.characters(exclude_categories=["C", "M"]), max_size=90)
numbers = st.none() | st.integers(0, 10**7)
seconds = st.floats(0, 1e6)
states = st.builds(
    ProgressState,
    what=words,
    step=st.integers(0, 999),
    steps=st.integers(0, 999),
    cell=st.none() | words,
    requests_done=numbers,
    requests_planned=numbers,
    elapsed_s=seconds,
    left_s=st.none() | seconds,
    tokens_per_s=st.none() | seconds,
    engine_bytes=numbers,
    host_available_bytes=numbers,
    failures=st.integers(0, 99),
)


@given(states, seconds, st.integers(1, 200), st.sampled_from([UNICODE, ASCII]))
def test_no_line_is_wider_than_the_terminal(
    state: ProgressState, idle_s: float, width: int, glyphs: object
) -> None:
    assert glyphs in {UNICODE, ASCII}
    lines = panel(state, idle_s, width, UNICODE if glyphs == UNICODE else ASCII)

    assert all(len(line.text) <= width for line in lines)
    assert 0.0 <= share_done(state) <= 1.0


def test_a_duration_is_read_like_a_clock() -> None:
    assert [duration(s) for s in (0, 59.4, 61, 3599, 3600, 36_061)] == [
        "0:00",
        "0:59",
        "1:01",
        "59:59",
        "1:00:00",
        "10:01:01",
    ]


def test_a_terminal_without_line_characters_gets_ascii() -> None:
    assert glyphs_for("utf-8") == UNICODE
    assert [glyphs_for(name) for name in ("ascii", "latin-1", None, "no such")] == [ASCII] * 4


def test_a_log_gets_a_line_per_step_and_one_per_cell() -> None:
    stream = io.StringIO()
    progress = PlainProgress(stream)

    progress.update(STARTING)
    for done in range(65):
        progress.update(replace(MEASURING, requests_done=done))
    progress.note("llamacpp: 16 slots, as asked")
    progress.update(replace(STARTING, what="cooling down", step=4, cell=None))
    progress.close()
    progress.close()

    assert stream.getvalue().splitlines() == [
        "[1/4] starting: llamacpp",
        "[3/4] measuring: llamacpp, cache on, 16 at once, repeat 2 of 3",
        "llamacpp: 16 slots, as asked",
        "    64 of 64 requests, 38.2 tokens/s, engine 412 MiB, 5.00 GiB free",
        "[4/4] cooling down",
    ]


def test_quiet_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    progress = SilentProgress()
    progress.update(MEASURING)
    progress.note("nobody reads this")
    progress.close()

    assert capsys.readouterr() == ("", "")


LIVE = """
from edgeagent.report.progress import LiveProgress, ProgressState
progress = LiveProgress()
progress.note("before anything runs")
progress.update(ProgressState("measuring", 1, 2, "llamacpp", 3, 8, failures=1))
progress.note("worth [a] line")
progress.update(ProgressState("measuring", 2, 2, "llamacpp", 8, 8))
progress.close()
progress.close()
"""


def test_on_a_real_terminal_the_last_state_stays_and_the_cursor_comes_back() -> None:
    screen = _on_a_terminal(LIVE)

    assert "before anything runs" in screen
    assert "worth [a] line" in screen
    assert "8 of 8 requests" in screen
    assert screen.count("\x1b[?25l") == screen.count("\x1b[?25h") == 1
    assert re.search(r"\[2/2\] measuring: llamacpp", screen)


def _on_a_terminal(program: str) -> str:
    """What `program` writes to a terminal of its own."""
    ours, theirs = pty.openpty()
    env = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "TERM": "xterm-256color",
        "PYTHONIOENCODING": "utf-8",
        "COLUMNS": "80",
    }
    with subprocess.Popen([sys.executable, "-c", program], stderr=theirs, env=env) as child:
        os.close(theirs)
        seen = b""
        try:
            while piece := os.read(ours, 4096):
                seen += piece
        except OSError:
            pass  # how a terminal says that its other side is gone
    os.close(ours)
    assert child.returncode == 0
    return seen.decode()


def test_a_live_display_that_was_never_updated_closes_quietly() -> None:
    stream = io.StringIO()
    progress = LiveProgress(stream)
    progress.close()

    assert stream.getvalue() == ""
