"""Shared by all tests: the event loop backend, and where the real engine lies."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
