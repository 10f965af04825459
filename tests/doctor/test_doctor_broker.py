"""How far the doctor gets with a broker, and what it says of the step that fails.

The broker is mosquitto: open, behind TLS as tests make it, and as configs/ sets it up.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from broker_places import Authority, Issued, Variant, authority, mosquitto, observer, until
from plant_places import plant_broker

from edgeagent.core.diagnosis import Check
from edgeagent.doctor import broker
from edgeagent.publish import tls
from edgeagent.settings import Settings, Surroundings, load

PAST = ("20200101000000Z", "20210101000000Z")
LOCALHOST = "DNS:localhost,IP:127.0.0.1"
STEPS = ["broker.name", "broker.tcp", "broker.tls", "broker.mqtt", "broker.round_trip"]


def settings(folder: Path, port: int, *lines: str, host: str = "127.0.0.1") -> Settings:
    """A box at this broker; `lines` stand in [mqtt]."""
    path = folder / "edgeagent.toml"
    path.write_text(
        "\n".join(
            [
                "[agent]", 'site = "plant7"', 'node = "edge-0001"', f'state_dir = "{folder}"',
                "[mqtt]", "enabled = true", f'host = "{host}"', f"port = {port}", *lines, "",
            ]
        )
    )  # fmt: skip
    return load(Surroundings({}, "edge-0001", folder, folder), path)


def with_tls(ca: Authority, own: Issued | None, *more: str) -> tuple[str, ...]:
    named = [f'ca_file = "{ca.cert}"']
    if own is not None:
        named += [f'cert_file = "{own.cert}"', f'key_file = "{own.key}"']
    return ("[mqtt.tls]", *named, *more)


def asked(made: Settings, step_s: float = 30.0) -> dict[str, Check]:
    return {check.name: check for check in broker.asked(made, broker.utc_now(), step_s)}


def states(found: dict[str, Check]) -> list[str]:
    return [found[step].state if step in found else "-" for step in STEPS]


# -------------------------------------------------------------------------------- what goes through


def test_an_open_broker_gives_the_message_back(tmp_path: Path) -> None:
    with mosquitto(tmp_path / "broker") as running:
        found = asked(settings(tmp_path, running.port))

    assert states(found) == ["ok", "ok", "-", "ok", "ok"]
    assert "came back" in found["broker.round_trip"].text
    assert "edgeagent/v1/plant7/edge-0001/meta/doctor" in found["broker.round_trip"].text


def test_a_unix_socket_has_no_name_to_resolve(tmp_path: Path) -> None:
    place = tmp_path / "broker.sock"
    with mosquitto(tmp_path / "broker", Variant(unix_socket=place)):
        made = settings(tmp_path, 1883, 'transport = "unix"', f'unix_socket = "{place}"')
        found = asked(made)

    assert states(found) == ["-", "ok", "-", "ok", "ok"]


def test_the_shipped_broker_lets_a_box_see_the_whole_way(tmp_path: Path) -> None:
    with plant_broker(tmp_path) as plant:
        pki = plant.pki
        made = settings(
            tmp_path, plant.port, "[mqtt.tls]", f'ca_file = "{pki.ca}"',
            f'cert_file = "{pki.cert("edge-0001")}"', f'key_file = "{pki.key("edge-0001")}"',
        )  # fmt: skip
        found = asked(made)

    assert states(found) == ["ok"] * 5, found
    assert found["broker.tls"].text.startswith("TLSv1.")
    assert found["broker.their_cert"].state == "ok"


def test_nothing_is_left_behind_and_a_service_of_that_node_is_not_disturbed(tmp_path: Path) -> None:
    with (
        mosquitto(tmp_path / "broker") as running,
        observer(running.port, ("edgeagent/#",), client_id="edge-0001") as service,
    ):
        found = asked(settings(tmp_path, running.port))
        assert found["broker.round_trip"].state == "ok"
        with observer(running.port, ("edgeagent/#", "marker")) as later:
            later.publish("marker", b"1")
            retained = [seen.topic for seen in later.seen if seen.retain]
        until(service.topics, "the service hears the doctor's message")
        heard = service.topics()
        log = running.log()

    assert retained == []
    assert heard == ["edgeagent/v1/plant7/edge-0001/meta/doctor"]
    assert log.count("as edge-0001 ") == 1, "the service's connection was taken over"


# ------------------------------------------------------------------------------------ what does not


def test_a_port_where_nobody_listens_ends_at_tcp(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        found = asked(settings(tmp_path, taken.getsockname()[1]))

    assert states(found) == ["ok", "fault", "unasked", "unasked", "unasked"]
    assert "Connection refused" in found["broker.tcp"].text
    assert found["broker.tcp"].hint is not None


def test_a_name_that_nobody_knows_ends_at_once(tmp_path: Path) -> None:
    found = asked(settings(tmp_path, 8883, "allow_plaintext = true", host="no-such-broker.invalid"))

    assert states(found)[0] == "fault"
    assert "no-such-broker.invalid cannot be resolved" in found["broker.name"].text


@contextmanager
def silent_server() -> Iterator[int]:
    """Takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_broker_that_hangs_in_the_handshake_costs_its_time_and_no_more(tmp_path: Path) -> None:
    ca = authority(tmp_path / "pki")
    with silent_server() as port:
        found = asked(settings(tmp_path, port, *with_tls(ca, None)), 1.0)

    assert states(found) == ["ok", "ok", "fault", "unasked", "unasked"]
    assert "does not answer within" in found["broker.tls"].text


