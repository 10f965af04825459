"""Nothing of an engine outlives the agent, however either of them ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from engine_places import eventually, exists, living
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.engines.process import GRACE_S, EngineProcess, ended, last_words, scrubbed

pytestmark = pytest.mark.anyio

SLEEPER = (sys.executable, "-c", "import time; time.sleep(600)")

# An engine whose helper leaves the session, ignores SIGTERM, and whose own parent is gone.
STUBBORN = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with open(sys.argv[1] + ".new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(sys.argv[1] + ".new", sys.argv[1])
        time.sleep(600)
    os._exit(0)
time.sleep(600)
"""

AGENT = """
import asyncio, os, sys
from pathlib import Path
from edgeagent.engines.process import EngineProcess

async def main():
    process = await EngineProcess.start("engine", sys.argv[2:], dict(os.environ), Path(sys.argv[1]))
    print(process.pid, process._keeper.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def start(log: Path, *command: str, **environment: str) -> EngineProcess:
    return await EngineProcess.start("engine", command, {**os.environ, **environment}, log)


async def written(path: Path) -> str:
    assert await eventually(path.exists)
    return path.read_text(encoding="utf-8")


def log_of(folder: Path) -> Path:
    return folder / "engine.log"


async def test_stop_ends_it_and_leaves_no_zombie(tmp_path: Path) -> None:
    process = await start(log_of(tmp_path), *SLEEPER)
    keeper = process._keeper.pid
    assert living(process.pid)
    await process.stop()
    assert not exists(process.pid)
    assert not exists(keeper)
    assert process.status == -signal.SIGTERM
    await process.stop()


async def test_two_stops_at_once_both_wait_for_the_end(tmp_path: Path) -> None:
    process = await start(log_of(tmp_path), *SLEEPER)
    await asyncio.gather(process.stop(), process.stop())
    assert not exists(process.pid)


async def test_a_killed_agent_leaves_nothing_behind(tmp_path: Path) -> None:
    note = tmp_path / "grandchild"
    agent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        AGENT,
        str(log_of(tmp_path)),
        sys.executable,
        "-c",
        STUBBORN,
        str(note),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert agent.stdout is not None
        pids = [int(word) for word in (await agent.stdout.readline()).split()]
        pids.append(int(await written(note)))
        assert all(living(pid) for pid in pids)
    finally:
        agent.kill()
        await agent.wait()
    assert await eventually(lambda: not any(living(pid) for pid in pids))


async def test_an_interrupt_of_the_agents_group_does_not_reach_the_engine(tmp_path: Path) -> None:
    process = await start(log_of(tmp_path), *SLEEPER)
    try:
        # Made between fork and exec, so it may not be there at once.
        assert await eventually(lambda: os.getsid(process.pid) == process.pid)
        assert os.getpgid(process.pid) == process.pid
        assert os.getsid(process._keeper.pid) != os.getsid(0)
        os.kill(process._keeper.pid, signal.SIGINT)
        os.kill(process._keeper.pid, signal.SIGTERM)
        await asyncio.sleep(0)
        assert living(process.pid)
    finally:
        await process.stop()


async def test_a_killed_keeper_takes_the_engine_along(tmp_path: Path) -> None:
    process = await start(log_of(tmp_path), *SLEEPER)
    os.kill(process._keeper.pid, signal.SIGKILL)
    assert await eventually(lambda: not living(process.pid))
    assert await eventually(lambda: process.status is not None)
    assert process.death() is not None
    assert process.pids() == ()
    await process.stop()


async def test_a_wrapper_and_what_it_started_end_together(tmp_path: Path) -> None:
    note = tmp_path / "child"
    script = f"sleep 600 & echo $! > {note}.new; mv {note}.new {note}; wait"
    process = await start(log_of(tmp_path), "sh", "-c", script)
    child = int(await written(note))
    assert {process.pid, child} <= set(process._look(psutil))
    await process.stop()
    assert not exists(child)
    assert not exists(process.pid)


async def test_a_child_in_its_own_session_that_ignores_sigterm_ends(tmp_path: Path) -> None:
    note = tmp_path / "grandchild"
    process = await start(log_of(tmp_path), sys.executable, "-c", STUBBORN, str(note))
    stubborn = int(await written(note))
    assert stubborn in process._look(psutil)
    await process.stop()
    assert not exists(stubborn)


async def test_what_a_dead_engine_left_behind_ends_soon_after(tmp_path: Path) -> None:
    note = tmp_path / "child"
    script = f"setsid sleep 600 & echo $! > {note}.new; mv {note}.new {note}; exit 3"
    process = await start(log_of(tmp_path), "sh", "-c", script)
    child = int(await written(note))
    assert await eventually(lambda: not living(child))
    assert process.status == 3
    await process.stop()


@pytest.mark.parametrize(
    ("mode", "words"),
    [(None, "No such file or directory"), (0o644, "Permission denied"), (0o755, "Exec format")],
)
async def test_a_program_that_cannot_run_is_explained(
    tmp_path: Path, mode: int | None, words: str
) -> None:
    program = tmp_path / "program"
    if mode is not None:
        program.write_text("not a program\n", encoding="utf-8")
        program.chmod(mode)
    process = await start(log_of(tmp_path), str(program), "--port", "1")
    assert await eventually(lambda: process.death() is not None)
    death = process.death() or ""
    assert f"edgeagent: cannot run {program}: {words}" in death
    assert "exit status 127" in death
    await process.stop()


async def test_a_log_that_cannot_be_written_is_explained(tmp_path: Path) -> None:
    log = tmp_path / "folder"
    log.mkdir()
    process = await start(log, *SLEEPER)
    assert await eventually(lambda: process.death() is not None)
    assert process.status != 0
    assert not living(process.pid)
    await process.stop()


async def test_an_engine_that_ends_by_itself_is_quoted(tmp_path: Path) -> None:
    script = "echo loading; echo 'failed to load model: no room' >&2; echo bye; exit 9"
    process = await start(log_of(tmp_path), "sh", "-c", script)
    assert await eventually(lambda: process.death() is not None)
    assert process.death() == (
        'engine ended with exit status 9; its last words were "failed to load model: no room"'
    )
    await process.stop()


async def test_only_this_starts_words_are_quoted(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    log.write_text("failed to load model: an earlier start\n", encoding="utf-8")
    process = await start(log, "true")
    assert await eventually(lambda: process.death() is not None)
    assert process.death() == "engine ended with exit status 0; its log is empty"
    assert process.log_text() == process.log_head() == ""
    await process.stop()


async def test_a_long_log_is_quoted_from_its_end(tmp_path: Path) -> None:
    script = "head -c 300000 /dev/zero | tr '\\0' 'x'; echo; echo done"
    process = await start(log_of(tmp_path), "sh", "-c", script)
    assert await eventually(lambda: process.status is not None)
    assert (process.death() or "").endswith('"done"')
    assert len(process.log_head(1000)) == 1000
    await process.stop()


async def test_the_kernel_prefers_the_engine_when_memory_runs_out(tmp_path: Path) -> None:
    own = int(Path("/proc/self/oom_score_adj").read_text(encoding="ascii"))
    process = await start(log_of(tmp_path), *SLEEPER)
    try:
        score = Path(f"/proc/{process.pid}/oom_score_adj")
        keeper = Path(f"/proc/{process._keeper.pid}/oom_score_adj")
        # Written between fork and exec, so it may not be there at once.
        assert await eventually(lambda: score.read_text(encoding="ascii").strip() == "500")
        assert int(keeper.read_text(encoding="ascii")) == own
    finally:
        await process.stop()


async def test_the_engine_holds_none_of_our_files(tmp_path: Path) -> None:
    note = tmp_path / "files"
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    script = f"ls -l /proc/$$/fd > {note}.new; mv {note}.new {note}; sleep 600"
    process = await start(log_of(tmp_path), "sh", "-c", script)
    try:
        listed = await written(note)
        assert "pipe:" not in listed
        assert "socket:" not in listed
    finally:
        await process.stop()
        os.close(reader)
        os.close(writer)


async def test_the_engine_does_not_get_our_ignored_signals(tmp_path: Path) -> None:
    process = await start(log_of(tmp_path), "sleep", "600")
    try:

        def ignored() -> int:
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
            line = next(line for line in status.splitlines() if line.startswith("SigIgn"))
            return int(line.split()[1], 16)

        name = Path(f"/proc/{process.pid}/comm")
        assert await eventually(lambda: name.read_text(encoding="utf-8").strip() == "sleep")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
            assert not ignored() >> (number - 1) & 1
    finally:
        await process.stop()


async def test_a_missing_log_folder_is_made(tmp_path: Path) -> None:
    process = await start(tmp_path / "a" / "b" / "engine.log", "sh", "-c", "echo here")
    assert await eventually(lambda: process.status is not None)
    assert process.log_text() == "here\n"
    await process.stop()


async def test_a_cancelled_stop_can_be_asked_again(tmp_path: Path) -> None:
    process = await start(log_of(tmp_path), "sh", "-c", "trap '' TERM; sleep 600 & wait")
    first = asyncio.ensure_future(process.stop())
    await asyncio.sleep(0.05)
    first.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await first
    await process.stop()
    assert not exists(process.pid)


# --------------------------------------------------------------------------- ended by the guard

BOMB = """
import os, sys, time
# Every process forks twice until there are 64 in all; each notes itself and sleeps.
def bomb(depth):
    with open(os.path.join(sys.argv[1], str(os.getpid())), "w"):
        pass
    for _ in range(2 if depth < 5 else 0):
        if os.fork() == 0:
            if depth == 3:
                os.setsid()
            bomb(depth + 1)
    time.sleep(600)
