"""What the plant asks a box for, over a real broker, and what becomes of it."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent import processes_of
from broker_places import retained_at, until
from daemon_places import PREFIX, Plant, plant, write_policy

from edgeagent.publish.signature import Key, signed


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    """One box for everything that leaves it as it was."""
    with plant(tmp_path_factory.mktemp("box")) as place:
        place.box.start()
        yield place


@pytest.fixture
def shared(started: Plant) -> Plant:
    """The box at rest: online, idle for long enough, and ready to look at five messages."""
    if started.box.process is None:
        started.box.start()
    started.box.hands(ahead_s=11)
    started.online()
    return started


def events(place: Plant, command_id: str) -> set[str]:
    """The states that were audited."""
    found = (one["v"] for one in place.documents("e/audit"))
    return {one["state"] for one in found if one["id"] == command_id}


def test_a_requested_sweep_is_told_step_by_step_and_its_results_come_before_its_end(
    shared: Plant,
) -> None:
    asked = shared.ask("sweep", profile="quick", override={"concurrency": [1, 2]})
    done = shared.answered("sweep", asked, "succeeded", "failed")
    assert done["state"] == "succeeded", done
    states = [ack["state"] for ack in shared.acks("sweep", asked)]
    assert list(dict.fromkeys(states)) == ["accepted", "running", "succeeded"]
    assert done["done"] == done["total"] == 2
    topics = shared.sees.topics()
    run = f"{PREFIX}/r/run/{done['run']}"
    last_ack = len(topics) - topics[::-1].index(f"{PREFIX}/ack/sweep/{asked}") - 1
    assert topics.index(run) < last_ack
    assert topics.count(f"{PREFIX}/r/point/{done['run']}") == 2
    (document,) = shared.documents(f"r/run/{done['run']}")
    assert document["v"]["status"] == "complete"
    until(
        lambda: events(shared, asked) == {"accepted", "succeeded"},
        "both events",
    )


def test_the_same_request_again_gets_the_same_answer_and_starts_nothing(shared: Plant) -> None:
    document = shared.request("sweep", profile="quick")
    payload = json.dumps(document).encode()
    shared.send("sweep", document["id"], payload)
    shared.send("sweep", document["id"], payload)
    done = shared.answered("sweep", document["id"], "succeeded", "failed")
    shared.send("sweep", document["id"], payload)

    def said() -> list[dict[str, object]]:
        acks = shared.acks("sweep", document["id"])[-2:]
        return [{name: value for name, value in ack.items() if name != "ts"} for ack in acks]

    until(lambda: said()[0] == said()[1], "the answer again")
    assert [one.name for one in shared.box.runs.iterdir()].count(done["run"]) == 1
    runs = {ack.get("run") for ack in shared.acks("sweep", document["id"])} - {None}
    assert runs == {done["run"]}


def test_another_request_under_a_known_id_is_a_replay(shared: Plant) -> None:
    first = shared.ask("ping")
    shared.answered("ping", first, "succeeded")
    other = shared.request("ping", first, expires_at=shared.box.now_ms() + 500_000)
    shared.send("ping", first, json.dumps(other).encode())
    until(
        lambda: [one["v"].get("code") for one in shared.documents("e/audit")
                 if one["v"]["id"] == first][-1:] == ["replay"],
        "the event",
    )  # fmt: skip
    assert shared.acks("ping", first)[-1]["state"] == "succeeded"


def test_each_kind_of_wrong_request_has_its_code(shared: Plant) -> None:
    now_ms = shared.box.now_ms()
    wrong: dict[str, tuple[str, dict[str, Any]]] = {
        "schema": ("sweep", {"profile": "quick", "colour": "red"}),
        "unknown_profile": ("sweep", {"profile": "other"}),
        "out_of_bounds": ("sweep", {"profile": "quick", "override": {"concurrency": [99]}}),
        "policy_disabled": ("ping", {"issuer": "stranger"}),
        "replay": ("ping", {"issued_at": now_ms - 4 * 3600 * 1000}),
        "expired": ("ping", {"expires_at": now_ms - 1000}),
    }
    for code, (operation, more) in wrong.items():
        document = shared.request(operation, **more)
        shared.send(operation, document["id"], json.dumps(document).encode())
        assert shared.rejected(operation, document["id"]) == code, code


def test_what_is_too_long_or_no_json_or_retained_is_refused(shared: Plant) -> None:
    ids = [str(uuid.uuid4()) for _ in range(3)]
    shared.box.hands(ahead_s=11)
    shared.send("ping", ids[0], b'{"a":"' + b"x" * 9 * 1024 + b'"}')
    assert shared.rejected("ping", ids[0]) == "too_large"
    shared.send("ping", ids[1], b"{not json")
    assert shared.rejected("ping", ids[1]) == "schema"
    document = shared.request("ping", ids[2])
    # one that is retained while the box is connected comes as any other; told apart at the next
    # connection
    shared.box.stop()
    shared.send("ping", ids[2], json.dumps(document).encode(), retain=True)
    shared.box.start()
    assert shared.rejected("ping", ids[2]) == "retained"
    shared.send("ping", ids[2], b"", retain=True)


def test_a_request_that_ran_out_while_the_box_was_away_is_expired(shared: Plant) -> None:
    shared.box.stop()
    asked = shared.ask("sweep", profile="quick", expires_at=shared.box.now_ms() + 1000)
    shared.box.hands(ahead_s=30)
    shared.box.start()
    assert shared.rejected("sweep", asked) == "expired"


def test_a_box_that_does_not_know_the_time_refuses_and_still_answers_a_ping(shared: Plant) -> None:
    shared.box.stop()  # because one that has once known it holds on to it
    shared.box.hands(synchronised=False)
    shared.box.start()
    asked = shared.ask("sweep", profile="quick")
    assert shared.answered("sweep", asked, "rejected")["code"] == "clock_unsync"
    shared.answered("ping", shared.ask("ping"), "succeeded")


def test_an_operator_with_the_older_protocol_is_heard(shared: Plant) -> None:
    document = shared.request("ping")
    done = subprocess.run(
        ["mosquitto_pub", "-V", "mqttv311", "-p", str(shared.port), "-q", "1",
         "-t", f"{PREFIX}/cmd/ping/{document['id']}", "-m", json.dumps(document)],
        check=False, capture_output=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shared.answered("ping", document["id"], "succeeded")


def test_of_a_hundred_at_once_five_are_looked_at_and_the_rest_is_counted(shared: Plant) -> None:
    def answered() -> list[str]:
        return [one for one in ids if shared.acks("ping", one)]

    log = shared.box.folder / "broker/mosquitto.log"

    def taken() -> int:
        return log.read_text(errors="replace").count("Received PUBACK from edge-0001")

    before = taken()
    ids = [shared.ask("ping") for _ in range(100)]
    shared.box.wait(lambda: taken() >= before + 100, "all have been taken from the broker")
    until(lambda: len(answered()) >= 5, "five answers")

    def all_accounted_for() -> bool:
        shared.box.hands(ahead_s=11)
        told = sum(one["v"].get("n", 0) for one in shared.documents("e/audit"))
        return bool(len(answered()) + told == 100)

    until(all_accounted_for, "the events about the rest")
    assert len(answered()) <= 20


def test_what_was_delivered_can_be_sent_again_by_number(shared: Plant) -> None:
    def points() -> list[int]:
        return [one["seq"] for one in shared.documents("e/audit")]

    shared.rejected("sweep", shared.ask("sweep", profile="gone"))  # because that is audited
    until(points, "some event")
    first = points()[0]
    document = {**shared.request("resync"), "stream": "R", "from": first, "to": first}
    shared.send("resync", document["id"], json.dumps(document).encode())
    shared.answered("resync", document["id"], "succeeded")
    until(lambda: points().count(first) > 1 or shared.documents("e/gap"), "it again, or its gap")


def test_meta_says_what_may_be_asked_and_within_which_limits(shared: Plant) -> None:
    before = len(shared.documents("meta/cmd/sweep"))
    shared.answered("meta", shared.ask("meta"), "succeeded")
    until(lambda: len(shared.documents("meta/cmd/sweep")) > before, "the document again")
    limits = shared.documents("meta/cmd/sweep")[-1]["limits"]
    assert limits["profiles"] == ["quick", "long"]  # "gone" is allowed, and not there
    assert limits["override"] == {"concurrency": {"least": 1, "most": 4, "count": 2}}
    assert shared.documents("meta/node")[-1]["node"] == "edge-0001"


def test_one_sweep_runs_one_waits_and_both_can_be_taken_back(shared: Plant) -> None:
    running = shared.ask("sweep", profile="long")
    run = shared.answered("sweep", running, "running")["run"]
    shared.box.measures(run)
    waiting = shared.ask("sweep", profile="quick")
    shared.answered("sweep", waiting, "accepted")
    third = shared.ask("sweep", profile="quick")
    assert shared.rejected("sweep", third) == "busy"
    shared.box.hands(ahead_s=11)
    shared.answered("cancel", shared.ask("cancel", target=waiting), "succeeded")
    assert shared.answered("sweep", waiting, "cancelled")
    shared.answered("cancel", shared.ask("cancel", target=running), "succeeded")
    ended = shared.answered("sweep", running, "cancelled")
    until(lambda: not processes_of(shared.box.runs / ended["run"]), "its engines are gone")
    until(lambda: shared.documents(f"r/run/{ended['run']}"), "what was measured is kept")


def test_a_sweep_that_waits_has_its_turn(shared: Plant) -> None:
    first = shared.ask("sweep", profile="quick")
    second = shared.ask("sweep", profile="quick", override={"concurrency": [2]})
    assert shared.answered("sweep", first, "succeeded", "failed")["state"] == "succeeded"
    done = shared.answered("sweep", second, "succeeded", "failed")
    assert done["state"] == "succeeded", done


def test_a_permission_that_was_taken_back_counts_at_once(shared: Plant) -> None:
    shared.answered("ping", shared.ask("ping"), "succeeded")
    write_policy(shared.box.folder, ('"ping", ', ""))
    asked = shared.ask("ping")
    assert shared.answered("ping", asked, "rejected", "succeeded")["code"] == "policy_disabled"
    write_policy(shared.box.folder)


def test_the_last_answers_stay_and_older_ones_are_cleared(shared: Plant) -> None:
    ids = []
    for _ in range(25):
        ids.append(shared.ask("ping"))
        shared.answered("ping", ids[-1], "succeeded")
        shared.box.hands(ahead_s=3)
    until(lambda: retained_at(shared.port, f"{PREFIX}/ack/ping/{ids[0]}") is None, "it is cleared")
    assert retained_at(shared.port, f"{PREFIX}/ack/ping/{ids[-1]}")


def test_signatures(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("k" * 40)
    key.chmod(0o400)
    change = ("[daemon]", f'hmac_key_file = "{key}"\n[daemon]')
    with plant(tmp_path, change) as place:
        place.box.start()
        place.online()
        assert place.rejected("ping", place.ask("ping")) == "bad_sig"
        document = place.request("ping")
        sig = signed(document, Key(b"k" * 40))
        place.send("ping", document["id"], json.dumps({**document, "sig": sig}).encode())
        place.answered("ping", document["id"], "succeeded")
        key.unlink()  # nobody's signature can be right now
        other = place.request("ping")
        sig = signed(other, Key(b"k" * 40))
        place.send("ping", other["id"], json.dumps({**other, "sig": sig}).encode())
        assert place.rejected("ping", other["id"]) == "bad_sig"


def test_what_cannot_be_stored_is_refused_and_later_ones_are_obeyed(tmp_path: Path) -> None:
    with plant(tmp_path) as place:
        place.box.start()
        place.online()
        held = sqlite3.connect(tmp_path / "state/spool.db", isolation_level=None)
        held.execute("BEGIN EXCLUSIVE")
        asked = place.ask("sweep", profile="quick")
        refused = place.answered("sweep", asked, "rejected")
        assert refused["code"] == "spool_full"
        held.execute("ROLLBACK")
        held.close()
        place.answered("ping", place.ask("ping"), "succeeded")
        place.box.wait(lambda: not place.box.status()["troubles"], "all is well again")
        assert not place.box.runs.exists() or not list(place.box.runs.iterdir())


@pytest.mark.parametrize(
    ("place_of_death", "expected"),
    [("accepted", "succeeded"), ("running", "interrupted"), ("begun", "interrupted")],
)
def test_an_id_starts_one_run_at_most_wherever_the_agent_is_killed(
    tmp_path: Path, place_of_death: str, expected: str
) -> None:
    with plant(tmp_path) as place:
        place.box.start(kill_at=place_of_death)
        place.online()
        asked = place.ask("sweep", profile="quick")
        payload = json.dumps(place.request("sweep", asked, profile="quick")).encode()
        assert place.box.ended() == -9
        place.box.start()
        end = place.answered("sweep", asked, "succeeded", "failed", "interrupted")
        assert end["state"] == expected
        place.send("sweep", asked, payload)
        until(lambda: place.acks("sweep", asked)[-1]["state"] == expected, "the same answer")
        runs = list(place.box.runs.iterdir()) if place.box.runs.exists() else []
        assert len(runs) == (0 if place_of_death == "running" else 1)
        assert [one.name for one in runs] in ([], [end.get("run")])
