"""Several collectors on one real PostgreSQL, of which some are killed, and the database as well."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from broker_places import Mosquitto, Variant, mosquitto, retained_at, until
from fleet_boxes import QUEUE, Box, Collecting, box, collecting, nothing_is_lost, rows
from postgres_places import Postgres, postgres

from edgeagent.fleet.store import open_store


@pytest.fixture(scope="module")
def cluster() -> Iterator[Postgres]:
    with postgres() as made:
        yield made


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    with mosquitto(tmp_path / "broker", Variant(head=QUEUE)) as made:
        yield made


def _query(url: str, sql: str) -> list[tuple[Any, ...]]:
    with closing(open_store(url, "read")) as store:
        return store.query(sql)


def _stored(url: str) -> int:
    return int(_query(url, "SELECT coalesce(sum(wm), 0) FROM watermark")[0][0])


def _boxes(stack: ExitStack, folder: Path, broker: Mosquitto, how_many: int) -> list[Box]:
    names = [f"edge-{n}" for n in range(how_many)]
    return [stack.enter_context(box(folder, name, broker.port)) for name in names]


def _pair(stack: ExitStack, folder: Path, broker: Mosquitto, url: str) -> list[Collecting]:
    """Two collectors of one group, both connected."""
    words = ("--share", "team", "--queue-limit", "10000")
    pair = [
        stack.enter_context(collecting(folder, broker.port, url, *words, name=name))
        for name in ("left", "right")
    ]
    for one in pair:
        one.connected()
    return pair


def test_two_collectors_share_the_rows_and_one_is_killed_in_the_middle(
    tmp_path: Path, broker: Mosquitto, cluster: Postgres
) -> None:
    url = cluster.database()
    with ExitStack() as stack:
        left, right = _pair(stack, tmp_path, broker, url)
        boxes = _boxes(stack, tmp_path, broker, 4)
        for one in boxes:
            one.commit(100, 200)
        until(lambda: _stored(url) > 100, "some rows")
        left.end(signal.SIGKILL)
        for one in boxes:
            one.commit(50, 50)
        nothing_is_lost(url, boxes)
        left.start()
        left.connected(2)
        right.end(signal.SIGKILL)
        for one in boxes:
            one.commit(20, 20)
        nothing_is_lost(url, boxes)
    receipt = retained_at(broker.port, "edgeagent/v1/plant7/edge-0/rx")
    assert receipt is not None
    assert json.loads(receipt)["wm"] == {"R": 170, "M": 270}


def test_each_of_two_collectors_stores_a_part(
    tmp_path: Path, broker: Mosquitto, cluster: Postgres
) -> None:
    url = cluster.database()
    with ExitStack() as stack:
        _pair(stack, tmp_path, broker, url)
        boxes = _boxes(stack, tmp_path, broker, 2)
        for one in boxes:
            one.commit(50, 150)
        nothing_is_lost(url, boxes)
        # Writes of one transaction have one number in PostgreSQL, and each collector its own.
        assert len(_query(url, "SELECT DISTINCT xmin::text FROM telemetry")) > 1
        until(
            lambda: _query(url, "SELECT count(*) FROM node WHERE state = 'online'") == [(2,)],
            "both boxes are known to be online",
        )


def test_while_the_database_is_away_nothing_is_acknowledged_and_memory_stays(
    tmp_path: Path, broker: Mosquitto, cluster: Postgres
) -> None:
    url = cluster.database()
    with ExitStack() as stack:
        words = ("--queue-limit", "10000")
        collector = stack.enter_context(collecting(tmp_path, broker.port, url, *words))
        boxes = _boxes(stack, tmp_path, broker, 3)
        for one in boxes:
            one.commit(20, 20)
        nothing_is_lost(url, boxes)
        cluster.end(signal.SIGQUIT)  # at once, as if the machine had lost power
        before = _rss(collector)
        for one in boxes:
            one.commit(100, 300)
        until(lambda: "fleet_store_away" in collector.text(), "it says that the store is away")
        assert all(one.waiting() == 400 for one in boxes)
        cluster.start("fsync=on")
        nothing_is_lost(url, boxes)
        assert _rss(collector) - before < 64 * 2**20


def _rss(collector: Collecting) -> int:
    assert collector.process is not None
    return int(psutil.Process(collector.process.pid).memory_info().rss)


def test_with_a_dump_of_yesterday_results_come_back_and_what_is_lost_is_declared(
    tmp_path: Path, broker: Mosquitto, cluster: Postgres
) -> None:
    url, restored = cluster.database(), cluster.database()
    dump = cluster.folder / "socket" / "fleet.dump"
    with ExitStack() as stack:
        boxes = _boxes(stack, tmp_path, broker, 1)
        with collecting(tmp_path, broker.port, url) as collector:
            boxes[0].commit(30, 30)
            nothing_is_lost(url, boxes)
            cluster.run("pg_dump", "-Fc", "-f", str(dump), url)
            boxes[0].commit(5, 15)
            nothing_is_lost(url, boxes)
            collector.end()
        cluster.run("pg_restore", "-d", restored, str(dump))
        with collecting(tmp_path, broker.port, restored):
            boxes[0].commit(10)
            wanted = [("M", 45), ("R", 46)]
            sql = "SELECT stream, wm FROM watermark ORDER BY stream"
            until(lambda: _query(restored, sql) == wanted, "nothing is missing")
            until(lambda: not boxes[0].waiting(), "the box has its receipts again")
    assert _query(restored, "SELECT stream, first, last, reason FROM gap") == [
        ("M", 31, 45, "not_kept")
    ]
    with closing(open_store(restored, "read")) as store:
        assert rows(store, "edge-0", "R") == list(range(1, 47))


def test_without_its_driver_the_sentence_says_how_to_get_it() -> None:
    hidden = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from edgeagent.fleet.store import open_store\n"
        "from edgeagent.errors import ConfigError\n"
        "try: open_store('postgresql://db/fleet')\n"
        "except ConfigError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", hidden], capture_output=True, text=True, check=True
    )
    assert 'pip install "edgeagent[fleet]"' in done.stdout


def test_a_database_that_does_not_answer_is_a_sentence(tmp_path: Path, broker: Mosquitto) -> None:
    nowhere = f"postgresql://nobody:secret@/fleet?host={tmp_path}"
    with collecting(tmp_path, broker.port, nowhere) as collector:
        assert collector.process is not None
        assert collector.process.wait(60) == 69
        assert "cannot be used" in collector.text()
        assert "secret" not in collector.text()
