"""How much of a real file is in memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeagent.probes import pagecache
from edgeagent.probes.pagecache import page_cache_fraction

MIB = 1 << 20


@pytest.fixture
def disk() -> Iterator[Path]:
    """A folder that is on a disk: /tmp may be in memory, where nothing can be dropped."""
    with tempfile.TemporaryDirectory(prefix="edgeagent-test-", dir="/var/tmp") as folder:
        yield Path(folder)


def _forget(path: Path) -> None:
    """Drop a file from the page cache; what is dirty must be on disk first."""
    file = os.open(path, os.O_RDWR)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def _read(path: Path, length: int) -> None:
    """Read the head of a file without the kernel reading ahead."""
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    os.pread(file, length, 0)
    os.close(file)


def test_the_share_follows_what_was_read_and_asking_reads_nothing(disk: Path) -> None:
    model = disk / "m.gguf"
    model.write_bytes(os.urandom(MIB) * 16)
    assert page_cache_fraction(model) == 1.0

    _forget(model)
    assert page_cache_fraction(model) == 0.0
    assert page_cache_fraction(model) == 0.0

    _read(model, 4 * MIB)
    assert page_cache_fraction(model) == pytest.approx(0.25, abs=0.02)


def test_a_file_of_several_windows_is_counted_once(tmp_path: Path) -> None:
    # Sparse: the pages that were read are in memory, wherever their content came from.
    model = tmp_path / "sparse.gguf"
    size = 2 * pagecache.WINDOW_BYTES + 10 * os.sysconf("SC_PAGE_SIZE") + 1
    with model.open("wb") as file:
        file.truncate(size)
    _read(model, 8 * MIB)
    assert page_cache_fraction(model) == pytest.approx(8 * MIB / size, rel=0.05)


def test_what_cannot_be_asked_is_none(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    assert page_cache_fraction(empty) is None
    assert page_cache_fraction(tmp_path / "missing") is None
    assert page_cache_fraction(tmp_path) is None


def test_a_file_of_somebody_else_is_none_because_the_kernel_would_say_all(
    ordinary_folder: Path,
) -> None:
    python = Path(os.__file__)
    if os.access(python, os.W_OK, effective_ids=True):
        python = Path("/etc/passwd")
    assert page_cache_fraction(python) is None
    own = ordinary_folder / "own"
    own.write_bytes(b"x" * 10_000)
    assert page_cache_fraction(own) == 1.0
