"""Many boxes are asked for a sweep over a real broker, and followed to the end."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from broker_places import Mosquitto, mosquitto, until
from many_boxes import DONE, Kind, Station, boxes, some, stages, succeeds

from edgeagent.publish.command_messages import CmdCancel, CmdSweep
from edgeagent.publish.signature import Key, verify

FAST = ("--stagger", "0")
OFFLINE = Kind(state="offline")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    with mosquitto(tmp_path / "broker") as made:
        yield made


def station(tmp_path: Path, broker: Mosquitto, lines: str = "") -> Station:
    return Station(tmp_path / "station", broker.port, lines)


def test_forty_boxes_are_asked_few_at_a_time_and_all_succeed(
    tmp_path: Path, broker: Mosquitto
) -> None:
    with boxes(broker.port, some(40)) as many:
        out: list[str] = []
        most = 0

        def script(node: str, request: dict[str, Any]) -> Sequence[dict[str, Any]]:
            nonlocal most
            out.append(f"edgeagent/v1/plant7/{node}/cmd/sweep/{request['id']}")
            most = max(most, len(out))
            return [{"state": "accepted"}, {"state": "running", "run": "r"}]

        def all_who_are_at_it_end() -> None:
            ended, out[:] = list(out), []
            for topic in ended:
                many.ack(topic, {"state": "succeeded"})

        many.script, many.idle = script, all_who_are_at_it_end
        status, said = station(tmp_path, broker).asks(
            "--profile", "nightly", "--site", "plant7", "--at-once", 5, *FAST
        )
    assert status == 0, said
    assert said["verdict"] == "succeeded"
    assert set(stages(said).values()) == {"succeeded"}
    assert many.nodes_asked() == sorted(some(40))
    assert len({request["id"] for _, request in many.asked}) == 40
    assert 2 <= most <= 5
    for _, request in many.asked:
        CmdSweep.model_validate(request)
        assert "sig" not in request


def test_a_request_is_signed_with_the_configured_key(tmp_path: Path, broker: Mosquitto) -> None:
    key = tmp_path / "key"
    key.write_text("k" * 64)
    key.chmod(0o400)
    lines = f'[mqtt.commands]\nhmac_key_file = "{key}"\n'
    with boxes(broker.port, some(1)) as many:
        status, _ = station(tmp_path, broker, lines).asks(
            "--profile", "nightly", "--override", "concurrency=1,4", "--override", "requests=20"
        )
    assert status == 0
    request = many.asked[0][1]
    assert verify(request, Key(b"k" * 64)) == "good"
    assert request["override"] == {"concurrency": [1, 4], "requests": 20}
    assert request["expires_at"] - request["issued_at"] == 3_600_000


def test_a_dry_run_asks_for_one(tmp_path: Path, broker: Mosquitto) -> None:
    with boxes(broker.port, some(2)) as many:
        status, said = station(tmp_path, broker).asks("--profile", "nightly", "--dry-run", *FAST)
    assert (status, said["dry_run"]) == (0, True)
    assert [request["dry_run"] for _, request in many.asked] == [True, True]


def test_boxes_are_chosen_by_site_class_engine_and_name(tmp_path: Path, broker: Mosquitto) -> None:
    kinds = {
        "edge-0001": Kind(),
        "edge-0002": Kind(box_class="dgpu"),
        "edge-0003": Kind(engine="vllm"),
        "edge-0004": Kind(site="plant8"),
        "edge-0005": Kind(box_class="cpu", engine="vllm"),
    }
    with boxes(broker.port, kinds):
        at = station(tmp_path, broker)

        def meant(*words: object) -> list[str]:
            status, said = at.asks("--profile", "nightly", *FAST, *words)
            assert status == 0, said
            return sorted(stages(said))

        assert meant("--site", "plant8") == ["edge-0004"]
        assert meant("--where", "class=dgpu,cpu") == ["edge-0002", "edge-0005"]
        assert meant("--where", "class=uma-nvgpu", "--where", "engine=vllm") == ["edge-0003"]
        assert meant("--node", "edge-0002", "--node", "edge-0001") == ["edge-0001", "edge-0002"]


def test_a_box_that_is_offline_is_not_asked_and_makes_it_no_success(
    tmp_path: Path, broker: Mosquitto
) -> None:
    kinds = {"edge-0001": Kind(), "edge-0002": OFFLINE}
    with boxes(broker.port, kinds) as many:
        status, said = station(tmp_path, broker).asks("--profile", "nightly", *FAST)
    assert status == 1
    assert stages(said) == {"edge-0001": "succeeded", "edge-0002": "skipped"}
    assert said["boxes"][1]["reason"] == "offline"
    assert many.nodes_asked() == ["edge-0001"]


def refuses(code: str) -> Any:
    def script(_node: str, _request: dict[str, Any]) -> Sequence[dict[str, Any]]:
        return [{"state": "rejected", "code": code, "reason": f"because of {code}"}]

    return script


def test_it_stops_asking_after_the_set_number_of_failures(
    tmp_path: Path, broker: Mosquitto
) -> None:
    with boxes(broker.port, some(12), refuses("unknown_profile")) as many:
        status, said = station(tmp_path, broker).asks(
            "--profile", "nightly", *FAST, "--at-once", 1, "--stop-after-failures", 3
        )
    assert status == 1
    assert said["halted"] == "stopped after 3 failures"
    assert said["tally"] == {"rejected": 3, "skipped": 9}
    assert len(many.asked) == 3
    assert said["boxes"][0]["reason"] == "because of unknown_profile"


def test_all_busy_is_try_again_and_stops_nothing(tmp_path: Path, broker: Mosquitto) -> None:
    with boxes(broker.port, some(5), refuses("busy")) as many:
        status, said = station(tmp_path, broker).asks(
            "--profile", "nightly", *FAST, "--stop-after-failures", 1
        )
    assert (status, said["verdict"]) == (75, "later")
    assert len(many.asked) == 5


def test_a_box_that_says_nothing_is_given_up_and_named(tmp_path: Path, broker: Mosquitto) -> None:
    def script(node: str, request: dict[str, Any]) -> Sequence[dict[str, Any]]:
        return () if node == "edge-0002" else succeeds(node, request)

    with boxes(broker.port, some(3), script):
        status, said = station(tmp_path, broker).asks(
            "--profile", "nightly", *FAST, "--answer-within", "2"
        )
    assert status == 1
    assert stages(said)["edge-0002"] == "silent"
    assert said["tally"] == {"silent": 1, "succeeded": 2}


def test_a_box_that_does_not_listen_is_known_at_once(tmp_path: Path, broker: Mosquitto) -> None:
    with boxes(broker.port, {}) as many:
        many.tell("edge-0001", Kind())
    status, said = station(tmp_path, broker).asks("--profile", "nightly")
    assert status == 1
    assert stages(said) == {"edge-0001": "undelivered"}
    assert "nobody listens" in said["boxes"][0]["reason"]


def test_what_a_box_says_cannot_move_the_terminal(tmp_path: Path, broker: Mosquitto) -> None:
    evil = "\x1b[2J\u202egone [red]"

    def script(_node: str, _request: dict[str, Any]) -> Sequence[dict[str, Any]]:
        return [{"state": "failed", "reason": evil}]

    with boxes(broker.port, some(1), script):
        done = station(tmp_path, broker).does("request", "--profile", "nightly")
    assert done.returncode == 1
    assert "gone [red]" in done.stdout
    assert "\x1b" not in done.stdout
    assert "\u202e" not in done.stdout


def test_nonsense_on_an_ack_topic_changes_nothing(tmp_path: Path, broker: Mosquitto) -> None:
    with boxes(broker.port, some(1)) as many:

        def script(node: str, request: dict[str, Any]) -> Sequence[dict[str, Any]]:
            topic = f"edgeagent/v1/plant7/{node}/ack/sweep/{request['id']}"
            for payload in (b"", b"{", b"[1]", b'{"state": "succeeded"}', b"\xff", b"x" * 70_000):
                many.says.publish(topic, payload)
            return DONE

        many.script = script
        status, said = station(tmp_path, broker).asks("--profile", "nightly")
    assert (status, stages(said)) == (0, {"edge-0001": "succeeded"})


def test_a_broker_that_is_restarted_meanwhile_loses_nothing(
    tmp_path: Path, broker: Mosquitto
) -> None:
    asked, again = threading.Event(), threading.Event()

    def script(_node: str, _request: dict[str, Any]) -> Sequence[dict[str, Any]]:
        asked.set()
        assert again.wait(120)
        return DONE

    with boxes(broker.port, some(1), script) as many:
        at = station(tmp_path, broker)
        with subprocess.Popen(
            at.words("request", "--profile", "nightly", "--json"), stdout=subprocess.PIPE, text=True
        ) as asking:
            assert asked.wait(60)
            broker.restart()
            until(many.says._client.is_connected, "the boxes are back")
            again.set()
            out, _ = asking.communicate(timeout=120)
    assert asking.returncode == 0, out
    assert stages(json.loads(out)) == {"edge-0001": "succeeded"}


def test_ctrl_c_says_what_is_out_and_how_it_is_taken_back(
    tmp_path: Path, broker: Mosquitto
) -> None:
    def script(_node: str, request: dict[str, Any]) -> Sequence[dict[str, Any]]:
        return DONE if "target" in request else [{"state": "running", "run": "r"}]

    with boxes(broker.port, some(6), script) as many:
        at = station(tmp_path, broker)
        with subprocess.Popen(
            at.words("request", "--profile", "nightly", "--at-once", 2, *FAST),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as asking:  # fmt: skip
            assert asking.stdout is not None
            shown = [asking.stdout.readline() for _ in range(2)]
            while sum("running" in one for one in shown) < 2:
                shown.append(asking.stdout.readline())
                assert shown[-1], shown
            asking.send_signal(signal.SIGINT)
            out, err = asking.communicate(timeout=120)
        assert asking.returncode == 130, err
        assert "Traceback" not in err
        assert "2 may still act on it: plant7/edge-0001, plant7/edge-0002" in out
        offer = next(line for line in out.splitlines() if line.startswith("to take it back: "))
        words = offer.split("edgeagent fleet request ")[1].split()
        status, said = at.asks(*words)
    assert status == 0
    assert said["operation"] == "cancel"
    sweeps = {request["id"]: node for node, request in many.asked if "target" not in request}
    cancels = [(node, request) for node, request in many.asked if "target" in request]
    assert len(sweeps) == len(cancels) == 2
    for node, request in cancels:
        CmdCancel.model_validate(request)
        assert sweeps[request["target"]] == node


# ---------------------------------------------------------------- what cannot be asked


def sentence(done: subprocess.CompletedProcess[str], status: int) -> str:
    assert done.returncode == status, done.stderr
    assert done.stderr.startswith("edgeagent: "), done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_without_a_broker_it_says_so(tmp_path: Path) -> None:
    done = Station(tmp_path, 1).does("request", "--profile", "nightly")
    assert "127.0.0.1:1 cannot be reached" in sentence(done, 69)


def test_a_choice_that_means_nobody_says_what_there_is(tmp_path: Path, broker: Mosquitto) -> None:
    with boxes(broker.port, some(2)):
        at = station(tmp_path, broker)
        done = at.does("request", "--profile", "nightly", "--where", "class=dgpu")
        assert "classes uma-nvgpu" in sentence(done, 2)
        done = at.does("request", "--profile", "nightly", "--node", "edge-9999")
        assert "knows no edge-9999" in sentence(done, 2)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--where", "colour=red"], "--where"),
        (["--where", "class"], "--where"),
        (["--override", "concurrency=a"], "--override"),
        (["--override", "colour=1"], "override.colour"),
        (["--override", "concurrency=0"], "override.concurrency"),
        (["--expires", "90000"], "90000 s"),
        (["--at-once", "0"], "--at-once"),
        (["--stagger", "nan"], "--stagger"),
        (["--node", "a/b"], "--node"),
        (["--issuer", "Somebody Else"], "issuer"),
        (["--key", "/nonexistent"], "/nonexistent"),
    ],
)
def test_what_boxes_would_refuse_is_refused_here(
    tmp_path: Path, words: list[str], says: str
) -> None:
    done = Station(tmp_path, 1).does("request", "--profile", "nightly", *words)
    assert done.returncode in {2, 78}, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_cancel_wants_the_id_of_a_rollout(tmp_path: Path) -> None:
    done = Station(tmp_path, 1).does("request", "--cancel", "yesterday")
    assert "is no rollout" in sentence(done, 2)
