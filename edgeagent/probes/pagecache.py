"""How much of a model file is in memory already?

A model that is in the page cache loads in a fraction of the time, and a mapped one decodes without
waiting for the disk. The kernel is asked page by page (mincore) through a mapping that is never
touched, so nothing is read. Windows keep what is mapped, and the answers, small.
"""

from __future__ import annotations

import os
from pathlib import Path

WINDOW_BYTES = 256 << 20
"""A byte of answer for every page: 64 KiB of them with pages of 4 KiB."""

_RESIDENT = bytes(value & 1 for value in range(256))
"""Only the lowest bit of an answer is defined."""


def page_cache_fraction(path: Path) -> float | None:
    """Return the share of a file's pages that are in the page cache.

    None for a file that is empty or cannot be opened, and for one that we neither own nor may
    write: the kernel then answers "all of it", whatever is true, so that nobody can spy on what
    others read.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        state = os.fstat(file)
        honest = os.geteuid() in (0, state.st_uid) or os.access(path, os.W_OK, effective_ids=True)
        if not honest or not state.st_size:
            return None
        return _fraction(file, state.st_size)
    except OSError:
        return None
    finally:
        os.close(file)


def _fraction(file: int, size: int) -> float:
    """Return the share of pages; OSError where the kernel cannot map or tell."""
    page = os.sysconf("SC_PAGE_SIZE")
    resident = 0
    for offset in range(0, size, WINDOW_BYTES):
        resident += _resident(file, offset, min(WINDOW_BYTES, size - offset), page)
    return resident / -(-size // page)


def _resident(file: int, offset: int, length: int, page: int) -> int:
    """Return how many pages of a window are in memory."""
    # Here, because it is needed once a launch and takes memory that sampling can do without.
    import ctypes
    import mmap

    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    address = libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, file, offset)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "mmap")
    try:
        answers = ctypes.create_string_buffer(-(-length // page))
        if libc.mincore(address, length, answers):
            raise OSError(ctypes.get_errno(), "mincore")
        return answers.raw.translate(_RESIDENT).count(1)
    finally:
        libc.munmap(address, length)