def test_a_broker_that_never_greets_costs_its_time_and_no_more(tmp_path: Path) -> None:
    with silent_server() as port:
        found = asked(settings(tmp_path, port), 1.0)

    assert states(found) == ["ok", "ok", "-", "fault", "unasked"]
    assert "did not answer the greeting" in found["broker.mqtt"].text


def test_a_password_that_is_wrong_is_refused_in_the_brokers_words(tmp_path: Path) -> None:
    (tmp_path / "user").write_text("edge-0001\n")
    secret = tmp_path / "password"
    secret.write_text("hunter2hunter2\n")
    secret.chmod(0o400)
    (tmp_path / "passwords").write_text("")
    lines = ("allow_anonymous false", f"password_file {tmp_path}/passwords")
    with mosquitto(tmp_path / "broker", Variant(lines)) as running:
        made = settings(
            tmp_path, running.port, f'username_file = "{tmp_path}/user"',
            f'password_file = "{secret}"',
        )  # fmt: skip
        found = asked(made)

    assert states(found) == ["ok", "ok", "-", "fault", "unasked"]
    assert "Not authorized" in found["broker.mqtt"].text
    assert "password_file" in str(found["broker.mqtt"].hint)
    assert "hunter2" not in repr(found)


@pytest.mark.parametrize(
    ("rule", "state", "said"),
    [
        ("topic read edgeagent/#", "fault", "Not authorized"),
        ("topic write edgeagent/#", "warning", "did not hand it back"),
        ("topic readwrite edgeagent/#", "ok", "came back"),
    ],
)
def test_what_the_access_list_allows_is_told(
    tmp_path: Path, rule: str, state: str, said: str
) -> None:
    (tmp_path / "acl").write_text(f"{rule}\n")
    lines = ("allow_anonymous true", f"acl_file {tmp_path}/acl")
    with mosquitto(tmp_path / "broker", Variant(lines)) as running:
        found = asked(settings(tmp_path, running.port))

    assert found["broker.round_trip"].state == state
    assert said in found["broker.round_trip"].text


# ---------------------------------------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("pki"))


def tls_lines(ca: Authority, server: Issued) -> Variant:
    return Variant(
        (
            f"cafile {ca.cert}", f"certfile {server.cert}", f"keyfile {server.key}",
            "require_certificate true", "use_identity_as_username true", "allow_anonymous false",
        )
    )  # fmt: skip


