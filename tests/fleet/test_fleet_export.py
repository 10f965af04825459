"""The export: read by others, cut by date and site, harmless to spreadsheets and to the disk."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
from fleet_made import NOW_MS, boxes, stored
from postgres_places import Postgres, postgres
from pyarrow import dataset

from edgeagent.errors import UsageError
from edgeagent.fleet import export
from edgeagent.fleet.queries import Chosen
from edgeagent.fleet.store import Batch, NodeNews, PointRow, Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(f"sqlite://{tmp_path}/fleet.db", "collect")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Postgres]:
    with postgres() as running:
        yield running


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def point(node: str, number: int, at_ms: int = NOW_MS, engine: str = "vllm") -> PointRow:
    return PointRow(
        node, "e1", number, f"run-{number}", "0", engine, None, None, None, None, None, 4, None,
        None, at_ms, 12.5, None, None, None, None, None, None, None, None, None, None, "{}",
    )  # fmt: skip


def test_parquet_and_csv_hold_the_same_rows(store: Store, tmp_path: Path) -> None:
    stored(store, boxes(4, runs=2))
    counts = export.write(store, Chosen(), tmp_path / "out", "both")
    assert counts == {"boxes": 4, "points": 80, "runs": 8, "telemetry_hours": 0}
    points = dataset.dataset(tmp_path / "out" / "points", partitioning="hive").to_table()
    listed = rows_of(tmp_path / "out" / "points.csv")
    key = ("node", "run", "point")
    found = {tuple(row[name] for name in key): row for row in points.to_pylist()}
    assert len(found) == len(listed) == 80
    for row in listed:
        same = found[tuple(row[name] for name in key)]
        assert float(row["output_tokens_per_s"]) == same["output_tokens_per_s"]
        assert row["site"] == same["site"]
        assert int(row["concurrency"]) == same["concurrency"]


def test_files_lie_by_date_in_utc_and_site(store: Store, tmp_path: Path) -> None:
    midnight = int(datetime(2026, 11, 30, tzinfo=timezone.utc).timestamp() * 1000)
    store.take(
        Batch(
            nodes=[NodeNews("box-a", "plant7", NOW_MS), NodeNews("box-b", "plant9", NOW_MS)],
            points=[
                point("box-a", 1, midnight - 1),
                point("box-a", 2, midnight),
                point("box-b", 3),
            ],
        )
    )
    export.write(store, Chosen(), tmp_path / "out", "parquet")
    parts = sorted(
        str(path.parent.relative_to(tmp_path / "out"))
        for path in (tmp_path / "out" / "points").rglob("*.parquet")
    )
    assert parts == [
        "points/date=2026-11-29/site=plant7",
        "points/date=2026-11-30/site=plant7",
        "points/date=2026-11-30/site=plant9",
    ]
    assert not list((tmp_path / "out").glob("*.csv"))


def test_slices_meet_without_a_gap_or_a_row_twice(store: Store, cluster: Postgres) -> None:
    other = open_store(cluster.database(), "collect")
    for one in (store, other):
        one.take(
            Batch(
                nodes=[NodeNews(f"box-{n}", "plant7", NOW_MS) for n in range(3)],
                points=[point(f"box-{n % 3}", n) for n in range(25)],
            )
        )
        table = next(table for table in export.TABLES if table.name == "points")
        cut = [row for rows in export.slices(one, Chosen(), table, size=4) for row in rows]
        assert len(cut) == len({(row[0], row[3]) for row in cut}) == 25
    other.close()


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1"])
def test_no_field_is_a_formula(store: Store, tmp_path: Path, text: str) -> None:
    store.take(
        Batch(
            nodes=[NodeNews("box-a", "plant7", NOW_MS)],
            points=[point("box-a", 1, engine=text)],
        )
    )
    export.write(store, Chosen(), tmp_path / "out", "csv")
    (row,) = rows_of(tmp_path / "out" / "points.csv")
    assert row["engine"] == f"'{text}"


def test_what_boxes_call_themselves_becomes_no_path(store: Store, tmp_path: Path) -> None:
    stored(store, boxes(8, runs=1), hostile=True)
    export.write(store, Chosen(), tmp_path / "out", "both")
    for path in (tmp_path / "out").rglob("*"):
        for part in path.relative_to(tmp_path / "out").parts:
            assert part.isascii()
            assert (
                part.replace("=", "").replace("-", "").replace("_", "").replace(".", "").isalnum()
            )
    read = dataset.dataset(tmp_path / "out" / "runs", partitioning="hive").to_table()
    assert read.num_rows == 8


def test_what_is_missing_is_empty_and_never_zero(store: Store, tmp_path: Path) -> None:
    store.take(Batch(nodes=[NodeNews("box-a", "plant7", NOW_MS)], points=[point("box-a", 1)]))
    export.write(store, Chosen(), tmp_path / "out", "both")
    (row,) = rows_of(tmp_path / "out" / "points.csv")
    assert (row["ttft_p50_s"], row["model"], row["output_tokens_per_s"]) == ("", "", "12.5")
    (same,) = (
        dataset.dataset(tmp_path / "out" / "points", partitioning="hive").to_table().to_pylist()
    )
    assert (same["ttft_p50_s"], same["model"]) == (None, None)


def test_only_what_was_chosen_is_exported(store: Store, tmp_path: Path) -> None:
    stored(store, boxes(6, runs=1))
    counts = export.write(store, Chosen(site="plant9-paint"), tmp_path / "out", "csv")
    assert counts["boxes"] == 2
    assert {row["site"] for row in rows_of(tmp_path / "out" / "points.csv")} == {"plant9-paint"}


def test_a_folder_with_something_in_it_is_left_alone(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    export.write(store, Chosen(), folder, "csv")
    before = sorted(folder.iterdir())
    with pytest.raises(UsageError, match="is not empty"):
        export.write(store, Chosen(), folder, "csv")
    assert sorted(folder.iterdir()) == before
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="is no folder"):
        export.write(store, Chosen(), tmp_path / "link", "csv")


def test_an_export_that_fails_leaves_nothing_behind(store: Store, tmp_path: Path) -> None:
    stored(store, boxes(1, runs=1))
    store.change("UPDATE node SET site = ?", ("../../up",))
    with pytest.raises(Exception, match="site"):
        export.write(store, Chosen(), tmp_path / "out", "parquet")
    assert not (tmp_path / "out").exists()
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
