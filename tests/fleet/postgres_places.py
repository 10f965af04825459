"""Where does a real PostgreSQL come from?

A cluster of its own in a folder, on a unix socket, started and ended by its process. PostgreSQL
refuses to run as root, so there it runs as the user that its package made, or as nobody. It is the
newest that Debian's package has put here, or the one whose programs are in EDGEAGENT_TEST_POSTGRES,
with the settings of EDGEAGENT_TEST_POSTGRES_SETTINGS (name=value, separated by blanks).
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

PATIENCE_S = 120.0
_VERSIONS = "/usr/lib/postgresql"


def program(name: str, first: str = "") -> str:
    """The path of one of PostgreSQL's programs; skips the test if there is none.

    Looked for in the folder `first`, if one is given, before everywhere else.
    """
    places = sorted(Path(_VERSIONS).glob("*/bin"), reverse=True) if Path(_VERSIONS).exists() else []
    named = filter(None, [first])
    path = os.pathsep.join([*named, *map(str, places), os.environ.get("PATH", "")])
    found = shutil.which(name, path=path)
    if found is None:
        if os.environ.get("EDGEAGENT_REQUIRE_POSTGRES") == "1":
            pytest.fail(f"{name} is missing, and EDGEAGENT_REQUIRE_POSTGRES=1: install postgresql")
        pytest.skip(f"no PostgreSQL on this machine ({name}); install postgresql to run this test")
    return found


def _owner() -> pwd.struct_passwd | None:
    """Who runs the cluster when we are root; None for ourselves."""
    if os.geteuid():
        return None
    with suppress(KeyError):
        return pwd.getpwnam("postgres")
    return pwd.getpwnam("nobody")


@dataclass
class Postgres:
    """A cluster that can be killed, frozen and started again."""

    folder: Path
    process: subprocess.Popen[bytes] | None = None
    databases: list[str] = field(default_factory=list)
    programs: str = field(default_factory=lambda: os.environ.get("EDGEAGENT_TEST_POSTGRES", ""))
    settings: tuple[str, ...] = field(
        default_factory=lambda: tuple(
            os.environ.get("EDGEAGENT_TEST_POSTGRES_SETTINGS", "").split()
        )
    )

    @property
    def user(self) -> str:
        owner = _owner()
        return owner.pw_name if owner else pwd.getpwuid(os.geteuid()).pw_name

    def url(self, database: str) -> str:
        return f"postgresql://{self.user}@/{database}?host={self.folder}/socket"

    def make(self) -> None:
        """Lay the cluster out, once."""
        owner = _owner()
        for part in (self.folder, self.folder / "socket"):
            part.mkdir(parents=True, exist_ok=True)
            if owner is not None:
                os.chown(part, owner.pw_uid, owner.pw_gid)
        done = subprocess.run(
            [program("initdb", self.programs), "-D", f"{self.folder}/data", "-A", "trust",
             "-E", "UTF8", "--no-locale", "--no-sync", "-U", self.user],
            capture_output=True, text=True, check=False, **_as(owner),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    def start(self, *settings: str) -> None:
        owner = _owner()
        words = [word for setting in (*self.settings, *settings) for word in ("-c", setting)]
        with (self.folder / "socket" / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [program("postgres", self.programs), "-D", f"{self.folder}/data",
                 "-k", f"{self.folder}/socket", "-c", "listen_addresses=", *words],
                stdout=log, stderr=log, **_as(owner),
            )  # fmt: skip
        deadline = time.monotonic() + PATIENCE_S
        while not self._answers():
            assert time.monotonic() < deadline, self.log()
            assert self.process.poll() is None, self.log()
            time.sleep(0.05)

    def _answers(self) -> bool:
        import psycopg

        with suppress(psycopg.Error):
            psycopg.connect(self.url("postgres"), connect_timeout=2).close()
            return True
        return False

    def database(self) -> str:
        """Make a fresh database; return its URL."""
        import psycopg

        name = f"fleet{len(self.databases)}"
        self.databases.append(name)
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.url(name)

    def run(self, name: str, *words: str) -> None:
        """Run one of PostgreSQL's programs, such as pg_dump, as the cluster's user."""
        done = subprocess.run(
            [program(name, self.programs), *words],
            capture_output=True, text=True, check=False, **_as(_owner()),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    def end(self, by: signal.Signals = signal.SIGINT) -> None:
        if self.process is None:
            return
        if by == signal.SIGKILL:
            # Its children live on for a moment, and would hold the data's lock.
            self._kill_children()
        self.process.send_signal(by)
        self.process.wait(PATIENCE_S)
        self.process = None

    def _kill_children(self) -> None:
        assert self.process is not None
        with suppress(OSError):
            listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
            for pid in listed.split():
                with suppress(OSError):
                    os.kill(int(pid), signal.SIGKILL)

    def log(self) -> str:
        path = self.folder / "socket" / "log"
        return path.read_text(errors="replace") if path.exists() else ""


def _as(owner: pwd.struct_passwd | None) -> dict[str, Any]:
    if owner is None:
        return {"cwd": "/"}
    return {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": [], "cwd": "/"}


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A running cluster, ended and removed at the end."""
    with _folder() as folder:
        yield from _running(Postgres(folder / "cluster"))


TIMESCALE = ("shared_preload_libraries=timescaledb", "timescaledb.telemetry_level=off")


@contextmanager
def timescale() -> Iterator[Postgres]:
    """A running cluster that has TimescaleDB, from the tree that EDGEAGENT_TEST_TIMESCALE names.

    The tree is copied: its owner's home may be closed to the user that runs the cluster.
    """
    tree = os.environ.get("EDGEAGENT_TEST_TIMESCALE")
    if not tree:
        if os.environ.get("EDGEAGENT_REQUIRE_TIMESCALE") == "1":
            pytest.fail("EDGEAGENT_REQUIRE_TIMESCALE=1, and EDGEAGENT_TEST_TIMESCALE names no tree")
        pytest.skip("no TimescaleDB; name a tree in EDGEAGENT_TEST_TIMESCALE to run this test")
    with _folder() as folder:
        shutil.copytree(tree, folder / "tree", symlinks=True)
        (programs,) = (folder / "tree/usr/lib/postgresql").glob("*/bin")
        yield from _running(Postgres(folder / "cluster", None, [], str(programs), TIMESCALE))


@contextmanager
def _folder() -> Iterator[Path]:
    # Not below pytest's folder: another user has to pass through it, and its path may be too long
    # for a socket.
    folder = Path(tempfile.mkdtemp(prefix="edgeagent-pg-"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _running(cluster: Postgres) -> Iterator[Postgres]:
    program("initdb", cluster.programs)
    try:
        cluster.make()
        cluster.start("fsync=on")
        yield cluster
    finally:
        cluster.end(signal.SIGINT)
