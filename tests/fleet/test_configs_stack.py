"""What configs/ has for a plant's own stack can be read; its SQL runs on the collector's tables."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml  # type: ignore[import-untyped]  # because its types are a package of their own
from broker_places import mosquitto, observer, until
from fleet_boxes import collecting
from plant_rows import filled
from postgres_places import postgres

from edgeagent.publish.messages import MESSAGES, PointValues, Status

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CONFIGS = Path(__file__).parents[2] / "configs"
GRAFANA = CONFIGS / "grafana"
GOLDEN = CONFIGS.parent / "tests/publish/golden/v1"
BOARD: dict[str, Any] = json.loads((GRAFANA / "dashboards/edgeagent.json").read_text())
ALERTS: dict[str, Any] = yaml.safe_load(
    (GRAFANA / "provisioning/alerting/edgeagent.yaml").read_text()
)
NODES = [f"edge-{number:04}" for number in range(1, 5)]


# ---------------------------------------------------------------- Grafana, on a real PostgreSQL


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with postgres() as cluster:
        url = cluster.database()
        filled(url)
        yield url


def _expanded(sql: str) -> str:
    """As Grafana sends it: macros and variables filled in, everything chosen, the last 200 days."""
    now = int(time.time())
    words = {
        "$__unixEpochFrom()": str(now - 200 * 86_400),
        "$__unixEpochTo()": str(now + 60),
        "$__interval_ms": "60000",
        "${site:sqlstring}": "SELECT site FROM node",
        "${node:sqlstring}": "SELECT node FROM node",
        "${model:sqlstring}": "SELECT model FROM point",
    }
    for name, text in words.items():
        sql = sql.replace(name, text)
    assert "$" not in sql, sql
    return sql


def _ran(url: str, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    with psycopg.connect(url) as connection:
        connection.read_only = True
        cursor = connection.execute(_expanded(sql).encode())
        return [column.name for column in cursor.description or ()], cursor.fetchall()


PANELS = {panel["title"]: panel for panel in BOARD["panels"]}


@pytest.mark.parametrize("title", PANELS)
def test_every_panel_has_something_to_show(database: str, title: str) -> None:
    for target in PANELS[title]["targets"]:
        _, rows = _ran(database, target["rawSql"])
        assert rows, title


SAID = {"point": "r/point/run-1", "oom": "e/oom", "gap": "e/gap", "audit": "e/audit",
        "mem_1m": "m/mem_1m", "status": "status"}  # fmt: skip


def test_what_a_box_says_over_the_broker_is_on_every_panel(tmp_path: Path) -> None:
    """The collector's own process takes it from a real mosquitto into a real PostgreSQL."""
    with (
        postgres() as cluster,
        mosquitto(tmp_path / "broker") as broker,
        observer(broker.port, ()) as box,
    ):
        url = cluster.database()
        with collecting(tmp_path, broker.port, url) as collector:
            collector.connected()
            for seq, (name, below) in enumerate(SAID.items(), 1):
                document = json.loads((GOLDEN / f"{name}.json").read_text())
                document.update({"ts": time.time_ns() // 1_000_000, "seq": seq})
                box.publish(f"edgeagent/v1/plant7/edge-0001/{below}", json.dumps(document).encode())
            counted = (
                "SELECT (SELECT count(*) FROM message), (SELECT count(*) FROM telemetry), state"
            )
            sql = f"{counted} FROM node"
            until(lambda: _ran(url, sql)[1] == [(4, 1, "online")], "all is stored")
        for title, panel in PANELS.items():
            for target in panel["targets"]:
                assert _ran(url, target["rawSql"])[1], title


def test_the_dashboard_has_a_panel_for_each_question() -> None:
    assert set(PANELS) == {
        "Boxes",
        "Memory used, and what there is",
        "Memory of a slot",
        "Tokens per second by simultaneous requests",
        "Time to first token by simultaneous requests",
        "Rows that will not come",
        "What was asked of boxes",
    }


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


def test_lost_rows_are_counted_without_those_that_are_still_to_come(database: str) -> None:
    # Numbers 1 to 10 without the multiples of 5: eight.
    names, rows = _ran(database, PANELS["Rows that will not come"]["targets"][0]["rawSql"])
    mine = next(dict(zip(names, row, strict=True)) for row in rows if row[2] == "evicted")
    assert mine["rows"] == 8


def test_the_columns_that_have_units_are_there(database: str) -> None:
    for panel in BOARD["panels"]:
        names, _ = _ran(database, panel["targets"][0]["rawSql"])
        for override in panel["fieldConfig"]["overrides"]:
            if override["matcher"]["id"] == "byName":
                assert override["matcher"]["options"] in names, panel["title"]


def test_variables_offer_what_is_in_the_tables(database: str) -> None:
    offered = {one["name"]: _ran(database, one["query"])[1] for one in BOARD["templating"]["list"]}
    assert set(NODES) <= {row[0] for row in offered["node"]}
    assert offered["site"]
    assert offered["model"]


def test_out_of_memory_stands_on_the_memory_panel(database: str) -> None:
    target = BOARD["annotations"]["list"][0]["target"]
    names, rows = _ran(database, target["rawSql"])
    assert names == ["time", "text"]
    assert rows[0][1] == "edge-0001: out of memory, vllm was ended"


RULES = {rule["title"]: rule for group in ALERTS["groups"] for rule in group["rules"]}


@pytest.mark.parametrize("title", RULES)
def test_every_alert_asks_for_a_box_and_a_number(database: str, title: str) -> None:
    query, verdict = RULES[title]["data"]
    names, rows = _ran(database, query["model"]["rawSql"])
    assert names == ["node", "value"]
    assert RULES[title]["condition"] == verdict["refId"]
    assert verdict["model"]["expression"] == query["refId"]
    if title in {"A box is offline", "Messages wait on a box for over an hour"}:
        assert "edge-0009" in {row[0] for row in rows}
    if title == "A box has lost rows":
        assert "edge-0001" in {row[0] for row in rows}


def test_everything_in_grafana_uses_the_data_source_that_is_provisioned() -> None:
    text = (GRAFANA / "provisioning/datasources/edgeagent.yaml").read_text()
    source = yaml.safe_load(text)["datasources"][0]
    used = set(re.findall(r'"uid": "(.+?)"', json.dumps(BOARD["panels"])))
    assert used == {source["uid"]}
    alerting = {part["datasourceUid"] for rule in RULES.values() for part in rule["data"]}
    assert alerting == {source["uid"], "__expr__"}
    assert source["secureJsonData"]["password"].startswith("$")
    provider = yaml.safe_load((GRAFANA / "provisioning/dashboards/edgeagent.yaml").read_text())
    assert provider["providers"][0]["type"] == "file"


# ---------------------------------------------------------------- TimescaleDB


def test_the_first_part_of_the_timescale_file_runs_on_plain_postgresql(database: str) -> None:
    first, _ = (CONFIGS / "timescale/edgeagent.sql").read_text().split("= PART 2")
    with psycopg.connect(database) as connection:
        connection.execute(first.encode())
        rows = connection.execute("SELECT ram_used_bytes_max FROM memory_minute").fetchall()
        assert (5e9,) in rows
        assert connection.execute("SELECT * FROM result_point LIMIT 1").fetchone() is not None


# ---------------------------------------------------------------- Telegraf


def test_the_file_for_telegraf_is_toml_and_keeps_what_telegraf_needs() -> None:
    document = tomllib.loads((CONFIGS / "telegraf/edgeagent.conf").read_text())
    batch = document["agent"]["metric_batch_size"]
    inputs = document["inputs"]["mqtt_consumer"]
    assert len({one["client_id"] for one in inputs}) == len(inputs)
    for one in inputs:
        assert one["max_undelivered_messages"] >= batch
        assert one["persistent_session"] is True
        assert one["qos"] == 1
        parsing = one["topic_parsing"][0]
        assert parsing["topic"] in one["topics"]
        assert len(parsing["tags"].split("/")) == len(parsing["topic"].split("/"))


def test_what_telegraf_reads_is_what_boxes_send() -> None:
    document = tomllib.loads((CONFIGS / "telegraf/edgeagent.conf").read_text())
    envelope = set(MESSAGES["point"].model_json_schema(by_alias=True)["properties"])
    for one in document["inputs"]["mqtt_consumer"]:
        paths = one["xpath"][0]
        words = [*paths["tags"].values(), *paths["fields_int"].values(), paths["timestamp"]]
        assert {word.strip("/") for word in words} <= envelope
        assert paths["field_selection"] == "/v/*"


# ---------------------------------------------------------------- Node-RED

FLOW: list[dict[str, Any]] = json.loads((CONFIGS / "node-red/edgeagent-flow.json").read_text())


def test_the_flow_is_wired_to_nodes_that_exist() -> None:
    known = {node["id"]: node for node in FLOW}
    assert len(known) == len(FLOW)
    for node in FLOW:
        for wires in node.get("wires", []):
            assert all(known[target]["type"] in {"function", "debug"} for target in wires)
        for link, kind in (("broker", "mqtt-broker"), ("tls", "tls-config"), ("z", "tab")):
            if link in node and node["type"] != "mqtt-broker":
                assert known[node[link]]["type"] == kind


def _through(code: str, topic: str, payload: object) -> Any:
    """What a function node of the flow makes of a message, in a real JavaScript.

    Node-RED itself, which has a variable `node` there, is in test_node_red.py.
    """
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node on this machine; install nodejs to run the flow's functions")
    script = (
        "const kept = {}; const flow = {get: k => kept[k], set: (k, v) => { kept[k] = v; }};\n"
        f"const made = (function (msg) {{ var node = {{}}; {code}\n }})({json.dumps({'topic': topic, 'payload': payload})});\n"  # noqa: E501  # because it is one line of another language
        "console.log(JSON.stringify(made === null ? null : made.payload));"
    )
    done = subprocess.run([node, "-e", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


FUNCTIONS = {node["name"]: node["func"] for node in FLOW if node["type"] == "function"}


def test_the_flow_keeps_the_last_status_of_a_box() -> None:
    status = {
        "schema": "edgeagent.status/1", "site": "plant7", "node": "edge-0001", "state": "online",
        "session": "s", "session_n": 3, "health": "ok",
    }  # fmt: skip
    Status.model_validate(status)
    topic = "edgeagent/v1/plant7/edge-0001/status"
    made = _through(FUNCTIONS["last of each box"], topic, status)
    assert made["edge-0001"]["state"] == "online"
    assert made["edge-0001"]["site"] == "plant7"
    assert _through(FUNCTIONS["last of each box"], topic, "no object") is None


def test_the_flow_makes_a_row_with_a_key_of_a_result() -> None:
    values = PointValues.model_validate({"concurrency": 4, "output_tokens_per_s": 50.5}).model_dump(
        exclude_none=True
    )
    point = {"epoch": "e", "stream": "R", "seq": 7, "ts": 5, "engine": "vllm", "v": values}
    topic = "edgeagent/v1/plant7/edge-0001/r/point/run-1"
    made = _through(FUNCTIONS["a row"], topic, point)
    assert made["key"] == "edge-0001/e/R/7"
    assert made["output_tokens_per_s"] == 50.5


def test_the_flow_makes_a_sentence_of_an_event() -> None:
    topic = "edgeagent/v1/plant7/edge-0001/e/oom"
    made = _through(FUNCTIONS["a sentence"], topic, {"v": {"victim": "vllm"}})
    assert made == 'plant7/edge-0001: oom {"victim":"vllm"}'


# ---------------------------------------------------------------- what is said of them


def test_the_page_about_them_names_what_no_product_has_loaded() -> None:
    page = (CONFIGS.parent / "docs/fleet-configs.md").read_text()
    for product in ("Telegraf", "Grafana", "TimescaleDB"):
        row = next(line for line in page.splitlines() if line.startswith(f"| {product}"))
        assert "untested" in row, product
    for file in CONFIGS.rglob("*"):
        if file.is_file() and file.parent != CONFIGS:
            assert f"configs/{file.relative_to(CONFIGS)}" in page, file
