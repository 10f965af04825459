"""A real process that maps a 1 GiB file and fills 256 MiB of its own is measured as just that.

What an engine takes is the difference between two readings, so the interpreter that plays the
engine here drops out.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from edgeagent.probes.host import HostProbe
from edgeagent.probes.pss import PssProbe

MIB = 1 << 20
GIB = 1 << 30

PLAYER = """
import mmap, os, sys

def await_word():
    print(os.getpid() if CHILD is None else CHILD, flush=True)
    sys.stdin.readline()

CHILD = None
await_word()
with open(sys.argv[1], "rb") as file:
    weights = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
touched = sum(weights[:: mmap.PAGESIZE])
await_word()
own = bytearray(b"x" * MIB) * 256
await_word()
shared = mmap.mmap(-1, 64 * MIB)
shared[:] = bytes(64 * MIB)
await_word()
CHILD = os.fork()
if CHILD == 0:
    sys.stdin.read()
    os._exit(0)
await_word()
""".replace("MIB", str(MIB))


class Player:
    """The process, stopped between two of its steps."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen

    def said(self) -> int:
        """Wait for the next step to be done; the number that it told."""
        assert self._popen.stdout is not None
        return int(self._popen.stdout.readline())

    def go_on(self) -> int:
        assert self._popen.stdin is not None
        self._popen.stdin.write(b"\n")
        self._popen.stdin.flush()
        return self.said()


@contextmanager
def _playing(weights: Path) -> Iterator[Player]:
    command = [sys.executable, "-I", "-S", "-c", PLAYER, str(weights)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as popen:
        yield Player(popen)  # its end closes the pipe, on which the forked child ends too


@pytest.fixture(scope="module")
def weights() -> Iterator[Path]:
    # /tmp may be memory itself, and its pages are then no file's
    with TemporaryDirectory(dir="/var/tmp") as folder:
        path = Path(folder, "model")
        with path.open("wb") as file:
            file.truncate(GIB)  # a hole: its pages are real once touched, and no disk is waited for
        yield path


def _difference(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: after[name] - before[name] for name in after}


def _cheap(*pids: int) -> dict[str, int]:
    return _whole(HostProbe().read(pids)[0])


def _exact(*pids: int) -> dict[str, int]:
    return _whole(PssProbe().read(pids)[0])


def _whole(values: object) -> dict[str, int]:
    assert isinstance(values, dict)
    return {name: value for name, value in values.items() if isinstance(value, int)}


def test_mapped_and_anonymous_memory_are_told_apart(weights: Path) -> None:
    with _playing(weights) as player:
        pid = player.said()
        cheap, exact = [_cheap(pid)], [_exact(pid)]
        for _ in ("maps the file", "fills memory of its own"):
            player.go_on()
            cheap.append(_cheap(pid))
            exact.append(_exact(pid))

    mapped, filled = _difference(cheap[0], cheap[1]), _difference(cheap[1], cheap[2])
    assert mapped["engine.mapped_bytes"] == pytest.approx(GIB, rel=0.02)
    assert mapped["engine.anon_bytes"] < 0.02 * GIB
    assert filled["engine.anon_bytes"] == pytest.approx(256 * MIB, rel=0.02)
    assert filled["engine.mapped_bytes"] < 0.02 * 256 * MIB

    mapped, filled = _difference(exact[0], exact[1]), _difference(exact[1], exact[2])
    assert mapped["engine.pss_file_bytes"] == pytest.approx(GIB, rel=0.02)
    assert mapped["engine.pss_anon_bytes"] < 0.02 * GIB
    assert filled["engine.pss_anon_bytes"] == pytest.approx(256 * MIB, rel=0.02)
    assert exact[2]["engine.peak_rss_bytes"] >= 0.98 * (GIB + 256 * MIB)


def test_memory_that_is_shared_or_inherited_counts_once(weights: Path) -> None:
    with _playing(weights) as player:
        pid = player.said()
        player.go_on()
        player.go_on()
        alone = _exact(pid)
        player.go_on()
        shared = _difference(alone, _exact(pid))
        child = player.go_on()
        both, both_cheap = _exact(pid, child), _cheap(pid, child)

    assert shared["engine.pss_shmem_bytes"] == pytest.approx(64 * MIB, rel=0.02)
    assert both["engine.pss_anon_bytes"] == pytest.approx(alone["engine.pss_anon_bytes"], rel=0.02)
    # by resident size, the 256 MiB stand in both processes
    assert both_cheap["engine.anon_bytes"] > 2 * 256 * MIB
