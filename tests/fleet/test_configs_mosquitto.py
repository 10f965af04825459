"""The broker that configs/ sets up lets each in by its certificate, and to its own topics only."""

from __future__ import annotations

import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_places import until
from plant_places import (
    BOXES,
    CONFIGS,
    ROLES,
    Generation,
    Pki,
    PlantBroker,
    mosquitto_21,
    party,
    pki,
    plant_broker,
)

BOX = "edgeagent/v1/plant7/edge-0001"
OTHER = "edgeagent/v1/plant7/edge-0002"
UP = ("status", "meta/node", "meta/cmd/sweep", "m/mem", "e/gap", "r/run/1", "ack/sweep/1")
DOWN = ("cmd/sweep/1", "rx")


@pytest.fixture(scope="module", params=["2.0", "2.1"])
def generation(request: pytest.FixtureRequest) -> Generation:
    asked: Generation = request.param
    if asked == "2.1":
        mosquitto_21()
    return asked


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, generation: Generation
) -> Iterator[PlantBroker]:
    with plant_broker(tmp_path_factory.mktemp("plant"), generation) as made:
        yield made


# Who may write where: the whole matrix. Whatever stands in no line is denied.
MATRIX = {
    ("edge-0001", BOX): set(UP),
    ("edge-0001", OTHER): set(),
    ("edge-0002", BOX): set(),
    ("plant-collector", BOX): {"rx"},
    ("plant-operator", BOX): {"cmd/sweep/1"},
    ("plant-janitor", BOX): {"status", "meta/node", "meta/cmd/sweep", "ack/sweep/1", *DOWN},
    ("plant-viewer", BOX): set(),
}


@pytest.mark.parametrize(("name", "prefix"), MATRIX)
def test_each_may_write_to_its_own_topics_and_to_no_other(
    broker: PlantBroker, name: str, prefix: str
) -> None:
    with party(broker, name) as one:
        allowed = {below for below in (*UP, *DOWN) if one.may_write(f"{prefix}/{below}")}
        assert allowed == MATRIX[name, prefix]
        assert not one.may_write("elsewhere")
        assert not one.may_write(prefix)


def test_a_box_hears_what_is_asked_of_it_and_nothing_else(broker: PlantBroker) -> None:
    with (
        party(broker, "edge-0001") as box,
        party(broker, "plant-operator") as operator,
        party(broker, "plant-collector") as collector,
        party(broker, "edge-0002") as other,
    ):
        box.hears("#")
        assert operator.may_write(f"{OTHER}/cmd/ping/a")
        assert other.may_write(f"{OTHER}/m/mem")
        assert collector.may_write(f"{BOX}/rx", b"receipt")
        assert operator.may_write(f"{BOX}/cmd/ping/b", b"request")
        until(lambda: len(box.got) >= 2, "the box hears what is meant for it")
        assert box.got == [(f"{BOX}/rx", b"receipt"), (f"{BOX}/cmd/ping/b", b"request")]


@pytest.mark.parametrize("name", ROLES)
def test_every_role_of_the_plant_reads_what_boxes_say(broker: PlantBroker, name: str) -> None:
    with party(broker, name) as reader, party(broker, "edge-0002") as box:
        reader.hears("edgeagent/v1/#")
        assert box.may_write(f"{OTHER}/m/gpu", name.encode())
        until(lambda: (f"{OTHER}/m/gpu", name.encode()) in reader.got, "the reader gets it")


def test_a_client_without_a_certificate_is_not_let_in(broker: PlantBroker) -> None:
    done = _says_hello(broker, "-CAfile", str(broker.pki.ca))
    assert "alert" in done.stderr, done.stderr


def test_a_client_of_another_authority_is_not_let_in(broker: PlantBroker, tmp_path: Path) -> None:
    stranger = pki(tmp_path / "others")
    done = _says_hello(
        broker,
        *("-CAfile", str(broker.pki.ca)),
        *("-cert", str(stranger.cert("edge-0001")), "-key", str(stranger.key("edge-0001"))),
    )
    assert "alert" in done.stderr, done.stderr