bomb(0)
"""
BOMBS = 63  # 1 + 2 + 4 + 8 + 16 + 32


async def noted(folder: Path, count: int) -> list[int]:
    assert await eventually(lambda: len(list(folder.iterdir())) == count)
    return [int(path.name) for path in folder.iterdir()]


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_of_a_fork_bomb_nothing_is_left(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "pids"
    folder.mkdir()
    process = await start(log_of(tmp_path), sys.executable, "-c", BOMB, str(folder))
    try:
        pids = await noted(folder, BOMBS)
    finally:
        if how == "kill":
            process.kill("the test says so")
        else:
            await process.stop()
    assert await eventually(lambda: not any(living(pid) for pid in pids))
    await process.stop()
    assert not any(exists(pid) for pid in pids)


async def test_a_killed_engine_ends_at_once_and_says_that_the_guard_did_it(tmp_path: Path) -> None:
    note = tmp_path / "grandchild"
    process = await start(log_of(tmp_path), sys.executable, "-c", STUBBORN, str(note))
    stubborn = int(await written(note))
    assert process.death() is None
    process.kill("1.40 GiB of memory was available")
    assert process.death() == (
        "engine was ended by the memory guard: 1.40 GiB of memory was available"
    )
    assert process.guarded
    # No grace: neither the engine nor its deaf helper is asked first.
    assert await eventually(lambda: not living(process.pid) and not living(stubborn))
    assert await eventually(lambda: process.status == -signal.SIGKILL)
    await process.stop()
    assert "memory guard" in (process.death() or "")
    assert process.pids() == ()


def gone_meanwhile(pid: int) -> bool:
    """Whether it ends while nothing else runs in this process."""
    deadline = time.monotonic() + 20
    while living(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not living(pid)


async def test_a_kill_from_another_thread_needs_no_event_loop(tmp_path: Path) -> None:
    note = tmp_path / "grandchild"
    process = await start(log_of(tmp_path), sys.executable, "-c", STUBBORN, str(note))
    stubborn = int(await written(note))
    thread = threading.Thread(target=process.kill, args=("the test says so",))
    thread.start()
    # The loop stands still here, as it may when the box is short of memory.
    thread.join()
    assert gone_meanwhile(stubborn)
    await process.stop()


async def test_a_kill_does_not_wait_for_a_stop_that_is_still_polite(tmp_path: Path) -> None:
    note = tmp_path / "grandchild"
    process = await start(log_of(tmp_path), sys.executable, "-c", STUBBORN, str(note))
    stubborn = int(await written(note))
    stopping = asyncio.ensure_future(process.stop())
    await asyncio.sleep(0.05)
    begun = time.monotonic()
    process.kill("the test says so")
    await stopping
    # Of the five seconds that the deaf one would have been given.
    assert time.monotonic() - begun < GRACE_S
    assert not living(stubborn)


async def test_an_engine_that_had_ended_by_itself_keeps_its_own_death(tmp_path: Path) -> None:
    process = await start(log_of(tmp_path), "sh", "-c", "echo no room; exit 9")
    assert await eventually(lambda: process.status is not None)
    process.kill("too late")
    assert process.death() == 'engine ended with exit status 9; its last words were "no room"'
    assert not process.guarded
    await process.stop()
    process.kill("far too late")
    assert not process.guarded


async def test_killing_twice_keeps_the_first_reason(tmp_path: Path) -> None:
    process = await start(log_of(tmp_path), *SLEEPER)
    process.kill("first")
    process.kill("second")
    assert process.death() == "engine was ended by the memory guard: first"
    await process.stop()


async def test_no_file_of_a_start_stays_open(tmp_path: Path) -> None:
    def files() -> set[str]:
        return {f.name for f in Path("/proc/self/fd").iterdir()}

    async def once() -> None:
        process = await start(log_of(tmp_path), *SLEEPER)
        process.kill("the test says so")
        await process.stop()

    await once()  # what asyncio opens for good
    before = files()
    await once()
    assert files() == before


def test_the_environment_loses_what_would_steer_the_engine() -> None:
    ours = {"PATH": "/bin", "LLAMA_ARG_PORT": "1", "LLAMA_ARG_CTX_SIZE": "2", "AIP_MODE": "X"}
    assert scrubbed(ours, []) == {"PATH": "/bin"}


def test_the_operators_own_environment_wins() -> None:
    got = scrubbed({"A": "1", "LLAMA_ARG_X": "1"}, [("A", "2"), ("LLAMA_ARG_X", "3")])
    assert got == {"A": "2", "LLAMA_ARG_X": "3"}


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "ended with exit status 0"),
        (-signal.SIGKILL, "was ended by SIGKILL (the kernel does this when memory runs out)"),
        (-signal.SIGILL, "was ended by SIGILL (it is built for another kind of processor)"),
        (-signal.SIGSEGV, "was ended by SIGSEGV"),
        (-200, "was ended by 200"),
    ],
)
def test_an_end_has_words(status: int, words: str) -> None:
    assert ended(status) == words


@given(st.text(max_size=400))
def test_last_words_of_any_text_are_one_short_line(text: str) -> None:
    words = last_words(text)
    assert words is None or ("\n" not in words and len(words) <= 300)