def test_a_certificate_of_another_name_ends_at_tls_with_that_name(
    tmp_path: Path, ca: Authority
) -> None:
    server, own = ca.issue("elsewhere", san="DNS:elsewhere.plant"), ca.issue("box-a")
    with mosquitto(tmp_path / "broker", tls_lines(ca, server)) as running:
        found = asked(settings(tmp_path, running.port, *with_tls(ca, own)))

    assert states(found) == ["ok", "ok", "fault", "unasked", "unasked"]
    assert "is for another name" in found["broker.tls"].text
    assert "mqtt.host" in str(found["broker.tls"].hint)


def test_a_broker_whose_certificate_has_expired_is_told_with_its_dates(
    tmp_path: Path, ca: Authority
) -> None:
    server, own = ca.issue("old-broker", dates=PAST, san=LOCALHOST), ca.issue("box-b")
    with mosquitto(tmp_path / "broker", tls_lines(ca, server)) as running:
        found = asked(settings(tmp_path, running.port, *with_tls(ca, own)))

    assert "has expired (valid 2020-01-01" in found["broker.tls"].text
    assert found["broker.tls"].hint == "renew it"


def test_a_broker_of_another_authority_is_not_trusted(tmp_path: Path, ca: Authority) -> None:
    other = authority(tmp_path / "other", "other-ca")
    server, own = ca.issue("right-broker", san=LOCALHOST), ca.issue("box-c")
    with mosquitto(tmp_path / "broker", tls_lines(ca, server)) as running:
        found = asked(settings(tmp_path, running.port, *with_tls(other, own)))

    assert states(found)[2] == "fault"
    assert "was not issued by" in found["broker.tls"].text


def test_a_certificate_of_ours_that_has_expired_is_refused_after_the_handshake(
    tmp_path: Path, ca: Authority
) -> None:
    server, own = ca.issue("a-broker", san=LOCALHOST), ca.issue("box-d", dates=PAST)
    with mosquitto(tmp_path / "broker", tls_lines(ca, server)) as running:
        made = settings(tmp_path, running.port, *with_tls(ca, own))
        found = asked(made)
        days = {check.name: check for check in broker.certificates(made, broker.utc_now())}

    assert "fault" in states(found)
    assert "expired" in repr(found)
    assert days["broker.cert"].state == "fault"
    assert "expired on 2021-01-01" in days["broker.cert"].text
    assert days["broker.ca"].state == "ok"


def test_a_key_that_others_may_read_is_no_connection(tmp_path: Path, ca: Authority) -> None:
    server, own = ca.issue("b-broker", san=LOCALHOST), ca.issue("box-e")
    own.key.chmod(0o644)
    with mosquitto(tmp_path / "broker", tls_lines(ca, server)) as running:
        found = asked(settings(tmp_path, running.port, *with_tls(ca, own)))

    assert found["broker.tls"].state == "fault"
    assert found["broker.tls"].hint == f"run chmod 0400 {own.key}"


# -------------------------------------------------------------------------------------------- dates

BORN = datetime(2026, 1, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("left", "state", "hint"),
    [
        (timedelta(days=200), "ok", None),
        (timedelta(days=29), "warning", "renew it"),
        (timedelta(days=6), "warning", "renew it now"),
        (timedelta(days=-1), "fault", "put a new one in its place"),
    ],
)
def test_days_that_are_left_decide(left: timedelta, state: str, hint: str | None) -> None:
    held = tls.Validity(BORN, BORN + timedelta(days=365))
    found = broker.dates("broker.cert", "it", held, held.not_after - left)

    assert (found.state, found.hint) == (state, hint)


def test_a_clock_before_the_birth_of_a_certificate_is_what_is_wrong() -> None:
    held = tls.Validity(BORN, BORN + timedelta(days=365))
    found = broker.dates("broker.cert", "it", held, BORN - timedelta(days=3000))

    assert found.state == "fault"
    assert "set the clock" in str(found.hint)


def test_a_broker_is_not_asked_offline(tmp_path: Path) -> None:
    found = broker.left_alone(settings(tmp_path, 1))

    assert (found.state, found.text) == (
        "unasked",
        "127.0.0.1:1: left alone, as --offline says",
    )
