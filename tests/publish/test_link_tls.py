"""What TLS lets through, what it refuses, and how an operator learns why: file, name and date.

The broker is mosquitto, all certificates are made here by openssl.
"""

from __future__ import annotations

import itertools
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from queue import Empty, SimpleQueue
from random import Random

import pytest
from broker_places import (
    PATIENCE_S,
    Authority,
    Issued,
    Mosquitto,
    Variant,
    authority,
    mosquitto,
)

from edgeagent.core.backoff import Pace
from edgeagent.errors import ConfigError
from edgeagent.publish import tls
from edgeagent.publish.link import Broker, PahoLink, checked
from edgeagent.publish.topics import Topics
from edgeagent.publish.wire import Down, Event, Session, Up

TOPICS = Topics("edgeagent/v1/plant7/edge-0001")
SWIFT = Pace(first_s=0.0, return_s=0.1, most_s=0.2, refused_s=0.1, taken_over_s=0.2, stable_s=0.5)
PAST = ("20200101000000Z", "20210101000000Z")
FUTURE = ("20400101000000Z", "20410101000000Z")
LOCALHOST = "DNS:localhost,IP:127.0.0.1"


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("pki"))


@contextmanager
def tls_broker(folder: Path, ca: Authority, server: Issued, *more: str) -> Iterator[Mosquitto]:
    lines = (
        f"cafile {ca.cert}",
        f"certfile {server.cert}",
        f"keyfile {server.key}",
        "tls_version tlsv1.2",
        "require_certificate true",
        "use_identity_as_username true",
        "allow_anonymous false",
        *more,
    )
    with mosquitto(folder, Variant(lines)) as broker:
        yield broker


def files(ca: Authority, own: Issued | None) -> tls.TlsFiles:
    if own is None:
        return tls.TlsFiles(ca_file=ca.cert)
    return tls.TlsFiles(ca_file=ca.cert, cert_file=own.cert, key_file=str(own.key))


@contextmanager
def linked(broker: Broker) -> Iterator[Callable[[], Event]]:
    """A link that tries; yields how to get the next Up or Down."""
    numbers = itertools.count(1)
    events: SimpleQueue[Event] = SimpleQueue()
    link = PahoLink(broker, TOPICS, Random(1), SWIFT)
    link.start(events, lambda: Session(next(numbers), "s", TOPICS.status, b"gone"))

    def following() -> Event:
        while True:
            try:
                event = events.get(timeout=PATIENCE_S)
            except Empty:
                raise AssertionError("neither up nor down came") from None
            if isinstance(event, Up | Down):
                return event

    try:
        yield following
    finally:
        assert link.stop(20.0) == "stopped"


def failure(broker: Broker) -> Down:
    with linked(broker) as following:
        event = following()
        assert isinstance(event, Down), event
        return event


def at(broker: Mosquitto, its: tls.TlsFiles, host: str = "localhost") -> Broker:
    return Broker(host, broker.port, "edge-0001", tls_files=its)


def test_a_box_with_its_certificate_gets_in(tmp_path: Path, ca: Authority) -> None:
    server, own = ca.issue("broker-1", san=LOCALHOST), ca.issue("edge-0001")
    with (
        tls_broker(tmp_path / "b", ca, server) as broker,
        linked(at(broker, files(ca, own))) as following,
    ):
        assert isinstance(following(), Up)


def test_a_certificate_of_ours_that_has_expired_is_named_with_its_date(
    tmp_path: Path, ca: Authority
) -> None:
    server, own = ca.issue("broker-2", san=LOCALHOST), ca.issue("edge-old", dates=PAST)
    with tls_broker(tmp_path / "b", ca, server) as broker:
        down = failure(at(broker, files(ca, own)))
    assert down.cause == "refused"
    assert f"{own.cert}, expired 2021-01-01" in down.text
    assert "refused our certificate as expired" in down.text


def test_a_broker_whose_certificate_has_expired_is_named_with_its_date(
    tmp_path: Path, ca: Authority
) -> None:
    server, own = ca.issue("broker-3", dates=PAST, san=LOCALHOST), ca.issue("edge-3")
    with tls_broker(tmp_path / "b", ca, server) as broker:
        down = failure(at(broker, files(ca, own)))
    assert down.cause == "refused"
    assert f"the certificate of the broker localhost:{broker.port} has expired" in down.text
    assert "2021-01-01" in down.text


