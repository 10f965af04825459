"""How a box stands, what is said of it, and that nothing it sends reaches the terminal as it is."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from fleet_made import HOSTILE, NOW_MS, boxes, stored
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.cli import main
from edgeagent.fleet import table, views
from edgeagent.fleet.queries import Box, Chosen, LastResult, Spool
from edgeagent.fleet.status import Line, age, counts, document, lines, standing, worst_first
from edgeagent.fleet.store import open_store

_MINUTE, _DAY = 60_000, 86_400_000

WELL = Box(
    node="edge-0001",
    site="plant7",
    box_class="cpu",
    state="online",
    reason=None,
    first_rx_ms=NOW_MS - 9 * _DAY,
    last_rx_ms=NOW_MS - 20_000,
    status_ms=NOW_MS - 20_000,
    clk="sync",
    lag_ms=30,
    cert_not_after_ms=NOW_MS + 200 * _DAY,
    version="1.2.0",
    spool=Spool(0, 0, None, 0, 0),
    last=LastResult("nightly", "complete", NOW_MS - 3_600_000, ("vllm 0.32.0",)),
)


def told(box: Box) -> list[tuple[str, str]]:
    return [(one.weight, one.text) for one in standing(box, NOW_MS).troubles]


def test_a_box_that_is_well_has_no_trouble() -> None:
    line = standing(WELL, NOW_MS)
    assert (line.state, line.age_s, line.weight, told(WELL)) == ("online", 20.0, None, [])


def test_a_status_older_than_a_quarter_of_an_hour_says_nothing() -> None:
    at_the_limit = replace(WELL, status_ms=NOW_MS - 15 * _MINUTE)
    older = replace(WELL, status_ms=NOW_MS - 15 * _MINUTE - 1)
    assert standing(at_the_limit, NOW_MS).state == "online"
    assert standing(older, NOW_MS).state == "unknown"
    assert told(older) == [("bad", "no status for 15 min")]
    never = replace(WELL, state=None, status_ms=None)
    assert told(never) == [("bad", "it never told its status")]


def test_telemetry_alone_does_not_make_a_silent_box_known() -> None:
    box = replace(WELL, status_ms=NOW_MS - 60 * _MINUTE, last_rx_ms=NOW_MS)
    assert standing(box, NOW_MS).state == "unknown"


def test_a_box_that_said_goodbye_stays_offline_however_long_ago_that_was() -> None:
    shut = replace(WELL, state="offline", reason="shutdown", status_ms=NOW_MS - 3 * _DAY)
    broke = replace(shut, reason="lwt")
    assert told(shut) == [("care", "offline: shut down")]
    assert told(broke) == [("bad", "offline: the connection broke")]


@pytest.mark.parametrize(
    ("change", "trouble"),
    [
        ({"cert_not_after_ms": NOW_MS + 29 * _DAY}, ("care", "its certificate ends in 29 d")),
        ({"cert_not_after_ms": NOW_MS + 6 * _DAY}, ("bad", "its certificate ends in 6 d")),
        ({"cert_not_after_ms": NOW_MS - 3 * _DAY}, ("bad", "its certificate ended 3 d ago")),
        ({"clk": "unsync"}, ("care", "its clock is not synchronised")),
        ({"lag_ms": 185_000}, ("care", "its clock is 3 min behind")),
        ({"lag_ms": -185_000}, ("care", "its clock is 3 min ahead")),
        (
            {"spool": Spool(9, 9, 97_200.0, 0, 0)},
            ("care", "its oldest waiting message is 27 h old"),
        ),
        (
            {"spool": Spool(9, 9, 9.0, 3, 0)},
            ("care", "3 messages are parked: the broker refuses them"),
        ),
        (
            {"spool": Spool(9, 9, 9.0, 0, 1204)},
            ("bad", "1,204 messages were given up for lack of room"),
        ),
        ({"last": LastResult("x", "failed", NOW_MS)}, ("care", "its last run is failed")),
        ({"troubles": ("the disk is full",)}, ("care", "the disk is full")),
    ],
)
def test_each_trouble_is_a_sentence(change: dict[str, object], trouble: tuple[str, str]) -> None:
    assert told(replace(WELL, **change)) == [trouble]  # type: ignore[arg-type]  # because the changes differ in type


def test_ages_are_rounded_down_and_keep_two_of_their_unit() -> None:
    assert [age(s) for s in (0, 1, 119, 120, 7199, 7200, 172_799, 172_800)] == [
        "0 s", "1 s", "119 s", "2 min", "119 min", "2 h", "47 h", "2 d",
    ]  # fmt: skip


def test_the_worst_come_first_then_by_site_and_name() -> None:
    made = lines(
        [
            replace(WELL, node="b"),
            replace(WELL, node="care", clk="unsync"),
            replace(WELL, node="a"),
            replace(WELL, node="bad", status_ms=0),
        ],
        NOW_MS,
    )
    assert [line.box.node for line in sorted(made, key=worst_first)] == ["bad", "care", "a", "b"]
    assert counts(made) == {"boxes": 4, "online": 3, "offline": 0, "unknown": 1, "troubled": 2}


def test_the_document_says_null_for_what_is_not_known() -> None:
    bare = Box("edge-1", "plant7", None, None, None, None, None, None, None, None, None, None)
    (box,) = json.loads(json.dumps(document(lines([bare], NOW_MS), NOW_MS)))["boxes"]
    assert box["state"] == "unknown"
    empty = (
        "class",
        "age_s",
        "version",
        "last_result",
        "cert_not_after_ms",
        "cert_days",
        "clk",
        "lag_ms",
    )
    assert {name: box[name] for name in empty} == dict.fromkeys(empty)
    assert box["spool"] == dict.fromkeys(("rows", "bytes", "oldest_age_s", "parked", "evicted"))


def hostile(text: str) -> Box:
    return replace(
        WELL, node=text, site=text, box_class=text, clk=text, version=text, troubles=(text,) * 2,
        last=LastResult(text, text, NOW_MS, (text,)),
    )  # fmt: skip


@given(st.text(max_size=60), st.sampled_from([60, 120, 200]))
def test_no_character_that_a_terminal_obeys_gets_through(text: str, width: int) -> None:
    shown = table.render(lines([hostile(text)], NOW_MS), width)
    assert all(char.isprintable() or char == "\n" for char in shown)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_box_stays_within_its_row(text: str) -> None:
    shown = table.render(lines([hostile(text), WELL], NOW_MS), 180)
    plain = table.render(lines([hostile("x"), WELL], NOW_MS), 180)
    assert shown.splitlines()[-1] == plain.splitlines()[-1]
    assert len(shown.splitlines()) == len(plain.splitlines())
    assert shown.splitlines()[-2].startswith("edge-0001")
    assert "[bold red]" not in text or "[bold red]" in shown


def test_the_command_prints_a_table_or_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite://{tmp_path}/fleet.db"
    store = open_store(url, "collect")
    stored(store, boxes(3, runs=1))
    store.close()
    assert main.main(["fleet", "status", "--store", url]) == 0
    assert "edge-0003" in capsys.readouterr().out
    assert main.main(["fleet", "status", "--store", url, "--json", "--site", "plant9-paint"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "edgeagent.fleet.status/1"
    assert [box["node"] for box in found["boxes"]] == ["edge-0003"]


def test_a_store_that_is_not_there_is_told_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["fleet", "status", "--store", f"sqlite://{tmp_path}/none.db"]) == 2
    assert "there is no store at" in capsys.readouterr().err


def test_the_live_view_keeps_what_it_saw_while_the_store_is_away() -> None:
    looks: list[list[Line] | str] = [lines([WELL], NOW_MS), "the store does not answer"]

    def look() -> list[Line] | str:
        if not looks:
            raise KeyboardInterrupt
        return looks.pop(0)

    shown = io.StringIO()
    table.watch(look, 0.0, shown)
    last = shown.getvalue()
    assert "edge-0001" in last
    assert "the store does not answer" in last


def test_looking_again_reads_what_came_meanwhile(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/fleet.db"
    store = open_store(url, "collect")
    stored(store, boxes(1, runs=1))
    looking = views.Looking(url, Chosen())
    first = looking()
    stored(store, boxes(2, runs=1))
    second = looking()
    looking.close()
    store.close()
    assert (len(first), len(second)) == (1, 2)


def test_a_narrow_terminal_still_shows_every_box() -> None:
    shown = table.render(lines([WELL] * 3, NOW_MS), 80)
    assert shown.count("edge-0001") == 3
