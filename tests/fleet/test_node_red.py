"""The real Node-RED takes the flow of configs/ and shows what boxes say to the plant's broker."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from broker_places import PATIENCE_S, until
from plant_places import CONFIGS, PlantBroker, party, plant_broker

GOLDEN = Path(__file__).parents[1] / "publish/golden/v1"
BOX = "edgeagent/v1/plant7/edge-0001"
OTHER = "edgeagent/v1/plant7/edge-0002"

# Without an editor there is nothing to listen on. What debug nodes show in the editor's sidebar is
# an event of the runtime, which is written to a file here.
SETTINGS = """
const fs = require('fs');
const { events } = require(%(util)s);
events.on('comms', said => {
  if (said.topic === 'debug') fs.appendFileSync(%(shown)s, JSON.stringify(said.data) + '\\n');
});
module.exports = {
  flowFile: 'flow.json', credentialSecret: false, httpAdminRoot: false, httpNodeRoot: false,
  mqttReconnectTime: 500, debugMaxLength: 100000,
  telemetry: { enabled: false, updateNotification: false },
  externalModules: { palette: { allowInstall: false }, modules: { allowInstall: false } },
};
"""


def _program() -> list[str]:
    red, node = os.environ.get("EDGEAGENT_TEST_NODE_RED"), shutil.which("node")
    if red and node:
        return [node, red]
    if os.environ.get("EDGEAGENT_REQUIRE_NODE_RED") == "1":
        pytest.fail("EDGEAGENT_REQUIRE_NODE_RED=1, but EDGEAGENT_TEST_NODE_RED or node is missing")
    pytest.skip("no Node-RED; name its red.js in EDGEAGENT_TEST_NODE_RED to run this test")


def _flow(broker: PlantBroker) -> str:
    """The file as it is, but for paths, the broker's name and its port."""
    text = (CONFIGS / "node-red/edgeagent-flow.json").read_text()
    for old, new in (
        ("/etc/node-red/pki/", f"{broker.pki.folder}/"),
        ('"broker.plant"', '"localhost"'),
        ('"8883"', f'"{broker.port}"'),
    ):
        assert old in text, old
        text = text.replace(old, new)
    return text


@dataclass
class NodeRed:
    """A Node-RED at work, and what its debug nodes have shown."""

    folder: Path
    broker: PlantBroker
    process: subprocess.Popen[bytes]

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def shown(self, name: str) -> list[Any]:
        """What the debug node of that name has shown so far, as values."""
        path = self.folder / "shown"
        lines = path.read_text().splitlines() if path.exists() else []
        told = [json.loads(line) for line in lines]
        return [
            json.loads(one["msg"]) if one["format"] in {"Object", "object"} else one["msg"]
            for one in told
            if one.get("name") == name
        ]

    def connected(self, times: int = 1) -> bool:
        assert self.process.poll() is None, self.log()
        return self.log().count("Connected to broker") >= times


@contextmanager
def _node_red(folder: Path, broker: PlantBroker) -> Iterator[NodeRed]:
    program = _program()
    folder.mkdir()
    util = Path(program[1]).parents[1] / "@node-red/util"
    words = {"util": json.dumps(str(util)), "shown": json.dumps(str(folder / "shown"))}
    (folder / "settings.js").write_text(SETTINGS % words)
    (folder / "flow.json").write_text(_flow(broker))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*program, "--userDir", str(folder), "--settings", str(folder / "settings.js")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    made = NodeRed(folder, broker, process)
    try:
        until(made.connected, "Node-RED is connected", 4 * PATIENCE_S)
        yield made
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def red(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeRed]:
    _program()
    folder = tmp_path_factory.mktemp("node-red")
    with plant_broker(folder / "plant") as broker, _node_red(folder / "user", broker) as made:
        _subscribed(made)
        yield made


def _subscribed(red: NodeRed) -> None:
    """Wait until an event of a box comes through, so that nothing later is missed."""
    with party(red.broker, "edge-0002") as box:

        def seen() -> bool:
            box.may_write(f"{OTHER}/e/oom", _golden("oom"))
            return bool(red.shown("to whoever is on call"))

        until(seen, "Node-RED is subscribed")


def _golden(name: str) -> bytes:
    return (GOLDEN / f"{name}.json").read_bytes()


def test_node_red_takes_every_node_of_the_flow(red: NodeRed) -> None:
    log = red.log()
    assert "Started flows" in log
    for trouble in ("Waiting for missing types", "[error]"):
        assert trouble not in log, log


def test_a_result_arrives_as_a_row_with_its_key(red: NodeRed) -> None:
    with party(red.broker, "edge-0001") as box:
        assert box.may_write(f"{BOX}/r/point/20261130T1130Z-1a2b", _golden("point"))
    until(lambda: red.shown("to a database: upsert by key"), "the result is shown")
    row = red.shown("to a database: upsert by key")[-1]
    sent = json.loads(_golden("point"))
    assert row["key"] == "edge-0001/9f3c2a1b/R/1042"
    assert (row["site"], row["node"], row["time"]) == ("plant7", "edge-0001", sent["ts"])
    assert {name: row[name] for name in sent["v"]} == sent["v"]


def test_an_event_arrives_as_a_sentence(red: NodeRed) -> None:
    assert red.shown("to whoever is on call")[0] == (
        'plant7/edge-0002: oom {"victim":"llama-server","pid":4711,"source":"guard"}'
    )


def test_the_last_status_of_a_box_outlives_a_restart_of_the_broker(red: NodeRed) -> None:
    with party(red.broker, "edge-0001") as box:
        assert box.may_write(f"{BOX}/status", _golden("status"), retain=True)
    until(lambda: red.shown("boxes"), "the status is shown")
    assert red.shown("boxes")[-1]["edge-0001"]["state"] == "online"
    before = len(red.shown("boxes"))
    red.broker.restart(signal.SIGTERM)
    until(lambda: red.connected(2), "Node-RED is connected again")
    until(lambda: len(red.shown("boxes")) > before, "the broker says the status again")
    status = red.shown("boxes")[-1]["edge-0001"]
    assert (status["site"], status["session_n"], status["waits"]) == ("plant7", 17, 12)


def test_what_is_no_json_stops_nothing(red: NodeRed) -> None:
    before = len(red.shown("to a database: upsert by key"))
    with party(red.broker, "edge-0001") as box:
        assert box.may_write(f"{BOX}/r/point/x", b"{ no json")
        assert box.may_write(f"{BOX}/r/point/x", b"7")
        assert box.may_write(f"{BOX}/r/point/x", _golden("point"))
    until(lambda: len(red.shown("to a database: upsert by key")) > before, "the good one is shown")
    assert len(red.shown("to a database: upsert by key")) == before + 1
