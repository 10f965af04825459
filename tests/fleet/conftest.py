"""Stores that several files of this folder are about: each test on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from store_places import Fresh, fresh_databases

from edgeagent.fleet.store import Store, open_store


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def databases(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fresh]:
    with fresh_databases(request.param, tmp_path_factory.mktemp("stores")) as fresh:
        yield fresh


@pytest.fixture
def store(databases: Fresh) -> Iterator[Store]:
    with closing(open_store(databases(), "collect")) as made:
        yield made
