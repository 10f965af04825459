"""What configs/ has for TimescaleDB, and the collector's own hypertable, in a real TimescaleDB."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from plant_rows import filled
from postgres_places import timescale

from edgeagent.fleet.store import Batch, TelemetryRow, open_store

FILE = Path(__file__).parents[2] / "configs/timescale/edgeagent.sql"
DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with timescale() as cluster:
        url = cluster.database()
        filled(url)
        yield url


def _asked(url: str, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(sql.encode()).fetchall()


def _part(number: int) -> str:
    """One part of the file, without the rule above it."""
    text = FILE.read_text().split(f"= PART {number}")[1].split("= PART")[0]
    return text.split("\n", 1)[1].rsplit("--", 1)[0] if number < 3 else text.split("\n", 1)[1]


def test_the_collector_makes_a_hypertable_of_the_telemetry(database: str) -> None:
    made = _asked(
        database, "SELECT hypertable_name, num_chunks FROM timescaledb_information.hypertables"
    )
    assert made == [("telemetry", 1)]
    days = "SELECT integer_interval FROM timescaledb_information.dimensions"
    assert _asked(database, days) == [(7 * DAY_MS,)]


def test_a_row_that_comes_twice_is_one_row_there_too(database: str) -> None:
    old_ms = time.time_ns() // 1_000_000 - 30 * DAY_MS
    row = TelemetryRow("edge-0002", "ep2", "M", 7, "mem_1m", old_ms, old_ms, old_ms, "sync", "{}")
    with closing(open_store(database, "collect")) as store:
        for _ in range(2):
            store.take(Batch(telemetry=[row], now_ms=old_ms))
    assert _asked(database, "SELECT count(*) FROM telemetry WHERE epoch = 'ep2'") == [(1,)]
    chunks = "SELECT num_chunks FROM timescaledb_information.hypertables"
    assert _asked(database, chunks) == [(2,)]


def test_the_first_two_parts_run(database: str) -> None:
    with psycopg.connect(database) as connection:
        for number in (1, 2):
            connection.execute(_part(number).encode())
    assert _asked(database, "SELECT count(*) > 0 FROM memory_minute") == [(True,)]
    ((now_ms,),) = _asked(database, "SELECT edgeagent_now_ms()")
    assert abs(now_ms - time.time_ns() // 1_000_000) < DAY_MS
    told = "SELECT integer_now_func FROM timescaledb_information.dimensions"
    assert _asked(database, told) == [("edgeagent_now_ms",)]


def test_the_third_part_is_understood_and_refused_for_want_of_the_licence(database: str) -> None:
    """A function that was not there with these names and types would be another error."""
    statements = [one for one in _part(3).split(";\n") if one.strip()]
    assert len(statements) == 3
    for statement in statements:
        with psycopg.connect(database) as connection, pytest.raises(psycopg.Error) as refused:
            connection.execute(statement.encode())
        assert refused.value.sqlstate == "0A000", refused.value
        assert 'under the current "apache" license' in str(refused.value)
