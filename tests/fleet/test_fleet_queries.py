"""What the views ask, of both databases: the same questions have the same answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fleet_made import NOW_MS, boxes, stored
from postgres_places import Postgres, postgres

from edgeagent.fleet import queries
from edgeagent.fleet.queries import Chosen
from edgeagent.fleet.store import (
    Batch,
    GapRow,
    MessageRow,
    NodeNews,
    PointRow,
    Quarantined,
    RunRow,
    Store,
    open_store,
)

_LATER = NOW_MS + 1


@pytest.fixture(scope="module")
def cluster() -> Iterator[Postgres]:
    with postgres() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "sqlite":
        url = f"sqlite://{tmp_path}/fleet.db"
    else:
        url = request.getfixturevalue("cluster").database()
    opened = open_store(url, "collect")
    yield opened
    opened.close()


def news(node: str, site: str = "plant7", **more: object) -> NodeNews:
    meta = {"host": {"class": more.pop("box_class", "cpu")}, "engines": [{"kind": "vllm"}]}
    status = {"state": "online", "session_n": 1, **more}
    return NodeNews(node, site, NOW_MS, status=status, meta=meta, clk="sync", lag_ms=12)


def point(node: str, run: str, at_ms: int, rate: float | None, place: int = 0) -> PointRow:
    return PointRow(
        node, "e1", at_ms % 10_000 + place, run, str(place), "vllm", "0.32.0", "a model", "Q4",
        4096, 8, 8, "off", "off", at_ms, rate, 0.2, 0.3, None, None, None, None, None, None,
        3e6, 64, "{}",
    )  # fmt: skip


def run(node: str, run_id: str, at_ms: int, document: object) -> RunRow:
    parts = document if isinstance(document, dict) else {}
    return RunRow(
        node, run_id, "e1", at_ms % 10_000, "complete", "whole", None, None, "cpu", at_ms, at_ms,
        None, None, json.dumps(document),
        json.dumps(parts.get("comparison")), json.dumps(parts.get("findings")),
    )  # fmt: skip


def test_a_box_is_read_with_its_newest_result_and_the_engines_of_it(store: Store) -> None:
    store.take(
        Batch(
            nodes=[news("box-a", spool={"rows": 7, "bytes": 900, "oldest_age_s": 4.5})],
            runs=[run("box-a", "new", NOW_MS, {}), run("box-a", "old", NOW_MS - 1000, {})],
            points=[point("box-a", "new", NOW_MS, 10.0)],
        )
    )
    (box,) = queries.boxes(store)
    assert (box.node, box.site, box.box_class, box.state) == ("box-a", "plant7", "cpu", "online")
    assert (box.spool.rows, box.spool.oldest_age_s, box.lag_ms) == (7, 4.5, 12)
    assert box.last is not None
    assert (box.last.run_id, box.last.status, box.last.at_ms) == ("new", "complete", NOW_MS)
    assert box.last.engines == ("vllm 0.32.0",)
    assert box.configured == ("vllm",)


def test_boxes_are_chosen_by_site_and_class_and_retired_ones_are_gone(store: Store) -> None:
    store.take(
        Batch(
            nodes=[
                news("box-a"), news("box-b", site="plant9"), news("box-c", box_class="dgpu"),
                news("box-d"),
            ]
        )
    )  # fmt: skip
    store.change("UPDATE node SET retired_ms = ? WHERE node = ?", (NOW_MS, "box-d"))

    def names(chosen: Chosen) -> list[str]:
        return [box.node for box in queries.boxes(store, chosen)]

    assert names(Chosen()) == ["box-a", "box-c", "box-b"]
    assert names(Chosen(site="plant7")) == ["box-a", "box-c"]
    assert names(Chosen(box_class="dgpu")) == ["box-c"]
    assert names(Chosen("plant9", "dgpu")) == []
    assert names(Chosen(site="' OR 1=1 --")) == []


def test_of_each_box_only_its_newest_levels_are_read(store: Store) -> None:
    levels = [
        point(node, f"run-{n}", NOW_MS - n * 1000, float(n + 1), n)
        for node in ("box-a", "box-b")
        for n in range(10)
    ]
    store.take(Batch(nodes=[news("box-a"), news("box-b")], points=levels))
    found = queries.measured(store, per_box=3)
    assert [(one.node, one.run) for one in found] == [
        (node, f"run-{n}") for node in ("box-a", "box-b") for n in (2, 1, 0)
    ]
    assert found[0].output_tokens_per_s == 3.0
    assert len(queries.measured(store)) == 20


def test_a_box_that_sends_everything_at_one_moment_is_not_read_whole(store: Store) -> None:
    levels = [point("box-a", f"run-{n}", NOW_MS, 1.0, n) for n in range(10)]
    store.take(Batch(nodes=[news("box-a")], points=levels))
    assert len(queries.measured(store, per_box=3)) == 3


def test_what_is_no_sensible_number_is_as_good_as_none(store: Store) -> None:
    wrong = [
        point("box-a", "a", NOW_MS, -1.0, 1),
        point("box-a", "b", NOW_MS, 1e300, 2),
        replace_point(point("box-a", "c", NOW_MS, 5.0, 3), concurrency=0),
        replace_point(point("box-a", "d", NOW_MS, 5.0, 4), engine=None),
    ]
    store.take(Batch(nodes=[news("box-a")], points=wrong))
    assert [one.output_tokens_per_s for one in queries.measured(store)] == [None, None]


def replace_point(row: PointRow, **parts: object) -> PointRow:
    return row._replace(**parts)  # type: ignore[arg-type]  # because the parts differ in type


def test_comparisons_and_findings_come_from_the_newest_result_alone(store: Store) -> None:
    newest = {
        "comparison": [
            {"metric": "output_tokens_per_s", "a": "x", "b": "y", "outcome": "crosses",
             "low": 2.5, "high": 4, "prefix_cache": "off", "speculation": "off"},
            {"metric": "ttft_s.p50", "a": "x"},
            "nonsense",
        ],
        "findings": [{"code": "throttled", "severity": "suspect", "text": "hot"}, {"code": 7}],
    }  # fmt: skip
    old = {"findings": [{"code": "gone", "severity": "info", "text": ""}]}
    store.take(
        Batch(
            nodes=[news("box-a")],
            runs=[run("box-a", "a", NOW_MS, newest), run("box-a", "b", NOW_MS - 9, old)],
        )
    )
    said = queries.said(store)
    assert [(one.outcome, one.low, one.high) for one in said.crossings] == [("crosses", 2.5, 4.0)]
    assert [(one.node, one.code, one.text) for one in said.doubts] == [
        ("box-a", "throttled", "hot")
    ]


def test_a_result_of_another_shape_ends_no_question(store: Store) -> None:
    for number, document in enumerate(({"findings": 7, "comparison": {"a": 1}}, {}, [])):
        node = f"box-{number}"
        store.take(Batch(nodes=[news(node)], runs=[run(node, "a", NOW_MS, document)]))
    assert queries.said(store) == queries.Said()


def test_losses_are_counted_without_the_rows_that_are_still_to_come(store: Store) -> None:
    store.take(
        Batch(
            nodes=[news("box-a")],
            gaps=[
                GapRow("box-a", "e1", "M", 1, 100, None, "evicted", NOW_MS),
                # of 101 to 110 the multiples of five are spared: 105 and 110
                GapRow("box-a", "e1", "M", 101, 110, 5, "evicted", NOW_MS),
                GapRow("box-a", "e1", "R", 5, 5, None, "parked", NOW_MS),
            ],
        )
    )
    found = [(one.stream, one.reason, one.gaps, one.rows) for one in queries.lost(store)]
    assert found == [("M", "evicted", 2, 108), ("R", "parked", 1, 1)]


def test_what_was_put_aside_is_counted_by_reason(store: Store) -> None:
    aside = [Quarantined(NOW_MS + n, f"t/{n % 2}", "no JSON", "x", 1) for n in range(5)]
    store.take(Batch(quarantined=[*aside, Quarantined(NOW_MS, "t/9", "forged", "x", 1)]))
    found = [(one.reason, one.messages) for one in queries.refused(store)]
    assert found == [("no JSON", 5), ("forged", 1)]


def test_the_most_memory_in_use_comes_from_the_hourly_roll_ups(store: Store) -> None:
    hours = [("box-a", 0, 9.0), ("box-a", 3_600_000, 5.0), ("box-a", 7_200_000, 7.0)]
    for node, hour, most in hours:
        store.change(
            "INSERT INTO telemetry_hour (node, kind, hour_ms, name, n, min, mean, max)"
            " VALUES (?, 'mem_1m', ?, 'ram_used_bytes', 60, 1.0, 2.0, ?)",
            (node, hour, most),
        )
    assert queries.peaks(store, "ram_used_bytes", 3_600_000) == {"box-a": 7.0}


def test_a_made_fleet_reads_the_same_from_both_databases(cluster: Postgres, tmp_path: Path) -> None:
    answers = []
    for url in (f"sqlite://{tmp_path}/both.db", cluster.database()):
        store = open_store(url, "collect")
        stored(store, boxes(6, runs=2))
        answers.append(
            (
                [replace(box) for box in queries.boxes(store)],
                queries.measured(store),
                queries.said(store),
                queries.lost(store),
            )
        )
        store.close()
    assert answers[0] == answers[1]
    assert len(answers[0][0]) == 6


def test_a_message_row_alone_makes_no_box(store: Store) -> None:
    row = MessageRow("box-z", "e1", "R", 1, "x/1", "e/x", NOW_MS, NOW_MS, "b", 1, "sync", "{}")
    store.take(Batch(messages=[row]))
    assert queries.boxes(store) == []