@pytest.mark.parametrize("by", ["restart", "reload"])
def test_a_certificate_that_was_taken_back_is_worth_nothing_from_then_on(
    tmp_path: Path, generation: Generation, by: str
) -> None:
    with plant_broker(tmp_path / "plant", generation) as own:
        with party(own, "edge-0002") as box:
            assert box.may_write(f"{OTHER}/status")
        kept = own.pki.context("edge-0002")
        assert not _revoked(own, kept)
        own.pki.made("revoke", "edge-0002")
        if by == "reload":
            own.send(signal.SIGHUP)
        else:
            own.restart(signal.SIGTERM)
        until(lambda: _revoked(own, kept), "the broker refuses it")
        with party(own, "edge-0001"):
            pass


def _revoked(broker: PlantBroker, context: ssl.SSLContext) -> bool:
    """Whether the broker says that the certificate was taken back; False where it lets it in."""
    try:
        with (
            socket.create_connection(("127.0.0.1", broker.port), 1) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped,
        ):
            wrapped.recv(1)  # because TLS 1.3 refuses after the handshake
    except TimeoutError:
        return False  # because it waits for us to speak
    except ssl.SSLError as refusal:
        return "CERTIFICATE_REVOKED" in (refusal.reason or "")
    raise AssertionError("the broker has hung up without a word")


def _says_hello(broker: PlantBroker, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["openssl", "s_client", "-connect", f"127.0.0.1:{broker.port}", "-ign_eof", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


# ---------------------------------------------------------------- the certificates


def test_what_the_script_made_is_not_made_again(broker: PlantBroker) -> None:
    again = broker.pki.run("client", "edge-0001")
    assert again.returncode == 2
    assert "is there already" in again.stderr


@pytest.mark.parametrize("name", ["a/b", "+", "edge#1", "Edge", "-a", "a", "x" * 64, ""])
def test_a_name_that_would_bend_the_rules_gets_no_certificate(
    broker: PlantBroker, name: str
) -> None:
    assert broker.pki.run("client", name).returncode == 2


def test_keys_are_their_owners_alone(broker: PlantBroker) -> None:
    for key in broker.pki.folder.glob("*.key"):
        assert key.stat().st_mode & 0o077 == 0


def test_a_certificate_is_for_a_client_or_for_the_broker_not_for_both(broker: PlantBroker) -> None:
    def fits(name: str, purpose: str) -> bool:
        done = subprocess.run(
            ["openssl", "verify", "-purpose", purpose, "-CAfile", str(broker.pki.ca),
             str(broker.pki.cert(name))],
            capture_output=True, check=False,
        )  # fmt: skip
        return done.returncode == 0

    assert fits("broker", "sslserver")
    assert not fits("broker", "sslclient")
    for name in (*BOXES, *ROLES):
        assert fits(name, "sslclient")
        assert not fits(name, "sslserver")


def test_without_an_authority_the_script_says_what_to_do(tmp_path: Path) -> None:
    done = Pki(tmp_path / "empty").run("client", "edge-0001")
    assert done.returncode == 2
    assert "there is no authority" in done.stderr


# ---------------------------------------------------------------- the file for 2.1


def _settings(name: str) -> list[tuple[str, str]]:
    lines = (CONFIGS / "mosquitto" / name).read_text().splitlines()
    words = (line.split(None, 1) for line in lines if line and not line.startswith("#"))
    return [(word[0], word[1]) for word in words]


def test_the_file_for_2_1_differs_from_the_tested_one_only_in_what_2_1_does_otherwise() -> None:
    old, new = set(_settings("edgeagent.conf")), set(_settings("edgeagent-2.1.conf"))
    assert {name for name, _ in old - new} == {
        "acl_file",
        "persistence",
        "autosave_on_changes",
        "autosave_interval",
    }
    assert {name for name, _ in new - old} == {
        "global_plugin",
        "plugin",
        "plugin_opt_acl_file",
        "plugin_opt_db_file",
        "plugin_opt_sync",
        "plugin_opt_flush_period",
        "persistence",
    }