def test_a_broker_whose_certificate_is_not_valid_yet_is_named(
    tmp_path: Path, ca: Authority
) -> None:
    server, own = ca.issue("broker-4", dates=FUTURE, san=LOCALHOST), ca.issue("edge-4")
    with tls_broker(tmp_path / "b", ca, server) as broker:
        down = failure(at(broker, files(ca, own)))
    assert "is not valid yet" in down.text


def test_without_a_certificate_the_settings_to_make_are_named(
    tmp_path: Path, ca: Authority
) -> None:
    server = ca.issue("broker-5", san=LOCALHOST)
    with tls_broker(tmp_path / "b", ca, server) as broker:
        down = failure(at(broker, files(ca, None)))
    assert "mqtt.tls.cert_file" in down.text
    assert "none is set" in down.text


def test_a_broker_of_another_ca_is_refused_and_our_ca_file_named(
    tmp_path: Path, ca: Authority
) -> None:
    other = authority(tmp_path / "other", "other-ca")
    server, own = ca.issue("broker-6", san=LOCALHOST), ca.issue("edge-6")
    its = replace(files(ca, own), ca_file=other.cert)
    with tls_broker(tmp_path / "b", ca, server) as broker:
        down = failure(at(broker, its))
    assert down.cause == "refused"
    assert f"was not issued by mqtt.tls.ca_file {other.cert}" in down.text


def test_a_certificate_of_ours_from_another_ca_is_refused_and_named(
    tmp_path: Path, ca: Authority
) -> None:
    other = authority(tmp_path / "other", "other-ca")
    server, own = ca.issue("broker-7", san=LOCALHOST), other.issue("edge-7")
    with tls_broker(tmp_path / "b", ca, server) as broker:
        down = failure(at(broker, files(ca, own)))
    assert str(own.cert) in down.text
    assert down.cause == "refused"


def test_a_broker_with_another_name_is_refused_and_the_name_said(
    tmp_path: Path, ca: Authority
) -> None:
    server, own = ca.issue("broker-8", san="DNS:broker.plant"), ca.issue("edge-8")
    with tls_broker(tmp_path / "b", ca, server) as broker:
        down = failure(at(broker, files(ca, own)))
    assert "is for another name" in down.text
    assert "localhost" in down.text


def test_a_broker_whose_certificate_was_revoked_is_refused(tmp_path: Path) -> None:
    own_ca = authority(tmp_path / "pki")
    server, own = own_ca.issue("broker-9", san=LOCALHOST), own_ca.issue("edge-9")
    crl = own_ca.revoke("broker-9")
    with tls_broker(tmp_path / "b", own_ca, server) as broker:
        down = failure(at(broker, replace(files(own_ca, own), crl_file=crl)))
    assert f"is revoked by {crl}" in down.text


def test_a_port_without_tls_is_recognised(tmp_path: Path, ca: Authority) -> None:
    with mosquitto(tmp_path / "b") as broker:
        down = failure(at(broker, files(ca, None)))
    assert "TLS" in down.text
    assert f"localhost:{broker.port}" in down.text


def test_new_files_in_the_old_place_are_used_without_a_restart(
    tmp_path: Path, ca: Authority
) -> None:
    server = ca.issue("broker-10", san=LOCALHOST)
    old, new = ca.issue("edge-10", dates=PAST), ca.issue("edge-10b")
    with (
        tls_broker(tmp_path / "b", ca, server) as broker,
        linked(at(broker, files(ca, old))) as following,
    ):
        assert isinstance(following(), Down)
        old.key.unlink()
        old.key.write_bytes(new.key.read_bytes())
        old.key.chmod(0o400)
        old.cert.write_bytes(new.cert.read_bytes())
        while not isinstance(event := following(), Up):
            assert isinstance(event, Down)


