"""Shared by all tests: the event loop backend, and a place without root's rights."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

NOBODY = 65534


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def ordinary_folder() -> Iterator[Path]:
    """A folder of an ordinary user, with this process in that user's place even when it is root's.

    Root may read and write everything, so what permissions do shows only without its rights.
    """
    folder = Path(tempfile.mkdtemp(prefix="edgeagent-test-"))
    root = os.geteuid() == 0
    if root:
        os.chown(folder, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    try:
        yield folder
    finally:
        if root:
            os.seteuid(0)
        shutil.rmtree(folder)


from hypothesis import settings  # noqa: E402  # because it belongs to what follows

settings.register_profile("shared", deadline=None)  # no absolute times on shared machines
settings.load_profile("shared")
