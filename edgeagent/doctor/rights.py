"""What may another user do here? Not worked out: tried, in that user's rights.

A child of ours gives up all rights but that user's and looks. Modes, access lists, folders that are
closed on the way and read-only disks all count, as they will for the service. The child can hang on
a network drive, so it has its time and is killed after it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from edgeagent.doctor.accounts import Account
from edgeagent.doctor.bounded import OverdueError

_PIECE = 65_536
_BURIED_WITHIN_S = 1.0


class CannotLookError(Exception):
    """The child could not look; the text says why."""


def look(as_whom: Account | None, work: Callable[[], Any], limit_s: float) -> Any:
    """Return what `work` returns, a JSON value, done in a child with these rights.

    None: in ours. Everything that `work` imports has to be imported before: that user may not be
    able to read our own files. Raises CannotLookError, OverdueError.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _in_the_child(as_whom, work, writing)
    os.close(writing)
    try:
        said = _all_of(reading, time.monotonic() + limit_s)
    except OverdueError:
        raise OverdueError(f"no answer within {limit_s:g} s") from None
    finally:
        os.close(reading)
        _bury(child)
    return _understood(said)


def _in_the_child(as_whom: Account | None, work: Callable[[], Any], writing: int) -> None:
    """Look, say what was seen, and end without ever coming back."""
    try:
        if as_whom is not None:
            become(as_whom)
        said = {"told": work()}
    except BaseException as error:  # noqa: BLE001  # because nothing may come out of this child
        said = {"failed": f"{type(error).__name__}: {error}"}
    with suppress(BaseException):
        left = json.dumps(said).encode()
        while left:
            left = left[os.write(writing, left) :]
    os._exit(0)


def become(user: Account) -> None:
    """Give up every right but this user's, for good; only root can."""
    os.setgroups(sorted(user.gids))
    os.setresgid(user.gid, user.gid, user.gid)
    os.setresuid(user.uid, user.uid, user.uid)


def _all_of(reading: int, until_s: float) -> bytes:
    said = b""
    while True:
        left_s = until_s - time.monotonic()
        if left_s <= 0 or not select.select([reading], [], [], left_s)[0]:
            raise OverdueError
        piece = os.read(reading, _PIECE)
        if not piece:
            return said
        said += piece


def _bury(child: int) -> None:
    """End the child; one that the kernel holds is left behind, and goes when it is let go."""
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    until_s = time.monotonic() + _BURIED_WITHIN_S
    while time.monotonic() < until_s:
        with suppress(ChildProcessError):
            if os.waitpid(child, os.WNOHANG) == (0, 0):
                time.sleep(0.005)
                continue
        return


def _understood(said: bytes) -> Any:
    try:
        document = json.loads(said)
    except ValueError:
        raise CannotLookError("the child that looked ended early") from None
    if "failed" in document:
        raise CannotLookError(str(document["failed"]))
    return document["told"]