def test_a_key_with_a_passphrase_in_a_file(tmp_path: Path, ca: Authority) -> None:
    import subprocess

    server, own = ca.issue("broker-11", san=LOCALHOST), ca.issue("edge-11")
    locked, phrase = tmp_path / "locked.key", tmp_path / "phrase"
    phrase.write_text("plant secret\n")
    phrase.chmod(0o400)
    subprocess.run(
        ["openssl", "ec", "-aes256", "-in", own.key, "-out", locked, "-passout", f"file:{phrase}"],
        check=True,
        capture_output=True,
    )
    locked.chmod(0o400)
    its = tls.TlsFiles(ca.cert, own.cert, str(locked), str(phrase))
    with (
        tls_broker(tmp_path / "b", ca, server) as broker,
        linked(at(broker, its)) as following,
    ):
        assert isinstance(following(), Up)
    phrase.chmod(0o600)
    phrase.write_text("another\n")
    down = failure(at(broker, its))
    assert str(locked) in down.text
    assert "another" not in down.text


# ---------------------------------------------------------------- files alone


def test_a_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("s3cret\n")
    secret.chmod(0o640)
    with pytest.raises(ConfigError, match=r"may be read by others.*chmod 0400"):
        tls.read_secret(str(secret), "mqtt.password_file")
    secret.chmod(0o400)
    assert tls.read_secret(str(secret), "mqtt.password_file").reveal() == b"s3cret"


def test_a_secret_is_never_shown(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("s3cret")
    secret.chmod(0o400)
    held = tls.read_secret(str(secret), "mqtt.password_file")
    assert "s3cret" not in f"{held!r} {held} {[held]}"


def test_a_credential_of_systemd_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mqtt-key").write_text("k")
    (tmp_path / "mqtt-key").chmod(0o440)  # as systemd shows an access list
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    with pytest.raises(ConfigError, match="LoadCredential="):
        tls.secret_path("credential:mqtt-key")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert tls.read_secret("credential:mqtt-key", "key").reveal() == b"k"
    assert tls.read_secret(str(tmp_path / "mqtt-key"), "key").reveal() == b"k"
    with pytest.raises(ConfigError, match="no name of a credential"):
        tls.secret_path("credential:../other")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mqtt.tls.ca_file .*gone.crt cannot be used: No such"):
        tls.context(tls.TlsFiles(ca_file=tmp_path / "gone.crt"))


def test_a_certificate_and_a_key_that_do_not_belong_together(ca: Authority) -> None:
    one, two = ca.issue("one"), ca.issue("two")
    with pytest.raises(ConfigError, match="cannot be used together"):
        tls.context(tls.TlsFiles(ca.cert, one.cert, str(two.key)))


def test_dates_are_read_from_pem_and_der(ca: Authority, tmp_path: Path) -> None:
    own = ca.issue("dated", dates=("20230102030405Z", "20511112131415Z"))
    held = tls.validity(own.cert)
    assert held == tls.Validity(
        datetime(2023, 1, 2, 3, 4, 5, tzinfo=timezone.utc),
        datetime(2051, 11, 12, 13, 14, 15, tzinfo=timezone.utc),
    )
    der = tmp_path / "dated.der"
    der.write_bytes(ssl.PEM_cert_to_DER_cert(own.cert.read_text()))
    assert tls.validity(der) == held
    for broken in (b"", b"\x30", b"\x30\x82\xff\xff", b"nonsense", der.read_bytes()[:60]):
        assert tls.validity_of(broken) is None


def test_a_clock_before_the_certificates_birth_is_named_as_the_likely_cause(
    ca: Authority,
) -> None:
    own = ca.issue("early")
    peer = tls.Peer("broker.plant", 8883, files(ca, own))
    said = tls.explain_text(
        "[SSL: SSLV3_ALERT_BAD_CERTIFICATE] bad", peer, datetime(1970, 1, 1, tzinfo=timezone.utc)
    )
    assert "this box's clock says 1970-01-01" in said
    later = datetime.now(timezone.utc) + timedelta(days=1)
    assert "clock" not in tls.explain_text("[SSL: SSLV3_ALERT_BAD_CERTIFICATE] bad", peer, later)


def test_without_tls_only_this_box_itself_is_spoken_to_unless_allowed() -> None:
    for host in ("localhost", "127.0.0.1", "127.8.8.8", "::1"):
        assert checked(Broker(host)).host == host
    checked(Broker("/run/mosquitto.sock", transport="unix"))
    checked(Broker("broker.plant", plaintext="allowed"))
    for host in ("broker.plant", "10.0.0.1", "localhost.evil.example"):
        with pytest.raises(ConfigError, match="allow_plaintext"):
            checked(Broker(host))
    with pytest.raises(ConfigError, match=r"mqtt.host is empty"):
        checked(Broker(""))
