"""A collector as a plant runs it: by systemd, with a certificate, with the rights of its user."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from broker_places import until
from fleet_boxes import CHILD, payload, when_laid_out
from plant_places import PlantBroker, party, plant_broker

from edgeagent.cli.fleet_collect import read_owners
from edgeagent.errors import UsageError


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlantBroker]:
    with plant_broker(tmp_path_factory.mktemp("plant")) as made:
        yield made


@contextmanager
def _service(folder: Path, broker: PlantBroker, who: str) -> Iterator[tuple[Path, socket.socket]]:
    """A collector with somebody's certificate; its log, and what systemd would hear."""
    config = folder / "edgeagent.toml"
    config.write_text(
        f"""
[mqtt]
enabled = true
host = "localhost"
port = {broker.port}
client_id = "{who}"
[mqtt.tls]
ca_file = "{broker.pki.ca}"
cert_file = "{broker.pki.cert(who)}"
key_file = "{broker.pki.key(who)}"
"""
    )
    log = folder / "log"
    command = [sys.executable, str(CHILD), "--config", str(config)]
    command += ["--store", f"sqlite://{folder}/fleet.db"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, log.open("wb") as out:
        manager.bind(str(folder / "notify"))
        manager.settimeout(60)
        environ = {**os.environ, "NOTIFY_SOCKET": str(folder / "notify")}
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environ)
        try:
            yield log, manager
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, log.read_text()
        finally:
            process.kill()
            process.wait()


def _heard(manager: socket.socket, word: str) -> bool:
    """Wait for systemd to hear something."""
    while True:
        if word in manager.recv(4096).decode():
            return True


def test_with_its_certificate_it_collects_and_gives_receipts(
    tmp_path: Path, broker: PlantBroker
) -> None:
    with (
        _service(tmp_path, broker, "plant-collector") as (log, manager),
        party(broker, "edge-0001") as box,
    ):
        assert _heard(manager, "READY=1")
        until(lambda: "fleet_up" in log.read_text(), f"connected\n{log.read_text()}")
        box.hears("edgeagent/v1/plant7/edge-0001/rx")
        assert box.may_write("edgeagent/v1/plant7/edge-0001/e/oom", payload("edge-0001"))
        until(lambda: any(b'"R": 1' in receipt for _, receipt in box.got), "the box's receipt")
        assert _heard(manager, "WATCHDOG=1")
        with closing(when_laid_out(f"sqlite://{tmp_path}/fleet.db")) as store:
            assert store.query("SELECT node, stream, wm FROM watermark") == [("edge-0001", "R", 1)]


def test_a_box_that_claims_another_site_after_the_first_is_set_aside(
    tmp_path: Path, broker: PlantBroker
) -> None:
    with (
        _service(tmp_path, broker, "plant-collector") as (log, _),
        party(broker, "edge-0002") as box,
    ):
        until(lambda: "fleet_up" in log.read_text(), f"connected\n{log.read_text()}")
        # The broker's rules let a box name any site: which one is right only the collector knows.
        assert box.may_write("edgeagent/v1/plant7/edge-0002/e/oom", payload("edge-0002"))
        moved = payload("edge-0002", 2, site="plant9")
        assert box.may_write("edgeagent/v1/plant9/edge-0002/e/oom", moved)
        assert not box.may_write("edgeagent/v1/plant7/edge-0001/e/oom", payload("edge-0001"))
        with closing(when_laid_out(f"sqlite://{tmp_path}/fleet.db")) as store:
            until(
                lambda: (
                    store.query("SELECT reason FROM quarantine")
                    == [("the node belongs to another site",)]
                ),
                "the other site is set aside",
            )
            assert store.query("SELECT node, site FROM node") == [("edge-0002", "plant7")]


def test_a_list_of_owners_says_where_it_is_wrong(tmp_path: Path) -> None:
    listed = tmp_path / "owners"
    listed.write_text("# who is where\nplant7 edge-1\nplant7   edge-2 # the press\n")
    assert read_owners(listed) == {"edge-1": "plant7", "edge-2": "plant7"}
    for wrong in ("plant7", "plant7 UPPER", "plant7 a b"):
        listed.write_text(f"plant7 edge-1\n{wrong}\n")
        with pytest.raises(UsageError, match="line 2"):
            read_owners(listed)
    listed.write_text("plant7 edge-1\nplant8 edge-1\n")
    with pytest.raises(UsageError, match="twice"):
        read_owners(listed)
    with pytest.raises(UsageError, match="cannot be read"):
        read_owners(tmp_path / "nothing")
